"""Relay files that give whole records: those of rings, and of relay buffers with `times`.

Such a file is a stream, like a pipe. A read(2) returns as many whole records as fit. If the first record alone is
longer than the read(2), it returns a part of the record, and the next reads of the same descriptor return the rest, so
that a program which reads byte by byte loses nothing. If the file is closed in the middle of a record, the next reader
gets the whole record: it has left the buffer, but the server keeps it. A ring's record that is longer than the read(2)
is copied in parts, and other requests are answered in between; it is consumed when all of it was copied.

The first read(2) of an open file is answered by its handle, and from then on the usual ones by the tap (at_once.Lane):
those that begin with a record of the buffer, which fits.

What has left the buffer, and not reached a program, is in notes for the server after this one (fs/taking.py):

    RECORD    | length | at | next at | read(2) | returned | record    one of which a part was read
    RETURNED  | buffer | record                                        one that its reader has not read to the end
    AGAIN     | read(2) | returned | record                            one that was a RETURNED, for this read(2)

The next part of a RECORD begins at `at`, or at `next at` once that read(2) is answered.
"""

from __future__ import annotations

import errno
import struct
from abc import abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once, tap
from relayfs_fuse.fs.kinds.base import Stored
from relayfs_fuse.fs.kinds.handles import RelayHandle, read_may_sleep
from relayfs_fuse.fs.kinds.place import Place
from relayfs_fuse.fs.notes import AGAIN, RECORD, RETURNED
from relayfs_fuse.fs.taking import IN_AREA, IN_RECORD, Again

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.taking import Taking
    from relayfs_fuse.native.library import Fields

# A record, framed.
Record: TypeAlias = "bytes | memoryview"
Memory = TypeVar("Memory", bound=native.ChannelMemory)


# How often to copy a long record that is overwritten meanwhile, each time another one.
_LONG_TRIES = 8


_WORDS = 5
_LENGTH, _AT, _NEXT_AT, _UNIQUE, _RETURNED = range(_WORDS)
_WORD = struct.Struct("=Q")


class Returned(NamedTuple):
    """A record that was taken out of a buffer, and whose reader closed its file in the middle of it.

    number: of its note RETURNED
    """

    number: int
    record: Record


class Keeping:
    """The note RECORD of a handle, while a record is copied to it that is longer than a read(2).

    taking: where it is noted that the record is consumed
    """

    def __init__(self, taking: Taking, unique: int, handle: int) -> None:
        self._taking = taking
        self._unique = unique
        self._handle = handle
        self._words: memoryview | None = None

    def room(self, size: int) -> memoryview:
        """Return so many bytes, to which the record is copied; OSError: ENOMEM."""
        note = self._taking.notes.reserve(RECORD, self._handle, _WORDS * _WORD.size + size)
        self._words = note[: _WORDS * _WORD.size].cast("Q")
        return note[_WORDS * _WORD.size :]

    def consume(self, act: Callable[[], Record]) -> Record:
        """Have `act` consume the record, and return it."""
        self._taking.begin(self._unique, self._handle, IN_RECORD)
        record = act()
        assert self._words is not None, "room() comes first"
        self._words[_LENGTH] = len(record)
        return record


def returned_records(notes: Notes) -> dict[int, list[Returned]]:
    """Return the records of notes RETURNED, by the inode number of the buffer; those that a handle has are dropped."""
    found: dict[int, list[Returned]] = {}
    taken = {Again.unpack(note).returned for _, note in notes.all(AGAIN)}
    taken |= {_WORD.unpack_from(note, _RETURNED * _WORD.size)[0] for _, note in notes.all(RECORD)}
    for number, note in list(notes.all(RETURNED)):
        if number in taken:
            notes.drop(RETURNED, number)
        else:
            (inode,) = _WORD.unpack_from(note)
            found.setdefault(inode, []).append(Returned(number, note[_WORD.size :]))
    return found


