"""A stream file that grows, and is valid CTF at any time.

    |head|events...|head|events......|head|                                       |
     '---- packet --''--- packet ----''------- an empty packet, as far as EOF -----'

A file is made with room for many packets, sparse; the unused part is the padding of an empty packet. To append packets,
all of their bytes are written into that padding: the events of the first new packet, whose header will replace that of
the empty packet, the further packets, and behind them a new empty packet. Readers ignore padding. Then the empty
packet's header is overwritten by that of the first new packet in three steps, after each of which the file is valid and
holds a beginning of the trace:

    counts of lost events, times          still an empty packet
    content_size                          a packet that fills the file; the further packets are in its padding
    packet_size                           all of the packets

If the recorder is killed in between, reopen() continues with such a file. What has become a packet never changes:
`relayctl forward` sends the packets that another one follows to other machines. A complete file is truncated at the
empty packet: in place if no other process has it open, which a lease tells; otherwise as a copy that replaces the file,
because a reader at that place would miss the packet, or get SIGBUS if it maps the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from typing import TYPE_CHECKING

from relayfs_fuse.reading.packet import (
    CONTENT_SIZE_AT,
    DISCARDED_AT,
    HEAD_BYTES,
    PACKET_SIZE_AT,
    SEQUENCE_AT,
    Packet,
    first_time,
    walk,
)
from relayfs_fuse.record.full import TEMPORARY_ERRNOS
from relayfs_fuse.record.writing import most_bytes, padded, write_all, write_packets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.reading.packet import Head

# Size of a file, unless a single packet needs more.
ROOM_BYTES = 256 << 20
# Stream files get 1/_SHARE of the limit of descriptors, but at least _LEAST and at most _MOST.
_SHARE, _LEAST, _MOST = 8, 4, 256


class OpenFiles:
    """Keep the most recently written stream files open, because there may be more files than descriptors."""

    def __init__(self) -> None:
        self._files: dict[StreamFile, int] = {}

    @staticmethod
    def limit() -> int:
        """Return how many files are kept open at most."""
        return max(_LEAST, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE))

    def get(self, file: StreamFile) -> int:
        """Return a file's descriptor for reading and writing, which is valid until the next call."""
        descriptor = self._files.pop(file, None)
        if descriptor is None:
            self._make_room()
            descriptor = self._open(file.name)
        self._files[file] = descriptor
        return descriptor

    def put(self, file: StreamFile, descriptor: int) -> None:
        """Add a file that the caller has opened."""
        self._make_room()
        self._files[file] = descriptor

    def close(self, file: StreamFile) -> None:
        """Close a file, if it is open."""
        descriptor = self._files.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        while True:
            try:
                return os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._files:
                    raise
                self._close_oldest()

    def _make_room(self) -> None:
        while len(self._files) >= self.limit():
            self._close_oldest()

    def _close_oldest(self) -> None:
        self.close(next(iter(self._files)))


