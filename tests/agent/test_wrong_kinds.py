"""Values of a wrong kind at the public surface: the caller hears what is wrong, and nothing else is harmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import AgentState, Extension, Harness, LiveState, Registry, Settings, observe
from pidurable_nb.errors import StorageRequestError
from pidurable_nb.models import ScriptedModel, default_models
from pidurable_nb.models.protocol import ModelSet

from .support import bounded

MISTAKES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "entry": lambda harness, root, answer: root.entry(answer),
    "conversation": lambda harness, root, answer: harness.conversation(root),
    "number": lambda harness, root, answer: harness.conversation(2**70),
    "scope": lambda harness, root, answer: harness.snapshot(LiveState, root),
    "status": lambda harness, root, answer: harness.submissions(status=5).list(),
    "cursor": lambda harness, root, answer: harness.tasks().page(5, object()),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "jsonl"])
@bounded
async def test_a_read_with_a_value_of_a_wrong_kind_fails_alone(
    tmp_path: Path, kind: str, mistake: Callable[[Any, Any, Any], Any]
) -> None:
    where = {"memory": ":memory:", "sqlite": str(tmp_path / "chat.sqlite"), "jsonl": f"jsonl:{tmp_path / 'chat'}"}[kind]
    async with Harness.open(where, models=ScriptedModel(["one", "two"])) as harness:
        root = await harness.root()
        answer = await root.ask("go")
        try:
            found = await mistake(harness, root, answer)
        except StorageRequestError as error:
            assert "a value of a wrong kind" in str(error)  # noqa: PT017  (a storage may as well find nothing)
        else:
            assert found is None
        assert (await root.ask("again")).text == "two"


@bounded
async def test_an_observer_survives_it_too(tmp_path: Path) -> None:
    path = tmp_path / "chat.sqlite"
    async with Harness.open(path, models=ScriptedModel(["one"])) as harness:
        answer = await (await harness.root()).ask("go")
    async with observe(path) as observer:
        with pytest.raises(StorageRequestError, match="a value of a wrong kind"):
            await observer.entry(answer)  # type: ignore[arg-type]
        assert (await observer.entry(answer.id)) == answer


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("scripted:demo", "'scripted:demo' is no model; for models by name, give models=default_models"),
        (["scripted:demo"], "'scripted:demo' is no model"),
        ({"a": 1}, "1 is no model"),
        (None, "None is no model"),
        (5, "5 is no model"),
        (ScriptedModel, "is no model"),
    ],
    ids=["name", "names", "mapping", "none", "number", "class"],
)
@bounded
async def test_what_is_no_model_is_refused_when_the_session_opens(tmp_path: Path, given: Any, said: str) -> None:
    path = tmp_path / "chat.sqlite"
    with pytest.raises(TypeError, match=said):
        await Harness.open(path, models=given)
    async with Harness.open(path, models=ScriptedModel(["one"])) as harness:  # nobody holds it
        assert (await (await harness.root()).ask("go")).text == "one"


def test_models_may_come_from_an_iterator_and_from_a_function() -> None:
    model = ScriptedModel([])
    for given in (iter([model]), lambda: [model], [model], {model.id: model}, model):
        found = ModelSet(given)
        assert [found.get(model.id), found.get(model.id), found.only()] == [model, model, model]
    assert ModelSet(default_models).only() is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"registry": Extension("tools")}, "registry= takes a Registry"),
        ({"settings": {"model": "scripted:demo"}}, "settings= takes Settings"),
    ],
    ids=["registry", "settings"],
)
@bounded
async def test_what_a_session_opens_with_is_looked_at(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        await Harness.open(":memory:", models=ScriptedModel([]), **options)
    async with Harness.open(":memory:", registry=Registry(), settings=Settings) as harness:
        await harness.root()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": "bash"}, r"tools takes a list of names or an Edit, not a text: write \['bash'\]"),
        ({"extensions": "coding"}, "extensions takes a list"),
        ({"thinking": 5}, "thinking is a text or None, not 5"),
        ({"cwd": Path("inner")}, "cwd is a text or None"),
        ({"instructions": ["be terse"]}, "instructions is a text or None"),
    ],
    ids=["tools", "extensions", "thinking", "cwd", "instructions"],
)
@bounded
async def test_an_agent_is_changed_to_what_can_be_read_again_or_not_at_all(change: dict[str, Any], said: str) -> None:
    async with Harness.open(":memory:", models=ScriptedModel(["one"])) as harness:
        root = await harness.root()
        before = await harness.snapshot(AgentState, root.id)
        with pytest.raises(TypeError, match=said):
            await root.configure(**change)
        assert await harness.snapshot(AgentState, root.id) == before
        assert (await root.ask("go")).text == "one"


@pytest.mark.parametrize("content", [5, None, {"type": "text"}])
@bounded
async def test_an_input_that_is_none_is_told(content: Any) -> None:
    async with Harness.open(":memory:", models=ScriptedModel(["one"])) as harness:
        root = await harness.root()
        with pytest.raises(TypeError, match="an input is text or a list of blocks, not"):
            await root.submit(content)
        assert (await root.ask("go")).text == "one"


@bounded
async def test_a_fork_is_made_at_an_id() -> None:
    async with Harness.open(":memory:", models=ScriptedModel(["one"])) as harness:
        root = await harness.root()
        answer = await root.ask("go")
        for at in (answer, str(answer.id), None):
            with pytest.raises(TypeError, match=r"a fork is made at the id of an entry, such as entry\.id, not at a"):
                await root.fork(at)
        assert (await root.fork(answer.id)).id != root.id
