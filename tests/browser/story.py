"""A session to watch in the browser: a notebook, a model that tells a story slowly, and what a test asks about them.

``Story.write`` puts a notebook into a folder of its own, with a module ``story`` beside it that registers the model
``scripted:story``. The model answers by the question, so that it says the same in every life of the kernel, and notes
each request in a file, so that requests are counted over all lives.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lab import Lab, LabNotebook, Theme

SETUP = "%load_ext pidurable_nb\nimport story"
OPEN = "%durable open chat.sqlite --model scripted:story"

SHORT = "Say one short sentence."
LONG = "Tell me about a harbour."
AFTER = "Why does it survive?"
HANG = "Begin, and never end."

MODULE = '''\
from pathlib import Path

from pidurable_nb.messages import ToolCall
from pidurable_nb.models import Hang, Reply, ScriptedModel, default_models

TELL = """\\
The harbour wakes before the town does. Boats leave **one by one**, and each lamp that goes out is a small decision.

By noon there are three things on the quay:

1. nets that dry in the wind,
2. a radio that nobody listens to,
3. the cat.

In the evening the order is reversed, and nothing is lost but time."""

REQUESTS = Path("requests.log")
HOSTILE = Path("hostile.txt")


def answer(request):
    asked = [message.text for message in request.messages if message.role == "user"][-1]
    with REQUESTS.open("a") as log:
        log.write(asked.replace("\\n", " ") + "\\n")
    if asked == "Say one short sentence.":
        return "Ready when you are."
    if asked == "Tell me about a harbour.":
        return Reply(TELL, tokens_per_second=25)
    if asked == "Why does it survive?":
        return "Because `commit` comes first and *showing* comes second."
    if asked == "Begin, and never end.":
        times = REQUESTS.read_text().count(asked)
        return Hang(TELL[: 190 if times == 1 else 260])
    if asked == "Run the tool.":
        if request.messages[-1].role == "user":
            return Reply(HOSTILE.read_text(), tool_calls=[ToolCall("c1", "echo", {"text": HOSTILE.read_text()})])
        return Reply(HOSTILE.read_text(), thinking=HOSTILE.read_text(), tokens_per_second=400)
    return f"You said: `{asked}`"


default_models.register(ScriptedModel(answer, name="scripted:story"))
'''


def ask(question: str, options: str = "") -> str:
    """The source of a cell that asks."""
    return f"%%durable {options}".rstrip() + f"\n{question}"


@dataclass(frozen=True)
class Story:
    """One notebook of a story, in a folder of its own."""

    lab: Lab
    folder: Path

    @classmethod
    def write(cls, lab: Lab, folder: str, cells: Sequence[str], *, name: str = "story.ipynb") -> Story:
        """Write the notebook and the module beside it."""
        story = cls(lab, lab.root / folder)
        assert not story.folder.is_file(), f"{folder} is a file of another test"
        assert not (story.folder / name).exists(), f"another test has written {folder}/{name}"
        lab.write(f"{folder}/{name}", cells)
        (story.folder / "story.py").write_text(MODULE)
        return story

    def open(
        self, *, name: str = "story.ipynb", mode: str = "lab", theme: Theme = "light", width: int = 1400
    ) -> LabNotebook:
        """Open the notebook in a fresh page."""
        return self.lab.open(f"{self.folder.name}/{name}", mode=mode, theme=theme, width=width)

    def requests(self) -> list[str]:
        """The question of every request that the model got, over all lives of the kernel."""
        log = self.folder / "requests.log"
        return log.read_text().splitlines() if log.exists() else []

    def submissions(self) -> list[dict[str, Any]]:
        """The inputs that the session file holds, oldest first, while some process may be writing to it."""
        with sqlite3.connect(f"file:{self.folder / 'chat.sqlite'}?mode=ro", uri=True) as file:
            rows = file.execute("SELECT payload FROM submissions ORDER BY id").fetchall()
        file.close()
        found = [json.loads(payload) for (payload,) in rows]
        return [record for record in found if record["type"] == "input"]

    def ends(self) -> list[str | None]:
        """How each life of the session ended, oldest first."""
        with sqlite3.connect(f"file:{self.folder / 'chat.sqlite'}?mode=ro", uri=True) as file:
            rows = file.execute("SELECT ended FROM lives ORDER BY id").fetchall()
        file.close()
        return [ended for (ended,) in rows]


SAMPLE = """(cells) => {
  clearInterval(window.pidurableSampler);
  window.pidurableSamples = Object.fromEntries(cells.map((index) => [index, []]));
  const all = document.querySelectorAll(".jp-Notebook .jp-Cell");
  window.pidurableSampler = setInterval(() => {
    for (const index of cells) {
      const output = all[index].querySelector(".jp-Cell-outputWrapper");
      const live = output.querySelector(".pd-answer");
      window.pidurableSamples[index].push({
        form: live ? "live" : output.querySelector(".jp-RenderedHTML") ? "static" : "none",
        status: live?.dataset.status ?? null,
        height: output.getBoundingClientRect().height,
        text: output.querySelector(".pd-body")?.innerText ?? "",
      });
    }
  }, 30);
}"""


def sample(notebook: LabNotebook, cells: Sequence[int]) -> None:
    """Begin to note, thirty times a second, what the page shows of these cells' outputs."""
    notebook.page.evaluate(SAMPLE, list(cells))


