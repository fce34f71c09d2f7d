"""Tools of real MCP servers: processes that speak over their standard streams, and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pidurable_nb import Registry
from pidurable_nb.errors import DurableError
from pidurable_nb.tools import McpServer, mcp_tools

from .mcp_server import PNG
from .support import Chat, alive, bounded, call, calls, eventually, live, results

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


async def called(server: McpServer, *wanted: tuple[str, dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Calls of a server's tools, one after the other in one conversation."""
    chat = Chat(*(calls(call(name, given, f"c{n}")) for n, (name, given) in enumerate(wanted)), "done")
    chat.registry.install(server)
    async with chat.open() as (_, root):
        await root.ask("go")
        return await results(root)


@bounded
async def test_a_server_s_tools_are_offered_and_called() -> None:
    server = await mcp_tools(COMMAND, name="tests")
    try:
        assert [tool.name for tool in server.tools] == ["add", "pid_of", "picture", "broken", "die", "wait"]
        [add] = [tool for tool in server.tools if tool.name == "add"]
        assert add.description == "Add two numbers."
        assert sorted(add.declaration.parameters["properties"]) == ["a", "b"]
        found = await called(server, ("add", {"a": 1, "b": 2}), ("picture", {}), ("broken", {}), ("add", {"a": 1}))
    finally:
        await server.close()
    (added, _), (picture, _), (broken, broken_data), (missing, missing_data) = found
    assert added.text == "3"
    assert [block.type for block in picture.content] == ["text", "image"]
    assert base64.b64decode(picture.content[1].data) == PNG
    assert broken.text == "Error executing tool broken"
    assert (broken.is_error, broken_data["code"]) == (True, "tool_error")
    assert "'b'" in missing.text
    assert missing_data["code"] == "invalid_arguments"


@bounded
async def test_calls_share_a_server_which_ends_with_its_connection() -> None:
    server = await mcp_tools(COMMAND, name="tests")
    found = await called(server, ("pid_of", {}), ("pid_of", {}))
    first, second = (int(message.text) for message, _ in found)
    assert first == second
    assert alive(first)
    await server.close()
    await eventually(lambda: not alive(first))
    [(message, _)] = await called(server, ("pid_of", {}))
    assert int(message.text) != first
    await server.close()


def test_a_server_ends_with_the_loop() -> None:
    pids: list[int] = []

    @bounded
    async def without_a_close() -> None:
        server = await mcp_tools(COMMAND, name="tests")
        pids.extend(int(message.text) for message, _ in await called(server, ("pid_of", {})))

    without_a_close()
    asyncio.run(eventually(lambda: not alive(pids[0])))


@bounded
async def test_a_server_that_died_is_started_again() -> None:
    server = await mcp_tools(COMMAND, name="tests")
    try:
        (died, data), (added, _) = await called(server, ("die", {}), ("add", {"a": 1, "b": 1}))
    finally:
        await server.close()
    assert (died.is_error, data["code"]) == (True, "tool_error")
    assert added.text == "2"


@bounded
async def test_an_abort_ends_the_call_and_leaves_the_server() -> None:
    server = await mcp_tools(COMMAND, name="tests")
    chat = Chat(calls("wait"), calls(call("add", {"a": 2, "b": 2})), "done")
    chat.registry.install(server)
    try:
        async with chat.open() as (harness, root):
            await root.submit("go")

            async def half_way() -> bool:
                details = [item.details for item in (await live(harness, root)).tools]
                return details == [{"progress": 1.0, "total": 2.0, "message": "half way"}]

            await eventually(half_way)
            await root.abort()
            assert (await results(root))[0][1]["code"] == "aborted"
            await root.ask("again")
            assert (await results(root))[1][0].text == "4"
    finally:
        await server.close()


@bounded
async def test_a_server_s_word_on_replay_counts_only_when_it_is_trusted() -> None:
    plain = await mcp_tools(COMMAND, name="tests", prefix="t_", approval=True)
    trusted = await mcp_tools(COMMAND, name="tests", trust_hints=True)
    assert {tool.replay for tool in plain.tools} == {"unsafe"}
    assert {tool.name: tool.replay for tool in trusted.tools if tool.replay == "safe"} == {"add": "safe"}
    assert plain.tools[0].name == "t_add"
    assert all(tool.approval for tool in plain.tools)
    Registry().install(plain)


@bounded
async def test_a_server_that_cannot_be_reached_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await mcp_tools(["no-such-program-anywhere"], name="tests")
    with pytest.raises(Exception, match=r"(?i)closed|connect"):
        await mcp_tools([sys.executable, "-c", "pass"], name="tests", timeout=15)
    with pytest.raises(TimeoutError):
        await mcp_tools([sys.executable, "-c", "input(); input(); input()"], name="tests", timeout=0.5)


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[str]:
    port = tmp_path / "port"
    with subprocess.Popen([*COMMAND, str(port)]) as process:
        try:
            asyncio.run(eventually(lambda: port.exists() and port.read_text()))
            yield f"http://127.0.0.1:{port.read_text()}/mcp"
        finally:
            process.kill()


def test_a_server_over_http(http_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    @bounded
    async def over_http() -> None:
        server = await mcp_tools(http_server, name="tests")
        try:
            [(message, _)] = await called(server, ("add", {"a": 20, "b": 22}))
        finally:
            await server.close()
        assert message.text == "42"

    over_http()


ODD = """
import json, sys, time

mode = sys.argv[1]
if mode == "silent":
    time.sleep(600)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"name": "x", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked.get("method") == "tools/list":
        names = ["a.b", "a_b", "a b", "n" * 70, "n" * 80]
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        if mode == "endless":
            result["nextCursor"] = "again"
    elif asked.get("method") == "tools/call":
        result = {"content": [{"type": "text", "text": asked["params"]["name"]}]}
    else:
        if "id" in asked:
            error = {"code": -32601, "message": "no"}
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@bounded
async def test_tools_whose_names_would_be_the_same_have_names_of_their_own() -> None:
    server = await mcp_tools([sys.executable, "-c", ODD, "plain"], name="odd")
    try:
        names = [tool.name for tool in server.tools]
        assert names == ["a_b", "a_b_2", "a_b_3", "n" * 64, "n" * 62 + "_2"]
        found = await called(server, ("a_b", {}), ("a_b_3", {}), (names[-1], {}))
    finally:
        await server.close()
    assert [message.text for message, _ in found] == ["a.b", "a b", "n" * 80]


@bounded
async def test_a_list_of_tools_without_end_is_an_error() -> None:
    with pytest.raises(DurableError, match="the MCP server of odd gives the same page of its tools again and again"):
        await mcp_tools([sys.executable, "-c", ODD, "endless"], name="odd")


@bounded
async def test_a_server_that_says_nothing_is_an_error_that_says_so() -> None:
    with pytest.raises(TimeoutError, match=r"the MCP server did not answer within 0\.5 s of connecting"):
        await mcp_tools([sys.executable, "-c", ODD, "silent"], name="odd", timeout=0.5)
