"""The events of a trace while programs write them, of all processes and CPUs, in the order of their times.

While a recorder runs, nothing is consumed, so it gets the same events: see native/src/merge/live.c. If a process
damages its memory, only the events of this process end.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse import native
from relayfs_fuse.native.library import Closing, closed_on_error
from relayfs_fuse.native.merge import Merge
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.reading.damage import DamagedError, errors_mean_damage, reason
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.room import FILES_ERRNOS, USER_SHARE, most_processes
from relayfs_fuse.reading.trust import owner
from relayfs_fuse.tracefiles.merged import kinds_of, process_of
from relayfs_fuse.tracefiles.recorded import read_metadata
from relayfs_fuse.tracefiles.recorder_lock import holder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.native.trace import Clocks
    from relayfs_fuse.reading.source import Source
    from relayfs_fuse.tracefiles.ctf import Declaration
    from relayfs_fuse.tracefiles.recorded import Clock

# How often the state of processes and of the trace is checked.
_TICK_S = 0.5


@dataclass
class Followed:
    """A process whose buffers are read.

    number: its number in the merge, which another process may get after Merge.remove()
    identity: its number in the packets of the merge, which no other process gets
    clock: how the merge converts its timestamps
    n_declared: how many of its declarations the merge has
    n_damaged: the ProcessStats.n_damaged of the last message about it
    is_finished: whether Merge.finish() was called for it
    """

    process: Process
    number: int
    identity: int
    clock: Clock
    uid: int
    n_declared: int
    n_damaged: int = 0
    is_finished: bool = False


class Wanted(NamedTuple):
    """Which events are wanted.

    patterns: globs of PROVIDER:NAME, one of which must match; empty: all events are wanted
    since: events before this time are left out, ns since 1970
    condition: as for Merge
    share: at most 1/share of most_processes() processes are read; the others are for other Lives of this program
    clocks: from which the timestamps of all processes are converted; None: they are read
    """

    patterns: Sequence[str] = ()
    since: int = 0
    condition: bytes = b""
    share: int = 1
    clocks: Clocks | None = None


class Live(Closing):
    """Follow a trace.

    source: the trace; the caller closes it
    say: called with a line for users when something goes wrong
    consumes: consume sub-buffers whose events were given out, if the trace is in mode no-overwrite and has no recorder:
        otherwise its programs would have no room for further events
    is_own: whether the caller has made the trace, so that no message about consuming is needed
    merged: the merge that gives out the events
    clocks: the clocks from which the timestamps of all processes are converted
    """

    def __init__(
        self, source: Source, wanted: Wanted, say: Callable[[str], None], *, consumes: bool, is_own: bool = False
    ) -> None:
        self.merged = Merge(wanted.since, condition=wanted.condition)
        self._source = source
        self._patterns = wanted.patterns
        self._share = wanted.share
        self._say = say
        self._consumes = consumes and source.trace.mode == native.MODE_NO_OVERWRITE
        self.clocks = wanted.clocks or source.clocks()
        self._followed: dict[str, Followed] = {}
        self._done: dict[str, int] = {}  # by name: inodes of directories that must not be opened (again)
        self._said = {"consumes"} if is_own else set()
        self._n_added = 0
        self._n_unbuffered = self._count_unbuffered()
        self._ticked = time.monotonic()
        self._is_late = False  # True after the first scan: processes that are found then are new
        with closed_on_error(self):
            self._scan()
        self._is_late = True

    @property
    def conversion(self) -> tuple[int, int, int]:
        """The fields of `clocks`."""
        return self.clocks.ticks, self.clocks.mono_ns, self.clocks.real_ns

    @property
    def followed(self) -> list[Followed]:
        """The processes that are read now."""
        return list(self._followed.values())

    @property
    def declarations(self) -> list[Declaration]:
        """What these have declared so far."""
        return [one for followed in self._followed.values() for one in followed.process.declarations]

    def close(self) -> None:
        """Let go of all buffers."""
        self.merged.close()
        for followed in self._followed.values():
            followed.process.close()

    def look(self) -> int:
        """Have the merge read all buffers, also of new processes; return the time just before, see Merge.look()."""
        poll = select.poll()
        poll.register(self._source.inotify, select.POLLIN)
        if poll.poll(0):
            self._scan()
        looked = self.merged.look(consumes=self._may_consume())
        for name in list(self._followed):
            self._learn(name)
        return looked

    def tick(self) -> bool:
        """Check, every _TICK_S, for changes that inotify does not report.

        False: all is read, and the trace was removed or is of an earlier boot.
        """
        if time.monotonic() - self._ticked < _TICK_S and not self._source.is_being_removed:
            return True
        self._ticked = time.monotonic()
        is_there = self._source.refresh()
        self._scan()
        self._say_unbuffered()
        for name in list(self._followed):
            self._check(name, is_there=is_there)
        is_past = self._source.is_of_earlier_boot
        return bool(self._followed) or (is_there and not is_past)

    def check(self) -> None:
        """Report what the last look() has found to be wrong."""
        self._say_unbuffered()
        for name in list(self._followed):
            self._is_sound(name)

    # --- processes ---

    def _scan(self) -> None:
        names = self._source.processes()
        for name in self._done.keys() - set(names):
            del self._done[name]
        for name in names:
            if name not in self._followed:
                self._try_to_follow(name)

    def _try_to_follow(self, name: str) -> None:
        directory = os.path.join(self._source.directory, name)
        try:
            number = os.stat(directory).st_ino
            uid = owner(directory)
            if self._done.get(name) == number or not self._has_room(uid):
                return
            self._done[name] = number
            process = Process(directory, "none", self._source.trace)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in FILES_ERRNOS:
                self._done.pop(name, None)
                self._say_once("files", f"some processes are shown when others have ended: {reason(error)}")
            else:
                self._say_once(name, f"{name} is not shown: {reason(error)}")
            return
        except ValueError as error:
            self._say_once(name, f"{name} is damaged: {error}; it is not shown")
            return
        self._done[name] = process.number
        self._follow(name, process, uid)

    def _follow(self, name: str, process: Process, uid: int) -> None:
        try:
            with errors_mean_damage(".events"):
                part = read_metadata(process.directory, process.metadata(self.clocks, (0, 0)))
        except DamagedError as damage:
            process.close()
            self._say_once(name, f"{name} (uid {uid}) is damaged: {damage}; it is not shown")
            return
        described = replace(
            process_of(part, self._n_added, self._patterns),
            live_clock=CLOCKS[part.origin.clock].number,
            is_past=self._source.is_of_earlier_boot,
        )
        number = self.merged.add_process(described)
        self._n_added += 1
        self._followed[name] = Followed(process, number, described.identity, part.clock, uid, len(process.declarations))
        try:
            for cpu, consumer in process.buffers.items():
                self.merged.add_buffer(number, cpu, consumer.buffer, is_new=self._is_late)
        except OSError as error:
            self._drop(name, reason(error))

    def _has_room(self, uid: int) -> bool:
        most = max(1, most_processes() // self._share)
        n_of_user = sum(followed.uid == uid for followed in self._followed.values())
        if uid not in {0, os.geteuid()} and n_of_user >= max(1, most // USER_SHARE):
            self._say_once(f"uid {uid}", f"uid {uid} has too many processes: some are shown when others have ended")
            return False
        if len(self._followed) >= most:
            self._say_once("files", "too few open files: some processes are shown when others have ended")
            return False
        return True

    def _learn(self, name: str) -> None:
        """Add the events that a process has declared since the last call to the merge."""
        followed = self._followed[name]
        try:
            with errors_mean_damage(".events"):
                followed.process.read_declarations()
        except DamagedError as damage:
            self._drop(name, str(damage))
            return
        new = followed.process.declarations[followed.n_declared :]
        if new:
            followed.n_declared += len(new)
            self.merged.declare(followed.number, kinds_of(new, self._patterns))

    def _is_sound(self, name: str) -> bool:
        """Report what is wrong with a process, and drop it if it is damaged; return whether it is still read."""
        followed = self._followed[name]
        stats = self.merged.process_stats(followed.number)
        if stats.error:
            self._drop(name, f"cpu{stats.cpu}: {followed.process.buffers[stats.cpu].buffer.damage()}")
            return False
        if stats.n_damaged > followed.n_damaged:
            followed.n_damaged = stats.n_damaged
            self._say_once(f"events of {name}", f"{name} (uid {followed.uid}) has written what is no declared event; "
                           "what follows it in a sub-buffer is not shown, and counts as lost")  # fmt: skip
        try:
            with errors_mean_damage():
                followed.process.check_size()
        except DamagedError as damage:
            self._drop(name, str(damage))
            return False
        return True

    def _check(self, name: str, *, is_there: bool) -> None:
        if not self._is_sound(name):
            return
        followed = self._followed[name]
        try:
            with errors_mean_damage():
                has_ended = followed.process.has_ended() or not is_there
        except DamagedError as damage:
            self._drop(name, str(damage))
            return
        if not self.merged.process_stats(followed.number).n_open:
            self._end(name)
        elif has_ended and not followed.is_finished:
            self.merged.finish(followed.number)
            followed.is_finished = True

    def _end(self, name: str) -> None:
        """Close a process that has ended and whose events were all given out."""
        followed = self._followed.pop(name)
        self.merged.remove(followed.number)
        if self._may_consume():
            # After an error the events stay unread, as they would without this reader.
            with suppress(OSError):
                followed.process.flush()
                for consumer in followed.process.buffers.values():
                    consumer.buffer.subbufs_consumed(followed.process.n_subbufs)
        followed.process.close()

    def _drop(self, name: str, why: str) -> None:
        followed = self._followed.pop(name)
        self.merged.remove(followed.number)
        followed.process.close()
        self._say_once(name, f"{name} (uid {followed.uid}) is damaged: {why}; it is not shown any further")

    def _may_consume(self) -> bool:
        if not self._consumes or holder(self._source.directory) is not None:
            return False
        self._say_once("consumes", f"nobody records {self._source.name}: what is shown is consumed, so that its "
                       "programs have room for further events")  # fmt: skip
        return True

    # --- messages ---

    def _count_unbuffered(self) -> int:
        own, by_user = self._source.lost_without_buffers()
        return own + sum(by_user.values())

    def _say_unbuffered(self) -> None:
        n = self._count_unbuffered()
        if n > self._n_unbuffered:
            self._say(f"{n - self._n_unbuffered} events are lost, of programs that could get no buffers")
        self._n_unbuffered = n

    def _say_once(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._say(line)
