"""A directory of a trace: what one process writes (with buffers=peruser or shared, all processes of a user, or all).

    STORE/TRACE/PROCESS/          MNT/TRACE/PROCESS/    MNT/.channels/TRACE/PROCESS/
        .events                       metadata
        cpu/mem0 ..                   cpu0 ..               cpu/...

TraceProcess shows the directory in the mount, and finishes its buffers when the process has ended. The buffers are
mapped only when somebody looks into the directory, since there can be thousands of directories.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.kinds.channel import StoredChannel
from relayfs_fuse.fs.nodes import PROCESS_BITS, Directory, MetadataFile, Node, StatsDirectory
from relayfs_fuse.native import faults
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import ctf
from relayfs_fuse.tracefiles.losses import Intervals, counts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Process

log = logging.getLogger(__name__)

# How often the server tries to finish a buffer of a dead process. A try takes a second if the buffer's lock is damaged.
FAILURES_MAX = 3
# How long a damaged directory of a dead process stays, so that a recorder can report the damage.
DAMAGED_S = 30.0
# Bytes that are enough for the first line of .events.
_LINE_MAX = 4096
# If .events is not longer than this, stat(2) of `metadata` makes the metadata to find out its length.
_EXACT_MAX = 65536
# Bytes that are enough for the metadata before the declarations of events.
_PREAMBLE_MAX = 8192
# The errors of a buffer that can never be read.
_UNUSABLE = (errno.EBADMSG, errno.EPROTO, errno.ENOENT)


class TraceChannel(StoredChannel):
    """The buffers of a directory of a trace.

    flush_interval_ms: the interval at which they are flushed while somebody reads them; 0: never
    losses: those that the server has found before it mapped the buffers here
    """

    def __init__(self, path: str, directory: str, flush_interval_ms: int, losses: dict[int, Intervals]) -> None:
        super().__init__(path, directory)
        self._flush_interval_ms = flush_interval_ms
        self.losses = losses
        for stored in self.buffers:
            losses.setdefault(stored.index, Intervals())

    @property
    def flush_interval_ms(self) -> int:
        """The option of the trace; the value in the buffers may have been changed by the process."""
        return self._flush_interval_ms

    @property
    def is_being_read(self) -> bool:
        """Whether a relay file of it is open for reading."""
        return any(stored.readers for stored in self.buffers)


class TraceProcess:
    """One directory of a trace.

    trace: the name of the trace
    name: the name of the directory
    directory: its path in the store
    describe: returns the CTF metadata for the contents of `.events`; ValueError: these are no events of the trace
    flush_interval_ms: see TraceChannel
    channel: its buffers, once somebody has looked into the directory
    losses: by CPU, when its buffers have lost events
    awaits_card: whether the directory must stay until its crash card is made; see deaths.py
    seems_dead: whether is_alive() was found False
    """

    awaits_card = False
    seems_dead = False

    def __init__(
        self, trace: str, name: str, directory: str, describe: Callable[[bytes], bytes], flush_interval_ms: int
    ) -> None:
        self.trace = trace
        self.name = name
        self.directory = directory
        self._describe = describe
        self._flush_interval_ms = flush_interval_ms
        self.channel: TraceChannel | None = None
        self.losses: dict[int, Intervals] = {}
        self._nodes: list[Node] = []
        self._reported: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._unfinished: dict[int, str] = {}
        self._has_reported_unfinished = False
        self._results: dict[int, native.Stats | OSError | None] = {}
        self._found_damaged: float | None = None

    # ---------------------------------------------------------------- what the mount shows

    def show(self, tree: Tree, parent: Directory, stats_parent: Directory) -> Node:
        """Show it in a trace's directory and in one of .channels; return the node in the former."""
        files = StatsDirectory(self.name, tree, self._files, n_directories=0)
        stats = StatsDirectory(self.name, tree, lambda: self._stats(tree), n_directories=1, bits=PROCESS_BITS)
        self._nodes = [files, stats]
        tree.attach(parent, files)
        tree.attach(stats_parent, stats)
        return files

    def hide(self, tree: Tree, unregister: Callable[[StoredChannel], None]) -> None:
        """Remove it from the mount; open files of it can still be read.

        unregister: is called with its buffers, if they were mapped
        """
        for node in self._nodes:
            tree.detach(node)
        channel, self.channel = self.channel, None
        if channel is not None:
            unregister(channel)
            channel.removed = True
            channel.buffers = ()

    def metadata(self) -> bytes:
        """Return the CTF metadata (TSDL) of the events declared so far; b"" if `.events` is invalid."""
        try:
            return self._describe(self._events())
        except ValueError as error:
            log.info("%s/%s: no metadata: %s", self.trace, self.name, error)
            return b""

    def declarations(self, length: int) -> list[ctf.Declaration]:
        """Return the events declared in the first bytes of `.events`; none if it cannot be read."""
        try:
            return ctf.declarations(self._events(length))
        except OSError:
            return []

    def metadata_length(self) -> int:
        """Return the length of metadata() in bytes; if `.events` is long, an upper limit that costs nothing."""
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
        """Return its buffers, which are mapped at the first call; None: they cannot be mapped."""
        if self.channel is None:
            try:
                self.channel = TraceChannel(
                    f"{self.trace}/{self.name}/cpu",
                    os.path.join(self.directory, "cpu"),
                    self._flush_interval_ms,
                    self.losses,
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

    # ---------------------------------------------------------------- flushing and finishing; all of this may block
    # flush() and finish() are best called on the buffer's CPU: see each_cpu() in jobs.py.

    def flush(self, cpu: int) -> None:
        """Finish the current sub-buffer of a CPU if it has events, so that they can be read."""
        _with_buffer(partial(self.open_buffer, cpu), _flush_used)

    def belongs_to(self, process: Process) -> bool:
        """Whether this is the directory of a process that lives.

        `.events` may have been written by its owner, so the user it names is compared with the owner of the file.
        """
        try:
            owner = os.stat(os.path.join(self.directory, ".events"), follow_symlinks=False).st_uid
            origin = ctf.Origin.of(self._events(_LINE_MAX))
        except (OSError, ValueError):
            return False
        is_named = (owner, origin.uid, origin.pid) == (process.uid, process.uid, process.pid)
        return is_named and origin.buffers == "perprocess" and native_trace.trace_is_alive(self.directory)

    def is_alive(self) -> bool:
        """Whether a process that can write here lives."""
        return native_trace.trace_is_alive(self.directory)

    def look_for_losses(self, cpu: int) -> None:
        """Note what a CPU's buffer has lost since the last look; OSError. It is mapped only to be read."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(self.directory, f"cpu/mem{cpu}"), flags)
        asked_ns = time.time_ns()
        try:
            with closing(faults.view("relay", descriptor)) as memory:
                counts = counts_of("relay", memory.stats())
        finally:
            os.close(descriptor)
        self.losses.setdefault(cpu, Intervals()).look(counts, asked_ns)

    def finish(self, cpu: int, closes: bool) -> None:
        """Finish the last sub-buffer of a CPU's buffer, after the process has ended.

        closes: mark the buffer as closed when all of it is consumed, because no other process writes to it
        """
        self._results[cpu] = _with_buffer(partial(self.open_buffer, cpu), partial(self._finish, cpu, closes))

    def unfinished(self) -> str:
        """Return a message about buffers that could not be finished after the process has ended, once; otherwise ""."""
        if not self._unfinished or self._has_reported_unfinished:
            return ""
        self._has_reported_unfinished = True
        return f"{self.name} has ended, and what it wrote last cannot be read: {'; '.join(self._unfinished.values())}"

    def has_recent_damage(self) -> bool:
        """Whether finish() found damage less than DAMAGED_S ago, so that a recorder may still have to report it."""
        if not any(isinstance(stats, OSError) for stats in self._results.values()):
            return False
        if self._found_damaged is None:
            self._found_damaged = time.monotonic()
        return time.monotonic() - self._found_damaged < DAMAGED_S

    def is_consumed(self, is_kept: bool) -> bool:
        """Whether nothing is left to be read in any buffer that finish() was called for.

        is_kept: a buffer with events that has never been read counts as unread (mode overwrite): somebody may want the
            last events
        """
        left = self._results.values()
        if any(stats is None for stats in left):
            return False
        seen = [stats for stats in left if stats and not isinstance(stats, OSError)]
        return not is_kept or any(stats.reads for stats in seen) or not any(stats.records for stats in seen)

    def _finish(self, cpu: int, closes: bool, buffer: native.Buffer) -> native.Stats | None:
        """Finish a buffer; return its statistics if it is finished and all of it is consumed, else None."""
        before = buffer.stats()
        # If events were lost, one more packet is needed, even an empty one, because packets carry their number.
        reports_loss = cpu not in self._reported and _lost(before) > 0
        if reports_loss or _is_unfinished(before):
            failure = self._try_flush(cpu, buffer)
            if failure and self._failures[cpu] >= FAILURES_MAX:
                self._unfinished[cpu] = f"cpu{cpu}, with {before.unread_records} unread events: {failure}"
        stats = buffer.stats()
        if stats.produced != before.produced:
            self._reported.add(cpu)
        # In a finished buffer at most the header of the next packet is reserved.
        is_finished = stats.offset <= stats.reserved_at_start or self._failures[cpu] >= FAILURES_MAX
        if not is_finished or stats.produced != stats.consumed:
            return None
        if closes:
            buffer.stop(native.CLOSED, True)
        return stats

    def _try_flush(self, cpu: int, buffer: native.Buffer) -> str:
        """Flush a buffer; return why that failed, or "". OSError: EPERM."""
        try:
            buffer.flush()
        except OSError as error:
            if error.errno == errno.EPERM:  # the server may not run on that CPU, but a reader perhaps may
                raise
            self._failures[cpu] += 1
            held = "another program keeps its last sub-buffer from being finished"
            return held if error.errno == errno.EBUSY else error.strerror or str(error)
        return ""

    def open_buffer(self, cpu: int) -> native.Buffer:
        """Map a buffer, from the descriptor of `channel` if it is mapped there.

        A protected (immutable) file would have to lose its protection to be opened again.
        """
        channel = self.channel
        buffers = channel.buffers if channel is not None else ()
        if cpu < len(buffers):
            memory: native.Buffer = buffers[cpu].map_again()
            return memory
        return native.Buffer(os.path.join(self.directory, f"cpu/mem{cpu}"))


def _lost(stats: native.Stats) -> int:
    return stats.lost_full_records + stats.lost_too_large_records + stats.lost_disabled_records


def _is_unfinished(stats: native.Stats) -> bool:
    """Whether a buffer must be flushed: its sub-buffer has events, or the process died while it began the next one."""
    return stats.offset > stats.reserved_at_start or (stats.records > 0 and stats.offset < stats.reserved_at_start)


def _flush_used(buffer: native.Buffer) -> None:
    stats = buffer.stats()
    # If all events were lost, as without memory for the buffer, an empty packet must carry their number.
    lost_all = not stats.records and not stats.produced and _lost(stats) > 0
    if lost_all or _is_unfinished(stats):
        buffer.flush()


def _with_buffer(
    map_it: Callable[[], native.Buffer], act: Callable[[native.Buffer], native.Stats | None]
) -> native.Stats | OSError | None:
    """Map a buffer and call `act` with it.

    Returns what `act` returns. An OSError that is returned says that the buffer is damaged and can never be read; any
    other OSError counts as None, as the next call may succeed.
    """
    try:
        buffer = map_it()
    except OSError as error:
        return error if error.errno in _UNUSABLE else None
    try:
        return act(buffer)
    except OSError as error:
        return error if error.errno in _UNUSABLE else None
    finally:
        buffer.close()
