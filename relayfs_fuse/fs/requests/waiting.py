"""Sleeping readers and poll(2).

Producers wake whoever armed a buffer (see native/src/base/arm.h). One task per group of buffers does the arming, and
sleeps, in a worker thread, until one of its buffers or the group's own word changes:

    loop:  arm each buffer whose arming was used up
           look: data for a sleeper?  wake it.  more to read, or another readiness?  notify poll(2)
           sleep

Arming comes before looking, so nothing falls between the two. A producer can be killed between writing a record and
waking: all is looked at again every second.

A buffer that wakes with each record is armed at most every REST_MS: its writer pays a system call for a wake-up, which
must not happen for each of many records while a reader keeps up with them. Meanwhile it is looked at unarmed.

A buffer that cannot be looked at, because somebody has damaged it, fails those who wait for it and nobody else.

Whoever may write a buffer can change the word that its wake-ups change, and as often as he likes. So a buffer whose
wake-ups bring nothing new rests between two looks, longer and longer, and so does one that takes long to look at; all
looks together take no more than a share of the server's time (turns.py).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Any

import trio

from relayfs_fuse import native
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE
from relayfs_fuse.fs.requests.turns import Share
from relayfs_fuse.fs.supervise import keep

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs.kinds.base import Stored

log = logging.getLogger(__name__)

SAFETY_MS = 1000
# The same where a look has not come to the next data yet, or another reader holds a lock; and while a reservation keeps
# readers of a ring waiting, whose owner may be dead.
RESERVED_MS = 50
# From one arming for the next record to the following one.
REST_MS = 1
# So many wake-ups in a row may bring nothing new. A buffer that wakes yet again rests: first REST_MS, at last so long.
VAIN_MAX = 8
REST_LAST_MS = 64
# A buffer that takes longer than this to look at rests so many times as long.
QUICK_S = 0.001
REST_TIMES = 10
# Of the server's time all looks together take at most so much; a flurry of them may take all of it for a moment.
LOOKS_SHARE = 0.25
FLURRY_S = 0.05
# What it costs beside the looks to sleep in another thread.
SLEEP_COST_S = 0.0001

# The task's name in the log.
WAITING = "waiting for buffers"


class _Poll:
    """A descriptor somebody polls: how to tell the kernel, and what it was told last.

    Telling once is not enough: an edge-triggered epoll waits for each new piece of data.

    by_mem: it is open on the memory file
    skips: a ring's discarded records are skipped for it, because its read(2) gives nothing of them
    """

    def __init__(
        self, handle: pyfuse3.PollHandle, reported: int, progress: int, by_mem: bool = False, skips: bool = False
    ) -> None:
        self.handle = handle
        self.reported = reported
        self.progress = progress
        self.by_mem = by_mem
        self.skips = skips

    def announce(self, events: int, progress: int) -> None:
        if events & ~self.reported or (progress != self.progress and events & READABLE):
            self.reported = events
            self.progress = progress
            try:
                self.handle.notify()
            except OSError as error:
                # The kernel forgets a descriptor that is being closed before we hear of it.
                log.debug("poll notification: %s", error)


class _Waiter:
    """Everybody who waits for one buffer.

    patience_ms: when to look again at the latest
    rests_until: when to look again at the earliest, by trio's clock
    failure: why nobody can wait for it any more
    """

    def __init__(self, stored: Stored[Any]) -> None:
        self.stored = stored
        self.patience_ms = SAFETY_MS
        self.rests_until = -math.inf
        self.sleepers: set[trio.Event] = set()
        self.polls: dict[int, _Poll] = {}
        self.seq = 0
        self.failure: OSError | None = None
        self._armed = 0
        self._moved = -1
        self._n_vain = 0

    @property
    def wanted(self) -> bool:
        return bool(self.sleepers or self.polls)

    def look(self) -> None:
        """Arm the buffer if that was used up, then tell whom it concerns what there is, or that it cannot be known."""
        begun_s = time.thread_time()
        try:
            is_woken = self.stored.buffer.wake_seq() != self.seq
            self._look()
            if is_woken:
                self._rest_if_in_vain()
        except OSError as error:
            self.stored.note(error)
            self._fail(error)
        except Exception:
            log.exception("%s: waiting for %s failed", self.stored.channel.path, self.stored.buffer.path)
            self._fail(OSError(errno.EIO, os.strerror(errno.EIO)))
        took_s = time.thread_time() - begun_s
        if took_s > QUICK_S:
            self._rest(REST_TIMES * took_s)

    def _rest_if_in_vain(self) -> None:
        """Rest if wake-ups have brought no data for a while: no writer has woken anybody, then."""
        moved = self.stored.n_moved()
        self._n_vain = self._n_vain + 1 if moved == self._moved else 0
        self._moved = moved
        if self._n_vain > VAIN_MAX:
            self._rest(min(REST_MS << min(self._n_vain - VAIN_MAX - 1, 16), REST_LAST_MS) / 1000)

    def _rest(self, seconds: float) -> None:
        self.rests_until = max(self.rests_until, trio.current_time() + seconds)

    def _fail(self, error: OSError) -> None:
        # A copy: the traceback of the error itself would keep the buffer mapped.
        self.failure = OSError(error.errno, error.strerror)
        for event in self.sleepers:
            event.set()
        for poll in self.polls.values():
            poll.announce(GONE, poll.progress)
        self.polls.clear()

    def _look(self) -> None:
        buffer = self.stored.buffer
        for_records = self.sleepers or (self.polls and self.stored.wakes_for_records)
        bits = native.ARM_RECORD if for_records else 0
        bits |= native.ARM_SWITCH if self.polls else 0
        self.patience_ms = RESERVED_MS if self.stored.is_held_up() else SAFETY_MS
        if bits != self._armed or buffer.wake_seq() != self.seq:
            self._arm(bits)
        if self.sleepers and self.stored.has_news():
            for event in self.sleepers:
                event.set()
        if any(poll.skips for poll in self.polls.values()):
            self.stored.skip_discarded()
        for by_mem in {poll.by_mem for poll in self.polls.values()}:
            events, progress = self.stored.readiness(by_mem)
            for poll in self.polls.values():
                if poll.by_mem == by_mem:
                    poll.announce(events, progress)

    def _arm(self, bits: int) -> None:
        """Arm the buffer; or not yet, if it was armed for a record just now."""
        buffer, now = self.stored.buffer, trio.current_time()
        if self.stored.rests_until is not None and bits & native.ARM_RECORD:
            if now < self.stored.rests_until:
                self.seq, self._armed = buffer.wake_seq(), 0
                self.patience_ms = REST_MS
                return
            self.stored.rests_until = now + REST_MS / 1000
        self.seq = buffer.arm(bits)
        self._armed = bits


class _Group:
    """As many buffers of one kind as one thread can sleep on.

    memory: the class of their memory
    """

    def __init__(self, memory: type[native.ChannelMemory], limiter: trio.CapacityLimiter, share: Share) -> None:
        self.memory = memory
        self.waiters: dict[Stored[Any], _Waiter] = {}
        self.stopped = False
        self._limiter = limiter
        self._share = share
        self._word = native.WakeWord()
        self._news = trio.Event()

    def tell(self) -> None:
        """Have the group look at its waiters again."""
        self._news.set()
        self._word.change()

    async def run(self) -> None:
        while not self.stopped:
            self._news = trio.Event()
            value = self._word.value
            waiters = await self._look()
            if not waiters:
                await self._news.wait()
                continue
            now = trio.current_time()
            awake = [waiter for waiter in waiters if waiter.rests_until <= now]
            pauses_ms = [waiter.patience_ms for waiter in awake]
            rests_s = [waiter.rests_until - now for waiter in waiters if waiter.rests_until > now]
            pauses_ms += [math.ceil(1000 * rest_s) for rest_s in rests_s]
            buffers: list[Any] = [waiter.stored.buffer for waiter in awake]
            seqs = [waiter.seq for waiter in awake]
            await trio.to_thread.run_sync(
                self.memory.wait_any, buffers, seqs, self._word, value, min(pauses_ms), limiter=self._limiter
            )

    async def _look(self) -> list[_Waiter]:
        """Look at all that do not rest, when there is time for it; return those that wait on."""
        await self._share.ready()
        begun_s = time.thread_time()
        for waiter in list(self.waiters.values()):
            if waiter.wanted and waiter.rests_until <= trio.current_time():
                waiter.look()
        self._share.spend(time.thread_time() - begun_s + SLEEP_COST_S)
        return self._remaining([waiter for waiter in self.waiters.values() if waiter.wanted])

    def _remaining(self, waiters: list[_Waiter]) -> list[_Waiter]:
        """Drop those that failed."""
        for waiter in waiters:
            if waiter.failure is not None:
                self.waiters.pop(waiter.stored, None)
        return [waiter for waiter in waiters if waiter.failure is None]


class Waiting:
    """Wake sleepers and notify pollers."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._share = Share(LOOKS_SHARE, FLURRY_S)
        self._stopped = trio.Event()

    async def run(self) -> None:
        """Serve until stop()."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._stopped.wait()

    def stop(self) -> None:
        """End run() soon."""
        self._stopped.set()
        for group in self._groups:
            group.stopped = True
            group.tell()

    async def sleep(self, stored: Stored[Any]) -> None:
        """Return when there is data, or the buffer is closed, or for no reason; OSError: it is damaged."""
        event = trio.Event()
        group, waiter = self._waiter(stored)
        waiter.sleepers.add(event)
        group.tell()
        try:
            await event.wait()
        finally:
            waiter.sleepers.discard(event)
            self._tidy(group, waiter)
        if waiter.failure is not None:
            raise OSError(waiter.failure.errno, waiter.failure.strerror)

    def poll(
        self,
        stored: Stored[Any],
        descriptor: int,
        handle: pyfuse3.PollHandle | None,
        by_mem: bool = False,
        skips: bool = False,
    ) -> int:
        """Return what holds now; keep the handle, if there is one, to tell of what comes.

        by_mem: it is a memory file's descriptor
        skips: it is one that reads a ring's relay file
        """
        try:
            if skips and stored.skip_discarded():
                self.changed(stored)
            events, progress = stored.readiness(by_mem)
        except OSError as error:
            stored.note(error)
            return GONE
        if handle is not None:
            group, waiter = self._waiter(stored)
            waiter.polls[descriptor] = _Poll(handle, events, progress, by_mem, skips)
            group.tell()
        return events

    def forget(self, stored: Stored[Any], descriptor: int) -> None:
        """Drop what poll() kept: the descriptor is closed."""
        for group in self._groups:
            waiter = group.waiters.get(stored)
            if waiter is not None:
                waiter.polls.pop(descriptor, None)
                self._tidy(group, waiter)

    def changed(self, stored: Stored[Any]) -> None:
        """Look again: data was consumed, so there may be room to write."""
        for group in self._groups:
            waiter = group.waiters.get(stored)
            if waiter is not None and any(not poll.reported & WRITABLE for poll in waiter.polls.values()):
                group.tell()

    def tell(self, stored: Stored[Any]) -> None:
        """Look again: there may be something to read."""
        for group in self._groups:
            if stored in group.waiters:
                group.tell()

    def _waiter(self, stored: Stored[Any]) -> tuple[_Group, _Waiter]:
        for group in self._groups:
            if stored in group.waiters:
                return group, group.waiters[stored]
        memory = type(stored.buffer)
        fitting = (g for g in self._groups if g.memory is memory and len(g.waiters) < native.WAIT_MAX)
        group = next(fitting, None) or self._start_group(memory)
        waiter = group.waiters[stored] = _Waiter(stored)
        return group, waiter

    def _tidy(self, group: _Group, waiter: _Waiter) -> None:
        if not waiter.wanted and group.waiters.get(waiter.stored) is waiter:
            del group.waiters[waiter.stored]

    def _start_group(self, memory: type[native.ChannelMemory]) -> _Group:
        group = _Group(memory, self._limiter, self._share)
        self._groups.append(group)
        self._limiter.total_tokens = len(self._groups)
        assert self._nursery is not None, "run() comes first"
        self._nursery.start_soon(keep, group.run, WAITING)
        return group
