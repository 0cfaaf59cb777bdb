"""What babeltrace2 reads of traces, and what the heads of their packets say.

trace = babeltrace(directory)
assert trace.numbers() == list(range(1000))    # of traced.c
assert read(directory).events["app"] == list(range(100))    # of event_writer.c, traced as a program of this name
"""

import itertools
import re
import struct
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mounts import DEADLINE_S

PACKET = struct.Struct("<IIQQQQQQQII")
MAGIC = 0xC1FC1FC1
LINE = re.compile(r"\[(?P<s>\d+)\.(?P<ns>\d{9})\] (?:(?P<origin>\S+) )?(?P<name>[\w.]+:\w+): (?P<text>\{.*\})")
FIELD = re.compile(r'(\w+) = ("(?:[^"\\]|\\.)*"|[^ ,]+)')
# An event of event_writer.c: its process, name and number. There may be 100,000: their fields are not split up.
WRITTEN = re.compile(
    r"\[\d+\.\d{9}\] [^ :]+:([^ :]+):\(\d+\) (?:test:)?([\w.:]+): "
    r"\{ cpu_id = \d+, pid = \d+ \}, \{ vtid = \d+ \}, \{ n = (\d+), fill = \d+ \}"
)
# What is lost must be said; anything else on babeltrace2's stderr is a fault of ours.
LOSS = re.compile(r"WARNING: Tracer (may have )?discarded .*")
LOST = re.compile(r"WARNING: Tracer (discarded|may have discarded) (\d+ )?(trace )?events? between ")
LOST_PACKETS = re.compile(r"WARNING: Tracer discarded \d+ packets? between ")


@dataclass
class Event:
    """One event, as babeltrace2 shows it.

    ns: since 1970
    origin: HOST:PROCESS:(PID), if the trace says it
    text: the packet's context and the event's, and its fields, each in braces
    """

    ns: int
    origin: str
    name: str
    text: str

    @cached_property
    def fields(self) -> dict[str, str]:
        return dict(FIELD.findall(self.text))

    def __getitem__(self, name: str) -> int:
        # There may be 100,000 events. The fields are split up only if a string, or another context, also has the name.
        _, found, rest = self.text.partition(f" {name} = ")
        is_once = found and f" {name} = " not in rest
        return int(rest.partition(" ")[0].rstrip(",") if is_once else self.fields[name], 0)

    @property
    def process(self) -> str:
        return self.origin.split(":")[1]

    @property
    def pid(self) -> int:
        """Whose it is: in buffers of several processes each event says it."""
        return self["vpid"] if " vpid = " in self.text else self["pid"]

    def __str__(self) -> str:
        """Return its name and fields, without what the packet says and without the thread."""
        text = re.sub(r"^{ cpu_id = \d+, pid = \d+ }, ", "", self.text)
        return f"{self.name}: {re.sub(r'{ vtid = [0-9]+ }, |, vtid = [0-9]+(?= })', '', text, count=1)}"


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


def _read(*directories: Path) -> tuple[list[str], list[str]]:
    """Return what babeltrace2 shows of directories, a line for each event, and what it warns of."""
    done = subprocess.run(
        ["babeltrace2", "--clock-seconds", "--no-delta", *directories],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [line for line in done.stderr.splitlines() if line]


def event_of(line: str) -> Event:
    found = LINE.fullmatch(line)
    assert found, line
    ns = int(found["s"]) * 1_000_000_000 + int(found["ns"])
    return Event(ns, found["origin"] or "", found["name"], found["text"])


def babeltrace(directory: Path) -> Trace:
    """Have babeltrace2 read everything; it may complain of nothing but losses."""
    shown, warnings = _read(directory)
    complaints = [line for line in warnings if not LOSS.fullmatch(line)]
    assert not complaints, "\n".join(complaints)
    return Trace(directory, list(map(event_of, shown)), lost(directory), warnings)


@dataclass
class Read:
    """What event_writer.c has written: by process, the numbers of its events; and how many are lost."""

    events: dict[str, list[int]]
    names: set[str]
    lost: int


def read(*directories: Path, may_miss_packets: bool = False) -> Read:
    """Have babeltrace2 read directories; it may warn of nothing but lost events.

    may_miss_packets: packets were overwritten between two copies, as a program wrote on
    """
    shown, warnings = _read(*directories)
    if may_miss_packets:
        warnings = [line for line in warnings if not LOST_PACKETS.match(line)]
    counts = [LOST.match(line) for line in warnings]
    assert all(match and match[2] for match in counts), "\n".join(warnings)
    found: dict[str, list[int]] = {}
    names = set()
    for line in shown:
        event = WRITTEN.fullmatch(line)
        assert event, line
        process, name, n = event.groups()
        found.setdefault(process, []).append(int(n))
        names.add(name)
    return Read(found, names, sum(int(match[2]) for match in counts if match))


def read_if_any(directory: Path) -> Read:
    return read(directory) if any(directory.rglob("metadata")) else Read({}, set(), 0)


def packets_in(data: bytes) -> list[tuple[Packet, bytes]]:
    """Take a stream apart: return the heads of its packets, and their events."""
    found, at = [], 0
    while at < len(data):
        packet = Packet(*PACKET.unpack_from(data, at))
        assert packet.magic == MAGIC, f"no packet at {at}"
        found.append((packet, data[at + PACKET.size : at + packet.content_bits // 8]))
        at += packet.bits // 8
    assert at == len(data)
    return found


def n_bytes_of_events(stream: Path) -> int:
    """Add up what its packets hold, without reading that."""
    total = at = 0
    with stream.open("rb") as file:
        # The last one may be under way.
        while len(head := file.read(PACKET.size)) == PACKET.size:
            packet = Packet(*PACKET.unpack(head))
            total += packet.content_bits // 8 - PACKET.size
            at += packet.bits // 8
            file.seek(at)
    return total


def packets(stream: Path) -> list[Packet]:
    """Return the heads of a stream file's packets that hold anything."""
    return [packet for packet, events in packets_in(stream.read_bytes()) if events]


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
        # A packet without events tells of losses too, as where a CPU has lost all that it was given.
        counts = [packet.lost for path in files for packet, _ in packets_in(path.read_bytes())]
        assert counts == sorted(counts), f"{files}: {counts}"
        for one, next_one in itertools.pairwise(heads):
            assert one.begin <= one.end <= next_one.begin <= next_one.end, f"{files}: {one} {next_one}"
            assert one.number < next_one.number, f"{files}: {one} {next_one}"
        total += max(counts, default=0)
    return total
