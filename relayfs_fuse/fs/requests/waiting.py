"""Waiting for buffers: sleeping read(2) requests, and poll(2).

A producer wakes sleepers only if the buffer was armed (native/src/base/arm.h), which a wake-up undoes. Buffers are
in groups of as many as one thread can sleep on. A task for each group arms them and sleeps in a worker thread, until
the wake-up word of one of its buffers or the group's own word changes:

    repeat:  arm each buffer that is not armed any more
             check it: if there is data, wake its sleeping readers; if its readiness has changed, notify poll(2)
             sleep; for the buffers that end it, notify poll(2) at once (native/fuse/polls.h)
             look which buffers are to be checked: those that were woken, that somebody waits for anew, that are due

Since a buffer is armed before it is checked, no record is missed. A producer can be killed after it has written a
record and before it wakes anybody. So every SAFETY_MS the library compares some words of each buffer with what they
were when it was checked, and those that differ are checked. That takes little also with many thousands of buffers. Some
buffers are checked in any case: those of which a word does not tell all (Stored.is_settled()), and in turn SAFETY_TURN
others, because the words say nothing of damage elsewhere.

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
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once
from relayfs_fuse.fs.kinds.base import GONE, WRITABLE
from relayfs_fuse.fs.requests.turns import Share
from relayfs_fuse.fs.supervise import keep, tick

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs.kinds.base import Stored

log = logging.getLogger(__name__)

# The time between two looks at all buffers, and how many of those that have not changed are checked at each.
SAFETY_MS = 1000
SAFETY_TURN = 32
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

    polled: what the kernel was told, and how it is notified
    by_mem: whether the descriptor is one of the memory file
    skips: whether discarded records of a ring are to be skipped for it; see Stored.skip_discarded()
    """

    polled: at_once.Polled
    by_mem: bool = False
    skips: bool = False


class _Waiter:
    """The sleeping reads and the polled descriptors of one buffer.

    slot: its slot in the group's wait set
    rests_until: the buffer is not checked before this time, by trio's clock
    due_s: the buffer is checked again at this time, by trio's clock; math.inf: when something happens
    is_settled: whether a change is seen by what WaitSet.changed() compares
    sleepers: the events that sleeping reads wait for
    polls: by descriptor
    seq: the value of the wake-up word when the buffer was armed
    failure: the error for those who wait, once the buffer could not be checked
    """

    def __init__(self, stored: Stored[Any], group: _Group, slot: int) -> None:
        self.stored = stored
        self.group = group
        self.slot = slot
        self.rests_until = -math.inf
        self.due_s = math.inf
        self.is_settled = False
        self.sleepers: list[trio.Event] = []
        self.polls: dict[int, _Poll] = {}
        self.seq = 0
        self.failure: OSError | None = None
        self._interval_ms = math.inf
        self._armed = 0
        self._written = -1
        self._n_spurious = 0

    @property
    def wanted(self) -> bool:
        return bool(self.sleepers or self.polls)

    @property
    def _bits(self) -> int:
        """What the buffer is to be armed for."""
        for_records = self.sleepers or (self.polls and self.stored.wakes_for_records)
        return (native.ARM_RECORD if for_records else 0) | (native.ARM_SWITCH if self.polls else 0)

    @property
    def is_armed(self) -> bool:
        """Whether the buffer has been armed for those who wait now since before the caller looked at it; OSError."""
        return self._bits == self._armed and self.stored.buffer.wake_seq() == self.seq

    def polled(self, descriptor: int, kernel_handle: int, by_mem: bool, skips: bool) -> at_once.Polled:
        """Return what is known of a descriptor that is polled from now on, or already."""
        poll = self.polls.get(descriptor)
        if poll is None:
            # With delivery=bulk, the buffer may be armed for records, too: for those who sleep in read(2). For rings
            # the task notifies, as handlers answer for them anyway.
            slots = self.group.polled_slots if self.stored.wakes_for_records else None
            polled = at_once.Polled(descriptor, kernel_handle, self.stored.address_to_poll(), slots, self.slot)
            poll = self.polls[descriptor] = _Poll(polled, by_mem, skips)
        return poll.polled

    def note_writers(self) -> None:
        """Note whether a program polls the buffer to write: then each read is followed by Waiting.changed()."""
        self.stored.tell(on=self.waits_for_room)

    @property
    def waits_for_room(self) -> bool:
        """Whether a program polls the buffer that could not be written when it was told last."""
        return any(not poll.polled.reported & WRITABLE for poll in self.polls.values())

    def check(self) -> None:
        """Arm the buffer if necessary, check it, and wake or notify those who wait; on an error they all get it."""
        begun_s = time.thread_time()
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
        if self.rests_until > now_s:
            self.due_s = self.rests_until
            self.group.wait_set.rest(self.slot)
        else:
            self.due_s = now_s + self._interval_ms / 1000

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
            poll.polled.announce(GONE, 0)
            poll.polled.close()
        self.polls.clear()
        self.note_writers()

    def _check(self) -> None:
        """Arm the buffer if necessary; wake sleeping reads if there is data; notify poll(2) of changes."""
        buffer, bits = self.stored.buffer, self._bits
        needs_polling = self.stored.needs_polling()
        self._interval_ms = RESERVED_MS if needs_polling else math.inf
        if bits != self._armed or buffer.wake_seq() != self.seq:
            self._arm(bits)
        self.group.wait_set.put(self.slot, buffer, self.seq)
        self.is_settled = not needs_polling and self.stored.is_settled()
        if self.sleepers and self.stored.may_have_data():
            for event in self.sleepers:
                event.set()
        if any(poll.skips for poll in self.polls.values()):
            self.stored.skip_discarded()
        for by_mem in {poll.by_mem for poll in self.polls.values()}:
            events, progress = self.stored.readiness(by_mem)
            for poll in self.polls.values():
                if poll.by_mem == by_mem:
                    poll.polled.announce(events, progress)
        self.note_writers()

    def _arm(self, bits: int) -> None:
        """Arm the buffer; if it was armed for a record less than REST_MS ago, check it again after REST_MS instead."""
        buffer, now = self.stored.buffer, trio.current_time()
        if self.stored.rests_until is not None and bits & native.ARM_RECORD:
            if now < self.stored.rests_until:
                self.seq, self._armed = buffer.wake_seq(), 0
                self._interval_ms = REST_MS
                return
            self.stored.rests_until = now + REST_MS / 1000
        self.seq = buffer.arm(bits)
        self._armed = bits


