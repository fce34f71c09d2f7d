"""Opening a session in this kernel, and what is found there (notebook.md, ``%durable open``)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ..agent.agent import AgentChange
from ..agent.harness import Harness
from ..agent.settings import Settings
from ..agent.state import InboxState, LiveState
from ..errors import NotebookError
from ..models import default_models
from ..records import Attempt
from . import frontend
from .branches import BranchesState
from .bridge import Bridge, engine
from .chat import Chat
from .defaults import defaults
from .displays import display, request_name
from .installed import check_model, model_name, registry
from .opened import mains, opened, session_name, sessions
from .opensession import OpenSession
from .present import recovery_view
from .render import mimebundle

__all__ = ["close_at_shutdown", "open", "real_path"]


def open(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    instructions: str | None = None,
    paused: bool = False,
    name: str | None = None,
    settings: Settings | Callable[[], Settings] | None = None,
    env: Any = None,
    show: bool | None = None,
) -> Chat:
    """Open or create a session in this kernel, show what was recovered, and resume it; blocking.

    ``path`` is a SQLite file, ``jsonl:DIR`` or ``:memory:``. ``model`` is a name such as ``"local:smollm2"``, or a
    model object, which then answers to its id. A session that is open here already is returned. While recovered work
    names tools that this kernel lacks, the session stays paused and goes on by itself once they are installed;
    ``paused`` holds it until ``resume()``. Raises ``SessionInUse``, ``StorageError`` and ``UnknownModel``.
    """
    text = os.fspath(path)
    key = name or session_name(text)
    bridge = engine()
    here = [chat for chat in mains() if text != ":memory:" and real_path(chat.path) == real_path(text)]
    observed = next((chat for chat in here if chat.observed), None)  # it ends when the session is open
    same = next((chat for chat in here if chat is not observed), None)
    present = next((chat for chat in sessions() if chat.name == key and chat is not observed), None)
    if present is not None and present is not same and (text != ":memory:" or present.path != text):
        raise NotebookError(f"a session named {key} is open on {present.path}: choose another name with --as NAME")
    if same is not None and present is not same:
        raise NotebookError(f"{text} is open here already, as {same.name}: `%durable use {same.name}` switches to it")
    if present is not None:
        if model is not None or instructions is not None:
            present.configure(**_agent_fields(model, instructions))
        chat, fresh = present, False
    else:
        chat = bridge.run(_open, bridge, text, key, _agent_fields(model, instructions), paused, settings, env)
        fresh = True
        close_at_shutdown(bridge)
        if observed is not None:
            observed.close()
    opened(chat, key)
    if show if show is not None else frontend.in_ipython():
        chat._shown_in = request_name()
        display(mimebundle(chat.recovery if fresh else chat.status()))
    return chat


def _agent_fields(model: Any, instructions: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if model is not None:
        fields["model"] = model_name(model)
    if instructions is not None:
        fields["instructions"] = instructions
    return fields


def real_path(path: str) -> str:
    """What makes two names of a session the same."""
    return path if path == ":memory:" else os.path.realpath(path.removeprefix("jsonl:"))


async def _open(
    bridge: Bridge,
    path: str,
    name: str,
    agent: dict[str, Any],
    paused: bool,
    settings: Settings | Callable[[], Settings] | None,
    env: Any,
) -> Chat:
    first = agent.get("model") or defaults().model
    if first is not None:
        # Making a provider's model imports its client; the engine's loop goes on meanwhile.
        await asyncio.to_thread(check_model, first)
    if settings is None:  # each cell is a question of its own: one that fails does not keep the next waiting
        settings = Settings(after_failed_run="continue")
    given = settings
    session: OpenSession | None = None

    def in_force() -> Settings:
        if session is not None:
            return session.settings()
        return given() if callable(given) else given

    harness = await Harness.open(path, models=default_models, registry=registry, settings=in_force, env=env)
    try:
        harness.run_in_kernel = bridge.run_in_kernel
        harness.hold = True
        new = await harness.conversation(1) is None
        given_model = {} if defaults().model is None else {"model": defaults().model}
        await harness.root(agent=AgentChange(**(given_model | agent)))
        session = OpenSession(bridge, harness, given)
        branches = await harness.snapshot(BranchesState) or BranchesState()
        chat = Chat(session, name, label="", line=branches.line(""))
        if agent and not new:
            await chat.conversation.configure(**agent)
        inspection = await harness.inspect()
        lives = await harness.storage.lives()
        found = await _cut_off(harness)
        live = await harness.snapshot(LiveState, chat.conversation.id) or LiveState()
        prompts = await _prompts(chat)
        if paused:
            session.hold.pause()
        else:
            await session.hold.wait_for_tools()
        session.recovery = recovery_view(
            chat.path,
            lives,
            inspection,
            live,
            found,
            prompts=prompts,
            paused=paused,
            waiting_for=session.hold.waiting_for,
        )
    except BaseException:
        await harness.close()
        raise
    return chat


async def _cut_off(harness: Harness) -> list[Attempt]:
    """The attempts that the death of the last life cut off."""
    last = harness.storage.life.id
    attempts: list[Attempt] = []
    for item in (await harness.inspect()).tasks:
        attempts.extend(await harness.storage.attempts(task=item.record.id))
    newest = max((attempt.life for attempt in attempts), default=last)
    return [attempt for attempt in attempts if attempt.end == "cut_off" and attempt.life == newest]


async def _prompts(chat: Chat) -> dict[int, str]:
    """The texts of the open submissions."""
    prompts: dict[int, str] = {}
    inbox = await chat.harness.snapshot(InboxState, chat.conversation.id)
    for item in inbox.items if inbox is not None else ():
        prompts[item.submission] = "\n".join(block.text for block in item.content if block.type == "text")
    for record in (await chat.harness.inspect()).submissions:
        if record.entry is not None:
            entry = await chat.harness.storage.entry(record.entry)
            if entry is not None:
                prompts[record.id] = entry.text
    return prompts


_closes: set[Bridge] = set()


def close_at_shutdown(bridge: Bridge) -> None:
    """Close every session when the kernel shuts down; the bridge bounds how long that may take."""
    if bridge in _closes:
        return
    _closes.add(bridge)

    async def close_all() -> None:
        await asyncio.gather(*(chat._session.close() for chat in mains()), return_exceptions=True)

    bridge.on_shutdown(close_all)
