"""Channels of relay buffers (type=relay): their Kind, their buffers, and the open relay files.

A relay file is a queue of bytes: read(2) consumes what it returns. It is opened as a stream without offsets, like a
pipe (StreamHandle), or as a file with offsets, which can be mapped (SeekableHandle). With `times` it gives whole
records without the heads that are before them in memory (records.py).
"""

from __future__ import annotations

import errno
import math
import time
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.commands.control import choose_geometry
from relayfs_fuse.fs.kinds.base import GONE, READABLE, RECORD_MAX, WRITABLE, Kind, Plan, Stored
from relayfs_fuse.fs.kinds.handles import RelayHandle, read_may_sleep
from relayfs_fuse.fs.kinds.kept import Kept
from relayfs_fuse.fs.kinds.records import RecordHandle, StoredRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.library import Fields

# How long the kernel may take to finish an open(2) after the server's answer.
SETTLE_S = 0.1
# How many of the bytes returned last a handle keeps, so that they can be read again. Of a read of LARGE_BYTES or more
# only the last KEPT_OF_LARGE bytes are kept, because copying all would slow down readers of much data.
KEPT_MAX = 1 << 20
LARGE_BYTES = 128 << 10
KEPT_OF_LARGE = 16 << 10
# Shells that read lines read at most so many bytes at a time.
LINE_BYTES = 4096


class StoredBuffer(Stored[native.Buffer]):
    """A relay buffer of a channel.

    mappable: with read=wait, the numbers of the open relay files that can be mapped
    last_stream: when a relay file was last opened as a stream, which cannot be mapped (time.monotonic())
    """

    readers: list[BufferHandle]
    written_field = "bytes"

    def __init__(self, channel: StoredChannel, index: int, buffer: native.Buffer) -> None:
        super().__init__(channel, index, buffer)
        self.mappable: set[int] = set()
        self.last_stream = self.rests_until = -math.inf
        self.wakes_for_records = channel.stats.delivery != native.DELIVERY_BULK

    def _size(self, stats: Fields, pid: int) -> int:
        """Return the bytes consumed since the relay file was opened, plus those unread."""
        readers = [reader for reader in self.readers if reader.pid == pid] or self.readers
        start = min((reader.start_for_size(stats) for reader in readers), default=stats.passed_bytes)
        return stats.passed_bytes + stats.unread_bytes - stats.unread_holes - start

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the bytes written or, with delivery=bulk, the sub-buffers finished."""
        state = self.buffer.state()
        stats = self.stats()
        bulk = stats.delivery == native.DELIVERY_BULK
        progress = stats.produced if bulk else stats.bytes
        events = 0
        if state & native.IS_DAMAGED:
            self.note_state(state)
            return GONE, progress
        if state & native.IS_CLOSED:
            # Nothing will finish the last sub-buffer, so what is in it can be read now.
            events |= GONE
            bulk = False
        # While another reader holds the lock, a read would wait.
        if state & (native.HAS_FINISHED if bulk else native.HAS_DATA) and not state & native.IS_HELD:
            events |= READABLE
        if _has_room(stats):
            events |= WRITABLE
        return events, progress

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Open as a stream if the channel has read=wait, unless a program may want to map the file.

        A program that maps the file opens it with O_RDWR or, if it only reads, with O_RDONLY | O_NONBLOCK. While a file
        that can be mapped is open, the kernel does not let others be opened as streams. It refuses even an open(2) that
        the server has answered as a stream, if the thread has not run since. So a file that can be mapped is opened at
        the earliest SETTLE_S after the last stream.
        """
        if self.channel.stats.read != native.READ_WAIT:
            return 0.0
        maps = opening.is_for_both or opening.never_sleeps or self.mappable
        if not (maps and backing()):
            self.last_stream = time.monotonic()
            opening.as_stream = True
            return 0.0
        self.mappable.add(opening.number)
        return self.last_stream + SETTLE_S - time.monotonic()

    def abandon(self, opening: Opening) -> None:
        """Undo prepare(), because the open has failed."""
        self.mappable.discard(opening.number)

    def open(self, opening: Opening) -> BufferHandle:
        """Open the relay file; OSError: EBADMSG."""
        handle = (StreamHandle if opening.as_stream else SeekableHandle)(self, opening, self.stats())
        if opening.reads:
            self.readers.append(handle)
        return handle

    def count_mapped(self, opened: bool) -> None:
        """Count an opened or closed file, and wake the channel's maker (native/src/channel/buf_mapped.c)."""
        self.buffer.count_mapped(self._first(), opened)

    def forget_mapped(self) -> None:
        """Set the count to 0."""
        self.buffer.forget_mapped(self._first())

    def _first(self) -> native.Buffer:
        """Return the buffer on which the channel's maker sleeps, the first; if the channel was removed, any will do."""
        buffers = self.channel.buffers
        first: native.Buffer = buffers[0].buffer if buffers else self.buffer
        return first


