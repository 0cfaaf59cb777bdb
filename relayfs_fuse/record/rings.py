"""Recording the rings of a channel to files, one for each ring, with the interface of native.app.App.

A file has the records as `cat` of the relay file gives them, if that shows where each begins; see Form.

Records are consumed after they were written, so what could not be written is still in the ring. If the recorder is
killed in between, an extended attribute of the file tells the next one what it has to cut off: a part of a block, or a
block that the ring still has. In mode overwrite, records are consumed before, so a block of which only a part was
written is lost, and the next recorder counts it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.clock import conversion
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.ring import CONS_POS, PROD_POS, Form, RingsHandle
from relayfs_fuse.native.tables import RING_OPTIONS

if TYPE_CHECKING:
    from relayfs_fuse.native.ring import RingStats
    from relayfs_fuse.record.full import Limit

_BLOCK_BYTES = 256 << 10
# How long to sleep if nothing comes: then it is time to see whether to stop.
_WAIT_MS = 100
_BUSY_S = 0.001
# How long to try, in the end, if another reader is at work in a ring.
_BUSY_LAST_S = 1.0
# Of a file: the last block that was written to it, or is being written: the ring, its position, where the block begins
# in the file, and its length.
UNFINISHED = "user.relayfs.unfinished"
_RAW = RING_OPTIONS["framing"].words[0]


class RingsApp(Closing):
    """Append the records of the rings of a channel to the files OUTPUT0, OUTPUT1 ...

    path: the path of its relay files without the number
    output: what the paths of the files begin with
    form: what precedes each record in the files: "time,length", "length", or "": as its relay file has it
    limit: of the bytes of the files; None: any number

    OSError: it is no channel of rings, or cannot be used. RelayError: its rings cannot be mapped.
    """

    def __init__(self, path: str, output: str, limit: Limit | None = None) -> None:
        with ExitStack() as stack:
            self._rings = RingsHandle(path)
            stack.callback(self._rings.close)
            if not self._rings.is_mapped:
                raise RelayError(f"the rings of {path} cannot be mapped; relayctl cat --follow >FILE records them")
            self._form, self.form = form_of(self._rings.stats(0))
            self._files = [
                stack.enter_context(_File(f"{output}{i}", self._rings, i, limit)) for i in range(self._rings.n)
            ]
            self._stack = stack.pop_all()
        self._lost_before = self._lost()
        self._failure: Exception | None = None
        self._is_told_to_stop = False
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop it if it runs; close the rings and the files."""
        self._end()
        os.close(self._over)
        self._stack.close()

    def start(self) -> None:
        """Start to write what is in the rings, and what comes."""
        self._failure, self._is_told_to_stop = None, False
        self._lost_before = self._lost()
        for file in self._files:
            file.n_written = 0
        with suppress(BlockingIOError):
            os.eventfd_read(self._over)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what the rings have now, and end; OSError: why a ring could not be read or written to its end.

        LimitError: the files would take more than they may
        """
        self._end()
        if self._failure is not None:
            raise self._failure

    def fileno(self) -> int:
        """Return a descriptor that is readable when the channel was removed and all is written, or after an error."""
        return self._over

    def _run(self) -> None:
        try:
            while not self._is_over():
                with suppress(InterruptedError):  # by SIGCONT, for example
                    self._rings.wait(_WAIT_MS)
                if not self._write():
                    time.sleep(_BUSY_S)  # another reader has it, or a record is reserved in a channel that was removed
            self._drain()
        except Exception as error:  # stop() raises it
            self._failure = error
        os.eventfd_write(self._over, 1)

    def _end(self) -> None:
        self._is_told_to_stop = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _is_over(self) -> bool:
        return self._is_told_to_stop or all(file.is_over for file in self._files)

    def _drain(self) -> None:
        """Write what was reserved by now, since producers go on; OSError: EBUSY, another reader is at work for long."""
        deadline = time.monotonic() + _BUSY_LAST_S
        busy = []
        for index, file in enumerate(self._files):
            until = self._rings.query(index, PROD_POS)
            while self._rings.query(index, CONS_POS) < until and (file.write(self._form) or file.is_busy):
                if file.is_busy and time.monotonic() > deadline:
                    busy.append(index)
                    break
                time.sleep(_BUSY_S * file.is_busy)
        if busy:
            raise OSError(errno.EBUSY, f"another reader keeps ring {', '.join(map(str, busy))}")

    def _write(self) -> bool:
        """Write what is there, at most a block of each ring; False: there is none."""
        return sum(file.write(self._form) for file in self._files) > 0

    @property
    def n_buffers(self) -> int:
        """The number of rings, and so of files."""
        return self._rings.n

    def stats(self) -> tuple[int, int]:
        """Return how many bytes were written, and how many records were lost, since start()."""
        return sum(file.n_written for file in self._files), self._lost() - self._lost_before

    @property
    def unwritten(self) -> int:
        """How many bytes were consumed, and could not be written."""
        return sum(file.n_unwritten for file in self._files)

    def _lost(self) -> int:
        return sum(int(self._rings.stats(i).lost_records) for i in range(self._rings.n))


def form_of(stats: RingStats) -> tuple[Form | None, str]:
    """Return how records of a ring are written, and the text of that, as RingsApp.form."""
    if stats.times:
        return Form(*conversion(stats.times)), "time,length"
    if RING_OPTIONS["framing"].format(stats.framing) == _RAW:
        return Form(), "length"
    return None, ""


class _File(Closing):
    """A file, and the ring whose records are appended to it.

    is_over: whether the channel was removed, and all was written
    is_busy: whether another reader was at work at the last write()
    n_written: bytes; n_unwritten: bytes that were consumed and not written, also by a recorder that was killed
    """

    def __init__(self, path: str, rings: RingsHandle, index: int, limit: Limit | None) -> None:
        self.is_over = self.is_busy = False
        self.n_written = self.n_unwritten = 0
        self._path = path
        self._rings = rings
        self._index = index
        self._limit = limit
        self._size = _BLOCK_BYTES
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._end = os.fstat(self._file).st_size
        self._cut()

    def close(self) -> None:
        """Close it."""
        with suppress(OSError):
            os.removexattr(self._file, UNFINISHED)
        os.close(self._file)

    def write(self, form: Form | None) -> bool:
        """Write what is there, at most a block, and consume it; False: nothing is there, or another reader at work."""
        self.is_busy = False
        size = self._limit.room(self._size, self._path) if self._limit else self._size
        try:
            block = self._rings.next_framed(self._index, size, form)
        except OSError as error:
            self.is_busy = error.errno == errno.EBUSY
            if error.errno == errno.EMSGSIZE:
                if self._limit and size < self._size:
                    raise self._limit.error(f"a record of more than {size} bytes has no room", self._path) from error
                self._size *= 2
            elif not self.is_busy:
                raise
            return not self.is_busy
        self.is_over = block is None
        if not block:
            self._rings.release(self._index)
            return False
        try:
            self._append(block)
        except OSError as error:
            self._rings.abort(self._index)
            with suppress(OSError):  # of a pipe, nothing can be taken back
                os.ftruncate(self._file, self._end)
            self.n_unwritten += self._rings.overwrite * len(block)
            raise OSError(error.errno, error.strerror, self._path) from error
        self._rings.release(self._index)
        if self._limit:
            self._limit.count(len(block))
        self._end += len(block)
        self.n_written += len(block)
        return True

    def _append(self, block: bytes) -> None:
        with suppress(OSError):  # it is no file that has attributes
            # In overwrite mode the ring does not have the block any more, so it is kept if it is whole.
            position = -1 if self._rings.overwrite else self._rings.query(self._index, CONS_POS)
            words = self._rings.identity(self._index), position, self._end, len(block)
            os.setxattr(self._file, UNFINISHED, " ".join(map(str, words)).encode())
        left = memoryview(block)
        while left:
            left = left[os.write(self._file, left) :]

    def _cut(self) -> None:
        """Cut off what the last recorder has written as a part of a block, or has not consumed."""
        try:
            identity, position, end, length = os.getxattr(self._file, UNFINISHED).decode().split()
        except (OSError, ValueError):
            return
        is_ours = identity == self._rings.identity(self._index)
        is_whole = self._end >= int(end) + int(length)
        if not is_whole and int(position) < 0:
            self.n_unwritten += int(length)
        if not is_whole or (is_ours and self._rings.query(self._index, CONS_POS) <= int(position)):
            self._end = min(self._end, int(end))
            os.ftruncate(self._file, self._end)
