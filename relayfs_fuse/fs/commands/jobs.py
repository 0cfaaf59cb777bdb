"""The jobs of commands, which run in worker threads; channel.py explains who runs them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.fs.kinds.base import Memory, Stored

# A command: yields jobs, and receives what they returned.
Work = Generator[Callable[[], Any], Any, None]
# A line of commands: also returns the path of the channel that it has removed, or None.
LineWork = Generator[Callable[[], Any], Any, str | None]

# How long a command tries to get a buffer's lock that a program holds, and the pause between two tries.
BUSY_S = 1.0
BUSY_PAUSE_S = 0.001


class LongJob:
    """A job that may wait for programs, which may be stopped or hostile: other commands may run meanwhile."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job

    def __call__(self) -> Any:
        """Call the job."""
        return self.job()


class Begun(Protocol):
    """A line that a dead server has begun."""

    @property
    def before(self) -> int:
        """Effect.before."""


class Effect:
    """A job whose effect is not to come twice, although a server that dies may have begun it.

    before: what the effect changes; see requests/journal.py
    """

    def __init__(self, job: Callable[[], Any], before: int = 0) -> None:
        self.job = job
        self.before = before

    def __call__(self) -> Any:
        """Call the job."""
        return self.job()


class LongEffect(LongJob, Effect):
    """An Effect that is a LongJob."""

    __init__ = Effect.__init__


def for_each(buffers: Sequence[Stored[Memory]], act: Callable[[Memory], None]) -> None:
    """Map each buffer again and call `act` with it; after all are done, raise the first OSError."""
    failure: OSError | None = None
    for stored in buffers:
        try:
            buffer = stored.map_again()
            try:
                _retry_while_busy(act, buffer)
            finally:
                buffer.close()
        except OSError as error:
            failure = failure or error
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # otherwise its traceback, which refers to this frame, keeps the buffers mapped


def _retry_while_busy(act: Callable[[Memory], None], buffer: Memory) -> None:
    """Call `act`, and again while it fails with EBUSY because a program reads or writes, for at most BUSY_S seconds."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return act(buffer)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_PAUSE_S)
