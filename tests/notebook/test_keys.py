"""A key in the environment reaches no file and no output: every byte that a session leaves is searched for it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from notebook_shells import Kernel

KEY = "planted-0123456789-key-of-no-known-shape"
HEADER = "planted-header-9876543210"

SCRIPT = ("limit", "call", "refuse", "answer")
"""What is answered to each request; the errors say the key back, as some providers do."""


class _Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        server: Any = self.server
        server.asked.append(self.headers["authorization"])
        step = SCRIPT[min(len(server.asked), len(SCRIPT)) - 1]
        if step in ("limit", "refuse"):
            said = f"Bad key {self.headers['authorization']} or {self.headers['x-project']} or {KEY}"
            body = json.dumps({"error": {"message": said, "type": "x", "code": KEY}}).encode()
            self.send_response(429 if step == "limit" else 401)
            if step == "limit":
                self.send_header("retry-after", "1")
            self.send_header("content-type", "application/json")
        else:
            delta: dict[str, Any] = {"content": "So it is."}
            if step == "call":
                function = {"name": "leaky", "arguments": "{}"}
                delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
            choices = [
                [{"index": 0, "delta": delta, "finish_reason": None}],
                [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if step == "call" else "stop"}],
            ]
            base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
            events = [f"data: {json.dumps({**base, 'choices': choice})}\n\n" for choice in choices]
            body = "".join([*events, "data: [DONE]\n\n"]).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def echo() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SETUP = """
import os
from pidurable_nb import RequestOptions, RetryPolicy, Settings, notebook, tool
from pidurable_nb.models import RecordingModel, default_models

default_models.register(RecordingModel("openai-chat:gpt-4o", "recording.jsonl"))

@tool(replay="safe")
def leaky() -> str:
    '''Ask something that wants a key.'''
    raise RuntimeError(f"401 for https://example.org/?q=1&key={os.environ['OPENAI_API_KEY']}")

notebook.install(leaky)
headers = {"x-project": os.environ["PROJECT_SECRET"]}
request = RequestOptions(headers=headers, timeout=30.0)
chat = notebook.open(PLACE, model="openai-chat:gpt-4o", settings=Settings(request=request, after_failed_run="continue"))
"""

QUESTIONS = ("Is it so?", "And then?")

AFTER = (
    "%durable history",
    "%durable context",
    "%durable tasks --all",
    "%durable usage",
    "%durable status",
    "%durable models",
    "%durable export chat.html",
    "%durable export chat.md",
    "%durable export chat.json",
    "chat.close()",
)


def forms_of(secret: str) -> list[bytes]:
    """The forms in which a secret could be found."""
    plain = secret.encode()
    return [
        plain,
        plain[8:-8],
        base64.b64encode(plain)[:-4],
        hashlib.sha256(plain).hexdigest().encode(),
        plain.hex().encode(),
    ]


@pytest.mark.kernel
@pytest.mark.parametrize("place", ["chat.sqlite", "jsonl:journal"])
def test_no_byte_of_a_key_is_stored_or_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    with echo() as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("PROJECT_SECRET", HEADER)
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}/v1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        kernel = Kernel(tmp_path).start()
        try:
            ran = [kernel.run(SETUP.replace("PLACE", repr(place)), timeout=120.0)]
            assert ran[0].status == "ok", ran[0].text
            ran += [kernel.run(f"%%durable --wait\n{question}", timeout=120.0) for question in QUESTIONS]
            ran += [kernel.run(cell, timeout=60.0) for cell in AFTER]
        finally:
            kernel.end()
    shown = [json.dumps(found.outputs, default=str) for found in ran]
    assert [found.status for found in ran[-len(AFTER) :]] == ["ok"] * len(AFTER)
    assert len(server.asked) == len(SCRIPT)
    assert all(KEY in found for found in server.asked)
    inspected = subprocess.run(
        [sys.executable, "-m", "pidurable_nb", "inspect", place.removeprefix("jsonl:")],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    doctor = subprocess.run([sys.executable, "-m", "pidurable_nb", "doctor"], capture_output=True, timeout=120)
    written = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {f"output of cell {number}": text.encode() for number, text in enumerate(shown)}
    written |= {"inspect": inspected.stdout + inspected.stderr, "doctor": doctor.stdout + doctor.stderr}
    assert {"recording.jsonl", "chat.html", "chat.md", "chat.json"} <= set(written)
    everything = b"".join(written.values())
    for seen in (b"Bad key", b"[redacted]", b"401 for https://example.org", b"So it is."):
        assert seen in everything, seen
    leaks = [
        (name, form)
        for name, data in written.items()
        for key in (KEY, HEADER)
        for form in forms_of(key)
        if form in data
    ]
    assert leaks == []
