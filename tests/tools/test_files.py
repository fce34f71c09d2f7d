"""The tools read, write and edit."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Settings, SqliteStorage, Tool
from pidurable_nb.testing import KillSwitch
from pidurable_nb.tools import LocalEnvironment, edit, files, read, write

from .support import Chat, bounded, call, calls, eventually, results, use, used

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def env(tmp_path: Path) -> LocalEnvironment:
    return LocalEnvironment(tmp_path, root=tmp_path)


# -- read ------------------------------------------------------------------------------------------------------------


def notes(data: dict[str, Any]) -> list[str]:
    return [item["message"] for item in data["diagnostics"]]


@bounded
async def test_a_short_file_is_read_as_it_is(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    message, data = await use(env, read(), path="a.txt")
    assert (message.text, message.is_error, notes(data)) == ("one\ntwo\n", False, [])


@bounded
async def test_a_range_of_lines_and_how_to_go_on(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)) + "last")
    message, data = await use(env, read(), path="a.txt", start=3, lines=2)
    assert message.content[0].text == "line 3\nline 4\n"  # type: ignore[union-attr]
    assert notes(data) == ["Lines 3 to 4 of 11; go on with start=5."]
    message, data = await use(env, read(), path="a.txt", start=10)
    assert (message.text, notes(data)) == ("line 10\nlast", [])


@bounded
async def test_a_file_of_many_lines_comes_in_parts(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 5000)
    message, data = await use(env, read(), path="a.txt")
    assert message.content[0].text == "x\n" * files.LINES  # type: ignore[union-attr]
    assert notes(data) == ["Lines 1 to 2000 of 5000; go on with start=2001."]


@bounded
async def test_a_file_of_long_lines_comes_in_parts_of_whole_lines(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(("y" * 999 + "\n") * 100)
    message, data = await use(env, read(), path="a.txt")
    assert message.content[0].text == ("y" * 999 + "\n") * 40  # type: ignore[union-attr]
    assert notes(data) == ["Lines 1 to 40 of 100; go on with start=41."]


@bounded
async def test_a_line_that_is_too_long_is_cut_and_said_to_be(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("z" * 3_000_000 + "\nnext\n")
    message, data = await use(env, read(), path="a.txt")
    assert message.content[0].text == "z" * files.BYTES  # type: ignore[union-attr]
    assert notes(data) == [
        f"Line 1 is longer than {files.BYTES} bytes; this is its beginning.",
        "Lines 1 to 1 of 2; go on with start=2.",
    ]
    assert (await use(env, read(), path="a.txt", start=2))[0].text == "next\n"


@bounded
async def test_what_is_not_there_is_said(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bin").write_bytes(b"\x00\x01")
    for arguments, text in (
        ({"path": "a.txt", "start": 3}, "a.txt has 2 lines, so there is no line 3"),
        ({"path": "no.txt"}, "FileNotFoundError"),
        ({"path": "bin"}, "bin is neither text nor an image"),
        ({"path": "."}, "is a directory"),
        ({"path": "../x"}, "outside of"),
    ):
        message, data = await use(env, read(), **arguments)
        assert text in message.text
        assert data["code"] == "tool_error"
    message, data = await use(env, read(), path="empty")
    assert notes(data) == ["The file is empty."]


@bounded
async def test_an_image_is_a_block(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    message, _ = await use(env, read(), path="dot.png")
    [block] = message.content
    assert block.type == "image"
    assert (block.media_type, base64.b64decode(block.data)) == ("image/png", PNG)


@bounded
async def test_an_image_that_is_too_large_is_refused(
    env: LocalEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IMAGE_BYTES", 10)
    (tmp_path / "dot.png").write_bytes(PNG)
    assert "make it smaller" in (await use(env, read(), path="dot.png"))[0].text


@bounded
async def test_tools_work_at_the_cwd_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("inner text")
    chat = Chat(calls(call("read", {"path": "a.txt"})), "done")
    chat.env = LocalEnvironment(tmp_path)
    chat.install(read())
    async with chat.open() as (_, root):
        await root.configure(cwd="inner")
        await root.ask("go")
        assert (await results(root))[0][0].text == "inner text"


@bounded
async def test_without_an_environment_it_is_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert (await use(None, read(), path="a.txt"))[0].text == "here"
    assert "is no Environment" in (await use("something", read(), path="a.txt"))[0].text


# -- write and edit --------------------------------------------------------------------------------------------------


@bounded
async def test_write_makes_directories_and_says_what_it_did(env: LocalEnvironment, tmp_path: Path) -> None:
    arguments = {"path": "a/b/c.txt", "content": "ü\nsecond"}
    [made, replaced] = await used(env, (write(), arguments), (write(), arguments | {"content": ""}))
    assert made[0].text == "created a/b/c.txt: 2 lines, 9 bytes"
    assert replaced[0].text == "replaced a/b/c.txt: 0 lines, 0 bytes"
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b""


@bounded
async def test_edit_replaces_what_occurs_once_and_keeps_a_diff(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\nb = 2\nc = 3\n")
    message, _ = await use(env, edit(), path="a.py", old="b = 2", new="b = 20\nbb = 21")
    assert (tmp_path / "a.py").read_text() == "a = 1\nb = 20\nbb = 21\nc = 3\n"
    assert message.text == "edited a.py"
    assert "-b = 2\n+b = 20\n+bb = 21" in message.details["diff"]


@bounded
async def test_an_edit_that_does_not_fit_says_how_to_do_better(env: LocalEnvironment, tmp_path: Path) -> None:
    text = "def f():\n    return 1\n\ndef g():\n    return 1\n"
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "latin").write_bytes(b"\xfcber")
    for arguments, said in (
        ({"old": "return 1", "new": "return 2"}, "the text occurs 2 times in a.py, at lines 2, 5: add lines around it"),
        ({"old": "def g():\n  return 1", "new": ""}, "does not occur in a.py; its first line is at line 4"),
        ({"old": "nothing", "new": ""}, "does not occur in a.py: read the file again"),
        ({"old": "def f", "new": "def f"}, "the same text"),
        ({"old": "a", "new": "b", "path": "latin"}, "not UTF-8"),
        ({"old": "a", "new": "b", "path": "no.py"}, "no.py does not exist"),
    ):
        message, data = await use(env, edit(), **({"path": "a.py"} | arguments))
        assert said in message.text
        assert data["code"] == "tool_error"
    assert (tmp_path / "a.py").read_text() == text


@bounded
async def test_an_edit_keeps_the_line_ends_of_the_file(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await use(env, edit(), path="dos.txt", old="one\ntwo", new="1\n2")
    assert (tmp_path / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


@bounded
async def test_edits_of_one_file_at_the_same_time_all_arrive(env: LocalEnvironment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"<{n}>" for n in range(12)))
    chat = Chat(
        calls(*(call("edit", {"path": "a.txt", "old": f"<{n}>", "new": f"[{n}]"}, f"c{n}") for n in range(12))), "done"
    )
    chat.env = env
    chat.install(edit())
    async with chat.open() as (_, root):
        await root.ask("go")
    assert (tmp_path / "a.txt").read_text() == "".join(f"[{n}]" for n in range(12))


class Cut(LocalEnvironment):
    """An environment whose first write is followed by the death of the process."""

    switch: Any = None

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        if self.switch is not None:
            self.switch.kill()


@pytest.mark.parametrize("meanwhile", [None, "before", "other", "around"])
@pytest.mark.parametrize(
    ("tool", "arguments", "new"),
    [(write(), {"content": "new"}, "new"), (edit(), {"old": "old", "new": "new"}, "a new text")],
)
def test_a_change_that_was_cut_off_is_made_once(
    tmp_path: Path, tool: Tool, arguments: dict[str, Any], new: str, meanwhile: str | None
) -> None:
    """The process dies after the file was changed and before the result is stored: the call runs again."""
    file = tmp_path / "a.txt"
    old = "a old text"
    file.write_text(old)
    session = tmp_path / "session.sqlite"

    def chat() -> Chat:
        made = Chat(calls(call(tool.name, {"path": "a.txt", **arguments})), "done", by="transcript")
        made.settings = Settings()
        made.install(tool)
        return made

    @bounded
    async def first_life() -> None:
        given = chat()
        switch = KillSwitch(await SqliteStorage.open(session))
        env = Cut(tmp_path)
        object.__setattr__(env, "switch", switch)
        given.env = env
        harness = await _opened(given, switch)
        root = await harness.root()
        await root.submit("go", request_id="go")
        await eventually(lambda: switch.killed)

    @bounded
    async def second_life() -> None:
        given = chat()
        given.env = LocalEnvironment(tmp_path)
        async with given.open(session) as (_, root):
            await (await root.submit("go", request_id="go")).wait()
            [(message, data)] = await results(root)
            if meanwhile == "other" or (meanwhile == "around" and tool.name == "write"):
                assert "was changed by somebody else since" in message.text
                assert data["code"] == "tool_error"
            else:
                assert not message.is_error
                assert message.text.startswith(("replaced a.txt", "edited a.txt"))

    first_life()
    assert file.read_text() == new
    if meanwhile is not None:
        file.write_text({"before": old, "other": "something else", "around": "around: " + old}[meanwhile])
    second_life()
    if meanwhile == "around":  # an edit is of a piece, a write is of the whole
        assert file.read_text() == "around: " + (new if tool.name == "edit" else old)
    else:
        assert file.read_text() == ("something else" if meanwhile == "other" else new)


async def _opened(chat: Chat, storage: Any) -> Any:
    from pidurable_nb import Harness

    return await Harness.open(storage, models=chat.model, registry=chat.registry, env=chat.env)


@bounded
async def test_a_file_that_is_too_large_to_change_is_left_alone(
    env: LocalEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHANGED_BYTES", 20)
    large = tmp_path / "large.log"
    for size, wrong in ((20, False), (21, True)):
        large.write_text("begin".ljust(size, "."))
        message, _ = await use(env, edit(), path="large.log", old="begin", new="end")
        assert message.is_error is wrong
    told = "ValueError: large.log holds more than 0 MB: change it with a command"
    assert message.text == told
    assert (await use(env, write(), path="large.log", content="x"))[0].text == told
    assert large.read_text() == "begin".ljust(21, ".")
    assert (await use(env, read(), path="large.log"))[0].text.startswith("begin")
