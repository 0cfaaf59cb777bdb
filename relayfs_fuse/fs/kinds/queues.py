"""The open relay files of relay buffers: queues of bytes, with offsets or without.

The first read(2) of an open file is answered by its handle, and from then on the usual ones by the tap: at_once.Lane.
"""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once, tap
from relayfs_fuse.fs.kinds.base import RECORD_MAX
from relayfs_fuse.fs.kinds.handles import RelayHandle, read_may_sleep
from relayfs_fuse.fs.kinds.numbered import Added, all_of
from relayfs_fuse.fs.kinds.place import Place

if TYPE_CHECKING:
    from relayfs_fuse.fs.kinds.relay import StoredBuffer
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.library import Fields

# How many of the bytes returned last a handle keeps, so that they can be read again. Of a read of LARGE_BYTES or more
# only the last KEPT_OF_LARGE bytes are kept, because copying all would slow down readers of much data.
KEPT_MAX = 1 << 20
LARGE_BYTES = 128 << 10
KEPT_OF_LARGE = 16 << 10
# Shells that read lines read at most so many bytes at a time.
LINE_BYTES = 4096


class BufferHandle(RelayHandle):
    """An open relay file.

    start: the stream position (passed_bytes) at open(2), where the file begins for this reader
    most: the most bytes of one answer
    """

    stored: StoredBuffer
    most = 1 << 32

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening)
        self.start = stats.passed_bytes
        self._lane: at_once.Lane | None = None

    def state(self) -> Any:
        """Return where the file begins."""
        return [self.start]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on from there."""
        (self.start,) = state

    def start_for_size(self, stats: Fields) -> int:
        """Return the stream position at which the file begins for st_size; 0 if the buffer was reset since."""
        return self.start if self.start <= stats.passed_bytes else 0

    async def close(self, acts: Acts) -> None:
        """Take the handle off the lists of its buffer."""
        if self._lane is not None:
            self._lane.close()
        await super().close(acts)
        self.stored.forget_mappable(self.number)
        if self.reads:
            self.stored.readers.remove(self)

    async def _take(self, streams: Streams, size: int, unique: int, may_sleep: bool) -> tuple[int, int]:
        """Have the tap put the next data into the reply; return the length, and the stream position after the data."""
        overwrite = self.stored.channel.stats.mode != native.MODE_NO_OVERWRITE
        source = tap.Source(self.stored.buffer.address, self.stored.inode, overwrite)
        got, behind = await streams.when_free(lambda: tap.read(unique, source, size), may_sleep)
        if got:
            streams.waiting.changed(self.stored)
            if self._lane is None:
                self._lane = at_once.Lane(self.number, source, self.most, self.stored.is_told)
                self._lane.stop()
        return got, behind


class StreamHandle(BufferHandle):
    """An open relay file without offsets, whose readers wait for data, as with a pipe."""

    is_stream = True

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Consume the next data, waiting for it if the read(2) may sleep; the tap puts it into the reply."""
        may_sleep = read_may_sleep(offset, request)
        while not (await self._take(streams, size, request.unique, may_sleep))[0]:
            if not await streams.wait(self.stored, may_sleep):
                return b""
        if self._lane is not None:
            self._lane.go_on()
        return b""  # the tap replaces it


