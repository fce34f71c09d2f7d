"""What a provider's error means: the one place that reads error texts (engine.md, section 11).

An error is stored as the text of an ``AssistantMessage`` with ``stop_reason="error"``, and it may be read by another
process, or come from a model that this package knows nothing about. So the text is all that is classified.
``providers`` writes texts that begin with the HTTP status, and that end with the kind where a client knows it and the
words would not tell.

Words: the *kind* of an error says what mends it (``ErrorKind``). A *retryable* error is one where the same request may
well succeed later; an *overflow* means that the request is too long for the model and has to be made shorter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from ..messages import AssistantMessage

__all__ = [
    "REDACTED",
    "ErrorKind",
    "error_kind",
    "is_overflow",
    "is_retryable",
    "is_secret",
    "marked",
    "redact",
    "retry_after",
]

ErrorKind: TypeAlias = Literal["retryable", "overflow", "authentication", "quota", "refused", "malformed", "other"]
"""What mends it: waiting; a shorter request; another key; money; other words; a corrected request; nothing known."""


class _Pattern:
    """A pattern that is compiled when it is first needed: every import comes here, and few sessions see an error."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text = text
        self._flags = flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self._text, self._flags)


_OVERFLOW = _Pattern(
    r"""
      context[ _-]?(length|window|size|limit)[ _]?(is[ ])?exceed      # OpenAI's code, llama.cpp, pydantic-ai
    | exceeds?[ ].{0,40}context[ _-]?(length|window|size|limit)       # llama.cpp, Together
    | maximum[ ]context[ ]length                                      # OpenAI, vLLM, OpenRouter
    | prompt[ ]is[ ]too[ ]long                                        # Anthropic
    | input[ ]is[ ]too[ ]long                                         # Bedrock
    | input[ ]length[ ]and[ ].?max_tokens.?[ ]exceed                  # Anthropic
    | input[ ]token[ ]count.{0,40}exceeds[ ]the[ ]maximum             # Google
    | maximum[ ]prompt[ ]length[ ]is                                  # xAI
    | reduce[ ]the[ ]length[ ]of[ ](the[ ])?(messages|prompt|input)   # Groq, OpenAI
    | too[ ]many[ ](input[ ])?tokens.{0,20}(context|prompt|request)   # Cohere, Mistral
    | too[ ]large[ ]for[ ]model[ ]with[ ]\d+[ ]maximum[ ]context      # Mistral
    | request[ ]too[ ]large[ ]for[ ]model                             # Groq
    | requested[ ]tokens[ ].{0,20}exceed[ ]context                    # llama.cpp
    """,
    re.IGNORECASE | re.VERBOSE,
)

# Raised by models that are no provider's: their texts quote requests, which may say anything.
_OURS = _Pattern(r"^(RecordingMismatch|ScriptExhausted)\b")

# Faults that come with a status or a word of the retryable ones, and that no waiting mends.
_REFUSED = _Pattern(
    r"content.?filter|content management policy|content.?policy|usage policies|safety system|prohibited_content"
    r"|\brefusal\b|flagged (as|for|by)|blocked by.{0,20}(safety|guardrail|moderation)",
    re.IGNORECASE,
)
_AUTHENTICATION = _Pattern(
    r"(invalid|incorrect|missing).{0,10}api.{0,3}key|authentication.?error|permission.?(error|denied)|unauthenticated"
    r"|needs a key: set|access.?denied|expired.?token",
    re.IGNORECASE,
)

# A spent quota: final, unless the provider says when to come back, as Google does for limits per minute.
_SPENT = _Pattern(
    r"insufficient_quota|exceeded your current quota|credit balance|payment required|billing_(error|hard_limit)",
    re.IGNORECASE,
)

_MARK = _Pattern(r"\[(" + "|".join(get_args(ErrorKind)) + r")\]$")

