"""Checking the packets of a process that the recorder's user does not trust.

A viewer fails on a whole recording if one event does not match its process's declarations. So each packet of such a
process is copied, because its memory may change at any moment, and the copy is checked event by event. The events
before the first wrong one are recorded; the others count as lost, and the whole packet is written to the directory
.damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native.events import field_form
from relayfs_fuse.native.packets import Copies, Layouts
from relayfs_fuse.reading.packet import HEAD_BYTES, Packet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.tracefiles.ctf import Declaration, Origin

# How many bytes of packets are read, and copied, at once, unless a single packet is longer.
BATCH_BYTES = 8 << 20
# All checkers share it, because only one thread of a program copies packets.
_copies = Copies()
# Bytes of the shortest header of an event, and of each number in the event's context, which follows the header.
_EVENT_HEAD_BYTES = 8
_CONTEXT_BYTES = 4


class Checked(NamedTuple):
    """Result of checking a packet.

    packet: its valid events
    n_events: the number of these
    most_lost: an upper limit of the number of events in the rest; 0: all are valid
    fault: what is wrong with the first event of the rest
    """

    packet: Packet
    n_events: int
    most_lost: int
    fault: str


class Checker:
    """Checks packets against a process's declarations."""

    def __init__(self, origin: Origin) -> None:
        context_bytes = _CONTEXT_BYTES * len(origin.context)
        self._layouts = Layouts(context_bytes)
        self._shortest = _EVENT_HEAD_BYTES + context_bytes

    def learn(self, declarations: Iterable[Declaration]) -> None:
        """Add declarations of new ids."""
        for declaration in declarations:
            self._layouts.add(declaration.id, [field_form(word).number for word in declaration.types])

    def check(self, packet: Packet) -> Checked:
        """Check a packet from copied()."""
        head, events = packet.head, packet.body[0] if packet.body else b""
        n_bytes, n_events, fault = self._layouts.check(events, head.timestamp_begin, head.timestamp_end)
        if not fault:
            return Checked(packet, n_events, 0, "")
        bits = 8 * (HEAD_BYTES + n_bytes)
        good = Packet(head._replace(packet_size=bits, content_size=bits), [memoryview(events)[:n_bytes]])
        return Checked(good, n_events, max(1, (len(events) - n_bytes) // self._shortest), fault)


def copied(packets: Sequence[Packet]) -> list[Packet]:
    """Return private copies of packets, valid until the next call."""
    bodies = _copies.take([packet.body for packet in packets])
    return [Packet(packet.head, [body] if body else []) for packet, body in zip(packets, bodies, strict=True)]
