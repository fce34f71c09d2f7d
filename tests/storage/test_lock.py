"""A storage has one owner, and the lock dies with its process (engine.md, section 16)."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from pidurable_nb.errors import SessionForked, SessionInUse, StorageError
from pidurable_nb.records import ROOT, Entry, EntryId
from pidurable_nb.storage import MemoryStorage, PutEntry, Storage, open_storage
from pidurable_nb.storage.lock import LockHolder, OwnerLock, holder, network_file_system

from .scripts import Script, run_script

OWNER = """
async def main():
    storage = await committed(where)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""

WHERE = ["sqlite", "jsonl"]


def where(folder: Path, kind: str) -> str:
    return f"jsonl:{folder / 'journal'}" if kind == "jsonl" else str(folder / "chat.sqlite")


def lock_file(folder: Path, kind: str) -> Path:
    return folder / "journal" / "owner.lock" if kind == "jsonl" else folder / "chat.sqlite.lock"


@pytest.mark.parametrize("kind", WHERE)
def test_another_process_is_refused_and_told_who_owns_it(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)

    async def refused() -> SessionInUse:
        with pytest.raises(SessionInUse) as caught:
            await open_storage(place)
        return caught.value

    with Script(OWNER, place) as owner:
        assert owner.ready == "ready"
        error = asyncio.run(refused())
        assert (error.pid, error.host) == (owner.pid, socket.gethostname())
        assert error.since is not None
        assert str(owner.pid) in str(error)
        assert "observe(" in str(error)
        assert error.path in str(error)
        assert holder(lock_file(tmp_path, kind)) == LockHolder(owner.pid, socket.gethostname(), error.since)


@pytest.mark.parametrize("kind", WHERE)
def test_the_lock_dies_with_a_killed_process(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)
    with Script(OWNER, place) as owner:
        assert owner.ready == "ready"
        owner.kill()

    async def main() -> None:
        assert holder(lock_file(tmp_path, kind)) is None
        storage = await open_storage(place)
        assert storage.last_seq == 1
        dead, life = await storage.lives()
        assert (dead.pid, dead.ended, dead.last_commit) == (owner.pid, None, 1)
        assert life.pid == os.getpid()
        await storage.close()
        assert not lock_file(tmp_path, kind).exists()

    asyncio.run(main())


@pytest.mark.parametrize("kind", WHERE)
def test_one_process_cannot_open_twice_also_through_a_link(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        storage = await open_storage(where(tmp_path, kind))
        link = tmp_path / "link"
        real = tmp_path / ("journal" if kind == "jsonl" else "chat.sqlite")
        link.symlink_to(real)
        with pytest.raises(SessionInUse, match="this process"):
            await open_storage(link)
        await storage.commit([PutEntry(Entry(id=EntryId(storage.mint_id()), conversation_id=ROOT, kind="t"))])
        await storage.close()

    asyncio.run(main())


FORK = """
async def main():
    storage = await committed(where)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (storage.commit([]), storage.entry(1), storage.close()):
                try:
                    call.send(None)
                except Exception as error:
                    code = 0 if type(error).__name__ == "SessionForked" else 2
                if code:
                    break
            # The child's copy of the lock is closed: it does not outlive the parent.
            os.write(1, b"child %d\\n" % code)
            time.sleep(20)
        finally:
            os._exit(code)
    os.write(1, b"parent %d\\n" % child)
    await storage.commit([])
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", WHERE)
def test_a_forked_child_can_neither_use_nor_hold_it(tmp_path: Path, kind: str) -> None:
    place = where(tmp_path, kind)
    with Script(FORK, place) as parent:
        assert parent.process.stdout is not None
        lines = sorted([parent.ready, parent.process.stdout.readline().strip()])
        assert lines[0] == "child 0"
        child = int(lines[1].split()[1])
        try:
            parent.process.kill()
            parent.process.wait(timeout=10)
            os.kill(child, 0)  # the child lives on

            async def main() -> None:
                storage = await open_storage(place)  # and keeps nobody out
                assert storage.last_seq >= 1
                await storage.close()

            asyncio.run(main())
        finally:
            os.kill(child, 9)


def test_a_forked_child_cannot_use_a_storage_in_memory() -> None:
    script = """
    storage = MemoryStorage()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(storage.commit([]))
        except Exception as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """
    done = run_script(script, "-")
    assert (done.stdout.strip(), done.stderr) == ("SessionForked", "")


def test_a_storage_knows_the_process_that_opened_it(monkeypatch: pytest.MonkeyPatch) -> None:
    storage: Storage = MemoryStorage()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(SessionForked, match="forked child"):
        asyncio.run(storage.commit([]))


def test_an_observers_probe_never_keeps_an_owner_out(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert holder(path) is None
    lock = OwnerLock.acquire(path, "x", 12.5)
    found = holder(path)
    assert found == LockHolder(os.getpid(), socket.gethostname(), 12.5)
    lock.release()
    assert not path.exists()
    path.write_text("left by a crash")
    assert holder(path) is None
    again = OwnerLock.acquire(path, "x", 1.0)
    again.release()
    again.release()


def test_what_the_lock_file_says_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    lock = OwnerLock.acquire(path, "x", 1.0)
    path.write_bytes(b"\xff\x00 not json")
    with pytest.raises(SessionInUse, match="another process") as caught:
        OwnerLock.acquire(path, "x", 2.0)
    assert caught.value.pid is None
    lock.release()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "chat.sqlite.lock").symlink_to(victim)

    async def main() -> None:
        with pytest.raises(StorageError, match="lock file"):
            await open_storage(tmp_path / "chat.sqlite")

    asyncio.run(main())
    assert victim.read_text() == "precious"
    assert not (tmp_path / "chat.sqlite").exists()


def test_network_file_systems_are_recognised(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "22 21 0:40 / /home/net\\040work rw - nfs4 server:/export rw\n"
        "23 21 0:41 / /home rw - xfs /dev/sdb rw\n"
    )
    assert network_file_system("/home/net work/a.sqlite", str(mounts)) == "nfs4"
    assert network_file_system("/home/network/a.sqlite", str(mounts)) is None
    assert network_file_system("/etc/a.sqlite", str(mounts)) is None
    assert network_file_system("/etc/a.sqlite", str(tmp_path / "missing")) is None


def test_a_network_file_system_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pidurable_nb.storage.lock.network_file_system", lambda path: "nfs4")

    async def main() -> None:
        for kind in WHERE:
            with pytest.warns(UserWarning, match=r"network file system \(nfs4\)"):
                storage = await open_storage(where(tmp_path, kind))
            await storage.close()

    asyncio.run(main())
