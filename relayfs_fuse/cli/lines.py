"""Writing lines to the standard output: the last lines of the history, then all further ones, until a signal comes."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.inotify import Inotify

# A pipe that polls as writable takes so many bytes without blocking.
_CHUNK_BYTES = select.PIPE_BUF
# How long, after a signal, a write waits for a reader that takes nothing. So lines are not cut if the reader goes on.
_PATIENCE_MS = 1000
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):  # noqa: N818  # no error
    """A signal came while the output took nothing, or a second one."""


class Tail:
    """The last lines of a text that is added in pieces of whole lines.

    most: how many lines
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._n_lines = 0

    def add(self, piece: bytes) -> None:
        """Add a piece, and drop the pieces that have none of the last lines any more."""
        self._pieces.append((piece, piece.count(b"\n")))
        self._n_lines += self._pieces[-1][1]
        while self._n_lines - self._pieces[0][1] >= self._most:
            self._n_lines -= self._pieces.popleft()[1]
            if not self._pieces:
                return

    def lines(self) -> bytes:
        """Return the last lines."""
        text = b"".join(piece for piece, _ in self._pieces)
        at = 0
        for _ in range(self._n_lines - self._most):
            at = text.index(b"\n", at) + 1
        return text[at:]


class Lines:
    """The standard output, to which lines are written.

    n_last: how many of the last lines to write of those before end_history(); None: all
    handles_signals: note SIGINT, SIGQUIT, SIGTERM and SIGHUP in is_told_to_end; a second signal ends showing()

    n_written: how many bytes the output has taken

    BrokenPipeError: the reader has closed the pipe. Stopped: a signal came, and the output takes nothing.
    """

    def __init__(self, n_last: int | None, *, handles_signals: bool) -> None:
        self.is_told_to_end = False
        self.n_written = 0
        self._is_showing = False
        self._tail = None if n_last is None else Tail(n_last)
        self._stack = ExitStack()
        self._descriptor = sys.stdout.fileno()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stack.callback(os.close, self._woken)
        # Python ignores SIGPIPE, so a reader that has gone causes BrokenPipeError, and all files are closed properly.
        for signum in _SIGNALS if handles_signals else ():
            if signal.getsignal(signum) != signal.SIG_IGN:
                self._stack.callback(signal.signal, signum, signal.getsignal(signum))
                signal.signal(signum, self._note)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Have a second signal raise Stopped, once, in the body; elsewhere it is noted, and interrupts no cleanup."""
        self._is_showing = True
        try:
            yield
        finally:
            self._is_showing = False

    def _note(self, *_: object) -> None:
        if self.is_told_to_end and self._is_showing:
            self._is_showing = False
            raise Stopped
        self.is_told_to_end = True
        os.eventfd_write(self._woken, 1)

    def write(self, piece: memoryview) -> None:
        """Write lines."""
        if self._tail is not None:
            self._tail.add(bytes(piece))
        else:
            self._write(piece)

    def end_history(self) -> None:
        """Write the last n_last lines; later lines are written at once."""
        if self._tail is not None:
            self._write(memoryview(self._tail.lines()))
        self._tail = None

    def wait(self, seconds: float, inotify: Inotify | None) -> None:
        """Wait until the time has passed, a directory changes or a signal comes; BrokenPipeError: see Lines."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        poll.register(self._woken, select.POLLIN)
        if inotify is not None:
            poll.register(inotify, select.POLLIN)
        if self._descriptor in dict(poll.poll(1000 * seconds)):  # of it only errors are reported
            raise BrokenPipeError

    def _write(self, left: memoryview) -> None:
        while left:
            if not self._is_ready():
                raise Stopped
            with suppress(BlockingIOError):
                n = os.write(self._descriptor, left[:_CHUNK_BYTES])
                self.n_written += n
                left = left[n:]

    def _is_ready(self) -> bool:
        """Wait until the output takes data; False: a signal came, and it has taken none for _PATIENCE_MS since."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.register(self._woken, select.POLLIN)
        if self._descriptor in dict(poll.poll()):
            return True
        poll.unregister(self._woken)
        return bool(poll.poll(_PATIENCE_MS))
