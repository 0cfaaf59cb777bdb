"""The directory of one process in a trace in the store: its buffers, declarations and state."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.packets import Consumer
from relayfs_fuse.native.tables import CLOCKS, TRACE_OPTIONS
from relayfs_fuse.reading.check import Checker
from relayfs_fuse.reading.threads import note_names
from relayfs_fuse.reading.trust import needs_check
from relayfs_fuse.tracefiles import ctf, losses, objects
from relayfs_fuse.tracefiles.ctf import Origin
from relayfs_fuse.tracefiles.streams import OBJECTS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.reading.threads import Holders
    from relayfs_fuse.record.sleeper import Sleepers
    from relayfs_fuse.tracefiles.ctf import Clocks, Declaration, Unbuffered
    from relayfs_fuse.tracefiles.thread_names import Names

# The largest sub-buffer of a process that is not trusted, unless the trace's own are larger.
_SUBBUF_BYTES_MAX = 64 << 20
# The errors of a flush that pass when another thread has finished its work in the buffer, and the pause before the next
# try.
_TEMPORARY_ERRNOS = (errno.EBUSY, errno.EDEADLK)
_RETRY_S = 0.01
REMOVED = "it was removed before they could be read"
RESERVED = "somebody keeps a part of it reserved"
_CAUSES = {
    errno.EPERM: "this program may not run on that CPU",
    errno.EBUSY: RESERVED,
    errno.EDEADLK: "its lock is not released",
    errno.EPIPE: REMOVED,
}


class Process:
    """Map the buffers of a directory STORE/NAME/PROCESS-PID, and read its `.events`.

    OSError: it cannot be opened, or EBADMSG, EPROTO: it is damaged; ValueError: `.events` is not what the library
    writes for this trace.

    check: one of trust.CHECKS
    trace: the trace it must belong to; None: any
    number: of the directory's inode
    n_subbufs, subbuf_size: number of sub-buffers of a buffer, and their bytes
    checker: checks the packets; None: the process is trusted
    unfinished: by CPU, why flush() could not finish the current sub-buffer
    losses: by CPU, when events were lost, as lost() has found it
    """

    def __init__(self, directory: str, check: str = "none", trace: Trace | None = None) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self.buffers: dict[int, Consumer] = {}
        self._n_events_bytes = self._n_described = -1
        self._events_at = 0
        self._declared: dict[int, Declaration] = {}
        self._baseline = 0
        self.unfinished: dict[int, str] = {}
        # By CPU: number of sub-buffers finished at the last note_finished().
        self._finished: dict[int, int] = {}
        self._unbuffered: Unbuffered = (0, 0)
        self._described_refused: dict[str, int] = {}
        self.losses: defaultdict[int, losses.Intervals] = defaultdict(losses.Intervals)
        self._others: dict[int, dict[str, int]] = {}
        self._n_lost = self._n_described_lost = 0
        self._described_losses: list[str] = []
        self._described_objects: list[str] = []
        # All files must be of one directory: it may be removed meanwhile, and another one made under its name.
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.number = os.fstat(descriptor).st_ino
            self._open(f"/proc/self/fd/{descriptor}/.", check, trace)
        finally:
            os.close(descriptor)

    def _open(self, directory: str, check: str, trace: Trace | None) -> None:
        self._events_fd = os.open(
            os.path.join(directory, ".events"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            if not stat.S_ISREG(os.fstat(self._events_fd).st_mode):
                raise ValueError(".events is no regular file")
            line = os.pread(self._events_fd, ctf.LINE_BYTES, 0)
            self.origin = Origin.of(line)
            if trace:
                check_origin(self.origin, trace)
            self._events_at = line.index(b"\n") + 1
            self.checker = Checker(self.origin) if needs_check(directory, self.origin, check) else None
            self._open_buffers(os.path.join(directory, "cpu"))
            if self.checker and trace and self.subbuf_size > max(trace.subbuf_size, _SUBBUF_BYTES_MAX):
                raise ValueError(f"a sub-buffer of {self.subbuf_size} bytes; the trace's have {trace.subbuf_size}")
        except BaseException:
            self.close()
            raise

    def _open_buffers(self, channel: str) -> None:
        for cpu in sorted(int(name[3:]) for name in os.listdir(channel)):
            self.buffers[cpu] = Consumer(native.Buffer(os.path.join(channel, f"mem{cpu}")))
            # Processes times CPUs may be more than there are descriptors.
            self.buffers[cpu].buffer.close_descriptor()
        stats = [consumer.buffer.stats() for consumer in self.buffers.values()]
        self.n_subbufs = max(one.n_subbufs for one in stats)
        self.subbuf_size = max(one.subbuf_size for one in stats)
        self._file_bytes = min(one.file_bytes for one in stats)

    def close(self) -> None:
        """Unmap the buffers."""
        os.close(self._events_fd)
        for consumer in self.buffers.values():
            consumer.buffer.close()

    def is_in_place(self) -> bool:
        """Return whether its directory is still there, and not another one of the same name."""
        try:
            return os.stat(self.directory).st_ino == self.number
        except FileNotFoundError:
            return False

    def is_alive(self) -> bool:
        """Return whether a process lives that writes to the buffers, or is about to."""
        return native_trace.trace_is_alive(self.directory)

    def note_threads(self, names: Names, holders: Holders) -> None:
        """Add the names of the threads of the living processes that write to the buffers."""
        status = os.fstat(self._events_fd)
        # Others' locks that come and go while the list is read can hide one that stands, and long lists end too early.
        pids = {native_trace.events_holder(self._events_fd), *holders.get((status.st_dev, status.st_ino), ())}
        note_names(names, filter(lambda pid: pid > 0, pids))

    def is_closed(self) -> bool:
        """Return whether the directory was removed from the store; unread data can still be read."""
        return len(self.closed_buffers()) == len(self.buffers)

    def has_ended(self) -> bool:
        """Return whether no further events can be written."""
        if self.is_closed():
            return True
        # With buffers=peruser or shared, further processes may use the buffers.
        return self.origin.buffers == "perprocess" and not self.is_alive()

    def close_after(self, sleepers: Sleepers) -> None:
        """Unmap the buffers after the sleepers have stopped using them."""
        for consumer in self.buffers.values():
            sleepers.remove(consumer.buffer)
        self.close()

    def flush(self, until: float = 0.0) -> None:
        """Finish the current sub-buffers, so that they can be read; `unfinished` says where and why that failed.

        until: how long, by time.monotonic(), to try again while another thread is at work
        """
        self.unfinished.clear()
        for cpu, consumer in self.buffers.items():
            while error := _flush(consumer.buffer):
                if error.errno not in _TEMPORARY_ERRNOS or time.monotonic() >= until:
                    self.unfinished[cpu] = _CAUSES.get(error.errno or 0, error.strerror or "")
                    break
                time.sleep(_RETRY_S)
        self.note_finished()

    def note_finished(self) -> None:
        """Store how many sub-buffers of each buffer are finished, for is_unread()."""
        self._finished = {cpu: consumer.buffer.stats().produced for cpu, consumer in self.buffers.items()}

    def is_unread(self, cpu: int) -> bool:
        """Return whether a sub-buffer is unread that was finished at the last flush() or note_finished()."""
        stats = self.buffers[cpu].buffer.stats()
        oldest = max(stats.consumed, stats.produced - stats.n_subbufs)
        return oldest < self._finished.get(cpu, 0)

    def is_held(self, cpu: int) -> bool:
        """Return whether a reservation keeps an unread sub-buffer from being read.

        Call it only if Recording.drain() has read nothing from the buffer.
        """
        stats = self.buffers[cpu].buffer.stats()
        is_overwritten = stats.produced - stats.consumed > stats.n_subbufs
        return self.is_unread(cpu) and not is_overwritten

    def n_unread(self, cpu: int) -> int:
        """Return the number of unread events in a buffer."""
        return self.buffers[cpu].buffer.stats().unread_records

    def closed_buffers(self) -> list[int]:
        """Return the CPUs whose buffers were removed from the store."""
        return [cpu for cpu, consumer in self.buffers.items() if consumer.buffer.state() & native.IS_CLOSED]

    def flush_idle(self) -> None:
        """Flush buffers without finished unread sub-buffers, so that few events are read soon, too."""
        for consumer in self.buffers.values():
            try:
                if consumer.buffer.stats().is_worth_a_flush:
                    consumer.buffer.flush()
            except OSError as error:
                # After other errors, flush() finishes the sub-buffer when the process, or the recording, ends.
                if error.errno == errno.EBADMSG:
                    raise

    def check_size(self) -> None:
        """Check the sizes of the buffers' files. ValueError: one was truncated.

        Reads of truncated memory return zeros, because the library's SIGBUS handler maps zero pages: an empty buffer.
        """
        for cpu in self.buffers:
            path = os.path.join(self.directory, "cpu", f"mem{cpu}")
            with suppress(FileNotFoundError):  # a removed buffer is read to its end
                if os.stat(path, follow_symlinks=False).st_size < self._file_bytes:
                    raise ValueError(f"mem{cpu} is truncated")

    def lost(self) -> dict[int, int]:
        """Return the number of lost events by CPU, and note their causes. ValueError: a number is impossible."""
        lost = {}
        for cpu, consumer in self.buffers.items():
            asked_ns = time.time_ns()
            stats = consumer.buffer.stats()
            lost[cpu] = stats.lost_records
            if lost[cpu] > native_trace.LOST_MAX:
                raise ValueError(f"cpu{cpu}: {lost[cpu]} events are said to be lost")
            others: dict[str, tuple[int, int | None]] = {
                cause: (n, None) for cause, n in self._others.get(cpu, {}).items()
            }
            self.losses[cpu].look(losses.counts_of("relay", stats) | others, asked_ns)
        self._n_lost = sum(lost.values())
        return lost

    def note_lost(self, cpu: int, cause: str, n: int) -> None:
        """Note how many events are lost that the buffer does not count, such as those that were not valid, in total.

        lost() notes when, and does not return them.
        """
        self._others.setdefault(cpu, {})[cause] = n

    def begin_losses(self, told: Mapping[str, Iterable[losses.Interval]], looked_ns: int = 0) -> None:
        """Take over what others have noted of losses, by buffer; looked_ns: see Intervals.begin_with().

        Nothing was lost before the trace was made.
        """
        for cpu in self.buffers:
            self.losses[cpu].begin_with(told.get(str(cpu), ()), max(looked_ns, self.origin.real))

    def _losses_to_tell(self, of_trace: losses.Intervals | None) -> list[str]:
        found = {str(cpu): one.kept for cpu, one in self.losses.items()}
        return losses.to_tell(found | ({losses.NO_BUFFER: of_trace.kept} if of_trace else {}))

    def has_new_metadata(
        self,
        clocks: Clocks,
        unbuffered: Unbuffered,
        at_end: bool = False,
        of_trace: losses.Intervals | None = None,
    ) -> bool:
        """Return whether metadata() would return something new, or more exact, than the last time.

        The longer the time stamp counter has been observed, the more exact is its frequency. It is computed anew
        whenever the time of observation has doubled, so that the error in nanoseconds does not grow. The number of
        events lost for want of buffers is updated when it has grown tenfold, and at the end, as the intervals in which
        events were lost are; the numbers of refused events are updated at the end, because packets count them, too.

        of_trace: when programs have lost events because they got no buffers
        """
        self.read_declarations()
        if len(self._declared) != self._n_described:
            return True
        if sum(unbuffered) > (1 if at_end else 10) * sum(self._unbuffered):
            return True
        if self._n_lost > 10 * self._n_described_lost:
            return True
        if at_end and (
            self._refused() != self._described_refused
            or self._losses_to_tell(of_trace) != self._described_losses
            or self.loaded_objects() != self._described_objects
        ):
            return True
        return self.origin.is_measured and clocks.mono_ns - self.origin.mono > 2 * self._baseline

    def metadata(self, clocks: Clocks, unbuffered: Unbuffered, of_trace: losses.Intervals | None = None) -> bytes:
        """Return the present metadata; of_trace: see has_new_metadata()."""
        self.read_declarations()
        self._n_described = len(self._declared)
        self._baseline = clocks.mono_ns - self.origin.mono
        self._unbuffered = unbuffered
        self._described_refused = self._refused()
        self._n_described_lost = self._n_lost
        self._described_losses = self._losses_to_tell(of_trace)
        self._described_objects = self.loaded_objects()
        told = {"loss": self._described_losses, "object": self._described_objects}
        preamble = ctf.preamble(self.origin, clocks, unbuffered, self._described_refused, told)
        return preamble + b"".join(one.text for one in self._declared.values())

    def _refused(self) -> dict[str, int]:
        """Return how many events were refused, by cause, as the buffers say now; empty: one of them is damaged."""
        try:
            stats = [consumer.buffer.stats() for consumer in self.buffers.values()]
        except OSError:
            return {}
        return {name: sum(getattr(one, f"{name}_records") for one in stats) for name in ctf.REFUSED}

    def read_declarations(self) -> None:
        """Read the declarations added since the last call.

        Earlier declarations are not read again: the process may have changed them, but recorded packets need the old
        text.
        """
        size = min(os.fstat(self._events_fd).st_size, ctf.EVENTS_MAX)
        if size == self._n_events_bytes:
            return
        new = os.pread(self._events_fd, max(0, size - self._events_at), self._events_at)
        declarations, end = ctf.declarations_from(new, 0)
        self._n_events_bytes = size
        self._events_at += end
        self.learn(declarations)

    @property
    def declarations(self) -> list[Declaration]:
        """The declarations that were read, in the order in which they were."""
        return list(self._declared.values())

    def learn(self, declarations: Iterable[Declaration]) -> None:
        """Add declarations of events, the first of each id."""
        new: dict[int, Declaration] = {}
        for one in declarations:
            if one.id not in self._declared:
                new.setdefault(one.id, one)
        self._declared |= new
        if self.checker:
            self.checker.learn(new.values())

    def contents(self, name: str, most: int) -> bytes:
        """Return the bytes of a file in the directory; none, if there is no such file, or another directory here."""
        try:
            directory = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            if os.fstat(directory).st_ino != self.number:
                return b""
            with open(os.open(name, flags, dir_fd=directory), "rb") as file:
                is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                return file.read(most) if is_regular else b""
        except OSError:
            return b""
        finally:
            os.close(directory)

    def loaded_objects(self) -> list[str]:
        """Return lines about the program and the libraries that the process has loaded: see tracefiles/objects.py."""
        if self.origin.buffers != "perprocess":
            return []
        return objects.parse(self.contents(OBJECTS_FILE, native_trace.OBJECTS_BYTES))

    def raw_events(self) -> bytes:
        """Return the bytes of `.events`."""
        return os.pread(self._events_fd, ctf.EVENTS_MAX, 0)


def check_origin(origin: Origin, trace: Trace) -> None:
    """Check that the first line of `.events` is of this trace; ValueError.

    If its clocks contradicted those of other processes, viewers could not sort the events.
    """
    made = trace.made
    its = trace.name, trace.id, trace.boot, made.ticks, made.mono_ns, made.real_ns
    if (origin.trace, origin.id, origin.boot, origin.ticks, origin.mono, origin.real) != its:
        raise ValueError("its first line is of another trace")
    # Buffers from before the trace was made have the monotonic clock, and belong to one process, whatever the trace
    # says.
    if CLOCKS[origin.clock].number not in {native_trace.CLOCK_MONO, trace.clock}:
        raise ValueError(f"its clock is {origin.clock}, not the trace's")
    if origin.buffers not in {"perprocess", TRACE_OPTIONS["buffers"].format(trace.buffers)}:
        raise ValueError(f"its buffers are {origin.buffers}, not the trace's")


def _flush(buffer: native.Buffer) -> OSError | None:
    """Finish the current sub-buffer, if it has events, or losses to report; return the error if that failed.

    OSError: EBADMSG, it is damaged
    """
    try:
        stats = buffer.stats()
        # An unused sub-buffer is not flushed: in overwrite mode, the empty packet would replace the oldest one.
        is_used = stats.offset > stats.reserved_at_start
        # A process died while it began the sub-buffer.
        is_between = stats.records > 0 and stats.offset < stats.reserved_at_start
        # If all events were lost, as without memory for the buffer, an empty packet must carry their number.
        lost_all = not stats.records and not stats.produced and _refused(stats) > 0
        if is_used or is_between or lost_all:
            buffer.flush()
    except OSError as error:
        if error.errno == errno.EBADMSG:
            raise
        return error
    return None


def _refused(stats: native.Stats) -> int:
    return stats.lost_full_records + stats.lost_too_large_records + stats.lost_disabled_records
