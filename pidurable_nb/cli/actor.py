"""The process that the demo kills: ``python -m pidurable_nb.cli.actor PATH SCENE MODEL [--hold]``.

It opens the session, asks, prints every commit it sees as one line of JSON, and ends when its input is settled. It
knows nothing of crashes: the second process runs the same lines as the first, and the request id finds the same input.

With ``--hold`` it stands still at the scene's cut point, right after the commit that reached it, until it is killed, so
that the cut falls at the same place on every machine. It ends when its parent does.

A *scene* is ``answer``: one question to a model; or ``tools``: one question that a script answers with two tool calls,
of which ``read_pages`` may be repeated and ``charge_card`` may not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import AgentChange, Extension, Harness, Registry, RequestOptions, Settings, Submission, ToolContext, tool
from ..agent.conversation import ConversationView
from ..messages import ToolCall, ToolResultMessage
from ..models import Model, ModelRequest, Reply, ScriptedModel, default_models, on_progress
from ..records import Entry
from ..session import Watch

QUESTIONS = {
    "answer": "Why do ships keep a logbook? Answer in three sentences.",
    "tools": "Read the report, and charge the card for it.",
}

SCRIPT = "scripted:logbook"
TOOLS_MODEL = "scripted:tools"

ANSWER_CUT = 100
"""Characters of the answer that are committed when the first process is killed."""

PAGES = 8
PAGES_CUT = 3

_ANSWER = (
    "A ship that is lost in the night leaves two things behind: its wreck and its log. Sailors write the log "
    "every day, and before the watch changes, because whoever takes the wheel next was asleep until then. They "
    "need to know where the ship was, what had been done, and what was only begun. A line that stands in the log "
    "is never torn out; when it was wrong, another line says so. And what was begun but has no line that says it "
    "was done is looked at twice before anyone does it again."
)


@tool(replay="safe")
async def read_pages(ctx: ToolContext) -> str:
    """Read the report, page by page."""
    for page in range(1, PAGES + 1):
        await asyncio.sleep(0.1)
        await ctx.output(f"page {page} ")
    return f"The report has {PAGES} pages and asks for 30 euros."


@tool
async def charge_card(ctx: ToolContext) -> str:
    """Charge the card 30 euros."""
    with open(os.environ["PIDURABLE_DEMO_LEDGER"], "a", encoding="utf-8") as ledger:  # noqa: ASYNC230 - one line
        ledger.write("charged 30 euros\n")
    await ctx.output("sent to the bank, waiting for its receipt")
    await asyncio.sleep(60)  # the bank is slow, and the process is killed meanwhile
    return "The receipt came."


def call_tools(request: ModelRequest) -> Reply:
    """Two calls, then an answer that says what came of them."""
    results = [message for message in request.messages if isinstance(message, ToolResultMessage)]
    if not results:
        return Reply(
            "I read the report and charge the card.",
            tool_calls=[
                ToolCall(id="call-1", name="read_pages", arguments={}),
                ToolCall(id="call-2", name="charge_card", arguments={}),
            ],
        )
    failed = [message.tool_name for message in results if message.is_error]
    said = next(message.text for message in results if not message.is_error) if len(failed) < len(results) else ""
    doubt = f" I cannot tell whether {failed[0]} took effect, so I did not repeat it: please look." if failed else ""
    return Reply(said + doubt)


def find_model(name: str) -> Model | None:
    """The demo's own scripts, and every model that has a name."""
    if name == SCRIPT:
        return ScriptedModel(lambda _: Reply(_ANSWER, tokens_per_second=60), name=SCRIPT, record=False)
    if name == TOOLS_MODEL:
        return ScriptedModel(call_tools, name=TOOLS_MODEL, record=False)
    return default_models.get(name)


class _Models:
    def get(self, id: str) -> Model | None:
        return find_model(id)


def say(event: str, **values: Any) -> None:
    """One line of JSON to the parent."""
    print(json.dumps({"event": event, **values}), flush=True)


