"""The child process that serves one GGUF file: ``python -m pidurable_nb.models.local_server`` (used by ``local``).

It reads one JSON line from its input: ``model`` (a path), ``alias``, ``context`` (tokens), ``threads``, ``idle``
(seconds until it leaves memory, -1 for never), ``template`` (a chat template, or null) and ``key``.
It writes JSON lines to its output: ``{"stage": "loading"}``, then ``{"stage": "listening", "url": …}`` or
``{"stage": "failed", "error": …}``. llama.cpp's own log goes to standard error.

It ends with its parent, however that ends: the end of its input ends it, and so does a change of its parent, which
it looks for each second because a fork of the parent may hold the other end of that pipe open. Linux's
``PR_SET_PDEATHSIG`` is not used: it fires when the *thread* that started the child ends, and the engine's threads do.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any


def _end_with_parent(parent: int) -> None:
    def at_end_of_input() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)

    def at_change_of_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=at_end_of_input, daemon=True).start()
    if sys.platform != "win32":  # a parent's id does not change there when it ends
        threading.Thread(target=at_change_of_parent, daemon=True).start()


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _serve(options: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]}
    params.n_ctx = options["context"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # a free one
    params.api_keys = [options["key"]]  # other users of the machine reach loopback too, and so do web pages
    params.ui = False
    params.use_jinja = True  # tool calls are made of the model's own template
    params.sleep_idle_seconds = options["idle"]
    if options["template"] is not None:
        params.chat_template = options["template"]
    params.cache_ram_mib = 0
    params.verbosity = 1
    return xllamacpp.Server(params)


def main() -> None:
    parent = os.getppid()
    options = json.loads(sys.stdin.buffer.readline())
    _end_with_parent(parent)
    _say(stage="loading")
    try:
        server = _serve(options)
        _say(stage="listening", url=server.listening_address)
    except Exception as error:
        _say(stage="failed", error=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error
    threading.Event().wait()


if __name__ == "__main__":
    main()
