"""Measure how fast the streams of a trace are merged into the order of their times, and exported in each format.

    ./dev bench merge [ROUNDS]

One pinned thread; million events a second of its CPU time, medians over the rounds. The status is 1 if a promise is
missed twice.
"""

import os
import subprocess
import sys
from pathlib import Path

from support import Limit, Samples, asked, compiled, judge

ROUNDS = 15
FORMATS = (
    *("text", "json", "chrome", "perfetto", "pcapng"),
    *("text-f64", "json-f64", "chrome-f64", "perfetto-f64", "pcapng-f64"),
)
# What relay_merge_next() needs.
MERGE = (
    *("src/merge/merge.c", "src/merge/stream.c", "src/merge/losses.c", "src/merge/clock_map.c", "src/merge/filter.c"),
    "src/merge/chosen.c",
    *("src/trace/event_copy.c", "src/trace/layouts.c", "src/trace/field_types.c", "src/trace/condition.c"),
)

LIMITS = [
    Limit("1 stream: times the rate of 64", "merge-1", "merge-64", most=5),
    Limit("64 streams merged: million events a second", "merge-64", least=10),
    *(Limit(f"{name}: million events a second", name, least=2) for name in FORMATS),
]


def measure(program: Path, rounds: int, cpu: int) -> Samples:
    """Run the program once; each line of it is a sample."""
    samples = Samples()
    done = subprocess.run([program, str(rounds), str(cpu)], check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        name, value, n_events = line.split()
        samples.add(name, float(value), events=int(n_events))
    return samples


def main() -> int:
    """Measure, judge."""
    rounds = asked(ROUNDS)
    cpu = min(os.sched_getaffinity(0))
    with compiled("bench_merge.c", parts=MERGE) as program:
        return judge(lambda: measure(program, rounds, cpu), LIMITS, "million events/s of one CPU")


if __name__ == "__main__":
    sys.exit(main())
