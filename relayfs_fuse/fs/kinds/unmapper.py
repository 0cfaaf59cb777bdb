"""Unmap memory that nobody refers to any more, in a thread of its own: that takes long when it is large."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class _Unmapper:
    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, *acts: Callable[[], object]) -> None:
        """Have the thread do these, one after the other."""
        if sys.is_finalizing():
            return  # no thread can be started, and all memory is unmapped anyway
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unmapper", daemon=True)
            self._thread.start()
        for act in acts:
            self._queue.put(act)

    def wait(self, deadline_s: float) -> None:
        """Wait until what was put here is done, but not longer than this."""
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


unmapper = _Unmapper()
