"""Reading and polling the files `merged` (fs/merged.py).

The first read or poll of an open file starts a task, which has worker threads read the buffers ahead of the program, a
piece at a time, until READY_BYTES of items are ready.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, TypeVar

import trio

from relayfs_fuse.errors import RelayError, failure
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE, GONE, READABLE
from relayfs_fuse.fs.merged import ALL_USERS_READERS_MAX, READERS_MAX, USER_READERS_MAX
from relayfs_fuse.fs.requests.waiting import notify

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.merged import MergedHandle
    from relayfs_fuse.fs.notes import Notes


log = logging.getLogger(__name__)

Result = TypeVar("Result")

READY_BYTES = BLOCK_SIZE
# The first and the longest pause after a look at the buffers that has found nothing.
PAUSE_FIRST_S = 0.025
PAUSE_LAST_S = 0.1
# How many worker threads read buffers.
THREADS = 2


class _Feed:
    """The task of an open file.

    room: is set when the program has read items
    news: is set, and replaced by a new one, when items are ready, when has_caught_up changes, and when the task ends
    poll: notifies the kernel of new items; None: no program polls the file
    failure: the errno that has ended the task; 0: none
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.room = trio.Event()
        self.news = trio.Event()
        self.poll: pyfuse3.PollHandle | None = None
        self.failure = 0

    def tell(self) -> None:
        """Wake reads, and programs that poll the file."""
        self.news.set()
        self.news = trio.Event()
        if self.poll is not None:
            notify(self.poll)


class Merging:
    """The tasks of all open files that are read.

    notes: of the mount
    runs: is set once run() has begun
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._feeds: dict[MergedHandle, _Feed] = {}
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(THREADS)
        self._privileged = {0, os.geteuid()}
        self.runs = trio.Event()

    async def run(self) -> None:
        """Run the tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.runs.set()
            await trio.sleep_forever()

    async def read(self, handle: MergedHandle, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what MergedHandle.take() returns; wait for items until the file has caught up. b"": there are none.

        OSError: EAGAIN, if there are no items and the request may not sleep; ENFILE, too many files are being read;
        the errno that has ended the task.
        """
        feed = self._feed_of(handle)
        while (items := handle.take(offset, size, self._notes)) is None:
            if feed.failure:
                raise failure(feed.failure)
            if request.nonblocking:
                raise failure(errno.EAGAIN)
            if handle.has_caught_up:
                return b""
            await feed.news.wait()
        feed.room.set()
        return items

    def poll(self, handle: MergedHandle, poll: pyfuse3.PollHandle | None) -> int:
        """Return the events that hold now; `poll` notifies the kernel of later ones."""
        try:
            feed = self._feed_of(handle)
        except OSError:
            return GONE
        feed.poll = poll or feed.poll
        events = READABLE if handle.ready else 0
        return events | (GONE if feed.failure or handle.is_over else 0)

    def forget(self, handle: MergedHandle) -> None:
        """End the task of a file that is being closed."""
        feed = self._feeds.pop(handle, None)
        if feed is not None:
            feed.scope.cancel()

    def _feed_of(self, handle: MergedHandle) -> _Feed:
        feed = self._feeds.get(handle)
        if feed is None:
            if not self._has_room(handle.uid):
                raise failure(errno.ENFILE)
            assert self._nursery is not None, "run() comes first"
            feed = self._feeds[handle] = _Feed()
            self._nursery.start_soon(self._run, handle, feed)
        return feed

    def _has_room(self, uid: int) -> bool:
        """Return whether a user may read one more file; users who may not read traces keep nobody from these."""
        users = [handle.uid for handle in self._feeds if handle.uid not in self._privileged]
        if uid not in self._privileged and (
            len(users) >= ALL_USERS_READERS_MAX or users.count(uid) >= USER_READERS_MAX
        ):
            return False
        return len(self._feeds) < READERS_MAX

    async def _run(self, handle: MergedHandle, feed: _Feed) -> None:
        try:
            with feed.scope:
                while not await self._feed(handle, feed):
                    handle.go_behind()
        except OSError as error:
            feed.failure = error.errno or errno.EIO
        except RelayError:  # the trace or channel was removed
            feed.failure = errno.ESTALE
        except Exception:
            log.exception("merging failed")
            feed.failure = errno.EIO
        feed.tell()

    async def _feed(self, handle: MergedHandle, feed: _Feed) -> bool:
        """Give items to a handle until all is over; False: they are not those that it has got before."""
        events = await self._in_thread(handle.begin)
        try:
            pause_s = PAUSE_FIRST_S
            while not events.is_over:
                while len(handle.ready) >= READY_BYTES:  # each read takes a part of them
                    feed.room = trio.Event()
                    await feed.room.wait()
                has_caught_up = handle.has_caught_up
                items = await self._in_thread(events.step)
                if not handle.put(items, events):
                    return False
                if items or events.has_caught_up != has_caught_up:
                    feed.tell()
                    pause_s = PAUSE_FIRST_S
                else:
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_LAST_S)
            handle.is_over = True
        finally:
            with trio.CancelScope(shield=True):
                await self._in_thread(events.close)
        return True

    async def _in_thread(self, act: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(act, limiter=self._limiter)
