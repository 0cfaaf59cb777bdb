"""Measure how fast a full relay file is read, next to a tmpfs file and to the bare memory.

    ./dev bench read [ROUNDS]

`dd bs=1M` from a relay file against `dd bs=1M` from a tmpfs file of the same size; the zero-copy reader against a loop
that only touches the same memory. Gigabytes a second, medians over the rounds. The status is 1 if a promised ratio is
missed twice.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support import Limit, Mount, Samples, asked, compiled, judge, mounted

ROUNDS = 15
CHANNEL = "bench/full"
SUBBUF_BYTES = 256 << 10
N_SUBBUFS = 1024
BYTES = SUBBUF_BYTES * N_SUBBUFS

LIMITS = [
    Limit("dd from a relay file: times dd from tmpfs", "dd-relay", "dd-tmpfs", least=0.35),
    Limit("zero-copy reader: times touching the same memory", "zero-copy", "touch", least=0.8),
]


def dd(path: Path) -> tuple[float, int]:
    """Read a file with dd; return gigabytes a second and bytes, as dd says."""
    command = ["dd", f"if={path}", "of=/dev/null", "bs=1M"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.search(r"^(\d+) bytes .* copied, ([0-9.e-]+) s,", done.stderr, re.MULTILINE)
    if not found:
        raise ValueError(done.stderr)
    return int(found[1]) / float(found[2]) / 1e9, int(found[1])


def measure(program: Path, mount: Mount, plain: Path, rounds: int) -> Samples:
    """Alternate, so that what disturbs the machine disturbs both alike."""
    samples = Samples()
    channel = mount.path / CHANNEL
    for _ in range(rounds):
        subprocess.run([program, "fill", channel], check=True, capture_output=True)
        speed, got = dd(plain)
        samples.add("dd-tmpfs", speed, bytes=got)
        speed, got = dd(channel)
        if got != BYTES:
            raise ValueError(f"the relay file gave {got} bytes, not {BYTES}")
        samples.add("dd-relay", speed, bytes=got)
    command: list[str | Path] = [program, "zero-copy", str(rounds), channel, mount.store / CHANNEL / "mem0"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        name, value, got_bytes = line.split()
        samples.add(name, float(value), bytes=int(got_bytes))
    # What the last round filled.
    mount.command(f"reset {CHANNEL}")
    return samples


def main() -> int:
    """Make the files, measure, judge."""
    rounds = asked(ROUNDS)
    with compiled("bench_read.c") as program, mounted() as mount:
        free = shutil.disk_usage(mount.store.parent).free
        if free < 3 * BYTES:
            sys.exit(f"{mount.store.parent} has {free >> 20} MiB free; {3 * BYTES >> 20} are needed")
        mount.create(CHANNEL, f"subbuf_size={SUBBUF_BYTES} n_subbufs={N_SUBBUFS} buffers=single")
        plain = mount.store.parent / "plain"
        plain.write_bytes(b"r" * BYTES)
        return judge(lambda: measure(program, mount, plain, rounds), LIMITS, "GB/s")


if __name__ == "__main__":
    sys.exit(main())
