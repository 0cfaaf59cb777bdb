"""What one process (user, everybody) writes to a trace: a directory of the store, and what the mount shows of it.

    STORE/TRACE/PROCESS/          MNT/TRACE/PROCESS/    MNT/.channels/TRACE/PROCESS/
        .events                       metadata
        cpu/mem0 ..                   cpu0 ..               cpu/...

Its memory is mapped when somebody looks, for there can be thousands of them at whom nobody does.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.kinds.channel import StoredChannel
from relayfs_fuse.fs.nodes import Directory, MetadataFile, Node, StatsDirectory
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Process

log = logging.getLogger(__name__)

# So often a dead process's buffer is tried to be finished, which takes a second if somebody has spoiled its locks.
FAILURES_MAX = 3
# How long a recorder is given to say of a dead process that it has damaged its buffers.
DAMAGED_S = 30.0
# More than the first line of .events takes.
_LINE_MAX = 4096
# Declarations up to here are read at each stat(2).
_EXACT_MAX = 65536
# More than comes before the declarations.
_PREAMBLE_MAX = 8192
# Of a buffer that is of no use to anybody.
_SPOILED = (errno.EBADMSG, errno.EPROTO, errno.ENOENT)


class TraceChannel(StoredChannel):
    """The buffers of a directory of a trace.

    flush_interval_ms: how often they are flushed while somebody reads them; 0: never
    """

    def __init__(self, path: str, directory: str, flush_interval_ms: int) -> None:
        super().__init__(path, directory)
        self._flush_interval_ms = flush_interval_ms

    @property
    def flush_interval_ms(self) -> int:
        """As the trace has it; what its memory says is its process's."""
        return self._flush_interval_ms

    @property
    def is_being_read(self) -> bool:
        """Whether somebody has one of its relay files open to read."""
        return any(stored.readers for stored in self.buffers)