class StoredTimed(StoredRecords[native.Buffer], StoredBuffer):
    """A relay buffer of a channel with `times`."""

    readers: list[RecordHandle]  # type: ignore[assignment]

    def _read(self, size: int, most: int, into: memoryview) -> bytes:
        """Consume and return whole records, without their heads."""
        return self.buffer.read_records(size, most, into)

    @property
    def _room(self) -> int:
        """The bytes of all sub-buffers."""
        return int(self.channel.stats.subbuf_size * self.channel.stats.n_subbufs)

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), also of what is in `returned`, and the progress."""
        events, progress = super().readiness(by_mem)
        return events | (READABLE if self.returned else 0), progress

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Return 0: every relay file is a stream."""
        return 0.0

    def open(self, opening: Opening) -> RecordHandle:  # type: ignore[override]
        """Open the relay file."""
        return RecordHandle(self, opening)


def _stored(channel: StoredChannel, index: int, buffer: native.Buffer) -> StoredBuffer:
    return (StoredTimed if channel.stats.times else StoredBuffer)(channel, index, buffer)


def _has_room(stats: Fields) -> bool:
    """Whether a record written through the mount would probably be accepted."""
    if stats.suspended:
        return False
    if stats.mode == native.MODE_OVERWRITE:
        return True
    if stats.mode == native.MODE_NO_OVERWRITE:
        unread = stats.produced - stats.consumed
        return unread < stats.n_subbufs - (stats.offset >= stats.largest_offset)
    # In mode callback the program's subbuf_start() must allow each new sub-buffer, so only the current one can be
    # filled through the mount. Programs of <relayfs/classic.h>, whose channels have timestamps, are asked when needed.
    return bool(stats.timestamp) or 0 < stats.offset < stats.largest_offset


# ---------------------------------------------------------------- open relay files


class BufferHandle(RelayHandle):
    """An open relay file.

    start: the stream position (passed_bytes) at open(2), where the file begins for this reader
    """

    stored: StoredBuffer

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening)
        self.start = stats.passed_bytes

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
        await super().close(acts)
        self.stored.mappable.discard(self.number)
        if self.reads:
            self.stored.readers.remove(self)

    async def _take(self, streams: Streams, size: int, unique: int, may_sleep: bool) -> tuple[int, int]:
        """Have the tap put the next data into the reply; return the length, and the stream position after the data."""
        address, number = self.stored.buffer.address, self.stored.inode
        overwrite = self.stored.channel.stats.mode != native.MODE_NO_OVERWRITE
        got, behind = await streams.when_free(lambda: tap.read(unique, address, number, size, overwrite), may_sleep)
        if got:
            streams.waiting.changed(self.stored)
        return got, behind


