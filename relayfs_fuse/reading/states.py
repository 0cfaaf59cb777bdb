"""The states of a process: the last values of its events of RELAY_TRACE_STATE(), from its file `.state`, as a packet.

The file is described in native/include/relayfs/trace_store.h. The process can write anything there, so each value is
checked by itself, against its sum and the declaration of its event, and left out if it is wrong. The packet is a stream
of its own, because the states may be older than what the buffers still have, and its times must be in order.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.trace import STATE_BYTES, STATE_CPU, STATE_MAGIC, STATES
from relayfs_fuse.reading.check import Checker
from relayfs_fuse.reading.heads import latest
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head, Packet
from relayfs_fuse.tracefiles.streams import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.reading.process import Process
    from relayfs_fuse.tracefiles.ctf import Clocks

# struct relay_state_value, up to the fields; its sum is of what follows it.
_VALUE = struct.Struct("<IIQQQHHI")
_SUMMED_AT = 8
# The header of an event with its full time, and its context.
_EVENT = struct.Struct("<HHQI")
_EXTENDED = 65535


class _Value(NamedTuple):
    magic: int
    sum: int
    sequence: int
    mono_ns: int
    n_dropped: int
    id: int
    length: int
    tid: int


def read_states(process: Process, clocks: Clocks) -> Packet | None:
    """Return a packet with the present states, in the order in which they were set; None: there are none.

    clocks: the latest known of the boot in which the process ran

    Its count of lost events is that of the states that the process has dropped.
    """
    data = process.contents(STATE_FILE, 2 * STATES * STATE_BYTES)
    if not data or process.origin.context != ("vtid",):
        return None
    process.read_declarations()
    checker = Checker(process.origin)
    checker.learn(process.declarations)
    n_dropped, events = 0, []
    for value, fields in _newest(data):
        n_dropped = max(n_dropped, min(value.n_dropped, native_trace.LOST_MAX))
        time = min(process.origin.time_at(value.mono_ns, clocks), latest(process.origin, clocks))
        event = _EVENT.pack(_EXTENDED, value.id, time, value.tid) + fields
        if value.id != _EXTENDED and not checker.check(_packet(0, [(time, event)])).fault:
            events.append((time, event))
    events.sort(key=lambda event: event[0])
    return _packet(process.origin.pid, events, n_dropped) if events or n_dropped else None


def _newest(data: bytes) -> Iterator[tuple[_Value, bytes]]:
    """Yield the newer value of each pair of places, with its fields."""
    for at in range(0, len(data), 2 * STATE_BYTES):
        both = [one for place in (at, at + STATE_BYTES) if (one := _value(data[place : place + STATE_BYTES]))]
        if both:
            yield max(both, key=lambda one: one[0].sequence)


def _value(data: bytes) -> tuple[_Value, bytes] | None:
    """Return the value in a place, with its fields; None: there is none, or it is not complete."""
    if len(data) < _VALUE.size:
        return None
    value = _Value(*_VALUE.unpack_from(data))
    end = _VALUE.size + value.length
    if value.magic != STATE_MAGIC or end > len(data) or zlib.adler32(data[_SUMMED_AT:end]) != value.sum:
        return None
    return value, data[_VALUE.size : end]


def _packet(pid: int, events: list[tuple[int, bytes]], n_dropped: int = 0) -> Packet:
    body = b"".join(event for _, event in events)
    bits = 8 * (HEAD_BYTES + len(body))
    # Later than the last event: StreamFile takes 1 from the end of its last packet.
    begin, end = (events[0][0], events[-1][0] + 1) if events else (0, 0)
    return Packet(Head(MAGIC, 0, STATE_CPU, bits, n_dropped, 0, end, begin, bits, STATE_CPU, pid), [body])
