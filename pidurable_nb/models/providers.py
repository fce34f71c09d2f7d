"""Models of real providers, through pydantic-ai (engine.md, section 11; https://ai.pydantic.dev/direct/).

``ProviderModel`` turns a ``ModelRequest`` into pydantic-ai's messages and its stream into our events. pydantic-ai knows
the providers; this module knows what the engine stores.

Guarantees: whatever a provider or the network does ends in a ``Finish``; its error text begins with the HTTP status
where there is one, is one that ``errors`` can classify, and holds no key. Each request has its own HTTP client, which
is closed with it, so nothing is shared between event loops and cancelling closes the connection. The provider's own
client does not retry: the engine does, durably.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, get_args

from pydantic_ai import messages as theirs
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.models import Model as TheirModel, ModelRequestParameters, infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ThinkingEffort
from pydantic_ai.tools import ToolDefinition

from ..errors import DurableError, ModelError, UnknownModel
from ..messages import (
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    Message,
    StopReason,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from . import batches
from .errors import ErrorKind, is_retryable, marked, redact, retry_after
from .protocol import Finish, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta
from .vendors import VENDORS, Vendor

__all__ = ["ProviderModel", "named_model"]

CONTEXT_WINDOW = 128_000
"""Assumed where nothing says how long a model's context is."""

MAX_OUTPUT_TOKENS = 32_000
"""Assumed where nothing says how long a model's answer may be."""

_SIGNED = "pydantic-ai:"
"""Leads a signature that carries more than the provider's proof."""

_STOP_REASONS: Mapping[str, StopReason] = {"stop": "stop", "length": "length", "tool_call": "tool_use"}

_LEVELS = ("off", *get_args(ThinkingEffort))

_CHOICES = ("auto", "required", "none")

_RETENTION = {"short": "5m", "long": "1h"}


def named_model(id: str) -> ProviderModel:
    """The model that pydantic-ai knows as ``id``, such as ``openai:gpt-5`` or ``anthropic:claude-sonnet-5``.

    Raises ``UnknownModel`` with one line that says what to set or to install, or which providers there are.
    """
    model = _make(id)
    longest: Any = model.profile.get("anthropic_max_output_tokens")
    return ProviderModel(
        id,
        lambda: _make(id),
        context_window=model.context_window or CONTEXT_WINDOW,
        max_output_tokens=longest or MAX_OUTPUT_TOKENS,
    )


