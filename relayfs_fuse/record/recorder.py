"""The recorder of a trace: finds its processes, reads packets from their buffers, and writes them to an output.

    loop:  read packets until there are none
           every TICK_S: has a process died?  has the trace ended?  rotate?
           sleep: inotify reports new directories, sleepers (sleeper.py) report data in buffers

If a process damages its memory, only its own recording ends; events that viewers could not read are left out
(reading/check.py). If a user's processes would take too many open files, some of them wait until others have ended.
While the output's disk is full, events stay in the buffers, and further events are lost as without a recorder.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.reading.damage import DamagedError, reason
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.room import FILES_ERRNOS, USER_SHARE, most_processes
from relayfs_fuse.reading.summary import Summary
from relayfs_fuse.reading.trust import owner
from relayfs_fuse.record.clock_watch import ClockWatch
from relayfs_fuse.record.full import OutputFullError
from relayfs_fuse.record.recording import Recording
from relayfs_fuse.record.sleeper import Sleepers
from relayfs_fuse.record.stream import OpenFiles
from relayfs_fuse.record.thread_watch import ThreadWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.reading.source import Source
    from relayfs_fuse.record.outputs import Output

# How long a server takes at most to remove the directory of a dead process once it is read.
SERVER_S = 5.0
# How often the state of processes and of the trace is checked.
TICK_S = 0.5
# How long the end of the recording waits for writers that keep a sub-buffer from being finished. Earlier flushes do not
# wait, because other processes would not be read meanwhile.
_FLUSH_S = 1.0
# The pause between two tries to read buffers that other readers have, at the end of the recording.
_BUSY_RETRY_S = 0.02
# How often a warning about a full output is repeated at most.
_FULL_WARN_S = 60.0


@dataclass
class Options:
    """How to record; None: never."""

    rotate_bytes: int | None = None
    rotate_s: float | None = None
    duration_s: float | None = None
    until_stopped: bool = False
    removes: bool = False  # remove directories that are recorded, from a store without a server
    waits: bool = False  # after duration_s, wait for room for what the buffers have
    check: str = "others"  # one of trust.CHECKS


class Recorder:
    """Record a trace until it ends, or stop() is called.

    say: called with a line for users when something goes wrong
    tick: called regularly
    """

    def __init__(
        self, source: Source, output: Output, options: Options, say: Callable[[str], None], tick: Callable[[], None]
    ) -> None:
        self.summary = Summary()
        self._source = source
        self._output = output
        self._options = options
        self._warn = say
        self._tick = tick
        self._recordings: dict[str, Recording] = {}
        self._threads = ThreadWatch(self._recordings)
        self._clocks = ClockWatch(source, output)
        self._done: dict[str, int] = {}
        # By process: its user, and a text for messages that identifies the process.
        self._owners: dict[str, int] = {}
        self._owner_texts: dict[str, str] = {}
        self._n_processes: Counter[int] = Counter()  # by user
        self._warned: set[str] = set()
        # While the output is full: the error, when writing was tried last, and when the user was warned.
        self._full: OutputFullError | None = None
        self._tried = 0.0
        self._full_warned: float | None = None
        self._sleepers = Sleepers()
        self._stops = False
        self._began = self._ticked = self._flushed = self._rotated = time.monotonic()
        self._rotated_bytes = -1  # an earlier recorder may have left something in the directory

    @property
    def n_buffers(self) -> int:
        """How many buffers are being read."""
        return sum(len(recording.process.buffers) for recording in self._recordings.values())

    def stop(self) -> None:
        """End the recording soon. May be called by signal handlers."""
        self._stops = True
        self._sleepers.wake()

    def run(self) -> None:
        """Record. OSError: the output cannot be written; events that are not written stay in the buffers."""
        try:
            self._clocks.look()
            self._scan()
            while not self._has_ended():
                self._flush_idle()
                if not self._drain_all():
                    self._sleep()
            self._threads.look(is_last=True)
            # Twice: a directory with the name of a removed one is found when the recording of that one is finished.
            for _ in range(2):
                self._scan()
                self._note_unbuffered()
                self._finish_all()
            self._clocks.look(is_last=True)
            self._note_unbuffered()
        finally:
            self._close()

    def _finish_all(self) -> None:
        """Record the last events of all processes; while the output is full, wait for room.

        OutputFullError: it is full, and stop() was called, or the duration has passed and options.waits is not set.
        """
        until = time.monotonic() + _FLUSH_S
        while True:
            full = self._begin_waiting()
            for name in list(self._recordings):
                self._finish(name, until)
                if self._full:
                    break
            else:
                self._write_rest()
            self._full = self._full or full
            self._rotate_by_size()
            if not self._full:
                if not self._recordings:
                    return
                time.sleep(_BUSY_RETRY_S)
            elif self._stops or (self._is_told_to_end() and not self._options.waits):
                self.summary.unwritten = sum(recording.n_unread() for recording in self._recordings.values())
                raise self._full
            else:
                self._tick()
                self._pause(TICK_S)

    def _begin_waiting(self) -> OutputFullError | None:
        """Begin to record processes for which there was no room; return the error if there is none now either."""
        was_full, self._full = self._full, None
        if was_full:
            self._scan()
        full, self._full = self._full, None
        return full

    def _is_told_to_end(self) -> bool:
        duration_s = self._options.duration_s
        return self._stops or (duration_s is not None and time.monotonic() - self._began >= duration_s)

    def _close(self) -> None:
        for recording in self._recordings.values():
            recording.process.close_after(self._sleepers)
        self._sleepers.close()
        self._output.close()

    # --- processes: finding them, and finishing their recordings ---

    def _scan(self) -> None:
        """Begin to record processes whose directories are new."""
        names = self._source.processes()
        if self._source.is_being_removed:
            self._ticked = 0.0  # check at once whether the trace has ended: the server waits for the recorder
        for name in self._done.keys() - set(names):
            del self._done[name]
        for name in self._owners.keys() - set(names) - self._recordings.keys():
            del self._owners[name], self._owner_texts[name]
        self._n_processes = Counter(self._owners[name] for name in self._recordings)
        for name in names:
            if name not in self._recordings:
                self._begin(name)

    def _begin(self, name: str) -> None:
        directory = os.path.join(self._source.directory, name)
        try:
            number = os.stat(directory).st_ino
            if self._done.get(name) == number:
                return
            self._owners[name] = owner(directory)
            self._owner_texts[name] = f"uid {self._owners[name]}"
            if not self._has_room(name):
                return
            self._done[name] = number
            process = Process(directory, self._options.check, self._source.trace)
            self._done[name] = process.number
        except FileNotFoundError:
            self._done.pop(name, None)
            return
        except OSError as error:
            self._refuse(name, error)
            return
        except ValueError as error:
            self._mark_damaged(name, str(error))
            return
        self._start_recording(name, process)

    def _start_recording(self, name: str, process: Process) -> None:
        try:
            self._recordings[name] = self._recording(name, process)
        except OutputFullError as full:
            self._done.pop(name)
            process.close()
            self._wait_for_room(full)
            return
        except DamagedError as damage:
            process.close()
            self._mark_damaged(name, str(damage))
            return
        for consumer in process.buffers.values():
            self._sleepers.add(consumer.buffer)
        self._n_processes[self._owners[name]] += 1
        self.summary.processes += 1
        self.summary.buffers += len(process.buffers)
        if process.origin.buffers == "perprocess":
            self._owner_texts[name] += f", pid {process.origin.pid}"

    def _recording(self, name: str, process: Process) -> Recording:
        output = self._output.process(name, process.origin)
        try:
            return Recording(process, output, self._source, partial(self._warn_damage, name))
        except (OutputFullError, DamagedError):
            output.close({})
            raise

    def _refuse(self, name: str, error: OSError) -> None:
        if error.errno in FILES_ERRNOS:
            # The next scan tries again.
            self._done.pop(name, None)
            self._warn_once("files", f"some processes wait until others have ended: {reason(error)}")
        elif error.errno in {errno.EBADMSG, errno.EPROTO, errno.ELOOP, errno.ENXIO, errno.EINVAL}:
            self._mark_damaged(name, reason(error))
        else:
            self.summary.skipped[name] = reason(error)
            self._warn(f"{name}: {reason(error)}")

    def _has_room(self, name: str) -> bool:
        """Return whether one more process, of this owner, can be recorded now; otherwise the next scan tries again."""
        uid = self._owners[name]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = most_processes(OpenFiles.limit())
        if len(self._recordings) >= most:
            self._warn_once("files", f"{limit} open files are too few: some processes wait until others have ended")
            return False
        if uid in {0, os.geteuid()} or self._n_processes[uid] < max(1, most // USER_SHARE):
            return True
        self._warn_once(f"uid {uid}", f"uid {uid} has too many processes: some wait until others have ended")
        return False

    def _finish_dead(self, name: str, now: float) -> None:
        """Record the last events of a dead process, until its directory is removed (by the server, if there is one)."""
        recording = self._recordings[name]
        if recording.died is None and not recording.process.is_closed() and not self._options.removes:
            recording.died = now
            with self._dropping_damaged(name):
                recording.flush()
        elif recording.died is None or recording.process.is_closed() or now - recording.died > SERVER_S:
            self._finish(name)

    def _finish(self, name: str, until: float = 0.0) -> None:
        """Record the last events of a process, and close it, unless another reader has one of its buffers.

        until: see Process.flush()
        """
        recording = self._recordings[name]
        with self._dropping_damaged(name):
            # A process that dies during finish() may have written after its buffers were read.
            was_alive = recording.process.is_alive()
            left = recording.finish(self.summary, until)
            if left is None:
                return
            del self._recordings[name]
            recording.process.close_after(self._sleepers)
            for said in left:
                self._warn(f"{self._describe(name)}: {said}")
            is_dead = not (was_alive or recording.process.is_alive())
            if self._options.removes and not left and is_dead and recording.process.is_in_place():
                self._remove(name, recording.process.directory)

    def _remove(self, name: str, directory: str) -> None:
        try:
            native_trace.trace_remove(directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._warn(f"{name} is recorded, and cannot be removed: {reason(error)}")

    @contextmanager
    def _dropping_damaged(self, name: str) -> Iterator[None]:
        """Catch the errors of a process's recording: end it if the memory is damaged, note if the output is full."""
        try:
            yield
        except OutputFullError as full:
            self._wait_for_room(full)
        except DamagedError as damage:
            recording = self._recordings.pop(name)
            recording.process.close_after(self._sleepers)
            recording.output.close({})
            self._mark_damaged(name, str(damage))

    def _mark_damaged(self, name: str, why: str) -> None:
        """Report that the rest of a process is not recorded."""
        self.summary.damaged[name] = why
        with suppress(OutputFullError):  # the warning below is enough
            self._output.quarantine(name, "why", f"{why}; it is not recorded any further\n".encode())
        self._warn(f"{self._describe(name)} is damaged: {why}; it is not recorded any further")

    def _warn_damage(self, name: str, why: str) -> None:
        """Warn, once for each process, that packets were written to .damaged."""
        self.summary.damaged.setdefault(name, why)
        why = f"{why}; such packets are written to .damaged/{name}"
        self._warn_once(name, f"{self._describe(name)} is damaged: {why}")

    def _describe(self, name: str) -> str:
        return f"{name} ({self._owner_texts[name]})" if name in self._owner_texts else name

    def _warn_once(self, about: str, line: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._warn(line)

    # --- an output that is full ---

    def _wait_for_room(self, full: OutputFullError) -> None:
        self._full = full
        self._tried = now = time.monotonic()
        if self._full_warned is None or now - self._full_warned >= _FULL_WARN_S:
            self._warn(f"{full.filename}: {reason(full)}; the recording waits until there is room")
            self._full_warned = now

    def _write_rest(self) -> None:
        try:
            self._output.write_rest()
        except OutputFullError as full:
            self._wait_for_room(full)

    def _is_worth_a_try(self) -> bool:
        """Return whether to write to the output now: while it is full, only every TICK_S."""
        if self._full and time.monotonic() - self._tried < TICK_S:
            return False
        self._full = None
        return True

    # --- the loop ---

    def _drain_all(self) -> bool:
        if not self._is_worth_a_try():
            return False
        busy = False
        for name in list(self._recordings):
            with self._dropping_damaged(name):
                busy |= self._recordings[name].drain(self.summary)
            if self._full:
                break
        else:
            self._write_rest()
        self._rotate_by_size()
        return not self._full and busy and time.monotonic() - self._ticked < TICK_S

    def _sleep(self) -> None:
        armed = self._sleepers.arm()
        if self._drain_all():
            return
        self._sleepers.start(armed)
        self._pause(self._wait_s())

    def _pause(self, wait_s: float) -> None:
        poll = select.poll()
        poll.register(self._source.inotify, select.POLLIN)
        poll.register(self._sleepers.eventfd, select.POLLIN)
        for descriptor, _ in poll.poll(1000 * wait_s):
            if descriptor == self._sleepers.eventfd:
                self._sleepers.clear()
            else:
                self._scan()

    def _note_unbuffered(self) -> None:
        self.summary.note_lost_without_buffers(*self._source.lost_without_buffers())

    def _has_ended(self) -> bool:
        """Check regularly for changes that no descriptor reports; return whether the recording has ended."""
        now = time.monotonic()
        if self._is_told_to_end():
            return True
        if now - self._ticked < TICK_S:
            return False
        self._ticked = now
        self._note_unbuffered()
        ended = not self._source.refresh() or (self._options.until_stopped and not self._source.trace.is_started)
        self._scan()
        for name, recording in list(self._recordings.items()):
            with self._dropping_damaged(name):
                recording.check()
                recording.update()
            if name in self._recordings and recording.process.has_ended():
                self._finish_dead(name, now)
        self._threads.look()
        self._clocks.look()
        if self._options.rotate_s and now - self._rotated >= self._options.rotate_s:
            self._flush_all()
            self._rotate()
        self._tick()
        return ended or (self._source.is_of_earlier_boot and not self._recordings)

    def _flush_idle(self) -> None:
        """Flush buffers of processes that write little, unless the output is full."""
        interval_s, now = self._source.trace.flush_interval_ms / 1000, time.monotonic()
        if not interval_s or now - self._flushed < interval_s or self._full:
            return
        self._flushed = now
        for name, recording in list(self._recordings.items()):
            with self._dropping_damaged(name):
                recording.flush_idle()

    def _wait_s(self) -> float:
        """Return how long to sleep until the next regular check or flush."""
        due = self._ticked + TICK_S
        if self._source.trace.flush_interval_ms:
            due = min(due, self._flushed + self._source.trace.flush_interval_ms / 1000)
        return max(0.0, due - time.monotonic())

    def _flush_all(self) -> None:
        for name, recording in list(self._recordings.items()):
            with self._dropping_damaged(name):
                recording.flush()
                recording.drain(self.summary)

    def _rotate_by_size(self) -> None:
        """Begin a new directory if this one has its size, or nothing has room: only complete ones can be removed."""
        n_bytes = self.summary.bytes - self._rotated_bytes
        rotate_bytes = self._options.rotate_bytes
        if rotate_bytes and (n_bytes >= rotate_bytes or (n_bytes and self._full)):
            self._rotate()

    def _rotate(self) -> None:
        try:
            self._output.rotate()
        except OutputFullError as full:
            self._wait_for_room(full)
            return
        self._rotated = time.monotonic()
        self._rotated_bytes = self.summary.bytes
