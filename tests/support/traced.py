"""Traced programs, recorders, and what babeltrace2 reads of what they wrote.

start_trace(mount, "t")
with traced(mount) as program:
    program.ask("emit 1000")
trace = record_stopped(mount, "t", tmp_path / "out")
assert trace.numbers() == list(range(1000))
"""

import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from build import compile_c
from making import Maker, making
from mounts import DEADLINE_S, Mount, wait_until
from traffic import drain

RELAYCTL = Path(sys.executable).with_name("relayctl")
PROGRAMS = Path(__file__).parent / "programs"
PACKET = struct.Struct("<IIQQQQQQQII")
LINE = re.compile(r"\[(?P<s>\d+)\.(?P<ns>\d{9})\] \S* ?(?P<name>[\w.]+:\w+): (?P<fields>\{.*\})$")
FIELD = re.compile(r'(\w+) = ("(?:[^"\\]|\\.)*"|[^ ,]+)')
SUMMARY = re.compile(
    r"\S+: .* in \d+ packets of \d+ processes to .*, \d+ events lost"
    r"(, and \d+ of programs (of user \d+ )?that could get no buffers)*"
)
# What is lost must be said; anything else on babeltrace2's stderr is a fault of ours.
LOSS = re.compile(r"WARNING: Tracer (may have )?discarded .*")


@dataclass(frozen=True)
class Event:
    """One event, as babeltrace2 shows it; ns: since 1970."""

    ns: int
    name: str
    fields: dict[str, str]

    def __getitem__(self, name: str) -> int:
        return int(self.fields[name], 0)

    @property
    def pid(self) -> int:
        """Whose it is: in buffers of several processes each event says it."""
        return self["vpid"] if "vpid" in self.fields else self["pid"]


@dataclass(frozen=True)
class Packet:
    """The head of one, see struct relay_packet."""

    magic: int
    stream_id: int
    cpu: int
    bits: int
    lost: int
    number: int
    end: int
    begin: int
    content_bits: int
    cpu_id: int
    pid: int


@dataclass
class Trace:
    """What a directory holds; `lost` as its packets say."""

    directory: Path
    events: list[Event]
    lost: int
    losses: list[str] = field(default_factory=list)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def numbers(self, name: str = "judge:step", **fields: int) -> list[int]:
        """Return seq of all such events, in their order."""
        return [event["seq"] for event in self.named(name) if all(event[key] == value for key, value in fields.items())]

    def by_pid(self, name: str = "judge:step") -> dict[int, list[int]]:
        """Return seq of each process's events."""
        found: dict[int, list[int]] = defaultdict(list)
        for event in self.named(name):
            found[event.pid].append(event["seq"])
        return found


def babeltrace(directory: Path) -> Trace:
    """Have babeltrace2 read everything; it may complain of nothing but losses."""
    done = subprocess.run(
        ["babeltrace2", "--clock-seconds", "--no-delta", directory],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if line and not LOSS.fullmatch(line)]
    assert done.returncode == 0, done.stderr
    assert not complaints, "\n".join(complaints)
    events = [_event(line) for line in done.stdout.splitlines()]
    return Trace(directory, events, lost(directory), done.stderr.splitlines())


def _event(line: str) -> Event:
    found = LINE.fullmatch(line)
    assert found, line
    ns = int(found["s"]) * 1_000_000_000 + int(found["ns"])
    return Event(ns, found["name"], {key: value.rstrip(",") for key, value in FIELD.findall(found["fields"])})


def packets(stream: Path) -> list[Packet]:
    """Return the heads of a stream file's packets that hold anything."""
    data = stream.read_bytes()
    found = []
    at = 0
    while at < len(data):
        packet = Packet(*PACKET.unpack_from(data, at))
        assert packet.magic == 0xC1FC1FC1, f"{stream}: no packet at {at}"
        if packet.content_bits > 8 * PACKET.size:
            found.append(packet)
        at += packet.bits // 8
    assert at == len(data)
    return found


def streams(directory: Path) -> dict[str, list[Path]]:
    """Return the files of each stream below a directory, in their order."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(directory.rglob("cpu*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]):
        found[f"{path.parent}/{path.name.partition('_')[0]}"].append(path)
    return found


def lost(directory: Path) -> int:
    """Return how many events the streams say were lost; fail if their clocks or counts go back."""
    total = 0
    for files in streams(directory).values():
        heads = [packet for path in files for packet in packets(path)]
        for one, next_one in itertools.pairwise(heads):
            assert one.begin <= one.end <= next_one.begin <= next_one.end, f"{files}: {one} {next_one}"
            assert one.lost <= next_one.lost, f"{files}: {one} {next_one}"
            assert one.number < next_one.number, f"{files}: {one} {next_one}"
        total += heads[-1].lost if heads else 0
    return total


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


def start_trace(mount: Mount, name: str, options: str = "") -> None:
    mount.command(f"trace create {name} {options}")
    mount.command(f"trace start {name}")


def lost_without_buffers(mount: Mount, user: int | None = None) -> int:
    """What relayctl stat says of the trace t: of programs of the store's user and root, or of this other user's."""
    done = relayctl(mount, "stat", "t", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["traces"]
    if user is None:
        return int(found["lost_without_buffers"])
    return int(found["lost_without_buffers_by_user"].get(str(user), 0))


# --- recorders ---


def relayctl(mount: Mount, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RELAYCTL, *words], env=environment_of(mount), capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


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


def copy_stopped(mount: Mount, name: str, out: Path) -> Trace:
    """Stop a trace, copy its files as they are shown, read that."""
    mount.command(f"trace stop {name}")
    for directory in sorted(path for path in (mount.path / name).iterdir()):
        (out / directory.name).mkdir(parents=True)
        for path in directory.iterdir():
            data = drain(path) if path.name != "metadata" else path.read_bytes()
            if data:
                (out / directory.name / path.name).write_bytes(data)
    return babeltrace(out)


@dataclass
class Recorder:
    """relayctl record, running."""

    mount: Mount
    name: str
    out: Path
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [RELAYCTL, "record", self.name, "-o", self.out],
            env=environment_of(self.mount), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Let it die without a chance to do anything."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def finish(self) -> str:
        """Let it end in order; return what it said on stderr."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, err
        return err


@contextmanager
def recording(mount: Mount, name: str, out: Path) -> Iterator[Recorder]:
    recorder = Recorder(mount, name, out)
    recorder.start()
    try:
        yield recorder
    finally:
        if recorder.process is not None and recorder.process.poll() is None:
            recorder.kill()


def wait_gone(path: Path) -> None:
    wait_until(lambda: not path.exists(), f"{path} goes away")


def wait_for_directories(mount: Mount, name: str, ready: Callable[[list[str]], bool]) -> list[str]:
    """Wait until what is in a trace is as it should be; return that."""
    wait_until(lambda: ready(sorted(os.listdir(mount.path / name))), lambda: f"{os.listdir(mount.path / name)}")
    return sorted(os.listdir(mount.path / name))
