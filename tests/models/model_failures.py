"""What happens when a provider fails or the process is killed: the cases, how each is run, and the tables of the docs.

A *case* is one failure in the words of each vendor, recorded from their interfaces. It is run in a session, over the
vendor's own client and a server on loopback, and its *row* says what was seen. Run as a script, this module runs all of
them and writes the rows into docs/models.md; the tests compare.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models_fault_server import Answer, FaultServer, anthropic, chat, error, responses, sse

from pidurable_nb import CompactionPolicy, Conversation, Harness, LiveState, RequestOptions, Settings
from pidurable_nb.messages import AssistantMessage
from pidurable_nb.models import DefaultModels, error_kind
from pidurable_nb.testing import ManualClock, eventually

DOCS = Path(__file__).parents[2] / "docs" / "models.md"

RESPONSES, CHAT, CLAUDE = "openai:gpt-5", "openai-chat:gpt-4o", "anthropic:claude-sonnet-5"
PROTOCOLS = (RESPONSES, CHAT, CLAUDE)

KEY = "sk-test-0123456789abcdef"


def text(*pieces: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block of text in Anthropic's protocol."""
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


def answering(id: str, *pieces: str) -> list[str]:
    """The events of a whole answer in the protocol of a model."""
    if id == RESPONSES:
        return responses(*pieces)
    if id == CHAT:
        return chat(*({"content": piece} for piece in pieces))
    return anthropic(text(*pieces))


def begun(id: str) -> list[str]:
    """The events of an answer that stops coming."""
    if id == RESPONSES:
        return responses("Hel", finish=False)
    if id == CHAT:
        return chat({"content": "Hel"}, finish=None)
    return anthropic(text("Hel"), stop=None)


# -- the cases -------------------------------------------------------------------------------------------------------


def openai_error(status: int, message: str, kind: str, code: str | None = None, **headers: str) -> Answer:
    return error(status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, **headers)


def claude_error(status: int, message: str, kind: str, **headers: str) -> Answer:
    return error(status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "r"}, **headers)


@dataclass(frozen=True)
class Case:
    """One failure: ``openai`` as both of OpenAI's protocols say it, unless ``responses`` or ``chat`` differ."""

    name: str
    claude: Answer
    openai: Answer | None = None
    responses: Answer | None = None
    chat: Answer | None = None
    options: RequestOptions = field(default_factory=RequestOptions)

    def answer(self, id: str) -> Answer:
        own = {RESPONSES: self.responses, CHAT: self.chat, CLAUDE: self.claude}[id]
        found = own if own is not None else self.openai
        assert found is not None
        return found


LIMIT = "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Used 29000."
CLAUDE_LIMIT = "This request would exceed your organization's rate limit of 40,000 input tokens per minute."


def everywhere(name: str, make: Callable[[str], Answer], **fields: Any) -> Case:
    return Case(name, responses=make(RESPONSES), chat=make(CHAT), claude=make(CLAUDE), **fields)