class StoredRecords(Stored[Memory]):
    """A buffer of a channel whose relay files give whole records.

    returned: the oldest first
    """

    readers: list[RecordHandle]
    has_exact_size = False
    counts_holes = True

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory) -> None:
        super().__init__(channel, index, buffer)
        self.returned: deque[Returned] = deque()

    @abstractmethod
    def _read(self, size: int, most: int, into: memoryview) -> bytes:
        """Consume and return whole records of at most `size` bytes together, at most `most` (0: any number).

        into: where they are copied first

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
        return given + int(stats.unread_bytes) + self._returned_bytes

    def _shown_size(self, shown: native.Shown) -> int:
        return super()._shown_size(shown) + self._returned_bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether no record has left the buffer that a reader has not read to the end."""
        return not self.returned

    @property
    def _returned_bytes(self) -> int:
        return sum(len(one.record) for one in self.returned)

    def take(self, size: int, into: memoryview) -> Record | None:
        """Consume and return whole records of at most `size` bytes together; b"": there are none.

        None: the next one is longer, see take_long().
        """
        try:
            return self._read(min(size, self.most(into)), 0, into)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
        return None

    @property
    def ring_address(self) -> int:
        """The address of the struct relay_ring that has the records; 0: the relay buffer has them."""
        return 0

    def most(self, into: memoryview) -> int:
        """Return the most bytes that one read(2) gets, if they are copied there first."""
        return min(self.channel.stats.file_bytes, len(into))

    async def take_long(self, streams: Streams, size: int, may_sleep: bool, keeping: Keeping) -> Record | None:
        """Consume and return the next record, which is longer than `size`; None: it was overwritten, or there is none.

        The server keeps the rest of it for the next reads. The record's room in the buffer is free by then, so what the
        server keeps of one buffer is limited to the buffer's size.

        OSError: ENOBUFS if the server keeps too many parts of longer records.
        """
        if self._returned_bytes + sum(reader.rest_bytes for reader in self.readers) >= self._room:
            raise failure(errno.ENOBUFS)
        return await self._copy_long(streams, size, may_sleep, keeping)

    async def _copy_long(self, streams: Streams, size: int, may_sleep: bool, keeping: Keeping) -> Record | None:
        return await streams.when_free(lambda: self._read_long(size, keeping), may_sleep)

    def _read_long(self, size: int, keeping: Keeping) -> Record:
        while True:
            size *= 2
            into = keeping.room(size)
            try:
                return keeping.consume(partial(self._read, size, 1, into))
            except OSError as error:
                if error.errno != errno.EMSGSIZE or size > self.channel.stats.file_bytes:
                    raise

    def let_go(self, notes: Notes) -> None:
        """Drop `returned`, as Stored.let_go()."""
        if self.channel.removed and not self.readers:
            for one in self.returned:
                notes.drop(RETURNED, one.number)
            self.returned.clear()

    def may_have_data(self) -> bool:
        """Whether a sleeping reader should try again."""
        return bool(self.returned) or super().may_have_data()


