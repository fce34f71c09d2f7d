"""Nothing hangs on itself (engine.md, rule 1.8): calls inside an open commit, waits for what waits for the caller."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pidurable_nb import (
    Conversation,
    GenerationHooks,
    Harness,
    LiveState,
    Phase,
    Submission,
    Task,
    TaskRun,
    ToolContext,
    tool,
)
from pidurable_nb.errors import CommitReentered, DurableError, SessionForked, WouldDeadlock
from pidurable_nb.models import Hang

from .support import Chat, bounded, calls, eventually


class Nothing(Task[None, None], name="test.nothing", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.complete()


# Sync methods, properties, and what answers from memory alone: these never queue on the line.
FREE = {
    "clock", "env", "flush", "flush_before_stop", "in_thread", "now", "open", "owned_tasks", "report", "resume",
    "run_in_kernel", "storage", "validate", "wait_closed", "wake", "watch_commits", "watch_task_graph",
}  # fmt: skip


async def enter(block: Any) -> None:
    async with block:
        pass


def harness_calls(harness: Harness, task: Any, submission: Submission) -> dict[str, Callable[[], Any]]:
    return {
        "abort_task": lambda: harness.abort_task(task),
        "close": harness.close,
        "commit": lambda: enter(harness.commit()),
        "conversation": lambda: harness.conversation(1),
        "conversations": lambda: harness.conversations().list(),
        "create_conversation": harness.create_conversation,
        "inspect": harness.inspect,
        "root": harness.root,
        "signal": lambda: harness.signal(task, "x", 1),
        "snapshot": lambda: harness.snapshot(LiveState, 1),
        "snapshot_as_of": lambda: harness.snapshot_as_of(LiveState, 1, at=1),  # type: ignore[arg-type]
        "story": lambda: harness.story(task),
        "submission": lambda: harness.submission(submission.id),
        "submissions": lambda: harness.submissions().first(),
        "task": lambda: harness.task(task),
        "task_graph": harness.task_graph,
        "tasks": lambda: harness.tasks().page(1),
        "usage": harness.usage,
        "wait_for_idle": harness.wait_for_idle,
        "wait_for_task": lambda: harness.wait_for_task(task),
        "watch_doc": lambda: enter(harness.watch_doc(LiveState, 1)),
    }


def conversation_calls(root: Conversation) -> dict[str, Callable[[], Any]]:
    return {
        "abort": root.abort,
        "agent": root.agent,
        "ask": lambda: root.ask("hi"),
        "commit": lambda: enter(root.commit()),
        "compact": lambda: root.compact(),
        "compare": lambda: root.compare(root),
        "configure": lambda: root.configure(thinking="high"),
        "context": root.context,
        "decide": lambda: root.decide("x", approve=True),
        "entries": lambda: root.entries().list(),
        "entry": lambda: root.entry(1),
        "fork": lambda: root.fork(1),  # type: ignore[arg-type]
        "reset": lambda: root.reset(),
        "retry": root.retry,
        "revise": lambda: root.revise(1, "hi"),  # type: ignore[arg-type]
        "submit": lambda: root.submit("hi"),
        "view": root.view,
        "wait_for_idle": root.wait_for_idle,
        "watch": lambda: enter(root.watch()),
        "watch_events": lambda: enter(root.watch_events()),
        "write": lambda: root.write("app.note"),
    }


def submission_calls(submission: Submission) -> dict[str, Callable[[], Any]]:
    return {"abort": submission.abort, "status": submission.status, "wait": submission.wait}


def public(kind: type) -> set[str]:
    """The public methods of a class that may queue."""
    return {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and callable(member) and name not in FREE
    }


async def refused(given: dict[str, Callable[[], Any]], kind: type, error: type[Exception], words: str) -> None:
    """Each of these calls raises at once; and none of the class's methods is missing from the list."""
    names = public(kind)
    missing = names - given.keys()
    assert not missing, f"{kind.__name__} has methods that no test calls inside a commit: {missing}"
    for name in sorted(names):
        try:
            await asyncio.wait_for(_made(given[name]), 1)
        except error as raised:
            if re.search(words, str(raised)) is None:
                pytest.fail(f"{kind.__name__}.{name} says {raised}")
        except Exception as other:
            pytest.fail(f"{kind.__name__}.{name} raised {other!r}")
        else:
            pytest.fail(f"{kind.__name__}.{name} did not raise")


