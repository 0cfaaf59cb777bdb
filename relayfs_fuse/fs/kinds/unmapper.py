"""A thread that unmaps buffers which are not referenced any more: unmapping a large buffer takes long."""

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
        """Have the thread call these functions, one after the other."""
        if sys.is_finalizing():
            return  # no thread can be started any more; the kernel unmaps the memory when the process ends
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unmapper", daemon=True)
            self._thread.start()
        for act in acts:
            self._queue.put(act)

    def wait(self, deadline_s: float) -> None:
        """Wait until the thread has called all that was put before, but at most `deadline_s` seconds."""
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