class SeekableHandle(BufferHandle):
    """An open relay file with offsets: a queue in which a reader can seek.

                      end: the next unread byte
          0            v
          |.. consumed |.. peeked, unread .....|      the descriptor's offsets
            '-- kept --'

    A read at `end` consumes. A read at a higher offset returns data but leaves it unread, so that `tail` can find the
    end of the file, and `head -n -5` can return to the beginning. If the program then reads where its last such read
    ended, or closes the file, all data before that is consumed. A read at a lower offset returns the kept copy, because
    shells read a block and seek back to the end of the first line.

    place: `end`, and what is kept
    peeked: the offset after the last read beyond `end`, and the stream position there; None: there was none
    seen: the highest stream position of any read beyond `end`
    written: the offset after the last write(2), which has moved the descriptor there; None: there was a read since
    by_line: whether the next read of at most LINE_BYTES returns one line at most, as a terminal does
    """

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening, stats)
        self.place = Place(self.number, KEPT_MAX, stats.consumed_bytes)
        self.peeked: tuple[int, int] | None = None
        self.seen = 0
        self.written: int | None = None
        self.by_line = False
        self._consumed = stats.consumed_bytes  # at open(2)
        self._has_gone_back = False
        if stored.channel.stats.read == native.READ_WAIT:
            # A request of more than RECORD_MAX may be the first piece of a longer read(2). A short answer ends that
            # read(2); otherwise the next piece would be a request that sleeps.
            self.most = RECORD_MAX
        # Programs that open a relay file only for reading hardly ever map it.
        if opening.is_for_both:
            self.tell_maker(opening)

    def state(self) -> Any:
        """Return all positions but the place, of which there is a note."""
        positions = [self.start, self.peeked and [*self.peeked], self.seen, self.written, self._consumed]
        return [*positions, self.by_line, self._has_gone_back]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on from there; what can be mapped goes on being so."""
        self.start, peeked, self.seen, self.written, self._consumed, self.by_line, self._has_gone_back = state
        self.peeked = peeked and (peeked[0], peeked[1])
        self.place = Place(self.number, KEPT_MAX, self._consumed)
        self.place.restore(acts.notes)
        if self.stored.channel.stats.read == native.READ_WAIT:
            self.stored.mappable |= {self.number}

    # ---------------------------------------------------------------- offsets and kept data

    def start_for_size(self, stats: Fields) -> int:
        """Return the stream position at which the file begins for st_size; 0 if the buffer was reset since."""
        return 0 if self._was_reset(stats) else self.start

    def note_terminal(self) -> None:
        """Let the next short read return one line; see _line()."""
        self.by_line = True
        if self._lane is not None:
            self._lane.stop()

    def _was_reset(self, stats: Fields) -> bool:
        """Whether the buffer was reset since the last read: fewer bytes are consumed now than there were then."""
        return stats.consumed_bytes < self.place.consumed

    def _begin_anew(self, notes: Notes, unique: int, offset: int) -> None:
        """Start over after a reset: the next byte of the buffer is the one at `offset`, and nothing is kept."""
        self.start = self.seen = 0
        self.peeked = None
        self.place.move(notes, unique, offset, 0)
        self.place.clear(notes, unique)

    def _read_kept(self, offset: int, size: int) -> bytes:
        """Return kept data from an offset below `end`; OSError: ESPIPE if it is not kept any more."""
        back = self.place.end - offset
        if back > self.place.n_kept:
            raise failure(errno.ESPIPE)
        self._has_gone_back = True
        return self.place.part(back, size)

    def _keeps_of(self, length: int) -> int:
        """Return how many of the last `length` bytes to keep: all, unless the reader takes large blocks one by one.

        The first block is kept whole, and all blocks once the reader has gone back.
        """
        if length < LARGE_BYTES or self._has_gone_back or not self.place.n_kept:
            return length
        return KEPT_OF_LARGE

    def _skip(self, notes: Notes, unique: int, offset: int, kept: Added, consumed: int) -> None:
        """Note that all data before an offset is consumed.

        kept: the last bytes before the offset, or all since `end`
        consumed: as Place.consumed
        """
        if kept.length < offset - self.place.end:
            self.place.clear(notes, unique)
        self.place.keep(notes, unique, kept)
        self.place.move(notes, unique, offset, consumed)

    @property
    def kept_bytes(self) -> int:
        """The bytes of memory for what is kept to be read again."""
        return self.place.kept_bytes

    def drop_kept(self) -> None:
        """Free the kept data, after which a read below `end` fails."""
        self.place.drop()
        self._set_lane()

    def _set_lane(self) -> None:
        """Have the tap answer the reads that go on at `end`."""
        lane, place = self._lane, self.place
        if lane is None or place.words is None:
            return
        large = sys.maxsize if self._has_gone_back else LARGE_BYTES
        lane.set_place(place.words, place.kept, KEPT_MAX, large, KEPT_OF_LARGE)
        if self.written is None and not self.by_line:
            lane.go_on()

    # ---------------------------------------------------------------- requests

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Return the data at an offset; with read=wait, wait until there is some."""
        size = min(size, self.most)
        try:
            while True:
                data = await self._try(streams, offset, size, request)
                # While this task sleeps another thread may read, so _try() starts from the beginning.
                if data is not None or not await streams.wait(self.stored, not request.nonblocking):
                    return data or b""
        finally:
            self._set_lane()

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Write one record, and note the offset after it."""
        await super().write(acts, offset, data, request)
        self.written = offset + len(data)
        if self._lane is not None:
            self._lane.stop()

    async def close(self, acts: Acts) -> None:
        """Consume all data that was read without consuming it."""
        with self.stored.held():
            await super().close(acts)
            if self.seen and not self._was_reset(self.stored.stats()):
                await acts.streams.when_free(lambda: self.stored.buffer.consume_to(self.seen), True)
                acts.streams.waiting.changed(self.stored)

    async def _try(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes | None:
        """Return the data at an offset, or b"" if the tap has put it into the reply; None: there is none yet."""
        may_sleep, place = not request.nonblocking, self.place
        notes, number = streams.taking.notes, request.number
        if offset == self.written:
            # Only the last write(2) has moved the descriptor, so the read continues where the last read ended.
            if self.peeked:
                self.peeked = self.peeked[0] + offset - place.end, self.peeked[1]
            place.move(notes, number, offset, place.consumed)
        self.written = None
        if offset != place.end:
            stats = self.stored.stats()
            if self._was_reset(stats):
                self._begin_anew(notes, number, offset)
            elif offset < place.end:
                return self._read_kept(offset, size)
            elif self.peeked and offset == self.peeked[0]:
                await self._pass(streams, number, *self.peeked, may_sleep)
            else:
                return await self._peek_at(streams, offset, size, stats, may_sleep)
        if self.by_line and size <= LINE_BYTES:
            size = await self._line(streams, size, may_sleep)
        got, behind = await self._take(streams, size, request.unique, may_sleep) if size else (0, 0)
        if not got:
            return None
        kept = Added(self._keeps_of(got), tap.read_copy)
        if behind - got < place.consumed:
            self._begin_anew(notes, number, offset)
        self._skip(notes, number, offset + got, kept, behind)
        return b""  # the tap replaces it

    async def _peek_at(self, streams: Streams, offset: int, size: int, stats: Fields, may_sleep: bool) -> bytes | None:
        """Return data at an offset above `end` and leave it unread; None: the offset is where the next data will be."""
        ahead = offset - self.place.end
        data, behind = b"", stats.bytes
        readable = stats.unread_bytes - stats.unread_holes
        if ahead < readable:
            data, behind = await self._peek(streams, ahead, min(size, readable - ahead), may_sleep)
        if data or ahead == readable:
            self.peeked = offset + len(data), behind
            if data:
                self.seen = max(self.seen, behind)
        return None if ahead == readable else data

    async def _line(self, streams: Streams, size: int, may_sleep: bool) -> int:
        """Return the length of the next line, or `size` if that is less; 0: there is no data.

        bash's `read` calls isatty(3), then reads a block, and seeks back to the end of the first line. If it closes the
        file then, as in `read line <file`, the rest of the block would be consumed and lost.
        """
        data, _ = await self._peek(streams, 0, size, may_sleep)
        length = data.find(b"\n") + 1
        self.by_line = not length
        return length or (size if data else 0)

    async def _pass(self, streams: Streams, unique: int, offset: int, position: int, may_sleep: bool) -> None:
        """Consume the unread data before an offset, and keep the last of it.

        unique: the read(2)
        position: the stream position that the offset corresponds to
        """
        length = offset - self.place.end
        skip = max(0, length - KEPT_MAX)
        data, behind = await self._peek(streams, skip, length - skip, may_sleep)
        await streams.when_free(lambda: self.stored.buffer.consume_to(position), may_sleep)
        kept = all_of(data if behind == position else b"")
        self._skip(streams.taking.notes, unique, offset, kept, self.place.consumed)
        streams.waiting.changed(self.stored)

    async def _peek(self, streams: Streams, skip: int, size: int, may_sleep: bool) -> tuple[bytes, int]:
        """Return unread data and the stream position after it, as tap.peek() does."""
        address = self.stored.buffer.address
        return await streams.when_free(lambda: tap.peek(address, skip, size), may_sleep)
