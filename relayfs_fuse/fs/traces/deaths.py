"""Noticing that a traced process has died, and making its crash card (cards.py).

A process that has joined a trace with buffers of its own is watched by a pidfd, which is readable as soon as it has
ended. (Without one, because there is no descriptor left, its end is noticed when its lock on .events has gone.) Then

    it has noted in its buffers that it ends in order    no card: it has called exit(3), or unloaded the library
    it lives, and its lock has gone                      no card: it runs another program since execve(2)
    otherwise                                            a card

In buffers of several processes nothing tells whose last events are there, so such processes get no cards.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections import Counter, deque
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.card_files import CardDirectory, CrashedDirectory
from relayfs_fuse.fs.store import CRASHED_NAME
from relayfs_fuse.fs.supervise import next_tick
from relayfs_fuse.fs.traces.card_contents import Death, contents, look_at
from relayfs_fuse.fs.traces.ends import UNKNOWN, End, KernelLog, end_of, may_be_known_later, open_process
from relayfs_fuse.fs.traces.sessions import start_of
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.nodes import Node
    from relayfs_fuse.fs.requests.announcements import Announcements
    from relayfs_fuse.fs.traces.card_contents import Seen
    from relayfs_fuse.fs.traces.cards import Cards
    from relayfs_fuse.fs.traces.process import TraceProcess
    from relayfs_fuse.fs.traces.registry import Traces
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

# How often to look at processes of which there is no descriptor, and at those that have closed .events.
TICK_S = 1.0
# How long a card waits for the parent to wait for the process, if the exit code is not known before.
CODE_S = 2.0
# The most descriptors of processes, and the bytes that are kept of all living processes of one user.
DESCRIPTORS_MAX = 4096
SEEN_MAX = 8 << 20
# In a process's directory: a server has decided whether its process gets a card.
_DECIDED = ".decided"


class _Watched:
    """A process that is watched, or that has ended and whose card is to be made.

    process: its directory
    pid: in the server's PID namespace; 0: unknown
    start: see start_of()
    uid: whose it is
    descriptor: a pidfd, or -1
    seen: what was read in /proc; None: it had ended before
    ended_at: when its end was seen, by time.monotonic(), and died_ns by CLOCK_REALTIME
    """

    def __init__(self, process: TraceProcess, pid: int, uid: int) -> None:
        self.process = process
        self.pid = pid
        self.uid = uid
        self.start = start_of(pid) if pid else None
        self.descriptor = -1
        self.seen: Seen | None = None
        self.ended_at: float | None = None
        self.died_ns = 0

    def lives(self) -> bool:
        """Whether the process lives."""
        return self.start is not None and start_of(self.pid) == self.start

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Deaths:
    """The watch over traced processes; its methods are called in the server's thread.

    cards: where the cards are
    traces: the registry
    tree, announcements, errors: show the cards, announce them, and say why one could not be made
    counters: returns the text of the mount's counters
    """

    def __init__(  # noqa: PLR0913, PLR0917  # a part of the server each
        self,
        cards: Cards,
        traces: Traces,
        tree: Tree,
        announcements: Announcements,
        errors: ErrorLog,
        counters: Callable[[], bytes],
    ) -> None:
        self._cards = cards
        self._traces = traces
        self._tree = tree
        self._announcements = announcements
        self._errors = errors
        self._counters = counters
        self._new: deque[TraceProcess] = deque()
        self._hidden: deque[str] = deque()
        # By directory; only the task, and the thread that it waits for, use these.
        self._watched: dict[str, _Watched] = {}
        self._by_descriptor: dict[int, _Watched] = {}
        self._seen_bytes: Counter[int] = Counter()
        self._log = KernelLog()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._directory = CrashedDirectory(CRASHED_NAME)
        tree.attach(tree.root, self._directory)
        for name in cards.load():
            self._show(name)

    def close(self) -> None:
        """Close all descriptors."""
        for watched in self._watched.values():
            watched.close()
        self._log.close()
        self._epoll.close()
        os.close(self._wake)

    @property
    def makes_cards(self) -> bool:
        """Whether cards are made at all."""
        return self._cards.number > 0

    # ---------------------------------------------------------------- called by the registry

    def note(self, process: TraceProcess) -> None:
        """Watch a process whose directory has appeared."""
        if self.makes_cards:
            process.awaits_card = True
            self._new.append(process)
            os.eventfd_write(self._wake, 1)

    def forget(self, process: TraceProcess) -> None:
        """Stop watching a process whose directory has gone."""
        if process.awaits_card:
            process.awaits_card = False
            self._hidden.append(process.directory)
            os.eventfd_write(self._wake, 1)

    # ---------------------------------------------------------------- the task

    async def run(self) -> None:
        """Make cards until cancelled."""
        while True:
            with trio.move_on_at(next_tick(TICK_S)) as waiting:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            if waiting.cancelled_caught and not (self._watched or self._new or self._hidden):
                continue
            dead = await trio.to_thread.run_sync(self._look, abandon_on_cancel=True)
            for watched in dead:
                try:
                    await self._make(watched)
                finally:
                    self._end(watched)

    async def _make(self, watched: _Watched) -> None:
        name = watched.process.name
        try:
            make = partial(self._make_card, watched, self._end_of(watched), self._counters())
            made, removed = await trio.to_thread.run_sync(make)
        except (CommandError, OSError) as error:
            why = error.message if isinstance(error, CommandError) else error.strerror
            log.info("%s", self._errors.notice(f"crashed {name}", f"{name} has died, and no card could be made: {why}"))
            return
        if not made:
            return
        await self._announcements.remove(CRASHED_NAME, {one: partial(self._hide, one) for one in removed})
        await self._announcements.make(CRASHED_NAME, {made: partial(self._show, made)})

    def _show(self, name: str) -> Node | None:
        node = CardDirectory(name, os.path.join(self._cards.directory, name), partial(self._cards.remove, name))
        self._tree.attach(self._directory, node)
        try:
            node.fill(self._tree)
        except OSError as error:
            log.info("crash card %s: %s", name, error)
            self._tree.detach(node)
            return None
        return node

    def _hide(self, name: str) -> None:
        node = self._directory.children.get(name)
        if node is not None:
            self._tree.detach(node)

    # ---------------------------------------------------------------- in a worker thread

    def _look(self) -> list[_Watched]:
        """Begin to watch new processes; return those that have died and get a card now."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._hidden)):
            if watched := self._watched.get(self._hidden.popleft()):
                self._end(watched)
        for _ in range(len(self._new)):
            self._begin(self._new.popleft())
        for descriptor, _ in self._epoll.poll(0):
            if watched := self._by_descriptor.get(descriptor):
                self._note_end(watched)
        for watched in list(self._watched.values()):
            if watched.ended_at is None and (watched.process.seems_dead or not watched.pid):
                self._check(watched)
        return [one for one in self._watched.values() if one.ended_at is not None and self._is_due(one)]

    def _begin(self, process: TraceProcess) -> None:
        """Watch a process, unless it gets no card."""
        watched = None
        with suppress(OSError, ValueError):
            watched = self._found(process)
        if watched is None:
            process.awaits_card = False
            return
        self._watched[process.directory] = watched
        self._look_at(watched)

    def _found(self, process: TraceProcess) -> _Watched | None:
        """Return a process to be watched; None: it gets no card. OSError, ValueError: its directory cannot be read."""
        trace = self._traces.find(process.trace)
        if trace is None or trace.boot != native_trace.boot_id():
            return None
        if os.path.exists(os.path.join(process.directory, _DECIDED)):
            return None
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(process.directory, ".events"), flags)
        try:
            if ctf.Origin.of(os.pread(descriptor, ctf.LINE_BYTES, 0)).buffers != "perprocess":
                return None
            return _Watched(process, self._holder(process, descriptor), os.fstat(descriptor).st_uid)
        finally:
            os.close(descriptor)

    def _holder(self, process: TraceProcess, descriptor: int) -> int:
        """Return the process that has locked .events, or for which the server has; 0: there is none.

        What .events says of its process cannot be trusted.
        """
        pid = native_trace.events_holder(descriptor)
        if pid >= 0:
            return pid
        return next((image.pid for image in self._traces.sessions.images(process.directory)), 0)

    def _look_at(self, watched: _Watched) -> None:
        """Open the process, and read what its card needs."""
        if not watched.pid or watched.start is None:
            return
        self._log.forget(watched.pid)
        seen = look_at(watched.pid, watched.uid, time.time_ns())
        # What was read is the process's if it lives now.
        if watched.lives() and self._seen_bytes[watched.uid] + seen.n_bytes <= SEEN_MAX:
            self._seen_bytes[watched.uid] += seen.n_bytes
            watched.seen = seen
        if len(self._by_descriptor) < DESCRIPTORS_MAX:
            watched.descriptor = open_process(watched.pid)
        if watched.descriptor >= 0:
            self._by_descriptor[watched.descriptor] = watched
            self._epoll.register(watched.descriptor, select.EPOLLIN)

    def _check(self, watched: _Watched) -> None:
        """Look at a process that has no lock on .events, or did not have one when its directory appeared."""
        if not watched.pid:
            found = None
            with suppress(OSError, ValueError):
                found = self._found(watched.process)
            if found is None:
                self._end(watched)
            elif found.pid:
                watched.pid, watched.start = found.pid, found.start
                self._look_at(watched)
            elif watched.process.seems_dead:
                self._note_end(watched)
        elif watched.lives():
            self._decide(watched)  # it runs another program
        else:
            self._note_end(watched)

    def _note_end(self, watched: _Watched) -> None:
        """Note that a process has ended; if it has done so in order, it gets no card."""
        if watched.ended_at is not None:
            return
        try:
            with closing(watched.process.open_buffer(0)) as buffer:
                has_left = buffer.has_left()
        except OSError:
            has_left = False  # the card says what is wrong with the buffers
        if has_left:
            self._end(watched)
            return
        watched.ended_at, watched.died_ns = time.monotonic(), time.time_ns()
        if watched.descriptor >= 0:
            self._epoll.modify(watched.descriptor, 0)  # EPOLLHUP comes when the parent has waited for it

    def _is_due(self, watched: _Watched) -> bool:
        """Whether the exit code is known, or will not be."""
        if self._end_of(watched) is not UNKNOWN or not may_be_known_later(watched.pid, watched.descriptor):
            return True
        return watched.ended_at is not None and time.monotonic() - watched.ended_at >= CODE_S

    def _end_of(self, watched: _Watched) -> End:
        return end_of(watched.pid, watched.descriptor)

    def _make_card(self, watched: _Watched, end: End, counters: bytes) -> tuple[str, list[str]]:
        """Make a card; return its name, and those of cards that were removed for it. CommandError, OSError.

        "": the directory was removed meanwhile, with its trace, or because memory= was used up, as error_log says then.
        """
        process = watched.process
        trace = self._traces.find(process.trace)
        if trace is None or not os.path.isdir(process.directory):
            return "", []
        cause = end.lines(self._log.has_killed(watched.pid))
        death = Death(watched.pid, cause, watched.seen, watched.died_ns, counters)
        unbuffered = self._traces.losses.of(trace)
        files = contents(process, trace, unbuffered, death, self._cards.most_bytes())
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(watched.died_ns // 1_000_000_000))
        made = self._cards.add(f"{process.name}-{when}", watched.uid, files)
        self._decide(watched)
        return made

    def _decide(self, watched: _Watched) -> None:
        """Note for the next server that nothing is to be decided about this process any more."""
        directory = watched.process.directory
        with suppress(OSError):
            status = os.stat(directory)
            path = os.path.join(directory, _DECIDED)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PERMS["OWN"]))
            # By this time memory= of the trace gives up the oldest directories first.
            os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._end(watched)

    def _end(self, watched: _Watched) -> None:
        """Stop watching a process; the server may remove its directory now."""
        if self._watched.pop(watched.process.directory, None) is None:
            return
        watched.process.awaits_card = False
        if watched.seen:
            self._seen_bytes[watched.uid] -= watched.seen.n_bytes
        if watched.descriptor >= 0:
            self._epoll.unregister(watched.descriptor)
            del self._by_descriptor[watched.descriptor]
        watched.close()
