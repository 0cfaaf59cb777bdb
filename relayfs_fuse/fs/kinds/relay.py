"""Relay buffers of the store, and open relay files of them, apart from how the kernel asks for them.

A relay file of relay buffers is a queue of bytes: reading consumes. It is opened as a stream, as a pipe is, or as a
file with offsets, that can be mapped.
"""

from __future__ import annotations

import errno
import math
import os
import time
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.commands.control import choose_geometry
from relayfs_fuse.fs.kinds.base import GONE, READABLE, RECORD_MAX, WRITABLE, Kind, Plan, Stored
from relayfs_fuse.fs.kinds.handles import RelayHandle, is_patient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.library import Fields

# How long the kernel may take to finish an open that was answered.
SETTLE_S = 0.1
# How much of what was given last can be given again. Of large blocks only the end: a copy takes time.
KEPT_MAX = 1 << 20
LARGE_BYTES = 128 << 10
KEPT_OF_LARGE = 16 << 10
# Readers of lines ask for no more at a time.
LINE_BYTES = 4096


class StoredBuffer(Stored[native.Buffer]):
    """One buffer of a channel.

    mappable: open relay files that can be mapped, by number; where readers wait for data
    last_stream: when one was opened that cannot
    """

    readers: list[BufferHandle]
    moved_field = "bytes"

    def __init__(self, channel: StoredChannel, index: int, buffer: native.Buffer) -> None:
        super().__init__(channel, index, buffer)
        self.mappable: set[int] = set()
        self.last_stream = self.rests_until = -math.inf
        self.wakes_for_records = channel.stats.delivery != native.DELIVERY_BULK

    def _size(self, stats: Fields, pid: int) -> int:
        """Count what its reader was given since the open, and what is unread."""
        readers = [reader for reader in self.readers if reader.pid == pid] or self.readers
        start = min((reader.start_for_size(stats) for reader in readers), default=stats.passed_bytes)
        return stats.passed_bytes + stats.unread_bytes - stats.unread_holes - start

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the bytes or sub-buffers written."""
        state = self.buffer.state()
        stats = self.stats()
        bulk = stats.delivery == native.DELIVERY_BULK
        progress = stats.produced if bulk else stats.bytes
        events = 0
        if state & native.IS_DAMAGED:
            self.note_state(state)
            return GONE, progress
        if state & native.IS_CLOSED:
            # What is left can be read on to the end, finished or not.
            events |= GONE
            bulk = False
        # While another reader holds the reader's lock, a read would wait.
        if state & (native.HAS_FINISHED if bulk else native.HAS_DATA) and not state & native.IS_HELD:
            events |= READABLE
        if _has_room(stats):
            events |= WRITABLE
        return events, progress

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Decide whether it is opened as a stream: where readers wait, unless somebody may map it.

        A stream cannot be mapped. Who opens to map, opens for both, or, as he never sleeps, with O_NONBLOCK. While such
        a file is open, the kernel refuses all others to be streams, also one that has been answered, but whose opener
        has not run since.
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
        """Undo prepare(), because the open fails."""
        self.mappable.discard(opening.number)

    def open(self, opening: Opening) -> BufferHandle:
        """Open its relay file."""
        handle = (StreamHandle if opening.as_stream else SeekableHandle)(self, opening, self.stats())
        if opening.reads:
            self.readers.append(handle)
        return handle

    def count_mapped(self, opened: bool) -> None:
        """Tell the channel's maker (native/src/channel/buf_mapped.c)."""
        self.buffer.count_mapped(self._first(), opened)

    def forget_mapped(self) -> None:
        """Take all open files for ended."""
        self.buffer.forget_mapped(self._first())

    def _first(self) -> native.Buffer:
        """Return the buffer whose maker sleeps on it; of a channel that was removed, nobody does."""
        buffers = self.channel.buffers
        first: native.Buffer = buffers[0].buffer if buffers else self.buffer
        return first


def _has_room(stats: Fields) -> bool:
    if stats.suspended:
        return False
    if stats.mode == native.MODE_OVERWRITE:
        return True
    if stats.mode == native.MODE_NO_OVERWRITE:
        unread = stats.produced - stats.consumed
        return unread < stats.n_subbufs - (stats.offset >= stats.largest_offset)
    # A program's callback lets sub-buffers begin; what is written through the mount fills those that have, or, where
    # the program is one of <relayfs/classic.h>, whose channels have timestamps, has it asked.
    return bool(stats.timestamp) or 0 < stats.offset < stats.largest_offset


