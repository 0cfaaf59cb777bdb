"""Measure how fast relayctl write cuts lines and writes them to a channel, next to cat, which moves them into a pipe.

    ./dev bench shell [ROUNDS]

The same lines, through pipes: from a file by `cat`, whose output is discarded; and from a pipe by `relayctl write`,
into a channel that overwrites. Megabytes for each second of the program's own CPU time, its start included; medians
over the rounds. `bare` is a loop in C that only writes records of this length: it shows how much there is to reach, as
each record to a buffer of all CPUs costs locked instructions. The status is 1 if a promised ratio is missed twice.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support import Limit, Mount, Samples, asked, compiled, cpu_s, judge, mounted

ROUNDS = 9
FILE_BYTES = 64 << 20
TIMES = 16
LENGTHS = (30, 100, 500)
CHANNELS = {
    "percpu": "mode=overwrite",
    "single": "mode=overwrite buffers=single",
    "ring": "type=ring mode=overwrite size=1M",
}
PIPE_BYTES = 1 << 20
LEAST = 0.5
# Each record of a ring for all CPUs is reserved by itself (docs/design.md, "How a record is written"). There are CPUs
# on which that alone, `bare`, takes as long as half of what cat does with 100 bytes.
LESS = {("ring", 30): None, ("ring", 100): 0.25}

LIMITS = [
    Limit(
        f"lines of {length} bytes to {kind}: times cat", f"{kind}-{length}", f"cat-{length}",
        least=LESS.get((kind, length), LEAST),
    )
    for length in LENGTHS for kind in CHANNELS
]  # fmt: skip
LIMITS += [
    limit
    for length in LENGTHS for kind in CHANNELS
    for limit in (
        Limit(f"lines of {length} bytes to {kind}: times bare", f"{kind}-{length}", f"bare-{kind}-{length}"),
        Limit(f"lines of {length} bytes to {kind}: bare, times cat", f"bare-{kind}-{length}", f"cat-{length}"),
    )
]  # fmt: skip


def rate(process: subprocess.Popen[bytes]) -> float:
    """Wait for a program that has moved all lines; return its megabytes a second."""
    return FILE_BYTES * TIMES / 1e6 / cpu_s(process)


def moved_by_cat(files: Sequence[Path]) -> float:
    """Measure cat."""
    with subprocess.Popen(["cat", *files], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        room = bytearray(PIPE_BYTES)
        while os.readv(process.stdout.fileno(), [room]):
            pass
        return rate(process)


def written(files: Sequence[Path], channel: Path) -> float:
    """Measure relayctl write."""
    relayctl = Path(sys.executable).with_name("relayctl")
    with (
        subprocess.Popen(["cat", *files], stdout=subprocess.PIPE) as source,
        subprocess.Popen([relayctl, "write", channel], stdin=source.stdout) as process,
    ):
        return rate(process)


def bare(program: Path, kind: str, length: int, channel: Path) -> float:
    """Measure the loop that only writes records."""
    sort = "ring" if "type=ring" in CHANNELS[kind] else "relay"
    command = [program, channel, sort, str(length), str(FILE_BYTES >> 20)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def measure(mount: Mount, program: Path, rounds: int) -> Samples:
    """Alternate, so that what disturbs the machine disturbs all alike."""
    samples = Samples()
    for length in LENGTHS:
        file = mount.store.parent / "lines"
        line = b"l" * (length - 1) + b"\n"
        file.write_bytes(line * (FILE_BYTES // length) + b"\n" * (FILE_BYTES % length))
        for _ in range(rounds):
            samples.add(f"cat-{length}", moved_by_cat([file] * TIMES), bytes=FILE_BYTES * TIMES)
            for kind in CHANNELS:
                rate_now = written([file] * TIMES, mount.path / "bench" / kind)
                samples.add(f"{kind}-{length}", rate_now, bytes=FILE_BYTES * TIMES)
                samples.add(f"bare-{kind}-{length}", bare(program, kind, length, mount.path / "bench" / kind))
    return samples


def main() -> int:
    """Make the channels, measure, judge."""
    rounds = asked(ROUNDS)
    with compiled("bench_shell.c") as program, mounted() as mount:
        for kind, options in CHANNELS.items():
            mount.create(f"bench/{kind}", options)
        return judge(lambda: measure(mount, program, rounds), LIMITS, "MB/s of CPU time")


if __name__ == "__main__":
    sys.exit(main())
