"""Relay files that give whole records: those of rings, and of relay buffers with `times`.

Such a file is a stream, like a pipe. A read(2) returns as many whole records as fit. If the first record alone is
longer than the read(2), it returns a part of the record, and the next reads of the same descriptor return the rest, so
that a program which reads byte by byte loses nothing. If the file is closed in the middle of a record, the next reader
gets the whole record: it has left the buffer, but the server keeps it. A ring's record that is longer than the read(2)
is copied in parts, and other requests are answered in between; it is consumed when all of it was copied.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

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

# A record, framed.
Record: TypeAlias = "bytes | memoryview"
Memory = TypeVar("Memory", bound=native.ChannelMemory)


# How often to copy a long record that is overwritten meanwhile, each time another one.
_LONG_TRIES = 8


class StoredRecords(Stored[Memory]):
    """A buffer of a channel whose relay files give whole records.

    returned: records that were taken out of the buffer, and whose reader closed its file in the middle of them
    """

    readers: list[RecordHandle]
    has_exact_size = False

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory) -> None:
        super().__init__(channel, index, buffer)
        self.returned: deque[Record] = deque()

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

    def take(self, size: int) -> Record | None:
        """Consume and return whole records of at most `size` bytes together, or a record of `returned`, or b"".

        None: the next one is longer, see take_long().
        """
        if self.returned:
            return self.returned.popleft()
        try:
            return self._read(min(size, self.channel.stats.file_bytes), 0)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        return None

    async def take_long(self, streams: Streams, size: int, may_sleep: bool) -> Record | None:
        """Consume and return the next record, which is longer than `size`; None: it was overwritten, or there is none.

        The server keeps the rest of it for the next reads. The record's room in the buffer is free by then, so what the
        server keeps of one buffer is limited to the buffer's size.

        OSError: ENOBUFS if the server keeps too many parts of longer records.
        """
        if sum(map(len, self.returned)) + sum(reader.rest_bytes for reader in self.readers) >= self._room:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return await self._copy_long(streams, size, may_sleep)

    async def _copy_long(self, streams: Streams, size: int, may_sleep: bool) -> Record | None:
        return await streams.when_free(lambda: self._read_long(size), may_sleep)

    def _read_long(self, size: int) -> bytes:
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
        self._record: Record = b""
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
        while not (data := await self._take(streams, size, may_sleep)):
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

    async def _take(self, streams: Streams, size: int, may_sleep: bool) -> bytes:
        data = await streams.when_free(lambda: self._take_at_once(size), may_sleep)
        if data is not None:
            return data
        async with streams.long_records.of(id(self.stored)):
            for _ in range(_LONG_TRIES):
                # Another reader, or another read of this file, may have consumed the record.
                data = await streams.when_free(lambda: self._take_at_once(size), may_sleep)
                if data is not None:
                    return data
                record = await self.stored.take_long(streams, size, may_sleep)
                if record is not None:
                    return self._give(record, size)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _take_at_once(self, size: int) -> bytes | None:
        """Consume and return the next data; None: a record that is longer than `size` has to be copied first."""
        if self.is_inside:
            return self._give_part(size)
        record = self.stored.take(size)
        return None if record is None else self._give(record, size)

    def _give(self, record: Record, size: int) -> bytes:
        if len(record) > size:
            self._record, self._at = record, 0
            return self._give_part(size)
        self.given += len(record)
        return bytes(record)

    def _give_part(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        data = bytes(self._record[begin : self._at])
        self.given += len(data)
        if not self.is_inside:
            self._record = b""
        return data
