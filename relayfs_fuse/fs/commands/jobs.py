"""What commands do in worker threads; see channel.py."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.fs.kinds.base import Memory, Stored

Work = Generator[Callable[[], Any], Any, None]
# That of a line, which returns the path of the channel that it has removed.
LineWork = Generator[Callable[[], Any], Any, str | None]

# How long a command waits for a program that holds a buffer's lock, and how often it looks.
BUSY_S = 1.0
BUSY_PAUSE_S = 0.001


class Patient:
    """A job that waits for programs which may be stopped, or hostile: names may change while it runs."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job

    def __call__(self) -> Any:
        """Do it."""
        return self.job()


def for_each(map_anew: Callable[[int], Memory], buffers: Sequence[Stored[Any]], act: Callable[[Memory], None]) -> None:
    """Map each of these buffers anew, and do something with it; raise the first failure after all are done.

    Not by their paths: the channel may be removed meanwhile, and another one made of the same path.
    """
    failure: OSError | None = None
    for stored in buffers:
        try:
            buffer = map_anew(stored.descriptor)
            try:
                _act_patiently(act, buffer)
            finally:
                buffer.close()
        except OSError as error:
            failure = failure or error
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # else its traceback, which knows this frame, keeps the buffers mapped


def _act_patiently(act: Callable[[Memory], None], buffer: Memory) -> None:
    """Wait for a program that reads or writes this very moment; not for ever."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return act(buffer)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise
        time.sleep(BUSY_PAUSE_S)