class _Group:
    """Buffers that one thread waits for: at most native.WAIT_MAX.

    wait_set: what the thread sleeps on
    polled_slots: the polled files for which it notifies the kernel when it is woken, before the loop turns
    waiters: by buffer; `everywhere` has those of all groups
    stopped: run() is to return
    """

    def __init__(self, limiter: trio.CapacityLimiter, share: Share, everywhere: dict[Stored[Any], _Waiter]) -> None:
        self.wait_set = native.WaitSet()
        self.polled_slots = at_once.PolledSlots()
        self.waiters: dict[Stored[Any], _Waiter] = {}
        self._everywhere = everywhere
        self.stopped = False
        self._slots: list[_Waiter | None] = [None] * native.WAIT_MAX
        self._free = list(reversed(range(native.WAIT_MAX)))
        # Those whose slots are to be emptied, to be checked, and to be checked at a time.
        self._gone: list[_Waiter] = []
        self._asked: set[_Waiter] = set()
        self._timed: set[_Waiter] = set()
        self._limiter = limiter
        self._share = share
        self._word = native.WakeWord()
        self._told = trio.Event()

    @property
    def has_room(self) -> bool:
        """Whether a buffer can be added."""
        return bool(self._free)

    def add(self, stored: Stored[Any]) -> _Waiter:
        """Add a buffer, which stays mapped from now on."""
        waiter = self.waiters[stored] = self._everywhere[stored] = _Waiter(stored, self, self._free.pop())
        self._slots[waiter.slot] = waiter
        stored.n_users += 1
        return waiter

    def remove(self, waiter: _Waiter) -> None:
        """Remove a buffer for which nobody waits any more."""
        if self.waiters.get(waiter.stored) is waiter:
            del self.waiters[waiter.stored], self._everywhere[waiter.stored]
            self._gone.append(waiter)

    def tell(self, *waiters: _Waiter) -> None:
        """Have run() check these buffers now."""
        self._asked.update(waiters)
        self._told.set()
        self._word.change()

    def look(self, *others: _Waiter) -> None:
        """Have run() check the buffers that have changed, those that are not settled, and others."""
        due = {waiter for slot in self.wait_set.changed() if (waiter := self._slots[slot]) is not None}
        due.update(others, [waiter for waiter in self.waiters.values() if not waiter.is_settled])
        if due or self._gone:
            self.tell(*due)

    async def run(self) -> None:
        """Arm, check and sleep until `stopped`; see the first comment of this file."""
        while not self.stopped:
            self._told = trio.Event()
            value = await self._check()
            if not self.waiters:
                await self._told.wait()
                continue
            now_s = trio.current_time()
            due_s = min((waiter.due_s for waiter in self._timed), default=math.inf)
            pause_ms = -1 if due_s == math.inf else max(0, math.ceil(1000 * (due_s - now_s)))
            sleep = partial(self.polled_slots.sleep, self.wait_set, self._word, value, pause_ms)
            await trio.to_thread.run_sync(sleep, limiter=self._limiter)

    async def _check(self) -> int:
        """Check the buffers that were woken, asked for, or are due, and do not rest.

        Return the value of the word, which changes when somebody asks for more.
        """
        await self._share.ready()
        value = self._word.value
        begun_s = time.thread_time()
        now_s = trio.current_time()
        is_asked = bool(self._asked or self._gone)
        self._empty_slots()
        woken = [waiter for slot in self.wait_set.woken() if (waiter := self._slots[slot]) is not None]
        due = self._asked.union(woken, [waiter for waiter in self._timed if waiter.due_s <= now_s])
        if not due and not is_asked:
            # Without membarrier(2) a sleep ends for no other reason: native/src/base/arm.h
            due = set(self.waiters.values())
        self._asked = {waiter for waiter in due if waiter.rests_until > now_s}
        for waiter in due - self._asked:
            if waiter.wanted and waiter.failure is None:
                waiter.check()
                (self._timed.discard if waiter.due_s == math.inf else self._timed.add)(waiter)
            if waiter.failure is not None:
                self.remove(waiter)
        self._empty_slots()
        self._share.spend(time.thread_time() - begun_s + SLEEP_COST_S)
        return value

    def _empty_slots(self) -> None:
        gone, self._gone = self._gone, []
        for waiter in gone:
            self.wait_set.clear(waiter.slot)
            self._slots[waiter.slot] = None
            self._free.append(waiter.slot)
            self._asked.discard(waiter)
            self._timed.discard(waiter)
            waiter.stored.n_users -= 1