def _make(id: str) -> TheirModel:
    provider, name = parse_model_id(id)
    if not provider or not name:
        raise UnknownModel(f'{id!r} is not a model\'s name. A name is "provider:name", such as openai:gpt-5.')
    vendor = VENDORS.get(provider)
    try:
        infer_provider_class(provider)
        return infer_model(id)
    except ImportError as error:
        install = vendor.install if vendor is not None else f"pip install 'pydantic-ai-slim[{provider}]'"
        raise UnknownModel(f"{id} needs a package that is not installed: {install} ({_first_line(error)})") from error
    except ValueError as error:
        if "Unknown provider" not in str(error):
            raise UnknownModel(f"{id} cannot be used: {redact(_first_line(error))}") from error
        raise UnknownModel(
            f"{id}: no provider is named {provider!r}. Names begin with a provider that pydantic-ai knows, such as "
            "openai:, anthropic:, google:, groq:, mistral: or ollama:, or with local: or scripted:."
        ) from error
    except (UserError, RuntimeError, LookupError, OSError) as error:
        text = _first_line(error)
        if variables := _variables(text, vendor):
            what = "the environment variable" if len(variables) == 1 else "one of the environment variables"
            need = "a key" if any(name.endswith(("KEY", "TOKEN")) for name in variables) else "an address or a place"
            raise UnknownModel(f"{id} needs {need}: set {what} {', '.join(variables)}.") from error
        raise UnknownModel(f"{id} cannot be used: {redact(text)}") from error
    except Exception as error:  # a vendor's client refuses to be made with an error of its own
        raise UnknownModel(f"{id} cannot be used: {redact(_first_line(error))}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _variables(text: str, vendor: Vendor | None) -> list[str]:
    """The environment variables that a complaint names, in order; those that chatting takes, where that is known."""
    words = (word.strip("`'\".,:;()[]") for word in text.split())
    names = [word for word in words if "_" in word and word.isupper() and word.replace("_", "").isalnum()]
    taken = {name for names in vendor.variables for name in names} if vendor is not None else set()
    return list(dict.fromkeys([name for name in names if name in taken] or names))


class ProviderModel:
    """A model behind pydantic-ai. ``make`` builds it anew for each request, with an HTTP client of its own.

    ``settings`` are pydantic-ai's, below what a request asks for. ``connect`` replaces ``make`` where the client is not
    pydantic-ai's: it opens the model for one request and closes it. ``priced`` is false for models that cost nothing.
    """

    def __init__(
        self,
        id: str,
        make: Callable[[], TheirModel] | None = None,
        *,
        connect: Callable[[], AbstractAsyncContextManager[TheirModel]] | None = None,
        context_window: int = CONTEXT_WINDOW,
        max_output_tokens: int = MAX_OUTPUT_TOKENS,
        settings: Mapping[str, Any] | None = None,
        priced: bool = True,
    ) -> None:
        if (make is None) == (connect is None):
            raise TypeError("ProviderModel takes either make or connect")
        self.id = id
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self._make = make
        self._connect = connect
        self._settings = dict(settings or {})
        self._priced = priced

    def __repr__(self) -> str:
        return f"<ProviderModel {self.id}>"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Send the request and give what comes back. Errors of the provider and the network end it as a ``Finish``.

        With ``deferred`` it goes to the provider's batch interface and finishes at once with a handle, where the
        provider has one; elsewhere the answer streams all the same.
        """
        response = theirs.ModelResponse(parts=[])
        try:
            async with self._opened() as model:
                history, parameters = _their_request(model, request)
                settings: Any = _merged(self._settings, _their_settings(model, request))
                if request.options.deferred and batches.batched(model):
                    handle = await batches.submit(model, history, settings, parameters)
                    yield Finish(self._deferred(handle))
                    return
                async with model_request_stream(
                    model, history, model_settings=settings, model_request_parameters=parameters
                ) as stream:
                    calls: dict[int, tuple[str, str]] = {}
                    try:
                        async for event in stream:
                            for ours in _our_events(event, calls):
                                yield ours
                    finally:
                        response = stream.get()
            message = self._message(response)
            if message.stop_reason != "error" and not _finished(model, response):
                message = message.replaced(
                    stop_reason="error",
                    error="The stream ended without a finish: the connection was cut, or the provider gave up.",
                )
        except Exception as error:  # the vendors' clients and their transports have trees of errors of their own
            message = self._failed(error, request.options.headers.values(), response)
        yield Finish(message)

    async def poll(self, handle: Mapping[str, Any]) -> AssistantMessage:
        """Ask for the answer of a batch. Errors of the provider are messages, as in ``stream``.

        A check that fails for a reason that passes is deferred again. A batch that expired is a retryable error.
        """
        try:
            async with self._opened() as model:
                try:
                    handle, result = await batches.check(model, handle)
                except Exception as error:
                    failed = self._failed(error)
                    if not is_retryable(failed):
                        return failed
                    return self._deferred(batches.checked_again(handle, retry_after(failed)))
                if result is None:
                    return self._deferred(handle)
                try:
                    return self._message(batches.decoded(model, result))
                except Exception as error:
                    failed = self._failed(error)
                    if result.status == "expired":
                        failed = failed.replaced(error=marked(failed.error or "", "retryable"))
                    return failed
        except Exception as error:  # the client cannot be made, such as for want of a key
            return self._failed(error)

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Ask the provider to cancel a batch. Raises ``ModelError`` with the provider's words."""
        try:
            async with self._opened() as model:
                await batches.cancel(model, handle)
        except Exception as error:
            raise ModelError(redact(error_text(error))) from None  # the vendor's own words may hold a key

    def _opened(self) -> AbstractAsyncContextManager[TheirModel]:
        if self._connect is not None:
            return self._connect()
        assert self._make is not None
        return self._make()

    def _deferred(self, handle: Mapping[str, Any]) -> AssistantMessage:
        return AssistantMessage(model=self.id, stop_reason="deferred", deferred=dict(handle))

    def _failed(
        self, error: BaseException, secrets: Iterable[str] = (), response: theirs.ModelResponse | None = None
    ) -> AssistantMessage:
        text = redact(error_text(error), secrets)
        return self._message(response or theirs.ModelResponse(parts=[])).replaced(stop_reason="error", error=text)

    def _message(self, response: theirs.ModelResponse) -> AssistantMessage:
        content = list(_our_blocks(response.parts, self.id))
        reason = response.finish_reason
        called = any(block.type == "tool_call" for block in content)
        stop_reason: StopReason = _STOP_REASONS.get(reason or "stop", "error")
        error = None
        if stop_reason == "error":
            details = (response.provider_details or {}).get("finish_reason", reason)
            error = f"The provider ended the answer: {details}" + (
                " (its content filter refused the request or the answer)" if reason == "content_filter" else ""
            )
        elif called and stop_reason == "stop":
            stop_reason = "tool_use"
        return AssistantMessage(
            content=content,
            model=self.id,
            stop_reason=stop_reason,
            error=error,
            usage=_our_usage(response, self._priced),
        )


def _finished(model: TheirModel, response: theirs.ModelResponse) -> bool:
    """Whether the provider said that the answer is whole, rather than that its bytes stopped coming."""
    if type(model).__name__ == "OpenAIChatModel" and model.system == "openai":
        # pydantic-ai invents a reason here, for servers that never give one; OpenAI and llama.cpp always do.
        return bool((response.provider_details or {}).get("finish_reason"))
    return response.finish_reason is not None


def error_text(error: BaseException) -> str:
    """What is stored of an error: the status or the kind, the provider's own words, and how long it asks to wait."""
    if isinstance(error, DurableError):
        return str(error)
    if isinstance(error, ModelHTTPError):
        try:
            phrase = f" {HTTPStatus(error.status_code).phrase}"
        except ValueError:
            phrase = ""
        text = f"HTTP {error.status_code}{phrase}"
        said = _provider_words(error.body)
        kind = error.provider_error_code or error.provider_error_type
        text = ": ".join(part for part in (text, said) if part)
        text += f" ({kind})" if kind and kind not in text else ""
        text += f" {error.hint}" if error.hint else ""
    elif isinstance(error, ModelAPIError):
        kind = "Connection error" if isinstance(error, ModelConnectionError) else "Provider error"
        said = _provider_words(error.body) or error.message
        text = f"{kind}: {said}" + _causes(error, said)
        code = error.provider_error_code or error.provider_error_type
        text += f" ({code})" if code and code not in text else ""
    else:
        said = str(error)
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
        text += _causes(error, said)
    after = getattr(error, "retry_after", None)
    text += f" (retry after {after:g} s)" if after is not None else ""
    fault = _kind(error)
    return text if fault is None else marked(text, fault)


_KINDS: tuple[tuple[type[BaseException], ErrorKind], ...] = (
    (ModelContextWindowExceededError, "overflow"),
    (ModelAuthenticationError, "authentication"),
    (ModelQuotaExceededError, "quota"),
    (ModelRateLimitError, "retryable"),
    (ModelUnavailableError, "retryable"),
    (ModelServerError, "retryable"),
    (ModelConnectionError, "retryable"),
    (ModelRequestTimeout, "retryable"),
    (ContentFilterError, "refused"),
)


def _kind(error: BaseException) -> ErrorKind | None:
    """What pydantic-ai knows of it from the codes of each provider; ``None`` where only its words tell."""
    return next((kind for known, kind in _KINDS if isinstance(error, known)), None)


def _provider_words(body: object) -> str:
    """The sentence in an error's body; the whole body where it has another shape."""
    if body is None:
        return ""
    found: Any = body
    while isinstance(found, Mapping):
        inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        if inner is None:
            break
        found = inner
    text = found if isinstance(found, str) else json.dumps(found, default=str, ensure_ascii=False)
    return " ".join(text.split())[:2000]


def _causes(error: BaseException, said: str) -> str:
    """The causes, which name the fault where a client's error says no more than "Connection error."."""
    found: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(found) < 4:
        words = str(cause)
        if words not in said or not words:
            found.append(f"{type(cause).__name__}: {words}" if words else type(cause).__name__)
            said += words
        cause = cause.__cause__ or cause.__context__
    return f" [{' <- '.join(found)}]" if found else ""


def _their_request(
    model: TheirModel, request: ModelRequest
) -> tuple[list[theirs.ModelMessage], ModelRequestParameters]:
    messages = list(request.messages)
    leading: list[theirs.InstructionPart] = []
    while messages and isinstance(messages[0], SystemMessage):
        if text := messages[0].text:
            leading.append(theirs.InstructionPart(content=text))
        messages.pop(0)
    parameters = ModelRequestParameters(
        function_tools=[_their_tool(tool) for tool in request.tools], instruction_parts=leading
    )
    # Preparing moves what a provider has no place for, such as a system message in the middle, to where it has one.
    return model.prepare_messages(_their_messages(messages, request.session_id), parameters), parameters


def _their_tool(tool: ToolDeclaration) -> ToolDefinition:
    return ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters))


