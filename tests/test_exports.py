"""The public names and signatures: other people's code uses them, so that a change here is a decision."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import pidurable_nb
from pidurable_nb import errors

PINNED = set(
    [
        "AgentChange",
        "AgentState",
        "Block",
        "CompactionHooks",
        "CompactionPolicy",
        "Continue",
        "Conversation",
        "Decline",
        "Document",
        "Edit",
        "EntryEdit",
        "Extension",
        "GenerationHooks",
        "Harness",
        "InboxState",
        "JsonlStorage",
        "LiveState",
        "MemoryStorage",
        "Phase",
        "ProgressPolicy",
        "Registry",
        "Replace",
        "RequestOptions",
        "RetryPolicy",
        "RunLimits",
        "Session",
        "Settings",
        "SqliteStorage",
        "StoredTask",
        "Submission",
        "Summary",
        "Task",
        "TaskRun",
        "Tool",
        "ToolContext",
        "ToolControl",
        "ToolHooks",
        "ToolResult",
        "UsageState",
        "Wake",
        "observe",
        "open_storage",
        "run_end_task",
        "section",
        "tool",
        "workflow",
        "wrap_section",
        "wrap_tool",
    ]
)
MODULES = {"errors", "messages", "models", "notebook", "records", "storage", "testing", "tools"}


def test_the_root_exports_exactly_the_pinned_names() -> None:
    assert set(pidurable_nb.__all__) == PINNED | MODULES


def test_the_root_s_names_are_sorted_and_unique() -> None:
    assert pidurable_nb.__all__ == sorted(set(pidurable_nb.__all__))


@pytest.mark.parametrize("name", sorted(PINNED | MODULES))
def test_a_name_of_the_root_can_be_imported(name: str) -> None:
    value = getattr(pidurable_nb, name)
    assert name in dir(pidurable_nb)
    if name in MODULES:
        assert value is importlib.import_module(f"pidurable_nb.{name}")
    else:
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_type_checkers_see_the_names_where_they_are() -> None:
    """The imports for type checkers and the table of homes say the same."""
    import ast

    tree = ast.parse(inspect.getsource(pidurable_nb))
    guard = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {}
    for node in guard.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen[alias.name] = node.module
    modules = {name for name, home in seen.items() if home is None}
    assert modules == MODULES
    assert {name: home for name, home in seen.items() if home is not None} == pidurable_nb._HOME


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pidurable_nb.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["errors", "models", "storage", "session", "tasks", "testing", "tools"])
def test_a_module_s_exports_exist_and_are_sorted(module: str) -> None:
    loaded = importlib.import_module(f"pidurable_nb.{module}")
    names = loaded.__all__
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(loaded, name)] == []


def test_every_module_opens_by_saying_what_it_holds() -> None:
    silent = []
    for found in pkgutil.walk_packages(pidurable_nb.__path__, "pidurable_nb."):
        if found.name.endswith(("__main__", "local_server")):
            continue
        if not (importlib.import_module(found.name).__doc__ or "").strip():
            silent.append(found.name)
    assert silent == []


# -- errors ----------------------------------------------------------------------------------------------------------

PINNED_ERRORS = set(
    [
        "DurableError",
        "ConversationBusy",
        "Unanswered",
        "ReadAfterWrite",
        "TransactionClosed",
        "CommitReentered",
        "DocumentMissing",
        "InvocationEnded",
        "SessionClosed",
        "SessionFailed",
        "SessionInUse",
        "StorageError",
        "StorageCorrupt",
        "StorageRequestError",
        "SchemaTooNew",
        "DocumentVersionError",
        "InvalidDocument",
        "WaitCycle",
        "OwnerEnded",
        "WouldDeadlock",
        "RequestIdReused",
        "SessionForked",
        "StepInterrupted",
        "WorkflowChanged",
        "ScriptExhausted",
    ]
)


def test_every_pinned_error_is_there_under_one_base() -> None:
    assert set(errors.__all__) >= PINNED_ERRORS
    assert all(issubclass(getattr(errors, name), errors.DurableError) for name in errors.__all__)


def test_the_error_tree_in_the_docstring_is_the_real_one() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    stack: list[str] = ["DurableError"]
    for line in errors.__doc__.splitlines():
        position = max(line.find("├── "), line.find("└── "))
        if position < 0:
            continue
        name = line[position + 4 :].split()[0]
        depth = (position - 4) // 4 + 1
        stack[depth:] = [name]
        drawn[name] = stack[depth - 1]
    real = {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__ if name != "DurableError"}
    assert drawn == real


# -- signatures ------------------------------------------------------------------------------------------------------

SIGNATURES = {
    "Harness.open": "storage * models registry settings env conversation_created clock on_report on_wake",
    "Harness.root": "* agent init",
    "Harness.conversation": "id",
    "Harness.create_conversation": "* owner agent init",
    "Harness.conversations": "* owner_task owner_conversation order",
    "Harness.task": "id",
    "Harness.tasks": "* conversation kind status abort_requested background order",
    "Harness.wait_for_task": "id",
    "Harness.abort_task": "id",
    "Harness.submission": "id",
    "Harness.submissions": "* conversation status order",
    "Harness.inspect": "",
    "Harness.usage": "",
    "Harness.task_graph": "",
    "Harness.watch_task_graph": "",
    "Harness.wait_for_idle": "",
    "Harness.resume": "",
    "Harness.wake": "",
    "Session.open": "storage * settings clock on_report",
    "Session.commit": "",
    "Session.snapshot": "doc scope * key",
    "Session.snapshot_as_of": "doc conversation * at key",
    "Session.watch_doc": "doc scope * key",
    "Session.watch_commits": "",
    "Session.close": "",
    "Session.wait_closed": "",
    "Conversation.submit": "content * request_id when_busy kind data",
    "Conversation.write": "kind * messages data head edits request_id",
    "Conversation.agent": "",
    "Conversation.context": "* at",
    "Conversation.entry": "id",
    "Conversation.entries": "* min_id max_id order",
    "Conversation.retry": "* request_id",
    "Conversation.abort": "* background",
    "Conversation.commit": "",
    "Conversation.wait_for_idle": "",
    "Conversation.view": "",
    "Conversation.watch": "",
    "Submission.status": "",
    "Submission.wait": "",
    "Submission.abort": "",
    "open_storage": "where",
    "SqliteStorage.open": "path * synchronous",
    "JsonlStorage.open": "dir * fsync",
    "TaskRun.next": "phase",
    "TaskRun.complete": "result",
    "TaskRun.fail": "message detail",
    "TaskRun.aborted": "reason",
    "TaskRun.sleep_until": "until then",
    "TaskRun.wait": "on then * policy",
    "TaskRun.memo": "name candidate",
    "TaskRun.outcomes": "ids",
    "Registry.install": "extension",
    "Registry.uninstall": "extension",
    "Registry.snapshot": "",
    "Registry.subscribe": "listener",
    "ToolContext.output": "chunk",
    "ToolContext.diagnostic": "message * severity code",
    "run_end_task": "task input",
    "wrap_tool": "name wrap",
}
"""Positional names before ``*``, keyword-only ones after it; more keyword-only ones may exist."""


def find(path: str) -> Any:
    value: Any = pidurable_nb
    for part in path.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("path", sorted(SIGNATURES))
def test_a_pinned_signature_holds(path: str) -> None:
    parameters = [
        parameter for name, parameter in inspect.signature(find(path)).parameters.items() if name not in ("self", "cls")
    ]
    before, _, after = SIGNATURES[path].partition("*")
    positional = [found.name for found in parameters if found.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = {found.name for found in parameters if found.kind is inspect.Parameter.KEYWORD_ONLY}
    assert positional == before.split()
    assert keywords >= set(after.split())


@pytest.mark.parametrize("name", ["Settings", "RunLimits", "RetryPolicy", "CompactionPolicy", "ProgressPolicy"])
def test_settings_have_the_pinned_fields_and_are_frozen(name: str) -> None:
    fields = {
        "Settings": "model thinking extensions tools instructions cwd limits request retry compaction progress "
        "tool_execution steering_mode follow_up_mode after_failed_run restart_limit context_retention "
        "document_retention",
        "RunLimits": "turns tokens cost session_cost",
        "RetryPolicy": "enabled max_retries base_delay max_delay",
        "CompactionPolicy": "enabled reserve_tokens keep_recent_tokens background_tokens",
        "ProgressPolicy": "partial_interval output_interval",
    }[name].split()
    cls = getattr(pidurable_nb, name)
    assert set(cls.model_fields) >= set(fields)
    with pytest.raises(ValueError, match="frozen"):
        setattr(cls(), fields[0], None)
    with pytest.raises(ValueError, match=r"[Ee]xtra"):
        cls(no_such_option=1)
