"""What is removed takes no memory of the server, though the kernel remembers whatever somebody has looked at."""

import os
import re
from pathlib import Path

from conftest import Mount, wait_until

SMALL = "buffers=single subbuf_size=4K n_subbufs=2"
GROWTH_KB = 4096


def memory_kb(mount: Mount) -> int:
    assert mount.process is not None
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{mount.process.pid}/status").read_text())
    assert found
    return int(found[1])


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

    come_and_go(range(50))
    before = memory_kb(mount)
    come_and_go(range(50, 850))
    wait_until(lambda: memory_kb(mount) < before + GROWTH_KB, lambda: f"{before} kB have become {memory_kb(mount)}")
