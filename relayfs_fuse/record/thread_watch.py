"""Looks at the names of recorded programs' threads from time to time, so that little time is spent on them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from relayfs_fuse.reading.threads import lock_holders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.record.recording import Recording

# The CPU time of a look after which the next process waits for the next look; meanwhile no buffer is read.
_LOOK_S = 0.01
# Of a CPU, looks take 1/_SHARE at most, because the next one is that long after it.
_SHARE = 50


class ThreadWatch:
    """Note the names of the threads of all processes that are recorded, one process after the other.

    recordings: by name; the recorder changes them
    """

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self._recordings = recordings
        self._waiting: deque[str] = deque()
        self._due = 0.0

    def look(self, *, is_last: bool = False) -> None:
        """Look at some processes, if it is time; is_last: at once, and at as many as a longer time permits."""
        if time.monotonic() < self._due and not is_last:
            return
        # On a busy machine, a look that is interrupted is none that takes long.
        began = time.thread_time()
        if is_last or not self._waiting:
            self._waiting = deque(self._recordings)
        until = began + _LOOK_S * (_SHARE if is_last else 1)
        holders = lock_holders() if self._waiting else {}
        while self._waiting and time.thread_time() < until:
            recording = self._recordings.get(self._waiting.popleft())
            if recording:
                recording.note_threads(holders)
        self._due = time.monotonic() + _SHARE * (time.thread_time() - began)
