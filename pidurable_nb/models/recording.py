"""Recorded models: ask a real one once, answer from a file ever after (api.md, Models).

``RecordingModel`` passes requests to another model and writes each exchange to a *recording*; ``ReplayModel`` answers
from that file, so that a notebook can be checked where there is no key and no network.

A recording is one JSON object a line: first ``model`` with its name and its limits, then one line for each exchange,
``request`` and ``events`` or ``poll``, and ``message``. A *take* is what one ``RecordingModel`` wrote. The request is
written in the form that is compared: what the model reads, and nothing that differs each time. Times, costs, headers,
the session id and the details of tool results are left out; an image is its digest.

Guarantees: keys are never written (``errors.redact``). A line is appended whole; one that a crash cut off is left out.
Requests are found by what they say and not by their order, so parallel conversations and a kernel that was killed and
asks again get the answers that belong to them.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import itertools
import json
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError, RecordingMismatch, UnknownModel
from ..messages import AssistantMessage, Message
from ..values import valid_text
from .errors import redact
from .protocol import DeferredModel, Finish, Model, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolCallDelta

__all__ = ["RecordingModel", "ReplayModel"]

VERSION = 1

DIFF_LINES = 60
"""How many lines of a difference are told."""

_UNREAD = {
    "user": {"timestamp"},
    "system": {"timestamp"},
    "assistant": {"timestamp", "duration", "usage", "deferred"},
    "tool_result": {"timestamp", "duration", "usage", "details"},
}
"""What a stored message holds that no model reads, by role."""


class RecordingModel:
    """``model``, with every exchange appended to the file ``path``.

    ``model`` is a model or the name of one, such as ``"openai:gpt-5-mini"``. The file is created with mode 0600. It may
    hold exchanges already, of the same model: a kernel that comes back goes on in it. What was asked again counts as
    its newest take says; to begin anew, delete the file.

    A request that is cancelled, or for which the model raises, is not written. Raises ``ModelError`` where the file is
    not a recording of this model, and ``UnknownModel`` for a name that cannot be used.
    """

    def __init__(self, model: Model | str, path: str | os.PathLike[str]) -> None:
        self._model = _found(model) if isinstance(model, str) else model
        self.id = self._model.id
        self.context_window = self._model.context_window
        self.max_output_tokens = self._model.max_output_tokens
        self.path = Path(path).expanduser().absolute()
        self._take = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._open()

    def __repr__(self) -> str:
        return f"<RecordingModel {self.id} to {self.path}>"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """As the model's own; the exchange is in the file before its ``Finish`` is given."""
        deltas: list[list[str]] = []
        secret = list(request.options.headers.values())
        stream = self._model.stream(request)
        try:
            async for event in stream:
                if isinstance(event, Finish):
                    asked = {"request": _comparable(request), "events": _whole_keys(deltas, secret)}
                    self._write({**asked, "message": _answered(event.message)}, secret)
                else:
                    deltas.append(_plain(event))
                yield event
        finally:
            if (stop := getattr(stream, "aclose", None)) is not None:
                await stop()

    async def poll(self, handle: Mapping[str, Any]) -> AssistantMessage:
        """As the model's own. Raises ``ModelError`` where the model gives no deferred answers."""
        message = await self._deferred().poll(handle)
        self._write({"poll": dict(handle), "message": _answered(message)})
        return message

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """As the model's own."""
        await self._deferred().cancel(handle)

    def _deferred(self) -> DeferredModel:
        if not isinstance(self._model, DeferredModel):
            raise ModelError(f"The model {self.id} cannot be asked for deferred answers.")
        return self._model

    def _open(self) -> None:
        """Write the first line, or check the one there is and drop a last line that a crash cut off.

        A file that is no recording of this model is left as it is.
        """
        head = {
            "recording": VERSION,
            "model": self.id,
            "context_window": self.context_window,
            "max_output_tokens": self.max_output_tokens,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
            with self.path.open("r+b") as file:
                first = file.readline()
                if first.endswith(b"\n") or not _line(head).startswith(first):
                    known = _head(self.path)["model"]
                    if known != self.id:
                        raise ModelError(
                            f"The recording {self.path} is of {known}, not of {self.id}. "
                            "Use another file, or delete this one."
                        )
                    whole = len(first) + sum(len(line) for line in file if line.endswith(b"\n"))
                else:
                    whole = 0
                if whole != file.seek(0, os.SEEK_END):
                    file.truncate(whole)
        except OSError as error:
            raise ModelError(f"The recording {self.path} cannot be written: {error.strerror}.") from error
        if not whole:
            self._append(head)

    def _write(self, exchange: dict[str, Any], secret: list[str] | None = None) -> None:
        self._append(_redacted({"take": self._take, **exchange}, secret or []))

    def _append(self, value: dict[str, Any]) -> None:
        try:
            with self._lock, self.path.open("ab") as file:
                file.write(_line(value))
        except OSError as error:
            raise ModelError(f"The recording {self.path} cannot be written: {error.strerror}.") from error


class ReplayModel:
    """The model that a ``RecordingModel`` wrote to ``path``, answering from there; ``id`` and limits are its own.

    A request that was recorded several times gets its answers in their order, then the last one again. One that was not
    recorded raises ``RecordingMismatch``, which says how it differs from the nearest one that was. What was recorded as
    an error is one again, and a deferred answer is deferred again.

    Raises ``ModelError`` at once where the file is missing or is not a recording, naming the line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        head = _head(self.path)
        self.id: str = head["model"]
        self.context_window: int = head["context_window"]
        self.max_output_tokens: int = head["max_output_tokens"]
        self._lock = threading.Lock()
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._given: dict[str, int] = {}
        self._requests: dict[int, dict[str, Any]] = {}
        for number, exchange in _exchanges(self.path):
            key = _key(exchange)
            known = self._answers.setdefault(key, [])
            if known and known[-1]["take"] != exchange["take"]:
                known.clear()  # the newest take is the one that its notebook shows
            known.append(exchange)
            if "request" in exchange:
                self._requests[number] = exchange["request"]

    def __repr__(self) -> str:
        return f"<ReplayModel {self.id} from {self.path}>"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """What was answered. Raises ``RecordingMismatch`` where the request was not recorded."""
        asked = _redacted(_comparable(request), list(request.options.headers.values()))
        key = _key({"request": asked})
        exchange = self._next(key)
        if exchange is None:
            raise RecordingMismatch(self._difference(asked))
        for delta in exchange["events"]:
            yield _event(delta)
        message = AssistantMessage.model_validate(exchange["message"])
        self._used(key)  # an attempt that was cut off gets the same answer again
        yield Finish(message)

    async def poll(self, handle: Mapping[str, Any]) -> AssistantMessage:
        """What was answered to this handle. Raises ``RecordingMismatch`` where it was not recorded."""
        key = _key({"poll": _redacted(dict(handle), [])})
        exchange = self._next(key)
        if exchange is None:
            raise RecordingMismatch(f"The recording {self.path} holds no deferred answer of this handle. {_ANEW}")
        self._used(key)
        return AssistantMessage.model_validate(exchange["message"])

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Nothing has to stop."""

    def _next(self, key: str) -> dict[str, Any] | None:
        known = self._answers.get(key)
        if not known:
            return None
        with self._lock:
            return known[min(self._given.get(key, 0), len(known) - 1)]

    def _used(self, key: str) -> None:
        with self._lock:
            self._given[key] = self._given.get(key, 0) + 1

    def _difference(self, asked: dict[str, Any]) -> str:
        if not self._requests:
            return f"The recording {self.path} holds no request. {_ANEW}"
        wanted = list(_lines(asked))
        matcher = difflib.SequenceMatcher(autojunk=False)
        matcher.set_seq2(wanted)
        best, where, nearest = -1.0, 0, [""]
        for number, request in self._requests.items():
            lines = list(_lines(request))
            matcher.set_seq1(lines)
            if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
                best, where, nearest = ratio, number, lines
        told = list(difflib.unified_diff(nearest, wanted, n=1, lineterm=""))[2:]
        told = [line for line in told if not line.startswith("@@")]
        if len(told) > DIFF_LINES:
            told = [*told[:DIFF_LINES], f"… and {len(told) - DIFF_LINES} more lines"]
        return (
            f"This request was not recorded. It differs from the nearest one in {self.path} (line {where}); "
            "- was recorded, + is asked now:\n" + "\n".join(told) + f"\n{_ANEW}"
        )


_ANEW = "Ask what was recorded, or delete the file and record it anew with RecordingModel."


def _found(id: str) -> Model:
    from .catalog import default_models

    model = default_models.get(id)
    if model is None:
        raise UnknownModel(f"{id!r} is not a model's name. A name is provider:name, such as openai:gpt-5-mini.")
    return model


# -- the file --------------------------------------------------------------------------------------------------------


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _head(path: Path) -> dict[str, Any]:
    for _, line in _objects(path):
        limits = (line.get("context_window"), line.get("max_output_tokens"))
        if line.get("recording") == VERSION and isinstance(line.get("model"), str):
            if all(isinstance(limit, int) for limit in limits):
                return line
            raise ModelError(f"{path}, line 1: a recording gives context_window and max_output_tokens as numbers.")
        if isinstance(line.get("recording"), int) and line["recording"] > VERSION:
            raise ModelError(
                f"A newer version of this package wrote the recording {path}: upgrade it to read the file."
            )
        break
    raise ModelError(f"{path} is not a recording: its first line does not say so. RecordingModel writes one.")


def _exchanges(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _objects(path):
        if number == 1:
            continue
        try:
            if not isinstance(line["take"], str) or ("request" in line) == ("poll" in line):
                raise ValueError("it is neither a request nor a poll")
            if "request" in line:
                list(_lines(line["request"]))
                for delta in line["events"]:
                    _event(delta)
            AssistantMessage.model_validate(line["message"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{path}, line {number}: not a recorded exchange ({error}).") from error
        yield number, line


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # a crash cut it off
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise ModelError(f"{path}, line {number}: not JSON ({error}).") from error
                if not isinstance(value, dict):
                    raise ModelError(f"{path}, line {number}: not a JSON object.")
                yield number, value
    except OSError as error:
        raise ModelError(
            f"The recording {path} cannot be read: {error.strerror}. RecordingModel(model, path) writes one."
        ) from error


# -- what is compared ------------------------------------------------------------------------------------------------


def _comparable(request: ModelRequest) -> dict[str, Any]:
    """The request as far as it decides the answer."""
    asked: dict[str, Any] = {
        "messages": [_said(message) for message in request.messages],
        "tools": [tool.to_data() for tool in request.tools],
        "thinking": request.thinking,
    }
    if (tokens := request.max_tokens or request.options.max_tokens) is not None:
        asked["max_tokens"] = tokens
    if request.options.deferred:
        asked["deferred"] = True
    if request.options.tool_choice is not None:
        asked["tool_choice"] = request.options.tool_choice
    return asked


def _said(message: Message) -> dict[str, Any]:
    unread = _UNREAD[message.role]
    said = {name: value for name, value in message.to_data().items() if name not in unread}
    if message.role == "system":
        # A section that is removed is told by None, which the stored form leaves out.
        said["sections"] = dict(message.sections)
        return said
    for block in said["content"]:
        if block["type"] == "image":
            data = base64.b64decode(block.pop("data"))
            block["sha256"] = hashlib.sha256(data).hexdigest()
    return said


def _answered(message: AssistantMessage) -> dict[str, Any]:
    return {name: value for name, value in message.to_data().items() if name not in ("timestamp", "duration")}


def _key(exchange: Mapping[str, Any]) -> str:
    asked = {name: exchange[name] for name in ("request", "poll") if name in exchange}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _redacted(value: Any, secret: list[str]) -> Any:
    return _mapped(value, lambda text: valid_text(redact(text, secret)))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _lines(request: Mapping[str, Any]) -> Iterator[str]:
    """The request as lines for a person, in which a difference is found and shown."""
    yield f"thinking: {request['thinking']}"
    for name in ("max_tokens", "deferred", "tool_choice"):
        if name in request:
            yield f"{name}: {request[name]}"
    for tool in request["tools"]:
        yield f"tool {tool['name']}: {_json(tool.get('description', ''))}"
        yield f"  parameters: {_json(tool.get('parameters', {}))}"
    for index, message in enumerate(request["messages"], 1):
        label = f"message {index}, {message['role']}"
        if message["role"] == "tool_result":
            label += f" of {message['tool_name']} ({message['call_id']})" + (
                ", an error" if message.get("is_error") else ""
            )
        yield f"{label}:"
        for key, text in message.get("sections", {}).items():
            yield f"  section {key}{' is removed' if text is None else ':'}"
            yield from _indented(text or "", "    ")
        for tool in message.get("tools_added", ()):
            yield f"  adds the tool {tool['name']}: {_json(tool)}"
        for name in message.get("tools_removed", ()):
            yield f"  removes the tool {name}"
        for block in message.get("content", ()):
            if block["type"] == "tool_call":
                yield f"  calls {block['name']} ({block['id']}): {_json(block['arguments'])}"
            elif block["type"] == "image":
                yield f"  {block['media_type']} {block['sha256']}"
            else:
                yield from _indented(block["text"], "  " if block["type"] == "text" else "  (thinking) ")
                if signature := block.get("signature"):
                    yield f"  signed {signature}"
        if message["role"] == "assistant":
            for name in ("model", "thinking", "stop_reason", "error"):
                if message.get(name):
                    yield f"  {name}: {message[name]}"


def _indented(text: str, by: str) -> Iterator[str]:
    return (by + line for line in text.splitlines())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


# -- events ----------------------------------------------------------------------------------------------------------


def _plain(event: ModelEvent) -> list[str]:
    if isinstance(event, TextDelta):
        return ["text", event.text]
    if isinstance(event, ThinkingDelta):
        return ["thinking", event.text]
    assert isinstance(event, ToolCallDelta)
    return ["tool_call", event.id, event.name, event.arguments_json]


def _whole_keys(deltas: list[list[str]], secret: list[str]) -> list[list[str]]:
    """The deltas, with those joined that hold a key between them: in pieces it has no key's shape."""
    found: list[list[str]] = []
    for _, run in itertools.groupby(deltas, key=lambda delta: delta[:-1]):
        pieces = list(run)
        text = "".join(piece[-1] for piece in pieces)
        found += pieces if redact(text, secret) == text else [[*pieces[0][:-1], text]]
    return found


def _event(delta: Any) -> ModelEvent:
    kind, *rest = delta
    if kind == "text":
        return TextDelta(*rest)
    if kind == "thinking":
        return ThinkingDelta(*rest)
    if kind == "tool_call":
        return ToolCallDelta(*rest)
    raise ValueError(f"there is no kind {kind!r} of event")
