"""The task graph and the timeline of a real session: followed as it works, acted on from a page, static at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comm
import pytest
from notebook_shells import Shell, in_process_shell

from pidurable_nb import Harness, Phase, Registry, SqliteStorage, Task, notebook, observe, tool
from pidurable_nb.agent.extension import Extension
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.models.protocol import ModelRequest
from pidurable_nb.notebook import observing
from pidurable_nb.notebook.following import GraphFollower, TimelineFollower, task_details
from pidurable_nb.notebook.graphview import GraphView
from pidurable_nb.notebook.timelineview import TimelineView
from pidurable_nb.tasks import TaskGraph
from pidurable_nb.testing import KillSwitch, eventually


def answer(request: ModelRequest) -> Reply | Hang:
    asked = [message.text for message in request.messages if message.role == "user"][-1]
    if asked == "look" and request.messages[-1].role == "user":
        return Reply("Let me look.", tool_calls=[ToolCall("c1", "lookup", {"word": "tide"})])
    if asked == "hang":
        return Hang(after="so far")
    return Reply(f"You said {asked}")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "chat.sqlite"
    for chat in notebook.sessions():
        notebook.close(chat.name)


@pytest.fixture
def chat(path: Path) -> notebook.Chat:
    return notebook.open(path, model=ScriptedModel(answer, name="scripted:live"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_process_shell(capsys) as made:
        yield made


class Wire(comm.base_comm.BaseComm):
    """A comm that keeps what it is given to send."""

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        sent = self.__dict__.setdefault("sent", [])
        if data and data.get("method") == "custom":
            sent.append(data["content"])


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front end that is live, whose messages are kept."""
    monkeypatch.setenv("PIDURABLE_NB_LIVE", "1")
    monkeypatch.setattr(comm, "create_comm", lambda **options: Wire(**options))


