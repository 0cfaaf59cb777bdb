"""One relay buffer; see <relayfs/store.h>."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer as AnyBuffer

# relay_buf_wait_any() sleeps on so many buffers at once.
WAIT_MAX = 127


class Stats(library.Fields):
    """Everything there is to know of a buffer: the fields of struct relay_stats, and what follows from them."""

    __slots__ = ()

    @property
    def reserved_at_start(self) -> int:
        """Count the bytes at the start of the current sub-buffer that no record takes."""
        return self.start_reserve + (0 if self.produced else self.channel_start_reserve)

    @property
    def largest_offset(self) -> int:
        """Tell where the end of a sub-buffer begins that no record takes."""
        return self.subbuf_size - self.end_reserve

    @property
    def largest_record(self) -> int:
        """Count the bytes of the largest record that fits."""
        return self.largest_offset - self.start_reserve

    @property
    def consumed_bytes(self) -> int:
        """Count the bytes before what is unread: the stream position of the next one."""
        return self.bytes - self.unread_bytes

    @property
    def is_worth_a_flush(self) -> bool:
        """Whether a reader would get something by it that he has no other way to get: nothing finished is unread."""
        return self.offset > self.reserved_at_start and self.produced == self.consumed

    @property
    def unread_records(self) -> int:
        """Count the records that are there to be read, or will be."""
        lost = self.lost_overwritten_records + self.lost_torn_records
        return max(0, self.records - self.read_records - self.discarded_records - lost)

    @property
    def passed_bytes(self) -> int:
        """Count the same without those of reservations that came to nothing."""
        return self.consumed_bytes - self.discarded_bytes - self.lost_torn_bytes


class Buffer(library.Memory):
    """Map one buffer of the store.

    mem_file: its file
    """

    def __init__(self, mem_file: str) -> None:
        self._take_over(lib.relay_buf_open(os.fsencode(mem_file)), mem_file)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Self:
        """Map a file that is open for reading and writing; the descriptor stays the caller's."""
        buffer = cls.__new__(cls)
        buffer._take_over(lib.relay_buf_fdopen(descriptor), f"descriptor {descriptor}")
        return buffer

    def _take_over(self, pointer: Any, path: str) -> None:
        super().__init__(library.mapped(pointer, path))
        self.path = path
        self._seq = ffi.new("uint32_t *")
        self._count, self._time_ns = ffi.new("uint64_t *"), ffi.new("uint64_t *")

    def close(self) -> None:
        """Unmap it."""
        lib.relay_buf_release(self._take())

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
        """Read all of its counters at one moment."""
        stats = ffi.new("struct relay_stats *")
        self.check(lib.relay_buf_stats(self._open, stats))
        return Stats(stats)

    def state(self) -> int:
        """Tell what there is to read, as HAS_ and IS_ bits."""
        return int(lib.relay_buf_state(self._open))

    def damage(self) -> str:
        """Say what contradicts itself in the memory, after EBADMSG or IS_DAMAGED; nothing does: an empty string."""
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
        """Bring it to its initial state."""
        self.check(lib.relay_buf_reset(self._open))

    def resume(self) -> None:
        """Let it be written to again, if it is suspended."""
        self.check(lib.relay_buf_resume(self._open))

    def stop(self, flag: int, on: bool) -> None:
        """Set or clear CLOSED or DISABLED."""
        self.check(lib.relay_buf_stop(self._open, flag, on))

    def subbufs_consumed(self, n: int) -> None:
        """Count the next n sub-buffers as consumed."""
        self.check(lib.relay_buf_subbufs_consumed(self._open, n))

    def consume_to(self, at: int) -> None:
        """Consume, unseen, what is unread before a stream position."""
        self.check(lib.relay_consume_to(self._open, at))

    def resolve(self, token: int) -> int:
        """Resolve what was reserved through the open file of this token; return how many reservations."""
        return self.check(lib.relay_buf_resolve(self._open, token))

    def arm(self, what: int) -> int:
        """Ask for a wake-up; return the wake-up counter of before."""
        self.check(lib.relay_buf_arm(self._open, what, self._seq))
        return int(self._seq[0])

    def count_mapped(self, first: Buffer, opened: bool) -> None:
        """Count an open with which it can be mapped, or the end of one.

        first: the channel's buffer 0
        """
        lib.relay_buf_count_mapped(self._open, first.pointer, opened)

    def forget_mapped(self, first: Buffer) -> None:
        """Take all such opens for ended."""
        lib.relay_buf_forget_mapped(self._open, first.pointer)

    def mtime(self) -> tuple[int, int]:
        """Return what keep_mtime() was given last; 0, 0: it never was."""
        lib.relay_buf_mtime(self._open, self._count, self._time_ns)
        return int(self._count[0]), int(self._time_ns[0])

    def keep_mtime(self, count: int, time_ns: int) -> None:
        """Keep, for the next file server, what was counted of data and when it was first so."""
        lib.relay_buf_keep_mtime(self._open, count, time_ns)

    def wake_seq(self) -> int:
        """Return the wake-up counter."""
        return int(lib.relay_buf_wake_seq(self._open))


class WakeWord:
    """End a wait_any() of another thread."""

    def __init__(self) -> None:
        self.word = ffi.new("uint32_t *")

    @property
    def value(self) -> int:
        """The word now: give it to wait_any()."""
        return int(self.word[0])

    def change(self) -> None:
        """End the wait_any() that was given the present value."""
        self.word[0] = (self.word[0] + 1) & 0xFFFFFFFF
        lib.relay_wake_word(self.word)


def wait_any(buffers: Sequence[Buffer], seqs: Sequence[int], word: WakeWord, value: int, timeout_ms: int) -> None:
    """Sleep until a wake-up counter or the word has changed, or the time is over.

    buffers, seqs: at most WAIT_MAX buffers, and the counters that arm() returned
    value: what the word was when the buffers were chosen
    timeout_ms: -1 means for ever
    """
    c_buffers = ffi.new("struct rchan_buf *[]", [buffer.pointer for buffer in buffers])
    c_seqs = ffi.new("uint32_t[]", list(seqs))
    library.check(lib.relay_buf_wait_any(c_buffers, c_seqs, len(buffers), word.word, value, timeout_ms))
