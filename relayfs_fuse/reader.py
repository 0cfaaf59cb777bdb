"""Read a relay file from Python without copying it."""

from __future__ import annotations

import errno
import os
import time

from relayfs_fuse.native import ReaderHandle, library

# A wait is cut into pieces no longer than this, which also keeps it within an int of milliseconds.
_LONGEST_WAIT_S = 3600.0


class Reader(library.Closing):
    """Iterate over the data of one relay file, piece by piece.

        with Reader("/mnt/relay/app/cpu0") as reader:
            for piece in reader:
                out.write(piece)

    relay_file: its path
    timeout: how many seconds a step waits for data before the iteration ends; None: for ever; 0: do not wait

    Each piece is a memoryview of part of one sub-buffer, whole records, inside the shared memory. It is valid until
    the next step, which consumes it; then the view is released. The iteration also ends when the channel has been
    removed and all data has been read.

    In overwrite mode producers may overwrite a piece while it is read. A program that needs to know copies the piece
    and calls done(), which returns whether the copy is good; `lapped` counts the pieces that were overwritten.

    The constructor raises OSError: ENOENT, there is no such relay file; EISDIR, EMEDIUMTYPE, it is a directory or
    belongs to a ring; EACCES, this user may not read and write it; EPROTO, EBADMSG, its memory is of another version or
    damaged. A step raises OSError: EBADMSG; EBUSY, another reader was consuming until the timeout. One thread may use a
    Reader. relayfs_fuse.open() reads whole channels, and gives copies of single records if marks are between them.
    """

    def __init__(self, relay_file: str | os.PathLike[str], timeout: float | None = None) -> None:
        self.path = os.fspath(relay_file)
        self.timeout = timeout
        self.lapped = 0
        self._piece: memoryview | None = None
        self._handle = ReaderHandle(self.path)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> memoryview:
        self.done()
        self._piece = self._wait()
        if self._piece is None:
            raise StopIteration
        return self._piece

    def done(self) -> bool:
        """Consume the piece now; return whether it was not overwritten until then."""
        if self._piece is None:
            return True
        self._piece.release()
        self._piece = None
        try:
            self._handle.done()
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            self.lapped += 1
            return False
        return True

    @property
    def finished(self) -> bool:
        """Whether the channel was removed and all data has been read."""
        return self._handle.finished()

    def close(self) -> None:
        """Close the file; a piece that was not consumed stays for the next reader."""
        if self._piece is not None:
            self._piece.release()
            self._piece = None
        self._handle.close()

    def _wait(self) -> memoryview | None:
        end = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            left = _LONGEST_WAIT_S if end is None else max(0.0, min(end - time.monotonic(), _LONGEST_WAIT_S))
            try:
                piece = self._handle.next(int(left * 1000))
            except InterruptedError:
                continue  # Python's own signal handlers have run now
            except OSError as error:
                # Another reader was consuming all the time; without a timeout, wait for it.
                if error.errno != errno.EBUSY or end is not None:
                    raise
                continue
            if piece is not None or self._handle.finished():
                return piece
            if end is not None and time.monotonic() >= end:
                return None
