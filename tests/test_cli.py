"""The command line: the story of the demo, going on without a notebook, looking without owning, and one-line errors."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from pidurable_nb.cli import demo, doctor, lab, main, summary
from pidurable_nb.cli.actor import SCRIPT
from pidurable_nb.cli.terminal import Stream, Terminal
from pidurable_nb.errors import NotebookError

TIMEOUT = 120.0


def call(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m pidurable_nb`` with these arguments, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pidurable_nb", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=cwd,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )


class Actor:
    """A process of the demo that stands still in the middle of its scene, owning its session."""

    def __init__(self, path: Path, scene: str = "answer") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pidurable_nb.cli.actor", str(path), scene, SCRIPT, "--hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PIDURABLE_DEMO_LEDGER": f"{path}.ledger"},
        )
        assert self.process.stdout is not None
        assert any(json.loads(line)["event"] == "cut" for line in self.process.stdout)

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(10) == -signal.SIGKILL
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def cut_off(tmp_path: Path) -> Path:
    """A session whose process was killed in the middle of an answer."""
    path = tmp_path / "cut.sqlite"
    Actor(path).kill()
    return path


# -- the line itself -------------------------------------------------------------------------------------------------


def test_an_unknown_command_is_one_line_and_exit_2() -> None:
    ended = call("dmeo")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == [
        "pidurable-nb: there is no command 'dmeo', but 'demo'; `pidurable-nb --help` shows what there is"
    ]


@pytest.mark.parametrize("arguments", [["demo", "--bad"], ["run"], ["inspect", "a", "b"], ["--bad"]])
def test_a_wrong_option_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in ("demo", "lab", "run", "inspect", "doctor"):
        assert f"\n    {name} " in shown
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: pidurable-nb {name}" in capsys.readouterr().out


def test_no_command_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: pidurable-nb" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    import pidurable_nb

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pidurable_nb {pidurable_nb.__version__}\n"


def test_help_and_wrong_words_load_nothing_heavy() -> None:
    code = """if True:
        import sys
        from pidurable_nb.cli import main
        for words in (["--help"], ["nonsense"]):
            try:
                main(words)
            except SystemExit:
                pass
        heavy = {"pydantic", "aiosqlite", "pydantic_ai", "IPython", "ipywidgets", "asyncio"} & set(sys.modules)
        sys.exit(f"loaded: {heavy}" if heavy else 0)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr


# -- demo ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the demo on a script, its session kept."""
    path = tmp_path_factory.mktemp("demo") / "kept.sqlite"
    return path, call("demo", "--model", SCRIPT, "--keep", str(path))


