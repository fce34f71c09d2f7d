"""The tool handoff: the run ends, and what comes starts from the note (engine.md, section 12)."""

from __future__ import annotations

from pidurable_nb.tools import handoff

from .support import Chat, bounded, call, calls


def read_by(chat: Chat) -> list[str]:
    return [text for text in chat.asked() if not text.startswith("system")]


@bounded
async def test_a_handoff_ends_the_run_and_leaves_its_note() -> None:
    chat = Chat(calls(call("handoff", {"note": "Two of three are done."})), "third done")
    chat.install(handoff())
    async with chat.open() as (_, root):
        settled = await (await root.submit("Do all three.")).wait()
        assert settled.status == "done"
        assert len(chat.model.requests) == 1
        assert (await root.entries().list())[0].kind == "pi.reset"
        await root.ask("Go on.")
        assert read_by(chat) == ["user: Two of three are done.", "user: Go on."]
        assert [tool.name for tool in chat.model.requests[-1].tools] == ["handoff"], "the new context offers it again"


@bounded
async def test_what_waits_starts_from_the_note() -> None:
    chat = Chat(calls(call("handoff", {"note": "note"})), "went on")
    chat.install(handoff())
    async with chat.open() as (harness, root):
        first = await root.submit("first")
        second = await root.submit("second")
        assert [(await submission.wait()).status for submission in (first, second)] == ["done", "done"]
        assert read_by(chat) == ["user: note", "user: second"]
        await harness.wait_for_idle()
