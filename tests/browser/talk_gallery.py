"""Sample conversations for the browser tests and for people; ``widget_gallery`` shows them."""

from __future__ import annotations

from pidurable_nb.notebook.talkview import Block, Chip, TalkView
from pidurable_nb.notebook.view import AnswerView, TextItem, ThinkingItem, ToolItem, TranscriptEntry

START = 1_900_000_000.0


def asked(id: int, text: str) -> Block:
    """Something that a person said."""
    return Block(key=str(id), said=TranscriptEntry(id=id, role="user", text=text, at=START + id))


def said(id: int, key: str, *items: TextItem | ThinkingItem | ToolItem, **answer: object) -> Block:
    """A stored response."""
    entry = TranscriptEntry(id=id, role="assistant", text="", at=START + id, model="openai:gpt-4.1")
    view = AnswerView.model_validate({"submission": id, "status": "done", "items": items, **answer})
    return Block(key=key, said=entry, answer=view, task=id + 100)


WEATHER = ToolItem(
    key="a0.1",
    name="weather",
    call="c1",
    arguments={"city": "Paris", "days": 3},
    status="done",
    replay="safe",
    duration=1.23,
    result="Mon 14°C, light rain\nTue 17°C, clear",
)
PAY = ToolItem(
    key="a0.0",
    name="transfer",
    call="c9",
    arguments={"amount": 120.5, "to": "DE12"},
    status="approval",
    replay="unsafe",
)

PAST = (
    asked(31, "What will the *weather* be in Paris?"),
    Block(key="32", said=TranscriptEntry(id=32, role="system", text="sets instructions, offers weather", at=START)),
    said(33, "31.0", TextItem(key="a0.0", text="Let me look."), WEATHER),
    said(35, "31.1", TextItem(key="a0.0", text="Rain on Monday, then **clear**:\n\n1. Monday 14 °C\n2. Tuesday 17 °C")),
    Block(key="36", said=TranscriptEntry(id=36, role="note", text="We travel by train.", title="note", at=START)),
    asked(37, "Then book something for Tuesday, with a view of the river, not too far from the station."),
    Block(
        key="37.0",
        said=TranscriptEntry(
            id=38, role="assistant", text="", at=START, model="openai:gpt-4.1", markers=("cut off, kept",), struck=True
        ),
        answer=AnswerView(
            status="running", items=(TextItem(key="a0.0", text="I will look for hotels that are", state="aborted"),)
        ),
        task=138,
    ),
)

STREAMING = Block(
    key="37.1",
    answer=AnswerView(
        status="running",
        model="openai:gpt-4.1",
        items=(
            ThinkingItem(key="a0.0", text="They want a view. " * 9),
            TextItem(key="a0.1", text="There are **three** hotels at the river. The", state="streaming"),
        ),
    ),
    task=140,
)

USAGE = {"requests": 12, "tokens": 48_120, "cost": 0.1874, "model": "openai:gpt-4.1"}

TALKS: dict[str, TalkView] = {
    "new": TalkView(conversation=1, model="local:smollm2"),
    "idle": TalkView.model_validate(
        {"conversation": 1, "blocks": PAST[:4], "earlier": True, **USAGE},
    ),
    "streaming": TalkView.model_validate(
        {
            "conversation": 4,
            "state": "running",
            "blocks": (*PAST, STREAMING),
            "earlier": True,
            "origin": (1, 30),
            "started_at": START,
            "waiting": (
                Chip(submission=51, mode="steers", text="Use metric units"),
                Chip(submission=52, mode="follows", text="And what is a good restaurant near there, open late?"),
            ),
            **USAGE,
        }
    ),
    "approval": TalkView.model_validate(
        {
            "conversation": 1,
            "state": "waiting",
            "problem": "for you, to allow `transfer(amount=120.5)`: `%durable approve c9` or `%durable deny c9`",
            "blocks": (asked(41, "Pay the invoice."), said(42, "41.0", PAY)),
            **USAGE,
        }
    ),
    "failed": TalkView.model_validate(
        {
            "conversation": 1,
            "state": "failed",
            "problem": "the model failed: 401 Unauthorized: set OPENAI_API_KEY, then `%durable retry`",
            "blocks": PAST[:1],
            **USAGE,
        }
    ),
    "over": TalkView.model_validate(
        {
            "conversation": 1,
            "state": "over",
            "problem": "the session was closed here; open it again to go on",
            "blocks": PAST[:4],
            **USAGE,
        }
    ),
}