def test_the_demo_recovers_from_real_kills_and_says_so(story: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, ended = story
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert sum(line.startswith("✗ kill -9 ") for line in lines) == 2
    assert "Recovered." in lines
    assert "lives        4  2 ended by SIGKILL" in lines
    assert "requests     4  1 cut off and sent again" in lines
    assert "\x1b" not in ended.stdout
    told = " ".join(ended.stdout.replace("│", " ").split())
    assert "done is looked at twice before anyone does it again. ✓ entry" in told
    assert "so I did not repeat it: please look. ✓ entry" in told


def test_what_the_demo_leaves_is_what_it_told(story: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    path, ended = story
    stored = summary.read_stored(str(path))
    ((_, aborted),) = stored.aborted
    assert aborted.text
    assert [stored.died(life) for life in stored.lives] == [True, False, True, False]
    assert [f"✗ kill -9 {life.pid}" in ended.stdout for life in stored.lives] == [True, False, True, False]
    assert Path(f"{path}.ledger").read_text() == "charged 30 euros\n"
    texts = [message.text for _, message in stored.assistants]
    assert texts[1].startswith(texts[0])
    assert "so I did not repeat it" in texts[-1]


def test_the_demo_fails_when_the_file_does_not_show_a_recovery(
    story: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path, _ = story
    stored = summary.read_stored(str(path))
    ((_, aborted),) = stored.aborted
    seen = demo._Seen(
        text={"answer": aborted.text},
        submissions={"answer": {1}, "tools": {2}},
        killed=[life.pid for life in stored.lives if stored.died(life)],
    )
    ledger = Path(f"{path}.ledger")
    assert all(passed for passed, _ in demo.check(stored, seen, ledger))

    def failed(stored: summary.Stored = stored, seen: demo._Seen = seen, ledger: Path = ledger) -> list[str]:
        return [what for passed, what in demo.check(stored, seen, ledger) if not passed]

    twice = tmp_path / "twice"
    twice.write_text("charged 30 euros\n" * 2)
    assert failed(ledger=twice) == ["the card was charged once, and the model knows that it is unsure"]
    assert len(failed(seen=replace(seen, text={"answer": "other text"}))) == 1
    assert len(failed(seen=replace(seen, killed=seen.killed[:1]))) == 1
    assert len(failed(seen=replace(seen, submissions={"answer": {1, 3}, "tools": {2}}))) == 1
    assert len(failed(stored=replace(stored, attempts=[]))) == 1
    assert len(failed(stored=replace(stored, results=stored.results[:1]))) >= 1
    assert len(failed(stored=replace(stored, assistants=stored.assistants[:1]))) == 1


def test_the_demo_takes_no_model_and_no_place_that_do_not_exist(tmp_path: Path) -> None:
    taken = tmp_path / "taken.sqlite"
    taken.write_text("mine")
    for arguments in (["--model", "scripted:unheard-of"], ["--keep", str(taken)], ["--keep", "/nowhere/at/all.sqlite"]):
        ended = call("demo", *arguments)
        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert taken.read_text() == "mine"


def test_a_process_of_the_demo_ends_with_its_parent(tmp_path: Path) -> None:
    actor = Actor(tmp_path / "a.sqlite")
    assert actor.process.stdin is not None
    assert actor.process.stdout is not None
    actor.process.stdin.close()
    assert actor.process.wait(10) == 1
    actor.process.stdout.close()


# -- run -------------------------------------------------------------------------------------------------------------


def test_run_goes_on_with_what_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    process = subprocess.run(
        [sys.executable, "-m", "pidurable_nb.cli.actor", str(path), "answer", "scripted:demo", "--hold"],
        stdin=subprocess.DEVNULL,  # so that it ends, without a word, where it would stand still
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT,
    )
    assert process.returncode == 1
    ended = call("run", str(path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{path}: 1 live tasks, 1 open submissions"
    assert "answer, aborted" in lines[1]
    assert "answer, stop" in lines[2]
    assert lines[3:] == ["idle"]
    again = call("run", str(path))
    assert (again.returncode, again.stdout.splitlines()[1:]) == (0, ["idle"])


def test_run_waits_for_code_that_is_missing_and_runs_with_it(tmp_path: Path) -> None:
    path = tmp_path / "tools.sqlite"
    Actor(path, "tools").kill()
    commits = summary.read_stored(str(path)).commits
    ended = call("run", str(path))
    assert ended.returncode == 3
    assert "waits for tool read_pages, tool charge_card, model scripted:tools" in ended.stdout
    assert summary.read_stored(str(path)).commits - commits <= 1  # but for the recovery that opening is
    (tmp_path / "mine.py").write_text(
        "from pidurable_nb import Extension\n"
        "from pidurable_nb.cli.actor import TOOLS_MODEL, charge_card, find_model, read_pages\n"
        "from pidurable_nb.models import default_models\n"
        "default_models.register(find_model(TOOLS_MODEL))\n"
        "extension = Extension('mine', tools=[charge_card])\n"
    )
    ended = call("run", str(path), "--install", "mine:extension", "--install", "mine:read_pages", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "read_pages done" in ended.stdout
    assert "charge_card failed: The call was interrupted" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "idle"


def test_run_ends_where_a_person_must_decide(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(
        "from pidurable_nb import Extension, tool\n"
        "from pidurable_nb.cli.actor import SCRIPT\n"
        "from pidurable_nb.messages import ToolCall\n"
        "from pidurable_nb.models import Reply, ScriptedModel, default_models\n"
        "@tool(approval=True)\n"
        "async def launch() -> str:\n"
        "    return 'launched'\n"
        "call = Reply(tool_calls=[ToolCall(id='call-1', name='launch', arguments={})])\n"
        "default_models.register(ScriptedModel([call], by='transcript', name=SCRIPT))\n"
        "extension = Extension('asking', tools=[launch])\n"
    )
    path = tmp_path / "asks.sqlite"
    ask = (
        "import asyncio, asking\n"
        "from pidurable_nb import AgentChange, Harness, Registry\n"
        "from pidurable_nb.cli.actor import SCRIPT\n"
        "from pidurable_nb.models import default_models\n"
        "async def main():\n"
        "    registry = Registry()\n"
        "    registry.install(asking.extension)\n"
        f"    async with Harness.open({str(path)!r}, models=default_models, registry=registry) as harness:\n"
        "        root = await harness.root(agent=AgentChange(model=SCRIPT))\n"
        "        await root.submit('Go.')\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", ask], check=True, timeout=TIMEOUT, cwd=tmp_path)
    ended = call("run", str(path), "--install", "asking:extension", cwd=tmp_path)
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "waits for a person: may launch run? (call call-1, conversation 1)" in ended.stdout


def test_run_tells_who_has_the_session(tmp_path: Path) -> None:
    path = tmp_path / "held.sqlite"
    actor = Actor(path)
    try:
        ended = call("run", str(path))
    finally:
        actor.kill()
    assert ended.returncode == 1
    assert f"is in use by process {actor.process.pid}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.sqlite"], "does not exist"),
        (["a.sqlite", "--install", "nothing"], "write MODULE:EXTENSION"),
        (["a.sqlite", "--install", "no_such_module:x"], "No module named"),
        (["a.sqlite", "--install", "json:dumps"], "neither an Extension nor a @tool function"),
    ],
)
def test_run_refuses_what_it_cannot_do_in_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "a.sqlite").touch()
    ended = call("run", *arguments, cwd=tmp_path)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "missing.sqlite").exists()


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path, cut_off: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "from pidurable_nb import Extension\n"
        "from pidurable_nb.models import Hang, ScriptedModel, default_models\n"
        f"default_models.register(ScriptedModel(lambda request: Hang(after='slowly'), name={SCRIPT!r}))\n"
        "extension = Extension('slow')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pidurable_nb", "run", str(cut_off), "--install", "slow:extension"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    with process.stdout:
        assert any("answer, aborted" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.stdout.read()
    assert process.wait(10) == 130
    stored = summary.read_stored(str(cut_off))
    assert stored.lives[-1].ended == "closed"
    assert [record.status for record in stored.open_submissions] == ["placed"]


# -- inspect ---------------------------------------------------------------------------------------------------------


def written(folder: Path) -> dict[str, int]:
    """When each file was last written; readers mark their place in the ``-shm`` file, which holds no data."""
    return {entry.name: entry.stat().st_mtime_ns for entry in folder.iterdir() if entry.suffix != ".sqlite-shm"}


def test_inspect_looks_at_a_session_that_is_owned_and_does_not_disturb_it(tmp_path: Path) -> None:
    path = tmp_path / "held.sqlite"
    actor = Actor(path)
    try:
        before = {
            entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir() if not entry.name.endswith("-shm")
        }
        ended = call("inspect", str(path), "--json")
        after = {
            entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir() if not entry.name.endswith("-shm")
        }
    finally:
        actor.kill()
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["owner"]["pid"] == actor.process.pid
    assert [task["kind"] for task in found["live_tasks"]] == ["pi.generation"]
    assert [submission["request_id"] for submission in found["open_submissions"]] == ["demo-answer"]
    assert before == after


def test_inspect_tells_a_dead_session_from_a_live_one(cut_off: Path) -> None:
    ended = call("inspect", str(cut_off))
    assert ended.returncode == 0, ended.stderr
    assert "nobody has it open" in ended.stdout
    assert "died, last commit" in ended.stdout
    assert "(1 cut off)" in ended.stdout
    assert "pi.generation in request, conversation 1, running" in ended.stdout
    assert "warning" not in ended.stdout


def test_inspect_warns_of_a_copy_without_its_log(cut_off: Path) -> None:
    copy = cut_off.with_name("copy.sqlite")
    copy.write_bytes(cut_off.read_bytes())
    ended = call("inspect", str(copy))
    assert ended.returncode == 0, ended.stderr
    assert "warning: " in ended.stdout
    assert "copy.sqlite-wal is missing" in ended.stdout


def test_inspect_changes_nothing_beside_a_closed_session(tmp_path: Path, cut_off: Path) -> None:
    assert call("run", str(cut_off), "--anyway").returncode == 0
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    assert call("inspect", str(cut_off)).returncode == 0
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_inspect_refuses_what_is_no_session_in_one_line(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2000))
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    for path in (picture, foreign, tmp_path / "missing.sqlite", tmp_path):
        ended = call("inspect", str(path))
        assert ended.returncode == 1
        assert str(path) in ended.stderr
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