def samples(notebook: LabNotebook, cell: int) -> list[dict[str, Any]]:
    """What was noted of the cell since its output came."""
    noted: list[dict[str, Any]] = notebook.page.evaluate(f"window.pidurableSamples[{cell}]")
    first = next((at for at, seen in enumerate(noted) if seen["form"] != "none"), len(noted))
    return noted[first:]


# What is wider than its place, what lies on something else, and what is cut off where it should not be.
FAULTS = """() => {
  const faults = [];
  const name = (node) => `${node.localName}.${node.className} "${node.innerText?.slice(0, 30)}"`;
  const panel = document.querySelector(".jp-Notebook");
  for (let node = panel; node; node = node.parentElement)
    if (node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX !== "visible")
      faults.push(`${node.className} scrolls sideways: ${node.scrollWidth} in ${node.clientWidth}`);
  const edge = panel.getBoundingClientRect().right;
  let below = -Infinity;
  for (const cell of panel.querySelectorAll(".jp-Cell")) {
    const box = cell.getBoundingClientRect();
    if (box.top < below - 1) faults.push(`${name(cell)} lies on the cell above`);
    below = box.bottom;
  }
  for (const output of panel.querySelectorAll(".jp-OutputArea-output")) {
    const place = output.getBoundingClientRect();
    for (const node of output.querySelectorAll("*")) {
      const box = node.getBoundingClientRect();
      if (!box.width || node.closest("svg svg, pre, table, .pd-lanes")) continue;
      if (box.right > Math.min(place.right, edge) + 1) faults.push(`${name(node)} sticks out: ${box.right}`);
      const style = getComputedStyle(node);
      const cut = style.overflowX === "hidden" && node.scrollWidth > node.clientWidth + 1;
      if (cut && !node.matches(".pd-call, .pd-name, .pd-rest")) faults.push(`${name(node)} is cut off`);
    }
    const parts = [...output.querySelectorAll(".pd-badge, .pd-facts, .pd-time, .pd-button, .pd-link, .pd-note")]
      .filter((node) => node.innerText && node.getClientRects().length)
      .map((node) => [node, node.getBoundingClientRect()]);
    parts.forEach(([one, a], index) => parts.slice(index + 1).forEach(([other, b]) => {
      if (one.contains(other) || other.contains(one)) return;
      const apart = a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
      if (!apart) faults.push(`${name(one)} lies on ${name(other)}`);
    }));
  }
  return faults;
}"""


def faults(notebook: LabNotebook) -> list[str]:
    """Whatever is wrong with the layout of the notebook as it is shown now."""
    found: list[str] = notebook.page.evaluate(FAULTS)
    return found


def pictures(notebook: LabNotebook, directory: Path, stem: str) -> Iterable[Path]:
    """Pictures in both themes, wide and narrow; each with a layout without faults."""
    for path in notebook.screenshots(directory, stem):
        notebook.page.wait_for_timeout(150)  # the page lays itself out anew
        assert faults(notebook) == [], path.name
        yield path
