"""Waiting for buffers: sleeping read(2) requests, and poll(2).

A producer wakes sleepers only if the buffer was armed (native/src/base/arm.h), which a wake-up undoes. Buffers are
in groups of as many as one thread can sleep on. A task for each group arms them and sleeps in a worker thread, until
the wake-up word of one of its buffers or the group's own word changes:

    repeat:  arm each buffer that is not armed any more
             check it: if there is data, wake its sleeping readers; if its readiness has changed, notify poll(2)
             sleep
             look which buffers are to be checked: those that were woken, that somebody waits for anew, that are due

Since a buffer is armed before it is checked, no record is missed. A producer can be killed after it has written a
record and before it wakes anybody, so all buffers are checked every SAFETY_MS.

A buffer that wakes at each record is armed at most every REST_MS, and checked unarmed in between. A wake-up costs the
producer a system call, which must not happen for each of many records while a reader keeps up with them.

If a buffer is damaged, the requests that wait for it fail, and no others.

A program that may write to a buffer can change its wake-up word at any rate. So a buffer with spurious wake-ups
(without new records) rests: it is not checked for a while, which is doubled each time. A buffer whose check takes long
rests, too. All checks together take no more than a share of the server's time (turns.py).
"""

from __future__ import annotations

import errno
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE
from relayfs_fuse.fs.requests.turns import Share
from relayfs_fuse.fs.supervise import keep

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs.kinds.base import Stored

log = logging.getLogger(__name__)

# The longest time between two checks of a buffer.
SAFETY_MS = 1000
# The same while Stored.needs_polling() is true, because no wake-up will come for what readers wait for. In a ring that
# may be a reservation whose owner is dead.
RESERVED_MS = 50
# The shortest time between arming a buffer for the next record and arming it so again.
REST_MS = 1
# After more than SPURIOUS_MAX wake-ups in a row without new records a buffer rests: at first for REST_MS, at most for
# REST_LAST_MS.
SPURIOUS_MAX = 8
REST_LAST_MS = 64
# If a check takes longer than QUICK_S, the buffer rests for REST_TIMES of that.
QUICK_S = 0.001
REST_TIMES = 10
# The largest share of the server's time that checks take, and for how long they may take all of it.
CHECKS_SHARE = 0.25
BURST_S = 0.05
# The processor time to send a job to another thread and to get its result, estimated.
SLEEP_COST_S = 0.0001

# The task's name in the log.
WAITING = "waiting for buffers"


def notify(handle: pyfuse3.PollHandle) -> None:
    """Have the kernel ask again what a polled descriptor is ready for."""
    try:
        handle.notify()
    except OSError as error:
        # The descriptor is being closed: the kernel has dropped the handle, and RELEASE will follow.
        log.debug("poll notification: %s", error)


@dataclass(eq=False, slots=True)
class _Poll:
    """A descriptor that a program polls.

    handle: notifies the kernel
    reported: the events that were reported to the kernel last
    progress: the number that Stored.readiness() returned at the last report. The kernel is notified again when it
        changes, because an edge-triggered epoll waits for new data even if the descriptor is readable already.
    by_mem: whether the descriptor is one of the memory file
    skips: whether discarded records of a ring are to be skipped for it; see Stored.skip_discarded()
    """

    handle: pyfuse3.PollHandle
    reported: int
    progress: int
    by_mem: bool = False
    skips: bool = False

    def announce(self, events: int, progress: int) -> None:
        """Notify the kernel of new events, or of more data."""
        if events & ~self.reported or (progress != self.progress and events & READABLE):
            self.reported = events
            self.progress = progress
            notify(self.handle)


