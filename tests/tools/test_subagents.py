"""Subagents in the foreground and in the background (engine.md, sections 7 and 12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import AgentChange, Edit, Extension, Harness, LiveState, tool
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import UserMessage
from pidurable_nb.models import Hang, Reply
from pidurable_nb.tools import subagent_tool

from .support import Chat, bounded, call, calls, eventually, live, results

Model = Callable[[Any], Any]


def by_text(answers: dict[str, Any]) -> Model:
    """A model that answers by the last message: the step of the first key that it begins with."""

    def answer(request: Any) -> Any:
        text = request.messages[-1].text
        for key, step in answers.items():
            if text.startswith(key):
                return step(request) if callable(step) else step
        return f"heard {text}"

    return answer


def ask(text: str, **arguments: Any) -> Reply:
    return calls(call("helper", {"task": text, **arguments}, f"call-{text}"))


def act(action: str, agent: str | None = None, text: str | None = None) -> Reply:
    given = {"action": action, "agent": agent, "text": text}
    arguments = {key: value for key, value in given.items() if value is not None}
    return calls(call("helper", arguments, f"call-{action}-{agent}-{text}"))


def chat_of(model: Model, *extensions: Extension, path: Path | None = None) -> Chat:
    chat = Chat(model, path=path)
    for extension in extensions:
        chat.registry.install(extension)
    return chat


async def children(harness: Harness) -> list[Any]:
    return [record for record in await harness.conversations().list() if record.owner is not None]


async def texts(conversation: Any) -> list[str]:
    return [
        f"{entry.kind}: {message.text}"
        async for entry in conversation.entries(order="ascending")
        for message in entry.messages
        if message.role in ("user", "assistant") and message.text
    ]


# -- in the foreground -----------------------------------------------------------------------------------------------


@bounded
async def test_a_call_returns_the_answer_of_its_subagent() -> None:
    chat = chat_of(by_text({"go": ask("the question")}), subagent_tool("helper", "Helps."))
    async with chat.open() as (harness, root):
        assert (await root.ask("go")).text == "heard heard the question"
        [(message, _)] = await results(root)
        [child] = await children(harness)
        assert (message.text, message.is_error, message.details) == (
            "heard the question",
            False,
            {"conversation": child.id},
        )
        assert child.owner.conversation == root.id


@bounded
async def test_a_subagent_has_its_caller_s_agent_with_the_change_and_without_itself() -> None:
    @tool
    def look() -> str:
        return "seen"

    chat = chat_of(
        by_text({"go": ask("question")}),
        Extension("eyes", tools=[look]),
        subagent_tool("helper", "Helps.", agent=AgentChange(instructions="Be brief.", thinking="low")),
        subagent_tool("other", "Helps too."),
    )
    async with chat.open() as (harness, root):
        await root.configure(tools=["look", "helper", "other"], cwd="/tmp")
        await root.ask("go")
        [child] = await children(harness)
        conversation = await harness.conversation(child.id)
        assert conversation is not None
        agent = await conversation.agent()
        assert (list(agent.tools), agent.unresolved) == (["look", "other"], ())
        assert (agent.instructions, agent.thinking, agent.cwd) == ("Be brief.", "low", "/tmp")
        asked = chat.model.requests[1]
        assert [message.text for message in asked.messages if message.role == "user"] == ["question"]
        assert sorted(tool.name for tool in asked.tools) == ["look", "other"]


@bounded
async def test_an_extension_that_the_user_adds_stays() -> None:
    change = AgentChange(extensions=Edit(add=["helper"]))
    chat = chat_of(by_text({"go": ask("question")}), subagent_tool("helper", "Helps.", agent=change))
    async with chat.open() as (harness, root):
        await root.ask("go")
        conversation = await harness.conversation((await children(harness))[0].id)
        assert conversation is not None
        assert list((await conversation.agent()).tools) == ["helper"]


@bounded
async def test_calls_at_the_same_time_have_subagents_of_their_own() -> None:
    both = calls(*(call("helper", {"task": text}, f"call-{text}") for text in ("one", "two")))
    chat = chat_of(by_text({"go": both}), subagent_tool("helper", "Helps."))
    async with chat.open() as (harness, root):
        await root.ask("go")
        assert sorted(message.text for message, _ in await results(root)) == ["heard one", "heard two"]
        assert len(await children(harness)) == 2


@bounded
async def test_a_subagent_without_an_answer_is_an_error_result() -> None:
    chat = chat_of(
        by_text({"go": ask("question"), "question": Reply(error="no such thing")}), subagent_tool("helper", "")
    )
    async with chat.open() as (_, root):
        await root.ask("go")
        [(message, data)] = await results(root)
        assert "gave no answer" in message.text
        assert "no such thing" in message.text
        assert data["code"] == "tool_error"


@bounded
async def test_an_abort_flows_down() -> None:
    chat = chat_of(by_text({"go": ask("question"), "question": Hang(after="half")}), subagent_tool("helper", "Helps."))
    async with chat.open() as (harness, root):
        await root.submit("go")
        await eventually(lambda: len(chat.model.requests) == 2)
        await root.abort()
        [child] = await children(harness)
        assert await harness.snapshot(LiveState, child.id) is not None
        [submission] = await harness.submissions(conversation=child.id).list()
        assert (submission.status, submission.reason) == ("unanswered", "aborted")
        assert [task.state.status for task in await harness.tasks(conversation=child.id).list()] == ["terminal"]


@bounded
async def test_what_it_does_meanwhile_is_shown_at_the_call() -> None:
    gate = asyncio.Event()

    @tool
    async def dig(where: str) -> str:
        await gate.wait()
        return "dug"

    digging = calls(call("dig", {"where": "x" * 200}, "call-dig"))
    chat = chat_of(by_text({"go": ask("question"), "question": digging}), subagent_tool("helper", ""))
    chat.install(dig)
    async with chat.open() as (harness, root):
        submission = await root.submit("go")

        async def shown() -> bool:
            [item] = (await live(harness, root)).tools or [None]
            return item is not None and item.output.startswith('dig {"where":"xxx') and item.output.endswith("x…\n")

        await eventually(shown)
        gate.set()
        await submission.wait()
        assert [message.text for message, _ in await results(root)] == ["heard dug"]


@bounded
async def test_a_call_that_runs_again_finds_its_subagent(tmp_path: Path) -> None:
    path = tmp_path / "session.sqlite"
    steps = {"go": ask("question"), "question": Hang(after="half")}
    first = chat_of(by_text(steps), subagent_tool("helper", "Helps."), path=path)
    async with first.open() as (_, root):
        await root.submit("go", request_id="go")
        await eventually(lambda: len(first.model.requests) == 2)
    second = chat_of(by_text({"go": ask("question")}), subagent_tool("helper", "Helps."), path=path)
    async with second.open() as (harness, root):
        await (await root.submit("go", request_id="go")).wait()
        assert [message.text for message, _ in await results(root)] == ["heard question"]
        [child] = await children(harness)
        assert len(await harness.submissions(conversation=child.id).list()) == 1


# -- a person who is asked -------------------------------------------------------------------------------------------


@tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


def paying(steps: dict[str, Any], *extensions: Extension, path: Path | None = None) -> Chat:
    """Subagents whose tool asks a person; on any result they say what they heard."""
    wanted = calls(call("pay", {"amount": 5}, "call-pay"))
    return chat_of(by_text(steps | {"question": wanted}), Extension("bank", tools=[pay]), *extensions, path=path)


async def asked(conversation: Any) -> list[tuple[str, int | None]]:
    return [(item.call, item.conversation) for item in (await conversation.view()).live.approvals]


@bounded
async def test_a_call_of_a_subagent_is_asked_about_where_its_caller_waits() -> None:
    inner = calls(call("inner", {"task": "question"}, "call-inner"))
    chat = paying({"go": ask("middle"), "middle": inner}, subagent_tool("helper", ""), subagent_tool("inner", ""))
    async with chat.open() as (harness, root):
        submission = await root.submit("go")
        await eventually(lambda: asked(root))
        middle, deep = [await harness.conversation(record.id) for record in await children(harness)]
        assert middle is not None
        assert deep is not None
        assert await asked(deep) == [("call-pay", None)]
        assert await asked(middle) == await asked(root) == [("call-pay", deep.id)]
        await root.decide("call-pay", approve=True, arguments={"amount": 3})
        settled = await submission.wait()
        assert settled.status == "done"
        assert [message.text for message, _ in await results(deep)] == ["paid 3"]
        assert [await asked(conversation) for conversation in (root, middle, deep)] == [[], [], []]


@bounded
async def test_a_stop_takes_the_question_back_everywhere() -> None:
    chat = paying({"go": ask("question")}, subagent_tool("helper", ""))
    async with chat.open() as (harness, root):
        await root.submit("go")
        await eventually(lambda: asked(root))
        child = await harness.conversation((await children(harness))[0].id)
        await root.abort()
        assert await asked(root) == await asked(child) == []


@bounded
async def test_the_question_is_there_in_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "session.sqlite"
    chat = paying({"go": ask("question")}, subagent_tool("helper", ""), path=path)
    async with chat.open() as (_, root):
        await root.submit("go", request_id="go")
        await eventually(lambda: asked(root))
    async with chat.open() as (harness, root):
        [child] = await children(harness)
        assert await asked(root) == [("call-pay", child.id)]
        await root.decide("call-pay", approve=False, note="too much")
        await (await root.submit("go", request_id="go")).wait()
        assert "too much" in (await results(root))[0][0].text


@bounded
async def test_a_background_subagent_asks_without_holding_its_caller_up() -> None:
    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return f"so: {last.text}" if last.role == "tool_result" else by_text(steps)(request)

    steps = {"go": act("start", "ann", "question"), "all": act("list"), "Report": "noted"}
    steps |= {"question": calls(call("pay", {"amount": 5}, "call-pay"))}
    chat = chat_of(answer, helper(), Extension("bank", tools=[pay]))
    async with chat.open() as (harness, root):
        await root.ask("go")
        child = await harness.conversation((await children(harness))[0].id)
        await eventually(lambda: asked(child))
        assert await asked(root) == []
        assert (await root.ask("all")).text.startswith("so: ann: waits for a person to allow pay")
        await root.decide("call-pay", approve=True)
        await eventually(lambda: _said(root, REPORT + "so: paid 5"))
        await root.wait_for_idle()


@bounded
async def test_only_calls_below_a_conversation_are_decided_in_it() -> None:
    chat = paying({"go": ask("question")}, subagent_tool("helper", ""))
    async with chat.open() as (harness, root):
        await root.submit("go")
        await eventually(lambda: asked(root))
        other = await harness.create_conversation()
        with pytest.raises(DurableError, match="no call 'call-pay' waits"):
            await other.decide("call-pay", approve=True)
        await root.abort()


# -- in the background -----------------------------------------------------------------------------------------------


def helper() -> Extension:
    return subagent_tool("helper", "Helps.", background=True)


REPORT = "Report of the subagent 'ann':\n\n"


@bounded
async def test_a_report_comes_back_as_a_follow_up() -> None:
    chat = chat_of(by_text({"go": act("start", "ann", "question"), "started": "It is under way."}), helper())
    async with chat.open() as (harness, root):
        assert (await root.ask("go")).text == "It is under way."
        await harness.wait_for_idle()
        await eventually(lambda: _said(root, f"heard {REPORT}heard question"))
        [report] = [entry async for entry in root.entries() if entry.kind == "subagent.report"]
        [child] = await children(harness)
        assert report.data == {"agent": "ann", "conversation": child.id}
        assert isinstance(report.messages[0], UserMessage)


async def _said(conversation: Any, text: str) -> bool:
    return any(text in said for said in await texts(conversation))


@bounded
async def test_it_works_on_while_its_caller_stops_and_runs_no_code_to_wait() -> None:
    gate = asyncio.Event()

    async def slowly(request: Any) -> Any:
        await gate.wait()
        return "found it"

    chat = chat_of(by_text({"go": act("start", "ann", "question"), "question": slowly, "started": Hang()}), helper())
    async with chat.open() as (harness, root):
        await root.submit("go")
        await eventually(lambda: len(chat.model.requests) == 3)
        await root.abort()

        async def waiting() -> bool:
            tasks = await harness.tasks(conversation=root.id, status="waiting").list()
            return [task.kind for task in tasks] == ["helper.subagent", "helper.message"]

        await eventually(waiting)
        assert (await root.view()).live.run is None, "it keeps its caller busy"
        gate.set()
        await eventually(lambda: _said(root, REPORT + "found it"))
        await root.wait_for_idle()


@bounded
async def test_it_is_messaged_again_in_the_same_conversation() -> None:
    chat = chat_of(
        by_text({"go": act("start", "ann", "one"), "more": act("message", "ann", "two"), "Report": "noted"}), helper()
    )
    async with chat.open() as (harness, root):
        await root.ask("go")
        await eventually(lambda: _said(root, REPORT + "heard one"))
        await root.ask("more")
        await eventually(lambda: _said(root, REPORT + "heard two"))
        [child] = await children(harness)
        conversation = await harness.conversation(child.id)
        assert [text for text in await texts(conversation) if "user" in text] == ["pi.user: one", "pi.user: two"]
        await root.wait_for_idle()


@bounded
async def test_a_steer_joins_its_run_and_one_answer_is_reported_once() -> None:
    gate = asyncio.Event()

    @tool(replay="safe")
    async def dig() -> str:
        await gate.wait()
        return "dug"

    def told(request: Any) -> Any:
        said = [message.text for message in request.messages if message.role == "user"]
        return "did " + " and ".join(said)

    answers = {
        "go": act("start", "ann", "question"),
        "turn": act("steer", "ann", "left"),
        "question": calls("dig"),
        "left": told,
        "Report": "noted",
    }

    def answer(request: Any) -> Any:
        return "under way" if "told" in request.messages[-1].text else by_text(answers)(request)

    chat = chat_of(answer, helper(), Extension("tools", tools=[dig]))
    async with chat.open() as (harness, root):
        await root.ask("go")
        [child] = await children(harness)

        async def digging() -> bool:
            live = await harness.snapshot(LiveState, child.id)
            return live is not None and any(item.status == "running" for item in live.tools)

        await eventually(digging)
        await root.ask("turn")

        async def steered() -> bool:
            conversation = await harness.conversation(child.id)
            assert conversation is not None
            return [item.mode for item in (await conversation.view()).inbox.items] == ["steer"]

        await eventually(steered)
        gate.set()
        await eventually(lambda: _said(root, REPORT + "did question and left"))

        async def all_reported() -> bool:
            return not await harness.tasks(kind="helper.message", status=["pending", "running", "waiting"]).list()

        await eventually(all_reported)
        assert [entry.kind async for entry in root.entries()].count("subagent.report") == 1
        await root.wait_for_idle()


@bounded
async def test_stop_ends_it_for_good_and_its_name_is_free() -> None:
    answers = {
        "go": act("start", "ann", "question"),
        "halt": act("stop", "ann"),
        "talk": act("message", "ann", "hello"),
        "all": act("list"),
        "again": act("start", "ann", "easy"),
        "question": Hang(),
        "easy": "was easy",
    }

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return f"so: {last.text}" if last.role == "tool_result" else by_text(answers)(request)

    chat = chat_of(answer, helper())
    async with chat.open() as (harness, root):
        await root.ask("go")
        await eventually(lambda: any("question" in r.messages[-1].text for r in chat.model.requests))
        assert (await root.ask("all")).text == "so: ann: working, turn 1; last answer: nothing yet"
        assert (await root.ask("go")).text.startswith("so: ValueError: there is a subagent 'ann' already")
        assert (await root.ask("halt")).text == "so: stopped 'ann'"
        [child] = await children(harness)
        conversation = await harness.conversation(child.id)
        assert conversation is not None
        await conversation.wait_for_idle()
        [submission] = await harness.submissions(conversation=child.id).list()
        assert (submission.status, submission.reason) == ("unanswered", "aborted")
        assert (await root.ask("talk")).text == "so: ValueError: the subagent 'ann' was stopped: start another"
        assert (await root.ask("all")).text == "so: ann: stopped; last answer: nothing yet"
        assert (await root.ask("again")).text.startswith("so: started 'ann'")
        await eventually(lambda: _said(root, REPORT + "was easy"))
        await root.wait_for_idle()
        assert (await root.ask("all")).text == "so: ann: idle; last answer: was easy"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (act("start", "ann"), "this action needs a text"),
        (act("message", "bob", "hi"), "there is no subagent 'bob'; there are none"),
        (act("stop"), "stop needs the name"),
        (act("list"), "no subagents"),
    ],
)
@bounded
async def test_what_does_not_fit_is_said(given: Reply, said: str) -> None:
    chat = chat_of(by_text({"go": given}), helper())
    async with chat.open() as (harness, root):
        assert said in (await root.ask("go")).text
        assert await children(harness) == []


@bounded
async def test_stopping_everything_reaches_it() -> None:
    chat = chat_of(by_text({"go": act("start", "ann", "question"), "question": Hang()}), helper())
    async with chat.open() as (harness, root):
        await root.ask("go")
        await eventually(lambda: any("question" in r.messages[-1].text for r in chat.model.requests))
        await root.abort(background=True)
        assert await harness.tasks(status=["pending", "running", "waiting", "completing"]).list() == []


@bounded
async def test_a_failure_is_reported_too() -> None:
    answers = {"go": act("start", "ann", "question"), "question": Reply(error="no such thing"), "Report": "noted"}

    def answer(request: Any) -> Any:
        return "under way" if "started" in request.messages[-1].text else by_text(answers)(request)

    chat = chat_of(answer, helper())
    async with chat.open() as (_, root):
        await root.ask("go")
        await eventually(lambda: _said(root, "The subagent gave no answer"))
        await root.wait_for_idle()


@bounded
async def test_the_next_life_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "session.sqlite"
    answers: dict[str, Any] = {"go": act("start", "ann", "question"), "Report": "noted"}

    def model(found: Any) -> Model:
        def answer(request: Any) -> Any:
            return (
                "under way"
                if "started" in request.messages[-1].text
                else by_text(answers | {"question": found})(request)
            )

        return answer

    first = chat_of(model(Hang(after="half")), helper(), path=path)
    async with first.open() as (_, root):
        await root.ask("go")
        await eventually(lambda: any("question" in r.messages[-1].text for r in first.model.requests))
    second = chat_of(model("found it"), helper(), path=path)
    async with second.open() as (harness, root):
        harness.resume()
        await eventually(lambda: _said(root, REPORT + "found it"))
        await root.wait_for_idle()
        [child] = await children(harness)
        assert len(await harness.submissions(conversation=child.id).list()) == 1


@bounded
async def test_two_kinds_of_subagents_do_not_mix() -> None:
    other = subagent_tool("other", "Others.", background=True)
    start_other = calls(call("other", {"action": "start", "agent": "ann", "text": "two"}, "other-1"))
    chat = chat_of(
        by_text({"go": act("start", "ann", "one"), "too": start_other, "Report": "noted", "started": "ok"}),
        helper(),
        other,
    )
    async with chat.open() as (harness, root):
        await root.ask("go")
        await root.ask("too")
        await eventually(lambda: _said(root, REPORT + "heard two"))
        await eventually(lambda: _said(root, REPORT + "heard one"))
        assert len(await children(harness)) == 2
        await root.wait_for_idle()
