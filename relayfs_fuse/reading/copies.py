"""Copies of the packets that a process's buffers hold, which are not consumed: for snapshots, and after its death."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native.packets import copy_packets
from relayfs_fuse.reading.damage import DamagedError, errors_mean_damage
from relayfs_fuse.reading.heads import check_heads, latest
from relayfs_fuse.reading.packet import HEAD_BYTES, Packet, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native.packets import Consumer
    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.reading.process import Process
    from relayfs_fuse.tracefiles.ctf import Clocks


class Copy(NamedTuple):
    """A copy of a packet, valid until the next one.

    packet: its valid events
    whole: all of it, as the process has written it
    fault: what is wrong with the first event that is not valid; "": all are
    """

    packet: Packet
    whole: Packet
    fault: str


def copies(process: Process, cpu: int, consumer: Consumer, clocks: Callable[[], Clocks]) -> Iterator[Copy]:
    """Copy the finished packets of a buffer, the oldest first, and check them; DamagedError.

    Events that are not valid count as lost. Empty packets before the first events are left out.

    clocks: returns the latest that are known of the trace's boot
    """
    last: Head | None = None
    n_wrong = 0
    for packet, n_records in _packets(process, cpu, consumer):
        if last is None and packet.head.is_empty and not packet.head.events_discarded:
            continue  # a flush of an unused sub-buffer makes a packet without events
        packet.head = packet.head._replace(events_discarded=packet.head.events_discarded + n_wrong)
        check_heads(cpu, [packet], last, latest(process.origin, clocks()))
        good, n_lost, fault = _checked(process, packet, n_records)
        n_wrong += n_lost
        last = good.head
        yield Copy(good, packet, fault)


def _packets(process: Process, cpu: int, consumer: Consumer) -> Iterator[tuple[Packet, int]]:
    """Copy packets, with the number of events in each as the buffer says."""
    # As many as a buffer holds: a program that writes faster than they are copied would have them go on for ever.
    found = islice(copy_packets(consumer.buffer, process.subbuf_size), process.n_subbufs)
    while True:
        with errors_mean_damage(f"cpu{cpu}"):
            following = next(found, None)
        if following is None:
            return
        copy, n_records = following
        head = unpack(copy)
        if head is None or head.packet_bytes != len(copy):
            raise DamagedError(f"cpu{cpu}: there is no packet where one should be")
        yield Packet(head, [copy[HEAD_BYTES:]]), n_records


def _checked(process: Process, packet: Packet, n_records: int) -> tuple[Packet, int, str]:
    """Return the valid part of a packet, the number of events in the rest, and what is wrong with that."""
    if not process.checker:
        return packet, 0, ""
    with errors_mean_damage(".events"):
        process.read_declarations()
    good, n_events, most_lost, fault = process.checker.check(packet)
    if not most_lost:
        return packet, 0, ""
    n_lost = min(most_lost, max(1, n_records - n_events))
    good.head = good.head._replace(events_discarded=good.head.events_discarded + n_lost)
    return good, n_lost, fault
