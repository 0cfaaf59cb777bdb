"""Traced programs and recorders in a mount.

start_trace(mount, "t")
with traced(mount) as program:
    program.ask("emit 1000")
trace = record_stopped(mount, "t", tmp_path / "out")
assert trace.numbers() == list(range(1000))
"""

import json
import os
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import tracing
from babeltrace import Trace, babeltrace, packets_in
from build import PROGRAMS, compile_c
from making import N_CPUS, Maker, making
from mounts import Mount, wait_until
from traffic import drain

STEP = struct.Struct("<QiQ")  # head, thread, number
SUMMARY = re.compile(
    r"\S+: .* in \d+ packets of \d+ processes to .*, \d+ events lost"
    r"(, and \d+ of programs (of user \d+ )?that could get no buffers)*"
)


# --- programs ---


def environment_of(mount: Mount) -> dict[str, str]:
    """Make programs use this mount."""
    return {**os.environ, "RELAYFS": str(mount.path)}


def program(name: str, *flags: str) -> Path:
    return compile_c([PROGRAMS / f"{name}.c"], None, "", *flags)


def traced(
    mount: Mount, ledger: Path | None = None, user: int | None = None, cpus: Sequence[int] = ()
) -> AbstractContextManager[Maker]:
    """Run traced.c; on these CPUs."""
    command: list[str | Path] = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
    command += [program("traced"), *([ledger] if ledger else [])]
    return making({"RELAYFS": str(mount.path)}, user, command)


@dataclass
class Ledger:
    """How many events traced.c has written."""

    path: Path

    def __post_init__(self) -> None:
        self.path.write_bytes(bytes(8))

    @property
    def written(self) -> int:
        return int.from_bytes(self.path.read_bytes(), "little")

    def wait(self, n: int) -> None:
        """Wait until there are so many."""
        wait_until(lambda: self.written >= n, lambda: f"{n} events are written: {self.written}")


def start_trace(mount: Mount, name: str = "t", options: str = "") -> Path:
    """Make and start a trace; return its directory in the mount."""
    mount.command(f"trace create {name} {options}")
    mount.command(f"trace start {name}")
    return mount.path / name


def lost_without_buffers(mount: Mount, user: int | None = None) -> int:
    """What relayctl stat says of the trace t: of programs of the store's user and root, or of this other user's."""
    done = relayctl(mount, "stat", "t", "--parts", "--json")
    assert done.returncode == 0, done.stderr
    found = {(one["kind"], one["name"]): one["lost_by_cause"] for one in map(json.loads, done.stdout.splitlines())}
    lost = {name: causes["no_buffers"] for (kind, name), causes in found.items() if kind == "user"}
    if user is not None:
        return int(lost.get(f"t/user-{user}", 0))
    return int(found["trace", "t"]["no_buffers"]) - sum(lost.values())


# --- recorders ---


def relayctl(mount: Mount, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return tracing.relayctl(*words, env=environment_of(mount))


def record_stopped(mount: Mount, name: str, out: Path, warns: str = "") -> Trace:
    """Stop a trace, record what is there, read it. warns: what the recorder says on stderr before its summary."""
    mount.command(f"trace stop {name}")
    done = relayctl(mount, "record", name, "-o", out, "--until-stopped")
    assert done.returncode == 0, done.stderr
    check_summary(done.stderr, warns)
    return babeltrace(out)


def check_summary(said: str, warns: str = "") -> None:
    """The last line a recorder says is its summary; there may be nothing else, but for what matches `warns`."""
    *before, last = said.splitlines()
    assert SUMMARY.fullmatch(last), said
    assert re.fullmatch(warns, "\n".join(before), re.DOTALL), said


def check_threads(trace: Trace, pid: int, n_threads: int, n: int, lost: int) -> None:
    """Check events of `threads T N`: each thread's are in order, and those that are missing are lost.

    An event is lost if another thread of its process is preempted while it begins a sub-buffer: busy machines do that.
    """
    events = [event for event in trace.named("judge:step") if event.pid == pid]
    for who in range(1, n_threads + 1):
        seen = [event["seq"] for event in events if event["who"] == who]
        assert seen == sorted(set(seen) & set(range(n)))
    assert len([event for event in events if event["who"]]) + lost == n_threads * n


def copy_stopped(mount: Mount, name: str, out: Path) -> Trace:
    """Stop a trace, copy its files as they are shown, read that."""
    mount.command(f"trace stop {name}")
    for directory in directories(mount.path / name):
        (out / directory.name).mkdir(parents=True)
        for path in directory.iterdir():
            data = drain(path) if path.name != "metadata" else path.read_bytes()
            if data:
                (out / directory.name / path.name).write_bytes(data)
    return babeltrace(out)


def wait_gone(path: Path) -> None:
    wait_until(lambda: not path.exists(), f"{path} goes away")


def wait_for_directories(mount: Mount, name: str, ready: Callable[[list[str]], bool]) -> list[str]:
    """Wait until what is in a trace is as it should be; return that."""
    trace = mount.path / name
    wait_until(lambda: ready(processes(trace)), lambda: f"{processes(trace)}")
    return processes(trace)


# --- test:step of traced.c ---


def directories(trace: Path) -> list[Path]:
    """What is in a trace in the mount, besides its files `merged` and `triggered`."""
    return sorted(path for path in trace.iterdir() if not path.name.startswith(("merged", "triggered")))


def processes(trace: Path) -> list[str]:
    return [path.name for path in directories(trace)]


def directory_of(trace: Path, image: Maker) -> Path:
    """Wait for the directory of a program that has written an event."""
    path = trace / f"traced-{image.process.pid}"
    wait_until(path.exists, f"{path} appears")
    return path


def steps_in(data: bytes, event: struct.Struct = STEP) -> tuple[list[int], int]:
    """Return the numbers in a stream, and how many events its packets say are lost."""
    found = packets_in(data)
    assert all(packet.bits == packet.content_bits for packet, _ in found)
    steps = [fields[-1] for _, events in found for fields in event.iter_unpack(events)]
    return steps, max((packet.lost for packet, _ in found), default=0)


def read_steps(process: Path, event: struct.Struct = STEP) -> list[int]:
    """Read, and consume, what there is of a process, as numbers in order; nothing may be lost."""
    return sorted(step for cpu in range(N_CPUS) for step in read_cpu_steps(process, cpu, event))


def read_cpu_steps(process: Path, cpu: int, event: struct.Struct = STEP) -> list[int]:
    """Read, and consume, what there is in one buffer of a process."""
    steps, n_lost = steps_in((process / f"cpu{cpu}").read_bytes(), event)
    assert n_lost == 0
    return steps