async def _made(make: Callable[[], Any]) -> Any:
    made = make()
    return await made if inspect.isawaitable(made) else made


@bounded
async def test_every_method_raises_inside_an_open_commit_and_names_its_place() -> None:
    chat = Chat("answer")
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        settled = await submission.wait()
        [task] = [task.id async for task in harness.tasks()]
        place = r"test_waits\.py:\d+"
        for block in (harness.commit(), root.commit()):
            async with block:
                await refused(harness_calls(harness, task, submission), Harness, CommitReentered, place)
                await refused(conversation_calls(root), Conversation, CommitReentered, place)
                await refused(submission_calls(submission), Submission, CommitReentered, place)
                with pytest.raises(CommitReentered):  # a child asyncio task of the body
                    await asyncio.gather(asyncio.wait_for(submission.status(), 1))
                harness.wake()
        assert await submission.status() == settled
        await harness.wait_for_idle()


@bounded
async def test_methods_of_runs_and_tool_contexts_raise_inside_an_open_commit() -> None:
    problems: list[BaseException] = []

    async def check(given: dict[str, Callable[[], Any]], kind: type) -> None:
        try:
            await refused(given, kind, CommitReentered, "part of")
        except BaseException as error:
            problems.append(error)

    class Careless(Task[None, None], name="test.careless", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                given: dict[str, Callable[[], Any]] = {
                    "abort_owned": lambda: task.abort_owned(task.id),
                    "aborted": task.aborted,
                    "agent": task.agent,
                    "commit": lambda: enter(task.commit()),
                    "complete": task.complete,
                    "context": task.context,
                    "conversation": lambda: task.conversation(1),
                    "entry": lambda: task.entry(1),
                    "fail": lambda: task.fail("x"),
                    "memo": lambda: task.memo("x", 1),
                    "next": lambda: task.next(Careless.Run()),
                    "outcomes": lambda: task.outcomes([task.id]),
                    "owned_tasks": task.owned_tasks,
                    "receive": lambda: task.receive("x", Careless.Run),
                    "sleep_until": lambda: task.sleep_until(1, Careless.Run()),
                    "snapshot": lambda: task.snapshot(LiveState),
                    "snapshot_as_of": lambda: task.snapshot_as_of(LiveState, task.conversation_id, at=1),  # type: ignore[arg-type]
                    "task": lambda: task.task(task.id),
                    "wait": lambda: task.wait([], Careless.Run()),
                    "wait_for_task": lambda: task.wait_for_task(task.id + 1),  # type: ignore[arg-type]
                    "watch_doc": lambda: enter(task.watch_doc(LiveState)),
                }
                async with task.commit():
                    await check(given, TaskRun)
                await task.complete()

    @tool
    async def careless(ctx: ToolContext) -> str:
        given: dict[str, Callable[[], Any]] = {
            "agent": ctx.agent,
            "call_tool": lambda: ctx.call_tool("careless"),
            "commit": lambda: enter(ctx.commit()),
            "conversation": lambda: ctx.conversation(1),
            "create_conversation": ctx.create_conversation,
            "create_task": lambda: ctx.create_task(Nothing, None),
            "details": lambda: ctx.details(1),
            "memo": lambda: ctx.memo("x", 1),
            "output": lambda: ctx.output("x"),
            "snapshot": lambda: ctx.snapshot(LiveState, 1),
            "task": lambda: ctx.task(ctx.task_id),
            "wait_for_task": lambda: ctx.wait_for_task(ctx.task_id + 1),  # type: ignore[arg-type]
        }
        async with ctx.commit():
            await check(given | {name: given["output"] for name in ("diagnostic", "retained_output")}, ToolContext)
        return "done"

    chat = Chat(calls("careless"), "done")
    chat.install(careless, tasks=[Careless, Nothing])
    async with chat.open() as (harness, root):
        async with root.commit() as tx:
            task = await tx.create_task(Careless, None)
        assert (await harness.wait_for_task(task)).state.outcome.status == "completed"  # type: ignore[union-attr]
        await root.ask("go")
        assert not problems, problems


# -- waits that only their own end could end ---------------------------------------------------------------------------


@asynccontextmanager
async def inside(kind: str, code: Callable[..., Any]) -> AsyncIterator[Any]:
    """Run ``code(harness, root, task id, submission)`` inside a tool, a plain tool, a hook, or a phase."""
    held: dict[str, Any] = {}

    async def run(task_id: Any) -> None:
        held["result"] = await asyncio.gather(
            code(held["harness"], held["root"], task_id, held.get("submission")), return_exceptions=True
        )

    @tool
    async def from_tool(ctx: ToolContext) -> str:
        await run(ctx.task_id)
        return "went on"

    @tool
    async def from_nested(ctx: ToolContext) -> str:
        return (await ctx.call_tool("from_tool")).text

    async def hook(_message: Any, ctx: Any) -> None:
        if kind == "hook" and "result" not in held:
            await run(ctx.task_id)

    class FromPhase(Task[None, None], name="test.from-phase", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                await run(task.id)
                await task.complete()

    steps: list[Any] = ["answered"] if kind in ("hook", "phase") else [calls(f"from_{kind}"), "answered"]
    chat = Chat(*steps)
    chat.install(from_tool, from_nested, tasks=[FromPhase], hooks=[GenerationHooks(after_response=hook)])
    async with chat.open() as (harness, root):
        held["harness"], held["root"] = harness, root
        if kind == "phase":
            async with root.commit() as tx:
                await tx.create_task(FromPhase, None)
        else:
            held["submission"] = await root.submit("go", request_id="go")
        await harness.wait_for_idle()
        yield held["result"][0]


async def waits_for_submission(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    return await submission.wait()


async def waits_for_follow_up(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    return await (await root.submit("me too", request_id="again")).wait()


async def asks(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    return await root.ask("me too", request_id="again")


async def waits_for_idle(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await root.wait_for_idle()


async def waits_for_all_idle(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await harness.wait_for_idle()


async def aborts(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await root.abort()


async def closes(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await harness.close()


async def waits_for_itself(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await harness.wait_for_task(task)


async def waits_for_its_run(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    state = await harness.snapshot(LiveState, root.id)
    await harness.wait_for_task(state.run.task)


async def waits_in_a_child(harness: Any, root: Any, task: Any, submission: Any) -> Any:
    await asyncio.create_task(asyncio.wait_for(root.wait_for_idle(), 5))


@pytest.mark.parametrize("kind", ["tool", "nested", "hook"])
@pytest.mark.parametrize(
    "code",
    [
        waits_for_submission,
        waits_for_idle,
        waits_for_all_idle,
        aborts,
        closes,
        waits_for_itself,
        waits_for_its_run,
        waits_in_a_child,
    ],
)
@bounded
async def test_code_of_a_run_cannot_wait_for_it(kind: str, code: Any) -> None:
    async with inside(kind, code) as result:
        assert isinstance(result, WouldDeadlock), repr(result)


@pytest.mark.parametrize("code", [waits_for_idle, waits_for_all_idle, aborts, closes, waits_for_itself])
@bounded
async def test_a_phase_cannot_wait_for_what_waits_for_it(code: Any) -> None:
    async with inside("phase", code) as result:
        assert isinstance(result, WouldDeadlock), repr(result)


@pytest.mark.parametrize("code", [waits_for_follow_up, asks])
@bounded
async def test_a_tool_cannot_wait_for_an_input_that_waits_for_its_run(code: Any) -> None:
    chat_answers = {"n": 0}
    held: dict[str, Any] = {}

    @tool
    async def greedy(ctx: ToolContext) -> str:
        root = await ctx.conversation(ctx.conversation_id)
        with pytest.raises(WouldDeadlock):
            await code(held["harness"], root, ctx.task_id, None)
        chat_answers["n"] += 1
        return "went on"

    chat = Chat(calls("greedy"), "one", "two")
    chat.install(greedy)
    async with chat.open() as (harness, root):
        held["harness"] = harness
        await root.ask("go")
        await root.wait_for_idle()
        assert chat_answers["n"] == 1
        found = await root.submit("me too", request_id="again")
        assert (await found.wait()).status == "done"


@bounded
async def test_a_phase_beside_the_run_may_wait_for_its_submissions() -> None:
    answers: list[str] = []

    class Beside(Task[None, None], name="test.beside", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                root = await task.conversation(task.conversation_id)
                answers.append((await root.ask("from a task")).text)
                await task.complete()

    chat = Chat("answer")
    chat.install(tasks=[Beside])
    async with chat.open() as (harness, root):
        async with root.commit() as tx:
            task = await tx.create_task(Beside, None, background=True)
        await harness.wait_for_task(task)
        assert answers == ["answer"]


@bounded
async def test_a_subagents_tool_cannot_wait_for_the_conversation_that_waits_for_it() -> None:
    caught: list[BaseException] = []

    @tool
    async def delegate(ctx: ToolContext) -> str:
        sub = await ctx.create_conversation()
        return (await sub.ask("sub")).text

    @tool
    async def deep(ctx: ToolContext) -> str:
        root = await ctx.conversation(1)
        for wait in (root.wait_for_idle, root.abort):
            try:
                await wait()
            except DurableError as error:
                caught.append(error)
        return "deep"

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool_result":
            return "answered"
        return calls("deep" if last.text == "sub" else "delegate")

    chat = Chat(answer)
    chat.install(delegate, deep)
    async with chat.open() as (_, root):
        await root.ask("go")
        assert [type(error) for error in caught] == [WouldDeadlock] * 2


@bounded
async def test_work_that_outlived_its_invocation_may_wait() -> None:
    outside: list[asyncio.Task[None]] = []

    @tool
    async def starts(ctx: ToolContext) -> str:
        root = await ctx.conversation(ctx.conversation_id)

        async def later() -> None:
            await eventually(lambda: not root._harness._invocations)
            await root.wait_for_idle()

        outside.append(asyncio.create_task(later()))
        return "done"

    chat = Chat(calls("starts"), "done")
    chat.install(starts)
    async with chat.open() as (_, root):
        await root.ask("go")
        await asyncio.gather(*outside)


# -- forks of the process ----------------------------------------------------------------------------------------------


@bounded
async def test_a_forked_child_is_told_so(tmp_path: Any) -> None:
    chat = Chat(Hang(), path=tmp_path / "s.sqlite")
    async with chat.open() as (harness, root):
        submission = await root.submit("hi")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _in_the_child(harness, root, submission)
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.WEXITSTATUS(status) == 0
        await root.abort()


def _in_the_child(harness: Any, root: Any, submission: Any) -> int:
    problems = 0
    for call in (
        harness.commit,
        harness.resume,
        lambda: _driven(root.submit("x")),
        lambda: _driven(submission.wait()),
        lambda: _driven(root.view()),
        lambda: _driven(harness.inspect()),
        lambda: _driven(harness.snapshot(LiveState, 1)),
        lambda: _driven(harness.close()),
    ):
        try:
            call()
        except SessionForked:
            continue
        except BaseException:
            pass
        problems += 1
    return problems


def _driven(coroutine: Any) -> Any:
    """Step a coroutine once, without a loop: it must raise before it waits for anything."""
    try:
        return coroutine.send(None)
    finally:
        coroutine.close()
