"""Registry, agents and the prompt (engine.md, section 10)."""

from __future__ import annotations

from typing import Any

import pytest

from pidurable_nb import (
    AgentChange,
    Edit,
    Extension,
    GenerationHooks,
    Phase,
    Registry,
    Settings,
    Task,
    TaskRun,
    Tool,
    section,
    tool,
    wrap_section,
    wrap_tool,
)
from pidurable_nb.errors import RegistryError
from pidurable_nb.messages import SystemMessage, TextBlock, UserMessage

from .support import Chat, bounded


@tool
def look() -> str:
    """Look around."""
    return "nothing"


@tool
def move() -> str:
    """Move on."""
    return "moved"


async def systems(conversation: Any) -> list[SystemMessage]:
    return [e.messages[0] async for e in conversation.entries(order="ascending") if e.kind == "pi.system"]


def sections(message: SystemMessage) -> dict[str, str | None]:
    return dict(message.sections)


class One(Task[None, None], name="test.one", version=1):
    class Run(Phase):
        async def run(self, task: TaskRun[None, None]) -> None:
            await task.complete()


def test_an_invalid_install_raises_and_publishes_nothing() -> None:
    registry = Registry()
    changes: list[int] = []
    registry.install(Extension("a", tasks=[One], tools=[look]))
    stop = registry.subscribe(lambda: changes.append(1))
    before = registry.snapshot()
    for make in (
        lambda: Extension("b", tasks=[One]),
        lambda: Extension("b", tools=[look, look]),
        lambda: Extension("b", sections=[section("k", "x"), section("k", "y")]),
        lambda: Extension("b", tools=[print]),  # type: ignore[list-item]
        lambda: Extension("b", hooks=[print]),  # type: ignore[list-item]
        lambda: Extension("b", tasks=[int]),  # type: ignore[list-item]
        lambda: Extension(""),
        lambda: look,
    ):
        with pytest.raises(RegistryError):
            registry.install(make())  # type: ignore[arg-type]
    assert registry.snapshot() is before
    assert changes == []
    registry.install(Extension("a", tasks=[One]))  # in place of itself
    registry.uninstall("a")
    registry.uninstall("a")
    stop()
    registry.install(Extension("b", tasks=[One]))
    assert len(changes) == 3


def test_an_extension_replaces_the_one_of_its_name_in_place() -> None:
    registry = Registry()
    for name in "abc":
        registry.install(Extension(name))
    registry.install(Extension("b", tools=[look]))
    assert [extension.name for extension in registry.snapshot().extensions] == ["a", "b", "c"]
    assert list(registry.snapshot().tools()) == ["look"]


def test_a_later_tool_or_section_replaces_an_earlier_one_in_place_and_wrappers_apply_to_the_winner() -> None:
    later = look.replaced(description="later")
    errors: list[tuple[str, str]] = []

    def broken(_target: Any) -> Any:
        raise LookupError

    registry = Registry()
    registry.install(
        Extension(
            "a",
            tools=[look, move],
            sections=[section("x", "a"), section("y", "a")],
            wraps=[wrap_tool("look", lambda found: found.replaced(description=found.description + "!"))],
        )
    )
    registry.install(
        Extension(
            "b",
            tools=[later],
            sections=[section("x", "b")],
            wraps=[
                wrap_tool("look", lambda found: found.replaced(description=found.description + "?")),
                wrap_tool("move", broken),
                wrap_tool("absent", broken),
                wrap_section("y", broken),
            ],
        )
    )

    def on_error(extension: str, callback: str, error: Exception) -> None:
        errors.append((extension, callback))

    tools = registry.snapshot().tools(None, on_error)
    assert {name: found.description for name, found in tools.items()} == {"look": "later!?"}
    parts = registry.snapshot().sections(None, on_error)
    assert {key: (part.text, extension) for key, (part, extension) in parts.items()} == {"x": ("b", "b")}
    assert errors == [("b", "wrap_tool('move')"), ("b", "wrap_section('y')")]


# -- the prompt --------------------------------------------------------------------------------------------------------


@bounded
async def test_only_differences_are_stored_and_equal_prompts_write_nothing() -> None:
    texts: dict[str, Any] = {"a": "1", "b": "2"}
    chat = Chat(lambda request: "answer")
    chat.install(
        name="e",
        sections=[section(key, lambda given, key=key: texts[key], tag=key == "a") for key in "ab"],
    )
    chat.registry.install(Extension("tools", tools=[look]))
    async with chat.open() as (_, root):
        await root.ask("one")
        await root.ask("two")
        [first] = await systems(root)
        assert sections(first) == {"a": "<a>\n1\n</a>", "b": "2"}
        assert [declared.name for declared in first.tools_added] == ["look"]
        texts.update(a="1", b=None)
        chat.registry.install(Extension("tools", tools=[move]))
        await root.ask("three")
        second = (await systems(root))[1]
        assert sections(second) == {"b": None}
        assert ([d.name for d in second.tools_added], second.tools_removed) == (["move"], ["look"])
        chat.registry.install(Extension("tools", tools=[move.replaced(description="changed")]))
        await root.ask("four")
        third = (await systems(root))[2]
        assert (sections(third), [d.description for d in third.tools_added], third.tools_removed) == (
            {},
            ["changed"],
            [],
        )
        await root.ask("five")
        assert len(await systems(root)) == 3
        assert chat.model.requests[-1].messages[0] == first
        assert [t.description for t in chat.model.requests[-1].tools] == ["changed"]


