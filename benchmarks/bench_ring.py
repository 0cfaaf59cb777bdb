"""Measure what a record costs in a ring, next to bare copies of it into the same memory, and to the kernel's own ring.

    ./dev bench ring [ROUNDS]

One pinned thread, through the shared library; nanoseconds a record, medians over the rounds. The status is 1 if a
promised ratio is missed twice. The kernel's is a BPF ring buffer that a program outputs to in BPF_PROG_TEST_RUN, which
needs privileges; what the repeating itself costs is measured with the same program without the calls.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support import TMPFS, Limit, Samples, asked, compiled, judge

ROUNDS = 25

LIMITS = [
    Limit("per CPU, 16 bytes: times the copy", "percpu-16", "copy-16", most=4),
    Limit("per CPU, 64 bytes: times the copy", "percpu-64", "copy-64", most=4),
    Limit("per CPU, 256 bytes: times the copy", "percpu-256", "copy-256", most=4),
    Limit("per CPU, 4096 bytes: times the copy", "percpu-4096", "copy-4096", most=1.5),
    Limit("per CPU, inline, 64 bytes: times called", "percpu-inline-64", "percpu-64", most=1.1),
    Limit("global, 64 bytes: times the copy", "global-64", "copy-64", most=12),
    # 1.06 on an Intel Xeon; on AMD, where the exchange is cheaper, the rest is more of it.
    Limit("global, 64 bytes: times a copy with one locked exchange", "global-64", "exchange-64", most=2),
    Limit("global, 8 bytes: times a copy with one locked exchange", "global-reserve-8", "exchange-8"),
    Limit("per CPU, reserved and committed, 64 bytes: times output", "percpu-reserve-64", "percpu-64", most=4),
    Limit("global, reserved and committed, 64 bytes: times output", "global-reserve-64", "global-64", most=2),
    Limit("per CPU, overwriting, 64 bytes: times in an empty ring", "percpu-overwrite-64", "percpu-64", most=3.3),
    Limit("global, overwriting, 64 bytes: times in an empty ring", "global-overwrite-64", "global-64", most=3),
    Limit("per CPU, with times, 64 bytes: times without", "percpu-timed-64", "percpu-64", most=14),
    Limit("global, with times, 64 bytes: times without", "global-timed-64", "global-64", most=7),
    Limit("consumed in place, 64 bytes: times the copy", "next-release-64", "copy-64", most=12),
]
KERNEL = [
    Limit("per CPU, 64 bytes: times bpf_ringbuf_output()", "percpu-64", "kernel-output-64", most=1 / 3),
    Limit("per CPU, inline, 64 bytes: of which its loop is taken off", "percpu-inline-64", "kernel-output-64-net"),
    # 0.43 on AMD. On an Intel Xeon 0.57, of which a copy with one locked exchange alone takes 0.53.
    Limit("global, 64 bytes: times bpf_ringbuf_output()", "global-64", "kernel-output-64", most=0.65),
    Limit("the same, of which its loop is taken off", "global-64", "kernel-output-64-net"),
    Limit("per CPU, 8 bytes: times bpf_ringbuf_reserve(), _submit()", "percpu-reserve-8", "kernel-reserve-8", most=0.6),
    Limit("global, 8 bytes: times bpf_ringbuf_reserve(), _submit()", "global-reserve-8", "kernel-reserve-8", most=0.65),
    Limit("the same, of which their loop is taken off", "global-reserve-8", "kernel-reserve-8-net"),
]
TWO_CPUS = Limit("global, two producers: times the rate of one", "two-producers", "one-producer", least=0.3)


def take_off_loop(samples: Samples, what: str, loop: str) -> None:
    """Add what the kernel's calls cost without the test run around them."""
    for value, around in zip(samples.values.get(what, []), samples.values.get(loop, []), strict=True):
        samples.add(f"{what}-net", value - around)


def run(program: Path, rounds: int, cpus: list[int]) -> list[str]:
    """Run the program once; return its lines."""
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        command: list[str | Path] = [program, str(rounds), str(cpus[0]), str(cpus[-1]), directory]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def measure(program: Path, rounds: int, cpus: list[int]) -> Samples:
    """Run the program once; each line of it is a sample, but for a remark."""
    samples = Samples()
    for line in run(program, rounds, cpus):
        if not line.startswith("#"):
            name, value, taken, refused = line.split()
            samples.add(name, float(value), hits=int(taken), drops=int(refused))
    take_off_loop(samples, "kernel-output-64", "kernel-loop-64")
    take_off_loop(samples, "kernel-reserve-8", "kernel-loop-8")
    return samples


def main() -> int:
    """Compile, measure, judge."""
    rounds = asked(ROUNDS)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with compiled("bench_ring.c", parts=["bench/yardsticks.c"]) as program:
        remarks = run(program, 0, cpus)
        limits = LIMITS + KERNEL * (not remarks) + [TWO_CPUS] * (len(cpus) > 1)
        status = judge(lambda: measure(program, rounds, cpus), limits, "ns/record, *-producer(s): records/us")
    for remark in remarks:
        print(remark.removeprefix("# "))
    if len(cpus) < 2:
        print("one CPU only: two producers were not measured")
    return status


if __name__ == "__main__":
    sys.exit(main())