class RecordHandle(RelayHandle):
    """An open relay file."""

    stored: StoredRecords[Any]
    is_stream = True

    def __init__(self, stored: StoredRecords[Any], opening: Opening) -> None:
        super().__init__(stored, opening)
        self.skips = self.reads
        self._place = Place(self.number, 0, 0)
        self._lane: at_once.Lane | None = None
        self._record: Record = b""
        self._at = 0
        self._words: memoryview | None = None  # of the note RECORD
        self._again: Again | None = None
        stored.readers.append(self)

    @property
    def given(self) -> int:
        """How many bytes its reads have returned."""
        return self._place.end

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on with a record of which a part was read, or that left the buffer."""
        self._place.restore(acts.notes)
        notes, taking = acts.notes, acts.streams.taking
        self._again = taking.left(self.number, self.stored)
        if self._again is not None:
            notes.put(AGAIN, self.number, self._again.pack())
        note = notes.view(RECORD, self.number)
        if note is None or notes.get(RETURNED, self.number) is not None:
            return
        words = note[: _WORDS * _WORD.size].cast("Q")
        length = words[_LENGTH] or taking.consumed(self.number, IN_RECORD, self.stored)
        if length:
            words[_LENGTH] = length
            self._record, self._words = note[_WORDS * _WORD.size :][:length], words
            self._at = words[_AT] if not words[_UNIQUE] or tap.awaits(words[_UNIQUE]) else words[_NEXT_AT]

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
        notes = streams.taking.notes
        self._place.note(notes)
        data = await self._next(streams, offset, size, request)
        self._set_lane(streams.taking)
        self._place.move(notes, request.number, self.given + len(data), 0)
        return data

    async def _next(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        again = self._again
        # Another read(2) of the same open file may be asked for first.
        if again is not None and again.unique == request.number:
            self._again = None
            return again.data
        may_sleep = read_may_sleep(offset, request)
        while not (data := await self._take(streams, size, may_sleep, request.number)):
            if not await streams.wait(self.stored, may_sleep):
                break
        streams.waiting.changed(self.stored)
        return data

    def _set_lane(self, taking: Taking) -> None:
        """Have the tap answer the next read, if that is to begin with a record of the buffer."""
        stored = self.stored
        if self.is_inside or stored.returned:
            self.stop_lane()
        elif self._lane is None:
            address = stored.buffer.address
            source = tap.Source(address, stored.inode, overwrite=False)
            self._lane = at_once.Lane(self.number, source, stored.most(taking.area), stored.is_told)
            words = self._place.note(taking.notes)
            self._lane.set_records(words, taking.words, taking.area, stored.ring_address)
        else:
            self._lane.go_on()

    def stop_lane(self) -> None:
        """Have the handle asked for the next read."""
        if self._lane is not None:
            self._lane.stop()

    async def close(self, acts: Acts) -> None:
        """Leave a record that was not read to its end to the next reader."""
        if self._lane is not None:
            self._lane.close()
        await super().close(acts)
        self.stored.readers.remove(self)
        if self.is_inside:
            for reader in self.stored.readers:
                reader.stop_lane()
            record = bytes(self._record)
            acts.notes.put(RETURNED, self.number, _WORD.pack(self.stored.inode) + record)
            self.stored.returned.append(Returned(self.number, record))
            self._record = b""
        self.stored.let_go(acts.notes)
        acts.streams.waiting.tell(self.stored)

    async def _take(self, streams: Streams, size: int, may_sleep: bool, unique: int) -> bytes:
        data = await streams.when_free(lambda: self._take_at_once(streams.taking, size, unique), may_sleep)
        if data is not None:
            return data
        keeping = Keeping(streams.taking, unique, self.number)
        async with streams.long_records.of(id(self.stored)):
            for _ in range(_LONG_TRIES):
                # Another reader, or another read of this file, may have consumed the record.
                data = await streams.when_free(lambda: self._take_at_once(streams.taking, size, unique), may_sleep)
                if data is not None:
                    return data
                record = await self.stored.take_long(streams, size, may_sleep, keeping)
                if record is not None:
                    return self._begin(streams.taking, record, size, unique)
        raise failure(errno.EBUSY)

    def _take_at_once(self, taking: Taking, size: int, unique: int) -> bytes | None:
        """Consume and return the next data; None: a record that is longer than `size` has to be copied first."""
        if self.is_inside:
            return self._give_part(size, unique)
        if self.stored.returned:
            return self._take_returned(taking, size, unique)
        taking.begin(unique, self.number, IN_AREA)
        record = self.stored.take(size, taking.area)
        return None if record is None else bytes(record)

    def _take_returned(self, taking: Taking, size: int, unique: int) -> bytes:
        """Return a record of StoredRecords.returned, or its first part."""
        number, record = self.stored.returned[0]
        if len(record) <= size:
            data = bytes(record)
            taking.notes.put(AGAIN, self.number, Again(unique, number, data).pack())
        else:
            room = Keeping(taking, unique, self.number).room(len(record))
            room[:] = record
            data = self._begin(taking, room, size, unique, number)
        self.stored.returned.popleft()
        taking.notes.drop(RETURNED, number)
        return data

    def _begin(self, taking: Taking, record: Record, size: int, unique: int, returned: int = 0) -> bytes:
        """Return the first part of a record, which is in the note RECORD."""
        note = taking.notes.view(RECORD, self.number)
        assert note is not None, "Keeping.room() comes first"
        self._record, self._at = record, 0
        self._words = note[: _WORDS * _WORD.size].cast("Q")
        self._words[_RETURNED] = returned
        self._words[_LENGTH] = len(record)
        return self._give_part(size, unique)

    def _give_part(self, size: int, unique: int) -> bytes:
        assert self._words is not None, "_begin() comes first"
        begin, self._at = self._at, self._at + size
        # In this order: whichever of them a server that is killed has stored, they say where the next part begins.
        self._words[_AT] = begin
        self._words[_UNIQUE] = unique
        self._words[_NEXT_AT] = self._at
        data = bytes(self._record[begin : self._at])
        if not self.is_inside:
            self._record = b""
        return data
