"""The models behind names: ``default_models`` (api.md, Models).

A *name* is ``provider:model``. ``scripted:demo`` answers without any model; ``local:`` names run on this machine; every
other provider is pydantic-ai's. Models are made at the first use of their name and kept.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ..errors import UnknownModel
from .protocol import Model, ModelRequest
from .scripted import Reply, ScriptedModel
from .vendors import VENDORS, installed

__all__ = ["Availability", "DefaultModels", "default_models"]

INSTALL = "pip install 'pidurable_nb[models]'"

DEMO = "scripted:demo"
DEMO_RATE = 40.0
"""Tokens per second, about what a hosted model streams at."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether the models of a name can be used now; ``missing`` says what is missing when not."""

    name: str
    usable: bool
    missing: str | None = None


class DefaultModels:
    """A ``Models`` of everything that has a name. It may be used from any thread."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._lock = threading.Lock()

    def get(self, id: str) -> Model | None:
        """The model of this name, made at the first use; ``None`` for text that is not a name or is not known.

        Raises ``UnknownModel`` with one line where it is known what is missing: a package, a key, a file, a provider.
        """
        with self._lock:
            model = self._models.get(id)
            if model is None and (model := _make(id)) is not None:
                self._models[id] = model
            return model

    def register(self, model: Model) -> None:
        """Have ``model`` found by its id from now on, in place of any other of that id."""
        with self._lock:
            self._models[model.id] = model

    def available(self) -> list[Availability]:
        """What can be used now, and what is missing for the rest; nothing is loaded or asked for."""
        with self._lock:
            own = sorted(self._models)
        found = [Availability(DEMO, True)]
        found += [Availability(id, True) for id in own if id.startswith("scripted:") and id != DEMO]
        found += _local()
        without = None if installed("pydantic_ai") else INSTALL
        for vendor in VENDORS.values():
            missing = without or vendor.missing()
            found.append(Availability(f"{vendor.name}:…", missing is None, missing))
        return found

    def names(self, start: str) -> list[str]:
        """Names that begin with ``start``, for completion: providers, and behind ``provider:`` the models known of it.

        Behind ``local:`` these are GGUF files and folders. What pydantic-ai knows is loaded at the first ``provider:``.
        """
        provider, colon, path = start.partition(":")
        with self._lock:
            found = {DEMO, *self._models}
        if not colon:
            found |= {item.name.removesuffix("…") for item in self.available() if not item.name.startswith("local:/")}
        elif provider == "local":
            found |= {"local:smollm2", *(f"local:{name}" for name in _files(path))}
        elif provider in VENDORS and installed("pydantic_ai"):
            from pydantic_ai.models import KnownModelName

            found |= set(get_args(KnownModelName.__value__))
        return sorted(name for name in found if name.startswith(start))


def _make(id: str) -> Model | None:
    provider, colon, name = id.partition(":")
    if not (provider and colon and name) or id != id.strip():
        return None
    if provider == "scripted":
        return ScriptedModel(_demo, name=DEMO, record=False) if id == DEMO else None
    if provider == "local":
        from .local import local_model

        return local_model(id)
    if not installed("pydantic_ai"):
        raise UnknownModel(f"{id} needs pydantic-ai: {INSTALL}")
    from .providers import named_model

    return named_model(id)


def _local() -> list[Availability]:
    from .local import SMOLLM2, local_model

    try:
        local_model(f"local:{SMOLLM2}")
    except UnknownModel as error:
        return [Availability(f"local:{SMOLLM2}", False, str(error))]
    return [Availability(f"local:{SMOLLM2}", True), Availability("local:….gguf", True)]


def _files(start: str) -> list[str]:
    """The GGUF files and the folders whose paths begin so, as they were begun."""
    folder, slash, _ = start.rpartition("/")
    try:
        inside = sorted(Path(folder + slash).expanduser().iterdir())
    except OSError:
        return []
    shown = [path for path in inside if not path.name.startswith(".")]
    return [
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in shown
        if path.is_dir() or path.suffix == ".gguf"
    ]


_REFLECTIONS = {
    "i": "you",
    "me": "you",
    "my": "your",
    "mine": "yours",
    "am": "are",
    "i'm": "you are",
    "i've": "you have",
    "you": "I",
    "your": "my",
    "are": "am",
}

_FEELINGS = re.compile(r"\b(?:i am|i'm|i feel|i want|i need|i think|i like)\b\s+(.+)", re.IGNORECASE)

_TURNS = (
    "Every piece of this answer was committed to storage before you saw it. Kill the kernel now, open the file again, "
    "and it goes on from the last commit.",
    "This is turn {turn}. I counted the answers in the history that came with your question, so I know it even in a "
    "new process.",
    "Nothing here was paid for twice: an answer that is stored is shown again from the file, not asked for again.",
)


def _demo(request: ModelRequest) -> Reply:
    """An answer that depends on the transcript alone, so that a new process goes on where another one ended."""
    answers = sum(message.role == "assistant" for message in request.messages)
    asked = [message.text for message in request.messages if message.role == "user"]
    text = " ".join(asked[-1].split()) if asked else ""
    return Reply(
        f"{_echo(text)}\n\n{_TURNS[answers % len(_TURNS)].format(turn=answers + 1)}\n\n"
        f"*I am `{DEMO}`, a script and not a language model. `%durable model local:smollm2` or a name such as "
        "`anthropic:claude-sonnet-5` brings a real one.*",
        tokens_per_second=DEMO_RATE,
    )


def _echo(text: str) -> str:
    if not text:
        return "You did not say anything, which is fine too."
    shown = text if len(text) <= 200 else text[:200] + "…"
    if felt := _FEELINGS.search(text):
        words = felt[1].rstrip(".!?").split()
        reflected = " ".join(_REFLECTIONS.get(word.lower(), word) for word in words)
        return f"You say: {shown}\n\nWhat makes it {reflected}?" if len(words) < 4 else f"You say {reflected}. Go on."
    if text.endswith("?"):
        return f"You ask: “{shown}” A real model would answer that; I can only show you how an answer arrives."
    return f"You said: “{shown}”"


default_models = DefaultModels()
"""The ``Models`` behind names, for everyone who gives no other."""
