"""One memory file of a channel, and what the server remembers of it."""

from __future__ import annotations

import errno
import logging
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from relayfs_fuse import native
from relayfs_fuse.native.ring import RingMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.store import StoredChannel

log = logging.getLogger(__name__)

Memory = TypeVar("Memory", bound=native.Buffer | RingMemory)


class Stored(Generic[Memory]):
    """One buffer or ring; it stays mapped as long as anybody refers to it.

    channel: the channel it belongs to
    index: which of the channel's
    buffer: its memory
    moved: a count that changes when data moves, as it is now
    backing: the kernel's number for mapping its file; None: not asked for yet; 0: cannot be had
    closed: are called, in another thread, once nobody refers to it, the memory is unmapped and its file closed
    """

    closed: tuple[Callable[[], object], ...] = ()

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory, moved: int) -> None:
        self.channel = channel
        self.index = index
        self.buffer: Memory = buffer
        self.backing: int | None = None
        self._moved, self._mtime_ns = buffer.mtime()
        if not 0 < self._mtime_ns <= time.time_ns():  # nobody has kept one, or somebody nonsense
            self._keep(moved, time.time_ns())
        self._mtime(moved)

    @property
    def mtime_ns(self) -> int:
        """When data last moved, as far as is known."""
        return self._mtime_ns

    def note(self, error: OSError) -> None:
        """Mark the channel as damaged if this error says so."""
        if error.errno == errno.EBADMSG:
            self.channel.note_damage(f"mem{self.index}: {self.buffer.damage() or error.strerror}")
            if isinstance(self.buffer, RingMemory):
                # Who went on writing would be told that records are written which nobody can reach.
                self.buffer.refuse_all()

    def note_state(self, state: int) -> None:
        """Mark the channel as damaged if a buffer's state says so."""
        if state & native.IS_DAMAGED:
            self.note(OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)))

    def _mtime(self, moved: int) -> int:
        """Tell when data last moved: at the latest when it was first seen to have moved."""
        if moved != self._moved:
            self._keep(moved, max(time.time_ns(), self._mtime_ns + 1))
        return self._mtime_ns

    def _keep(self, moved: int, mtime_ns: int) -> None:
        """Remember it, and let the next server know."""
        self._moved, self._mtime_ns = moved, mtime_ns
        self.buffer.keep_mtime(moved, mtime_ns)

    def __del__(self) -> None:
        # The last reference to a removed buffer frees its memory, which takes long when it is large.
        _unmapper.put(self.buffer.close, *self.closed)


def wait_until_unmapped(deadline_s: float) -> None:
    """Wait until what nobody refers to any more is unmapped, but not longer than this."""
    _unmapper.wait(deadline_s)


class _Unmapper:
    """Unmap memory in a thread of its own."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, *acts: Callable[[], object]) -> None:
        if sys.is_finalizing():
            return  # no thread can be started, and all memory is unmapped anyway
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unmapper", daemon=True)
            self._thread.start()
        for act in acts:
            self._queue.put(act)

    def wait(self, deadline_s: float) -> None:
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait(deadline_s)

    def _run(self) -> None:
        while True:
            try:
                self._queue.get()()
            except Exception:
                log.exception("a buffer could not be unmapped")


_unmapper = _Unmapper()
