"""Relay files that give whole records: those of rings, and of relay buffers with `times`.

Such a file is a stream, like a pipe. A read(2) returns as many whole records as fit. If the first record alone is
longer than the read(2), it returns a part of the record, and the next reads of the same descriptor return the rest, so
that a program which reads byte by byte loses nothing. If the file is closed in the middle of a record, the next reader
gets the whole record: it has left the buffer, but the server keeps it.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from relayfs_fuse import native
from relayfs_fuse.fs.kinds.base import Stored
from relayfs_fuse.fs.kinds.handles import RelayHandle, read_may_sleep

if TYPE_CHECKING:
    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.library import Fields

Memory = TypeVar("Memory", bound=native.ChannelMemory)


class StoredRecords(Stored[Memory]):
    """A buffer of a channel whose relay files give whole records.

    returned: records that were taken out of the buffer, and whose reader closed its file in the middle of them
    """

    readers: list[RecordHandle]
    has_exact_size = False

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory) -> None:
        super().__init__(channel, index, buffer)
        self.returned: deque[bytes] = deque()

    @abstractmethod
    def _read(self, size: int, most: int) -> bytes:
        """Consume and return whole records of at most `size` bytes together, at most `most` (0: any number).

        OSError: EMSGSIZE, the first one is longer
        """

    @property
    @abstractmethod
    def _room(self) -> int:
        """The bytes of records that the buffer can hold."""

    def _size(self, stats: Fields, pid: int) -> int:
        """Return the bytes that the thread has read since it opened the file, plus those unread with their headers.

        That is at least what reads will return. It never shrinks while the file is open, as `tail -f` would take a
        smaller size for a truncated file.
        """
        given = max((reader.given for reader in self.readers if reader.pid == pid), default=0)
        return given + int(stats.unread_bytes) + sum(map(len, self.returned))

    def take(self, size: int) -> bytes:
        """Consume and return whole records of at most `size` bytes together, or one longer record, or b"".

        OSError: ENOBUFS if the server keeps too many parts of longer records.
        """
        if self.returned:
            return self.returned.popleft()
        try:
            return self._read(min(size, self.channel.stats.file_bytes), 0)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        return self._take_long(size)

    def _take_long(self, size: int) -> bytes:
        """Consume and return the next record, which is longer than `size`.

        The server keeps the rest of it for the next reads. The record's room in the buffer is free by then, so what the
        server keeps of one buffer is limited to the buffer's size.
        """
        if sum(map(len, self.returned)) + sum(reader.rest_bytes for reader in self.readers) >= self._room:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        while True:
            size *= 2
            try:
                return self._read(size, 1)
            except OSError as error:
                if error.errno != errno.EMSGSIZE or size > self.channel.stats.file_bytes:
                    raise

    def may_have_data(self) -> bool:
        """Whether a sleeping reader should try again."""
        return bool(self.returned) or super().may_have_data()


class RecordHandle(RelayHandle):
    """An open relay file.

    given: how many bytes its reads have returned
    """

    stored: StoredRecords[Any]
    is_stream = True

    def __init__(self, stored: StoredRecords[Any], opening: Opening) -> None:
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
