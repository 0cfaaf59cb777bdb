"""Record rings; see <relayfs/ring.h> and <relayfs/ring_store.h>."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import constants, library
from relayfs_fuse.native.library import bytes_of, check, record
from relayfs_fuse.native.memory import WAIT_MAX, ChannelMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Buffer as AnyBuffer

    from relayfs_fuse.native.merge import Merge

NO_WAKEUP: int = lib.RELAY_RING_NO_WAKEUP
FORCE_WAKEUP: int = lib.RELAY_RING_FORCE_WAKEUP
WILL_RETRY: int = lib.RELAY_RING_WILL_RETRY
AVAIL_DATA: int = lib.RELAY_RING_AVAIL_DATA
RING_SIZE: int = lib.RELAY_RING_RING_SIZE
CONS_POS: int = lib.RELAY_RING_CONS_POS
PROD_POS: int = lib.RELAY_RING_PROD_POS
OVERWRITE_POS: int = lib.RELAY_RING_OVERWRITE_POS

# relay_rings_output() itself: of a handle's pointer, bytes, their number and flags; returns 0 or a negative errno.
relay_rings_output = lib.relay_rings_output

# Bytes of a record's header; a record takes a multiple of this.
HEADER_BYTES = 8
# Bytes of its time, with `times`, which is between header and record.
TIME_BYTES: int = lib.RELAY_RING_TIME_BYTES
_WORD = (1 << 64) - 1
# Bytes of the longest record that write(2) takes, by which records of programs that cannot map the ring are written.
_WRITE_MAX = (1 << 20) - 4096
# How often to look at the rings, if there are more than one call can wait for.
_LOOK_S = 0.005


class RingStats(library.Fields):
    """Statistics of a ring: the fields of struct relay_ring_stats, and values computed from them."""

    __slots__ = ()

    # What can be read needs no flush.
    flush_interval_ms = 0

    @property
    def n_buffers(self) -> int:
        """Number of rings of the channel."""
        return self.n_rings

    @property
    def largest_record(self) -> int:
        """Bytes of the largest record that fits."""
        return self.ring_size - HEADER_BYTES - (TIME_BYTES if self.times else 0)


def ring_file_bytes(ring_size: int) -> int:
    """Return the size of one ring's file in the store; 0: the ring size is not allowed."""
    return int(lib.relay_ring_file_bytes(ring_size)) if 0 < ring_size < 1 << 64 else 0


def ring_create(directory: str, spec: Mapping[str, int]) -> None:
    """Make rings with all their memory in a new directory.

    spec: the fields of struct relay_ring_spec that are not 0
    """
    c_spec = ffi.new("struct relay_ring_spec *", {**spec, "size": ffi.sizeof("struct relay_ring_spec")})
    check(lib.relay_ring_create(os.fsencode(directory), c_spec), directory)


def ring_hash(key: int, n: int) -> int:
    """Return the number of one of n rings, the same for the same key."""
    return int(lib.relay_ring_hash(key & 0xFFFFFFFFFFFFFFFF, n))


