"""Sleeping until a buffer has something to read.

A buffer wakes readers that sleep on its futex (native.Buffer.wait_any), but not in poll(2). So for a group of buffers
a thread sleeps, and wakes the recorder's loop through an eventfd. The thread uses the buffers only between start() and
its write to the eventfd; call stop() before unmapping one.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native

if TYPE_CHECKING:
    from relayfs_fuse.native import Buffer

# Sleep no longer than this, because a writer can be killed between writing and waking.
_TIMEOUT_MS = 1000


class Sleeper:
    """A thread that sleeps on some of the recorder's buffers.

    eventfd: written to when there may be something to read
    """

    def __init__(self, eventfd: int) -> None:
        self.buffers: list[Buffer] = []
        self._eventfd = eventfd
        self._word = native.WakeWord()
        self._job: tuple[list[Buffer], list[int], int] | None = None
        self._ends = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether start() may be called."""
        return self._job is None

    def arm(self) -> list[int]:
        """Request wake-ups, before checking for data; return the argument of start()."""
        return [buffer.arm(native.ARM_SWITCH) for buffer in self.buffers]

    def start(self, seqs: list[int]) -> None:
        """Sleep, unless a buffer has been written since arm()."""
        with self._changed:
            self._job = list(self.buffers), seqs, self._word.value
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop sleeping; return when the thread does not use the buffers any more."""
        self._word.change()
        with self._changed:
            self._changed.wait_for(lambda: self._job is None)

    def close(self) -> None:
        """End the thread."""
        self.stop()
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._ends)
                job = self._job
            if job is None:
                return
            try:
                native.Buffer.wait_any(job[0], job[1], self._word, job[2], _TIMEOUT_MS)
            except OSError:
                # A signal, or a file was truncated and its memory is gone: the recorder checks which.
                pass
            finally:
                with self._changed:
                    self._job = None
                    self._changed.notify_all()
                os.eventfd_write(self._eventfd, 1)


class Sleepers:
    """As many Sleeper threads as all buffers need."""

    def __init__(self) -> None:
        self.eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._sleepers: list[Sleeper] = []

    def add(self, buffer: Buffer) -> None:
        """Also sleep on this buffer, from the next start() on."""
        for sleeper in self._sleepers:
            if len(sleeper.buffers) < native.WAIT_MAX:
                break
        else:
            sleeper = Sleeper(self.eventfd)
            self._sleepers.append(sleeper)
        sleeper.stop()
        sleeper.buffers.append(buffer)

    def remove(self, buffer: Buffer) -> None:
        """Stop sleeping on a buffer, which may then be unmapped."""
        for sleeper in self._sleepers:
            if buffer in sleeper.buffers:
                sleeper.stop()
                sleeper.buffers.remove(buffer)

    def arm(self) -> list[tuple[Sleeper, list[int]]]:
        """Request wake-ups for all threads that do not sleep; return the argument of start()."""
        return [(sleeper, sleeper.arm()) for sleeper in self._sleepers if sleeper.is_idle and sleeper.buffers]

    @staticmethod
    def start(armed: list[tuple[Sleeper, list[int]]]) -> None:
        """Let the threads sleep; the eventfd becomes readable when one of them has been woken."""
        for sleeper, seqs in armed:
            sleeper.start(seqs)

    def wake(self) -> None:
        """Make the eventfd readable. May be called by signal handlers, also after close()."""
        if self.eventfd >= 0:
            os.eventfd_write(self.eventfd, 1)

    def clear(self) -> None:
        """Make the eventfd unreadable until the next wake-up."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)

    def close(self) -> None:
        """End all threads."""
        for sleeper in self._sleepers:
            sleeper.close()
        # A handler that is called now must not write to a file that gets the number of the descriptor.
        eventfd, self.eventfd = self.eventfd, -1
        os.close(eventfd)