@bounded
async def test_without_sections_and_tools_nothing_is_stored() -> None:
    chat = Chat(lambda request: "answer")
    async with chat.open() as (_, root):
        await root.ask("one")
        await root.write("app.head", messages=[UserMessage([TextBlock("summary")])], head="self")
        await root.ask("two")
        assert await systems(root) == []


@bounded
async def test_after_a_head_a_complete_baseline_is_stored_and_leads() -> None:
    chat = Chat(lambda request: "answer")
    chat.install(look, sections=[section("a", "1", tag=False)])
    async with chat.open() as (_, root):
        await root.ask("one")
        await root.write("app.head", messages=[UserMessage([TextBlock("summary")])], head="self")
        await root.ask("two")
        first, second = await systems(root)
        assert sections(first) == sections(second) == {"a": "1"}
        assert first.tools_added == second.tools_added
        assert [message.role for message in chat.model.requests[-1].messages] == ["system", "user", "user"]
        assert [t.name for t in chat.model.requests[-1].tools] == ["look"]
        await root.ask("three")
        assert len(await systems(root)) == 2


@bounded
async def test_a_prompt_that_an_edit_took_out_is_shown_again() -> None:
    chat = Chat(lambda request: "answer")
    chat.install(sections=[section("a", "1", tag=False)])
    async with chat.open() as (_, root):
        await root.ask("one")
        [shown] = [e async for e in root.entries() if e.kind == "pi.system"]
        await root.write("app.edit", edits=[{"target": shown.id}])
        await root.ask("two")
        assert len(await systems(root)) == 2
        assert any(message.role == "system" for message in chat.model.requests[-1].messages)


@bounded
async def test_a_section_that_raises_keeps_its_shown_text_and_is_reported() -> None:
    broken = False

    async def text(given: Any) -> Any:
        if broken:
            raise LookupError
        return f"{given.conversation_id} {given.tools} {given.cwd} {given.env}"

    def wrong(given: Any) -> Any:
        return 7

    chat = Chat(lambda request: "answer")
    chat.env = "the env"
    chat.settings = Settings(cwd="/tmp")
    chat.install(look, name="e", sections=[section("a", text, tag=False), section("b", wrong)])
    async with chat.open() as (_, root):
        await root.ask("one")
        [first] = await systems(root)
        assert sections(first) == {"a": "1 ('look',) /tmp the env"}
        assert chat.reported() == [("extension_error", "section 'b'")]
        broken = True
        await root.ask("two")
        assert len(await systems(root)) == 1
        assert chat.reported()[1:] == [("extension_error", "section 'a'"), ("extension_error", "section 'b'")]
        assert chat.reports[1].task is not None


# -- the agent ---------------------------------------------------------------------------------------------------------


@bounded
async def test_unset_fields_follow_the_settings_and_none_clears() -> None:
    chat = Chat(lambda request: "answer")
    chat.settings = Settings(thinking="low", instructions="be brief", cwd="/a")
    async with chat.open() as (_, root):
        await root.ask("one")
        assert chat.model.requests[0].thinking == "low"
        await root.configure(thinking="high", instructions="be long")
        agent = await root.agent()
        assert (agent.thinking, agent.instructions, agent.cwd, agent.model) == (
            "high",
            "be long",
            "/a",
            "scripted:demo",
        )
        await root.ask("two")
        await root.configure(instructions=None)
        chat.settings = Settings(thinking="low", instructions="be new", cwd="/b")
        agent = await root.agent()
        assert (agent.thinking, agent.instructions, agent.cwd) == ("high", "be new", "/b")
        await root.ask("three")
        assert [sections(message) for message in await systems(root)] == [
            {"instructions": text} for text in ("be brief", "be long", "be new")
        ]
        with pytest.raises(TypeError, match="an agent has no colour"):
            await root.configure(colour="red")


