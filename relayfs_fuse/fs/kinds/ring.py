"""Channels of record rings (type=ring): their Kind, their rings, and the open relay files.

A ring's relay file is a stream, like a pipe. A read(2) returns as many whole records as fit, each framed as the option
`framing` says. If the first record alone is longer than the read(2), it returns a part of the record, and the next
reads of the same descriptor return the rest, so that a program which reads byte by byte loses nothing. If the file is
closed in the middle of a record, the next reader gets the whole record: it has left the ring, but the server keeps it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.commands.control import format_size
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE, Kind, Plan, Stored
from relayfs_fuse.fs.kinds.handles import RelayHandle, read_may_sleep
from relayfs_fuse.native.ring import HEADER_BYTES, RingMemory, ring_create, ring_file_bytes
from relayfs_fuse.native.tables import RING_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.library import Fields

DEFAULT_RING_SIZE = RING_OPTIONS["size"].initial
# The smallest size to which the default is reduced if little memory is free.
LEAST_RING_SIZE = 64 << 10


class StoredRing(Stored[RingMemory]):
    """A ring of a channel.

    returned: framed records that were taken out of the ring, and whose reader closed its file in the middle of them
    """

    readers: list[RingHandle]
    written_field = "producer_position"

    def __init__(self, channel: StoredChannel, index: int, buffer: RingMemory) -> None:
        super().__init__(channel, index, buffer)
        self.returned: deque[bytes] = deque()

    def _size(self, stats: Fields, pid: int) -> int:
        """Return the bytes that the thread has read since it opened the file, plus those unread with their headers.

        That is at least what reads will return. It never shrinks while the file is open, as `tail -f` would take a
        smaller size for a truncated file.
        """
        given = max((reader.given for reader in self.readers if reader.pid == pid), default=0)
        return given + stats.unread_bytes + sum(map(len, self.returned))

    def take(self, size: int) -> bytes:
        """Consume and return whole framed records of at most `size` bytes together, or one longer record, or b"".

        OSError: ENOBUFS if the server keeps too many parts of longer records.
        """
        if self.returned:
            return self.returned.popleft()
        try:
            return self.buffer.read_framed(min(size, self.channel.stats.file_bytes))
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        return self._take_long(size)

    def _take_long(self, size: int) -> bytes:
        """Consume and return the next record, which is longer than `size`.

        The server keeps the rest of it for the next reads. The record's room in the ring is free by then, so what the
        server keeps of one ring is limited to the ring's size.
        """
        stats = self.channel.stats
        if sum(map(len, self.returned)) + sum(reader.rest_bytes for reader in self.readers) >= stats.ring_size:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        while True:
            size *= 2
            try:
                return self.buffer.read_framed(size, 1)
            except OSError as error:
                if error.errno != errno.EMSGSIZE or size > stats.file_bytes:
                    raise

    def may_have_data(self) -> bool:
        """Whether a sleeping reader should try again."""
        return bool(self.returned) or super().may_have_data()

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the wake-up counter, which grows when a record arrives in an empty ring."""
        state = self.buffer.state()
        progress = self.buffer.wake_seq()
        if state & native.IS_DAMAGED:
            self.note_state(state)
            return GONE, progress
        events = GONE if state & native.IS_CLOSED else 0
        news = native.HAS_DATA | (native.HAS_DISCARDED if by_mem else 0)
        if (state & news and not state & native.IS_HELD) or self.returned:
            events |= READABLE
        if self._has_room():
            events |= WRITABLE
        return events, progress

    def skip_discarded(self) -> bool:
        """Skip discarded records at the consumer's position, if no record follows them that could be read."""
        state = self.buffer.state()
        if not state & native.HAS_DISCARDED or state & (native.HAS_DATA | native.IS_DAMAGED):
            return False
        try:
            self.buffer.skip()
        except OSError as error:
            # Another consumer is at work, and skips them.
            if error.errno != errno.EBUSY:
                raise
        return True

    def needs_polling(self) -> bool:
        """Whether to look again soon; also if the ring holds only reservations that are not committed yet."""
        state = self.buffer.state()
        return bool(state & (native.LOOK_AGAIN | native.IS_HELD)) or (state == 0 and self.buffer.avail_data() > 0)

    def _has_room(self) -> bool:
        """Whether a short record can be written."""
        stats = self.channel.stats
        return stats.mode == native.MODE_OVERWRITE or self.buffer.avail_data() + 2 * HEADER_BYTES < stats.ring_size

    def open(self, opening: Opening) -> RingHandle:
        """Open the relay file."""
        return RingHandle(self, opening)

    def note(self, error: OSError) -> None:
        """Mark the channel as damaged if this error is EBADMSG, and let the ring refuse further records."""
        super().note(error)
        if error.errno == errno.EBADMSG:
            # Writes would succeed otherwise, although no consumer can get past the damage.
            self.buffer.refuse_all()