CASES = (
    Case(
        "429, a rate limit",
        openai=openai_error(429, LIMIT, "tokens", "rate_limit_exceeded"),
        claude=claude_error(429, CLAUDE_LIMIT, "rate_limit_error"),
    ),
    Case(
        "429, with `retry-after: 20`",
        openai=openai_error(429, LIMIT, "tokens", "rate_limit_exceeded", retry_after="20"),
        claude=claude_error(429, CLAUDE_LIMIT, "rate_limit_error", retry_after="20"),
    ),
    Case(
        "429, with `retry-after: 7200`, above the policy's cap of 60 s",
        openai=openai_error(429, LIMIT, "tokens", "rate_limit_exceeded", retry_after="7200"),
        claude=claude_error(429, CLAUDE_LIMIT, "rate_limit_error", retry_after="7200"),
    ),
    Case(
        "429, the quota is spent",
        openai=openai_error(
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        claude=claude_error(
            400,
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
            "invalid_request_error",
        ),
    ),
    Case(
        "500, the server failed",
        openai=openai_error(
            500, "The server had an error while processing your request. Sorry about that!", "server_error"
        ),
        claude=claude_error(500, "Internal server error", "api_error"),
    ),
    Case(
        "503 or 529, overloaded",
        openai=openai_error(503, "The engine is currently overloaded, please try again later", "server_error"),
        claude=claude_error(529, "Overloaded", "overloaded_error"),
    ),
    everywhere("502, a page of a proxy", lambda id: error(502, "<html><body>Bad Gateway</body></html>")),
    everywhere("the connection is cut before an answer", lambda id: Answer(end="drop")),
    everywhere("the stream is cut half way", lambda id: Answer(begun(id), end="cut")),
    everywhere("the stream ends without a finish", lambda id: Answer(begun(id))),
    everywhere(
        "the stream is idle for longer than `timeout`",
        lambda id: Answer(begun(id), end="stall"),
        options=RequestOptions(timeout=1.0),
    ),
    everywhere(
        "the stream holds what is not the protocol",
        lambda id: Answer([sse("{not json", "message_start")]),
    ),
    Case(
        "an error inside the stream",
        responses=Answer(
            [
                *begun(RESPONSES),
                sse(
                    {"type": "error", "code": "server_error", "message": "An error occurred.", "sequence_number": 9},
                    "error",
                ),
            ]
        ),
        chat=Answer(
            [
                *begun(CHAT),
                sse({"error": {"message": "The server had an error.", "type": "server_error", "code": None}}),
            ]
        ),
        claude=Answer(
            [
                *begun(CLAUDE),
                sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"),
            ]
        ),
    ),
    Case(
        "400, longer than the model's context",
        responses=openai_error(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        chat=openai_error(
            400,
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        claude=claude_error(400, "prompt is too long: 213462 tokens > 200000 maximum", "invalid_request_error"),
    ),
    Case(
        "401, the key is refused",
        openai=openai_error(401, f"Incorrect API key provided: {KEY}.", "invalid_request_error", "invalid_api_key"),
        claude=claude_error(401, "invalid x-api-key", "authentication_error"),
    ),
    Case(
        "403, the key may not",
        openai=openai_error(403, "You are not allowed to sample from this model", "invalid_request_error"),
        claude=claude_error(403, "Your API key does not have permission to use this resource.", "permission_error"),
    ),
    Case(
        "404, no such model",
        openai=openai_error(
            404,
            "The model `gpt-99` does not exist or you do not have access to it.",
            "invalid_request_error",
            "model_not_found",
        ),
        claude=claude_error(404, "model: claude-none", "not_found_error"),
    ),
    Case(
        "400, a malformed request",
        openai=openai_error(
            400, "Invalid schema for function 'weather': None is not of type 'object'.", "invalid_request_error"
        ),
        claude=claude_error(400, "messages.0.content: text content blocks must be non-empty", "invalid_request_error"),
    ),
    Case(
        "the content is refused",
        responses=Answer(responses("Hel", incomplete="content_filter")),
        chat=Answer(chat({"content": "Hel"}, finish="content_filter")),
        claude=Answer(anthropic(text("Hel"), stop="refusal")),
    ),
    Case(
        "the answer reached `max_tokens`",
        responses=Answer(responses("Hel", incomplete="max_output_tokens")),
        chat=Answer(chat({"content": "Hel"}, finish="length")),
        claude=Answer(anthropic(text("Hel"), stop="max_tokens")),
    ),
)


@contextmanager
def environment(server: FaultServer) -> Iterator[None]:
    """The vendors' clients ask this server."""
    changed = {
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "ANTHROPIC_BASE_URL": server.url,
        "NO_PROXY": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Talk(FaultServer):
    """Whole answers of three sentences, except where ``fault`` is the next reply."""

    def __init__(self, id: str) -> None:
        super().__init__()
        self.id = id
        self.fault: Answer | None = None

    def reply(self, received: Any) -> Answer:
        fault, self.fault = self.fault, None
        return fault or Answer(answering(self.id, "It is so. " * 30, "Thus it is. " * 30))


async def run_case(case: Case, id: str) -> str:
    """What was seen of a case, as the cells of its row; the run went on to its end where it could."""
    clock = ManualClock(1_800_000_000.0)
    compaction = CompactionPolicy(keep_recent_tokens=100)
    calm = Settings(model=id, compaction=compaction)
    settings = [calm]
    async with asyncio.timeout(60), _Talk(id) as server:
        with environment(server):
            async with Harness.open(
                ":memory:", models=DefaultModels(), settings=lambda: settings[-1], clock=clock
            ) as harness:
                root = await harness.root()
                for question in ("What is it?", "And then?"):
                    await root.ask(question)
                server.fault = case.answer(id)
                settings.append(calm.replaced(request=case.options))
                before = len(server.requests)
                submission = await root.submit("Why?")

                async def reacted() -> bool:
                    live = await harness.snapshot(LiveState, root.id)
                    waits = live is not None and live.generation is not None and live.generation.retry is not None
                    return waits or (await submission.status()).settled

                await eventually(reacted, timeout=30)
                settings.append(calm)
                then = await _reaction(harness, root, clock)
                settled = await submission.wait()
                kind, kept = await _failure(root)
                if settled.status == "done":
                    assert len(server.requests) - before == {"answer": 1, "compact": 3, "sleep": 2}[then[0]]
                else:
                    assert len(server.requests) - before == 1
                if kept:
                    assert kept == "Hel"
                    then = (then[0], f"{then[1]}; what had arrived is kept")
                return f"{kind or 'none'} | {then[1]}"


async def _reaction(harness: Harness, root: Conversation, clock: ManualClock) -> tuple[str, str]:
    live = await harness.snapshot(LiveState, root.id)
    if live is not None and live.generation is not None and live.generation.retry is not None:
        pause = live.generation.retry.at - clock()
        clock.advance(pause)
        harness.resume()
        return "sleep", f"sleeps {pause:g} s durably, then asks again"
    entries = await root.entries(order="ascending").list()
    if any(entry.kind == "pi.compaction" for entry in entries):
        return "compact", "compacts, then asks once more"
    last = entries[-1].messages[0]
    assert isinstance(last, AssistantMessage)
    if last.stop_reason == "error":
        return "end", "ends the run: `model_error` with the provider's words"
    return "answer", f"takes it as the answer, `stop_reason` is `{last.stop_reason}`"


async def _failure(root: Conversation) -> tuple[str | None, str]:
    """The kind of the failed answer, and what is kept of its text."""
    for entry in await root.entries(order="ascending").list():
        for message in entry.messages:
            if isinstance(message, AssistantMessage) and message.stop_reason == "error":
                assert KEY not in (message.error or "")
                return error_kind(message), message.text
    return None, ""


# -- the tables ------------------------------------------------------------------------------------------------------


def documented(name: str, docs: Path = DOCS) -> str:
    """The table between the marks of this name."""
    found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of {name} -->", docs.read_text("utf-8"), re.DOTALL)
    assert found is not None, f"docs/models.md has no table {name!r}"
    return found[1]


def row_of(name: str, table: str) -> str | None:
    """The cells after the first one of the row of this name."""
    rows = (line.strip("| \n").partition(" | ") for line in table.splitlines())
    return next((rest for first, _, rest in rows if first == name), None)


def table_of(head: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {name} | {rest} |" for name, rest in rows)]
    return "\n".join(lines) + "\n"


def write(name: str, table: str) -> None:
    old = DOCS.read_text("utf-8")
    new, count = re.subn(
        rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", lambda m: m[1] + table + m[2], old, flags=re.DOTALL
    )
    assert count == 1, name
    DOCS.write_text(new, "utf-8")


def seen(case: Case) -> str:
    """The one row of a case, which all protocols must agree on."""
    rows = {id: asyncio.run(run_case(case, id)) for id in PROTOCOLS}
    assert len(set(rows.values())) == 1, f"{case.name}: {rows}"
    return rows[CHAT]


def _folder(parent: str, id: str) -> Path:
    folder = Path(parent) / id
    folder.mkdir()
    return folder


def main() -> None:
    from model_kills import KILLS, run_kill

    write(
        "failures",
        table_of(
            ("what the provider does", "`error_kind`", "what the engine does"),
            [(case.name, seen(case)) for case in CASES],
        ),
    )
    rows = []
    for kill in KILLS:
        with tempfile.TemporaryDirectory() as folder:
            ran = {id: asyncio.run(run_kill(kill, id, _folder(folder, id))) for id in kill.ids}
        assert len(set(ran.values())) == 1, f"{kill.name}: {ran}"
        rows.append((kill.name, next(iter(ran.values()))))
    write("kills", table_of(("killed with SIGKILL", "the next process"), rows))
    print(f"wrote {len(CASES)} failures and {len(rows)} kills", file=sys.stderr)


if __name__ == "__main__":
    main()
