"""One process's part of a trace, in the store."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.packets import Consumer
from relayfs_fuse.native.tables import TRACE_OPTIONS
from relayfs_fuse.record.check import Checker
from relayfs_fuse.record.trust import needs_check
from relayfs_fuse.tracefiles import ctf
from relayfs_fuse.tracefiles.ctf import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.record.sleeper import Sleepers
    from relayfs_fuse.tracefiles.ctf import Clocks, Declaration, Unbuffered

# Of a sub-buffer; one of a trace of larger ones may be as large as these.
_SUBBUF_BYTES_MAX = 64 << 20
# What passes when whoever is at work in a buffer has done it; and how long to wait until it is tried again.
_PASSING = (errno.EBUSY, errno.EDEADLK)
_PAUSE_S = 0.01
REMOVED = "it was removed before they could be read"
RESERVED = "somebody keeps a part of it reserved"
_CAUSES = {
    errno.EPERM: "this program may not run on that CPU",
    errno.EBUSY: RESERVED,
    errno.EDEADLK: "its lock is not released",
    errno.EPIPE: REMOVED,
}


class Process:
    """Map the buffers of a directory STORE/NAME/PROCESS-PID, and read what it tells about itself.

    OSError: it cannot be opened, or EBADMSG, EPROTO: it is damaged; ValueError: what it tells is not what the library
    writes for this trace.

    check: one of trust.CHECKS
    trace: which it is to be of; None: any
    n_subbufs, subbuf_size: how many sub-buffers a buffer has, and their bytes
    checker: checks its packets; None: they are to be trusted
    unfinished: by CPU, why flush() could not finish the sub-buffer that was being filled
    """

    def __init__(self, directory: str, check: str = "none", trace: Trace | None = None) -> None:
        self.directory = directory
        self.name = os.path.basename(directory)
        self._events_fd = os.open(
            os.path.join(directory, ".events"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        self.buffers: dict[int, Consumer] = {}
        self._n_events_bytes = self._n_told = -1
        self._events_at = 0
        self._declared: dict[int, Declaration] = {}
        self._baseline = 0
        self.unfinished: dict[int, str] = {}
        # By CPU, how many sub-buffers had been finished at the last note_finished().
        self._finished: dict[int, int] = {}
        self._unbuffered: Unbuffered = (0, 0)
        try:
            if not stat.S_ISREG(os.fstat(self._events_fd).st_mode):
                raise ValueError(".events is no regular file")
            line = os.pread(self._events_fd, ctf.LINE_BYTES, 0)
            self.origin = Origin.of(line)
            if trace:
                _check_origin(self.origin, trace)
            self._events_at = line.index(b"\n") + 1
            self.checker = Checker(self.origin) if needs_check(directory, self.origin, check) else None
            self._open_buffers()
            if self.checker and trace and self.subbuf_size > max(trace.subbuf_size, _SUBBUF_BYTES_MAX):
                raise ValueError(f"a sub-buffer of {self.subbuf_size} bytes; the trace's have {trace.subbuf_size}")
        except BaseException:
            self.close()
            raise

    def _open_buffers(self) -> None:
        channel = os.path.join(self.directory, "cpu")
        for cpu in sorted(int(name[3:]) for name in os.listdir(channel)):
            self.buffers[cpu] = Consumer(native.Buffer(os.path.join(channel, f"mem{cpu}")))
            # There may be more processes, times CPUs, than descriptors.
            self.buffers[cpu].buffer.close_descriptor()
        stats = [consumer.buffer.stats() for consumer in self.buffers.values()]
        self.n_subbufs = max(one.n_subbufs for one in stats)
        self.subbuf_size = max(one.subbuf_size for one in stats)
        self._file_bytes = min(one.file_bytes for one in stats)

    def close(self) -> None:
        """Unmap it."""
        os.close(self._events_fd)
        for consumer in self.buffers.values():
            consumer.buffer.close()

    def is_alive(self) -> bool:
        """Tell whether somebody writes to it, or will."""
        return native_trace.trace_is_alive(self.directory)

    def is_closed(self) -> bool:
        """Tell whether it was removed from the store: what is unread can be read still."""
        return len(self.closed_buffers()) == len(self.buffers)

    def has_ended(self) -> bool:
        """Tell whether nothing can come any more."""
        if self.is_closed():
            return True
        # Others may come to buffers of a user, or of all.
        return self.origin.buffers == "perprocess" and not self.is_alive()

    def close_after(self, sleepers: Sleepers) -> None:
        """Unmap it once nobody sleeps on it."""
        for consumer in self.buffers.values():
            sleepers.remove(consumer.buffer)
        self.close()

    def flush(self, until: float = 0.0) -> None:
        """Finish the sub-buffers that are being filled, so that they can be read; unfinished tells where that failed.

        until: so long, by time.monotonic(), it is tried again where somebody else is at work
        """
        self.unfinished.clear()
        for cpu, consumer in self.buffers.items():
            while error := _flush(consumer.buffer):
                if error.errno not in _PASSING or time.monotonic() >= until:
                    self.unfinished[cpu] = _CAUSES.get(error.errno or 0, error.strerror or "")
                    break
                time.sleep(_PAUSE_S)
        self.note_finished()

    def note_finished(self) -> None:
        """Note which sub-buffers are finished now."""
        self._finished = {cpu: consumer.buffer.stats().produced for cpu, consumer in self.buffers.items()}

    def is_unread(self, cpu: int) -> bool:
        """Tell whether a sub-buffer is unread that was finished at the last flush(), or note_finished()."""
        stats = self.buffers[cpu].buffer.stats()
        oldest = max(stats.consumed, stats.produced - stats.n_subbufs)
        return oldest < self._finished.get(cpu, 0)

    def is_held(self, cpu: int) -> bool:
        """Tell whether what is_unread() cannot be read, as a part of it is reserved; if drain() has found nothing."""
        stats = self.buffers[cpu].buffer.stats()
        is_overwritten = stats.produced - stats.consumed > stats.n_subbufs
        return self.is_unread(cpu) and not is_overwritten

    def n_unread(self, cpu: int) -> int:
        """Count the events in a buffer that have not been consumed."""
        return self.buffers[cpu].buffer.stats().unread_records

    def closed_buffers(self) -> list[int]:
        """Tell of which CPUs the buffers were removed from the store."""
        return [cpu for cpu, consumer in self.buffers.items() if consumer.buffer.state() & native.IS_CLOSED]

    def flush_idle(self) -> None:
        """Do so where nothing else is to be read: who writes little is seen soon."""
        for consumer in self.buffers.values():
            try:
                if consumer.buffer.stats().is_worth_a_flush:
                    consumer.buffer.flush()
            except OSError as error:
                # The other errors only put off what flush() does when the process, or the recording, ends.
                if error.errno == errno.EBADMSG:
                    raise

    def check_size(self) -> None:
        """Look whether the buffers have all their memory. ValueError: one was truncated.

        What is read there is zeros, since the library's guard against SIGBUS puts them there: an empty buffer.
        """
        for cpu in self.buffers:
            path = os.path.join(self.directory, "cpu", f"mem{cpu}")
            with suppress(FileNotFoundError):  # it was removed, and is read to its end
                if os.stat(path, follow_symlinks=False).st_size < self._file_bytes:
                    raise ValueError(f"mem{cpu} is truncated")

    def lost(self) -> dict[int, int]:
        """Count the events that each buffer has lost. ValueError: it cannot be so many."""
        lost = {}
        for cpu, consumer in self.buffers.items():
            stats = consumer.buffer.stats()
            lost[cpu] = stats.lost_records
            if lost[cpu] > native_trace.LOST_MAX:
                raise ValueError(f"cpu{cpu}: {lost[cpu]} events are said to be lost")
        return lost

    def has_new_metadata(self, clocks: Clocks, unbuffered: Unbuffered, at_end: bool = False) -> bool:
        """Tell whether metadata() would return something else, or much better, than the last time.

        The frequency of the time stamp counter is known the better, the longer it has been watched. If that is made
        anew each time it has been watched for twice as long, the error stays that of the first time. The events that
        programs lose for want of buffers are told when they are ten times as many, and at the end.
        """
        self.read_declarations()
        if len(self._declared) != self._n_told:
            return True
        if sum(unbuffered) > (1 if at_end else 10) * sum(self._unbuffered):
            return True
        return self.origin.is_tsc and clocks.mono_ns - self.origin.mono > 2 * self._baseline

    def metadata(self, clocks: Clocks, unbuffered: Unbuffered) -> bytes:
        """Return its metadata as of now."""
        self.read_declarations()
        self._n_told = len(self._declared)
        self._baseline = clocks.mono_ns - self.origin.mono
        self._unbuffered = unbuffered
        return ctf.preamble(self.origin, clocks, unbuffered) + b"".join(one.text for one in self._declared.values())

    def read_declarations(self) -> None:
        """Read what has been declared since the last time.

        What is read is not read again: the process may have changed what it has once said, which packets need that are
        recorded.
        """
        size = min(os.fstat(self._events_fd).st_size, ctf.EVENTS_MAX)
        if size == self._n_events_bytes:
            return
        new = os.pread(self._events_fd, max(0, size - self._events_at), self._events_at)
        declarations, end = ctf.declarations_from(new, 0)
        self._n_events_bytes = size
        self._events_at += end
        self.learn(declarations)

    def learn(self, declarations: Iterable[Declaration]) -> None:
        """Add declarations of events to those that are known, the first of each id."""
        new: dict[int, Declaration] = {}
        for one in declarations:
            if one.id not in self._declared:
                new.setdefault(one.id, one)
        self._declared |= new
        if self.checker:
            self.checker.learn(new.values())

    def raw_events(self) -> bytes:
        """Return what the process has written about its events, as it stands there."""
        return os.pread(self._events_fd, ctf.EVENTS_MAX, 0)


def _check_origin(origin: Origin, trace: Trace) -> None:
    """Refuse a line that is not of this trace: viewers put no two clocks into one order that contradict each other."""
    made = trace.made
    its = trace.name, trace.id, trace.boot, made.tsc, made.mono_ns, made.real_ns
    if (origin.trace, origin.id, origin.boot, origin.tsc, origin.mono, origin.real) != its:
        raise ValueError("its first line is of another trace")
    # Those of before the mount have the monotonic clock, and are of one process, whatever the trace is.
    if origin.is_tsc and trace.clock != native_trace.CLOCK_TSC:
        raise ValueError(f"its clock is {origin.clock}, not the trace's")
    if origin.buffers not in {"perprocess", TRACE_OPTIONS["buffers"].format(trace.buffers)}:
        raise ValueError(f"its buffers are {origin.buffers}, not the trace's")


def _flush(buffer: native.Buffer) -> OSError | None:
    """Finish the sub-buffer that is being filled, if it has anything to say; return why it is not finished.

    OSError: EBADMSG, it is damaged
    """
    try:
        stats = buffer.stats()
        # A flight recorder would lose its oldest events for a packet without any.
        is_used = stats.offset > stats.reserved_at_start
        is_between = stats.records > 0 and stats.offset < stats.reserved_at_start
        # Only a packet says that all events were lost, as for want of memory.
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