class RingHandle(RelayHandle):
    """An open relay file of a ring.

    given: how many bytes its reads have returned
    """

    stored: StoredRing
    is_stream = True

    def __init__(self, stored: StoredRing, opening: Opening) -> None:
        super().__init__(stored, opening)
        self.skips = self.reads
        self.given = 0
        self._record = b""
        self._at = 0
        stored.readers.append(self)

    @property
    def is_inside(self) -> bool:
        """Whether a part of a record was returned by the last read, and the next read returns more of it."""
        return self._at < len(self._record)

    @property
    def rest_bytes(self) -> int:
        """The length of that record, all of which is kept; 0: there is none."""
        return len(self._record)

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Return the next data, waiting for it if the read(2) may sleep; b"": end of file."""
        may_sleep = read_may_sleep(offset, request)
        while not (data := await streams.when_free(lambda: self._take(size), may_sleep)):
            if not await streams.wait(self.stored, may_sleep):
                break
        streams.waiting.changed(self.stored)
        return data

    async def close(self, acts: Acts) -> None:
        """Leave a record that was not read to its end to the next reader."""
        await super().close(acts)
        self.stored.readers.remove(self)
        if self.is_inside:
            self.stored.returned.append(self._record)
            self._record = b""
        acts.streams.waiting.tell(self.stored)

    def _take(self, size: int) -> bytes:
        data = self._take_part(size) if self.is_inside else self.stored.take(size)
        if len(data) > size:
            self._record, self._at = data, 0
            data = self._take_part(size)
        self.given += len(data)
        return data

    def _take_part(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        data = self._record[begin : self._at]
        if not self.is_inside:
            self._record = b""
        return data


def choose_ring_size(command: Command, n_rings: int, free_bytes: int) -> tuple[int, str | None]:
    """Choose the size of a channel's rings: the option size=, or a default reduced to a part of the free memory.

    n_rings: how many rings the channel will have
    free_bytes: how many bytes of the store are free

    Returns the size in bytes, and the text for error_log if the default was reduced.
    """
    if "size" in command.options:
        return command.options["size"], None
    size = DEFAULT_RING_SIZE
    while size > LEAST_RING_SIZE and ring_file_bytes(size) * n_rings > free_bytes // 16:
        size //= 2
    if size == DEFAULT_RING_SIZE:
        return size, None
    return (
        size,
        f"reduced to rings of {format_size(size)}, from {format_size(DEFAULT_RING_SIZE)}: a channel takes by default "
        f"at most a sixteenth of the {free_bytes} bytes that are free; size= chooses another size",
    )


def _plan(command: Command, n_rings: int, free_bytes: int) -> Plan:
    ring_size, notice = choose_ring_size(command, n_rings, free_bytes)
    what = f"{n_rings} rings of {ring_size} bytes, each of which ends in room for its wrapped records"
    return Plan({"ring_size": ring_size, "n_rings": n_rings}, what, ("size",), notice)


def _file_bytes(spec: Mapping[str, int]) -> int:
    return ring_file_bytes(spec["ring_size"]) * spec["n_rings"]


RING = Kind(
    name="ring",
    memory=RingMemory,
    stored=StoredRing,
    create=ring_create,
    file_bytes=_file_bytes,
    plan=_plan,
    acts={
        "enable": lambda ring, _: ring.stop(native.DISABLED, False),
        "disable": lambda ring, _: ring.stop(native.DISABLED, True),
    },
    refused={
        "flush": "a record can be read as soon as it is committed: there is nothing to flush",
        "reset": "a ring cannot be reset: remove it and create it anew, or read it empty",
        "resume": "only a relay channel can be suspended",
        "consumed": "programs that map a ring consume by storing its consumer position",
    },
    takes_log=False,
)
