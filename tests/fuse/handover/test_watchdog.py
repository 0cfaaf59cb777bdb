"""A server that is stuck is found, and another one goes on with what programs have open."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, stop_process
from traffic import lines, wait_asleep

# After a second, and not ten.
SOON = "watchdog=1"
# What the log says of a server that is stuck.
FOUND = [
    "WARNING: the server before, process .* has died", "WARNING: process .* is stuck: its loop has not turned for . s",
    "WARNING: process [0-9]+: ",
]  # fmt: skip


def expect(mount: Mount) -> None:
    for pattern in FOUND:
        mount.expect(pattern)


def replaced(mount: Mount, server: int) -> None:
    mount.wait_for_log(f"process {server}, has died: it was killed")


def test_a_server_that_was_stopped_is_replaced(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount(SOON)
    expect(mount)
    path = mount.create("log", "buffers=single read=wait")
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        wait_asleep(cat, path)
        server = mount.server
        os.kill(server, signal.SIGSTOP)
        path.write_bytes(lines(1))
        assert cat.stdout.readline() == lines(1)
        cat.kill()
    replaced(mount, server)
    mount.wait_for_log(f"process {server} is stuck: its loop has not turned for 1 s; it is killed")
    mount.wait_for_log(f"process {server}: thread {server} is in state T; wchan ")
    assert mount.stop() == 0


@pytest.mark.parametrize("does", ["while True: pass", "time.sleep(1000)"], ids=["computes", "sleeps"])
def test_the_stacks_of_a_server_that_is_stuck_are_logged(
    make_mount: Callable[..., Mount], tmp_path: Path, does: str
) -> None:
    """The request that it was stuck in is answered by the next one."""
    flag = tmp_path / "flag"
    mount = make_mount(SOON, start=False)
    mount.program = tmp_path / "relayfs"
    mount.program.write_text(f"""#!{sys.executable}
import os, time
from relayfs_fuse.cli import mount
mount.import_server()
from relayfs_fuse.fs.requests.files import Operations
statfs = Operations.statfs
async def gets_stuck(self, ctx):
    if os.path.exists({str(flag)!r}):
        os.unlink({str(flag)!r})
        {does}
    return await statfs(self, ctx)
Operations.statfs = gets_stuck
mount.main()
""")
    mount.program.chmod(0o755)
    mount.start()
    expect(mount)
    server = mount.server
    flag.touch()
    assert os.statvfs(mount.path).f_bsize > 0
    replaced(mount, server)
    mount.wait_for_log(rf"process {server}:   File .* line \d+ in gets_stuck")
    assert mount.stop() == 0


def test_without_the_watchdog_a_server_that_was_stopped_stays(make_mount: Callable[..., Mount]) -> None:
    """As while somebody looks at it."""
    watched = make_mount(SOON)
    other = make_mount("watchdog=0", store=watched.store.with_name("other"))
    expect(watched)
    path = other.create("log", "buffers=single")
    stays = other.server
    stop_process(stays)
    waits = threading.Thread(target=path.write_bytes, args=[lines(1)])
    waits.start()
    for _ in range(2):
        server = watched.server
        os.kill(server, signal.SIGSTOP)
        replaced(watched, server)
    assert other.server == stays
    os.kill(stays, signal.SIGCONT)
    waits.join(DEADLINE_S)
    assert path.read_bytes() == lines(1)
    assert other.server == stays