class RingMemory(ChannelMemory):
    """A mapped ring of the store."""

    _from_path = lib.relay_ring_open
    _from_descriptor = lib.relay_ring_fdopen
    _unmap = lib.relay_ring_close
    _descriptor = lib.relay_ring_fd
    _close_descriptor = lib.relay_ring_close_fd
    _state = lib.relay_ring_state
    _damage = lib.relay_ring_damage
    _stop = lib.relay_ring_stop
    _resolve = lib.relay_ring_resolve
    _mtime = lib.relay_ring_mtime
    _keep_mtime = lib.relay_ring_keep_mtime
    _wake_seq = lib.relay_ring_wake_seq
    _wait_any = lib.relay_ring_wait_any
    _put = lib.relay_wait_set_put_ring
    _show = lib.relay_ring_show
    _show_pointer = ffi.addressof(lib, "relay_ring_show")
    _peeking = (
        lib.relay_ring_peek_open, lib.relay_ring_peek_copy, lib.relay_ring_peek_more, lib.relay_ring_peek_rewind,
        lib.relay_ring_peek_has_skipped, lib.relay_ring_peek_save, lib.relay_ring_peek_restore,
        lib.relay_ring_peek_close,
    )  # fmt: skip

    def stats(self) -> RingStats:
        """Return all statistics at one moment."""
        stats = ffi.new("struct relay_ring_stats *")
        self.check(lib.relay_ring_stats(self._open, stats))
        return RingStats(stats)

    def add_to(self, merge: Merge, process: int, cpu: int) -> None:
        """Add it to a merge."""
        merge.add_ring(process, cpu, self)

    def skip(self) -> None:
        """Skip the discarded records before the next one, as a reader does; EBUSY: another reader is consuming."""
        self.check(lib.relay_ring_skip(self._open))

    def avail_data(self) -> int:
        """Bytes between consumer and producer position, at most the ring's size."""
        return int(lib.relay_ring_query(self._open, AVAIL_DATA))

    def consumed(self) -> int:
        """Return the consumer position."""
        return int(lib.relay_ring_query(self._open, CONS_POS))

    def write(self, data: AnyBuffer) -> None:
        """Write one record; ENOSPC: the ring is full; EMSGSIZE: the record is longer than the ring allows."""
        view = ffi.from_buffer(data)
        result = int(lib.relay_ring_output(self._open, view, len(view), 0))
        if result == -errno.EAGAIN:
            too_large = len(view) + HEADER_BYTES > self.stats().largest_record
            result = -errno.EMSGSIZE if too_large else -errno.ENOSPC
        self.check(result)

    def refuse_too_large(self, length: int) -> None:
        """Count a record as too large, and raise the error that says so."""
        result = int(lib.relay_ring_refuse(self._open, length))
        self.check(-errno.EMSGSIZE if result == -errno.EAGAIN else result)

    def read_framed(self, size: int, most: int = 0, into: memoryview | None = None) -> bytes:
        """Consume and return whole framed records; empty if there are none.

        size: the most bytes; OSError EMSGSIZE: the first record does not fit
        most: the most records; 0: as many as fit
        into: where they are copied first, at least `size` bytes; None: anywhere
        """
        data = ffi.new("char[]", size) if into is None else ffi.from_buffer("char[]", into)
        got = int(lib.relay_ring_read_framed(self._open, data, size, most))
        if got in (-errno.EAGAIN, -errno.EPIPE):
            return b""
        return bytes(ffi.buffer(data, self.check(got)))

    def parts(self, room: Callable[[int], memoryview]) -> RingParts | None:
        """Begin to copy the next record in parts; None: there is none. OSError: EBUSY, EBADMSG.

        room: returns so many bytes, to which it is copied
        """
        parts = ffi.new("struct relay_ring_parts *")
        got = int(lib.relay_ring_parts_begin(self._open, parts))
        return None if got in (-errno.EAGAIN, -errno.EPIPE) else RingParts(self, parts, room(max(self.check(got), 1)))

    def refuse_all(self) -> None:
        """Refuse records from now on, as in a disabled channel, without waiting for producers."""
        lib.relay_ring_refuse_all(self._open)

    def arm(self, what: int) -> int:  # noqa: ARG002  # a ring has one kind of wake-up
        """Request a wake-up; return the wake-up counter from before."""
        return int(lib.relay_ring_arm(self._open))


class Form(NamedTuple):
    """What is before each record in place of the framing: its length, and with `freq` before that its time.

    freq, offset_s, offset: as native.clock.conversion() returns them; 0: no times
    """

    freq: int = 0
    offset_s: int = 0
    offset: int = 0


class RingParts:
    """A copy of a record that is made in parts; OSError: ESTALE, the record was overwritten or consumed meanwhile.

    ring: the mapped ring, which stays the caller's
    parts: what relay_ring_parts_begin() has set
    data: where it is copied, with its framing
    """

    def __init__(self, ring: RingMemory, parts: Any, data: memoryview) -> None:
        self._ring = ring
        self._parts = parts
        self._data = data

    def copy(self, most: int) -> bool:
        """Copy the next bytes, at most so many; False: all are there."""
        with ffi.from_buffer(self._data) as to:
            return self._ring.check(lib.relay_ring_parts_copy(self._ring.pointer, self._parts, to, most)) > 0

    def consume(self) -> memoryview:
        """Consume the record, of which all was copied, and return it with its framing."""
        with ffi.from_buffer(self._data) as to:
            got = self._ring.check(lib.relay_ring_parts_consume(self._ring.pointer, self._parts, to))
        return self._data[:got]


