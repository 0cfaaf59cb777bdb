"""Checking the packets of a process that the recorder's user does not trust.

A viewer gives up a whole recording for one event that is not as its process has declared it. So each packet of such a
process is copied, as its memory may change at any moment, and the copy checked event by event. What is good up to the
first wrong event is recorded; the events behind that count as lost, and the whole packet goes to a place of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native.events import FIELD_TYPES
from relayfs_fuse.native.packets import Copies, Layouts
from relayfs_fuse.record.packet import HEAD_BYTES, Packet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.tracefiles.ctf import Declaration, Origin

# Of a trace's packets, so many bytes are copied at once, unless a single one is longer.
COPY_BYTES = 8 << 20
# A recorder has one thread that copies.
_copies = Copies()
# The shortest head of an event; the pid, where several processes write.
_EVENT_HEAD_BYTES = 8
_PID_BYTES = 4


class Checked(NamedTuple):
    """What a check of a packet found.

    packet: its good part
    n_events: in that
    most_lost: so many events can have been in the rest; 0: all is good
    fault: what is wrong with the first of them
    """

    packet: Packet
    n_events: int
    most_lost: int
    fault: str


class Checker:
    """Know a process's declarations, and check packets by them."""

    def __init__(self, origin: Origin) -> None:
        self._layouts = Layouts(0 if origin.buffers == "perprocess" else _PID_BYTES)

    def learn(self, declarations: Iterable[Declaration]) -> None:
        """Add declarations, of ids that are new."""
        for declaration in declarations:
            self._layouts.add(declaration.id, [FIELD_TYPES.index(word) for word in declaration.types])

    def check(self, packet: Packet) -> Checked:
        """Check a packet that copied() has returned."""
        head, events = packet.head, packet.body[0] if packet.body else b""
        n_bytes, n_events, fault = self._layouts.check(events, head.timestamp_begin, head.timestamp_end)
        if not fault:
            return Checked(packet, n_events, 0, "")
        bits = 8 * (HEAD_BYTES + n_bytes)
        good = Packet(head._replace(packet_size=bits, content_size=bits), [memoryview(events)[:n_bytes]])
        return Checked(good, n_events, max(1, (len(events) - n_bytes) // _EVENT_HEAD_BYTES), fault)


def copied(packets: Sequence[Packet]) -> list[Packet]:
    """Return packets whose events nobody else can change, until the next call."""
    bodies = _copies.take([packet.body for packet in packets])
    return [Packet(packet.head, [body] if body else []) for packet, body in zip(packets, bodies, strict=True)]
