"""The tool bash: output as it comes, its end, long output, aborts and closes with real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Harness
from pidurable_nb.agent.tool import OutputLimits
from pidurable_nb.tools import LocalEnvironment, bash, shell

from .support import Chat, alive, bounded, call, calls, eventually, live, pid_in, results, use

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


def notes(data: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(item["message"], item.get("code")) for item in data["diagnostics"]]


def spilled_to(folder: Path) -> list[Path]:
    return list(folder.glob("pidurable-output-*.log"))


@bounded
async def test_the_output_is_the_result(tmp_path: Path) -> None:
    message, data = await use(LocalEnvironment(tmp_path), bash(), command="printf 'ü\\n\\033[31mred\\033[0m'")
    assert (message.text, message.is_error, message.details) == ("ü\nred", False, {"exit_code": 0})
    assert notes(data) == []


@bounded
async def test_an_exit_code_is_a_diagnostic_and_no_error(tmp_path: Path) -> None:
    message, data = await use(LocalEnvironment(tmp_path), bash(), command="echo no match; exit 1")
    assert message.text == ("no match\n\n<diagnostics>\n[warn] The command ended with exit code 1.\n</diagnostics>")
    assert (message.is_error, message.details, "code" in data) == (False, {"exit_code": 1}, False)
    assert notes(data) == [("The command ended with exit code 1.", "exit_code")]


@bounded
async def test_a_timeout_is_an_error_with_the_output_so_far(tmp_path: Path) -> None:
    message, data = await use(LocalEnvironment(tmp_path), bash(), command="echo begun; sleep 600", timeout=0.5)
    assert "begun" in message.text
    assert (message.is_error, data["code"]) == (True, "tool_error")
    assert notes(data) == [("The command was stopped after 0.5 s.", "timeout")]


@bounded
async def test_long_output_is_kept_at_its_end_and_lies_whole_in_a_file(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, spill_to=tmp_path)
    tool = bash(limits=OutputLimits(bytes=1000, lines=5))
    message, data = await use(env, tool, command="seq 1 20000")
    assert message.content[0].text.splitlines()[-1] == "20000"  # type: ignore[union-attr]
    assert len(message.content[0].text.splitlines()) <= 5  # type: ignore[union-attr]
    [spilled] = spilled_to(tmp_path)
    assert spilled.read_text().split() == [str(n) for n in range(1, 20001)]
    codes = [code for _, code in notes(data)]
    assert sorted(map(str, codes)) == ["spilled", "truncated"]
    assert f"The whole output, 108894 bytes, is in {spilled}." in message.text


@bounded
async def test_short_output_leaves_no_file(tmp_path: Path) -> None:
    await use(LocalEnvironment(tmp_path, spill_to=tmp_path), bash(), command="seq 1 100")
    assert spilled_to(tmp_path) == []


@bounded
async def test_a_command_that_never_stops_talking_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "SPILL_BYTES", 1_000_000)
    message, data = await use(LocalEnvironment(tmp_path, spill_to=tmp_path), bash(), command="echo $$ > pid; yes")
    assert "of output and was stopped" in message.text
    assert data["code"] == "tool_error"
    assert not alive(await pid_in(tmp_path / "pid"))


@bounded
async def test_output_is_committed_while_the_command_runs(tmp_path: Path) -> None:
    chat = Chat(
        calls(call("bash", {"command": "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo ended"})), "done"
    )
    chat.env = LocalEnvironment(tmp_path)
    chat.install(bash())
    async with chat.open() as (harness, root):
        submission = await root.submit("go")

        async def shown() -> bool:
            return [item.output for item in (await live(harness, root)).tools] == ["begun\n"]

        await eventually(shown)
        (tmp_path / "go").touch()
        await submission.wait()
        assert (await results(root))[0][0].text == "begun\nended\n"


def _long_command(tmp_path: Path) -> Chat:
    command = "sleep 600 & echo $! > inner; echo begun; echo $$ > outer; wait"
    chat = Chat(calls(call("bash", {"command": command})), "done", by="transcript")
    chat.env = LocalEnvironment(tmp_path)
    chat.install(bash())
    return chat


async def _begun(tmp_path: Path, harness: Harness, root: Any) -> list[int]:
    pids = [await pid_in(tmp_path / name) for name in ("inner", "outer")]

    async def shown() -> bool:
        return [item.output for item in (await live(harness, root)).tools] == ["begun\n"]

    await eventually(shown)
    assert all(map(alive, pids))
    return pids


@bounded
async def test_an_abort_kills_the_group_and_keeps_the_output(tmp_path: Path) -> None:
    chat = _long_command(tmp_path)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        pids = await _begun(tmp_path, harness, root)
        await root.abort()
        await eventually(lambda: not any(map(alive, pids)))
        [(message, data)] = await results(root)
        assert message.text == "The call was aborted.\nOutput so far:\nbegun\n"
        assert data["code"] == "aborted"
        assert (await submission.status()).reason == "aborted"


@bounded
async def test_a_close_kills_the_group_and_the_next_life_does_not_run_it_again(tmp_path: Path) -> None:
    session = tmp_path / "session.sqlite"
    chat = _long_command(tmp_path)
    async with chat.open(session) as (harness, root):
        await root.submit("go", request_id="go")
        pids = await _begun(tmp_path, harness, root)
    await eventually(lambda: not any(map(alive, pids)))
    (tmp_path / "inner").unlink()
    again = _long_command(tmp_path)
    async with again.open(session) as (_, root):
        await (await root.submit("go", request_id="go")).wait()
        [(message, data)] = await results(root)
        assert data["code"] == "interrupted"
        assert "begun" in message.text
        assert not (tmp_path / "inner").exists()
