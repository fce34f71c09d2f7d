"""The environment of this machine: paths, whole files, commands and their processes."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pidurable_nb.tools import CommandEnd, Environment, LocalEnvironment

from .support import alive, bounded, eventually, pid_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


async def run(env: LocalEnvironment, command: str, timeout: float | None = None) -> tuple[str, CommandEnd]:
    said = bytearray()
    end = await env.run(command, said.extend, timeout=timeout)
    return said.decode(), end


# -- paths -----------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path)
    assert isinstance(env, Environment)
    env.write("a/b.txt", b"text")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text"
    inner = env.at("a")
    assert inner.read("b.txt") == inner.read("../a/b.txt") == inner.read(str(tmp_path / "a" / "b.txt")) == b"text"
    assert inner.key("b.txt") == env.key("a/../a/b.txt")
    assert env.at(None) is env
    assert inner.read("b.txt", 1, 2) == b"ex"


@pytest.mark.parametrize("path", ["../outside.txt", "link.txt", "folder/outside.txt", "loop/../../outside.txt"])
def test_no_path_leads_out_of_the_root(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    (root / "link.txt").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    (root / "loop").symlink_to(root)
    env = LocalEnvironment(root, root=root)
    for path_given in (path, str(outside)):
        with pytest.raises(PermissionError, match="outside of"):
            env.read(path_given)
        with pytest.raises(PermissionError, match="outside of"):
            env.write(path_given, b"changed")
    assert outside.read_text() == "secret"


def test_a_working_directory_outside_of_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(PermissionError, match="confined"):
        LocalEnvironment(tmp_path, root=tmp_path / "root")
    with pytest.raises(PermissionError, match="confined"):
        LocalEnvironment(tmp_path / "root", root=tmp_path / "root").at("..")


def test_links_inside_the_root_are_followed_and_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    env = LocalEnvironment(tmp_path, root=tmp_path)
    env.write("link.txt", b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_spilled_output_can_be_read_beside_the_root(tmp_path: Path) -> None:
    for name in ("root", "spill"):
        (tmp_path / name).mkdir()
    env = LocalEnvironment(tmp_path / "root", root=tmp_path / "root", spill_to=tmp_path / "spill")
    path, file = env.spill()
    with file:
        file.write(b"long")
    assert env.read(path) == b"long"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(PermissionError):
        env.write(path, b"changed")


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text("old")
    path.chmod(0o750)
    before = path.stat().st_ino
    LocalEnvironment(tmp_path).write("script.sh", b"new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert path.stat().st_ino != before, "it was written in place"
    assert [item.name for item in tmp_path.iterdir()] == ["script.sh"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        LocalEnvironment(tmp_path).write("new.txt", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        LocalEnvironment(tmp_path).write("folder", b"new")
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError):
        LocalEnvironment(tmp_path).write("file/inner", b"new")
    assert sorted(item.name for item in tmp_path.rglob("*")) == ["file", "folder"]


def test_what_might_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    env = LocalEnvironment(tmp_path)
    for path, error in (("pipe", OSError), ("/dev/zero", OSError), (".", IsADirectoryError), ("no", FileNotFoundError)):
        with pytest.raises(error):
            env.read(path)


# -- commands --------------------------------------------------------------------------------------------------------


@bounded
async def test_a_command_gives_both_outputs_and_its_exit_code() -> None:
    said, end = await run(LocalEnvironment("/"), "pwd; echo error >&2; exit 3")
    assert (sorted(said.split()), end) == (["/", "error"], CommandEnd(3))


@bounded
async def test_a_command_has_no_input_and_waits_only_for_its_own_jobs() -> None:
    said, end = await run(LocalEnvironment(), "cat; echo begin & wait; echo end")
    assert (said.split(), end) == (["begin", "end"], CommandEnd(0))


@bounded
async def test_a_signal_is_a_negative_exit_code() -> None:
    assert (await run(LocalEnvironment(), "kill -TERM $$"))[1] == CommandEnd(-15)


@bounded
async def test_secrets_are_not_inherited_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VENDOR_API_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    said, _ = await run(LocalEnvironment(variables={"NAMED": "given"}), "env")
    assert "SOME_VENDOR_API_KEY" not in said
    assert {"NAMED=given", "LANG=C.UTF-8", f"PATH={os.environ['PATH']}"} <= set(said.splitlines())
    assert "secret" not in repr(LocalEnvironment(variables={"KEY": "secret"}))


@bounded
async def test_a_command_that_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, timeout=0.5)
    said, end = await run(env, "sleep 600 & echo $! > inner; echo before; trap 'echo cleaned' TERM; wait", timeout=100)
    assert end.timed_out
    assert said.split() == ["before", "cleaned"], "SIGTERM comes first, and what is said then is heard"
    inner = await pid_in(tmp_path / "inner")
    await eventually(lambda: not alive(inner))


@bounded
async def test_a_command_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path, timeout=0.3)
    _, end = await run(env, "trap '' TERM; echo $$ > pid; while true; do sleep 0.1; done")
    assert end == CommandEnd(-9, timed_out=True)
    pid = await pid_in(tmp_path / "pid")
    assert not alive(pid)


@bounded
async def test_cancelling_stops_the_group(tmp_path: Path) -> None:
    running = asyncio.create_task(run(LocalEnvironment(tmp_path), "sleep 600 & echo $! > inner; wait"))
    inner = await pid_in(tmp_path / "inner")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not alive(inner))


@bounded
async def test_what_is_left_in_the_background_ends_with_the_command(tmp_path: Path) -> None:
    _, end = await run(LocalEnvironment(tmp_path), "sleep 600 & echo $! > inner")
    assert end == CommandEnd(0)
    inner = await pid_in(tmp_path / "inner")
    await eventually(lambda: not alive(inner))


@bounded
async def test_output_that_cannot_be_taken_stops_the_command(tmp_path: Path) -> None:
    def refuse(data: bytes) -> None:
        raise ValueError("too much")

    with pytest.raises(ValueError, match="too much"):
        await LocalEnvironment(tmp_path).run("echo $$ > pid; yes", refuse)
    pid = await pid_in(tmp_path / "pid")
    assert not alive(pid)


def test_commands_run_on_a_loop_of_any_thread() -> None:
    said: list[str] = []

    def work() -> None:
        said.append(asyncio.run(run(LocalEnvironment(), "echo here"))[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert said == ["here\n"]


DYING = """
import asyncio, os, signal, sys
from pidurable_nb.tools import LocalEnvironment

def heard(data):
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(LocalEnvironment(sys.argv[1]).run("sleep 600 & echo $! > inner; echo $$ > outer; echo ready; wait", heard))
"""


@bounded
async def test_a_command_dies_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, str(tmp_path), stderr=subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == -9, stderr.decode()
    for name in ("inner", "outer"):
        pid = await pid_in(tmp_path / name)
        await eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]