async def act(path: str, scene: str, model: str, *, hold: bool) -> int:
    """Open, ask, tell what is committed, and return the exit code when the input has settled."""
    registry = Registry()
    registry.install(Extension("demo", tools=[read_pages, charge_card]))
    settings = Settings(request=RequestOptions(max_tokens=120))
    async with Harness.open(path, models=_Models(), registry=registry, settings=settings) as harness:
        await _tell_found(harness)
        root = await harness.root(agent=AgentChange(model=model, tools=[]))
        if scene == "tools":
            await root.configure(model=TOOLS_MODEL, tools=["read_pages", "charge_card"])
        async with root.watch() as watch:  # attached before anything runs, so that no commit is missed
            submission = await root.submit(QUESTIONS[scene], request_id=f"demo-{scene}")
            say("asked", submission=submission.id)
            await _follow(watch, submission, _at_cut(scene) if hold else None)
        settled = await submission
        answer = None if settled.answer is None else await root.entry(settled.answer)
        say("settled", status=settled.status, reason=settled.reason, detail=settled.detail, answer=answer and answer.id)
        return 0 if settled.status == "done" else 1


async def _tell_found(harness: Harness) -> None:
    """What the file held before anything ran: how the last life ended, and what was under way."""
    lives = await harness.storage.lives()
    found = await harness.inspect()
    cut_off = [attempt for attempt in await harness.storage.attempts() if attempt.end == "cut_off"]
    newest = [attempt for attempt in cut_off if len(lives) > 1 and attempt.life == lives[-2].id]
    root = await harness.conversation(1)
    partial, tools = "", []
    if root is not None:
        view = await root.view()
        partial = _partial(view)
        tools = [
            {"name": item.name, "replay": item.replay, "output": item.output}
            for item in view.live.tools
            if item.status == "running"
        ]
    say(
        "opened",
        pid=os.getpid(),
        life=lives[-1].id,
        before=None if len(lives) < 2 else {"pid": lives[-2].pid, "ended": lives[-2].ended},
        cut_off=[{"phase": attempt.phase, "task": attempt.task} for attempt in newest],
        submissions=[record.id for record in found.submissions],
        partial=partial,
        tools=tools,
    )


def _at_cut(scene: str) -> Callable[[ConversationView], bool]:
    def answer(view: ConversationView) -> bool:
        return len(_partial(view)) >= ANSWER_CUT

    def tools(view: ConversationView) -> bool:
        output = {item.name: item.output for item in view.live.tools}
        return bool(output.get("charge_card")) and f"page {PAGES_CUT}" in output.get("read_pages", "")

    return answer if scene == "answer" else tools


async def _follow(
    watch: Watch[ConversationView], submission: Submission, cut: Callable[[ConversationView], bool] | None
) -> None:
    """Tell every commit until the input has settled."""
    known = {entry.id for entry in watch.value.entries}
    told = len(_partial(watch.value))  # `opened` told what was found
    told_output = {item.task: len(item.output) for item in watch.value.live.tools}
    if (await submission.status()).settled:
        return
    async for change in watch:
        view = change.value
        for entry in view.entries:
            if entry.id not in known:
                known.add(entry.id)
                _tell_entry(entry)
        text = _partial(view)
        told = min(told, len(text))  # a new request starts from nothing
        if len(text) > told:
            say("text", text=text[told:])
            told = len(text)
        for item in view.live.tools:
            before = min(told_output.get(item.task, 0), len(item.output))
            if len(item.output) > before:
                say("output", tool=item.name, text=item.output[before:])
            told_output[item.task] = len(item.output)
        if cut is not None and cut(view):
            say("cut")
            sys.stdin.read()  # stands still until it is killed, or its parent has gone
            os._exit(1)
        run = view.live.run
        if (run is None or submission.id not in run.inputs) and (await submission.status()).settled:
            return


def _partial(view: ConversationView) -> str:
    generation = view.live.generation
    return "" if generation is None or generation.message is None else generation.message.text


def _tell_entry(entry: Entry) -> None:
    for message in entry.messages:
        if message.role == "assistant":
            say("answer", entry=entry.id, stop_reason=message.stop_reason, text=message.text, error=message.error)
        elif message.role == "tool_result":
            say("result", entry=entry.id, tool=message.tool_name, error=message.is_error, text=message.text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pidurable_nb.cli.actor")
    parser.add_argument("path")
    parser.add_argument("scene", choices=sorted(QUESTIONS))
    parser.add_argument("model")
    parser.add_argument("--hold", action="store_true")
    options = parser.parse_args()
    on_progress(lambda fraction, text: say("loading", fraction=fraction, text=text))
    return asyncio.run(act(options.path, options.scene, options.model, hold=options.hold))


if __name__ == "__main__":
    sys.exit(main())
