"""A server that is killed leaves no program behind that sleeps for ever, whatever it was doing."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest
from mounts import DEADLINE_S, Mount

DIED = "WARNING: the server before, process .* has died"


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