class StreamFile:
    """One stream's file, or one of several, while it grows.

    last: the header of its last packet
    is_hidden: nothing has been appended yet
    """

    def __init__(self, path: str, files: OpenFiles, room: int, tail: int, last: Head) -> None:
        self.path = path
        self.last = last
        self._files = files
        self._tail = tail
        self._room = room
        self.is_hidden = False

    @classmethod
    def create(cls, path: str, first: Packet, files: OpenFiles, *, goes_on: bool) -> StreamFile:
        """Make a file for this and later packets, which are not written yet; it appears with the first append().

        goes_on: it continues another file of the same stream
        """
        descriptor = os.open(_hidden(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        room = max(ROOM_BYTES, most_bytes(first.head) + 3 * HEAD_BYTES)
        beginning = [] if goes_on else [first.head.before().pack()]
        tail = HEAD_BYTES * len(beginning)
        start = first.head.empty(room - tail, timestamp_end=first.head.timestamp_begin)
        try:
            os.ftruncate(descriptor, room)
            write_all(descriptor, [*beginning, start.pack()], 0)
        except OSError:
            os.close(descriptor)
            os.unlink(_hidden(path))
            raise
        file = cls(path, files, room, tail, start)
        file.is_hidden = True
        files.put(file, descriptor)
        return file

    @classmethod
    def reopen(cls, path: str, files: OpenFiles) -> tuple[Head | None, StreamFile | None]:
        """Repair a file of an earlier recorder; return its last packet's header, and the file, if it can still grow."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            end = os.fstat(descriptor).st_size
            last, tail = _repair(descriptor, end)
        finally:
            os.close(descriptor)
        if last is None or tail == end:
            return last, None
        return last, cls(path, files, end, tail, last)

    @property
    def name(self) -> str:
        """The present name of the file."""
        return _hidden(self.path) if self.is_hidden else self.path

    @property
    def tail(self) -> int:
        """Where the next packet begins."""
        return self._tail

    @property
    def _descriptor(self) -> int:
        return self._files.get(self)

    def fitting(self, packets: Sequence[Packet]) -> list[Packet]:
        """Return those of the packets, from the first on, that fit into the file, with their padding there."""
        laid_out = padded(packets, self._tail)
        left = self._room - self._tail - HEAD_BYTES
        for n, packet in enumerate(laid_out):
            left -= packet.head.packet_bytes
            if left <= 0:
                return laid_out[:n]
        return laid_out

    def append(
        self,
        packets: Sequence[Packet],
        is_valid: Callable[[], bool],
        write: Callable[[int, Sequence[Packet], int], None] = write_packets,
    ) -> bool:
        """Append packets; False: is_valid() returned False after they were copied, so none was appended.

        write: how they are written: write_packets(), or a function that does the same

        OSError: nothing was appended
        """
        first, end = packets[0], self._tail + sum(packet.head.packet_bytes for packet in packets)
        descriptor = self._descriptor
        last = packets[-1].head
        write(descriptor, packets, self._tail)
        write_all(descriptor, [last.after(self._room - end).pack()], end)
        if not is_valid():
            return False
        self._publish(descriptor, first.head, end, last)
        return True

    def append_hole(self, head: Head) -> None:
        """Append an empty packet whose padding is a hole in the file."""
        end = self._tail + head.packet_bytes
        write_all(self._descriptor, [head.after(self._room - end).pack()], end)
        self._publish(self._descriptor, head, end, head)

    def end_with(self, discarded: int) -> None:
        """Set the count of lost events at the end of the file, if it is smaller: that of the empty packet."""
        if discarded > self.last.events_discarded:
            self.last = self.last._replace(events_discarded=discarded)
            _patch(self._descriptor, self._tail, self.last, DISCARDED_AT, SEQUENCE_AT)

    def _publish(self, descriptor: int, head: Head, end: int, last: Head) -> None:
        _patch(descriptor, self._tail, head, DISCARDED_AT, CONTENT_SIZE_AT)
        _patch(descriptor, self._tail, head, CONTENT_SIZE_AT, HEAD_BYTES)
        _patch(descriptor, self._tail, head, PACKET_SIZE_AT, DISCARDED_AT)
        self._tail, self.last = end, last
        if self.is_hidden:
            os.rename(_hidden(self.path), self.path)
            self.is_hidden = False

    def close(self, ending: Head | None = None) -> None:
        """Truncate the complete file after its last packet.

        ending: the header that ends the file then; None: its time is that of the last packet's end
        """
        if self.is_hidden:
            self.discard()
            return
        try:
            if self._is_exclusive():
                self._cut(self._descriptor, ending)
            else:
                self._replace(ending)
        except OSError as error:
            # The file stays valid, and sparse.
            if error.errno not in TEMPORARY_ERRNOS:
                raise
        finally:
            self._files.close(self)

    def discard(self) -> None:
        """Close the file as it is; if nothing has been appended, remove it."""
        self._files.close(self)
        if self.is_hidden:
            os.unlink(self.name)

    def _is_exclusive(self) -> bool:
        """Return whether no other process has the file open; one that opens it now waits until it is closed here."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            # EINVAL: this file system, as network file systems, has no leases.
            return error.errno == errno.EINVAL
        return True

    def _cut(self, descriptor: int, ending: Head | None) -> None:
        """Reduce the empty packet to its header, which readers that have seen it look for; truncate the file there."""
        end = self.last.timestamp_end
        ending = ending or self.last.empty(timestamp_begin=end, timestamp_end=end)
        write_all(descriptor, [ending.pack()], self._tail)
        os.ftruncate(descriptor, self._tail + HEAD_BYTES)

    def _replace(self, ending: Head | None) -> None:
        copy = os.open(_hidden(self.path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            at = 0
            while at < self._tail:
                at += os.sendfile(copy, self._descriptor, at, self._tail - at)
            self._cut(copy, ending)
            os.rename(_hidden(self.path), self.path)
        except OSError:
            os.unlink(_hidden(self.path))
            raise
        finally:
            os.close(copy)


def _repair(descriptor: int, end: int) -> tuple[Head | None, int]:
    """Complete an interrupted append; return the last packet's header, and the offset of the next packet.

    If the file cannot grow any more, the offset of the next packet is the end of the file.
    """
    last, tail, reached = None, end, 0
    for at, head in walk(descriptor, end):
        reached = at + head.packet_bytes
        reaches_end = at + head.packet_bytes == end
        if reaches_end and head.is_empty and head.packet_bytes > HEAD_BYTES:
            tail = at
            # end_with() counts here; the first step of an append also changes the times.
            if last and head.timestamp_end == last.timestamp_end:
                last = last._replace(events_discarded=head.events_discarded)
            break
        last = head
        if reaches_end and head.content_bytes < head.packet_bytes:
            # The recorder was killed before the last step, the store of packet_size.
            tail = at + head.content_bytes
            write_all(descriptor, [head.after(end - tail).pack()], tail)
            _patch(descriptor, at, head._replace(packet_size=head.content_size), PACKET_SIZE_AT, DISCARDED_AT)
    if (last is None or tail == end) and reached < end:
        # If the recorder was killed in _cut(), bytes that are no packet may follow.
        os.ftruncate(descriptor, reached)
    return last, tail


def beginning_after(last: Head, packet: Packet) -> Packet:
    """Return a packet with which a file continues another, whose last packet is `last`: it begins after that one's end.

    So it comes behind the empty packet that ends the other file, as readers do not order packets of one time. Only if
    it has an event of that very time, by a clock that is as coarse, it begins with it.
    """
    head, begin = packet.head, last.timestamp_end + 1
    first = first_time(packet)
    if head.timestamp_begin >= begin or (first is not None and first < begin):
        return packet
    return Packet(head._replace(timestamp_begin=begin, timestamp_end=max(begin, head.timestamp_end)), packet.body)


def without_lost(packets: list[Packet], before: int) -> list[Packet]:
    """Return packets without the count of events that were lost before."""
    if not before:
        return packets
    heads = [packet.head._replace(events_discarded=packet.head.events_discarded - before) for packet in packets]
    return [Packet(head, packet.body) for head, packet in zip(heads, packets, strict=True)]


def _hidden(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}")


def _patch(descriptor: int, at: int, head: Head, start: int, stop: int) -> None:
    write_all(descriptor, [head.pack()[start:stop]], at + start)
