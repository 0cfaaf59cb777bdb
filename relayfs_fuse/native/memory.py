"""What relay buffers and record rings have in common: one mapped mem file of a channel, and sleeping on several."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native.merge import Merge

# The most mem files that wait_any() sleeps on.
WAIT_MAX = 127

_UNNAMED: Any = None
# For the thread that lists files.
_shown = ffi.new("struct relay_shown *")


def store_taken(memory: memoryview) -> None:
    """Have this process store what it is about to consume, a struct relay_taken, in shared memory that stays."""
    lib.relay_taken_store(ffi.cast("struct relay_taken *", ffi.from_buffer(memory)))


class Shown(NamedTuple):
    """What a listing shows of a relay file that nobody has open, as in struct relay_shown.

    inode: of the mem file
    written: what mtime() counts
    """

    inode: int
    mode: int
    uid: int
    gid: int
    ctime_ns: int
    unread: int
    holes: int
    written: int


class ChannelMemory(library.Memory):
    """A mapped mem file of the store.

    mem_file: its path
    """

    # The library's functions, which subclasses name.
    _from_path = _from_descriptor = _unmap = _descriptor = _close_descriptor = _state = _damage = _UNNAMED
    _stop = _resolve = _mtime = _keep_mtime = _wake_seq = _wait_any = _put = _show = _show_pointer = _UNNAMED
    # Those of Peek.
    _peeking: tuple[Any, ...]

    def __init__(self, mem_file: str) -> None:
        self._own(self._from_path(os.fsencode(mem_file)), mem_file)

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Self:
        """Map a file that is open for reading and writing; the descriptor stays the caller's."""
        memory = cls.__new__(cls)
        memory._own(cls._from_descriptor(descriptor), f"descriptor {descriptor}")
        return memory

    def _own(self, pointer: Any, path: str) -> None:
        super().__init__(library.mapped(pointer, path))
        self.path = path
        self._count, self._time_ns = ffi.new("uint64_t *"), ffi.new("uint64_t *")

    def close(self) -> None:
        """Unmap the file."""
        self._unmap(self._disown())

    def fileno(self) -> int:
        """Return the descriptor of its file."""
        return int(self._descriptor(self._open))

    def close_descriptor(self) -> None:
        """Close the descriptor of its file, once: it stays mapped."""
        self._close_descriptor(self._open)

    @property
    def address(self) -> int:
        """The struct rchan_buf or struct relay_ring, for other C code."""
        return int(ffi.cast("uintptr_t", self._open))

    @abstractmethod
    def stats(self) -> library.Fields:
        """Return all statistics at one moment."""

    @abstractmethod
    def add_to(self, merge: Merge, process: int, cpu: int) -> None:
        """Add it to a merge, as the stream of a CPU; OSError: EINVAL unless its records have times, EBADMSG."""

    def state(self) -> int:
        """Return what there is to read, as HAS_ and IS_ bits; of a ring, discards reservations of dead threads."""
        return int(self._state(self._open))

    def damage(self) -> str:
        """Describe the inconsistency in the memory, after EBADMSG or IS_DAMAGED; "" if there is none."""
        return os.fsdecode(ffi.string(self._damage(self._open)))

    def stop(self, flag: int, on: bool) -> None:
        """Set or clear CLOSED or DISABLED."""
        self.check(self._stop(self._open, flag, on))

    def resolve(self, token: int) -> int:
        """Resolve reservations made through the open file of this token; return their number."""
        return self.check(self._resolve(self._open, token))

    def mtime(self) -> tuple[int, int]:
        """Return the last arguments of keep_mtime(); 0, 0: it was never called."""
        self._mtime(self._open, self._count, self._time_ns)
        return int(self._count[0]), int(self._time_ns[0])

    def keep_mtime(self, count: int, time_ns: int) -> None:
        """Store, for the next file server, a count of data and when this count was first seen."""
        self._keep_mtime(self._open, count, time_ns)

    @classmethod
    def show(cls, memory: Self | None, mem_file: str) -> Shown:
        """Return what a listing shows; OSError: EBADMSG; EAGAIN, it has to be mapped; as of open(2).

        memory: the mapped file; None: it is not mapped
        """
        pointer = ffi.NULL if memory is None else memory.pointer
        library.check(cls._show(pointer, os.fsencode(mem_file), _shown, ffi.NULL))
        one = _shown
        return Shown(one.inode, one.mode, one.uid, one.gid, one.ctime_ns, one.unread, one.holes, one.written)

    @classmethod
    def address_of_show(cls) -> int:
        """Return the address of the function behind show(), for other C code."""
        return int(ffi.cast("uintptr_t", cls._show_pointer))

    def peek(self) -> Peek:
        """Begin to copy what is unread; OSError: EBADMSG."""
        return Peek(self, self._peeking)

    def wake_seq(self) -> int:
        """Return the wake-up counter."""
        return int(self._wake_seq(self._open))

    @classmethod
    def wait_any(
        cls, memories: Sequence[Self], seqs: Sequence[int], word: WakeWord, value: int, timeout_ms: int
    ) -> None:
        """Sleep until a wake-up counter or the word has changed, or the timeout has passed.

        memories, seqs: at most WAIT_MAX of this kind, and the counters that arm() returned
        value: the word's value when they were chosen
        timeout_ms: -1: no timeout
        """
        pointers = [memory.pointer for memory in memories]
        library.check(cls._wait_any(pointers, list(seqs), len(pointers), word.word, value, timeout_ms))


