"""Sleeping until a buffer has something to read.

Buffers wake who sleeps on their counters (native.wait_any), not poll(2). So a thread for each group of buffers does the
sleeping, and tells the recorder's loop by an eventfd. It touches the buffers only between start() and the moment it has
told, so whoever wants to unmap one calls stop() first.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native

if TYPE_CHECKING:
    from relayfs_fuse.native import Buffer

# A writer can be killed between writing and waking.
_PATIENCE_MS = 1000


class Sleeper:
    """Sleep on some of the recorder's buffers.

    eventfd: is written to when there is something to read, or might be
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
        """Ask for wake-ups, before looking whether there is something to read; return what start() wants."""
        return [buffer.arm(native.ARM_SWITCH) for buffer in self.buffers]

    def start(self, seqs: list[int]) -> None:
        """Sleep, if nothing has come since arm()."""
        with self._changed:
            self._job = list(self.buffers), seqs, self._word.value
            self._changed.notify_all()

    def stop(self) -> None:
        """Sleep no more; return when the buffers are not used any longer."""
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
                native.wait_any(job[0], job[1], self._word, job[2], _PATIENCE_MS)
            except OSError:
                # A signal; or some word's memory is gone, as its file was truncated: the recorder looks which.
                pass
            finally:
                with self._changed:
                    self._job = None
                    self._changed.notify_all()
                os.eventfd_write(self._eventfd, 1)


class Sleepers:
    """As many as it takes for all buffers."""

    def __init__(self) -> None:
        self.eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._sleepers: list[Sleeper] = []

    def add(self, buffer: Buffer) -> None:
        """Sleep on this one, too, from the next start() on."""
        for sleeper in self._sleepers:
            if len(sleeper.buffers) < native.WAIT_MAX:
                break
        else:
            sleeper = Sleeper(self.eventfd)
            self._sleepers.append(sleeper)
        sleeper.stop()
        sleeper.buffers.append(buffer)

    def remove(self, buffer: Buffer) -> None:
        """Sleep on it no more: it may be unmapped now."""
        for sleeper in self._sleepers:
            if buffer in sleeper.buffers:
                sleeper.stop()
                sleeper.buffers.remove(buffer)

    def arm(self) -> list[tuple[Sleeper, list[int]]]:
        """Ask for wake-ups of all that do not sleep."""
        return [(sleeper, sleeper.arm()) for sleeper in self._sleepers if sleeper.is_idle and sleeper.buffers]

    @staticmethod
    def start(armed: list[tuple[Sleeper, list[int]]]) -> None:
        """Let them sleep; the eventfd tells when one of them has been woken."""
        for sleeper, seqs in armed:
            sleeper.start(seqs)

    def wake(self) -> None:
        """Make the eventfd readable; signal handlers may."""
        os.eventfd_write(self.eventfd, 1)

    def heard(self) -> None:
        """Make the eventfd unreadable until the next wake-up."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)

    def close(self) -> None:
        """End all threads."""
        for sleeper in self._sleepers:
            sleeper.close()
        os.close(self.eventfd)