def _their_messages(messages: Iterable[Message], session: str | None = None) -> list[theirs.ModelMessage]:
    history: list[theirs.ModelMessage] = []
    pending: list[theirs.ModelRequestPart] = []

    def flush() -> None:
        if pending:
            history.append(theirs.ModelRequest(parts=list(pending), conversation_id=session))
            pending.clear()

    for message in messages:
        if isinstance(message, UserMessage):
            pending.append(theirs.UserPromptPart(content=_their_content(message.content)))
        elif isinstance(message, SystemMessage):
            if text := _change(message):
                pending.append(theirs.SystemPromptPart(content=text))
        elif isinstance(message, ToolResultMessage):
            pending.append(
                theirs.ToolReturnPart(
                    tool_name=message.tool_name,
                    content=_their_content(message.content),
                    tool_call_id=message.call_id,
                    outcome="failed" if message.is_error else "success",
                )
            )
        elif parts := [_their_part(block, message.model) for block in message.content]:
            flush()
            history.append(theirs.ModelResponse(parts=parts, provider_name=_provider(message.model)))
    flush()
    return history


def _change(message: SystemMessage) -> str:
    """A later system message in words: the sections it sets, and the ones that no longer hold."""
    removed = [key for key, text in message.sections.items() if text is None]
    gone = f"These instructions no longer apply: {', '.join(removed)}." if removed else ""
    return "\n\n".join(text for text in (message.text, gone) if text)


