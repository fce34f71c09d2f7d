"""Calls that wait for a person, across restarts (engine.md, section 12; api.md, Approval)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Conversation, Extension, Harness, LiveState, Registry, Tool, tool
from pidurable_nb.errors import DurableError, RegistryError
from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Reply, ScriptedModel
from pidurable_nb.testing import eventually


class Bank:
    def __init__(self, approval: Any = True) -> None:
        self.paid: list[int] = []

        @tool(approval=approval)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

        self.registry = Registry()
        self.registry.install(Extension("bank", tools=[pay]))
        call = Reply(tool_calls=[ToolCall(id="call-1", name="pay", arguments={"amount": 100})])
        self.model = ScriptedModel([call, lambda request: f"result: {request.messages[-1].text}"])

    async def open(self, path: Path) -> tuple[Harness, Conversation]:
        harness = await Harness.open(path, models=self.model, registry=self.registry)
        return harness, await harness.root()


async def waiting(root: Conversation) -> Any:
    async def asked() -> Any:
        return (await root.view()).live.approvals

    return (await eventually(asked))[0]


async def result(root: Conversation) -> Any:
    return [entry async for entry in root.entries() if entry.kind == "pi.tool-result"].pop()


@pytest.mark.parametrize("restart", [False, True])
def test_an_approved_call_runs_with_the_arguments_that_were_shown(tmp_path: Path, restart: bool) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")
        asked = await waiting(root)
        assert (asked.call, asked.name, asked.arguments) == ("call-1", "pay", {"amount": 100})
        assert not harness.wake().active  # nothing runs while a person is asked
        if restart:
            await harness.close()
            harness, root = await bank.open(tmp_path / "s.sqlite")
            assert (await waiting(root)).call == "call-1"
        assert bank.paid == []
        await root.decide("call-1", approve=True)
        settled = await (await harness.submission(submission.id)).wait()
        assert settled.status == "done"
        assert bank.paid == [100]
        assert (await result(root)).text == "paid 100"
        assert (await root.view()).live == LiveState()
        await harness.close()

    asyncio.run(main())


def test_a_denied_call_is_blocked_with_the_note(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")
        await waiting(root)
        await root.decide("call-1", approve=False, note="too much")
        await submission
        entry = await result(root)
        assert entry.data["code"] == "blocked"
        assert entry.messages[0].is_error
        assert "too much" in entry.text
        assert bank.paid == []
        await harness.close()

    asyncio.run(main())


def test_a_person_may_edit_the_arguments(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")
        await waiting(root)
        with pytest.raises(ValueError, match="denial"):
            await root.decide("call-1", approve=False, arguments={"amount": 1})
        await root.decide("call-1", approve=True, arguments={"amount": 5})
        await submission
        assert bank.paid == [5]
        await harness.close()

    asyncio.run(main())


def test_edited_arguments_that_do_not_fit_run_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")
        await waiting(root)
        await root.decide("call-1", approve=True, arguments={"amount": "many"})
        await submission
        assert (await result(root)).data["code"] == "invalid_arguments"
        assert bank.paid == []
        await harness.close()

    asyncio.run(main())


def test_a_predicate_asks_only_where_it_says_so_and_asks_when_it_breaks(tmp_path: Path) -> None:
    async def main(limit: Any, asks: bool) -> None:
        bank = Bank(approval=limit)
        harness, root = await bank.open(tmp_path / f"{asks}.sqlite")
        submission = await root.submit("pay")
        if asks:
            await waiting(root)
            await root.decide("call-1", approve=True)
        assert (await submission).status == "done"
        assert bank.paid == [100]
        await harness.close()

    asyncio.run(main(lambda arguments: arguments["amount"] > 1000, False))
    asyncio.run(main(lambda arguments: arguments["missing"] > 0, True))


def test_stop_ends_a_call_that_waits_for_a_person(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")
        await waiting(root)
        await root.abort()
        assert (await submission.status()).reason == "aborted"
        assert (await result(root)).data["code"] == "aborted"
        assert bank.paid == []
        assert (await root.view()).live.approvals == ()
        await harness.close()

    asyncio.run(main())


def test_a_question_that_was_answered_is_no_longer_shown_while_the_round_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        go = asyncio.Event()

        @tool
        async def slow() -> str:
            await go.wait()
            return "slow result"

        bank.registry.install(Extension("slow", tools=[slow]))
        asked = [ToolCall(id=f"call-{n}", name="pay", arguments={"amount": n}) for n in (1, 2)]
        round = Reply(tool_calls=[*asked, ToolCall(id="call-slow", name="slow", arguments={})])
        bank.model = ScriptedModel([round, "done"])
        harness, root = await bank.open(tmp_path / "s.sqlite")
        submission = await root.submit("pay")

        async def shown(*expected: str) -> bool:
            return [question.call for question in (await root.view()).live.approvals] == list(expected)

        await eventually(lambda: shown("call-1", "call-2"))
        await root.decide("call-1", approve=False)
        await eventually(lambda: shown("call-2"))
        await root.decide("call-2", approve=True)
        await eventually(lambda: shown())
        assert not (await submission.status()).settled
        go.set()
        await submission
        assert bank.paid == [2]
        await harness.close()

    asyncio.run(main())


def test_deciding_about_nothing_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        bank = Bank()
        harness, root = await bank.open(tmp_path / "s.sqlite")
        with pytest.raises(DurableError, match="no call 'call-9'"):
            await root.decide("call-9", approve=True)
        submission = await root.submit("pay")
        await waiting(root)
        await root.decide("call-1", approve=True)
        with pytest.raises(DurableError, match="no call 'call-1'"):
            await root.decide("call-1", approve=False)
        await submission
        await harness.close()

    asyncio.run(main())


def test_approval_is_true_or_a_predicate() -> None:
    with pytest.raises(RegistryError, match="predicate"):
        Tool("x", execute=print, approval="always")  # type: ignore[arg-type]
