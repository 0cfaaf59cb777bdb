"""Measure what triggers cost while a program writes a million events a second, and how soon one fires.

    ./dev bench triggers [ROUNDS]

24 triggers wait for other events, or for values that no event has, or all of them fire at the most often that is
allowed. What they cost is the CPU time of the process that evaluates them, for as many events as are written in a
second. Medians over the rounds. The status is 1 if a promise is missed twice.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench_view import cpu_s
from support import Limit, Mount, Samples, judge_program, mounted

ROUNDS = 3
EVENTS_A_SECOND = 1_000_000
EVENTS = 3 * EVENTS_A_SECOND
# There is room for all events, so that none is overwritten before it was evaluated on a busy machine.
GEOMETRY = "subbuf_size=1M n_subbufs=192 mode=overwrite"
N_TRIGGERS = 24
DEADLINE_S = 60

# What the triggers of each sort wait for, and their limit.
SORTS = {
    "names": ("other:event{n}", "1s"),
    "conditions": ("bench:request if 'ns == {n}'", "1s"),
    "firing": ("bench:request if 'ns > {n}'", "1ms"),
}
UNIT = "names, conditions, firing: s of CPU time for a million events; -missed: events; delay: ms"
LIMITS = [
    Limit("24 triggers on other events: of a core", "names", most=0.2),
    Limit("24 triggers with conditions on each event: of a core", "conditions", most=0.2),
    Limit("24 triggers that fire 1000 times a second: of a core", "firing", most=0.2),
    Limit("ms from an event to the line of its trigger", "delay", most=500),
]


def evaluator_of(mount: Mount) -> int:
    """Wait for the process that evaluates triggers, and return it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        done = subprocess.run(["pgrep", "-f", f"triggers.main.*{mount.store}"], stdout=subprocess.PIPE, check=False)
        if done.stdout:
            return int(done.stdout)
        time.sleep(0.01)
    raise TimeoutError("no process evaluates triggers")


def state_of(mount: Mount) -> dict:
    """Return how far the triggers of the trace are."""
    try:
        return json.loads((mount.store / "bench/.trigger-state").read_text())
    except FileNotFoundError:
        return {"reached": 0, "triggers": {}}


def wait_evaluated(mount: Mount, until: int) -> None:
    """Wait until all events up to a time are evaluated."""
    end = time.monotonic() + DEADLINE_S
    while state_of(mount)["reached"] < until and time.monotonic() < end:
        time.sleep(0.01)


def sample(samples: Samples, mount: Mount, program: Path, sort: str) -> None:
    """Have a program write while triggers of a sort wait, and note what the evaluation took."""
    mount.command(f"trace create bench {GEOMETRY}\ntrace start bench")
    waits_for, limit = SORTS[sort]
    for n in range(N_TRIGGERS):
        mount.command(f"trigger add t{n} on bench {waits_for.format(n=n)} do notify limit={limit}")
    pid = evaluator_of(mount)
    wait_evaluated(mount, 1)
    with subprocess.Popen(
        [program, str(EVENTS_A_SECOND), str(EVENTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        env={**os.environ, "RELAYFS": str(mount.path)},
    ) as writer:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None
        before = cpu_s(pid)
        writer.stdin.write(b"\n")
        writer.stdout.readline()
        wait_evaluated(mount, time.time_ns())
        samples.add(sort, (cpu_s(pid) - before) / (EVENTS / EVENTS_A_SECOND))
        evaluated = [numbers[0] for numbers in state_of(mount)["triggers"].values()]
        samples.add(f"{sort}-missed", sum(EVENTS - n for n in evaluated) if sort == "firing" else 0)
    mount.command("trace remove bench")


def delay(samples: Samples, mount: Mount, program: Path) -> None:
    """Note how long it takes from an event to the line of its trigger."""
    mount.command("trace create bench\ntrace start bench\ntrigger add t on bench bench:request do notify limit=1ms")
    lines = mount.path / "bench/triggered"
    wait_evaluated(mount, 1)
    began = time.time_ns()
    with subprocess.Popen(
        [program, "1", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RELAYFS": str(mount.path)},
    ):
        while not lines.read_bytes() and time.time_ns() - began < DEADLINE_S * 10**9:
            time.sleep(0.001)
        text = lines.read_text()
        written = int(text.partition("ns = ")[2].split()[0])
        samples.add("delay", (time.time_ns() - written) / 1e6)
    mount.command("trace remove bench")


def measure(program: Path, rounds: int) -> Samples:
    """Measure all sorts in each round."""
    samples = Samples()
    with mounted() as mount:
        for _ in range(rounds):
            for sort in SORTS:
                sample(samples, mount, program, sort)
            delay(samples, mount, program)
    return samples


def main() -> int:
    """Measure, judge."""
    return judge_program("bench_view.c", measure, ROUNDS, LIMITS, UNIT)


if __name__ == "__main__":
    sys.exit(main())
