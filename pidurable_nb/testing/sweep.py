"""Kill a scenario before and after each of its commits, in real processes, and see that nothing is lost.

A *scenario* is an async function of a ``Stage``, at the top of an importable module. It opens a session on
``stage.storage``, does its work in a way that may be done again (request ids), waits for the end, closes, and returns
its *outcome* as JSON. A *point* is one commit and whether the process dies right before storage is asked for it or
right after storage holds it; any other point of ``pidurable_nb.faults`` may be named instead. The sweep runs the
scenario once to count; then, for each point, one process runs it and is killed there with SIGKILL, another runs it to
its end on the same files, and the two are judged together. With ``again`` the process that goes on is killed as well,
and a third one ends the work.

What always has to hold: the last process ends, with the same outcome; what is stored holds together
(``check_stored``); every submission is settled and nothing is live; and the transcript is the uninterrupted one but for
attempts that were cut off, which are kept and marked as aborted, and the text of results that say ``interrupted``.
``check`` adds what a scenario alone can know, usually from ``stage.note``, which counts over all processes.

Processes come from one *runner* that has imported everything, holds no session, loop or thread, and forks for each run,
since importing would cost more than running.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..storage import Storage, open_storage
from ..values import JsonValue
from .faults import Faults

When: TypeAlias = str
"""``"before"`` or ``"after"`` a commit, or the name of another point."""

Kill: TypeAlias = tuple[int, When]
"""The how many-th commit, or time of reaching a point, and when."""

_POINTS = {"before": "commit.sealed", "after": "commit.stored"}

StorageKind: TypeAlias = Literal["sqlite", "jsonl"]
Scenario: TypeAlias = "Callable[[Stage], Awaitable[JsonValue]]"


class Stage:
    """What a scenario gets: the storage to open, and notes that outlive its process.

    ``directory`` is a folder for files of the scenario's own, the same for all processes of a point; ``process`` is 1
    for the one that is killed first, 2 for the one that goes on, 3 for the one after a second kill; the uninterrupted
    run has 1 alone.
    """

    def __init__(self, storage: Storage, directory: Path, process: int) -> None:
        self.storage = storage
        self.directory = directory
        self.process = process

    def note(self, what: str, text: str = "") -> None:
        """Note something that happened, at once and for good: an effect, a request, what an observer saw."""
        line = json.dumps([what, text, self.process]) + "\n"
        file = os.open(self.directory / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def notes(self, what: str) -> list[str]:
        """The texts noted under a name so far, in all processes."""
        return [note.text for note in read_notes(self.directory) if note.what == what]


@dataclass(frozen=True, slots=True)
class Note:
    """One note: what, its text, and the process that made it."""

    what: str
    text: str
    process: int


def read_notes(directory: Path) -> list[Note]:
    """The notes of a point, oldest first."""
    path = directory / "notes"
    if not path.exists():
        return []
    return [Note(*json.loads(line)) for line in path.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run that went to its end left: its outcome, its notes, and what it stored.

    ``transcript`` lists the entries of all conversations by id, each as ``[id, conversation, kind, text, stop reason of
    its assistant message, by which commit]``; ``attempts`` each as ``[task, kind, life, phase, end]``; ``lives`` how
    each opening ended; ``reached`` how often this last process came to each point.
    """

    outcome: JsonValue
    notes: list[Note]
    reached: dict[str, int]
    transcript: list[list[Any]]
    attempts: list[list[Any]]
    lives: list[str | None]
    unsettled: list[int]
    live: list[int]

    @property
    def commits(self) -> int:
        """How many commits the last process made."""
        return self.times("before")

    def times(self, when: When) -> int:
        """How often the last process came to a point."""
        return self.reached.get(_POINTS.get(when, when), 0)

    def count(self, what: str, process: int | None = None) -> int:
        """How many notes of a name there are."""
        return sum(note.what == what and process in (None, note.process) for note in self.notes)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the sweep, and how it went.

    ``again`` is where the second process was to be killed as well. ``kills`` says how many processes were killed: one
    that ends before its point, as may happen where timing decides how many commits there are, was not. ``problem`` is
    ``None`` when all was well.
    """

    commit: int
    when: When
    again: Kill | None
    kills: int
    problem: str | None
    ending: Ending | None
    directory: Path

    @property
    def reached(self) -> bool:
        """Whether the first process was killed."""
        return self.kills > 0

    def __str__(self) -> str:
        first = _place(self.commit, self.when)
        return first if self.again is None else f"{first}, then {_place(*self.again)} of the next process"


def _place(number: int, when: When) -> str:
    return f"{when} commit {number}" if when in _POINTS else f"{when}, time {number}"


@dataclass(slots=True)
class Sweep:
    """The result: the uninterrupted run, and every point."""

    name: str
    storage: StorageKind
    baseline: Ending
    points: list[Point] = field(default_factory=list)

    @property
    def killed(self) -> int:
        """At how many points the first process was killed, pairs not counted."""
        return sum(point.reached for point in self.points if point.again is None)

    @property
    def killed_again(self) -> int:
        """In how many pairs of points both processes were killed."""
        return sum(point.kills == 2 for point in self.points)

    @property
    def failed(self) -> list[Point]:
        return [point for point in self.points if point.problem is not None]

    def __str__(self) -> str:
        again = f" and at {self.killed_again} pairs of points" if any(p.again for p in self.points) else ""
        text = (
            f"crash sweep of {self.name} on {self.storage}: killed at {self.killed} points{again} "
            f"({self.baseline.commits} commits), {len(self.failed)} failed"
        )
        return "\n".join([text, *(f"  {point}: {point.problem}" for point in self.failed[:5])])


Check: TypeAlias = Callable[[Ending, Ending, Point], None]
"""``check(ending, baseline, point)`` raises ``AssertionError`` for what should not be."""


def crash_sweep(
    scenario: Scenario,
    *,
    storage: StorageKind = "sqlite",
    directory: str | os.PathLike[str] | None = None,
    check: Check | None = None,
    when: Sequence[When] = ("before", "after"),
    commits: Sequence[int] | None = None,
    again: int = 0,
    same_transcript: bool = True,
    timeout: float = 30.0,
    out: Callable[[str], None] = print,
) -> Sweep:
    """Run a scenario, then kill it at every point, go on in a new process each time, and judge what came out.

    ``when`` says where: ``"before"`` and ``"after"`` each commit, or names of ``pidurable_nb.faults.POINTS``, each as
    often as it is reached. ``commits`` restricts the sweep to these numbers from 1 on. ``again`` is the most pairs of
    points at which the process that goes on is killed too; they are spread evenly over all pairs, the same in every
    run. ``directory`` keeps the files, a temporary one when not given; ``same_transcript=False`` leaves comparing
    transcripts to ``check``; ``timeout`` bounds each process, in seconds. ``out`` gets one line that says at how many
    points it killed. Raises ``AssertionError`` with the points that failed, and when the uninterrupted run fails.
    """
    name = f"{scenario.__module__}:{scenario.__qualname__}"
    if "<" in name:
        raise ValueError(f"the scenario {name} cannot be imported by another process: define it at the top of a module")
    with _folder(directory) as folder, _Runner(name, timeout) as runner:
        baseline, problem = runner.run_to_end(folder / "uninterrupted", storage, 1)
        if baseline is None:
            raise AssertionError(f"the scenario {name} fails without any crash: {problem}")
        sweep = Sweep(scenario.__name__, storage, baseline)

        def run(*kills: Kill) -> None:
            name = "-then-".join(f"{moment}-{number}" for number, moment in kills)
            sweep.points.append(_point(runner, folder / name, storage, kills, baseline, check, same_transcript))

        for number in commits if commits is not None else range(1, max(map(baseline.times, when), default=0) + 1):
            for moment in when:
                if number <= baseline.times(moment):
                    run((number, moment))
        for first, second in _spread(list(_pairs(sweep.points, when)), again):
            run(first, second)
        out(str(sweep))
        if sweep.failed:
            raise AssertionError(str(sweep))
        return sweep


def _pairs(points: Sequence[Point], when: Sequence[When]) -> Iterator[tuple[Kill, Kill]]:
    """Every point that was reached, with every point that the process after it came to."""
    for point in points:
        if point.reached and point.ending is not None:
            for moment in when:
                for number in range(1, point.ending.times(moment) + 1):
                    yield (point.commit, point.when), (number, moment)


def _spread(pairs: list[tuple[Kill, Kill]], most: int) -> list[tuple[Kill, Kill]]:
    if len(pairs) <= most:
        return pairs
    return [pairs[index * len(pairs) // most] for index in range(most)]


def _point(
    runner: _Runner,
    folder: Path,
    storage: StorageKind,
    kills: Sequence[Kill],
    baseline: Ending,
    check: Check | None,
    same_transcript: bool,
) -> Point:
    killed, process, problem = 0, 0, None
    ending: Ending | None = None
    for kill in kills:
        process += 1
        reached, problem = runner.run_and_kill(folder, storage, process, kill)
        killed += reached
        if not reached:
            break
    if problem is None:
        ending, problem = runner.run_to_end(folder, storage, process + 1)
    (commit, when), *more = kills
    point = Point(commit, when, more[0] if more else None, killed, problem, ending, folder)
    if ending is not None:
        try:
            _judge(ending, baseline, same_transcript)
            if check is not None:
                check(ending, baseline, point)
        except AssertionError as error:
            return replace(point, problem=str(error) or "an assertion failed")
    return point


def _judge(ending: Ending, baseline: Ending, same_transcript: bool) -> None:
    if ending.unsettled or ending.live:
        raise AssertionError(f"submissions {ending.unsettled} are not settled, tasks {ending.live} are live")
    if ending.outcome != baseline.outcome:
        raise AssertionError(f"the outcome is {ending.outcome!r} instead of {baseline.outcome!r}")
    if same_transcript and _comparable(ending) != _comparable(baseline):
        raise AssertionError(f"the transcript is\n    {_comparable(ending)}\n  instead of\n    {_comparable(baseline)}")


def _comparable(ending: Ending) -> list[tuple[Any, ...]]:
    """Entries without what a crash may change: ids, attempts that were cut off, and what tool results say."""
    order = {id: n for n, id in enumerate(dict.fromkeys(row[1] for row in ending.transcript))}
    return [
        (order[conversation], kind, text if kind != "pi.tool-result" else None)
        for _, conversation, kind, text, stop_reason, _ in ending.transcript
        if stop_reason != "aborted"
    ]


@contextmanager
def _folder(given: str | os.PathLike[str] | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="crash-sweep-") as made:
        yield Path(made)


def _storage_text(folder: Path, kind: StorageKind) -> str:
    return f"jsonl:{folder / 'journal'}" if kind == "jsonl" else str(folder / "session.sqlite")


# -- the side that asks ----------------------------------------------------------------------------------------------


class _Runner:
    """The runner process, and one request to it at a time."""

    def __init__(self, scenario: str, timeout: float) -> None:
        self._scenario = scenario
        self._timeout = timeout

    def __enter__(self) -> _Runner:
        module = sys.modules.get(self._scenario.partition(":")[0])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._scenario, str(getattr(module, "__file__", "") or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the runner ends when nobody asks any more
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, folder: Path, storage: StorageKind, process: int, kill: Kill | None) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        request = {
            "folder": str(folder),
            "storage": storage,
            "process": process,
            "kill": kill,
            "timeout": self._timeout,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the process that runs the scenario ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run_and_kill(self, folder: Path, storage: StorageKind, process: int, kill: Kill) -> tuple[bool, str | None]:
        """Run until the point: whether it was reached, and what went wrong before it."""
        answer = self._ask(folder, storage, process, kill)
        if answer["signal"] == signal.SIGKILL and not answer["timed_out"]:
            return True, None
        if "outcome" in answer:
            return False, None
        return False, f"the process that was to be killed failed first: {_problem(answer, self._timeout)}"

    def run_to_end(self, folder: Path, storage: StorageKind, process: int) -> tuple[Ending | None, str | None]:
        """Run to the end: what it left, or what went wrong."""
        answer = self._ask(folder, storage, process, None)
        if "outcome" not in answer:
            return None, _problem(answer, self._timeout)
        names = ("outcome", "reached", "transcript", "attempts", "lives", "unsettled", "live")
        return Ending(notes=read_notes(folder), **{name: answer[name] for name in names}), None


def _problem(answer: dict[str, Any], timeout: float) -> str:
    if answer["timed_out"]:
        return f"it did not end within {timeout:g} s"
    return str(answer.get("error") or f"it ended with signal {answer['signal']}, status {answer['status']}")


# -- the runner ------------------------------------------------------------------------------------------------------


async def _run(scenario: Scenario, request: dict[str, Any]) -> dict[str, Any]:
    from .validation import check_stored

    folder = Path(request["folder"])
    where = _storage_text(folder, request["storage"])
    with Faults(where=where) as faults:
        if request["kill"] is not None:
            number, moment = request["kill"]
            faults.kill(_POINTS.get(moment, moment), at=number)
        outcome = await scenario(Stage(await open_storage(where), folder, request["process"]))
    storage = await open_storage(where)
    try:
        stored = await check_stored(storage)
        transcript: list[list[Any]] = []
        for entry in stored.entries:
            stops = [message.stop_reason for message in entry.messages if message.role == "assistant"]
            commit = await storage.entry_commit(entry.id)
            transcript.append(
                [
                    entry.id,
                    entry.conversation_id,
                    entry.kind,
                    entry.text,
                    stops[0] if stops else None,
                    None if commit is None else commit.seq,
                ]
            )
        return {
            "outcome": json.loads(json.dumps(outcome)),
            "reached": dict(faults.reached),
            "transcript": transcript,
            "attempts": [[a.task, stored.tasks[a.task].kind, a.life, a.phase, a.end] for a in await storage.attempts()],
            "lives": [life.ended for life in await storage.lives()],
            "unsettled": [record.id for record in stored.submissions if not record.settled],
            "live": [task.id for task in stored.tasks.values() if not task.terminal],
        }
    finally:
        await storage.close()


def _child(scenario: Scenario, request: dict[str, Any], result: Path) -> None:
    """Run in a forked process; never returns."""
    os.dup2(2, 1)  # the runner's own answers go there
    try:
        answer = asyncio.run(_run(scenario, request))
    except BaseException:  # handed to whoever asked, whatever it is
        answer = {"error": traceback.format_exc()}
    try:
        result.write_text(json.dumps(answer))
    finally:
        os._exit(0)


def _serve(scenario: Scenario) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        result = Path(request["folder"]) / f"result-{request['process']}.json"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _child(scenario, request, result)
        deadline = time.monotonic() + request["timeout"]
        timed_out = False
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline and not timed_out:
                timed_out = True
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        answer = json.loads(result.read_text()) if result.exists() else {}
        answer |= {
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "timed_out": timed_out,
        }
        print(json.dumps(answer), flush=True)


def _load(scenario: str, file: str) -> Scenario:
    module, _, name = scenario.partition(":")
    if module == "__main__":  # a script: load its file under another name, so that its main part does not run
        spec = importlib.util.spec_from_file_location("crash_sweep_scenario", file)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    found: Scenario = getattr(loaded, name)
    return found


def _main() -> None:
    from .. import agent, models, storage  # noqa: F401  (imported once, before anything forks)
    from ..agent import harness  # noqa: F401
    from ..storage import jsonl, sqlite  # noqa: F401
    from . import validation  # noqa: F401

    _serve(_load(sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    _main()