# -- lab -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tutorials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tutorials"
    folder.mkdir()
    (folder / lab.QUICKSTART).write_text("quickstart")
    (folder / "01-other.ipynb").write_text("other")
    monkeypatch.setattr(lab, "tutorials", lambda: folder)
    return folder


def test_lab_copies_the_tutorials_and_leaves_changed_ones(
    tutorials: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "place"
    assert main(["lab", "--no-open", str(target)]) == 0
    assert sorted(entry.name for entry in target.iterdir()) == [lab.QUICKSTART, "01-other.ipynb"]
    (target / lab.QUICKSTART).write_text("my work")
    (target / "01-other.ipynb").unlink()
    capsys.readouterr()
    assert main(["lab", "--no-open", str(target)]) == 0
    assert (target / lab.QUICKSTART).read_text() == "my work"
    assert (target / "01-other.ipynb").read_text() == "other"
    assert f"left as they are: {lab.QUICKSTART}" in capsys.readouterr().out


@pytest.mark.usefixtures("tutorials")
def test_lab_becomes_jupyterlab_on_the_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def execv(program: str, arguments: list[str]) -> None:
        called.append([program, *arguments])
        raise SystemExit(0)

    monkeypatch.setattr(lab.os, "execv", execv)
    with pytest.raises(SystemExit):
        main(["lab", str(tmp_path / "here"), "--", "--no-browser"])
    ((program, *arguments),) = called
    assert program == sys.executable
    assert arguments[:4] == [sys.executable, "-m", "jupyterlab", str(tmp_path / "here" / lab.QUICKSTART)]
    assert "--no-browser" in arguments


@pytest.mark.usefixtures("tutorials")
def test_lab_without_jupyterlab_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    assert main(["lab", str(tmp_path / "here")]) == 1
    assert "pip install 'pidurable_nb[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()


@pytest.mark.usefixtures("tutorials")
def test_lab_says_where_it_cannot_write(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(NotebookError, match="name another folder"):
        lab.copy_tutorials(taken)


def test_the_tutorials_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[1]
    assert lab.tutorials() == root / "notebooks"
    assert (lab.tutorials() / lab.QUICKSTART).exists()
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"notebooks": "pidurable_nb/_notebooks"}
    monkeypatch.setattr(lab, "__file__", str(tmp_path / "pidurable_nb" / "cli" / "lab.py"))
    with pytest.raises(NotebookError, match="not part of this installation"):
        lab.tutorials()
    packaged = tmp_path / "pidurable_nb" / "_notebooks"
    packaged.mkdir(parents=True)
    (packaged / lab.QUICKSTART).touch()
    assert lab.tutorials() == packaged


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_all_that_is_needed_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for what in ("Python", "SQLite", "locks", "aiosqlite", "scripted:demo", "anthropic:"):
        assert what in shown
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("aiosqlite", "jupyterlab") else "1.0")
    found = {finding.what: finding for finding in doctor.findings(tmp_path)}
    assert (found["aiosqlite"].verdict, found["aiosqlite"].needed) == ("broken", True)
    assert "pip install aiosqlite" in found["aiosqlite"].detail
    assert (found["extra lab"].verdict, found["extra lab"].needed) == ("missing", False)
    assert "pidurable_nb[lab]" in found["extra lab"].detail
    assert doctor.doctor(str(tmp_path)) == 1


