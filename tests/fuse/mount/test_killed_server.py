"""A server that is killed leaves no program behind that sleeps for ever, whatever it was doing."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount

# relayfs that kills itself when it has taken a request of its own thread, and has not yet answered it.
SUICIDAL = f"""#!{sys.executable}
import os, signal, sys
from relayfs_fuse.cli import mount
from relayfs_fuse.fs.requests.announcements import Announcements

def take(self, thread, path):
    if thread == self._thread.native_id:
        os.kill(os.getpid(), signal.SIGKILL)

Announcements.take = take
sys.exit(mount.main())
"""


def test_a_server_that_is_killed_while_it_waits_for_its_own_mount_ends(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    wrapper = tmp_path / "relayfs"
    wrapper.write_text(SUICIDAL)
    wrapper.chmod(0o755)
    mount = make_mount(start=False)
    mount.program = wrapper
    mount.start()
    assert mount.process is not None
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        mount.command("trace create t")
    mount.process.wait(DEADLINE_S)
    toucher = subprocess.run(["stat", mount.control], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "Transport endpoint is not connected" in toucher.stderr
    mount.kill()
