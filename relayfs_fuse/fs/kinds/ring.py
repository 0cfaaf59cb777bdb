"""Rings of the store, and open relay files of them, apart from how the kernel asks for them.

A ring's relay file is a stream, as a pipe is: a read(2) gets as many whole records as fit, framed as the ring says.
Only of a record that alone is longer than that it gets a part, and the next reads of the same descriptor get the rest:
to copy byte by byte loses nothing. Who closes in the middle of a record has not read it. It was taken out of the ring,
but is kept for the next reader here, who gets all of it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.kinds.memory import Stored
from relayfs_fuse.native.ring import HEADER_BYTES, RingMemory, RingStats

if TYPE_CHECKING:
    from relayfs_fuse.fs.store import StoredChannel


class StoredRing(Stored[RingMemory]):
    """One ring of a channel.

    readers: descriptors that have its relay file open
    returned: records that somebody has read a part of
    """

    def __init__(self, channel: StoredChannel, index: int, buffer: RingMemory) -> None:
        super().__init__(channel, index, buffer, buffer.stats().producer_position)
        self.readers: list[RingHandle] = []
        self.returned: deque[bytes] = deque()

    def is_read_by(self, pid: int) -> bool:
        """Whether a thread has opened its relay file for reading."""
        return any(reader.pid == pid and reader.reads for reader in self.readers)

    def measure(self, pid: int) -> tuple[int, int]:
        """Return the relay file's size and time.

        The size is what a reader was given since its open, and what is unread, with its headers: no less than what
        reads will give. It never shrinks to a reader, so that `tail -f` reads on.

        pid: the thread that asks, for it may be a reader itself
        """
        stats = self.stats()
        given = max((reader.given for reader in self.readers if reader.pid == pid), default=0)
        unread = stats.unread_bytes + sum(map(len, self.returned))
        return given + unread, self._mtime(stats.producer_position)

    def stats(self) -> RingStats:
        """Read its counters; what is wrong with them is noted."""
        try:
            return self.buffer.stats()
        except OSError as error:
            self.note(error)
            raise

    def take(self, size: int) -> bytes:
        """Take whole records, framed, at most so many bytes; or one that is longer; or none."""
        if self.returned:
            return self.returned.popleft()
        try:
            return self.buffer.read_framed(min(size, self.channel.stats.file_bytes))
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        return self._take_long(size)

    def _take_long(self, size: int) -> bytes:
        """Take one record that is longer; no record fills its file.

        What is left of it is kept here, where it no longer takes room in the ring: only as much as the ring has.
        """
        stats = self.channel.stats
        assert isinstance(stats, RingStats)
        if sum(map(len, self.returned)) + sum(reader.kept_bytes for reader in self.readers) >= stats.ring_size:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        while True:
            size *= 2
            try:
                return self.buffer.read_framed(size, 1)
            except OSError as error:
                if error.errno != errno.EMSGSIZE or size > self.channel.stats.file_bytes:
                    raise

    def has_news(self) -> bool:
        """Whether somebody who sleeps should look again."""
        return bool(self.returned) or self.buffer.state() != 0

    def n_moved(self) -> int:
        """Count what its producers have moved: each honest wake-up tells of some."""
        return self.stats().producer_position

    def skip_discarded(self) -> bool:
        """Give producers the room of discarded records, for a reader that polls: read(2) gives nothing of them.

        Return whether there were any at the consumer's position.
        """
        state = self.buffer.state()
        if not state & native.HAS_DISCARDED or state & (native.HAS_DATA | native.IS_DAMAGED):
            return False
        try:
            self.buffer.skip()
        except OSError as error:
            # Who consumes at this moment skips them.
            if error.errno != errno.EBUSY:
                raise
        return True

    def is_held_up(self) -> bool:
        """Whether to look again soon: a reservation that is not ended, or another reader, keeps readers waiting."""
        state = self.buffer.state()
        return bool(state & (native.LOOK_AGAIN | native.IS_HELD)) or (state == 0 and self.buffer.avail_data() > 0)

    def has_room(self) -> bool:
        """Whether a record can be written, if it is short enough."""
        stats = self.channel.stats
        assert isinstance(stats, RingStats)
        return stats.mode == native.MODE_OVERWRITE or self.buffer.avail_data() + 2 * HEADER_BYTES < stats.ring_size


class RingHandle:
    """An open relay file of a ring.

    stored: the ring
    pid: the thread that opened it
    reads: whether it is open for reading
    given: how many bytes it has been given
    """

    def __init__(self, stored: StoredRing, pid: int, reads: bool) -> None:
        self.stored = stored
        self.pid = pid
        self.reads = reads
        self.given = 0
        self._record = b""
        self._at = 0
        stored.readers.append(self)

    @property
    def is_inside(self) -> bool:
        """Whether a part of a record was given, and the rest comes next."""
        return self._at < len(self._record)

    def take(self, size: int) -> bytes:
        """Take what is next."""
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

    @property
    def kept_bytes(self) -> int:
        """How much of the server's memory it takes."""
        return len(self._record)

    def close(self) -> None:
        """Give a record back that was not read to its end."""
        self.stored.readers.remove(self)
        if self.is_inside:
            self.stored.returned.append(self._record)
            self._record = b""