@bounded
async def test_lists_are_replaced_or_edited_and_take_objects_or_names() -> None:
    chat = Chat(lambda request: "answer")
    chat.install(look, move, name="a")
    chat.registry.install(Extension("b", tools=[Tool("jump", execute=lambda: None)]))
    async with chat.open() as (_, root):

        async def offered() -> list[str]:
            return list((await root.agent()).offered)

        assert await offered() == ["look", "move", "jump"]
        await root.configure(tools=Edit(remove=[look]))
        assert await offered() == ["move", "jump"]
        await root.configure(tools=Edit(add=["look", move]))
        assert await offered() == ["move", "jump", "look"]
        await root.configure(tools=[look, "unknown"])
        assert await offered() == ["look"]
        await root.configure(tools=None)
        await root.configure(extensions=Edit(remove=["a"]))
        assert await offered() == ["jump"]
        await root.configure(extensions=None, model_tools=Edit(remove=["move"]))
        agent = await root.agent()
        assert (list(agent.offered), list(agent.tools)) == (["look", "jump"], ["look", "move", "jump"])
        await root.configure(model_tools=None, model=chat.model)
        assert (await root.agent()).model == "scripted:demo"
        with pytest.raises(ValueError, match="is not a name"):
            await root.configure(tools=[7])


@bounded
async def test_what_the_model_is_offered_follows_the_settings_too() -> None:
    """Section 10: settings have the agent's fields; ``model_tools`` says what is offered of the tools that may run."""
    chat = Chat(lambda request: "answer")
    chat.install(look, move, Tool("jump", execute=lambda: None))
    chat.settings = Settings(model_tools=("look", "absent"))
    async with chat.open() as (_, root):
        await root.ask("one")
        agent = await root.agent()
        assert (list(agent.offered), list(agent.tools)) == (["look"], ["look", "move", "jump"])
        assert [offered.name for offered in chat.model.requests[-1].tools] == ["look"]
        assert agent.unresolved == ("tool absent",)
        await root.configure(model_tools=Edit(add=["move"]))
        assert list((await root.agent()).offered) == ["look", "move"]
        chat.settings = Settings(model_tools=("jump",))
        assert list((await root.agent()).offered) == ["look", "move"]
        await root.configure(model_tools=None)
        assert list((await root.agent()).offered) == ["jump"]


@bounded
async def test_names_survive_while_they_are_not_installed() -> None:
    chat = Chat(lambda request: "answer")
    chat.install(look, name="a", sections=[section("s", "from a", tag=False)])
    async with chat.open() as (harness, root):
        await root.configure(extensions=["a"], tools=["look"])
        await root.ask("one")
        chat.registry.uninstall("a")
        await root.ask("two")
        agent = await root.agent()
        assert (dict(agent.tools), agent.unresolved) == ({}, ("extension a", "tool look"))
        chat.install(look, name="a", sections=[section("s", "from a", tag=False)])
        await root.ask("three")
        shown = await systems(root)
        assert [(sections(m), [t.name for t in m.tools_added], list(m.tools_removed)) for m in shown] == [
            ({"s": "from a"}, ["look"], []),
            ({"s": None}, [], ["look"]),
            ({"s": "from a"}, ["look"], []),
        ]
        assert (await harness.inspect()).unresolved == ()


@bounded
async def test_hooks_of_extensions_that_are_not_selected_do_not_run_and_others_run_in_order() -> None:
    ran: list[str] = []

    def hook(name: str) -> Any:
        return [GenerationHooks(after_response=lambda message, ctx: ran.append(name))]

    chat = Chat(lambda request: "answer")
    for name in "abc":
        chat.install(name=name, hooks=hook(name))
    async with chat.open() as (_, root):
        await root.configure(extensions=["c", "a"])
        await root.ask("hi")
        assert ran == ["a", "c"]


@bounded
async def test_an_owned_conversation_starts_with_a_copy_of_its_owners_agent_and_an_ownerless_one_empty() -> None:
    made: list[Any] = []

    class Owner(Task[None, None], name="test.owner", version=1):
        class Run(Phase):
            async def run(self, task: TaskRun[None, None]) -> None:
                harness = task._session
                made.append(await harness.create_conversation(owner=task.id))  # type: ignore[attr-defined]
                made.append(
                    await harness.create_conversation(  # type: ignore[attr-defined]
                        owner=task.id, agent=AgentChange(thinking="off")
                    )
                )
                await task.complete()

    chat = Chat(lambda request: "answer")
    chat.install(tasks=[Owner])
    async with chat.open() as (harness, root):
        await root.configure(thinking="high", instructions="brief")
        async with root.commit() as tx:
            task = await tx.create_task(Owner, None)
        await harness.wait_for_task(task)
        made.append(await harness.create_conversation())
        agents = [await conversation.agent() for conversation in made]
        assert [(a.thinking, a.instructions) for a in agents] == [("high", "brief"), ("off", "brief"), ("off", None)]
        await root.configure(instructions="changed")
        assert (await made[0].agent()).instructions == "brief"
