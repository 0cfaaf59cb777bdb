"""Reading and writing relay files on behalf of read(2) and write(2).

A sleeping read(2) can be interrupted: the kernel sends FUSE_INTERRUPT with the request's number, the tap queues it, and
the handler that sleeps for this request is cancelled and answers EINTR. Data is taken only in the last step before a
reply, so what was interrupted has consumed nothing.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import trio

from relayfs_fuse import native
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.handles import MappableHandle

if TYPE_CHECKING:
    from relayfs_fuse.fs.handles import StreamHandle
    from relayfs_fuse.fs.waiting import Waiting

# The kernel cuts a write(2) into requests of at most 256 pages. A request that is not shorter than what the first 256
# pages of a longer write hold could be a piece of one, and a piece is not a record.
RECORD_MAX = (1 << 20) - 4096

# How soon to look again whether another reader is done with its piece, and how rarely at last.
BUSY_FIRST_S = 0.0005
BUSY_LAST_S = 0.02


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

    async def read(self, handle: StreamHandle, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is next, or leave it to the tap to put it into the reply."""
        if request.from_page_cache:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if isinstance(handle, MappableHandle):
            kept = handle.again(offset, size)
            if kept:
                return kept
        # A stream has no position: an offset means that this is the rest of a long read(2), part of which was served.
        rest = offset > 0 and not isinstance(handle, MappableHandle)
        with trio.CancelScope() as scope:
            self._sleeping[request.unique] = scope
            try:
                return await self._take(handle, offset, size, request, rest)
            finally:
                del self._sleeping[request.unique]
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    async def _take(self, handle: StreamHandle, offset: int, size: int, request: tap.Request, rest: bool) -> bytes:
        stored = handle.stored
        facts = stored.channel.facts
        pause = BUSY_FIRST_S
        while True:
            # In the loop: what there was may go to another reader before we run.
            try:
                got = tap.read(request.unique, stored.buffer.address, size, facts.mode != native.MODE_NO_OVERWRITE)
            except BlockingIOError:
                got = -1
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                got = -1
            if got > 0:
                self.waiting.changed(stored)
                return self._keep(handle, offset, got)
            if rest or (got == 0 and (facts.read != native.READ_WAIT or stored.buffer.state() & native.IS_CLOSED)):
                return b""
            if request.nonblocking:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if got == 0:
                await self.waiting.sleep(stored)
            else:
                await trio.sleep(pause)
                pause = min(pause * 2, BUSY_LAST_S)

    def _keep(self, handle: StreamHandle, offset: int, length: int) -> bytes:
        if isinstance(handle, MappableHandle):
            handle.keep(offset, tap.read_copy(length))
        return b""  # the tap replaces it

    def write(self, handle: StreamHandle, offset: int, data: bytes, request: tap.Request) -> None:
        """Write one record."""
        rest = offset > 0 and not isinstance(handle, MappableHandle) and not request.file_flags & os.O_APPEND
        if rest:
            # Of a record whose beginning was written or refused: that was counted.
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if len(data) > RECORD_MAX:
            handle.stored.buffer.refuse_too_large(len(data))
        try:
            handle.stored.buffer.write(data)
        except OSError as error:
            if error.errno == errno.ENOSPC and request.nonblocking:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
            raise
