"""Measure what counting costs, next to plain and locked additions, and reading all counters, next to a memcpy.

    ./dev bench counters [ROUNDS]

Pinned threads, through the shared library; nanoseconds, medians over the rounds. The status is 1 if a promised ratio
is missed twice.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support import TMPFS, Limit, Samples, asked, compiled, judge

ROUNDS = 15

LIMITS = [
    Limit("adjust: times a plain addition", "adjust", "plain", most=2.5),
    Limit("adjust inline: times a locked addition", "adjust-inline", "locked-inline", most=0.7),
    Limit("adjust inline: times a plain addition", "adjust-inline", "plain-inline"),
    Limit("adjust: times a locked addition", "adjust", "locked"),
    Limit("1,000 counters read on all CPUs: times memcpy", "read-all", "memcpy", most=3),
]
TWO_CPUS = Limit("two writers: times locked additions to one word", "two-adjust", "two-locked", most=0.2)


def measure(program: Path, store: Path, rounds: int, cpus: list[int]) -> Samples:
    """Run the program once; each line of it is a sample."""
    command: list[str | Path] = [program, str(rounds), str(cpus[0]), str(cpus[-1]), store]
    samples = Samples()
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        name, value, n = line.split()
        samples.add(name, float(value), n=int(n))
    return samples


def main() -> int:
    """Make a store, measure, judge."""
    rounds = asked(ROUNDS)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with (
        compiled("bench_counters.c", parts=["bench/yardsticks.c"]) as program,
        tempfile.TemporaryDirectory(dir=TMPFS) as store,
    ):
        (Path(store) / ".lock").touch()
        limits = LIMITS + [TWO_CPUS] * (len(cpus) > 1)
        status = judge(lambda: measure(program, Path(store), rounds, cpus), limits, "ns")
    if len(cpus) < 2:
        print("one CPU only: two writers were not measured")
    return status


if __name__ == "__main__":
    sys.exit(main())
