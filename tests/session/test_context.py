"""What the model reads (engine.md, section 5)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st

from pidurable_nb.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolDeclaration,
    ToolResultMessage,
    UserMessage,
)
from pidurable_nb.records import ConversationId, Entry, EntryEdit, EntryId
from pidurable_nb.session.context import MISSING_RESULT, ConversationContext, Shown, derive

HOME = ConversationId(1)


def user(text: str) -> UserMessage:
    return UserMessage([TextBlock(text)])


def says(text: str, *calls: str, stop: Any = None) -> AssistantMessage:
    content: list[Any] = [TextBlock(text)] if text else []
    content += [ToolCall(call, "tool") for call in calls]
    return AssistantMessage(content, stop_reason=stop or ("tool_use" if calls else "stop"))


def result(call: str, text: str = "") -> ToolResultMessage:
    return ToolResultMessage(call, "tool", [TextBlock(text or f"result of {call}")])


def system(text: str | None = None, **sections: str | None) -> SystemMessage:
    return SystemMessage(sections={"main": text} if text is not None else sections)


class Transcript:
    """Entries with growing ids; ``last`` is the id of the newest."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.last = 10

    def add(self, *messages: Message, head: int | str | None = None, edits: Any = (), kind: str = "app.x") -> int:
        self.last += 1
        at = self.last if head == "self" else head
        entry = Entry(
            id=EntryId(self.last),
            conversation_id=HOME,
            kind=kind,
            messages=messages,
            head=None if at is None else EntryId(int(at)),
            edits=tuple(edits),
        )
        self.entries.append(entry)
        return self.last

    def context(self) -> ConversationContext:
        """From scratch: the newest head, and the entries from it on."""
        heads = [entry for entry in self.entries if entry.head is not None]
        head = heads[-1] if heads else None
        first = 0 if head is None or head.head is None else head.head
        return ConversationContext(head, [entry for entry in self.entries if entry.id >= first])

    def texts(self) -> list[str]:
        return [told(message) for message in self.context().view().messages]


def told(message: Message) -> str:
    text = message.text
    if message.role == "assistant" and message.tool_calls:
        text += "(" + ",".join(call.id for call in message.tool_calls) + ")"
    return f"{message.role[0]}:{text}"


def omit(target: int) -> EntryEdit:
    return EntryEdit(EntryId(target))


def replace(target: int, *messages: Message) -> EntryEdit:
    return EntryEdit(EntryId(target), "replace", messages)


def test_without_a_head_everything_is_read() -> None:
    t = Transcript()
    t.add(user("one"))
    t.add(kind="app.note")
    t.add(says("two"))
    assert t.texts() == ["u:one", "a:two"]


def test_a_head_starts_the_range_at_its_target_and_its_own_messages_come_first() -> None:
    t = Transcript()
    t.add(user("old"))
    kept = t.add(user("kept"))
    t.add(says("answer"))
    t.add(user("summary"), head=kept)
    t.add(user("new"))
    assert t.texts() == ["u:summary", "u:kept", "a:answer", "u:new"]
    t.add(user("fresh start"), head="self")
    assert t.texts() == ["u:fresh start"]


def test_a_head_without_messages_of_its_own_cuts_all_the_same() -> None:
    t = Transcript()
    t.add(user("old"))
    t.add(head="self")
    assert t.texts() == []
    t.add(user("new"))
    assert t.texts() == ["u:new"]


def test_an_earlier_head_in_range_is_left_out() -> None:
    t = Transcript()
    first = t.add(user("first"))
    t.add(user("summary one"), head="self")
    t.add(user("between"))
    t.add(user("summary two"), head=first)
    assert t.texts() == ["u:summary two", "u:first", "u:between"]


def test_the_newest_edit_of_a_target_wins_and_edits_before_the_range_do_not_count() -> None:
    t = Transcript()
    one = t.add(user("one"))
    two = t.add(user("two"))
    t.add(edits=[omit(one), replace(two, user("2"))])
    assert t.texts() == ["u:2"]
    t.add(edits=[replace(one, user("1"), user("1b"))])
    assert t.texts() == ["u:1", "u:1b", "u:2"]
    three = t.add(user("three"))
    t.add(edits=[omit(three)])
    t.add(user("summary"), head=three, edits=[replace(three, user("3"))])
    assert t.texts() == ["u:summary", "u:3"]


def test_a_head_can_be_edited_by_a_later_entry() -> None:
    t = Transcript()
    head = t.add(user("summary"), head="self")
    t.add(user("next"))
    t.add(edits=[replace(head, user("better summary"))])
    assert t.texts() == ["u:better summary", "u:next"]


def test_results_follow_their_call_in_call_order_ahead_of_what_came_between() -> None:
    t = Transcript()
    t.add(user("go"))
    t.add(says("", "a", "b"))
    t.add(user("between"))
    t.add(result("b"))
    t.add(result("a"))
    t.add(says("done"))
    assert t.texts() == ["u:go", "a:(a,b)", "t:result of a", "t:result of b", "u:between", "a:done"]


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_is_dropped() -> None:
    t = Transcript()
    t.add(result("stray"))
    t.add(user("go"))
    t.add(says("", "a", "b"))
    t.add(result("b"))
    t.add(result("other"))
    t.add(result("b", "again"))
    t.add(user("next"))
    messages = t.context().view().messages
    assert [told(message) for message in messages] == [
        "u:go",
        "a:(a,b)",
        f"t:{MISSING_RESULT}",
        "t:result of b",
        "u:next",
    ]
    made_up = messages[2]
    assert made_up.role == "tool_result"
    assert (made_up.is_error, made_up.call_id, made_up.tool_name) == (True, "a", "tool")