# ---------------------------------------------------------------- open relay files


class BufferHandle(RelayHandle):
    """An open relay file.

    start: how many bytes had passed at the open: to whoever opened it, the file begins there
    """

    stored: StoredBuffer

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening)
        self.start = stats.passed_bytes

    def start_for_size(self, stats: Fields) -> int:
        """Tell where the file begins; a reset begins a new one."""
        return self.start if self.start <= stats.passed_bytes else 0

    async def close(self, acts: Acts) -> None:
        """Let go of it."""
        await super().close(acts)
        self.stored.mappable.discard(self.number)
        if self.reads:
            self.stored.readers.remove(self)

    async def _take(self, streams: Streams, size: int, unique: int, patient: bool) -> tuple[int, int]:
        """Let the reply carry what is next; return how many bytes, and the stream position behind them."""
        address, overwrite = self.stored.buffer.address, self.stored.channel.stats.mode != native.MODE_NO_OVERWRITE
        got, behind = await streams.when_free(lambda: tap.read(unique, address, size, overwrite), patient)
        if got:
            streams.waiting.changed(self.stored)
        return got, behind


class StreamHandle(BufferHandle):
    """One without a position: its readers wait for data, as with a pipe."""

    is_stream = True

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is next."""
        patient = is_patient(offset, request)
        while not (await self._take(streams, size, request.unique, patient))[0]:
            if not await streams.wait(self.stored, patient):
                break
        return b""  # the tap replaces it


class SeekableHandle(BufferHandle):
    """An open relay file that can be sought, though it is a stream.

                      end: the next unread byte
          0            v
          |... given ..|.... looked at ....|          the descriptor's offsets
            '-- kept --'

    Reading on from `end` consumes. A read further on looks at data that stays unread, so that `tail` finds the end of
    a file and `head -n -5` may return to its beginning; whoever then reads on where it has looked, or closes, has read
    all up to there. Programs that took more than they need and go back, as shells do, get what is kept again.

    end: offset of what is given next
    looked: offset up to which it has looked last, and the stream position there; None: never
    seen: stream position up to which it has looked at most
    written: offset to which a write has moved the descriptor; None: it was moved otherwise since
    by_line: the next short read gets a line at most, as from a terminal
    """

    def __init__(self, stored: StoredBuffer, opening: Opening, stats: Fields) -> None:
        super().__init__(stored, opening, stats)
        self.end = 0
        self.looked: tuple[int, int] | None = None
        self.seen = 0
        self.written: int | None = None
        self.by_line = False
        self._consumed = stats.consumed_bytes  # up to here in the stream, at least
        self._kept = bytearray()
        self._goes_back = False
        # Who opens a relay file only to read hardly ever maps it.
        if opening.is_for_both:
            self.tell_maker(opening)

    # ---------------------------------------------------------------- what it has given

    def start_for_size(self, stats: Fields) -> int:
        """Tell where the file begins."""
        return 0 if self._was_reset(stats) else self.start

    def note_terminal(self) -> None:
        """Give the next reader of lines a line."""
        self.by_line = True

    def _was_reset(self, stats: Fields) -> bool:
        """Tell whether the stream began anew: less of it is consumed than was when something was given here."""
        return stats.consumed_bytes < self._consumed

    def _begin_anew(self, offset: int) -> None:
        """Let what is next in a new stream be that at an offset; what was kept is of no use then."""
        self.start = self._consumed = self.seen = 0
        self.end, self.looked = offset, None
        self._kept.clear()

    def _again(self, offset: int, size: int) -> bytes:
        """Return what was given at this offset before."""
        back = self.end - offset
        if back > len(self._kept):
            # It was consumed, and is no longer kept.
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        self._goes_back = True
        first = len(self._kept) - back
        return bytes(self._kept[first : first + size])

    def _keeps_of(self, length: int) -> int:
        """Tell how many of the bytes that are given now are worth a copy.

        All, unless somebody reads large blocks one after the other, and has never gone back.
        """
        if length < LARGE_BYTES or self._goes_back or not self._kept:
            return length
        return KEPT_OF_LARGE

    def _skip(self, offset: int, kept: bytes) -> None:
        """Note that all is read up to an offset.

        kept: its last bytes, or all
        """
        if len(kept) < offset - self.end:
            self._kept.clear()
        self._kept += kept
        del self._kept[:-KEPT_MAX]
        self.end = offset

    @property
    def kept_bytes(self) -> int:
        """How much of the server's memory it takes."""
        return len(self._kept)

    def drop_kept(self) -> None:
        """Take none of it: what was given cannot be given again."""
        self._kept = bytearray()

    # ---------------------------------------------------------------- requests

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is at an offset."""
        if self.stored.channel.stats.read == native.READ_WAIT:
            # Short of what could be a piece of a long read(2): the rest would be another request, and sleep.
            size = min(size, RECORD_MAX)
        while True:
            data = await self._try(streams, offset, size, request)
            # Another thread may read on meanwhile, so all is looked at anew.
            if data is not None or not await streams.wait(self.stored, not request.nonblocking):
                return data or b""

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Write a record."""
        await super().write(acts, offset, data, request)
        self.written = offset + len(data)

    async def close(self, acts: Acts) -> None:
        """Let go of it: what it has looked at is read now."""
        await super().close(acts)
        if self.seen and not self._was_reset(self.stored.stats()):
            await acts.streams.when_free(lambda: self.stored.buffer.consume_to(self.seen), True)
            acts.streams.waiting.changed(self.stored)

    async def _try(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes | None:
        """Return what is at an offset; None: there is nothing yet."""
        patient = not request.nonblocking
        if offset == self.written:
            # A write has moved the descriptor there: reading goes on where it was.
            if self.looked:
                self.looked = self.looked[0] + offset - self.end, self.looked[1]
            self.end = offset
        self.written = None
        if offset != self.end:
            stats = self.stored.stats()
            if self._was_reset(stats):
                self._begin_anew(offset)
            elif offset < self.end:
                return self._again(offset, size)
            elif self.looked and offset == self.looked[0]:
                await self._pass(streams, *self.looked, patient)
            else:
                return await self._look(streams, offset, size, stats, patient)
        if self.by_line and size <= LINE_BYTES:
            size = await self._line(streams, size, patient)
        got, behind = await self._take(streams, size, request.unique, patient) if size else (0, 0)
        if not got:
            return None
        kept = tap.read_copy(self._keeps_of(got))
        if behind - got < self._consumed:
            self._begin_anew(offset)
        self._skip(offset + got, kept)
        self._consumed = behind
        return b""  # the tap replaces it

    async def _look(self, streams: Streams, offset: int, size: int, stats: Fields, patient: bool) -> bytes | None:
        """Return what is further on, and leave it unread; None: this is where the next data will be."""
        ahead = offset - self.end
        data, behind = b"", stats.bytes
        readable = stats.unread_bytes - stats.unread_holes
        if ahead < readable:
            data, behind = await self._peek(streams, ahead, min(size, readable - ahead), patient)
        if data or ahead == readable:
            self.looked = offset + len(data), behind
            if data:
                self.seen = max(self.seen, behind)
        return None if ahead == readable else data

    async def _line(self, streams: Streams, size: int, patient: bool) -> int:
        """Return how much of what is next ends a line, or else the size; 0: there is nothing.

        bash's `read` asks first whether it reads from a terminal, then takes a block of what can be sought, and goes
        back to the end of the line. If it closes then, as in `read line <file`, the rest of the block would be lost.
        """
        data, _ = await self._peek(streams, 0, size, patient)
        length = data.find(b"\n") + 1
        self.by_line = not length
        return length or (size if data else 0)

    async def _pass(self, streams: Streams, offset: int, position: int, patient: bool) -> None:
        """Consume what is unread before an offset, which has this position in the stream; keep the last of it."""
        length = offset - self.end
        skip = max(0, length - KEPT_MAX)
        data, behind = await self._peek(streams, skip, length - skip, patient)
        await streams.when_free(lambda: self.stored.buffer.consume_to(position), patient)
        self._skip(offset, data if behind == position else b"")
        streams.waiting.changed(self.stored)

    async def _peek(self, streams: Streams, skip: int, size: int, patient: bool) -> tuple[bytes, int]:
        address = self.stored.buffer.address
        return await streams.when_free(lambda: tap.peek(address, skip, size), patient)


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
    stored=StoredBuffer,
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
