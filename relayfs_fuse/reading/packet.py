"""CTF packets: their headers, and how to find them in memory and in files. See struct relay_packet in trace_store.h."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC = 0xC1FC1FC1
_HEAD = struct.Struct("<IIQQQQQQQII")
HEAD_BYTES = _HEAD.size
# Offsets of fields in a header; record/stream.py writes them in a certain order.
PACKET_SIZE_AT, DISCARDED_AT, SEQUENCE_AT, CONTENT_SIZE_AT = 16, 24, 32, 56
# The head of an event: an id and the low bits of the time, or _EXTENDED, an id and the time (trace_store.h).
_SHORT_HEAD_BYTES, _EVENT_HEAD_BYTES = 8, 12
_SHORT_TIMES = 1 << 48
_EXTENDED = 65535


class Head(NamedTuple):
    """The header of a packet; sizes are in bits."""

    magic: int
    stream_id: int
    stream_instance_id: int
    packet_size: int
    events_discarded: int
    packet_seq_num: int
    timestamp_end: int
    timestamp_begin: int
    content_size: int
    cpu_id: int
    pid: int

    @classmethod
    def of(cls, data: Any) -> Head:
        """Unpack the bytes of a header, without checking them."""
        return cls(*_HEAD.unpack_from(data))

    @property
    def packet_bytes(self) -> int:
        """The packet's length, padding included."""
        return self.packet_size // 8

    @property
    def content_bytes(self) -> int:
        """The packet's length without padding."""
        return self.content_size // 8

    @property
    def is_empty(self) -> bool:
        """Whether the packet has no events."""
        return self.content_bytes == HEAD_BYTES

    def pack(self) -> bytes:
        """Return the header's bytes, as in memory and on disk."""
        return _HEAD.pack(*self)

    def empty(self, packet_bytes: int = HEAD_BYTES, **changes: int) -> Head:
        """Return this header for an empty packet."""
        return self._replace(packet_size=8 * packet_bytes, content_size=8 * HEAD_BYTES, **changes)

    def after(self, packet_bytes: int) -> Head:
        """Return the header of an empty packet that follows this one."""
        return self.empty(
            packet_bytes, packet_seq_num=self.packet_seq_num + 1, timestamp_begin=self.timestamp_end
        )  # fmt: skip

    def before(self) -> Head:
        """Return the header of an empty packet before this first one, because readers count losses between two packets.

        Its time is 1 less, because readers do not order packets of one time.
        """
        time = max(0, self.timestamp_begin - 1)
        return self.empty(timestamp_begin=time, timestamp_end=time, events_discarded=0)


def unpack(data: Any) -> Head | None:
    """Read a header; None: there is no valid one."""
    if len(data) < HEAD_BYTES:
        return None
    head = Head.of(data)
    good = head.magic == MAGIC and HEAD_BYTES <= head.content_bytes <= head.packet_bytes
    return head if good else None


@dataclass(slots=True)
class Packet:
    """A packet in memory.

    body: the bytes after the header, as pieces of the memory that the process wrote
    """

    head: Head
    body: list[Any]


def first_time(packet: Packet) -> int | None:
    """Return the time of the first event; None: there is none, or its head is not whole."""
    data = b"".join(bytes(piece[:_EVENT_HEAD_BYTES]) for piece in packet.body[:_EVENT_HEAD_BYTES])[:_EVENT_HEAD_BYTES]
    if len(data) < _SHORT_HEAD_BYTES:
        return None
    if int.from_bytes(data[:2], "little") == _EXTENDED:
        return int.from_bytes(data[4:], "little") if len(data) == _EVENT_HEAD_BYTES else None
    begin = packet.head.timestamp_begin
    # The first time from `begin` on that has these low bits.
    return begin + (int.from_bytes(data[2:8], "little") - begin) % _SHORT_TIMES


def split(pieces: Sequence[Any]) -> tuple[list[Packet], int, bool]:
    """Find packets in pieces of memory, in which each header is a piece of its own.

    Return the packets; the number of bytes before them, which are the rest of a packet that another reader has begun to
    read; and whether the last packet is complete: an incomplete one is left out. ValueError: the headers are wrong.
    """
    packets: list[Packet] = []
    skipped, at = 0, 0
    while at < len(pieces):
        head = unpack(pieces[at]) if len(pieces[at]) == HEAD_BYTES else None
        at += 1
        if head is None:
            if packets:
                raise ValueError("there is no packet where one should begin")
            skipped += len(pieces[at - 1])
            continue
        start, left = at, head.packet_bytes - HEAD_BYTES
        while left > 0 and at < len(pieces):
            left -= len(pieces[at])
            at += 1
        if left > 0:
            return packets, skipped, False
        if left < 0:
            raise ValueError("a packet is longer than it says")
        packets.append(Packet(head, list(pieces[start:at])))
    return packets, skipped, True


def walk(descriptor: int, end: int, at: int = 0) -> Iterator[tuple[int, Head]]:
    """Iterate over the packets of a file, with their offsets, from one at `at` to `end` or to the first invalid one."""
    while at < end:
        head = unpack(os.pread(descriptor, HEAD_BYTES, at))
        if head is None or at + head.packet_bytes > end:
            return
        yield at, head
        at += head.packet_bytes


def closed(descriptor: int, end: int, at: int = 0) -> Iterator[tuple[int, Head]]:
    """Iterate over those packets of a recorder's file that will never change: record/stream.py tells how it grows.

    These are the ones that another follows; and the last one, if it is only a header, at the end of a complete file.
    """
    previous: tuple[int, Head] | None = None
    for one in walk(descriptor, end, at):
        if previous:
            yield previous
        previous = one
    if previous and previous[1].packet_bytes == HEAD_BYTES and previous[0] + HEAD_BYTES == end:
        yield previous
