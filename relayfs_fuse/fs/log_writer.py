"""The server's log, written by a thread of its own.

Whatever takes the lines may stand still: a pipe that nobody reads, a terminal that is stopped with ^S, a syslog, a busy
disk. The thread that answers requests does not wait for it. Lines that come faster than they are written are dropped;
where they are missing the log says how many they were.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import threading

# So many lines wait to be written at most.
LINES_MAX = 1000
# How long the end of the server is put off for them.
FLUSH_S = 1.0


class Lines(logging.Handler):
    """Write lines to a descriptor; blocks.

    Not through sys.stderr, because a thread that is held up in a write(2) keeps its lock, and a program that ends waits
    for that.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        data = f"{self.format(record)}\n".encode(errors="backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]


class LogWriter(logging.handlers.QueueHandler):
    """Have a thread give records to a handler that may block.

    target: that handler; its formatter is used
    """

    def __init__(self, target: logging.Handler) -> None:
        self._lines: queue.SimpleQueue[tuple[logging.LogRecord, int] | threading.Event] = queue.SimpleQueue()
        super().__init__(self._lines)
        self._target = target
        self._n_dropped = 0  # since the beginning; only enqueue() changes it, under the handler's lock
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand over a record; with it goes how many have been dropped before."""
        if self._lines.qsize() < LINES_MAX:
            self._lines.put((record, self._n_dropped))
        else:
            self._n_dropped += 1

    def flush(self) -> None:
        """Wait until all is written, but not for ever."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(FLUSH_S)

    def _run(self) -> None:
        n_told = 0
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                n_told = self._tell(self._n_dropped, n_told)
                line.set()
                continue
            record, n_dropped = line
            n_told = self._tell(n_dropped, n_told)
            if not self._write(record):
                n_told -= 1  # one more to tell of
            if self._lines.empty():
                n_told = self._tell(self._n_dropped, n_told)

    def _tell(self, n_dropped: int, n_told: int) -> int:
        """Say how many lines are missing here; return how many have been told of now."""
        if n_dropped == n_told:
            return n_told
        message = f"{n_dropped - n_told} lines of the log are missing here: they could not be written"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
        return n_dropped if self._write(record) else n_told

    def _write(self, record: logging.LogRecord) -> bool:
        try:
            self._target.emit(record)
        except Exception:  # the disk is full, or nobody will ever read the pipe: the next lines are tried all the same
            return False
        return True