def _their_content(blocks: Sequence[ContentBlock]) -> Any:
    """Text alone as text; text and images as a list."""
    found: list[str | theirs.BinaryContent] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            found.append(block.text)
        elif isinstance(block, ImageBlock):
            found.append(theirs.BinaryContent(base64.b64decode(block.data), media_type=block.media_type))
    if all(isinstance(item, str) for item in found):
        return "\n".join(str(item) for item in found)
    return found


def _their_part(block: ContentBlock, model: str) -> theirs.ModelResponsePart:
    if isinstance(block, TextBlock):
        return theirs.TextPart(content=block.text)
    if isinstance(block, ToolCall):
        return theirs.ToolCallPart(tool_name=block.name, args=dict(block.arguments), tool_call_id=block.id)
    if isinstance(block, ImageBlock):
        image = theirs.BinaryImage(base64.b64decode(block.data), media_type=block.media_type)
        return theirs.FilePart(content=image)
    provider = _provider(model)
    if block.signature is None:
        return theirs.ThinkingPart(content=block.text)
    if not block.signature.startswith(_SIGNED):
        return theirs.ThinkingPart(content=block.text, signature=block.signature, provider_name=provider)
    extra = json.loads(block.signature.removeprefix(_SIGNED))
    return theirs.ThinkingPart(
        content=block.text,
        id=extra.get("id"),
        signature=extra.get("signature"),
        provider_name=extra.get("provider"),
        provider_details=extra.get("details"),
    )


def _provider(model: str) -> str | None:
    """The provider in an id: ``anthropic`` of ``anthropic:claude-sonnet-5``."""
    return model.partition(":")[0] or None


def _signature(part: theirs.ThinkingPart, model: str) -> str | None:
    """A part's signature, with what else has to go back with it: its id, its provider where the name does not say."""
    if part.id is None and not part.provider_details and part.provider_name in (None, _provider(model)):
        return part.signature
    extra = {
        "id": part.id,
        "signature": part.signature,
        "provider": part.provider_name,
        "details": part.provider_details,
    }
    return _SIGNED + json.dumps({key: value for key, value in extra.items() if value is not None}, default=str)


def _our_blocks(parts: Iterable[theirs.ModelResponsePart], model: str) -> Iterable[ContentBlock]:
    for part in parts:
        if isinstance(part, theirs.TextPart):
            if part.content:
                yield TextBlock(part.content)
        elif isinstance(part, theirs.ThinkingPart):
            signature = _signature(part, model)
            if part.content or signature:
                yield ThinkingBlock(part.content, signature)
        elif isinstance(part, theirs.ToolCallPart):
            # Arguments that are not a JSON object become {"INVALID_JSON": text}, which validation then refuses by name.
            yield ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=part.args_as_dict())
        elif isinstance(part, theirs.FilePart) and part.content.media_type.startswith("image/"):
            yield ImageBlock(media_type=part.content.media_type, data=base64.b64encode(part.content.data).decode())