_STATUS = _Pattern(
    r"""
      (?: \b(?: HTTP(?:/\d(?:\.\d)?)? | status(?:[ _]code)? | error(?:[ ]code)? | code )\b ["'\]]* \s*[:=]?\s* ["']?
        | ^\s*["'(\[]? )
      ([1-5]\d\d)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})

_RETRYABLE = _Pattern(
    r"""
      rate.?limit | too[ ]many[ ]requests | throttl | resource.?exhausted | tokens[ ]per[ ]min
    | quota.{0,40}per[ ]minute
    | overloaded | (over|at)[ ]capacity | capacity[ ]exceeded
    | service.?unavailable | (temporarily|currently)[ ]unavailable | server.?is.?busy | try[ ]again[ ](later|in)
    | internal.?server.?error | internal[ ]error | server.?error | bad[ ]gateway | gateway[ ]time.?out | api_error
    | timed?.?out | deadline.?exceeded
    | connection.{0,20}(error|reset|refused|closed|cut|aborted|lost|terminated) | (reset|closed)[ ]by[ ]peer
    | broken[ ]pipe | socket[ ]hang[ ]up | other[ ]side[ ]closed | fetch[ ]failed | network.{0,10}error
    | econnre(set|fused) | etimedout
    | all[ ]connection[ ]attempts[ ]failed | server[ ]disconnected | peer[ ]closed[ ]connection | name[ ]resolution
    | incomplete[ ](chunked[ ]read|read|message) | remote.?protocol.?error | read.?error
    | premature(ly)?.{0,10}(close|end)
    | stream.{0,30}(ended[ ]without|ended[ ]before|cut|idle|interrupted|terminated|truncated|stalled) | idle[ ]stream
    | failed[ ]to[ ]decode[ ]response | unexpected[ ]end[ ]of[ ](stream|file|data|input) | upstream[ ](connect[ ])?error
    """,
    re.IGNORECASE | re.VERBOSE,
)

_MALFORMED = _Pattern(r"invalid_?request|invalid_?argument|validation.?exception|bad request", re.IGNORECASE)

_AFTER = _Pattern(
    r"""
      (?: retry[ _-]?after (?P<milli>[ _-]?ms)? | retry_?delay | (?:try[ ]again|retry|wait)[ ](?:in|for)(?:[ ]about)? )
      ["']?\s*[:=]?\s*["']?
      (?: (?P<hours>\d+)\s*h(?:ours?)?\s* )?
      (?: (?P<minutes>\d+)\s*m(?:in(?:ute)?s?)?\b\s*(?=\d|$|[.,;)"'}\s]) | (?P<minutes_then>\d+)m(?=\d) )?
      (?: (?P<value>\d+(?:\.\d+)?)\s*(?P<unit>ms|milliseconds?|s(?:ec(?:ond)?s?)?)?\b )?
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_overflow(message: AssistantMessage, context_window: int | None = None) -> bool:
    """Whether the request was too long for the model (engine.md, sections 11 and 13).

    Some providers cut the input silently or answer nothing; with ``context_window`` (tokens), an answer that says it
    read more than that counts too.
    """
    if message.stop_reason == "error":
        return error_kind(message) == "overflow"
    if not context_window or message.stop_reason not in ("stop", "length"):
        return False
    usage = message.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return read > context_window or (
        message.stop_reason == "length" and usage.output_tokens == 0 and read >= 0.99 * context_window
    )


def is_retryable(message: AssistantMessage) -> bool:
    """Whether the same request may succeed later: a limit, an overload, a server's fault, a cut or idle connection.

    A refused key, a spent quota, a malformed request and an overflow are not (engine.md, section 11).
    """
    return error_kind(message) == "retryable"


def error_kind(message: AssistantMessage) -> ErrorKind | None:
    """What mends the error of this message; ``None`` where it is none (engine.md, section 11)."""
    if message.stop_reason != "error":
        return None
    text = message.error or ""
    if _OURS.compiled.search(text):
        return "other"
    if mark := _MARK.compiled.search(text):
        return mark[1]  # type: ignore[return-value]  # the pattern is made of the kinds
    if _OVERFLOW.compiled.search(text):
        return "overflow"
    if _REFUSED.compiled.search(text):
        return "refused"
    if _AUTHENTICATION.compiled.search(text):
        return "authentication"
    if _SPENT.compiled.search(text):
        return "quota" if retry_after(message) is None else "retryable"
    status = _STATUS.compiled.search(text)
    if status is not None:
        code = int(status[1])
        if code >= 500 or code in _RETRYABLE_STATUS:
            return "retryable"
        if code >= 400:
            return "authentication" if code in (401, 403) else "quota" if code == 402 else "malformed"
    if _RETRYABLE.compiled.search(text):
        return "retryable"
    return "malformed" if _MALFORMED.compiled.search(text) else "other"


def marked(text: str, kind: ErrorKind) -> str:
    """The text, ending with its kind where ``error_kind`` would read another one in its words."""
    read = error_kind(AssistantMessage(stop_reason="error", error=text))
    return text if read == kind else f"{text} [{kind}]"


def retry_after(message: AssistantMessage) -> float | None:
    """The seconds that the provider asked to wait, where its text says so."""
    for found in _AFTER.compiled.finditer(message.error or ""):
        part = found.groupdict()
        minutes = part["minutes"] or part["minutes_then"]
        if part["value"] is None and part["hours"] is None and minutes is None:
            continue
        value = float(part["value"] or 0.0)
        if part["milli"] or (part["unit"] or "").lower().startswith("m"):
            value /= 1000.0
        return 3600.0 * int(part["hours"] or 0) + 60.0 * int(minutes or 0) + value
    return None


REDACTED = "[redacted]"
"""What stands where a key stood."""

_SECRET_NAME = _Pattern(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)$", re.IGNORECASE)
_SECRET_HEADER = _Pattern(r"auth|key|token|secret|password|credential|cookie", re.IGNORECASE)
_SECRET_SHAPE = _Pattern(
    r"\b(?:sk|pk|rk|gsk|xai|hf|pplx|ghp|gho|github_pat|nvapi|csk|fw|r8)[-_][\w*.-]{8,}"
    r"|\bAIza[\w-]{10,}|\bAKIA[A-Z0-9]{12,}|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]+"
    r"|(?<=\bBearer\s)[\w.~+/*-]{6,}=*|(?<=[?&]key=)[^&\s\"']+"
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with ``REDACTED`` for keys: ``secrets``, those in the environment, and what has a key's shape."""
    known = {value for name, value in os.environ.items() if _SECRET_NAME.compiled.search(name)} | set(secrets)
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= 8:  # shorter ones are words that would be cut out of every text
            text = text.replace(secret, REDACTED)
    return _SECRET_SHAPE.compiled.sub(REDACTED, text)


def is_secret(header: str, value: str) -> bool:
    """Whether a header carries a key, by its name or by its value."""
    return bool(_SECRET_HEADER.compiled.search(header)) or redact(value) != value
