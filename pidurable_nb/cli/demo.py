"""``demo``: an answer that streams, a SIGKILL, and the answer completed (notebook.md, Command line).

The parent, here, starts real processes, ``actor``s, shows what they say they saw committed, and kills them at the cut
points. At the end it reads the file, and nothing else, to see whether recovery happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DurableError
from .actor import ANSWER_CUT, QUESTIONS, SCRIPT, find_model
from .summary import Stored, read_stored
from .terminal import Stream, Terminal

PATIENCE = 90.0
"""Seconds without a word after which a process counts as hanging; loading a model may take a while."""

LOCAL = "local:smollm2"


class DemoFailed(DurableError):
    """The demo could not be carried through; the message says why."""


@dataclass
class _Seen:
    """What the parent saw on its screen, to be compared with what is stored."""

    text: dict[str, str] = field(default_factory=dict)  # by scene, before the kill
    submissions: dict[str, set[int]] = field(default_factory=dict)
    killed: list[int] = field(default_factory=list)


def demo(*, model: str | None = None, keep: str | None = None) -> int:
    """Tell the story; 0 when what is stored at the end shows a full recovery, else 1."""
    terminal = Terminal(sys.stdout)
    name, why = _choose(model)
    with _workplace(keep) as path:
        seen = _Seen()
        started = time.monotonic()
        try:
            _introduce(terminal, name, why, path)
            _scene(terminal, "answer", name, path, seen)
            _scene(terminal, "tools", name, path, seen)
            stored = read_stored(str(path))
        except DemoFailed as error:
            terminal.status("")
            terminal.line()
            terminal.line(f"✗ {error}", "red")
            return 1
        checks = check(stored, seen, _ledger(path))
        _conclude(terminal, stored, checks, _ledger(path), time.monotonic() - started)
        if keep is not None:
            terminal.line(f"  The session is kept in {path}: python -m pidurable_nb inspect {path}")
        return 0 if all(passed for passed, _ in checks) else 1


def _choose(model: str | None) -> tuple[str, str]:
    if model is not None:
        if find_model(model) is None:
            raise DemoFailed(f"there is no model {model!r}: give a name such as {LOCAL}, anthropic:… or {SCRIPT}")
        return model, "as asked"
    try:
        find_model(LOCAL)
    except DurableError as error:
        return SCRIPT, f"a script and no language model, since {error}"
    return LOCAL, "a real language model of 135 million parameters on this machine, without key or network"


@contextmanager
def _workplace(keep: str | None) -> Iterator[Path]:
    if keep is not None:
        path = Path(keep)
        if path.exists():
            raise DemoFailed(f"{keep} exists already: --keep needs the path of a new file")
        if not path.absolute().parent.is_dir():
            raise DemoFailed(f"there is no folder {path.absolute().parent} for {keep}: make it first")
        _ledger(path).unlink(missing_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="pidurable-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "demo.sqlite"


def _ledger(path: Path) -> Path:
    """Where the tool that must not be repeated leaves its effect, outside the session."""
    return path.with_name(path.name + ".ledger")


# -- processes -------------------------------------------------------------------------------------------------------


class _Actor:
    """A process of the demo, and the events that it says."""

    def __init__(self, path: Path, scene: str, model: str, *, hold: bool) -> None:
        root = str(Path(__file__).parents[2])
        environment = {
            **os.environ,
            "PIDURABLE_DEMO_LEDGER": str(_ledger(path)),
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "PYTHONIOENCODING": "utf-8",
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pidurable_nb.cli.actor", str(path), scene, model, *(["--hold"] if hold else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self.pid = self._process.pid
        self._hanging = False
        self._heard = "nothing"

    def events(self) -> Iterator[dict[str, Any]]:
        """What it says, until it ends. Raises ``DemoFailed`` when it is silent for too long."""
        assert self._process.stdout is not None
        while True:
            watchdog = threading.Timer(PATIENCE, self._give_up)
            watchdog.daemon = True
            watchdog.start()
            try:
                line = self._process.stdout.readline()
            finally:
                watchdog.cancel()
            if self._hanging:
                raise DemoFailed(
                    f"process {self.pid} was silent for {PATIENCE:.0f} s and was stopped; the last that it said was "
                    f"{self._heard!r}"
                )
            if not line:
                return
            event: dict[str, Any] = json.loads(line)
            self._heard = event["event"]
            yield event

    def _give_up(self) -> None:
        self._hanging = True
        self._process.kill()

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs after it."""
        self._process.kill()
        self._process.wait(timeout=10)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(timeout=PATIENCE)

    def last_words(self) -> str:
        """The last line of what it wrote to stderr."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


# -- the story -------------------------------------------------------------------------------------------------------


def _introduce(terminal: Terminal, model: str, why: str, path: Path) -> None:
    terminal.line()
    terminal.line("  An agent that survives kill -9", "bold")
    terminal.line()
    _say(terminal, f"Model: {model}, {why}.")
    _say(terminal, f"Session: {path}. What you see is read from commits to it; there is no other path to the screen.")


def _scene(terminal: Terminal, scene: str, model: str, path: Path, seen: _Seen) -> None:
    terminal.line()
    if scene == "answer":
        _heading(terminal, "1 · A process asks, and dies in the middle of the answer")
    else:
        _heading(terminal, "2 · The same in the middle of two tools")
        _say(terminal, "read_pages may run again (replay=“safe”). charge_card may not, which is the default.")
    terminal.line()
    actor = _Actor(path, scene, model, hold=True)
    try:
        if not _show(terminal, actor, scene, seen, first=True):
            raise DemoFailed(
                f"the first process ended with code {actor.wait()} before it could be killed ({actor.last_words()})"
            )
        actor.kill()
        seen.killed.append(actor.pid)
    finally:
        actor.end()
    terminal.line(f"  ✗ kill -9 {actor.pid}", "red", "bold")
    terminal.line()
    terminal.line("  A new process opens the same file and runs the same lines.")
    actor = _Actor(path, scene, model, hold=False)
    try:
        _show(terminal, actor, scene, seen, first=False)
        if actor.wait() != 0:
            raise DemoFailed(f"the second process ended with code {actor.wait()} ({actor.last_words()})")
    finally:
        actor.end()


def _show(terminal: Terminal, actor: _Actor, scene: str, seen: _Seen, *, first: bool) -> bool:
    """Show what a process says; whether it stands at the cut point."""
    answer: Stream | None = None
    streamed = ""
    for event in actor.events():
        kind = event["event"]
        if kind == "loading":
            terminal.status("" if event["fraction"] >= 1 else f"  {event['text']} …")
            continue
        if kind == "text":
            if answer is None:
                answer = Stream(terminal, "  │ ")
            answer.feed(event["text"])
            streamed += event["text"]
            if first:
                seen.text[scene] = seen.text.get(scene, "") + event["text"]
            continue
        if answer is not None:
            if kind == "answer" and event["text"].startswith(streamed):  # its last piece came with the whole
                answer.feed(event["text"][len(streamed) :])
            answer.end()
            answer = None
        if kind == "opened":
            if not first:
                _show_found(terminal, event)
        elif kind == "asked":
            seen.submissions.setdefault(scene, set()).add(event["submission"])
            if first:
                terminal.line(f"  pid {actor.pid} asks: {QUESTIONS[scene]}", "bold")
            else:
                terminal.line(f"  pid {actor.pid} asks again, and finds submission {event['submission']}.", "bold")
        elif kind == "output":
            terminal.line(f"  │ {event['tool']}: {event['text'].strip()}", "cyan")
        elif kind == "result":
            mark, style = ("✗", "yellow") if event["error"] else ("✓", "green")
            text = " ".join(event["text"].split())
            stream = Stream(terminal, "  │ ", style)
            stream.feed(f"{mark} {event['tool']}: {text}")
            stream.end()
        elif kind == "answer":
            _show_answer(terminal, event, streamed=bool(streamed))
            streamed = ""
        elif kind == "cut":
            return True
        elif kind == "settled" and event["status"] != "done":
            why = (event["detail"] or {}).get("message") or event["reason"]
            raise DemoFailed(f"the question got no answer: {why}")
    return False


def _show_found(terminal: Terminal, event: dict[str, Any]) -> None:
    before = event["before"] or {}
    ended = "without a word" if before.get("ended") is None else before["ended"]
    terminal.line(f"  │ found: process {before.get('pid')} ended {ended}", "dim")
    terminal.line(f"  │ found: submission {', '.join(map(str, event['submissions']))} is not answered yet", "dim")
    if event["partial"]:
        terminal.line(f"  │ found: {len(event['partial'])} characters of an answer", "dim")
    for item in event["tools"]:
        what = "runs again" if item["replay"] == "safe" else "will not run again"
        terminal.line(f"  │ found: {item['name']} was running; it is {item['replay']}, so it {what}", "dim")


def _show_answer(terminal: Terminal, event: dict[str, Any], *, streamed: bool) -> None:
    aborted = event["stop_reason"] == "aborted"
    if event["text"] and (aborted or not streamed):
        stream = Stream(terminal, "  ✗ ", "dim", "strike") if aborted else Stream(terminal, "  │ ")
        stream.feed(event["text"])
        stream.end()
    if aborted:
        terminal.line(f"  ✗ kept as entry {event['entry']}, marked as aborted; the request is sent again", "dim")
    elif event["error"]:
        terminal.line(f"  ✗ entry {event['entry']}: the model said {event['error']}", "yellow")
    else:
        ending = "asks for tools" if event["stop_reason"] == "tool_use" else event["stop_reason"]
        terminal.line(f"  ✓ entry {event['entry']} · {ending}", "green")


# -- the end ---------------------------------------------------------------------------------------------------------


def check(stored: Stored, seen: _Seen, ledger: Path) -> list[tuple[bool, str]]:
    """What recovery promises, each with whether the stored records show it."""
    dead = [life.pid for life in stored.lives if stored.died(life)]
    cut_off = [attempt for attempt in stored.attempts if attempt.end == "cut_off"]
    finished = [message for _, message in stored.assistants if message.stop_reason in ("stop", "length")]
    aborted = [message.text for _, message in stored.aborted]
    results = [message for entry in stored.results for message in entry.messages if message.role == "tool_result"]
    by_tool = {message.tool_name: message for message in results}
    charged = ledger.read_text(encoding="utf-8").count("\n") if ledger.exists() else 0
    read, charge = by_tool.get("read_pages"), by_tool.get("charge_card")
    shown = seen.text.get("answer", "")
    same = all(len(ids) == 1 for ids in seen.submissions.values())
    return [
        (len(stored.lives) == 4 and dead == seen.killed, "two of four processes were killed, and the file knows which"),
        (len(cut_off) == 3, "one request and two tool calls were cut off"),
        (
            len(aborted) == 1 and len(shown) >= ANSWER_CUT and aborted[0].startswith(shown),
            "what was on the screen of the half answer is stored, and is marked as aborted",
        ),
        (same and not stored.open_submissions and len(finished) == 2, "each question was asked once, and is answered"),
        (not stored.live_tasks, "nothing is left running"),
        (len(results) == 2 and len(by_tool) == 2, "each tool call has one result"),
        (read is not None and not read.is_error, "the safe tool ran again to its end"),
        (
            charge is not None and charge.is_error and charged == 1,
            "the card was charged once, and the model knows that it is unsure",
        ),
    ]


def _conclude(terminal: Terminal, stored: Stored, checks: list[tuple[bool, str]], ledger: Path, seconds: float) -> None:
    terminal.line()
    _heading(terminal, "What the file says")
    terminal.line()
    died = sum(stored.died(life) for life in stored.lives)
    cut_off = sum(attempt.end == "cut_off" for attempt in stored.attempts)
    kinds = ", ".join(f"{count} {kind.removeprefix('pi.')}" for kind, count in sorted(stored.entries.items()))
    rows = [
        ("commits", stored.commits, f"in {seconds:.0f} s"),
        ("lives", len(stored.lives), f"{died} ended by SIGKILL"),
        ("attempts", len(stored.attempts), f"{cut_off} cut off"),
        ("entries", sum(stored.entries.values()), kinds),
        ("requests", len(stored.assistants), f"{len(stored.aborted)} cut off and sent again"),
    ]
    for name, count, remark in rows:
        terminal.line(f"  {name:<10}{count:>4}  {terminal.style(remark, 'dim')}")
    terminal.line()
    for passed, what in checks:
        terminal.line(f"  {'✓' if passed else '✗'} {what}", "green" if passed else "red")
    terminal.line()
    if all(passed for passed, _ in checks):
        terminal.line("  Recovered.", "bold", "green")
    else:
        terminal.line("  Not recovered: what is stored does not show what it should.", "bold", "red")


def _heading(terminal: Terminal, text: str) -> None:
    terminal.line(f"  {text}", "bold")


def _say(terminal: Terminal, text: str) -> None:
    stream = Stream(terminal, "  ")
    stream.feed(text)
    stream.end()