def test_a_late_result_of_a_call_that_another_answer_followed_is_dropped() -> None:
    t = Transcript()
    t.add(says("", "a"))
    t.add(says("went on"))
    t.add(result("a"))
    assert t.texts() == ["a:(a)", f"t:{MISSING_RESULT}", "a:went on"]


def test_unfinished_answers_are_left_out_of_messages_and_kept_in_entries() -> None:
    t = Transcript()
    t.add(user("go"))
    for stop in ("aborted", "error", "deferred"):
        t.add(says(f"{stop} part", stop=stop))
    t.add(says("cut by length", stop="length"))
    assert t.texts() == ["u:go", "a:cut by length"]
    assert len(t.context().view().entries) == 5


def test_the_calls_of_an_unfinished_answer_need_no_results() -> None:
    t = Transcript()
    t.add(user("go"))
    t.add(says("", "a", stop="aborted"))
    t.add(says("done"))
    assert t.texts() == ["u:go", "a:done"]


def test_the_first_system_message_leads_when_only_user_messages_precede_it() -> None:
    t = Transcript()
    t.add(user("one"))
    t.add(user("two"))
    t.add(system("be brief"))
    t.add(user("three"))
    t.add(system("be briefer"))
    assert t.texts() == ["s:be brief", "u:one", "u:two", "u:three", "s:be briefer"]


def test_a_system_message_after_an_answer_stays_where_it_is() -> None:
    t = Transcript()
    t.add(user("one"))
    t.add(says("two"))
    t.add(system("be brief"))
    assert t.texts() == ["u:one", "a:two", "s:be brief"]


def test_the_baseline_after_a_head_leads_whatever_precedes_it() -> None:
    t = Transcript()
    kept = t.add(user("kept"))
    t.add(says("answer"))
    t.add(user("summary"), head=kept)
    t.add(user("next"))
    t.add(system("baseline"))
    assert t.texts() == ["s:baseline", "u:summary", "u:kept", "a:answer", "u:next"]


def test_what_the_transcript_shows_follows_patches_edits_and_heads() -> None:
    t = Transcript()
    tool = ToolDeclaration("look")
    t.add(SystemMessage({"a": "1", "b": "2"}, tools_added=[tool]))
    patch = t.add(SystemMessage({"b": None, "c": "3"}, tools_removed=["look"]))
    assert t.context().shown == Shown(None, {"a": "1", "c": "3"}, {})
    t.add(edits=[omit(patch)])
    assert t.context().shown == Shown(None, {"a": "1", "b": "2"}, {"look": tool})
    head = t.add(user("summary"), head="self")
    shown = t.context().shown
    assert (shown.sections, shown.tools, shown.baseline) == ({}, {}, True)
    t.add(system("again"))
    shown = t.context().shown
    assert (shown.sections, shown.baseline, t.context().head) == ({"main": "again"}, False, t.entries[head - 11])


# -- the incremental context is the one from scratch -----------------------------------------------------------------

CALLS = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(user, st.sampled_from(["hi", "there"])),
    st.builds(
        lambda text, calls, stop: says(text, *calls, stop=stop),
        st.sampled_from(["", "well"]),
        CALLS,
        st.sampled_from([None, None, None, "aborted", "error", "deferred", "length"]),
    ),
    st.builds(result, st.sampled_from("abcd"), st.sampled_from(["", "other"])),
    st.builds(system, st.sampled_from(["x", "y"])),
)
STEPS = st.lists(
    st.tuples(
        st.lists(MESSAGES, max_size=2),
        st.sampled_from(["", "", "", "", "head", "self", "omit", "replace"]),
        st.integers(0, 8),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_a_context_that_was_extended_reads_as_one_from_scratch(steps: Any) -> None:
    t = Transcript()
    context = ConversationContext(None, [])
    for messages, what, back, look in steps:
        target = max(11, t.last - back)
        known = 11 <= target <= t.last
        if what == "self":
            t.add(*messages, head="self")
        elif what == "head" and known:
            t.add(*messages, head=target)
        elif what == "omit" and known:
            t.add(*messages, edits=[omit(target)])
        elif what == "replace" and known:
            t.add(*messages, edits=[replace(target, user("replaced"), system("replaced"))])
        else:
            t.add(*messages)
        if not context.extend(t.entries[-1]):
            context = t.context()
        fresh = t.context()
        if look:  # the settled part depends on when somebody looked
            assert context.view().messages == derive(fresh.head, fresh.entries)
        assert context.shown == fresh.shown
        assert context.entries == fresh.entries
    fresh = t.context()
    assert context.view().messages == derive(fresh.head, fresh.entries)
    assert context.view().head == fresh.head
    for entry in fresh.entries:
        if fresh.head is None or entry.id >= fresh.head.id:
            earlier = Transcript()
            earlier.entries = [e for e in t.entries if e.id <= entry.id]
            assert context.view_at(entry.id).messages == earlier.context().view().messages
