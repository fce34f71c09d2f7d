"""A conversation, followed and spoken to from its live widget (notebook.md, "Live widgets", 2).

``watch(chat)`` gives a ``LiveView`` of a conversation. Each of its buttons does what a magic or a method of the engine
does: it sends, steers, asks afterwards, withdraws, decides about calls, stops, tries again, and forks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..agent.conversation import Conversation, ConversationView, WhenBusy
from ..agent.harness import Harness
from ..agent.state import AgentState
from ..errors import DurableError
from ..records import ConversationId, Entry, EntryId
from ..values import JsonValue
from .branches import BranchesState
from .following import Follower, noticing, task_details
from .live import LiveView, session_of
from .opened import session_name
from .pressed import connect, decide, number, words
from .talkview import TalkView, talk_view

if TYPE_CHECKING:
    from .chat import Chat
    from .widgets import ViewWidget

__all__ = ["TalkFollower", "actions", "follower", "stopped_inputs", "watch"]

PAGE = 60
"""So many entries are shown at first, and so many more each time that older ones are asked for."""

LOOK = 1.0
"""Seconds between two looks when nothing is committed: for a session that was held back, and a notebook that moved."""

_MODES: dict[str, WhenBusy] = {"send": "follow_up", "follow_up": "follow_up", "steer": "steer"}


class TalkFollower(Follower[TalkView]):
    """Follows the newest part of the conversation that ``home`` gives, and on request of another one, until ``home``
    gives a new one, as it does when a notebook is rewound. ``held`` says why nothing runs, ``writes`` that the session
    may be written to."""

    session: Harness

    def __init__(
        self,
        home: Callable[[], Conversation],
        harness: Harness,
        *,
        held: Callable[[], str | None] = lambda: None,
        writes: bool = True,
    ) -> None:
        super().__init__(harness)
        self.conversation = home()
        self._home = home
        self._home_id = self.conversation.id
        self._held = held
        self._writes = writes
        self._limit = PAGE
        self._entries: list[Entry] = []
        self._earlier = False
        self._stopped: set[int] = set()
        self._agent: AgentState | None = None
        self._model: str | None = None
        self._stopping = False
        self._now_shown: ConversationView | None = None
        self._show: Callable[[TalkView], object] = lambda _: None
        self._one: asyncio.Future[None] | None = None
        self._name: str | None = None
        self.view = TalkView(conversation=self._home_id)

    async def load(self) -> TalkView:
        self._entries, self._agent = [], None
        branches = await self.session.snapshot(BranchesState)
        self._name = None if branches is None else branches.label_of(self.conversation.id)
        return await self._take(await self.conversation.view())

    async def follow(self, show: Callable[[TalkView], object]) -> None:
        self._show = show
        while True:
            followed = self.conversation
            self._one = asyncio.ensure_future(self._follow_one())
            try:
                await self._one
            except asyncio.CancelledError:
                if self.conversation is followed:
                    raise
            if self.conversation is followed:
                return

    async def _follow_one(self) -> None:
        """Follow one conversation until the session ends, or until it is another one's turn."""
        async with self.conversation.watch() as watch, noticing(watch, lambda _: None) as wait:
            self._show(await self.load())
            while await wait(LOOK):
                if (home := self._home()).id != self._home_id:
                    self._home_id, self.conversation = home.id, home
                    self._limit, self._stopping = PAGE, False
                    return
                before = self.view
                if await self._take(watch.value) != before:
                    self._show(self.view)
            self._now_shown = watch.value
        reason = watch.end.reason if watch.end is not None else "closed"
        over = "its session has failed" if reason == "failed" else "the session was closed here; open it again to go on"
        self.view = self._made(over=over)
        self._show(self.view)

    # -- what buttons ask for ----------------------------------------------------------------------------------------

    async def older(self) -> None:
        """Show more of what came before."""
        self._limit += PAGE
        self._show(await self.load())

    async def switch(self, conversation: Conversation) -> None:
        """Follow another conversation of the session from now on."""
        self.conversation = conversation
        self._home_id = self._home().id
        self._limit, self._stopping = PAGE, False
        self._show(await self.load())
        if self._one is not None:
            self._one.cancel()

    async def stopping(self) -> None:
        """Say that a stop was heard, until nothing runs."""
        self._stopping = True
        self._show(await self._take(await self.conversation.view()))

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _take(self, view: ConversationView) -> TalkView:
        added = await self._read(view)
        if added:
            self._stopped = await stopped_inputs(self.session, self._entries)
        if view.agent != self._agent:
            self._agent, self._model = view.agent, (await self.conversation.agent()).model
        self._stopping = self._stopping and view.live.run is not None
        self._now_shown = view
        self.view = self._made()
        return self.view

    def _made(self, *, over: str | None = None) -> TalkView:
        assert self._now_shown is not None, "what is shown was read"
        return talk_view(
            self._now_shown,
            self._entries,
            earlier=self._earlier,
            held=self._held(),
            stopped=self._stopped,
            stopping=self._stopping,
            model=self._model,
            name=self._name,
            writes=self._writes,
            over=over,
        )

    async def _read(self, view: ConversationView) -> bool:
        """Bring the entries up to a view. Whether there are new ones."""
        if not self._entries:
            found = await self.conversation.entries().list(self._limit + 1)
            self._earlier = len(found) > self._limit
            self._entries = found[: self._limit][::-1]
            self._trim()
            return True
        last = self._entries[-1].id
        new: Sequence[Entry] = [entry for entry in view.entries if entry.id > last]
        if not new:
            return False
        if view.entries[0].id > last:  # the model's context begins anew, and there may be entries before it
            new = await self.conversation.entries(min_id=last + 1, max_id=new[-1].id, order="ascending").list()
        self._entries.extend(new)
        if len(self._entries) >= self._limit + PAGE:
            self._earlier = True
            del self._entries[: len(self._entries) - self._limit]
            self._trim()
        return True

    def _trim(self) -> None:
        """Begin with a question where one is near: what came before it would be half a turn."""
        if self._earlier:
            first = next((i for i, entry in enumerate(self._entries[: PAGE // 2]) if entry.kind == "pi.user"), 0)
            del self._entries[:first]


async def stopped_inputs(harness: Harness, entries: Sequence[Entry]) -> set[int]:
    """The entries of the inputs whose run was stopped; nothing is read when no answer was cut off."""
    messages = [message for entry in entries for message in entry.messages]
    if not any(message.role == "assistant" and message.stop_reason == "aborted" for message in messages):
        return set()
    found: set[int] = set()
    for conversation in {entry.conversation_id for entry in entries}:
        async for record in harness.submissions(conversation=conversation, order="descending"):
            if record.entry is not None and record.reason == "aborted":
                found.add(record.entry)
    return found


def actions(chat: Chat, follower: TalkFollower) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """What the buttons of a followed conversation do, by name; to be called where the widget is displayed."""
    harness = chat.harness
    shown_in = contextvars.copy_context()

    async def send(message: Mapping[str, Any]) -> JsonValue:
        mode = _MODES.get(words(message, "mode"))
        if mode is None:
            raise ValueError("a message is sent, steers or follows")
        submission = await follower.conversation.submit(words(message, "text"), when_busy=mode)
        chat._session.print_in(submission.id, shown_in)
        return {"submission": submission.id}

    async def stop(_: Mapping[str, Any]) -> None:
        await follower.stopping()
        if follower.conversation.id == chat.conversation.id:
            await chat._stop()
        else:
            await follower.conversation.abort()

    async def again(message: Mapping[str, Any]) -> JsonValue:
        entry, text = EntryId(number(message, "entry")), words(message, "text")
        followed = follower.conversation
        if followed.id == chat.conversation.id:  # the notebook goes on there, as after `%durable rewind`
            submission = await chat._branches.revise(entry, text, None)
            branch = chat.conversation
        else:
            branch, submission = await followed.revise(entry, text)
        chat._session.print_in(submission.id, shown_in)
        await follower.switch(branch)
        return {"submission": submission.id}

    async def fork(message: Mapping[str, Any]) -> JsonValue:
        entry = number(message, "entry")
        _, id = await chat._branches.fork(entry, None, None, session_name(chat.path))
        await follower.switch(Conversation(harness, ConversationId(id)))
        return {"conversation": id}

    async def open(message: Mapping[str, Any]) -> None:
        id = number(message, "conversation")
        found = await harness.conversation(id)
        if found is None:
            raise DurableError(f"there is no conversation {id}")
        await follower.switch(found)

    async def retry(_: Mapping[str, Any]) -> None:
        await follower.conversation.retry()

    async def withdraw(message: Mapping[str, Any]) -> None:
        done = await harness._abort_submission(number(message, "submission"))
        if done != "aborted":
            raise DurableError("too late: it is being answered" if done == "already_placed" else "it has ended before")

    return {
        "send": send,
        "stop": stop,
        "again": again,
        "fork": fork,
        "open": open,
        "retry": retry,
        "withdraw": withdraw,
        "decide": lambda message: decide(follower.conversation, message),
        "older": lambda _: follower.older(),
        "task": lambda message: task_details(session_of(chat), number(message, "task")),
    }


def follower(chat: Chat) -> TalkFollower:
    """What follows the conversation where a notebook is."""
    return TalkFollower(
        lambda: chat.conversation, chat.harness, held=lambda: chat._hold.reason, writes=not chat.observed
    )


def watch(chat: Chat) -> LiveView[TalkView]:
    """A conversation, live: its transcript, what waits, and a place to write; blocking until its first form is read."""
    followed = follower(chat)

    def widget(view: TalkView) -> ViewWidget:
        from .widgets_talk import ConversationWidget

        made = ConversationWidget(view)
        connect(chat._bridge, made, actions(chat, followed))
        return made

    chat._bridge.run(followed.load)
    return LiveView(chat._bridge, followed, widget, f"conversation of {chat.name}")
