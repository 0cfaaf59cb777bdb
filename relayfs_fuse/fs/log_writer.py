"""A log handler that writes in a thread of its own.

Writing a line of the log can block: on a pipe that nobody reads, a terminal that is stopped with ^S, syslog, or a busy
disk. The thread that answers requests must not wait for that. If LINES_MAX lines wait to be written, further ones are
dropped; the log says how many are missing, and where.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import threading

# How many lines can wait to be written.
LINES_MAX = 1000
# How long flush() waits for them, in seconds.
FLUSH_S = 1.0


class Lines(logging.Handler):
    """A handler that writes lines to a descriptor; blocks.

    It does not use sys.stderr: a thread that blocks in write(2) would hold the lock of sys.stderr, and Python waits for
    that lock when the program ends.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a line."""
        data = f"{self.format(record)}\n".encode(errors="backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]


class LogWriter(logging.handlers.QueueHandler):
    """A handler that passes records to another one, which may block, in a thread.

    target: the other handler, whose formatter is used
    """

    def __init__(self, target: logging.Handler) -> None:
        self._lines: queue.SimpleQueue[tuple[logging.LogRecord, int] | threading.Event] = queue.SimpleQueue()
        super().__init__(self._lines)
        self._target = target
        self._n_dropped = 0  # in total; only enqueue() changes it, and the handler's lock is held then
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, with the number of records dropped before; drop it if the queue is full."""
        if self._lines.qsize() < LINES_MAX:
            self._lines.put((record, self._n_dropped))
        else:
            self._n_dropped += 1

    def flush(self) -> None:
        """Wait until all records are written, but at most FLUSH_S."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(FLUSH_S)

    def _run(self) -> None:
        n_reported = 0
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                n_reported = self._report(self._n_dropped, n_reported)
                line.set()
                continue
            record, n_dropped = line
            n_reported = self._report(n_dropped, n_reported)
            if not self._write(record):
                n_reported -= 1  # this record is missing, too
            if self._lines.empty():
                n_reported = self._report(self._n_dropped, n_reported)

    def _report(self, n_dropped: int, n_reported: int) -> int:
        """Write how many lines are missing, if any; return how many missing lines the log has told of so far."""
        if n_dropped == n_reported:
            return n_reported
        message = f"{n_dropped - n_reported} lines of the log are missing here: they could not be written"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
        return n_dropped if self._write(record) else n_reported

    def _write(self, record: logging.LogRecord) -> bool:
        try:
            self._target.emit(record)
        except Exception:  # such as a full disk or a closed pipe; the next line may succeed
            return False
        return True
