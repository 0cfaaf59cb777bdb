"""Reading and writing relay files on behalf of read(2) and write(2).

A sleeping read(2) can be interrupted: the kernel sends FUSE_INTERRUPT with the request's number, the tap queues it, and
the handler that sleeps for this request is cancelled and answers EINTR. Data is taken only in the last step before a
reply, so what was interrupted has consumed nothing.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from relayfs_fuse import native
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.kinds.handles import KEPT_MAX, SeekableHandle
from relayfs_fuse.fs.kinds.ring import RingHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.handles import RelayHandle
    from relayfs_fuse.fs.kinds.relay import StoredBuffer
    from relayfs_fuse.fs.requests.waiting import Waiting
    from relayfs_fuse.native.library import Fields

Result = TypeVar("Result")

# The kernel cuts a write(2) into requests of at most 256 pages. A request that is not shorter than what the first 256
# pages of a longer write hold could be a piece of one, and a piece is not a record. A read(2) is cut in the same way.
RECORD_MAX = (1 << 20) - 4096

# Readers of lines ask for no more at a time.
LINE_BYTES = 4096

# How soon to look again whether another reader is done with its piece, and how rarely at last.
BUSY_FIRST_S = 0.0005
BUSY_LAST_S = 0.02
# How long to wait for it: EBUSY then. It may be stopped, or no reader at all, but a lock that somebody scribbled on.
BUSY_MAX_S = 10.0
# How long to wait for other writers, in scheme locking.
WRITERS_S = 1.0


class Streams:
    """Read and write relay files.

    waiting: wakes sleepers
    """

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self._sleeping: dict[int, trio.CancelScope] = {}

    async def serve_interrupts(self) -> None:
        """Cancel sleeping reads that the kernel wants ended."""
        while True:
            await trio.lowlevel.wait_readable(tap.interrupt_fd())
            while unique := tap.next_interrupt():
                scope = self._sleeping.get(unique)
                if scope is not None:
                    scope.cancel()

    async def read(self, handle: RelayHandle | RingHandle, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is next, or leave it to the tap to put it into the reply."""
        if request.from_page_cache:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with trio.CancelScope() as scope:
            self._sleeping[request.unique] = scope
            try:
                if isinstance(handle, SeekableHandle):
                    return await self._read_at(handle, offset, size, request)
                # A stream has no position: an offset means that this is the rest of a long read(2), part of which
                # was served, and which must not sleep.
                patient = offset == 0 and not request.nonblocking
                if isinstance(handle, RingHandle):
                    return await self._read_ring(handle, size, patient)
                while not (await self._take(handle.stored, size, request.unique, patient))[0]:
                    if not await self._wait(handle.stored, patient):
                        break
                return b""  # the tap replaces it
            except OSError as error:
                handle.stored.note(error)
                raise
            finally:
                del self._sleeping[request.unique]
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    async def _read_ring(self, handle: RingHandle, size: int, patient: bool) -> bytes:
        while not (data := await self._when_free(lambda: handle.take(size), patient)):
            if not await self._wait(handle.stored, patient):
                break
        self.waiting.changed(handle.stored)
        return data

    async def _read_at(self, handle: SeekableHandle, offset: int, size: int, request: tap.Request) -> bytes:
        if handle.stored.channel.stats.read == native.READ_WAIT:
            # Short of what could be a piece of a long read(2): the rest would be another request, and sleep.
            size = min(size, RECORD_MAX)
        while True:
            data = await self._try_at(handle, offset, size, request)
            # Another thread may read on meanwhile, so all is looked at anew.
            if data is not None or not await self._wait(handle.stored, not request.nonblocking):
                return data or b""

    async def _try_at(self, handle: SeekableHandle, offset: int, size: int, request: tap.Request) -> bytes | None:
        """Return what is at an offset; None: there is nothing yet."""
        patient = not request.nonblocking
        handle.follow_write(offset)
        if offset != handle.end:
            stats = handle.stored.stats()
            if handle.was_reset(stats):
                handle.begin_anew(offset)
            elif offset < handle.end:
                return handle.again(offset, size)
            elif handle.looked and offset == handle.looked[0]:
                await self._pass(handle, *handle.looked, patient)
            else:
                return await self._look(handle, offset, size, stats, patient)
        if handle.by_line and size <= LINE_BYTES:
            size = await self._line(handle, size, patient)
        got, behind = await self._take(handle.stored, size, request.unique, patient) if size else (0, 0)
        if not got:
            return None
        handle.give(offset, got, behind, tap.read_copy(handle.keeps_of(got)))
        return b""  # the tap replaces it

    async def _look(self, handle: SeekableHandle, offset: int, size: int, stats: Fields, patient: bool) -> bytes | None:
        """Return what is further on, and leave it unread; None: this is where the next data will be."""
        ahead = offset - handle.end
        data, behind = b"", stats.bytes
        readable = stats.unread_bytes - stats.unread_holes
        if ahead < readable:
            size = min(size, readable - ahead)
            data, behind = await self._when_free(lambda: tap.peek(handle.stored.buffer.address, ahead, size), patient)
        if data or ahead == readable:
            handle.look(offset, len(data), behind)
        return None if ahead == readable else data

    async def _line(self, handle: SeekableHandle, size: int, patient: bool) -> int:
        """Return how much of what is next ends a line, or else the size; 0: there is nothing.

        bash's `read` asks first whether it reads from a terminal, then takes a block of what can be sought, and goes
        back to the end of the line. If it closes then, as in `read line <file`, the rest of the block would be lost.
        """
        data, _ = await self._when_free(lambda: tap.peek(handle.stored.buffer.address, 0, size), patient)
        length = data.find(b"\n") + 1
        handle.by_line = not length
        return length or (size if data else 0)

    async def _pass(self, handle: SeekableHandle, offset: int, position: int, patient: bool) -> None:
        """Consume what is unread before an offset, which has this position in the stream; keep the last of it."""
        buffer, length = handle.stored.buffer, offset - handle.end
        skip = max(0, length - KEPT_MAX)
        data, behind = await self._when_free(lambda: tap.peek(buffer.address, skip, length - skip), patient)
        await self._when_free(lambda: buffer.consume_to(position), patient)
        handle.skip(offset, data if behind == position else b"")
        self.waiting.changed(handle.stored)

    async def close(self, handle: RelayHandle | RingHandle) -> None:
        """Let go of a descriptor: what it has looked at is read now."""
        if isinstance(handle, RingHandle):
            handle.close()
            self.waiting.tell(handle.stored)
            return
        if handle in handle.stored.readers:
            handle.stored.readers.remove(handle)
        if not isinstance(handle, SeekableHandle) or not handle.seen:
            return
        stats = handle.stored.stats()
        if not handle.was_reset(stats):
            await self._when_free(lambda: handle.stored.buffer.consume_to(handle.seen), True)
            self.waiting.changed(handle.stored)

    async def _take(self, stored: StoredBuffer, size: int, unique: int, patient: bool) -> tuple[int, int]:
        """Let the reply carry what is next; return how many bytes, and the stream position behind them."""
        overwrite = stored.channel.stats.mode != native.MODE_NO_OVERWRITE
        got, behind = await self._when_free(lambda: tap.read(unique, stored.buffer.address, size, overwrite), patient)
        if got:
            self.waiting.changed(stored)
        return got, behind

    async def _wait(self, stored: Stored[Any], patient: bool) -> bool:
        """Sleep until there may be data, though another reader may be faster; False: there will be none."""
        if stored.channel.stats.read != native.READ_WAIT or stored.buffer.state() & native.IS_CLOSED:
            return False
        if not patient:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        await self.waiting.sleep(stored)
        return True

    async def _when_free(self, act: Callable[[], Result], patient: bool) -> Result:
        """Do what takes the reader's lock; if patient, wait while another reader has it, but not for ever: EBUSY."""
        pause = BUSY_FIRST_S
        deadline = trio.current_time() + BUSY_MAX_S
        while True:
            try:
                return act()
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.EAGAIN) or trio.current_time() >= deadline:
                    raise
            if not patient:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            await trio.sleep(pause)
            pause = min(pause * 2, BUSY_LAST_S)

    async def write(self, handle: RelayHandle | RingHandle, data: bytes, request: tap.Request) -> None:
        """Write one record."""
        if len(data) > RECORD_MAX:
            handle.stored.buffer.refuse_too_large(len(data))
        deadline = trio.current_time() + WRITERS_S
        while True:
            try:
                return handle.stored.buffer.write(data)
            except OSError as error:
                if error.errno == errno.ENOSPC and request.nonblocking:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
                handle.stored.note(error)
                # Another program is in the middle of a write: it has the channel's lock.
                if error.errno != errno.EBUSY or trio.current_time() >= deadline:
                    raise
            await trio.sleep(BUSY_FIRST_S)