class Waiting:
    """All groups of buffers.

    runs: is set once run() has begun
    """

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._waiters: dict[Stored[Any], _Waiter] = {}
        self._n_looked = 0
        self._nursery: trio.Nursery | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._share = Share(CHECKS_SHARE, BURST_S)
        self._stopped = trio.Event()
        self.runs = trio.Event()

    async def run(self) -> None:
        """Run the tasks of all groups until stop()."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(keep, self._look, WAITING)
            self.runs.set()
            await self._stopped.wait()
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        """Look at all buffers every SAFETY_MS, until cancelled."""
        while True:
            await tick(SAFETY_MS / 1000)
            waiters = list(self._waiters.values())
            begin = self._n_looked % len(waiters) if waiters else 0
            self._n_looked = begin + SAFETY_TURN
            turn: dict[_Group, list[_Waiter]] = {}
            for waiter in (waiters[begin:] + waiters[:begin])[:SAFETY_TURN]:
                turn.setdefault(waiter.group, []).append(waiter)
            for group in self._groups:
                group.look(*turn.get(group, ()))

    def stop(self) -> None:
        """Let run() return soon."""
        self._stopped.set()
        for group in self._groups:
            group.stopped = True
            group.tell()

    async def sleep(self, stored: Stored[Any]) -> None:
        """Return when there is data, when the buffer is closed, or spuriously; OSError: the buffer is damaged."""
        event = trio.Event()
        waiter = self._waiter(stored)
        waiter.sleepers.append(event)
        waiter.group.tell(waiter)
        try:
            await event.wait()
        finally:
            waiter.sleepers.remove(event)
            self._tidy(waiter)
        if waiter.failure is not None:
            raise OSError(waiter.failure.errno, waiter.failure.strerror)

    def poll(
        self,
        stored: Stored[Any],
        descriptor: int,
        kernel_handle: int,
        by_mem: bool = False,
        skips: bool = False,
    ) -> int:
        """Return the events that hold now; GONE if the buffer is damaged.

        kernel_handle: by which the kernel is notified of later changes, until forget(); 0: no program waits for any
        by_mem: whether the descriptor is one of the memory file
        skips: whether to skip discarded records; see Stored.skip_discarded()
        """
        try:
            if skips and stored.skip_discarded():
                self.changed(stored)
            if not kernel_handle:
                return stored.readiness(by_mem)[0]
            waiter = self._waiter(stored)
            polled = waiter.polled(descriptor, kernel_handle, by_mem, skips)
            polled.begin()
            events, progress = stored.readiness(by_mem)
        except OSError as error:
            stored.note(error)
            return GONE
        polled.answer(events, progress)
        waiter.note_writers()
        if not waiter.is_armed:
            waiter.group.tell(waiter)
        return events

    def forget(self, stored: Stored[Any], descriptor: int) -> None:
        """Notify the kernel no more of a descriptor, because it is closed."""
        waiter = self._waiters.get(stored)
        if waiter is not None:
            poll = waiter.polls.pop(descriptor, None)
            if poll is not None:
                poll.polled.close()
            waiter.note_writers()
            self._tidy(waiter)

    def changed(self, stored: Stored[Any]) -> None:
        """Check a buffer again if somebody polls it to write, because data was consumed."""
        waiter = self._waiters.get(stored)
        if waiter is not None and waiter.waits_for_room:
            waiter.group.tell(waiter)

    def tell(self, stored: Stored[Any]) -> None:
        """Check a buffer again, because there may be something to read."""
        waiter = self._waiters.get(stored)
        if waiter is not None:
            waiter.group.tell(waiter)

    def _waiter(self, stored: Stored[Any]) -> _Waiter:
        waiter = self._waiters.get(stored)
        if waiter is None:
            group = next((group for group in self._groups if group.has_room), None) or self._start_group()
            waiter = group.add(stored)
        return waiter

    def _tidy(self, waiter: _Waiter) -> None:
        """Remove a waiter for which nobody waits any more."""
        if not waiter.wanted:
            waiter.group.remove(waiter)

    def _start_group(self) -> _Group:
        group = _Group(self._limiter, self._share, self._waiters)
        self._groups.append(group)
        self._limiter.total_tokens = len(self._groups)
        assert self._nursery is not None, "run() comes first"
        self._nursery.start_soon(keep, group.run, WAITING)
        return group