class Peek(library.Handle):
    """Copy what is unread in a mem file, up to the end that it had when this was made, without consuming.

    memory: the mapped file, which stays the caller's, and open as long as this
    functions: the library's functions, in the order of their names in __init__()
    """

    def __init__(self, memory: ChannelMemory, functions: tuple[Any, ...]) -> None:
        self._memory = memory
        begin, self._copy, self._more, self._rewind, *others = functions
        self._has_skipped, self._save, self._restore, self._close = others
        super().__init__(library.not_null(begin(memory.pointer), memory.path))
        self._saved = ffi.new("char[]", self._save(self._open, ffi.NULL, 0))

    def close(self) -> None:
        """Free it."""
        self._close(self._disown())

    def copy(self, size: int) -> bytes:
        """Return the next data, or whole records, framed as read(2) returns them; b"": there is no more.

        size: the most bytes. OSError: EMSGSIZE, the first record is longer; EBUSY: call again; EBADMSG
        """
        data = ffi.new("char[]", size)
        return bytes(ffi.buffer(data, self._memory.check(self._copy(self._open, data, size))))

    def more(self) -> None:
        """Go on with what was written since."""
        self._memory.check(self._more(self._open) or 0)

    def rewind(self) -> None:
        """Begin again, up to the same end."""
        self._rewind(self._open)

    def save(self) -> bytes:
        """Return how far it is, for restore()."""
        self._save(self._open, self._saved, len(self._saved))
        return bytes(ffi.buffer(self._saved))

    def restore(self, saved: bytes) -> None:
        """Go on where a peek of the same file was, also one of another process; OSError: EINVAL."""
        library.check(self._restore(self._open, saved, len(saved)))

    @property
    def has_skipped(self) -> bool:
        """Whether data was skipped since the beginning, because it was overwritten or consumed before it was copied."""
        return bool(self._has_skipped(self._open))


class WaitSet:
    """Mem files that one thread sleeps on, each in a slot below WAIT_MAX; see <relayfs/store.h>.

    Slots may be changed while no thread sleeps. What is in them must stay mapped.

    address: of the struct relay_wait_set, for C code that sleeps on it
    """

    def __init__(self) -> None:
        pointer = library.not_null(lib.relay_wait_set_new(), "a wait set")
        self._set = ffi.gc(pointer, lib.relay_wait_set_free)
        self.address = int(ffi.cast("uintptr_t", pointer))
        self._slots = ffi.new("uint32_t[]", WAIT_MAX)

    def put(self, slot: int, memory: ChannelMemory, seq: int) -> None:
        """Sleep on a mem file while its wake-up counter is `seq`; to be called before its state is looked at."""
        memory._put(self._set, slot, memory.pointer, seq)

    def rest(self, slot: int) -> None:
        """Do not sleep on the mem file in a slot for now."""
        lib.relay_wait_set_rest(self._set, slot)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        lib.relay_wait_set_clear(self._set, slot)

    def woken(self) -> list[int]:
        """Return the slots whose wake-up counter has changed, or whose writers wake nobody."""
        return self._taken(lib.relay_wait_set_woken(self._set, self._slots))

    def changed(self) -> list[int]:
        """Return the slots of which anything has changed that decides what there is to read, and what room."""
        return self._taken(lib.relay_wait_set_changed(self._set, self._slots))

    def _taken(self, n: int) -> list[int]:
        slots: list[int] = ffi.unpack(self._slots, n)
        return slots


class WakeWord:
    """A word with which one thread ends the wait_any() of another.

    address: its own, for other C code
    """

    def __init__(self) -> None:
        self.word = ffi.new("uint32_t *")
        self.address = int(ffi.cast("uintptr_t", self.word))

    @property
    def value(self) -> int:
        """The present value, for wait_any()."""
        return int(self.word[0])

    def change(self) -> None:
        """End the wait_any() that was called with the present value."""
        self.word[0] = (self.word[0] + 1) & 0xFFFFFFFF
        lib.relay_wake_word(self.word)
