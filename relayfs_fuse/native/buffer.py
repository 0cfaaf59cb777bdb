"""One relay buffer; see <relayfs/store.h>."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer as AnyBuffer

# The most buffers that relay_buf_wait_any() sleeps on.
WAIT_MAX = 127


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
        return self.largest_offset - self.start_reserve

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
    def passed_bytes(self) -> int:
        """As consumed_bytes, without discarded and torn records."""
        return self.consumed_bytes - self.discarded_bytes - self.lost_torn_bytes


class Buffer(library.Memory):
    """A mapped buffer of the store.

    mem_file: the path of its file
    """

    def __init__(self, mem_file: str) -> None:
        self._own(lib.relay_buf_open(os.fsencode(mem_file)), mem_file)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Self:
        """Map a file that is open for reading and writing; the descriptor stays the caller's."""
        buffer = cls.__new__(cls)
        buffer._own(lib.relay_buf_fdopen(descriptor), f"descriptor {descriptor}")
        return buffer

    def _own(self, pointer: Any, path: str) -> None:
        super().__init__(library.mapped(pointer, path))
        self.path = path
        self._seq = ffi.new("uint32_t *")
        self._count, self._time_ns = ffi.new("uint64_t *"), ffi.new("uint64_t *")

    def close(self) -> None:
        """Unmap the buffer."""
        lib.relay_buf_release(self._disown())

    @property
    def address(self) -> int:
        """The struct rchan_buf, for other C code."""
        return int(ffi.cast("uintptr_t", self._open))

    @property
    def pointer(self) -> Any:
        """The struct rchan_buf, for wait_any()."""
        return self._open

    def fileno(self) -> int:
        """Return the descriptor of its file."""
        return int(lib.relay_buf_fd(self._open))

    def close_descriptor(self) -> None:
        """Close the descriptor of its file, once: it stays mapped."""
        lib.relay_buf_close_fd(self._open)

    def stats(self) -> Stats:
        """Return all statistics at one moment."""
        stats = ffi.new("struct relay_stats *")
        self.check(lib.relay_buf_stats(self._open, stats))
        return Stats(stats)

    def state(self) -> int:
        """Return what there is to read, as HAS_ and IS_ bits."""
        return int(lib.relay_buf_state(self._open))

    def damage(self) -> str:
        """Describe the inconsistency in the memory, after EBADMSG or IS_DAMAGED; "" if there is none."""
        return os.fsdecode(ffi.string(lib.relay_buf_damage(self._open)))

    def write(self, data: AnyBuffer) -> None:
        """Write one record."""
        view = ffi.from_buffer(data)
        self.check(lib.relay_buf_write(self._open, view, len(view)))

    def refuse_too_large(self, length: int) -> None:
        """Count a record as too large, and raise the error that says so."""
        self.check(lib.relay_buf_refuse_too_large(self._open, length))

    def flush(self) -> None:
        """Switch to the next sub-buffer."""
        self.check(lib.relay_buf_flush(self._open))

    def reset(self) -> None:
        """Bring the buffer to its initial state."""
        self.check(lib.relay_buf_reset(self._open))

    def resume(self) -> None:
        """Resume the buffer, if it is suspended."""
        self.check(lib.relay_buf_resume(self._open))

    def stop(self, flag: int, on: bool) -> None:
        """Set or clear CLOSED or DISABLED."""
        self.check(lib.relay_buf_stop(self._open, flag, on))

    def subbufs_consumed(self, n: int) -> None:
        """Mark the next n sub-buffers as consumed."""
        self.check(lib.relay_buf_subbufs_consumed(self._open, n))

    def consume_to(self, at: int) -> None:
        """Consume all unread data before a stream position, without reading it."""
        self.check(lib.relay_consume_to(self._open, at))

    def resolve(self, token: int) -> int:
        """Resolve reservations made through the open file of this token; return their number."""
        return self.check(lib.relay_buf_resolve(self._open, token))

    def arm(self, what: int) -> int:
        """Request a wake-up; return the wake-up counter from before."""
        self.check(lib.relay_buf_arm(self._open, what, self._seq))
        return int(self._seq[0])

    def count_mapped(self, first: Buffer, opened: bool) -> None:
        """Count an open with which the buffer can be mapped, or the end of one.

        first: the channel's buffer 0
        """
        lib.relay_buf_count_mapped(self._open, first.pointer, opened)

    def forget_mapped(self, first: Buffer) -> None:
        """Count all such opens as ended."""
        lib.relay_buf_forget_mapped(self._open, first.pointer)

    def mtime(self) -> tuple[int, int]:
        """Return the last arguments of keep_mtime(); 0, 0: it was never called."""
        lib.relay_buf_mtime(self._open, self._count, self._time_ns)
        return int(self._count[0]), int(self._time_ns[0])

    def keep_mtime(self, count: int, time_ns: int) -> None:
        """Store, for the next file server, the bytes written so far and when this count was first seen."""
        lib.relay_buf_keep_mtime(self._open, count, time_ns)

    def wake_seq(self) -> int:
        """Return the wake-up counter."""
        return int(lib.relay_buf_wake_seq(self._open))


class WakeWord:
    """A word with which one thread ends the wait_any() of another."""

    def __init__(self) -> None:
        self.word = ffi.new("uint32_t *")

    @property
    def value(self) -> int:
        """The present value, for wait_any()."""
        return int(self.word[0])

    def change(self) -> None:
        """End the wait_any() that was called with the present value."""
        self.word[0] = (self.word[0] + 1) & 0xFFFFFFFF
        lib.relay_wake_word(self.word)


def wait_any(buffers: Sequence[Buffer], seqs: Sequence[int], word: WakeWord, value: int, timeout_ms: int) -> None:
    """Sleep until a wake-up counter or the word has changed, or the timeout has passed.

    buffers, seqs: at most WAIT_MAX buffers, and the counters that arm() returned
    value: the word's value when the buffers were chosen
    timeout_ms: -1: no timeout
    """
    c_buffers = ffi.new("struct rchan_buf *[]", [buffer.pointer for buffer in buffers])
    c_seqs = ffi.new("uint32_t[]", list(seqs))
    library.check(lib.relay_buf_wait_any(c_buffers, c_seqs, len(buffers), word.word, value, timeout_ms))