class _Waiter:
    """The sleeping reads and the polled descriptors of one buffer.

    interval_ms: the buffer is checked again after so many milliseconds at the latest
    rests_until: the buffer is not checked before this time, by trio's clock
    sleepers: the events that sleeping reads wait for
    polls: by descriptor
    seq: the value of the wake-up word when the buffer was armed
    is_told: whether the buffer is to be checked, whatever its wake-up word says
    due_s: the buffer is checked again at this time at the latest, by trio's clock
    failure: the error for those who wait, once the buffer could not be checked
    """

    def __init__(self, stored: Stored[Any]) -> None:
        self.stored = stored
        self.interval_ms = SAFETY_MS
        self.rests_until = -math.inf
        self.sleepers: set[trio.Event] = set()
        self.polls: dict[int, _Poll] = {}
        self.seq = 0
        self.is_told = True
        self.due_s = 0.0
        self.failure: OSError | None = None
        self._armed = 0
        self._written = -1
        self._n_spurious = 0

    @property
    def wanted(self) -> bool:
        return bool(self.sleepers or self.polls)

    def is_due(self, now_s: float) -> bool:
        """Whether to check the buffer now: also if half of its interval has passed, so that many are due together."""
        try:
            is_woken = self.stored.buffer.wake_seq() != self.seq
        except OSError:
            return True  # check() tells those who wait
        return is_woken or self.is_told or now_s >= self.due_s - self.interval_ms / 2000

    def check(self) -> None:
        """Arm the buffer if necessary, check it, and wake or notify those who wait; on an error they all get it."""
        begun_s = time.thread_time()
        self.is_told = False
        try:
            is_woken = self.stored.buffer.wake_seq() != self.seq
            self._check()
            if is_woken:
                self._rest_if_spurious()
        except OSError as error:
            self.stored.note(error)
            self._fail(error)
        except Exception:
            log.exception("%s: waiting for %s failed", self.stored.channel.path, self.stored.path)
            self._fail(failure(errno.EIO))
        took_s = time.thread_time() - begun_s
        if took_s > QUICK_S:
            self._rest(REST_TIMES * took_s)
        now_s = trio.current_time()
        self.due_s = self.rests_until if self.rests_until > now_s else now_s + self.interval_ms / 1000

    def _rest_if_spurious(self) -> None:
        """Rest if no record was written between the last wake-ups, which then do not come from producers."""
        written = self.stored.n_written()
        self._n_spurious = self._n_spurious + 1 if written == self._written else 0
        self._written = written
        if self._n_spurious > SPURIOUS_MAX:
            self._rest(min(REST_MS << min(self._n_spurious - SPURIOUS_MAX - 1, 16), REST_LAST_MS) / 1000)

    def _rest(self, seconds: float) -> None:
        self.rests_until = max(self.rests_until, trio.current_time() + seconds)

    def _fail(self, error: OSError) -> None:
        # A copy, because the traceback of the error itself refers to frames that keep the buffer mapped.
        self.failure = OSError(error.errno, error.strerror)
        for event in self.sleepers:
            event.set()
        for poll in self.polls.values():
            poll.announce(GONE, poll.progress)
        self.polls.clear()

    def _check(self) -> None:
        """Arm the buffer if necessary; wake sleeping reads if there is data; notify poll(2) of changes."""
        buffer = self.stored.buffer
        for_records = self.sleepers or (self.polls and self.stored.wakes_for_records)
        bits = native.ARM_RECORD if for_records else 0
        bits |= native.ARM_SWITCH if self.polls else 0
        self.interval_ms = RESERVED_MS if self.stored.needs_polling() else SAFETY_MS
        if bits != self._armed or buffer.wake_seq() != self.seq:
            self._arm(bits)
        if self.sleepers and self.stored.may_have_data():
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
        """Arm the buffer; if it was armed for a record less than REST_MS ago, check it again after REST_MS instead."""
        buffer, now = self.stored.buffer, trio.current_time()
        if self.stored.rests_until is not None and bits & native.ARM_RECORD:
            if now < self.stored.rests_until:
                self.seq, self._armed = buffer.wake_seq(), 0
                self.interval_ms = REST_MS
                return
            self.stored.rests_until = now + REST_MS / 1000
        self.seq = buffer.arm(bits)
        self._armed = bits


