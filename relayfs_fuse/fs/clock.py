"""The clock of trio's loop, which has the tap wait in place of the loop (native/fuse/at_once.h)."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import trio

from relayfs_fuse.fs import at_once


class Clock(trio.abc.Clock):
    """trio's clock, in seconds. Before the loop waits for events, the tap does, which answers requests meanwhile.

    When no task is runnable, trio asks how long it is to wait. The answer comes when the tap has waited: then there is
    an event, or the time has come, and trio only looks.
    """

    def __init__(self) -> None:
        # The servers of several mounts do not turn at the same times.
        self._offset_s = os.getpid() % 100 / 100
        self._others = _event_polls()

    def start_clock(self) -> None:
        """Have the tap wait from now on for trio's descriptor of epoll(7), which trio has just made."""
        for descriptor in _event_polls() - self._others:
            at_once.wait_for(descriptor)

    def current_time(self) -> float:
        """Return the time."""
        return time.monotonic() + self._offset_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Wait until a time, or for an event, and return how long trio is to wait then."""
        wait_s = deadline - self.current_time()
        return 0 if at_once.wait(wait_s) else wait_s


def _event_polls() -> set[int]:
    """Return the descriptors of epoll(7) of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                found.add(int(name))
    return found
