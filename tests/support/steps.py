"""Traced programs run by tests, tests/support/programs/trace_steps.c, and what their relay files give of them."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build import compile_c
from making import N_CPUS, Maker, environment_of, making
from mounts import Mount, wait_until

SOURCE = Path(__file__).parent / "programs/trace_steps.c"
HEAD = struct.Struct("<IIQQQQQQQII")
EVENT = struct.Struct("<QQ")  # head, number
MAGIC = 0xC1FC1FC1


@dataclass(frozen=True)
class Packet:
    """One packet of events whose only field is a number."""

    cpu: int
    number: int
    lost: int
    pid: int
    steps: list[int]


def start_trace(mount: Mount, name: str = "t", options: str = "subbuf_size=4K n_subbufs=8") -> Path:
    """Make and start a trace; return its directory in the mount."""
    mount.command(f"trace create {name} {options}\ntrace start {name}\n")
    return mount.path / name


@contextmanager
def stepping(mount: Mount, user: int | None = None) -> Iterator[Maker]:
    """Run a traced program that obeys."""
    with making(environment_of(mount), user, [compile_c([SOURCE])]) as program:
        yield program


def processes(trace: Path) -> list[str]:
    return sorted(path.name for path in trace.iterdir())


def directory_of(trace: Path, program: Maker) -> Path:
    """Wait for the directory of a program that has written an event."""
    path = trace / f"trace_steps-{program.process.pid}"
    wait_until(path.exists, f"{path} appears")
    return path


def packets_in(data: bytes, event: struct.Struct = EVENT) -> list[Packet]:
    """Take a stream apart."""
    found, at = [], 0
    while at < len(data):
        magic, _, _, bits, lost, number, _, _, content_bits, cpu, pid = HEAD.unpack_from(data, at)
        assert magic == MAGIC
        assert bits == content_bits
        content = data[at + HEAD.size : at + bits // 8]
        assert len(content) % event.size == 0
        steps = [fields[-1] for fields in event.iter_unpack(content)]
        found.append(Packet(cpu, number, lost, pid, steps))
        at += bits // 8
    return found


def read_steps(process: Path, event: struct.Struct = EVENT) -> list[int]:
    """Read, and consume, what there is of a process, as numbers in order; nothing may be lost."""
    return sorted(step for cpu in range(N_CPUS) for step in read_cpu_steps(process, cpu, event))


def read_cpu_steps(process: Path, cpu: int, event: struct.Struct = EVENT) -> list[int]:
    """Read, and consume, what there is in one buffer of a process."""
    packets = packets_in((process / f"cpu{cpu}").read_bytes(), event)
    assert all(packet.lost == 0 for packet in packets)
    return [step for packet in packets for step in packet.steps]
