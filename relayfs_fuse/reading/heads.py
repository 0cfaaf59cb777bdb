"""Checks of the headers of packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.reading.damage import DamagedError
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from relayfs_fuse.reading.packet import Head, Packet
    from relayfs_fuse.tracefiles.ctf import Clocks, Origin

# How far a packet may begin before the end of the one before it, in ticks of either clock, and how far it may be ahead
# of the present: the clocks of CPUs differ, and threads take the time before they reserve.
_SKEW = 1_000_000_000
_AHEAD_NS = 10_000_000_000


def check_heads(cpu: int, packets: list[Packet], last: Head | None, latest: int) -> None:
    """Check headers; wrong ones of one process could make the whole trace unreadable. DamagedError: one is impossible.

    Times and counts that go back by a little, as between CPUs, are corrected in place.

    last: the header of the packet before
    latest: see latest()
    """
    for packet in packets:
        head = packet.head
        if last and head.timestamp_begin < last.timestamp_end <= head.timestamp_begin + _SKEW:
            head = head._replace(timestamp_begin=last.timestamp_end)
            head = head._replace(timestamp_end=max(head.timestamp_begin, head.timestamp_end))
        begin = last.timestamp_end if last else 0
        if not begin <= head.timestamp_begin <= head.timestamp_end <= latest:
            raise DamagedError(f"cpu{cpu}: packet {head.packet_seq_num} has an impossible time")
        if head.stream_instance_id != cpu:
            raise DamagedError(f"cpu{cpu}: packet {head.packet_seq_num} is of another CPU")
        if head.events_discarded > native_trace.LOST_MAX:
            raise DamagedError(f"cpu{cpu}: {head.events_discarded} events are said to be lost")
        if last and head.events_discarded < last.events_discarded:
            head = head._replace(events_discarded=last.events_discarded)
        packet.head = last = head


def latest(origin: Origin, clocks: Clocks) -> int:
    """Return a time that no packet can reach, by the process's clock.

    clocks: the clocks now; for a trace of another boot, the latest that are known
    """
    if origin.boot != native_trace.boot_id():
        return ctf.last_time(origin, clocks)
    return origin.ticks_at(clocks) + _AHEAD_NS * (16 if origin.is_measured else 1)
