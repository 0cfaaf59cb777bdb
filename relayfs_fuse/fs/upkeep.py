"""Background tasks of a mount.

They flush channels, set counters, survey the store, forget removed names, and unmap buffers.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import trio

from relayfs_fuse import native
from relayfs_fuse.fs.commands.jobs import for_each
from relayfs_fuse.fs.counters import MIRROR_S, STATISTICS_S
from relayfs_fuse.fs.kinds.mapped import REST_S, mapped
from relayfs_fuse.fs.requests.turns import Turns
from relayfs_fuse.fs.supervise import next_tick, tick
from relayfs_fuse.fs.traces.process import TraceChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.requests.announcements import Announcements
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.registry import Traces
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

# Other C libraries than GNU's have none.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

# The pause of forget_removed(), the number of removed names that it leaves to the kernel, and the number that it looks
# up at a time, while announcements wait.
FORGET_S = 1.0
FORGET_MIN = 32
FORGET_PIECE = 1000

# The threads that flush. A flush waits while a program has the buffer's lock; of each user one channel is flushed at a
# time.
FLUSHES_MAX = 64
# How long an open(2) waits for the flush before it.
OPEN_S = 1.0
# The pause between two surveys: at least SURVEY_S, and at least SURVEY_REST times the duration of the last survey.
SURVEY_S = 5.0
SURVEY_REST = 50
# The number of channels whose counters are set before requests are served again.
PIECE = 16
# After so many buffers were unmapped at a time, free memory is given back to the kernel.
MANY = 500
# If a function called through Throttled takes more CPU time than QUICK_S, it is not called for REST times as long.
QUICK_S = 0.01
REST = 10


async def forget_removed(tree: Tree, announcements: Announcements) -> None:
    """Look up removed names through the mount, so that the kernel forgets their nodes; runs until cancelled.

    Otherwise the kernel remembers a node until a program looks up its name or memory is short, and the tree has to keep
    the node until then. A few removed names are not looked up, because umount(8) fails with "target is busy" while the
    announcing thread has a directory of the mount open.
    """
    while True:
        await tick(FORGET_S)
        if tree.n_outdated < FORGET_MIN:
            continue
        for directory, outdated in tree.take_outdated().items():
            names = list(outdated)
            for start in range(0, len(names), FORGET_PIECE):
                piece = names[start : start + FORGET_PIECE]
                if not await announcements.look_up(directory, piece):
                    tree.note_outdated(directory, *piece)


async def unmap_unused() -> None:
    """Unmap the buffers that nobody uses any more; runs until cancelled."""
    while True:
        await tick(REST_S)
        if mapped.rest() >= MANY and _malloc_trim is not None:
            _malloc_trim(0)


class Flushing:
    """Flushes of the channels that have a flush_interval.

    tree: has the channels
    traces: has the buffers of traced processes, which are flushed while somebody reads them; None: no traces
    """

    def __init__(self, tree: Tree, traces: Traces | None) -> None:
        self._tree = tree
        self._traces = traces
        self._turns = Turns()
        self._limiter = trio.CapacityLimiter(FLUSHES_MAX)
        # The channels that have a flush_interval, by path.
        self._flushed: dict[str, StoredChannel] = {}
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        for path in tree.channels:
            self._note(path)
        tree.watchers.append(self._note)

    async def run(self) -> None:
        """Flush each channel at its interval, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                now = time.monotonic()
                channels = self._channels()
                self._due = {path: due for path, due in self._due.items() if due > now or path in self._busy} | {
                    channel.path: self._due.get(channel.path, now + _interval(channel)) for channel in channels
                }
                for channel in channels:
                    if self._is_due(channel, now):
                        self._due[channel.path] = now + _interval(channel)
                        self._busy.add(channel.path)
                        nursery.start_soon(self._flush, channel, channel.uid)
                pause_s = min((max(0.0, end - now) for end in self._due.values()), default=1.0)
                await (trio.sleep(pause_s) if pause_s < 1 else tick(1.0))

    def _note(self, path: str) -> None:
        """Note a channel that was added or removed."""
        channel = self._tree.channels.get(path)
        if channel is not None and channel.flush_interval_ms:
            self._flushed[path] = channel
        else:
            self._flushed.pop(path, None)

    def _channels(self) -> list[StoredChannel]:
        being_read = self._traces.being_read() if self._traces else ()
        return [*self._flushed.values(), *(channel for channel in being_read if channel.flush_interval_ms)]

    async def before_open(self, channel: StoredChannel) -> None:
        """Flush a traced process's buffers that a reader opens, if they are due; wait for that for at most OPEN_S."""
        now = time.monotonic()
        is_flushed = isinstance(channel, TraceChannel) and channel.flush_interval_ms and not channel.removed
        if is_flushed and self._is_due(channel, now):
            self._due[channel.path] = now + _interval(channel)
            self._busy.add(channel.path)
            with trio.move_on_after(OPEN_S):
                await self._flush(channel, channel.uid)

    def _is_due(self, channel: StoredChannel, now: float) -> bool:
        return channel.path not in self._busy and self._due.get(channel.path, now) <= now

    async def _flush(self, channel: StoredChannel, uid: int) -> None:
        act = _flush_idle if isinstance(channel, TraceChannel) else _flush_used
        try:
            async with self._turns.of(uid):
                flush = partial(for_each, channel.buffers, act)
                await trio.to_thread.run_sync(flush, limiter=self._limiter, abandon_on_cancel=True)
        except OSError as error:
            # The channel was removed meanwhile, or is damaged, which others report.
            log.debug("flush_interval of %s: %s", channel.path, error)
        except Exception:
            log.exception("flush_interval of %s failed", channel.path)
        finally:
            self._busy.discard(channel.path)