class _Group:
    """Buffers that one thread waits for: at most native.WAIT_MAX, all of the same type.

    memory: the class of their memory
    waiters: by buffer
    stopped: run() is to return
    """

    def __init__(self, memory: type[native.ChannelMemory], limiter: trio.CapacityLimiter, share: Share) -> None:
        self.memory = memory
        self.waiters: dict[Stored[Any], _Waiter] = {}
        self.stopped = False
        self._limiter = limiter
        self._share = share
        self._word = native.WakeWord()
        self._told = trio.Event()

    def tell(self, *waiters: _Waiter) -> None:
        """Have run() check these buffers now."""
        for waiter in waiters:
            waiter.is_told = True
        self._told.set()
        self._word.change()

    async def run(self) -> None:
        """Arm, check and sleep until `stopped`; see the first comment of this file."""
        while not self.stopped:
            self._told = trio.Event()
            value = self._word.value
            waiters = await self._check()
            if not waiters:
                await self._told.wait()
                continue
            now = trio.current_time()
            awake = [waiter for waiter in waiters if waiter.rests_until <= now]
            pause_s = min(waiter.due_s for waiter in waiters) - now
            buffers: list[Any] = [waiter.stored.buffer for waiter in awake]
            seqs = [waiter.seq for waiter in awake]
            pause_ms = max(0, math.ceil(1000 * pause_s))
            for waiter in awake:
                waiter.stored.n_users += 1
            try:
                await trio.to_thread.run_sync(
                    self.memory.wait_any, buffers, seqs, self._word, value, pause_ms, limiter=self._limiter
                )
            finally:
                for waiter in awake:
                    waiter.stored.n_users -= 1

    async def _check(self) -> list[_Waiter]:
        """Check the buffers that are due and do not rest; return the waiters of all that somebody still waits for."""
        await self._share.ready()
        begun_s = time.thread_time()
        now_s = trio.current_time()
        awake = [waiter for waiter in self.waiters.values() if waiter.wanted and waiter.rests_until <= now_s]
        # Without membarrier(2) a sleep ends for no other reason than that all are to be checked: native/src/base/arm.h
        for waiter in [waiter for waiter in awake if waiter.is_due(now_s)] or awake:
            if waiter.wanted:
                waiter.check()
        self._share.spend(time.thread_time() - begun_s + SLEEP_COST_S)
        return self._remaining([waiter for waiter in self.waiters.values() if waiter.wanted])

    def _remaining(self, waiters: list[_Waiter]) -> list[_Waiter]:
        """Remove the waiters that failed from the group; return the others."""
        for waiter in waiters:
            if waiter.failure is not None:
                self.waiters.pop(waiter.stored, None)
        return [waiter for waiter in waiters if waiter.failure is None]


class Waiting:
    """All groups of buffers.

    runs: is set once run() has begun
    """

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._share = Share(CHECKS_SHARE, BURST_S)
        self._stopped = trio.Event()
        self.runs = trio.Event()

    async def run(self) -> None:
        """Run the tasks of all groups until stop()."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.runs.set()
            await self._stopped.wait()

    def stop(self) -> None:
        """Let run() return soon."""
        self._stopped.set()
        for group in self._groups:
            group.stopped = True
            group.tell()

    async def sleep(self, stored: Stored[Any]) -> None:
        """Return when there is data, when the buffer is closed, or spuriously; OSError: the buffer is damaged."""
        event = trio.Event()
        group, waiter = self._waiter(stored)
        waiter.sleepers.add(event)
        group.tell(waiter)
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
        """Return the events that hold now; GONE if the buffer is damaged.

        handle: notifies the kernel of later changes, until forget(); None: the program does not wait for any
        by_mem: whether the descriptor is one of the memory file
        skips: whether to skip discarded records; see Stored.skip_discarded()
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
            group.tell(waiter)
        return events

    def forget(self, stored: Stored[Any], descriptor: int) -> None:
        """Drop the handle that poll() kept, because the descriptor is closed."""
        for group in self._groups:
            waiter = group.waiters.get(stored)
            if waiter is not None:
                waiter.polls.pop(descriptor, None)
                self._tidy(group, waiter)

    def changed(self, stored: Stored[Any]) -> None:
        """Check a buffer again if somebody polls it to write, because data was consumed."""
        for group in self._groups:
            waiter = group.waiters.get(stored)
            if waiter is not None and any(not poll.reported & WRITABLE for poll in waiter.polls.values()):
                group.tell(waiter)

    def tell(self, stored: Stored[Any]) -> None:
        """Check a buffer again, because there may be something to read."""
        for group in self._groups:
            if stored in group.waiters:
                group.tell(group.waiters[stored])

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
        """Remove a waiter for which nobody waits any more."""
        if not waiter.wanted and group.waiters.get(waiter.stored) is waiter:
            del group.waiters[waiter.stored]

    def _start_group(self, memory: type[native.ChannelMemory]) -> _Group:
        group = _Group(memory, self._limiter, self._share)
        self._groups.append(group)
        self._limiter.total_tokens = len(self._groups)
        assert self._nursery is not None, "run() comes first"
        self._nursery.start_soon(keep, group.run, WAITING)
        return group
