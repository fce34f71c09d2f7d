"""The static forms of every view: readable without styles, free of script, the same words in each."""

from __future__ import annotations

import re

import pytest

from pidurable_nb.notebook.render import Shown, mimebundle, to_html, to_markdown, to_text
from pidurable_nb.notebook.view import (
    AnswerView,
    ComparisonView,
    ConversationRow,
    ConversationsView,
    ErrorView,
    NoticeItem,
    RecoveryRow,
    RecoveryView,
    StatusRow,
    StatusView,
    TaskRow,
    TasksView,
    TextItem,
    ThinkingItem,
    ToolItem,
    TranscriptEntry,
    TranscriptView,
    View,
    clean_output,
    compact_arguments,
    duration_words,
)

HOSTILE = '</pre></details><script>x()</script><img src=x onerror=y()>" onclick="z()\x1b]0;t\x07\x1b[31m'

CRASHED = AnswerView(
    submission=14,
    status="done",
    model="local:smollm2",
    attempt=2,
    started_at=100.0,
    ended_at=112.4,
    input_tokens=1204,
    output_tokens=31,
    cost=0.0012,
    note="stored answer from 14:02 · --again asks anew",
    items=(
        TextItem(key="x0", text="The **capital** is", state="aborted"),
        NoticeItem(key="n", text="the kernel died here; attempt 2", level="warn"),
        ThinkingItem(key="t", text="one two three"),
        ToolItem(
            key="c", name="look", arguments={"q": "Paris"}, status="done", replay="safe", duration=1.2, result="found"
        ),
        TextItem(key="x1", text="It is **Paris**."),
    ),
)