class TraceProcess:
    """One directory of a trace.

    trace, name: of which, and its own
    directory: where it lies in the store
    describe: makes metadata of what `.events` holds; ValueError: these are no events of the trace
    flush_interval_ms: see TraceChannel
    channel: its buffers, once somebody has looked at them
    """

    def __init__(
        self, trace: str, name: str, directory: str, describe: Callable[[bytes], bytes], flush_interval_ms: int
    ) -> None:
        self.trace = trace
        self.name = name
        self.directory = directory
        self._describe = describe
        self._flush_interval_ms = flush_interval_ms
        self.channel: TraceChannel | None = None
        self._nodes: list[Node] = []
        self._told: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._unfinished: dict[int, str] = {}
        self._has_said_unfinished = False
        self._left: dict[int, native.Stats | OSError | None] = {}
        self._found_damaged: float | None = None

    # ---------------------------------------------------------------- what the mount shows

    def show(self, tree: Tree, parent: Directory, stats_parent: Directory) -> Node:
        """Show it in two directories."""
        files = StatsDirectory(self.name, tree, self._files, n_directories=0)
        stats = StatsDirectory(self.name, tree, lambda: self._stats(tree), n_directories=1)
        self._nodes = [files, stats]
        tree.attach(parent, files)
        tree.attach(stats_parent, stats)
        return files

    def hide(self, tree: Tree, unregister: Callable[[StoredChannel], None]) -> None:
        """Show it no longer; who reads a file of it to its end may."""
        for node in self._nodes:
            tree.detach(node)
        channel, self.channel = self.channel, None
        if channel is not None:
            unregister(channel)
            channel.removed = True
            channel.buffers = ()

    def metadata(self) -> bytes:
        """Describe its events, in TSDL, as they are declared by now."""
        try:
            return self._describe(self._events())
        except ValueError as error:
            log.info("%s/%s: no metadata: %s", self.trace, self.name, error)
            return b""

    def metadata_length(self) -> int:
        """Tell how long metadata() is, or, where much is declared, how long it is at most: that takes no time."""
        length = os.stat(os.path.join(self.directory, ".events"), follow_symlinks=False).st_size
        if length <= _EXACT_MAX:
            return len(self.metadata())
        return _PREAMBLE_MAX + min(length, ctf.EVENTS_MAX)

    def _files(self) -> Iterator[Node]:
        yield MetadataFile("metadata", self.metadata, self.metadata_length)
        channel = self._map()
        if channel is not None:
            for stored in channel.buffers:
                yield RelayFile(f"cpu{stored.index}", stored)

    def _stats(self, tree: Tree) -> Iterator[Node]:
        channel = self._map()
        if channel is not None:
            yield StatsDirectory("cpu", tree, partial(tree.channel_stats, channel))

    def _map(self) -> StoredChannel | None:
        """Map its buffers, once; None: its process has damaged them."""
        if self.channel is None:
            try:
                self.channel = TraceChannel(
                    f"{self.trace}/{self.name}/cpu", os.path.join(self.directory, "cpu"), self._flush_interval_ms
                )
            except (StoreError, OSError) as error:
                log.info("%s/%s cannot be shown: %s", self.trace, self.name, error)
        return self.channel

    def _events(self, length: int = ctf.EVENTS_MAX) -> bytes:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(self.directory, ".events"), flags)
        try:
            return os.pread(descriptor, length, 0)
        finally:
            os.close(descriptor)

    # ---------------------------------------------------------------- what becomes of it; all of this blocks
    # A buffer is best flushed on its CPU: see visits() in jobs.py.

    def flush(self, cpu: int) -> None:
        """Finish the sub-buffer of a CPU if something is in it: only then can it be read."""
        _with_buffer(partial(self._open, cpu), _flush_used)

    def belongs_to(self, process: Process) -> bool:
        """Tell whether it is this very process's; whose it says it is, its owner may have written."""
        try:
            owner = os.stat(os.path.join(self.directory, ".events"), follow_symlinks=False).st_uid
            origin = ctf.Origin.of(self._events(_LINE_MAX))
        except (OSError, ValueError):
            return False
        is_named = (owner, origin.uid, origin.pid) == (process.uid, process.uid, process.pid)
        return is_named and origin.buffers == "perprocess" and native_trace.trace_is_alive(self.directory)

    def is_alive(self) -> bool:
        """Tell whether a process writes here, or is about to."""
        return native_trace.trace_is_alive(self.directory)

    def finish(self, cpu: int, closes: bool) -> None:
        """Finish what its process, which is dead, has begun in a CPU's buffer.

        closes: nobody else will write to it once all of it is consumed
        """
        self._left[cpu] = _with_buffer(partial(self._open, cpu), partial(self._finish, cpu, closes))

    def unfinished(self) -> str:
        """Say, once, what of its process, which is dead, cannot be read because it could not be finished."""
        if not self._unfinished or self._has_said_unfinished:
            return ""
        self._has_said_unfinished = True
        return f"{self.name} has ended, and what it wrote last cannot be read: {'; '.join(self._unfinished.values())}"

    def is_to_be_seen(self) -> bool:
        """Tell whether its process, which is dead, has damaged it, and a recorder is to have the time to see that."""
        if not any(isinstance(stats, OSError) for stats in self._left.values()):
            return False
        if self._found_damaged is None:
            self._found_damaged = time.monotonic()
        return time.monotonic() - self._found_damaged < DAMAGED_S

    def is_over(self, is_kept: bool) -> bool:
        """Tell whether all is consumed in the buffers that have been finished.

        is_kept: what nobody has read is not to go either: somebody may want to see the last of it
        """
        left = self._left.values()
        if any(stats is None for stats in left):
            return False
        seen = [stats for stats in left if stats and not isinstance(stats, OSError)]
        return not is_kept or any(stats.reads for stats in seen) or not any(stats.records for stats in seen)

    def _finish(self, cpu: int, closes: bool, buffer: native.Buffer) -> native.Stats | None:
        """Finish a buffer; return what is known when all of it is consumed, else None."""
        before = buffer.stats()
        # A packet more, though it be empty: only packets say what was lost.
        says_loss = cpu not in self._told and _lost(before) > 0
        if says_loss or _is_unfinished(before):
            failure = self._try_flush(cpu, buffer)
            if failure and self._failures[cpu] >= FAILURES_MAX:
                self._unfinished[cpu] = f"cpu{cpu}, with {before.unread_records} unread events: {failure}"
        stats = buffer.stats()
        if stats.produced != before.produced:
            self._told.add(cpu)
        # Behind what is finished there may be the room for the next packet's head.
        is_finished = stats.offset <= stats.reserved_at_start or self._failures[cpu] >= FAILURES_MAX
        if not is_finished or stats.produced != stats.consumed:
            return None
        if closes:
            buffer.stop(native.CLOSED, True)
        return stats

    def _try_flush(self, cpu: int, buffer: native.Buffer) -> str:
        """Finish what is begun; return why that failed."""
        try:
            buffer.flush()
        except OSError as error:
            if error.errno == errno.EPERM:  # the server may not run on that CPU; who reads it perhaps may
                raise
            self._failures[cpu] += 1
            held = "another program keeps its last sub-buffer from being finished"
            return held if error.errno == errno.EBUSY else error.strerror or str(error)
        return ""

    def _open(self, cpu: int) -> native.Buffer:
        """Map a buffer by the descriptor that there is: to open a protected file anew takes its protection away."""
        channel = self.channel
        buffers = channel.buffers if channel is not None else ()
        if cpu < len(buffers):
            return native.Buffer.of_descriptor(buffers[cpu].descriptor)
        return native.Buffer(os.path.join(self.directory, f"cpu/mem{cpu}"))


def _lost(stats: native.Stats) -> int:
    return stats.lost_full_records + stats.lost_too_large_records + stats.lost_disabled_records


def _is_unfinished(stats: native.Stats) -> bool:
    """Whether something is in its sub-buffer; or it has none, since who was to begin the next one was killed."""
    return stats.offset > stats.reserved_at_start or (stats.records > 0 and stats.offset < stats.reserved_at_start)


def _flush_used(buffer: native.Buffer) -> None:
    stats = buffer.stats()
    # Only a packet says that all events were lost, as for want of memory.
    lost_all = not stats.records and not stats.produced and _lost(stats) > 0
    if lost_all or _is_unfinished(stats):
        buffer.flush()


def _with_buffer(
    map_it: Callable[[], native.Buffer], act: Callable[[native.Buffer], native.Stats | None]
) -> native.Stats | OSError | None:
    """Map a buffer and do something with it.

    Returns what came of it. An error: its process has damaged it, and there is nothing to be had. None also if it
    cannot be told now.
    """
    try:
        buffer = map_it()
    except OSError as error:
        return error if error.errno in _SPOILED else None
    try:
        return act(buffer)
    except OSError as error:
        return error if error.errno in _SPOILED else None
    finally:
        buffer.close()
