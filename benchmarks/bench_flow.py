"""Measure what flows from one process to another on two CPUs, nothing lost, next to a pipe and to bare memory.

    ./dev bench flow [ROUNDS]

A buffer of 2 MiB for all CPUs, and one of the writer's CPU; records of 64 and 4096 bytes; a reader that spins, and one
that sleeps when it finds nothing. `bare` is memory of the same shape, whose writer stores the record and its position.
Megabytes a second, of the best 2 ms in which neither process was interrupted, and wake-ups a second: system calls that
the writer makes for the reader. The status is 1 if a promised ratio is missed twice.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from support import Limit, Mount, Samples, asked, compiled, judge, mounted

ROUNDS = 5
SECONDS = 0.5
CHANNELS = {
    "bench/flow": "buffers=single subbuf_size=256K n_subbufs=8",
    "bench/ring": "type=ring size=2M",
    "bench/percpu": "subbuf_size=256K n_subbufs=8",
    "bench/percpu-ring": "type=ring buffers=percpu size=2M",
}
TIMES_A_PIPE = {64: 5.0, 4096: 3.0}
TIMES_BARE = {64: 0.5, 4096: 0.7}
LIMITS = [
    limit
    for length in (64, 4096)
    for limit in (
        Limit(f"{length} bytes, the reader sleeps: times spins", f"sleeps-{length}", f"spins-{length}", least=0.9),
        Limit(f"{length} bytes, ring, sleeps: times spins", f"ring-sleeps-{length}", f"ring-spins-{length}", least=0.9),
        Limit(
            f"{length} bytes, the reader sleeps: times a pipe",
            f"sleeps-{length}",
            f"pipe-{length}",
            least=TIMES_A_PIPE[length],
        ),
        Limit(
            f"{length} bytes, a buffer of one CPU: times bare",
            f"percpu-spins-{length}",
            f"bare-{length}",
            least=TIMES_BARE[length],
        ),
        Limit(f"{length} bytes, a ring of one CPU: times bare", f"percpu-ring-spins-{length}", f"bare-{length}"),
        Limit(f"{length} bytes, one buffer for all CPUs: times bare", f"spins-{length}", f"bare-{length}"),
        Limit(f"{length} bytes, one ring for all CPUs: times bare", f"ring-spins-{length}", f"bare-{length}"),
        Limit(f"{length} bytes, the reader sleeps: wake-ups a second", f"sleeps-{length}-wakeups", most=2000),
        Limit(f"{length} bytes, ring, sleeps: wake-ups a second", f"ring-sleeps-{length}-wakeups", most=2000),
    )
]


class Flowed(NamedTuple):
    """A line that the programs print which include bench_flow.h."""

    name: str
    value: str
    records: str
    lost: str
    wakeups: str
    line_ns: str


def measure(program: Path, mount: Mount, rounds: int, cpus: list[int]) -> Samples:
    """Alternate, so that what disturbs the machine disturbs all alike."""
    command: list[str | Path] = [program, str(SECONDS), str(cpus[0]), str(cpus[1])]
    command += [mount.path / "bench", mount.store / "bench/flow/mem0"]
    samples = Samples()
    for _ in range(rounds):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            flowed = Flowed(*line.split())
            samples.add(flowed.name, float(flowed.value), records=int(flowed.records), lost=int(flowed.lost))
            if "sleeps" in flowed.name:
                samples.add(f"{flowed.name}-wakeups", float(flowed.wakeups))
    return samples


def main() -> int:
    """Make the channels, measure, judge."""
    rounds = asked(ROUNDS)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("one CPU only: nothing flows from one to another")
        return 0
    with compiled("bench_flow.c") as program, mounted() as mount:
        for name, options in CHANNELS.items():
            mount.create(name, options)
        return judge(lambda: measure(program, mount, rounds, cpus), LIMITS, "MB/s; *-wakeups: a second")


if __name__ == "__main__":
    sys.exit(main())
