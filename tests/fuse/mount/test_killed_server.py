"""A server that is killed leaves no program behind that sleeps for ever, whatever it was doing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, wait_until

# relayfs whose first server kills itself when it has taken a request of its own thread, and has not yet answered it.
SUICIDAL = f"""#!{sys.executable}
import os, signal, sys
from relayfs_fuse.cli import mount
from relayfs_fuse.fs.requests.announcements import Announcements

really, died = Announcements.take, sys.argv[0] + ".died"

def take(self, thread, path):
    if self.is_asking(thread) and not os.path.exists(died):
        open(died, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return really(self, thread, path)

Announcements.take = take
sys.exit(mount.main())
"""
DIED = "WARNING: the server before, process .* has died"


def test_a_server_that_is_killed_while_it_waits_for_its_own_mount_is_succeeded(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    wrapper = tmp_path / "relayfs"
    wrapper.write_text(SUICIDAL)
    wrapper.chmod(0o755)
    mount = make_mount(start=False)
    mount.program = wrapper
    mount.expect(DIED)
    mount.start()
    first = mount.server
    mount.command("trace create t")
    assert mount.server != first
    assert (mount.path / "t").is_dir()
    wait_until(lambda: not Path(f"/proc/{first}").exists(), "nothing of the first server is left")


def test_after_ten_deaths_in_a_row_the_mount_is_given_up(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount()
    mount.expect(DIED)
    mount.expect("relayfs: 10 servers in a row have died within .* is unmounted")
    path = mount.create("log", "buffers=single read=wait")
    assert mount.process is not None
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as cat:
        while mount.process.poll() is None:
            with suppress(IndexError, FileNotFoundError, ProcessLookupError):  # there is none just now
                mount.kill_server()
        assert mount.process.wait(DEADLINE_S) == 1
        _, complaint = cat.communicate(timeout=DEADLINE_S)
    assert b"not connected" in complaint or b"connection abort" in complaint
    assert os.listdir(mount.path) == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_successor_ends_in_order(mount: Mount, signum: int) -> None:
    mount.expect(DIED)
    mount.kill_server()
    assert mount.channels() == ""
    assert mount.stop(signum) == 0
    assert os.listdir(mount.path) == []


def test_a_supervisor_that_is_killed_takes_its_server_with_it(mount: Mount) -> None:
    mount.kill()
    toucher = subprocess.run(["stat", mount.control], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "Transport endpoint is not connected" in toucher.stderr


def test_a_detached_mount_goes_on_for_who_has_its_files_open(mount: Mount) -> None:
    mount.expect(DIED)
    path = mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")
    with path.open("r+b", buffering=0) as file:
        subprocess.run(["umount", "-l", mount.path], check=True)
        for n in range(3):
            first = mount.server
            mount.kill_server()
            file.write(b"%d\n" % n)
            assert mount.server != first
            assert file.read() == b"%d\n" % n
    assert mount.process is not None
    assert mount.process.wait(DEADLINE_S) == 0


def test_a_mount_that_is_unmounted_while_it_has_no_server_ends_in_order(mount: Mount) -> None:
    mount.expect(DIED)
    assert mount.process is not None
    os.kill(mount.process.pid, signal.SIGSTOP)  # no successor yet
    mount.kill_server()
    subprocess.run(["umount", "-l", mount.path], check=True)
    os.kill(mount.process.pid, signal.SIGCONT)
    assert mount.process.wait(DEADLINE_S) == 0
    assert os.listdir(mount.path) == []