def _our_events(event: theirs.ModelResponseStreamEvent, calls: dict[int, tuple[str, str]]) -> Iterable[ModelEvent]:
    if isinstance(event, theirs.PartStartEvent):
        part = event.part
        if isinstance(part, theirs.TextPart):
            if part.content:
                yield TextDelta(part.content)
        elif isinstance(part, theirs.ThinkingPart):
            if part.content:
                yield ThinkingDelta(part.content)
        elif isinstance(part, theirs.ToolCallPart):
            calls[event.index] = (part.tool_call_id, part.tool_name)
            yield ToolCallDelta(part.tool_call_id, part.tool_name, _arguments(part.args))
    elif isinstance(event, theirs.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, theirs.TextPartDelta):
            if delta.content_delta:
                yield TextDelta(delta.content_delta)
        elif isinstance(delta, theirs.ThinkingPartDelta):
            if delta.content_delta:
                yield ThinkingDelta(delta.content_delta)
        elif isinstance(delta, theirs.ToolCallPartDelta):
            id, name = calls.get(event.index, ("", ""))
            calls[event.index] = id, name = delta.tool_call_id or id, name + (delta.tool_name_delta or "")
            if delta.args_delta or delta.tool_name_delta:
                yield ToolCallDelta(id, name, _arguments(delta.args_delta))


def _arguments(args: str | Mapping[str, Any] | None) -> str:
    if not args:
        return ""
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)


def _our_usage(response: theirs.ModelResponse, priced: bool) -> Usage:
    usage = response.usage
    cost = usage.cost
    if cost is None and priced and response.model_name and usage.has_values():
        try:
            cost = response.cost().total_price
        except (LookupError, ValueError):
            cost = None  # no price is known for it
    return Usage(
        # Theirs counts cached tokens in, ours counts each token once.
        input_tokens=max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost=0.0 if cost is None or not priced else float(cost),
    )


def _their_settings(model: TheirModel, request: ModelRequest) -> dict[str, Any]:
    options = request.options
    # The engine retries durably; a client that also retries would hide it and multiply the waits.
    settings: dict[str, Any] = {"max_retries": options.max_retries or 0}
    if (tokens := request.max_tokens or options.max_tokens) is not None:
        settings["max_tokens"] = tokens
    if options.timeout is not None:
        settings["timeout"] = options.timeout
    if options.headers:
        settings["extra_headers"] = dict(options.headers)
    if request.tools and (choice := options.tool_choice) is not None:
        names = [tool.name for tool in request.tools]
        if choice not in _CHOICES and choice not in names:
            raise ModelError(f"tool_choice is {choice!r}: it is {', '.join(_CHOICES)}, or one of {', '.join(names)}.")
        settings["tool_choice"] = choice if choice in _CHOICES else [choice]
    if request.thinking not in _LEVELS:
        raise ModelError(f"thinking is {request.thinking!r}: a level is one of {', '.join(_LEVELS)}.")
    if model.profile.get("supports_thinking"):
        settings["thinking"] = False if request.thinking == "off" else request.thinking
    if model.profile.get("supports_cache"):
        cache = _RETENTION.get(options.cache, options.cache)
        settings["cache"] = True if cache == "default" else False if cache in ("off", "none") else cache
    return settings | _theirs_alone(model, request)


def _theirs_alone(model: TheirModel, request: ModelRequest) -> dict[str, Any]:
    """What each provider calls the session, the person and the metadata of a request."""
    system = model.system
    session, metadata = request.session_id, request.options.metadata
    user = metadata.get("user_id")
    labels = {key: str(value) for key, value in metadata.items() if key != "user_id"}
    found: dict[str, Any] = {}
    if system in ("openai", "azure"):
        found = {"openai_prompt_cache_key": session, "openai_user": user}
        if labels and type(model).__name__ == "OpenAIResponsesModel":  # Chat takes them for stored answers only
            found["extra_body"] = {"metadata": labels}
    elif system == "anthropic":
        found = {"anthropic_metadata": {"user_id": str(user)} if user else None}
    elif system == "mistral":
        found = {"mistral_prompt_cache_key": session}
    elif system == "bedrock":
        found = {"bedrock_request_metadata": {key: str(value) for key, value in metadata.items()} or None}
    elif system == "google-cloud":
        found = {"google_labels": {key: str(value) for key, value in metadata.items()} or None}
    elif system == "xai":
        found = {"xai_user": user}
    return {name: value if isinstance(value, dict) else str(value) for name, value in found.items() if value}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings over settings; two bodies are one, so that a request's metadata does not undo a model's own extras."""
    merged = {**below, **above}
    if "extra_body" in below and "extra_body" in above:
        merged["extra_body"] = {**below["extra_body"], **above["extra_body"]}
    return merged
