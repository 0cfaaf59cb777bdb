"""Reading and writing relay files: waiting for data, for another reader's lock, and for the locks of writers.

A sleeping read(2) can be interrupted: the kernel sends FUSE_INTERRUPT with the number of the request, the tap queues
the number, and the task that sleeps for this request is cancelled and answers EINTR. Data is consumed only in the last
step before the reply, so an interrupted read(2) has consumed nothing.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.kinds.base import RECORD_MAX
from relayfs_fuse.fs.requests.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.requests.waiting import Waiting
    from relayfs_fuse.fs.taking import Taking

Result = TypeVar("Result")

# The first and the longest pause before trying again to take the reader's lock, which another reader holds.
BUSY_FIRST_S = 0.0005
BUSY_LAST_S = 0.02
# How long to try; then the read fails with EBUSY. The other reader may be stopped, or the lock word may be garbage.
BUSY_MAX_S = 10.0
# How long to wait for other writers in scheme locking.
WRITERS_S = 1.0


class Streams:
    """Reads and writes of relay files.

    waiting: tells when a buffer has data
    taking: what is noted before records are consumed or written
    peeks: lets one read of each open file peekN go on at a time, by the number of its handle
    long_records: lets one record of each buffer be copied in parts at a time, by the id() of its Stored
    """

    def __init__(self, waiting: Waiting, taking: Taking) -> None:
        self.waiting = waiting
        self.taking = taking
        self.peeks = Turns()
        self.long_records = Turns()
        self._sleeping: dict[int, trio.CancelScope] = {}

    async def serve_interrupts(self) -> None:
        """Cancel the reads that the kernel wants to be interrupted; runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(tap.interrupt_fd())
            while unique := tap.next_interrupt():
                scope = self._sleeping.get(unique)
                if scope is not None:
                    scope.cancel()

    async def interruptible(self, read: Callable[[], Awaitable[bytes]], request: tap.Request) -> bytes:
        """Return the data of a read; it is cancelled if the read(2) is interrupted.

        OSError: EINTR, the read(2) was interrupted; EINVAL, the kernel reads for its page cache, as mmap(2) does, whose
        data might never reach a program.
        """
        if request.from_page_cache:
            raise failure(errno.EINVAL)
        with trio.CancelScope() as scope:
            self._sleeping[request.unique] = scope
            try:
                return await read()
            finally:
                del self._sleeping[request.unique]
        raise failure(errno.EINTR)

    async def wait(self, stored: Stored[Any], may_sleep: bool) -> bool:
        """Sleep until there may be data, and return True; another reader may consume it first.

        False: there is nothing to wait for, as the channel has read=nowait or is closed. OSError: EAGAIN, if the
        request may not sleep; EBADMSG.
        """
        if stored.channel.stats.read != native.READ_WAIT or stored.buffer.state() & native.IS_CLOSED:
            return False
        if not may_sleep:
            raise failure(errno.EAGAIN)
        await self.waiting.sleep(stored)
        return True

    async def when_free(self, act: Callable[[], Result], may_sleep: bool) -> Result:
        """Call a function that takes the reader's lock, and again while that fails because another reader has the lock.

        OSError: EAGAIN, if the request may not sleep; EBUSY after BUSY_MAX_S seconds.
        """
        pause = BUSY_FIRST_S
        deadline = trio.current_time() + BUSY_MAX_S
        while True:
            try:
                return act()
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.EAGAIN) or trio.current_time() >= deadline:
                    raise
            if not may_sleep:
                raise failure(errno.EAGAIN)
            await trio.sleep(pause)
            pause = min(pause * 2, BUSY_LAST_S)

    @staticmethod
    async def let_others_run() -> None:
        """Let other requests be answered, and a read that was interrupted be cancelled."""
        await trio.lowlevel.checkpoint()

    async def write(self, stored: Stored[Any], data: bytes, request: tap.Request) -> None:
        """Write one record.

        OSError: EAGAIN instead of ENOSPC for O_NONBLOCK; EBUSY, another writer has the lock for more than WRITERS_S.
        """
        if self.taking.was_written(request.number, data):
            return
        if len(data) > RECORD_MAX:
            stored.buffer.refuse_too_large(len(data))
        deadline = trio.current_time() + WRITERS_S
        while True:
            self.taking.begin_write(request.number, stored)
            try:
                stored.buffer.write(data)
            except OSError as error:
                self.taking.end_write(is_written=False)
                if error.errno == errno.ENOSPC and request.nonblocking:
                    raise failure(errno.EAGAIN) from error
                stored.note(error)
                # EBUSY: another program has the buffer's lock, in scheme locking.
                if error.errno != errno.EBUSY or trio.current_time() >= deadline:
                    raise
            else:
                self.taking.end_write(is_written=True)
                return
            await trio.sleep(BUSY_FIRST_S)