def until(condition: Callable[[], Any], *, timeout: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return found


def shown(live: Any) -> dict[str, Any]:
    """What a page shows of a live view now."""
    view: dict[str, Any] = live._widget.state["view"]
    return view


def states(live: Any) -> dict[str, str]:
    return {node["title"]: node["state"] for node in shown(live)["nodes"].values()}


def press(live: Any, name: str, task: Any) -> Any:
    """Press a button as a page does; what it is told."""
    number = f"{name}-{task}-{time.monotonic()}"
    live._widget._handle_custom_msg({"do": name, "task": task, "press": number}, [])

    def told() -> Any:
        answers = [message for message in list(live._widget.comm.sent) if message.get("heard") == number]
        return next((message for message in answers if "done" in message or "error" in message), None)

    return until(told)


# -- where nobody watches --------------------------------------------------------------------------------------------


def test_python_gives_the_tree_and_the_timeline_of_an_ended_turn(chat: notebook.Chat) -> None:
    @tool
    async def lookup(word: str) -> str:
        """Look a word up."""
        return word

    notebook.install(lookup)
    chat.ask("look")
    graph, timeline = chat.graph(), chat.timeline()
    assert isinstance(graph.view, GraphView)
    assert isinstance(timeline.view, TimelineView)
    titles = [row.title for row in graph.view.rows]
    assert titles == ["turn", 'lookup(word="tide")', "turn"]
    assert {row.state for row in graph.view.rows} == {"completed"}
    assert [row.title for row in timeline.view.rows] == ["“look”", "turn", 'lookup(word="tide")', "turn"]
    first = timeline.view.rows[1]
    assert [bar.kind for bar in first.bars if bar.kind == "run"] == ["run", "run"]
    assert "lookup" in repr(graph)
    assert set(timeline._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_session_that_is_only_observed_is_shown_too(chat: notebook.Chat, path: Path) -> None:
    chat.ask("hello")
    notebook.close(chat.name)
    seen = observing.observe(path, show=False)
    graph, timeline = seen.graph().view, seen.timeline().view
    assert [row.state for row in graph.rows] == ["completed"]
    assert not graph.can_abort
    assert [life.ended for life in timeline.lives] == ["closed"]


def test_a_session_that_is_held_back_says_why(path: Path) -> None:
    paused = notebook.open(path, model=ScriptedModel(answer, name="scripted:live"), paused=True)
    paused.submit("hello", show=False)
    view = paused.graph().view
    assert [row.state for row in view.rows] == ["pending"]
    assert view.held == "the session is paused: `%durable resume` starts it"


def test_the_magics_show_both_once(shell: Shell, path: Path) -> None:
    ScriptedModel(answer, name="scripted:live")
    notebook.open(path, model=ScriptedModel(answer, name="scripted:live"), show=False).ask("hello")
    assert "turn · ✓ completed" in shell.run("%durable graph")
    assert "“hello” · answered" in shell.run("%durable timeline")
    notebook.current().ask("again")
    newest = shell.run("%durable timeline 1")
    assert "“again”" in newest
    assert "“hello”" not in newest
    assert "invalid int value" in shell.fails("%durable timeline soon")
    notebook.close()
    assert "no session is open" in shell.fails("%durable graph")


# -- where somebody does ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("page")
def test_the_graph_follows_a_turn_and_its_abort_button_ends_it(chat: notebook.Chat) -> None:
    live = chat.graph()
    live.show()
    turn = chat.submit("hang", show=False)
    until(lambda: states(live) == {"turn": "running"} and "request" in str(shown(live)))
    ((id, node),) = shown(live)["nodes"].items()
    assert node["phase"] == "request"
    assert press(live, "abort", int(id))["done"] == "marked"
    until(lambda: states(live) == {"turn": "aborted"})
    assert shown(live)["title"] == "no live tasks · 1 ended"
    until(lambda: turn.view.settled)
    assert press(live, "abort", int(id))["done"] == "terminal"


@pytest.mark.usefixtures("page")
def test_a_page_learns_more_about_a_task_it_selects(chat: notebook.Chat) -> None:
    live = chat.graph()
    live.show()
    chat.submit("hang", show=False)
    until(lambda: states(live) == {"turn": "running"})
    id = int(next(iter(shown(live)["nodes"])))
    until(lambda: '"phase": "request"' in press(live, "select", id)["done"]["checkpoint"])
    done = press(live, "select", id)["done"]
    assert done["task"] == id
    assert f"task {id} (pi.generation, version 1)" in done["story"]
    assert "attempt 1 began at prepare" in done["story"]
    assert "there is no task 999" in press(live, "select", 999)["error"]
    assert "the page did not say task" in press(live, "select", "1; rm")["error"]


@pytest.mark.usefixtures("page")
def test_the_timeline_grows_while_a_turn_runs(chat: notebook.Chat) -> None:
    chat.ask("hello")
    live = chat.timeline()
    live.show()
    until(lambda: len(shown(live)["order"]) == 2)
    turn = chat.submit("hang", show=False)
    until(lambda: len(shown(live)["order"]) == 4)
    running = shown(live)["rows"][shown(live)["order"][-1]]
    assert running["badge"][1] == "running"
    assert running["bars"][-1][2] is None
    # Now leaves the axis while nothing is committed: the axis goes on.
    end = shown(live)["knots"][-1][0]
    until(lambda: shown(live)["knots"][-1][0] > end)
    chat.stop()
    until(lambda: shown(live)["rows"][shown(live)["order"][-1]]["badge"][1] == "aborted")
    assert turn.view.settled


@pytest.mark.usefixtures("page")
def test_when_the_session_closes_the_static_form_takes_its_place(chat: notebook.Chat) -> None:
    chat.ask("hello")
    live = chat.graph()
    live.show()
    until(lambda: states(live) == {"turn": "completed"})
    chat.close()
    handed = until(lambda: live._widget.state.get("static"))
    assert "✓ completed" in handed["data"]["text/plain"]


@pytest.mark.usefixtures("page")
def test_a_cell_that_runs_again_stops_following_what_it_showed(
    chat: notebook.Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook.live.frontend, "cell_id", lambda: "cell-1")
    first, second = chat.graph(), chat.graph()
    first.show()
    beside = chat.timeline()
    beside.show()
    until(lambda: first._following is not None)
    second.show()
    until(lambda: first._following.done())
    chat.ask("hello")
    until(lambda: states(second) == {"turn": "completed"})
    assert states(first) == {}
    assert not beside._following.done()


# -- followers -------------------------------------------------------------------------------------------------------


class Child(Task[int, None], name="live.child", version=1):
    """Ends when it is told to."""

    class Work(Phase):
        async def run(self, task: Any) -> None:
            await task.receive("go", Child.End())

    class End(Phase):
        async def run(self, task: Any) -> None:
            await task.complete()


class Many(Task[int, None], name="live.many", version=1):
    """Owns many children and waits for them."""

    class Start(Phase):
        async def run(self, task: Any) -> None:
            async with task.commit() as tx:
                ids = [await tx.create_task(Child, n, owner=task.id) for n in range(task.input)]
                tx.wait(ids, Many.End())

    class End(Phase):
        async def run(self, task: Any) -> None:
            await task.complete()


def registry() -> Registry:
    made = Registry()
    made.install(Extension("live", tasks=[Child, Many]))
    return made


async def following(follower: Any) -> tuple[asyncio.Task[None], list[Any]]:
    views: list[Any] = []
    task = asyncio.create_task(follower.follow(views.append))
    await eventually(lambda: bool(views), timeout=20)
    return task, views


def test_many_tasks_that_start_and_end_at_once_are_all_seen() -> None:
    async def main() -> None:
        async with Harness.open(":memory:", registry=registry()) as harness:
            root = await harness.root()
            began = time.monotonic()
            graph, views = await following(GraphFollower(harness))
            timeline, times = await following(TimelineFollower(harness))
            async with root.commit() as tx:
                owner = await tx.create_task(Many, 300)
            harness.resume()
            await eventually(lambda: sum(row.state == "waiting" for row in views[-1].rows) == 301, timeout=30)
            children = [row.id for row in views[-1].rows if row.owner == owner]
            assert len(children) == 300
            assert views[-1].rows[0].about == "waits for its 300 tasks"
            for id in children:
                await harness.signal(id, "go", None)
            await harness.wait_for_task(owner)
            await eventually(lambda: all(not row.live for row in views[-1].rows), timeout=30)
            assert {row.state for row in views[-1].rows} == {"completed"}
            assert len(views[-1].rows) + views[-1].hidden == 301
            await eventually(lambda: {row.state for row in times[-1].rows} == {"completed"}, timeout=30)
            assert len(times[-1].rows) == 301
            assert len(views) <= (time.monotonic() - began) / GraphFollower.interval + 2
        await asyncio.wait_for(asyncio.gather(graph, timeline), 20)

    asyncio.run(main())


def test_a_crash_is_a_line_and_what_it_cut_off_is_marked(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "crash.sqlite"
        switch = KillSwitch(await SqliteStorage.open(path))
        harness = await Harness.open(switch, registry=registry(), models=[ScriptedModel([Hang(after="so far")])])
        root = await harness.root()
        await root.submit("What is it?")

        async def streams() -> bool:
            return "so far" in str((await root.view()).live)

        await eventually(streams, timeout=20)
        switch.kill()
        async with Harness.open(path, registry=registry(), models=[ScriptedModel(["It is done."])]) as again:
            follower = TimelineFollower(again)
            await again.wait_for_idle()
            view = await follower.load()
            assert [(life.ended, life.end is None) for life in view.lives] == [("crashed", False), (None, True)]
            question, turn = view.rows[:2]
            assert question.title == "“What is it?”"
            assert [bar.how for bar in turn.bars if bar.kind == "run"] == ["cut_off", "ended"]
            assert [bar.kind for bar in turn.bars if bar.kind != "run"] in (["dead"], [])
            details = await task_details(again, int(turn.key[1:]))
            assert "was cut off: its process died" in details["story"]

    asyncio.run(main())


def test_an_observer_is_followed_and_offers_no_abort(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "seen.sqlite"
        async with Harness.open(path, registry=registry(), models=[ScriptedModel(answer)]) as harness:
            root = await harness.root()
            async with observe(path) as observer:
                graph, views = await following(GraphFollower(observer))
                timeline, times = await following(TimelineFollower(observer))
                assert not views[-1].can_abort
                await root.submit("hang")
                await eventually(lambda: [row.state for row in views[-1].rows] == ["running"], timeout=20)
                await eventually(lambda: [row.state for row in times[-1].rows] == ["placed", "running"], timeout=20)
                id = views[-1].rows[0].id
                assert "attempt 1 began" in (await task_details(observer, id))["story"]
                with pytest.raises(DurableError, match="there is no task"):
                    await task_details(observer, 10_000)
                await root.abort()
                await eventually(lambda: [row.state for row in views[-1].rows] == ["aborted"], timeout=20)
                await eventually(lambda: times[-1].rows[0].badge.word == "stopped", timeout=20)
            await asyncio.wait_for(asyncio.gather(graph, timeline), 20)

    asyncio.run(main())


def test_a_task_that_began_after_the_graph_was_read_is_not_forgotten(chat: notebook.Chat) -> None:
    turn = chat.submit("hang", show=False)
    until(lambda: bool(turn.view.items))

    async def follow() -> tuple[list[int], list[int]]:
        follower = GraphFollower(chat.harness)
        await follower.load()
        (running,) = [row.id for row in follower.view.rows]
        follower._rows = type(follower._rows)()
        follower._begun.add(running)
        before = await follower._take(TaskGraph(tasks={}))  # as it was before the task began
        await chat.harness.abort_task(running)
        await chat.conversation.wait_for_idle()
        after = await follower._take(TaskGraph(tasks={}))
        return [row.id for row in before.rows], [row.id for row in after.rows if not row.live]

    before, after = chat.run(follow)
    assert before == []
    assert len(after) == 1