class StreamHandle(BufferHandle):
    """An open relay file without offsets, whose readers wait for data, as with a pipe."""

    is_stream = True

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Consume the next data, waiting for it if the read(2) may sleep; the tap puts it into the reply."""
        may_sleep = read_may_sleep(offset, request)
        while not (await self._take(streams, size, request.unique, may_sleep))[0]:
            if not await streams.wait(self.stored, may_sleep):
                break
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

    end: the offset of the next byte to consume
    peeked: the offset after the last read beyond `end`, and the stream position there; None: there was none
    seen: the highest stream position of any read beyond `end`
    written: the offset after the last write(2), which has moved the descriptor there; None: there was a read since
    by_line: whether the next read of at most LINE_BYTES returns one line at most, as a terminal does
    """

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening, stats)
        self.end = 0
        self.peeked: tuple[int, int] | None = None
        self.seen = 0
        self.written: int | None = None
        self.by_line = False
        self._consumed = stats.consumed_bytes  # a stream position; all before it has been consumed
        self._kept = Kept(self.number, KEPT_MAX)
        self._has_gone_back = False
        # Programs that open a relay file only for reading hardly ever map it.
        if opening.is_for_both:
            self.tell_maker(opening)

    def state(self) -> Any:
        """Return all positions."""
        positions = [self.start, self.end, self.peeked and [*self.peeked], self.seen, self.written, self._consumed]
        return [*positions, len(self._kept), self.by_line, self._has_gone_back]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on from there; what can be mapped goes on being so."""
        self.start, self.end, peeked, self.seen, self.written, self._consumed, *rest = state
        self.peeked = peeked and (peeked[0], peeked[1])
        n_kept, self.by_line, self._has_gone_back = rest
        self._kept.restore(acts.notes, n_kept, self.end)
        if self.stored.channel.stats.read == native.READ_WAIT:
            self.stored.mappable.add(self.number)

    # ---------------------------------------------------------------- offsets and kept data

    def start_for_size(self, stats: Fields) -> int:
        """Return the stream position at which the file begins for st_size; 0 if the buffer was reset since."""
        return 0 if self._was_reset(stats) else self.start

    def note_terminal(self) -> None:
        """Let the next short read return one line; see _line()."""
        self.by_line = True

    def _was_reset(self, stats: Fields) -> bool:
        """Whether the buffer was reset since the last read: fewer bytes are consumed now than there were then."""
        return stats.consumed_bytes < self._consumed

    def _begin_anew(self, offset: int) -> None:
        """Start over after a reset: the next byte of the buffer is the one at `offset`, and nothing is kept."""
        self.start = self._consumed = self.seen = 0
        self.end, self.peeked = offset, None
        self._kept.clear()

    def _read_kept(self, offset: int, size: int) -> bytes:
        """Return kept data from an offset below `end`; OSError: ESPIPE if it is not kept any more."""
        back = self.end - offset
        if back > len(self._kept):
            raise failure(errno.ESPIPE)
        self._has_gone_back = True
        return self._kept.part(back, size)

    def _keeps_of(self, length: int) -> int:
        """Return how many of the last `length` bytes to keep: all, unless the reader takes large blocks one by one.

        The first block is kept whole, and all blocks once the reader has gone back.
        """
        if length < LARGE_BYTES or self._has_gone_back or not self._kept:
            return length
        return KEPT_OF_LARGE

    def _skip(self, notes: Notes, offset: int, kept: bytes) -> None:
        """Note that all data before an offset is consumed.

        kept: the last bytes before the offset, or all since `end`
        """
        if len(kept) < offset - self.end:
            self._kept.clear()
        self._kept.add(notes, kept, offset)
        self.end = offset

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that are kept to be read again."""
        return len(self._kept)

    def drop_kept(self) -> None:
        """Free the kept data, after which a read below `end` fails."""
        self._kept.clear()

    # ---------------------------------------------------------------- requests

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Return the data at an offset; with read=wait, wait until there is some."""
        if self.stored.channel.stats.read == native.READ_WAIT:
            # A request of more than RECORD_MAX may be the first piece of a longer read(2). A short answer ends that
            # read(2); otherwise the next piece would be a request that sleeps.
            size = min(size, RECORD_MAX)
        while True:
            data = await self._try(streams, offset, size, request)
            # While this task sleeps another thread may read, so _try() starts from the beginning.
            if data is not None or not await streams.wait(self.stored, not request.nonblocking):
                return data or b""

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Write one record, and note the offset after it."""
        await super().write(acts, offset, data, request)
        self.written = offset + len(data)

    async def close(self, acts: Acts) -> None:
        """Consume all data that was read without consuming it."""
        with self.stored.held():
            await super().close(acts)
            if self.seen and not self._was_reset(self.stored.stats()):
                await acts.streams.when_free(lambda: self.stored.buffer.consume_to(self.seen), True)
                acts.streams.waiting.changed(self.stored)

    async def _try(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes | None:
        """Return the data at an offset, or b"" if the tap has put it into the reply; None: there is none yet."""
        may_sleep = not request.nonblocking
        if offset == self.written:
            # Only the last write(2) has moved the descriptor, so the read continues where the last read ended.
            if self.peeked:
                self.peeked = self.peeked[0] + offset - self.end, self.peeked[1]
            self.end = offset
        self.written = None
        if offset != self.end:
            stats = self.stored.stats()
            if self._was_reset(stats):
                self._begin_anew(offset)
            elif offset < self.end:
                return self._read_kept(offset, size)
            elif self.peeked and offset == self.peeked[0]:
                await self._pass(streams, *self.peeked, may_sleep)
            else:
                return await self._peek_at(streams, offset, size, stats, may_sleep)
        if self.by_line and size <= LINE_BYTES:
            size = await self._line(streams, size, may_sleep)
        got, behind = await self._take(streams, size, request.unique, may_sleep) if size else (0, 0)
        if not got:
            return None
        kept = tap.read_copy(self._keeps_of(got))
        if behind - got < self._consumed:
            self._begin_anew(offset)
        self._skip(streams.taking.notes, offset + got, kept)
        self._consumed = behind
        return b""  # the tap replaces it

    async def _peek_at(self, streams: Streams, offset: int, size: int, stats: Fields, may_sleep: bool) -> bytes | None:
        """Return data at an offset above `end` and leave it unread; None: the offset is where the next data will be."""
        ahead = offset - self.end
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

    async def _pass(self, streams: Streams, offset: int, position: int, may_sleep: bool) -> None:
        """Consume the unread data before an offset, and keep the last of it.

        position: the stream position that the offset corresponds to
        """
        length = offset - self.end
        skip = max(0, length - KEPT_MAX)
        data, behind = await self._peek(streams, skip, length - skip, may_sleep)
        await streams.when_free(lambda: self.stored.buffer.consume_to(position), may_sleep)
        self._skip(streams.taking.notes, offset, data if behind == position else b"")
        streams.waiting.changed(self.stored)

    async def _peek(self, streams: Streams, skip: int, size: int, may_sleep: bool) -> tuple[bytes, int]:
        """Return unread data and the stream position after it, as tap.peek() does."""
        address = self.stored.buffer.address
        return await streams.when_free(lambda: tap.peek(address, skip, size), may_sleep)


# ---------------------------------------------------------------- the kind


def _plan(command: Command, n_buffers: int, free_bytes: int) -> Plan:
    subbuf_size, n_subbufs, notice = choose_geometry(command, n_buffers, free_bytes)
    fields = {"subbuf_size": subbuf_size, "n_subbufs": n_subbufs, "n_buffers": n_buffers}
    what = f"{n_buffers} buffers of {n_subbufs} sub-buffers of {subbuf_size} bytes"
    return Plan(fields, what, ("n_subbufs", "subbuf_size"), notice)


def _file_bytes(spec: Mapping[str, int]) -> int:
    return native.buf_file_bytes(spec["subbuf_size"], spec["n_subbufs"]) * spec["n_buffers"]


RELAY = Kind(
    name="relay",
    memory=native.Buffer,
    stored=_stored,
    create=native.store_create,
    file_bytes=_file_bytes,
    plan=_plan,
    acts={
        "flush": lambda buffer, _: buffer.flush(),
        "reset": lambda buffer, _: buffer.reset(),
        "resume": lambda buffer, _: buffer.resume(),
        "consumed": lambda buffer, command: buffer.subbufs_consumed(command.count),
        "enable": lambda buffer, _: buffer.stop(native.DISABLED, False),
        "disable": lambda buffer, _: buffer.stop(native.DISABLED, True),
    },
    refused={},
    takes_log=True,
)
