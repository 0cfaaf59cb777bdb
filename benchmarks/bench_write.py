"""Measure what a write costs, next to a bare copy of the record into the same memory.

    ./dev bench write [ROUNDS]

One pinned thread, through the shared library; nanoseconds a record, medians over the rounds. The status is 1 if a
promised ratio is missed twice.
"""

import os
import subprocess
import sys
from pathlib import Path

from support import Limit, Mount, Samples, asked, compiled, judge, mounted

ROUNDS = 25
CHANNELS = {
    "copy": "mode=overwrite scheme=rseq",
    "rseq": "mode=overwrite scheme=rseq",
    "lockless": "mode=overwrite scheme=lockless",
    "callback": "mode=callback scheme=rseq",
    "rseq-full": "mode=no-overwrite scheme=rseq",
    "lockless-full": "mode=no-overwrite scheme=lockless",
    "reserves": "mode=overwrite scheme=rseq start_reserve=64 end_reserve=64",
    "timed": "mode=overwrite scheme=rseq times=mono",
    "timed-lockless": "mode=overwrite scheme=lockless times=mono",
}
GEOMETRY = "subbuf_size=256K n_subbufs=8"

LIMITS = [
    Limit("rseq, 16 bytes: times the copy", "rseq-16", "copy-16", most=4),
    Limit("rseq, 64 bytes: times the copy", "rseq-64", "copy-64", most=2.5),
    Limit("rseq, 256 bytes: times the copy", "rseq-256", "copy-256", most=2),
    Limit("rseq, 4096 bytes: times the copy", "rseq-4096", "copy-4096", most=1.2),
    Limit("rseq inline, 16 bytes: times the copy inline", "rseq-inline-16", "copy-inline-16", most=6.5),
    Limit("rseq inline, 64 bytes: times the copy inline", "rseq-inline-64", "copy-inline-64", most=3.5),
    Limit("rseq inline, 256 bytes: times the copy inline", "rseq-inline-256", "copy-inline-256", most=2.1),
    Limit("rseq inline, 4096 bytes: times the copy inline", "rseq-inline-4096", "copy-inline-4096", most=1.2),
    Limit("rseq inline, 16 bytes: times called", "rseq-inline-16", "rseq-16", most=0.75),
    Limit("rseq inline, 64 bytes: times called", "rseq-inline-64", "rseq-64", most=0.8),
    Limit("rseq inline, refused: times one that is taken", "rseq-full-inline-64", "rseq-inline-64", most=0.8),
    Limit("lockless, 64 bytes: times the copy", "lockless-64", "copy-64", most=12),
    Limit("with subbuf_start, 64 bytes: times without", "callback-64", "rseq-64", most=1.1),
    Limit("reserved, filled and committed, 64 bytes: times a lockless write", "reserve-64", "lockless-64", most=2),
    Limit("reserved, filled and committed inline: times called", "reserve-inline-64", "reserve-64", most=1),
    Limit("with start and end reserves, 64 bytes: times without", "rseq-reserves-64", "rseq-64", most=1.1),
    Limit("with times, 64 bytes: times without", "timed-64", "rseq-64", most=12),
    Limit("lockless, with times, 64 bytes: times without", "timed-lockless-64", "lockless-64", most=5),
    Limit("2003, callbacks and reserves, 64 bytes: times without", "classic-callbacks-64", "classic-64", most=1.1),
    Limit("rseq, refused because full: times a write that is taken", "rseq-full-64", "rseq-64", most=1),
    Limit("lockless, refused because full: times one that is taken", "lockless-full-64", "lockless-64", most=1),
]
TWO_CPUS = Limit("two writers on two CPUs: times the rate of one", "two-writers", "one-writer", least=1.8)


def measure(program: Path, mount: Mount, rounds: int, cpus: list[int]) -> Samples:
    """Run the program once; each line of it is a sample."""
    channels = [mount.path / "bench" / name for name in CHANNELS]
    command: list[str | Path] = [program, str(rounds), str(cpus[0]), str(cpus[-1]), *channels]
    samples = Samples()
    environment = {**os.environ, "RELAYFS": str(mount.path)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    for line in done.stdout.splitlines():
        name, value, taken, refused = line.split()
        samples.add(name, float(value), hits=int(taken), drops=int(refused))
    return samples


def main() -> int:
    """Make the channels, measure, judge."""
    rounds = asked(ROUNDS)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with compiled("bench_write.c", parts=["bench/yardsticks.c"]) as program, mounted() as mount:
        for name, options in CHANNELS.items():
            mount.create(f"bench/{name}", f"{GEOMETRY} {options}")
        limits = LIMITS + [TWO_CPUS] * (len(cpus) > 1)
        status = judge(lambda: measure(program, mount, rounds, cpus), limits, "ns/record, *-writer(s): records/us")
    if len(cpus) < 2:
        print("one CPU only: two writers were not measured")
    return status


if __name__ == "__main__":
    sys.exit(main())