def words(markup: str) -> str:
    """What is left of HTML where every tag and style is removed, as GitHub does with most of them."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup))


def test_an_answer_says_everything_without_styles() -> None:
    text = words(to_html(CRASHED))
    for part in (
        "✓ done",
        "local:smollm2 · attempt 2 · 12 s",
        "cut off when its process ended · kept",
        "warning the kernel died here; attempt 2",
        "thinking · 3 words",
        'look(q="Paris") · 1.2 s · safe to repeat',
        "found",
        "It is Paris .",
        "1,204 tokens in · 31 out · $0.0012 · stored answer from 14:02 · --again asks anew",
    ):
        assert part in text.replace("&quot;", '"')


def test_the_cut_off_part_is_struck_through_above_the_new_one() -> None:
    markup = to_html(CRASHED)
    assert markup.index("<del") < markup.index("capital") < markup.index("</del>") < markup.index("Paris</strong>")


def test_what_a_person_stopped_is_the_answer_and_not_struck_through() -> None:
    view = AnswerView(status="aborted", reason="aborted", items=(TextItem(key="x", text="It was", state="aborted"),))
    assert "<del" not in to_html(view)
    assert "stopped here · kept" in to_html(view)
    assert view.text == "It was"
    assert view.problem is None


def test_the_text_of_an_answer_leaves_out_what_was_cut_off() -> None:
    assert CRASHED.text == "It is **Paris**."


def test_the_prompt_is_shown_only_where_asked_for() -> None:
    view = AnswerView(status="done", prompt="What now?")
    assert "What now?" not in to_html(view)
    shown = view.replaced(show_prompt=True)
    assert "What now?" in to_html(shown)
    assert to_markdown(shown) == "> What now?"
    assert "> What now?" in to_text(shown)


def test_markdown_of_an_answer_is_its_text_with_its_calls_quoted() -> None:
    assert to_markdown(CRASHED) == "\n\n".join(
        [
            "> *cut off when its process ended · kept*\n>\n> The **capital** is",
            "> the kernel died here; attempt 2",
            '> `look(q="Paris")` · done · 1.2 s · safe to repeat',
            "It is **Paris**.",
        ]
    )


def test_text_of_an_answer_is_complete_and_plain() -> None:
    assert to_text(CRASHED).splitlines() == [
        "✓ done · local:smollm2 · attempt 2 · 12 s · 1,204 tokens in · 31 out · $0.0012",
        "~~ cut off when its process ended · kept ~~",
        "~ The **capital** is",
        "! the kernel died here; attempt 2",
        "[thinking · 3 words]",
        '✓ look(q="Paris") · done · 1.2 s · safe to repeat',
        "    found",
        "It is **Paris**.",
        "(stored answer from 14:02 · --again asks anew)",
    ]


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (AnswerView(status="unanswered", reason="model_error", detail_text="401"), "no answer the model failed: 401"),
        (AnswerView(status="unanswered", reason="odd_reason"), "no answer odd_reason"),
        (AnswerView(status="retrying", retry_at=9.0, retry_error="503"), "retrying 503"),
        (AnswerView(status="waiting", reason="approve call 7"), "waiting approve call 7"),
        (AnswerView(status="deferred"), "at the provider"),
        (AnswerView(status="queued", model="m"), "queued · m"),
    ],
)
def test_every_state_has_a_word_and_its_reason(view: AnswerView, says: str) -> None:
    assert says in words(to_html(view))
    assert view.badge.word in to_text(view)


def test_a_long_result_is_cut_and_says_where_the_rest_is() -> None:
    tool = ToolItem(key="c", name="t", status="done", result="x" * 9000)
    view = AnswerView(submission=5, status="done", items=(tool,))
    assert "… 5,000 more characters (%durable show 5)" in to_html(view)
    assert len(to_html(view)) < 7000


RECOVERY = RecoveryView(
    path="chat.sqlite",
    previous="crashed",
    previous_pid=42,
    previous_host="lab",
    rows=(RecoveryRow("tool", "shell(…)", "running", "is not repeated", "warn"),),
    paused=True,
    waiting_for=("tool `weather`: run its cell",),
)


def test_the_recovery_card_says_what_was_and_what_will_be() -> None:
    text = words(to_html(RECOVERY))
    assert "The last owner (process 42 on lab) died without closing it." in text
    assert "1 thing was in flight:" in text
    assert "! tool shell(…) running is not repeated" in text
    assert "waiting for tool weather : run its cell" in text
    assert "! tool shell(…) · was: running · now: is not repeated" in to_text(RECOVERY)


@pytest.mark.parametrize(
    ("view", "word", "sentence"),
    [
        (RecoveryView(path="p"), "new session", "Nothing was stored here before."),
        (RecoveryView(path="p", previous="closed"), "opened", "Nothing was in flight."),
        (RecoveryView(path="p", previous="failed"), "recovered", "ended with a storage error"),
        (RecoveryView(path="p", previous="closed", paused=True), "paused", "%durable resume"),
    ],
)
def test_the_recovery_card_names_each_ending(view: RecoveryView, word: str, sentence: str) -> None:
    for form in (to_text(view), words(to_html(view))):
        assert word in form
        assert sentence in form


def test_the_times_of_the_last_owner_name_a_shared_day_once() -> None:
    view = RecoveryView(path="p", previous="crashed", previous_opened_at=1e9, previous_commit_at=1e9 + 60)
    assert re.search(r"Opened \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, last commit \d\d:\d\d:\d\d\.$", view.headline)
    other = view.replaced(previous_commit_at=1e9 + 90_000)
    assert re.search(r"last commit \d{4}-\d\d-\d\d", other.headline)


CARD_TAGS = set(
    re.findall(r"\w+", "div span strong details summary pre code p del blockquote table thead tbody tr th td")
)
HOSTILE_VIEWS: list[View] = [
    AnswerView(
        status="done",
        prompt=HOSTILE,
        show_prompt=True,
        model=HOSTILE,
        note=HOSTILE,
        detail_text=HOSTILE,
        items=(
            TextItem(key="a", text=HOSTILE),
            TextItem(key="b", text=HOSTILE, state="aborted", label=HOSTILE),
            ThinkingItem(key="c", text=HOSTILE),
            NoticeItem(key="d", text=HOSTILE),
            ToolItem(
                key="e",
                name=HOSTILE,
                arguments={HOSTILE: [HOSTILE]},
                output=HOSTILE,
                status="error",
                result=HOSTILE,
                details_text=HOSTILE,
                diagnostics=((HOSTILE, HOSTILE),),
            ),
        ),
    ),
    AnswerView(status="unanswered", reason=HOSTILE, detail_text=HOSTILE),
    RecoveryView(
        path=HOSTILE,
        previous="crashed",
        previous_pid=1,
        previous_host=HOSTILE,
        rows=(RecoveryRow("tool", HOSTILE, HOSTILE, HOSTILE),),
        waiting_for=(HOSTILE,),
    ),
    ErrorView(message=HOSTILE, remedy=HOSTILE, detail_text=HOSTILE),
    StatusView(title=HOSTILE, rows=(StatusRow(HOSTILE, HOSTILE),)),
    TasksView(rows=(TaskRow(id=1, kind=HOSTILE, status=HOSTILE, phase=HOSTILE, about=HOSTILE),)),
    TranscriptView(
        entries=(
            TranscriptEntry(id=1, role="user", text=HOSTILE, title=HOSTILE, model=HOSTILE, markers=(HOSTILE,)),
            TranscriptEntry(id=2, role="tool", text=HOSTILE + "\n" + HOSTILE),
        )
    ),
    ConversationsView(rows=(ConversationRow(id=1, name=HOSTILE, said=HOSTILE, depth=2, current=True),)),
    ComparisonView(
        left=HOSTILE, right=HOSTILE, ours=(TranscriptEntry(id=1, role="note", text=HOSTILE, title=HOSTILE),), theirs=()
    ),
]


@pytest.mark.parametrize("view", HOSTILE_VIEWS, ids=lambda view: type(view).__name__)
def test_no_text_of_a_view_becomes_markup_or_an_escape_sequence(view: View) -> None:
    markup = to_html(view)
    tags = {re.match(r"</?([a-z0-9]+)", tag).group(1) for tag in re.findall(r"<[^>]*>", markup)}  # type: ignore[union-attr]
    assert tags <= CARD_TAGS
    for attributes in re.findall(r"<[a-z0-9]+((?: [^<>]*)?)>", markup):
        assert re.fullmatch(r'(?: (?:style="[^"]*"|open|aria-hidden="true"|scope="row"|tabindex="0"))*', attributes)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", to_text(view))


def test_every_tag_is_closed() -> None:
    for view in (CRASHED, RECOVERY, *HOSTILE_VIEWS):
        open_tags: list[str] = []
        for closing, tag in re.findall(r"<(/?)([a-z0-9]+)", to_html(view)):
            if closing:
                assert open_tags.pop() == tag
            elif tag not in ("br", "hr"):
                open_tags.append(tag)
        assert open_tags == []


def test_no_colour_is_fixed_for_one_theme() -> None:
    for view in (CRASHED, RECOVERY, *HOSTILE_VIEWS):
        for style in re.findall(r'style="([^"]*)"', to_html(view)):
            assert not re.search(r"background(?:-color)?:(?!none|rgba\(128,128,128)", style)
            assert not re.search(r"(?<![-\w])color:(?!inherit|(?:color-mix\(in srgb, )?var\(--jp-)", style)


def test_a_status_and_a_table_of_tasks_read_as_text() -> None:
    status = StatusView(title="chat.sqlite", state="running", rows=(StatusRow("model", "m"), StatusRow("inbox", "2")))
    assert to_text(status) == "◐ running · chat.sqlite\n  model  m\n  inbox  2"
    facts = StatusView(title="models", rows=(StatusRow("demo", "ready"),))
    assert to_text(facts) == "models\n  demo  ready"
    assert "idle" not in to_html(facts)
    tasks = TasksView(rows=(TaskRow(id=1, kind="pi.tool", status="blocked", depth=1, about="no such tool"),), hidden=2)
    assert to_text(tasks) == "3 live tasks\n    1 pi.tool · ! blocked · no such tool\n  and 2 more"
    assert to_text(TasksView()) == "no live tasks · --all lists those that ended"


def test_a_transcript_marks_what_was_cut_off() -> None:
    view = TranscriptView(
        conversation=1,
        earlier=3,
        entries=(
            TranscriptEntry(id=4, role="user", text="Hi"),
            TranscriptEntry(id=5, role="assistant", text="Hel", markers=("aborted",), struck=True),
        ),
    )
    assert to_text(view) == "conversation 1 · 2 entries\n… 3 earlier\nyou · #4\n  Hi\nanswer · #5 · aborted\n  ~ Hel"
    assert "<del" in to_html(view)


def test_branches_read_as_text() -> None:
    assert to_text(
        ConversationsView(
            rows=(
                ConversationRow(id=1, said="Rome"),
                ConversationRow(id=9, depth=1, name="draft", at=5, said="Paris", current=True, busy=True),
            )
        )
    ) == ("2 conversations\n  1 · Rome\n    9 draft · you are here · busy · from #5 · Paris")
    left = TranscriptEntry(id=7, role="user", text="Paris")
    assert to_text(ComparisonView(left="a", right="b", at=5, shared=2, ours=(left,))) == (
        "they share 2 entries, through #5\na:\n  you · #7\n    Paris\nb:\n  nothing more"
    )
    assert to_text(ComparisonView(left="a", right="b")).startswith("they share nothing")


def test_an_error_is_one_line_of_text() -> None:
    assert to_text(ErrorView(message="It failed.", remedy="Try again.")) == "✕ It failed. Try again."


def test_markdown_of_a_card_cannot_leave_its_code_block() -> None:
    assert to_markdown(ErrorView(message="```\n# no")) == "````\n✕ ```\n# no\n````"


def test_a_bundle_has_markdown_only_for_a_settled_answer() -> None:
    assert set(mimebundle(CRASHED)) == {"text/plain", "text/html", "text/markdown"}
    assert set(mimebundle(AnswerView(status="running"))) == {"text/plain", "text/html"}
    assert set(mimebundle(RECOVERY)) == {"text/plain", "text/html"}


def test_a_shown_view_shows_itself() -> None:
    shown = Shown(RECOVERY)
    assert repr(shown) == to_text(RECOVERY)
    assert shown._repr_mimebundle_() == mimebundle(RECOVERY)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ms"),
        (0.04, "40 ms"),
        (0.0996, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (3600, "1 h 00 min"),
        (-1, "0 ms"),
    ],
)
def test_durations_in_words(seconds: float, expected: str) -> None:
    assert duration_words(seconds) == expected


def test_arguments_on_one_line() -> None:
    assert compact_arguments({"city": "Paris", "days": 3}) == 'city="Paris", days=3'
    assert compact_arguments({"text": "x" * 400}).endswith("…")
    assert len(compact_arguments({"text": "x" * 400})) == 160
    assert compact_arguments([1, None]) == "[1,null]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;https://a.b\x1b\\link\x1b]8;;\x07", "link"),
        (" 10%\r 50%\r100%\ndone", "100%\ndone"),
        ("a\r\nb\r", "a\nb"),
        ("\x00a\tb\u202ec", "a\tbc"),
    ],
)
def test_output_is_cleaned_as_a_terminal_would(text: str, expected: str) -> None:
    assert clean_output(text) == expected


def test_the_images_of_a_result_are_part_of_the_page() -> None:
    pictures = ("data:image/png;base64,aGk=", "data:image/jpeg;base64,aGk=")
    view = AnswerView(items=(ToolItem(key="c", name="plot", status="done", result="two", pictures=pictures),))
    markup = to_html(view)
    assert re.findall(r'<img src="([^"]*)" alt="([^"]*)"', markup) == [
        (pictures[0], "image 1 of the result"),
        (pictures[1], "image 2 of the result"),
    ]
    assert "</img>" not in markup
    assert "<details open" in markup
    assert view.wire()["items"][0]["pictures"] == list(pictures)