def test_the_doctor_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    found = {finding.what: finding for finding in doctor.findings(tmp_path / "absent")}
    assert found["folder"].verdict == "broken"
    assert "locks" not in found


# -- the terminal ----------------------------------------------------------------------------------------------------


class FakeTerminal(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8", *, tty: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def shown(self) -> str:
        self.flush()
        written = self.buffer
        assert isinstance(written, io.BytesIO)
        return written.getvalue().decode(self.encoding)


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal(FakeTerminal()).style("red", "red") == "\x1b[31mred\x1b[0m"
    assert Terminal(FakeTerminal(tty=False)).style("red", "red") == "red"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(FakeTerminal()).style("red", "red") == "red"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal(FakeTerminal()).style("red", "red") == "red"


def test_a_stream_is_wrapped_at_words_whatever_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "The quick brown fox jumps over the lazy dog, and over\nthe next line too.\n\nEnd"
    shown = []
    for size in (1, 3, 7, 100):
        file = FakeTerminal(tty=False)
        stream = Stream(Terminal(file), "  | ")
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
        stream.end()
        shown.append(file.shown)
    assert len(set(shown)) == 1
    lines = shown[0].splitlines()
    assert " ".join(" ".join(line.removeprefix("  |").strip() for line in lines).split()) == " ".join(text.split())
    assert all(len(line) <= 40 and line.startswith("  |") and line == line.rstrip() for line in lines)


def test_symbols_become_ascii_where_they_cannot_be_shown() -> None:
    file = FakeTerminal("ascii", tty=False)
    Terminal(file).line("✓ é · …")
    assert file.shown == "ok ? - ...\n"
