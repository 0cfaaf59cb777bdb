"""What is removed takes no memory of the server, though the kernel remembers whatever somebody has looked at."""

import os
import re
from pathlib import Path

import pytest
from mounts import NOBODY, Mount, User, wait_until

pytestmark = pytest.mark.measured

SMALL = "buffers=single subbuf_size=4K n_subbufs=2"


def memory_kb(mount: Mount) -> int:
    assert mount.process is not None
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{mount.server}/status").read_text())
    assert found
    return int(found[1])


def wait_grown(mount: Mount, before: int, most: int) -> None:
    wait_until(lambda: memory_kb(mount) < before + most, lambda: f"{before} kB have become {memory_kb(mount)}")


def look_at(directory: Path) -> None:
    for entry in os.scandir(directory):
        entry.stat()


def test_removed_channels_that_were_looked_at_are_forgotten(mount: Mount) -> None:
    def come_and_go(numbers: range) -> None:
        for number in numbers:
            path = f"channel{number}"
            mount.create(path, SMALL)
            look_at(mount.path / ".channels" / path)
            (mount.path / path).stat()
            mount.command(f"remove {path}")

    # As many as are measured: a busy machine forgets names later, and the server keeps what they took meanwhile. What
    # the allocator keeps for later differs by 1,200 kB from one moment to another.
    come_and_go(range(300))
    before = memory_kb(mount)
    come_and_go(range(300, 600))
    wait_grown(mount, before, 2500)  # 3,800 at least if they are remembered


# Maps a channel's memory so often; each time under a name of its own (native/src/buffer/open.h).
ATTACHER = """
import sys
from relayfs_fuse import Channel

for _ in range(int(sys.argv[2])):
    Channel(sys.argv[1]).close()
"""


def test_programs_that_no_longer_map_a_channel_are_forgotten(mount: Mount, unprivileged: User) -> None:
    mount.create("channel", f"{SMALL} uid={NOBODY} gid={NOBODY}")

    def attach(times: int) -> None:
        done = unprivileged.python(ATTACHER, mount.path / "channel", str(times))
        assert done.returncode == 0, done.stderr

    attach(200)
    before = memory_kb(mount)
    attach(2000)
    wait_grown(mount, before, 600)  # 1,100 if they are remembered
