"""What the files of a mount show of its counters, and programs that count."""

import os
import re

from mounts import Mount

# Adds a counter, counts to 3000, prints its number: MOUNT NAME MODE.
HOLD = """
import sys
from relayfs_fuse.native import CounterSpec, CountersHandle
counters = CountersHandle(sys.argv[1])
n = counters.add(sys.argv[2], CounterSpec(mode=int(sys.argv[3], 8)))
for _ in range(1000):
    counters.adjust(n, 3)
print(n, flush=True)
"""


def names(mount: Mount) -> dict[str, int]:
    lines = (mount.path / "counters.names").read_text().splitlines()
    assert re.fullmatch(r"gen \d+", lines[0])
    return {line.split()[1]: int(line.split()[0]) for line in lines[1:]}


def own_names(mount: Mount) -> dict[str, int]:
    return {name: number for name, number in names(mount).items() if not name.startswith("relayfs/")}


def values(mount: Mount) -> dict[str, int]:
    lines = (mount.path / "counters.txt").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def write_names(mount: Mount, line: str) -> None:
    descriptor = os.open(mount.path / "counters.names", os.O_WRONLY)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
