"""Write and read record rings from Python."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relayfs_fuse.native import library
from relayfs_fuse.native import ring as native_ring
from relayfs_fuse.native.ring import RingsHandle, relay_rings_output
from relayfs_fuse.native.split import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer as AnyBuffer

# A wait is cut into pieces no longer than this, which also keeps it within an int of milliseconds.
_LONGEST_WAIT_S = 3600.0
# How long to wait for another consumer that holds a record, because its release wakes no other.
_BUSY_S = 0.001


_QUERIES = {
    "avail_data": native_ring.AVAIL_DATA,
    "ring_size": native_ring.RING_SIZE,
    "cons_pos": native_ring.CONS_POS,
    "prod_pos": native_ring.PROD_POS,
    "overwrite_pos": native_ring.OVERWRITE_POS,
}


class Ring(library.Closing):
    r"""Open the ring, or the rings of all CPUs, of a channel that was created with type=ring.

        with Ring("/mnt/relay/app/events") as ring:
            ring.output(b"hello")
            with ring.reserve(16) as record:
                record[:] = bytes(16)
            for record in ring.records(timeout=1):
                print(bytes(record))

    path: the path of its relay files without the number

    Methods raise OSError: EAGAIN, the ring is full, or the record is longer than the ring allows; ECANCELED, it is
    disabled; EPIPE, it was removed; EBADMSG, its memory is inconsistent. If the ring can only be used through the
    server, see relay_ring(3): EMSGSIZE, ENOMEM, EOPNOTSUPP.

    wakeup: False, do not wake sleeping readers for this record; True, wake them in any case; None, wake them if all
    records before this one have been consumed
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._open(path, None)

    @classmethod
    def create(cls, path: str | os.PathLike[str], **options: str | int) -> Ring:
        """Make a ring and open it; the ring remains after close().

        options: the keys of the control file's `create`, such as size="64K", mode="overwrite"
        """
        ring = cls.__new__(cls)
        ring._open(path, " ".join(f"{key}={value}" for key, value in options.items()))
        return ring

    def _open(self, path: str | os.PathLike[str], options: str | None) -> None:
        self.path = os.fspath(path)
        self.missed = 0
        self._next = 0
        self._handle = RingsHandle(self.path, options)
        self._pointer = self._handle.pointer

    # Python calls a function with a parameter that is only a keyword in a slower way.
    def output(self, data: AnyBuffer, wakeup: bool | None = None, will_retry: bool = False) -> None:
        """Write one record.

        data: bytes, or another object with a contiguous buffer
        will_retry: do not count the record as lost if there is no room (EAGAIN), because the caller will try again
        """
        # Bytes need no object of cffi, which takes longer to make than the call.
        if type(data) is bytes and wakeup is None and not will_retry:
            error = relay_rings_output(self._pointer, data, len(data), 0)
            if error:
                self._handle.refuse(error)
        else:
            self._handle.output(data, _flags(wakeup) | (native_ring.WILL_RETRY if will_retry else 0))

    def output_many(
        self,
        records: Iterable[AnyBuffer] | AnyBuffer,
        wakeup: bool | None = None,
        *,
        length: int | None = None,
        separator: bytes | None = None,
    ) -> int:
        """Write records in order; return the number written. See Channel.write_many()."""
        flags = _flags(wakeup)
        if length is None and separator is None and not isinstance(records, library.ONE_BUFFER):
            return self._handle.output_many(records, flags)  # type: ignore[arg-type]
        ends = {"length": length, "separator": separator, "flags": flags}
        return write_all(self._handle, records, **ends)  # type: ignore[arg-type]

    @contextmanager
    def reserve(self, length: int, wakeup: bool | None = None, *, will_retry: bool = False) -> Iterator[memoryview]:
        """Reserve a record to be filled in place; at the end it is committed, or, after an exception, discarded.

        will_retry: see output()
        """
        record, view = self._handle.reserve(length, native_ring.WILL_RETRY if will_retry else 0)
        try:
            yield view
        except BaseException:
            view.release()
            self._handle.discard(record, _flags(wakeup))
            raise
        view.release()
        self._handle.commit(record, _flags(wakeup))

    def __iter__(self) -> Iterator[memoryview]:
        return self.records()

    def records(self, timeout: float | None = None) -> Iterator[memoryview]:
        """Iterate over records in place, without a copy; each is consumed when the next step is taken.

        timeout: how many seconds a step waits before the iteration ends; None: until the ring was removed and
            all records have been read; 0: do not wait

        A view is valid until the next step; if there is no next step, the last record stays unread. Records of one ring
        come in order; records of different rings in any order. In overwrite mode records are copied, and `missed`
        counts those that were overwritten before they were read.
        """
        while (found := self._wait(timeout)) is not None:
            index, view = found
            try:
                yield view
            except BaseException:
                view.release()
                self._handle.abort(index)
                raise
            view.release()
            self._handle.release(index)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there is a record, or the ring was removed; False: the timeout, in seconds, has passed."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_WAIT_S if end is None else max(0.0, min(end - time.monotonic(), _LONGEST_WAIT_S))
            try:
                if self._handle.wait(int(left * 1000)):
                    return True
            except InterruptedError:
                continue  # Python's own signal handlers have run now
            if end is not None and time.monotonic() >= end:
                return False

    def query(self, what: str, cpu: int = 0) -> int:
        """Return avail_data, ring_size, cons_pos, prod_pos or overwrite_pos of one ring at this moment.

        cpu: whose ring, with buffers=percpu
        """
        return self._handle.query(cpu, _QUERIES[what])

    def close(self) -> None:
        """Close the ring; no thread may be using it."""
        self._pointer = library.NULL
        self._handle.close()

    def _wait(self, timeout: float | None) -> tuple[int, memoryview] | None:
        """Return the next record of any ring, and its ring; None: none came in time, or the ring has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        woken = False
        while True:
            try:
                found, finished = self._poll()
            except OSError as error:
                # Another consumer holds a record; without a timeout, wait for its release.
                if error.errno != errno.EBUSY or end is not None:
                    raise
                found, finished, woken = None, False, True
            if found or finished:
                return found
            if woken:
                # Another reader was faster, or the ring was removed while a record is being filled.
                if end is not None and time.monotonic() >= end:
                    return None
                time.sleep(_BUSY_S)
            woken = self.wait(None if end is None else max(0.0, end - time.monotonic()))
            if not woken:
                return None

    def _poll(self) -> tuple[tuple[int, memoryview] | None, bool]:
        """Check all rings, beginning after the last that had a record: the record; whether all rings have ended."""
        n_finished = 0
        for step in range(self._handle.n):
            index = (self._next + step) % self._handle.n
            try:
                view = self._next_of(index)
            except BrokenPipeError:
                n_finished += 1
                continue
            if view is not None:
                self._next = index + 1
                return (index, view), False
        return None, n_finished == self._handle.n

    def _next_of(self, index: int) -> memoryview | None:
        if not self._handle.overwrite:
            return self._handle.next(index)
        data, missed = self._handle.read(index, self._handle.query(index, native_ring.RING_SIZE))
        self.missed += missed
        return None if data is None else memoryview(data)


def _flags(wakeup: bool | None) -> int:
    if wakeup is None:
        return 0
    return native_ring.FORCE_WAKEUP if wakeup else native_ring.NO_WAKEUP