class Throttled:
    """A function that is not called again for a while after a call that took long.

    act: the function
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._not_before = 0.0

    def __call__(self) -> None:
        """Call the function, unless its last long call was less than REST times its duration ago."""
        if time.monotonic() < self._not_before:
            return
        before_s = time.thread_time()
        self._act()
        took_s = time.thread_time() - before_s
        if took_s > QUICK_S:
            self._not_before = time.monotonic() + REST * took_s


class Counting:
    """The task that copies the counters of other users, and sets those of the server and of channels.

    counters: the counters
    tree: has the channels
    damaged: is called once if the counters are found damaged
    """

    def __init__(self, counters: Counters, tree: Tree, damaged: Callable[[], None]) -> None:
        self._counters = counters
        self._tree = tree
        self._damaged = damaged
        for path in tree.channels:
            counters.note(path, is_there=True)
        tree.watchers.append(lambda path: counters.note(path, is_there=path in tree.channels))
        self._has_reported = False
        self._told = trio.Event()
        counters.told = self._tell

    async def run(self) -> None:
        """Run until cancelled."""
        due_s = 0.0
        while True:
            self._try(self._counters.mirror)
            if trio.current_time() >= due_s:
                due_s = next_tick(STATISTICS_S)
                await self._show()
                await self._repair()
            if self._counters.has_others:
                await trio.sleep(MIRROR_S)
            else:
                self._told = trio.Event()
                with trio.move_on_at(due_s):
                    await self._told.wait()

    def _tell(self) -> None:
        self._told.set()

    async def _repair(self) -> None:
        if self._counters.is_changing:
            try:
                await trio.to_thread.run_sync(self._counters.repair)
            except OSError as error:
                self._note(error)

    async def _show(self) -> None:
        showing = self._counters.showing(self._tree.channels)
        try:
            for n, _ in enumerate(showing):
                if n % PIECE == PIECE - 1:
                    await trio.lowlevel.checkpoint()
        except OSError as error:
            self._note(error)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno != errno.EBADMSG:
            log.info("counters: %s", error.strerror)
        elif not self._has_reported:
            self._has_reported = True
            self._damaged()


async def survey(store: Store) -> None:
    """Survey the store again and again until cancelled, because programs make and remove files without a command."""
    while True:
        started = time.monotonic()
        await trio.to_thread.run_sync(store.survey, abandon_on_cancel=True)
        await trio.sleep(max(SURVEY_S, SURVEY_REST * (time.monotonic() - started)))


def _interval(channel: StoredChannel) -> float:
    return channel.flush_interval_ms / 1000


def _flush_used(buffer: native.Buffer) -> None:
    stats = buffer.stats()
    if stats.offset > stats.reserved_at_start:
        buffer.flush()


def _flush_idle(buffer: native.Buffer) -> None:
    if buffer.stats().is_worth_a_flush:
        buffer.flush()
