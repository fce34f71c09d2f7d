"""A notebook with one session, run cell by cell in a shell of this process, over several lives of its kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from notebook_shells import Shell

from pidurable_nb import notebook
from pidurable_nb.models import Hang, Reply, ScriptedModel
from pidurable_nb.models.protocol import ModelRequest
from pidurable_nb.notebook import frontend

STORED = "stored answer from "
CHANGED = "changed since: "


class Book:
    """A notebook in a front end with cell ids, or, with ``runner``, without."""

    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch, model: ScriptedModel) -> None:
        self.shell = shell
        self.model = model
        self.cell: str | None = None
        self.runner = False
        monkeypatch.setattr(frontend, "cell_id", lambda: None if self.runner else self.cell)
        self.open()

    def open(self) -> None:
        self.chat = notebook.open("book.sqlite", model=self.model, show=False)

    def restart(self) -> None:
        """The next life of the kernel."""
        notebook.close()
        self.open()

    def run(self, cell: str, text: str, options: str = "", *, magic: str = "%%durable") -> str:
        self.cell = cell
        return self.shell.run(f"%%durable {options}\n{text}" if magic == "%%durable" else f"{magic} {text}")

    def fails(self, cell: str, text: str, options: str = "") -> str:
        self.cell = cell
        return self.shell.fails(f"%%durable {options}\n{text}")

    def submit(self, cell: str, text: str, *, again: bool = False) -> notebook.Turn:
        """Submit in a cell that does not wait."""
        self.shell.names["chat"] = self.chat
        self.shell.run(f"turn = chat.submit_cell({text!r}, cell={cell!r}, again={again})")
        turn: notebook.Turn = self.shell.names["turn"]
        return turn

    @property
    def asked(self) -> int:
        """How many requests the model got."""
        return len(self.model.requests)

    @property
    def submissions(self) -> list[tuple[int, str, str | None, str | None]]:
        found = self.chat.run(self.chat.harness.submissions().list)
        return [(item.id, item.status, item.reason, item.request_id) for item in found]


class Script:
    def __init__(self) -> None:
        self.fail = False

    def __call__(self, request: ModelRequest) -> Reply | Hang:
        asked = [message.text for message in request.messages if message.role == "user"][-1]
        if asked.startswith("hang"):
            return Hang(after="so far")
        if self.fail:
            return Reply(error="400 the request is bad")
        return Reply(f"You said {asked}")


Life = Callable[[Book], None]