class RingsHandle(library.Handle):
    """Attach to the rings of a channel.

    path: the path of its relay files without the number
    options: None to attach to an existing channel, else the keys after `create PATH type=ring`
    """

    def __init__(self, path: str, options: str | None = None) -> None:
        super().__init__(library.attached_or_made(path, options, lib.relay_rings_attach, lib.relay_rings_create))
        with library.closed_on_error(self):
            self._data = ffi.new("void **")
            self._length = ffi.new("size_t *")
            self._missed = ffi.new("uint64_t *")
            # For read(), because to allocate a ring's size for each record takes far longer than the record.
            self._copy = ffi.new("char[]", 0)
            self.n: int = self._open.n
            self.overwrite = self._overwrites(path)

    def _overwrites(self, path: str) -> bool:
        try:
            stats = self.stats(0)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise OSError(error.errno, error.strerror, path) from error
            self.is_mapped = False  # next() raises if the ring cannot be read
            return False
        self.is_mapped = True
        return bool(stats.mode == constants.MODE_OVERWRITE)

    def stats(self, index: int) -> RingStats:
        """Return the statistics of one ring; OSError: EOPNOTSUPP, it is not mapped; EBADMSG."""
        stats = ffi.new("struct relay_ring_stats *")
        check(lib.relay_ring_stats(self._open.ring[index], stats))
        return RingStats(stats)

    def identity(self, index: int) -> str:
        """Return a text that no other ring has, as long as its server runs."""
        status = os.fstat(lib.relay_ring_fd(self._open.ring[index]))
        return f"{status.st_dev}:{status.st_ino}"

    def close(self) -> None:
        """Close the rings."""
        lib.relay_rings_close(self._disown())

    def output(self, data: AnyBuffer, flags: int) -> None:
        """Write one record."""
        view = record(data)
        check(lib.relay_rings_output(self._open, view, len(view), flags))

    def output_many(self, records: Iterable[AnyBuffer], flags: int) -> int:
        """Write records in order, up to the first that is refused; return how many were written."""
        rings, found = self._open, [each if type(each) is bytes else bytes_of(each) for each in records]
        for n, each in enumerate(found):
            error = relay_rings_output(rings, each, len(each), flags)
            if error:
                return n or check(error)
        return len(found)

    @property
    def largest_record(self) -> int:
        """Bytes of a record that fits in any case."""
        return min(self.query(0, RING_SIZE) - 2 * HEADER_BYTES - TIME_BYTES, _WRITE_MAX)

    def writer(self) -> Callable[[bytes], int]:
        """Return a function that writes a record, and returns 0 or a negative errno; as ChannelHandle.writer()."""
        rings = ffi.gc(self._disown(), lib.relay_rings_close)
        write = lib.relay_rings_output

        def write_record(data: bytes) -> int:
            return write(rings, data, len(data), 0)  # type: ignore[no-any-return]

        return write_record

    def time(self, index: int) -> int:
        """Return the time of the last record of one ring, in ticks of the channel's clock; 0: it has none."""
        return int(lib.relay_ring_time(self._open.ring[index]))

    def reserve(self, length: int, flags: int) -> tuple[Any, memoryview]:
        """Reserve a record; return its handle for commit() and discard(), and its bytes."""
        record = library.not_null(lib.relay_rings_reserve(self._open, length, flags), "")
        return record, memoryview(ffi.buffer(record, length))

    def commit(self, record: Any, flags: int) -> None:
        """Commit a reservation."""
        check(lib.relay_ring_commit(record, flags))

    def discard(self, record: Any, flags: int) -> None:
        """Discard a reservation."""
        check(lib.relay_ring_discard(record, flags))

    def query(self, index: int, what: int) -> int:
        """Return AVAIL_DATA, RING_SIZE, CONS_POS, PROD_POS or OVERWRITE_POS of one ring."""
        return int(lib.relay_ring_query(self._open.ring[index], what))

    def next(self, index: int) -> memoryview | None:
        """Return the next record of one ring, in place; None: there is none."""
        if not check(lib.relay_ring_next(self._open.ring[index], self._data, self._length)):
            return None
        return memoryview(ffi.buffer(self._data[0], self._length[0])).toreadonly()

    def release(self, index: int) -> None:
        """Consume the records of next()."""
        lib.relay_ring_release(self._open.ring[index])

    def abort(self, index: int) -> None:
        """Leave the records of next() unread."""
        lib.relay_ring_abort(self._open.ring[index])

    def read(self, index: int, size: int) -> tuple[bytes | None, int]:
        """Copy and consume the next record, in any mode: it, or None, and the number overwritten before it."""
        if len(self._copy) < size:
            self._copy = ffi.new("char[]", size)
        self._missed[0] = 0
        got = int(lib.relay_ring_read(self._open.ring[index], self._copy, size, self._missed))
        if got == -errno.EAGAIN:
            return None, int(self._missed[0])
        return bytes(ffi.buffer(self._copy, check(got))), int(self._missed[0])

    def next_framed(self, index: int, size: int, form: Form | None = None) -> bytes | None:
        """Copy whole records of one ring, framed as read(2) returns them; b"": none; None: it has ended.

        They are consumed by release(), in overwrite mode at once.

        size: the most bytes
        form: what to copy in place of the framing

        OSError: EMSGSIZE, the first record is longer; EOPNOTSUPP: the ring is not mapped
        """
        data = ffi.new("char[]", size)
        pointer = ffi.NULL if form is None else ffi.new("struct relay_ring_form *", [number & _WORD for number in form])
        got = int(lib.relay_ring_next_framed(self._open.ring[index], pointer, data, size))
        if got in (-errno.EAGAIN, -errno.EPIPE):
            return None if got == -errno.EPIPE else b""
        return bytes(ffi.buffer(data, check(got)))

    def wait(self, timeout_ms: int) -> bool:
        """Sleep until a ring has a record, is closed or damaged."""
        if self.n <= WAIT_MAX:
            return bool(check(lib.relay_ring_wait(self._open.ring, self.n, timeout_ms)))
        end = time.monotonic() + timeout_ms / 1000
        while not any(
            check(lib.relay_ring_wait(self._open.ring + first, min(WAIT_MAX, self.n - first), 0))
            for first in range(0, self.n, WAIT_MAX)
        ):
            if timeout_ms >= 0 and time.monotonic() >= end:
                return False
            time.sleep(_LOOK_S)
        return True
