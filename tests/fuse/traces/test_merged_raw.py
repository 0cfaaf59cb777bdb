"""The file `merged.raw` of a trace: events as programs have written them, in pcapng."""

import os
import select
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, wait_until
from pcapng import Capture, blocks, parse
from traced import environment_of, start_trace, traced

from relayfs_fuse.fs.requests.merging import READY_BYTES

pytestmark = pytest.mark.one_mount

STEP = struct.Struct("<IQI")  # thread, number, who; a text follows
# One event more than a section has interfaces, and the first one again.
MANY = """
from relayfs_fuse import Event
events = [Event("many", f"e{i}", {"number": "u32"}) for i in range(4097)]
for number, event in enumerate((*events, events[0])):
    event(number)
"""


def read(trace: Path) -> Capture:
    found = parse((trace / "merged.raw").read_bytes())
    assert not found.rest
    return found


def numbers(capture: Capture) -> list[int]:
    return [STEP.unpack_from(one.data)[1] for one in capture.packets]


def test_events_are_as_they_were_written(mount: Mount) -> None:
    trace = start_trace(mount)
    with traced(mount, cpus=[0]) as writer:
        writer.ask("emit 3")
        pid = writer.process.pid
        found = read(trace)
    (interface,) = found.interfaces
    assert interface.name == f"traced-{pid} judge:step"
    assert interface.description == {
        "process": "traced", "pid": pid, "event": "judge:step",
        "fields": [{"name": "_vtid", "type": "u32"}, {"name": "seq", "type": "u64"}, {"name": "who", "type": "u32"},
                   {"name": "text", "type": "string"}],
    }  # fmt: skip
    assert [STEP.unpack_from(one.data)[:2] for one in found.packets] == [(pid, 0), (pid, 1), (pid, 2)]
    assert all(one.data.index(b"\0", STEP.size) == len(one.data) - 1 for one in found.packets)
    assert [one.queue for one in found.packets] == [0, 0, 0]
    times = [one.ns for one in found.packets]
    assert times == sorted(times)


def test_a_read_returns_whole_blocks_unless_they_are_too_long(mount: Mount) -> None:
    path = start_trace(mount, "t", "subbuf_size=1M n_subbufs=4") / "merged.raw"
    with traced(mount) as writer:
        writer.ask("emit 20000")
    whole = path.read_bytes()
    assert len(whole) > READY_BYTES
    assert numbers(parse(whole)) == list(range(20_000))
    for size in (1000, 50_001):
        with path.open("rb", buffering=0) as file:
            pieces = list(iter(partial(file.read, size), b""))
        assert b"".join(pieces) == whole
        assert not any(blocks(piece)[1] for piece in pieces)
        assert len(pieces) < 1.5 * len(whole) / size
    with path.open("rb", buffering=0) as file:
        pieces = [file.read(61) for _ in range(20)]
        rest = file.read(1000)
    # The first block takes 44 bytes, the second and all that follow more than 61; a longer read begins with a part.
    assert whole.startswith(b"".join([*pieces, rest]))
    assert {len(piece) for piece in pieces} > {44, 61}
    assert not blocks(b"".join([*pieces, rest]))[1]


@pytest.mark.parametrize("mode", ["overwrite", "no-overwrite"])
def test_losses_are_told(mount: Mount, tmp_path: Path, mode: str) -> None:
    trace, n = start_trace(mount, "t", f"subbuf_size=4K n_subbufs=4 mode={mode}"), 5000
    out = tmp_path / "out"
    follow = ["tail", "-c", "+1", "-s", "0.05", "-f", trace / "merged.raw"]
    with traced(mount, cpus=[0]) as writer, out.open("wb") as file, subprocess.Popen(follow, stdout=file) as tail:
        try:
            writer.ask("emit 1")
            wait_until(lambda: numbers(parse(out.read_bytes())) == [0], "the first event")
            writer.ask(f"emit {n}")

            def all_are_told() -> bool:
                found = parse(out.read_bytes())
                return len(found.packets) + sum(loss.n for loss in found.losses) == n + 1

            wait_until(all_are_told, lambda: f"{parse(out.read_bytes()).losses}")
        finally:
            tail.kill()
    found = parse(out.read_bytes())
    assert numbers(found) == sorted(set(numbers(found)))
    assert found.losses
    assert {loss.cause for loss in found.losses} == {"full" if mode == "no-overwrite" else "overwritten"}
    for loss in found.losses:
        assert loss.since <= loss.ns
        assert loss.interface.name == f"traced-{writer.process.pid} cpu0"
        assert loss.interface.description == {"process": "traced", "pid": writer.process.pid, "cpu": 0}


def test_programs_poll_it(mount: Mount) -> None:
    path = start_trace(mount) / "merged.raw"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with traced(mount) as writer, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        data = b""
        for n in range(-1, 3):  # the header of the section is there at once
            if n >= 0:
                writer.ask("emit 1")
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            data += os.read(descriptor, 4096)
            assert numbers(parse(data)) == list(range(n + 1))
            with pytest.raises(BlockingIOError):
                os.read(descriptor, 4096)
    os.close(descriptor)


def test_a_section_has_a_bounded_number_of_declarations(mount: Mount) -> None:
    trace = start_trace(mount, "t", "subbuf_size=1M n_subbufs=4")
    forking.run([sys.executable, "-c", MANY], env=environment_of(mount), check=True, timeout=DEADLINE_S)
    found = read(trace)
    expected = [*(f"many:e{i}" for i in range(4097)), "many:e0"]
    assert [one.interface.description["event"] for one in found.packets] == expected
    assert [struct.unpack_from("<4xI", one.data)[0] for one in found.packets] == list(range(4098))
    assert found.sections == 2
    assert [one.description["event"] for one in found.interfaces[4095:]] == ["many:e4095", "many:e4096", "many:e0"]
