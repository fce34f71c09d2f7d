"""Values that are huge, broken or deep, through commits of a session, on every backend (engine.md, section 4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Document, Session
from pidurable_nb.errors import InvalidDocument, InvalidValue
from pidurable_nb.messages import TextBlock, UserMessage
from pidurable_nb.records import ConversationId

KINDS = ["sqlite", "jsonl", "memory"]


class Box(Document, kind="app.box", scope="session"):
    content: Any = None


def where(folder: Path, kind: str) -> str:
    return {"sqlite": str(folder / "s.sqlite"), "jsonl": f"jsonl:{folder / 'j'}", "memory": ":memory:"}[kind]


def deep(levels: int, leaf: Any = None) -> Any:
    for level in range(levels):
        leaf = {"in": leaf} if level % 2 else [leaf]
    return leaf


async def conversation(session: Session) -> ConversationId:
    async with session.commit() as tx:
        return (await tx.create_conversation()).id


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_megabytes_and_any_character_are_kept(tmp_path: Path, kind: str) -> None:
    values: dict[str, Any] = {
        "long": "ä€😀x" * 500_000,
        "controls": "".join(map(chr, range(0x20))) + "\x7f\u2028\u2029\ufeff\ufffe\U0010ffff",
        "wide": {f"key {number} \u0000": number for number in range(20_000)},
        "many": list(range(200_000)),
        "numbers": [10**30, -(10**18), 1e308, 5e-324, -0.0, 0.1 + 0.2],
        "deep": deep(100),
        "": {"": [""]},
    }

    async def main() -> None:
        async with Session.open(where(tmp_path, kind)) as session:
            home = await conversation(session)
            async with session.commit() as tx:
                entry = await tx.append_entry(
                    "app.value", conversation=home, data=values, messages=[UserMessage([TextBlock(values["long"])])]
                )
                (await tx.doc(Box)).content = values
            async with session.commit() as tx:  # a delta on it
                (await tx.doc(Box)).content["long"] += "end"
            if kind == "memory":
                await check(session, entry.id)
        if kind != "memory":
            async with Session.open(where(tmp_path, kind)) as session:
                await check(session, entry.id)

    async def check(session: Session, id: int) -> None:
        found = await session.storage.entry(id)
        assert found is not None
        assert found.data == values
        assert found.text == values["long"]
        assert [str(number) for number in found.data["numbers"]] == [str(number) for number in values["numbers"]]
        box = await session.snapshot(Box)
        assert box is not None
        assert box.content == {**values, "long": values["long"] + "end"}

    asyncio.run(main())


BROKEN: dict[str, tuple[Any, str]] = {
    "a lone surrogate": ({"a": ["fine", "bad \ud800"]}, r"a.*lone surrogate"),
    "a lone surrogate as a key": ({"\udfff": 1}, "lone surrogate"),
    "nesting of a thousand": (deep(1000), "nested deeper"),
    "nesting of a hundred thousand": (deep(100_000), "nested deeper"),
    "not a number": ([1.0, float("nan")], "nan is not a JSON number"),
    "infinity": ({"x": float("-inf")}, "-inf is not a JSON number"),
    "a key that is a number": ({1: 2}, "not a string"),
    "bytes": ({"b": b"bytes"}, "bytes"),
    "an object": ([object()], "object"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BROKEN)
def test_what_json_cannot_hold_fails_its_commit_alone_and_names_the_place(tmp_path: Path, kind: str, name: str) -> None:
    value, match = BROKEN[name]

    async def main() -> None:
        async with Session.open(where(tmp_path, kind)) as session:
            home = await conversation(session)
            before = session.storage.last_seq
            with pytest.raises(InvalidValue, match=match) as caught:
                async with session.commit() as tx:
                    await tx.append_entry("app.value", conversation=home, data=value)
            assert "app.value" in str(caught.value)
            with pytest.raises(InvalidDocument, match=r"app\.box"):
                async with session.commit() as tx:
                    (await tx.doc(Box)).content = value
            assert session.storage.last_seq == before
            assert await session.snapshot(Box) is None
            async with session.commit() as tx:
                (await tx.doc(Box)).content = "on"
                await tx.append_entry("app.value", conversation=home, data="on")
            assert len((await session.storage.scan_entries()).items) == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_with_a_lone_surrogate_fails_its_commit_alone(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with Session.open(where(tmp_path, kind)) as session:
            home = await conversation(session)
            message = UserMessage([TextBlock("half a character: \ud83d")])
            with pytest.raises(InvalidValue, match=r"app\.value.*messages\[0\]\.content\[0\]\.text.*surrogate"):
                async with session.commit() as tx:
                    await tx.append_entry("app.value", conversation=home, messages=[message])
            async with session.commit() as tx:
                await tx.append_entry("app.value", conversation=home)
            assert session.storage.last_seq == 2

    asyncio.run(main())
