"""Scenarios of the toolbox for the crash sweep: each may be begun again where it was cut."""

from __future__ import annotations

from typing import Any

from testing.scenarios import ANSWER, FAST, ask

from pidurable_nb import AgentChange, Conversation, Extension, Harness, Registry, tool
from pidurable_nb.errors import DurableError
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, ModelRequest, Reply, ScriptedModel
from pidurable_nb.testing import Stage, eventually
from pidurable_nb.tools import LocalEnvironment, bash, edit, handoff, subagent_tool, write


def registry_of(*extensions: Extension) -> Registry:
    registry = Registry()
    for extension in extensions:
        registry.install(extension)
    return registry


def act(action: str, text: str | None = None) -> Reply:
    arguments = {"action": action, "agent": "ann"} | ({} if text is None else {"text": text})
    return Reply(tool_calls=[ToolCall(id=f"call-{action}", name="helper", arguments=arguments)])


# -- subagents -------------------------------------------------------------------------------------------------------


async def foreground(stage: Stage) -> Any:
    """Two calls at once, each with a subagent of its own."""
    both = [ToolCall(id=f"call-{n}", name="helper", arguments={"task": f"question {n}"}) for n in (1, 2)]

    def answer(request: ModelRequest) -> Any:
        stage.note("request")
        last = request.messages[-1]
        if last.role == "tool_result":
            return ANSWER
        return f"answer to {last.text}" if last.text.startswith("question") else Reply(tool_calls=both)

    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel(answer, record=False),
        registry=registry_of(subagent_tool("helper", "Helps.", agent=AgentChange(instructions="Be brief."))),
        settings=FAST,
    )
    return await ask(stage, harness, "Find out.")


async def asked_below(stage: Stage) -> Any:
    """A subagent whose call waits for a person, who decides where its caller waits."""

    @tool(approval=True)
    async def pay(amount: int) -> str:
        stage.note(f"paid {amount}")
        return f"paid {amount}"

    def answer(request: ModelRequest) -> Any:
        stage.note("request")
        last = request.messages[-1]
        if last.role == "tool_result":
            return "done"
        name, given = ("pay", {"amount": 5}) if last.text == "Pay." else ("helper", {"task": "Pay."})
        return Reply(tool_calls=[ToolCall(id=f"call-{name}", name=name, arguments=given)])

    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel(answer, record=False),
        registry=registry_of(Extension("bank", tools=[pay]), subagent_tool("helper", "Helps.")),
        settings=FAST,
    )
    async with harness:
        root = await harness.root()
        submission = await root.submit("Have it paid.", request_id="go")

        async def settled_or_asked() -> bool:
            return (await submission.status()).settled or bool((await root.view()).live.approvals)

        await eventually(settled_or_asked, timeout=20)
        for asked in (await root.view()).live.approvals:
            try:
                await root.decide(asked.call, approve=True)
            except DurableError:  # it was decided before the crash, and is shown until the call goes on
                stage.note("decided before")
        settled = await submission.wait()
        await root.wait_for_idle()
        views = [await Conversation(harness, record.id).view() for record in await harness.conversations().list()]
        return [settled.status, [len(view.live.approvals) for view in views]]


async def background(stage: Stage) -> Any:
    """A subagent that is started, told more, and stopped; its two reports come as follow-ups."""
    answers = {
        "Begin": act("start", "one"),
        "More": act("message", "two"),
        "End": act("stop"),
        "one": "found one",
        "two": "found two",
        "Report": "noted",
    }

    def answer(request: ModelRequest) -> Any:
        stage.note("request")
        last = request.messages[-1]
        return "done" if last.role == "tool_result" else answers[last.text.split()[0]]

    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel(answer, record=False),
        registry=registry_of(subagent_tool("helper", "Helps.", background=True)),
        settings=FAST,
    )
    async with harness:
        root = await harness.root()
        settled = []
        for text, reported in (("Begin", "one"), ("More", "two"), ("End", None)):
            submission = await root.submit(text, request_id=text)
            settled.append((await submission.wait()).status)
            if reported is not None:
                await eventually(lambda: _reports(root, reported), timeout=20)  # noqa: B023  (awaited here)
            await harness.wait_for_idle()
        await eventually(lambda: _ended(harness), timeout=20)
        reports = [entry.text async for entry in root.entries(order="ascending") if entry.kind == "subagent.report"]
        return [settled, reports]


async def _reports(root: Conversation, word: str) -> bool:
    return any([entry.kind == "subagent.report" and word in entry.text async for entry in root.entries()])


async def _ended(harness: Harness) -> bool:
    return not (await harness.inspect()).tasks


# -- commands --------------------------------------------------------------------------------------------------------


async def aborted_command(stage: Stage) -> Any:
    """A command that would run for long, aborted once it has begun, in whichever process."""
    command = ToolCall(id="call", name="bash", arguments={"command": "echo $$ >> begun; echo begun; sleep 600"})
    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel([Reply(tool_calls=[command]), Hang()], by="transcript", record=False),
        registry=registry_of(Extension("tools", tools=[bash()])),
        settings=FAST,
        env=LocalEnvironment(stage.directory),
    )
    begun = stage.directory / "begun"
    async with harness:
        root = await harness.root()
        submission = await root.submit("Run it.", request_id="run")

        async def begun_or_interrupted() -> bool:
            began = begun.exists() and begun.read_text().endswith("\n")
            return began or any([entry.kind == "pi.tool-result" async for entry in root.entries()])

        await eventually(begun_or_interrupted, timeout=20)
        await root.abort()
        settled = await submission.wait()
        return [settled.status, settled.reason]


# -- handoff ---------------------------------------------------------------------------------------------------------


async def handed_off(stage: Stage) -> Any:
    """A run that ends with a handoff, and an input that starts from its note."""

    def answer(request: ModelRequest) -> Any:
        stage.note("request")
        spoken = [message.text for message in request.messages if message.role == "user"]
        if spoken == ["Do all three."]:
            return Reply(tool_calls=[ToolCall(id="call", name="handoff", arguments={"note": "Two are done."})])
        return f"read: {' / '.join(spoken)}"

    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel(answer, record=False),
        registry=registry_of(Extension("tools", tools=[handoff()])),
        settings=FAST,
    )
    return await ask(stage, harness, "Do all three.", "Go on.")


# -- files -----------------------------------------------------------------------------------------------------------


async def written_and_edited(stage: Stage) -> Any:
    """A file that is written, then edited twice in one round."""
    steps = [
        [("write", {"path": "a.txt", "content": "one two three\n"})],
        [("edit", {"path": "a.txt", "old": old, "new": old.upper()}) for old in ("one", "three")],
    ]
    calls = [
        Reply(
            tool_calls=[
                ToolCall(id=f"call-{n}-{m}", name=name, arguments=given) for m, (name, given) in enumerate(step)
            ]
        )
        for n, step in enumerate(steps)
    ]
    harness = await Harness.open(
        stage.storage,
        models=ScriptedModel([*calls, ANSWER], by="transcript", record=False),
        registry=registry_of(Extension("tools", tools=[write(), edit()])),
        settings=FAST,
        env=LocalEnvironment(stage.directory),
    )
    ended = await ask(stage, harness, "Write it.")
    return [*ended, (stage.directory / "a.txt").read_text()]
