"""One relay buffer; see <relayfs/store.h>."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.memory import ChannelMemory

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

    from relayfs_fuse.native.merge import Merge


# Bytes of struct relay_timed_head, which is before each record with `times`.
HEAD_BYTES = ffi.sizeof("struct relay_timed_head")


class Stats(library.Fields):
    """Statistics of a buffer: the fields of struct relay_stats, and values computed from them."""

    __slots__ = ()

    @property
    def reserved_at_start(self) -> int:
        """Bytes at the start of the current sub-buffer that records do not use."""
        return self.start_reserve + (0 if self.produced else self.channel_start_reserve)

    @property
    def largest_offset(self) -> int:
        """Offset in a sub-buffer up to which records are stored."""
        return self.subbuf_size - self.end_reserve

    @property
    def largest_record(self) -> int:
        """Bytes of the largest record that fits."""
        return self.largest_offset - self.start_reserve - (HEAD_BYTES if self.times else 0)

    @property
    def consumed_bytes(self) -> int:
        """Stream position of the next unread byte: the bytes written before it."""
        return self.bytes - self.unread_bytes

    @property
    def is_worth_a_flush(self) -> bool:
        """Whether a flush would give readers new data: there are records, but no finished sub-buffer is unread."""
        return self.offset > self.reserved_at_start and self.produced == self.consumed

    @property
    def unread_records(self) -> int:
        """Number of unread records, including those not committed yet."""
        lost = self.lost_overwritten_records + self.lost_torn_records
        return max(0, self.records - self.read_records - self.discarded_records - lost)

    @property
    def used_bytes(self) -> int:
        """Bytes that nobody can write to before they are read: a sub-buffer is free when all of it was read."""
        if not self.unread_bytes:
            return 0
        # In mode overwrite, readers can be behind by more than there is.
        finished = (self.produced - self.consumed) * self.subbuf_size
        return int(min(self.subbuf_size * self.n_subbufs, finished + self.offset))

    @property
    def passed_bytes(self) -> int:
        """As consumed_bytes, without discarded and torn records."""
        return self.consumed_bytes - self.discarded_bytes - self.lost_torn_bytes


class Buffer(ChannelMemory):
    """A mapped buffer of the store."""

    _from_path = lib.relay_buf_open
    _from_descriptor = lib.relay_buf_fdopen
    _unmap = lib.relay_buf_release
    _descriptor = lib.relay_buf_fd
    _close_descriptor = lib.relay_buf_close_fd
    _state = lib.relay_buf_state
    _damage = lib.relay_buf_damage
    _stop = lib.relay_buf_stop
    _resolve = lib.relay_buf_resolve
    _mtime = lib.relay_buf_mtime
    _keep_mtime = lib.relay_buf_keep_mtime
    _wake_seq = lib.relay_buf_wake_seq
    _wait_any = lib.relay_buf_wait_any
    _put = lib.relay_wait_set_put_buf
    _show = lib.relay_buf_show
    _show_pointer = ffi.addressof(lib, "relay_buf_show")
    _peeking = (
        lib.relay_buf_peek_open, lib.relay_buf_peek_copy, lib.relay_buf_peek_more, lib.relay_buf_peek_rewind,
        lib.relay_buf_peek_has_skipped, lib.relay_buf_peek_save, lib.relay_buf_peek_restore,
        lib.relay_buf_peek_close,
    )  # fmt: skip

    def stats(self) -> Stats:
        """Return all statistics at one moment."""
        stats = ffi.new("struct relay_stats *")
        self.check(lib.relay_buf_stats(self._open, stats))
        return Stats(stats)

    def ready(self) -> tuple[int, int]:
        """Return the events of poll(2), and a number that changes whenever more becomes readable; OSError: EBADMSG."""
        events = self.check(lib.relay_buf_ready(self._open, self._count))
        return events, int(self._count[0])

    def add_to(self, merge: Merge, process: int, cpu: int) -> None:
        """Add it to a merge."""
        merge.add_buffer(process, cpu, self, is_new=False)

    def write(self, data: AnyBuffer) -> None:
        """Write one record."""
        view = ffi.from_buffer(data)
        self.check(lib.relay_buf_write(self._open, view, len(view)))

    def read_records(self, size: int, most: int, into: memoryview | None = None) -> bytes:
        """Consume and return whole records of a buffer with `times`, without their heads; empty if there are none.

        size: the most bytes; OSError EMSGSIZE: the first record does not fit
        most: the most records; 0: as many as fit
        into: where they are copied first, at least `size` bytes; None: anywhere
        """
        data = ffi.new("char[]", size) if into is None else ffi.from_buffer("char[]", into)
        return bytes(ffi.buffer(data, self.check(lib.relay_buf_read_records(self._open, data, size, most))))

    def refuse_too_large(self, length: int) -> None:
        """Count a record as too large, and raise the error that says so."""
        self.check(lib.relay_buf_refuse_too_large(self._open, length))

    def has_left(self) -> bool:
        """Whether the process that writes to a trace, in its buffer 0, has noted that it ends its part in order."""
        return bool(lib.relay_buf_has_left(self._open))

    def flush(self) -> None:
        """Switch to the next sub-buffer."""
        self.check(lib.relay_buf_flush(self._open))

    def reset(self) -> None:
        """Bring the buffer to its initial state."""
        self.check(lib.relay_buf_reset(self._open))

    def resume(self) -> None:
        """Resume the buffer, if it is suspended."""
        self.check(lib.relay_buf_resume(self._open))

    def subbufs_consumed(self, n: int) -> None:
        """Mark the next n sub-buffers as consumed."""
        self.check(lib.relay_buf_subbufs_consumed(self._open, n))

    def consume_to(self, at: int) -> None:
        """Consume all unread data before a stream position, without reading it."""
        self.check(lib.relay_consume_to(self._open, at))

    def arm(self, what: int) -> int:
        """Request a wake-up; return the wake-up counter from before."""
        seq = ffi.new("uint32_t *")
        self.check(lib.relay_buf_arm(self._open, what, seq))
        return int(seq[0])

    def count_mapped(self, first: Buffer, opened: bool) -> None:
        """Count an open with which the buffer can be mapped, or the end of one.

        first: the channel's buffer 0
        """
        lib.relay_buf_count_mapped(self._open, first.pointer, opened)

    def forget_mapped(self, first: Buffer) -> None:
        """Count all such opens as ended."""
        lib.relay_buf_forget_mapped(self._open, first.pointer)
