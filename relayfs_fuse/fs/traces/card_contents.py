"""The contents of a crash card (cards.py): what is read of /proc while a process lives, and of its buffers afterwards.

In the card are

    cause                   how it has ended, KEY=VALUE a line; see ends.py
    process                 trace, program, numbers, times, KEY=VALUE a line
    cmdline limits maps     as in /proc/PID, when the server saw the process first; not there if that could not be read
    objects                 program and libraries, BASE SIZE BIAS BUILD_ID PATH a line; see tracefiles/objects.py
    losses                  when events were lost, and why, as in .channels/PATH/losses
    statistics              `cpuN NAME VALUE` a line: all statistics of the buffers
    counters                the mount's counters, as in counters.txt
    ctf/                    metadata and packets
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.fs.traces.cards import CTF
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import CLOCKS, STATISTICS
from relayfs_fuse.native.trace import STATE_CPU
from relayfs_fuse.reading.copies import copies
from relayfs_fuse.reading.damage import DamagedError
from relayfs_fuse.reading.packet import HEAD_BYTES
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.states import read_states
from relayfs_fuse.tracefiles import ctf, objects
from relayfs_fuse.tracefiles.losses import Intervals, counts_of, text
from relayfs_fuse.tracefiles.streams import stream_name

if TYPE_CHECKING:
    from relayfs_fuse.fs.traces.process import TraceProcess
    from relayfs_fuse.native.trace import Clocks, Trace
    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.tracefiles.ctf import Unbuffered

# Of which files in /proc/PID how many bytes are kept.
_PROC = {"cmdline": 64 << 10, "limits": 16 << 10, "maps": 256 << 10}
COUNTERS_MAX = 64 << 10
# The level of zlib for what is kept of a living process: 85 kB of maps shrink to 10 kB in 0.4 ms.
_LEVEL = 1


class Seen(NamedTuple):
    """What was read of a process in /proc while it lived.

    at_ns: when, by CLOCK_REALTIME
    files: the contents, compressed, by name
    """

    at_ns: int
    files: dict[str, bytes]

    @property
    def n_bytes(self) -> int:
        """The memory that this takes."""
        return sum(map(len, self.files.values()))


class Death(NamedTuple):
    """What is known of a dead process besides its buffers.

    pid: in the server's PID namespace; 0: it had ended before the server knew it
    cause: the lines of the file `cause`
    seen: see Seen; None: it had ended before it was seen
    died_ns: when its end was seen, by CLOCK_REALTIME
    counters: the text of the mount's counters
    """

    pid: int
    cause: list[str]
    seen: Seen | None
    died_ns: int
    counters: bytes


def look_at(pid: int, uid: int, at_ns: int) -> Seen:
    """Read what a card needs of a living process; what cannot be read is left out.

    uid: the user who will get it. If the process is not his any more, nothing is kept: its directory in /proc belongs
        to root after execve(2) of a program with the rights of another user.
    """
    files: dict[str, bytes] = {}
    for name, most in _PROC.items():
        with suppress(OSError), open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            data = b""
            while len(data) < most and (piece := file.read(most - len(data))):
                data += piece
            # After the file was opened: it shows the program that ran then.
            if os.stat(f"/proc/{pid}").st_uid == uid:
                files[name] = zlib.compress(data, _LEVEL)
    return Seen(at_ns, files)


def contents(dead: TraceProcess, trace: Trace, unbuffered: Unbuffered, death: Death, most: int) -> dict[str, bytes]:
    """Return the files of a card, by their paths in it.

    dead: the directory of the process
    unbuffered: see ctf.metadata()
    most: how many bytes all files may take; of more packets, the oldest are left out
    """
    files = {name: zlib.decompress(data) for name, data in (death.seen.files if death.seen else {}).items()}
    files["cause"] = _text(death.cause)
    files["counters"] = death.counters[:COUNTERS_MAX]
    about = [f"trace={trace.name}"]
    if death.pid:
        about.append(f"pid={death.pid}")
    if death.seen:
        about.append(f"seen={_time(death.seen.at_ns)}")
    about.append(f"died={_time(death.died_ns)}")
    try:
        with closing(Process(dead.directory, "others", trace)) as process:
            origin = process.origin
            about[1:1] = [f"program={origin.process}"]
            about += [f"vpid={origin.vpid}", f"uid={origin.uid}"]
            files["statistics"] = _statistics(process)
            files["losses"] = _losses(process, dead.losses)
            files["objects"] = objects.text_of(process.loaded_objects())
            process.flush()
            process.check_size()
            files |= _events(process, trace, unbuffered, most - sum(map(len, files.values())))
            about += [f"unfinished=cpu{cpu}: {why}" for cpu, why in process.unfinished.items()]
    except (OSError, ValueError, DamagedError) as error:
        about.append(f"damaged={error}")
    files["process"] = _text(about)
    return files


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat("T", "milliseconds").replace("+00:00", "Z")


def _statistics(process: Process) -> bytes:
    return _text([
        f"cpu{cpu} {statistic.name} {getattr(stats, statistic.field)}"
        for cpu, consumer in process.buffers.items()
        for stats in [consumer.buffer.stats()]
        for statistic in STATISTICS["relay"]
    ])  # fmt: skip


def _losses(process: Process, losses: dict[int, Intervals]) -> bytes:
    lines: list[str] = []
    for cpu, consumer in process.buffers.items():
        intervals = losses.setdefault(cpu, Intervals())
        asked_ns = time.time_ns()
        intervals.look(counts_of("relay", consumer.buffer.stats()), asked_ns)
        lines += intervals.lines(str(cpu))
    process.losses.update(losses)
    return text(lines)


def _events(process: Process, trace: Trace, unbuffered: Unbuffered, most: int) -> dict[str, bytes]:
    """Return the metadata and the streams, of which the oldest packets are left out, and the states."""
    states = read_states(process, _clocks(trace, process))
    streams: dict[str, bytearray] = {}
    if states:
        data = b"".join((states.head.before().pack(), states.head.pack(), *states.body))
        streams[f"{CTF}/{stream_name(STATE_CPU)}"] = bytearray(data)
    room = most - len(process.metadata(_clocks(trace, process), unbuffered)) - len(process.buffers) * HEAD_BYTES
    room -= sum(map(len, streams.values()))
    kept: deque[tuple[Head, bytes]] = deque()
    for cpu, consumer in process.buffers.items():
        own: deque[tuple[Head, bytes]] = deque()
        for copy in copies(process, cpu, consumer, lambda: _clocks(trace, process)):
            own.append((copy.packet.head, bytes(copy.packet.body[0])))
            _cut(own, room)
        kept = deque(sorted((*kept, *own), key=lambda packet: packet[0].timestamp_end))
        _cut(kept, room)
    for head, body in kept:
        stream = streams.setdefault(f"{CTF}/{stream_name(head.cpu_id)}", bytearray(head.before().pack()))
        stream += head.pack() + body
    if not streams:
        return {}
    metadata = ctf.with_uuid(process.metadata(_clocks(trace, process), unbuffered), ctf.new_uuid())
    return {f"{CTF}/metadata": metadata, **{path: bytes(data) for path, data in streams.items()}}


def _cut(packets: deque[tuple[Head, bytes]], most: int) -> None:
    """Remove the first packets until the others take at most so many bytes."""
    taken = sum(head.packet_bytes for head, _ in packets)
    while packets and taken > most:
        taken -= packets.popleft()[0].packet_bytes


def _clocks(trace: Trace, process: Process) -> Clocks:
    if trace.boot != native_trace.boot_id():
        return trace.latest
    return native_trace.read_clocks(CLOCKS[process.origin.clock].number)
