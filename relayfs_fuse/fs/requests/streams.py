"""Reading and writing relay files on behalf of read(2) and write(2): what their handles wait with.

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
from relayfs_fuse.fs.kinds.base import RECORD_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.handles import RelayHandle
    from relayfs_fuse.fs.requests.waiting import Waiting

Result = TypeVar("Result")

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

    async def read(self, handle: RelayHandle, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is next, or leave it to the tap to put it into the reply."""
        if request.from_page_cache:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with trio.CancelScope() as scope:
            self._sleeping[request.unique] = scope
            try:
                return await handle.take(self, offset, size, request)
            except OSError as error:
                handle.stored.note(error)
                raise
            finally:
                del self._sleeping[request.unique]
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    async def wait(self, stored: Stored[Any], patient: bool) -> bool:
        """Sleep until there may be data, though another reader may be faster; False: there will be none."""
        if stored.channel.stats.read != native.READ_WAIT or stored.buffer.state() & native.IS_CLOSED:
            return False
        if not patient:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        await self.waiting.sleep(stored)
        return True

    async def when_free(self, act: Callable[[], Result], patient: bool) -> Result:
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

    async def write(self, stored: Stored[Any], data: bytes, request: tap.Request) -> None:
        """Write one record."""
        if len(data) > RECORD_MAX:
            stored.buffer.refuse_too_large(len(data))
        deadline = trio.current_time() + WRITERS_S
        while True:
            try:
                stored.buffer.write(data)
                return
            except OSError as error:
                if error.errno == errno.ENOSPC and request.nonblocking:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
                stored.note(error)
                # Another program is in the middle of a write: it has the channel's lock.
                if error.errno != errno.EBUSY or trio.current_time() >= deadline:
                    raise
            await trio.sleep(BUSY_FIRST_S)
