"""A mount that is asked to end does so, whatever becomes of its server, and whatever that waits for."""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, wait_until
from traced import start_trace
from versions import upgrade

DIED = "WARNING: the server before, process .* has died"
STUCK = "process .* is stuck: its loop has not turned for .* s; it is killed"
LIBC = ctypes.CDLL(None, use_errno=True)
Start = Callable[..., Mount]


@pytest.fixture
def start(make_mount: Callable[..., Mount], tmp_path: Path) -> Start:
    """Give a function that starts a server of changed functions: start("statements in Python", and as make_mount())."""

    def start(statements: str, *options: str, **more: Path) -> Mount:
        mount = make_mount(*options, start=False, **more)
        mount.program = tmp_path / "relayfs"
        mount.program.write_text(
            f"#!{sys.executable}\nimport os, time, trio\nfrom relayfs_fuse.cli import mount\nmount.import_server()\n"
            "from relayfs_fuse.fs import tap\nfrom relayfs_fuse.fs.server import Server\n"
            f"from relayfs_fuse.fs.requests.files import Operations\n{statements}\nmount.main()\n"
        )
        mount.program.chmod(0o755)
        mount.start()
        return mount

    return start


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def ended(mount: Mount) -> int:
    """Return the exit status of the supervisor; the mount is gone."""
    assert mount.process is not None
    status = mount.process.wait(DEADLINE_S)
    assert os.listdir(mount.path) == []
    return status


def test_a_signal_counts_although_the_server_dies_before_it_gets_it(mount: Mount) -> None:
    mount.expect(DIED)
    assert mount.process is not None
    supervisor = mount.process.pid
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: state(supervisor) == "T", "the supervisor is stopped")
    server = mount.kill_server()
    wait_until(lambda: state(server) == "Z", "the server is dead")
    os.kill(supervisor, signal.SIGTERM)
    os.kill(supervisor, signal.SIGCONT)
    assert ended(mount) == 0


def test_a_signal_ends_the_server_whichever_thread_gets_it(mount: Mount) -> None:
    """The kernel may choose any, as it does when a process that was stopped goes on."""
    mount.create("made/log", "buffers=single")  # so a thread announces it
    server = mount.server
    for thread in map(int, os.listdir(f"/proc/{server}/task")):
        if thread != server:
            LIBC.tgkill(server, thread, signal.SIGTERM)
    assert mount.stop() == 0
    assert ended(mount) == 0


def test_a_signal_counts_although_the_server_is_stuck(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("watchdog=1")
    for expected in (DIED, STUCK, "WARNING: process [0-9]+: "):
        mount.expect(expected)
    os.kill(mount.server, signal.SIGSTOP)
    mount.stop()
    assert ended(mount) == 0


def test_a_server_that_gets_stuck_while_it_ends_is_killed(start: Start) -> None:
    mount = start("def gets_stuck(self):\n    time.sleep(1000)\nServer._close = gets_stuck", "watchdog=1")
    for expected in (STUCK, "process [0-9]+: "):
        mount.expect(expected)
    assert mount.stop() == 1
    assert ended(mount) == 1
    mount.wait_for_log("in gets_stuck")


def test_a_thread_of_the_server_that_waits_for_its_own_mount_ends(start: Start, tmp_path: Path) -> None:
    """SIGKILL does not end it: its request was taken, and is answered no more."""
    asks = tmp_path / "asks"
    mount = start(f"""
rmdir = Operations.rmdir
async def waits(self, parent, name, ctx):
    if self._announcements.is_asking(tap.request().pid):
        open({str(asks)!r}, "w").close()
        await trio.sleep_forever()
    return await rmdir(self, parent, name, ctx)
Operations.rmdir = waits
""")
    mount.create("made/log", "buffers=single")

    def remove() -> None:
        with suppress(OSError):  # the mount is gone
            mount.command("remove made/log")

    removes = threading.Thread(target=remove)
    removes.start()
    wait_until(asks.exists, "the announcing thread asks")
    assert mount.stop() == 0
    removes.join(DEADLINE_S)
    assert not removes.is_alive()
    assert ended(mount) == 0


def test_a_program_that_is_to_take_over_and_cannot_be_killed_is_left(
    make_mount: Callable[..., Mount], start: Start, tmp_path: Path
) -> None:
    """As if it were on a file server that does not answer."""
    mount, asked = make_mount(), tmp_path / "asked"
    other = start(
        f"""
lookup = Operations.lookup
async def waits(self, parent, name, ctx):
    if name == b"program":
        open({str(asked)!r}, "w").close()
        await trio.sleep_forever()
    return await lookup(self, parent, name, ctx)
Operations.lookup = waits
""",
        store=mount.store.with_name("other"),
    )
    upgrades = threading.Thread(target=upgrade, args=[mount.path, other.path / "program"])
    upgrades.start()
    wait_until(asked.exists, "the program is looked for")
    assert mount.stop() == 0
    upgrades.join(DEADLINE_S)
    assert not upgrades.is_alive()
    assert ended(mount) == 0


def test_a_process_that_evaluates_triggers_and_cannot_be_killed_is_left(start: Start) -> None:
    """As while it writes a snapshot to a disk that does not answer."""
    mount = start("trio.Process.kill = lambda self: None")
    start_trace(mount)
    mount.command("trigger add x on t judge:step do notify")
    mount.wait_for_log("process [0-9]+ evaluates triggers")
    found = re.search("process ([0-9]+) evaluates triggers", mount.log.read_text())
    assert found is not None
    evaluates = int(found[1])
    os.kill(evaluates, signal.SIGSTOP)
    try:
        assert mount.stop() == 0
        assert ended(mount) == 0
    finally:
        os.kill(evaluates, signal.SIGKILL)
