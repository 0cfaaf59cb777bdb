"""The C library, as Python sees it: the sole importer of the compiled module.

Negative results become OSError; that of EBADMSG says which word of the memory contradicts what. A wrapper that is
closed refuses further use with ValueError, as files do.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from relayfs_fuse import explain
from relayfs_fuse._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer as AnyBuffer

CLOSED: int = lib.RELAY_CLOSED
DISABLED: int = lib.RELAY_DISABLED
ARM_SWITCH: int = lib.RELAY_ARM_SWITCH
ARM_RECORD: int = lib.RELAY_ARM_RECORD
IMPLICIT_MARK: int = lib.RELAY_IMPLICIT_MARK
HAS_DATA: int = lib.RELAY_HAS_DATA
HAS_FINISHED: int = lib.RELAY_HAS_FINISHED
IS_CLOSED: int = lib.RELAY_IS_CLOSED
IS_DAMAGED: int = lib.RELAY_IS_DAMAGED
LOOK_AGAIN: int = lib.RELAY_LOOK_AGAIN
IS_HELD: int = lib.RELAY_IS_HELD
HAS_DISCARDED: int = lib.RELAY_HAS_DISCARDED

MODE_NO_OVERWRITE: int = lib.RELAY_NO_OVERWRITE
MODE_OVERWRITE: int = lib.RELAY_OVERWRITE
TIMESTAMP_TSC: int = lib.RELAY_TSC
SCHEME_ANY: int = lib.RELAY_ANY_SCHEME
SCHEME_RSEQ: int = lib.RELAY_RSEQ
BUFFERS_PERCPU: int = lib.RELAY_PERCPU
BUFFERS_GLOBAL: int = lib.RELAY_GLOBAL
BUFFERS_SINGLE: int = lib.RELAY_SINGLE
DELIVERY_BULK: int = lib.RELAY_BULK
DELIVERY_PACKET: int = lib.RELAY_PACKET
READ_WAIT: int = lib.RELAY_READ_WAIT

KINDS = ("counter", "gauge")
COUNTERS_LIMIT: int = lib.RELAY_PERF_DEFAULT_LIMIT
COUNTERS_HIGHEST_LIMIT: int = lib.RELAY_PERF_HIGHEST_LIMIT

# relay_buf_wait_any() sleeps on so many buffers at once.
WAIT_MAX = 127


def _check(result: int, path: str | None = None) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result), path)
    return result


def _pointer(pointer: Any, path: str) -> Any:
    if pointer == ffi.NULL:
        raise OSError(ffi.errno, os.strerror(ffi.errno), path)
    return pointer


def _mapped(pointer: Any, path: str) -> Any:
    """Return what maps a file of a store; EBADMSG also for the other kind: for a server it is damaged where it lies."""
    if pointer == ffi.NULL and ffi.errno == errno.EMEDIUMTYPE:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), path)
    return _pointer(pointer, path)


def _made(pointer: Any, path: str) -> Any:
    """Return what was made; OSError says why not in the words of error_log."""
    if pointer == ffi.NULL:
        code = ffi.errno
        raise OSError(code, explain.refusal(path) or os.strerror(code), path)
    return pointer


# Of something of another kind, or of nothing.
_WRONG_KIND = (errno.ENOENT, errno.EMEDIUMTYPE, errno.EBADMSG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR)


def _opened(pointer: Any, path: str) -> Any:
    """Return what was opened; OSError says what it is instead, if that is something else."""
    if pointer == ffi.NULL:
        code = ffi.errno
        what = explain.what_it_is(path) if code in _WRONG_KIND else None
        raise OSError(code, f"{os.strerror(code)}: it is {what}" if what else os.strerror(code), path)
    return pointer


def _record(data: AnyBuffer) -> Any:
    """Return the memory of a record."""
    if isinstance(data, str):
        raise TypeError("a record is bytes, not str: text.encode() makes them")
    return ffi.from_buffer(data)


class _Fields:
    """The fields of a struct, which are numbers; each is converted when it is asked for."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> int:
        """Return a field."""
        return int(getattr(self._raw, name))


class Stats(_Fields):
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


def n_possible_cpus() -> int:
    """Count the CPUs that this machine may ever have."""
    return int(lib.relay_n_possible_cpus())


def scheme_default(buffers: int) -> int:
    """Tell what scheme=any becomes for these buffers on this machine."""
    return int(lib.relay_scheme_default(buffers))


def has_tsc() -> bool:
    """Tell whether this machine has a counter for timestamp=tsc."""
    return bool(lib.relay_has_tsc())


def buf_file_bytes(subbuf_size: int, n_subbufs: int) -> int:
    """Tell how much of the store one buffer takes; 0: the geometry is not allowed."""
    limit = 1 << 64
    if not (0 < subbuf_size < limit and 0 < n_subbufs < limit):
        return 0
    return int(lib.relay_buf_file_bytes(subbuf_size, n_subbufs))


def store_create(directory: str, spec: Mapping[str, int]) -> None:
    """Make a channel with all its memory in a new directory.

    spec: what the fields of struct relay_spec hold, if it is not 0
    """
    c_spec = ffi.new("struct relay_spec *", {**spec, "size": ffi.sizeof("struct relay_spec")})
    _check(lib.relay_store_create(os.fsencode(directory), c_spec), directory)


def store_adopt(directory: str, descriptors: Sequence[int]) -> None:
    """Make a channel, in a new directory, of files that have no names yet."""
    _check(lib.relay_store_adopt(os.fsencode(directory), list(descriptors), len(descriptors)), directory)


def store_copy(directory: str, descriptors: Sequence[int], mode: int, uid: int, gid: int) -> None:
    """Make a channel, in a new directory, of copies of such files."""
    _check(lib.relay_store_copy(os.fsencode(directory), list(descriptors), len(descriptors), mode, uid, gid), directory)


def implicit_make(directory: str) -> None:
    """Make a directory because the path of a channel leads through it."""
    _check(lib.relay_implicit_make(os.fsencode(directory)), directory)


def implicit_is(directory: str) -> bool:
    """Tell whether a directory was made so, and has its mode, owner and group since."""
    return bool(lib.relay_implicit_is(os.fsencode(directory)))


def guard_install() -> None:
    """Survive store files that somebody truncates under our mapping."""
    _check(lib.relay_guard_install())


def file_protect(descriptor: int) -> bool:
    """Let nobody free pages of a store file, if others than our user may write to it; tell whether they may."""
    return bool(_check(lib.relay_file_protect(descriptor)))


def file_unprotect(descriptor: int) -> bool:
    """Make a store file as others are; tell whether it was protected."""
    return bool(_check(lib.relay_file_unprotect(descriptor)))


def file_is_protected(descriptor: int) -> bool:
    """Tell whether nobody can free a store file's pages."""
    return bool(lib.relay_file_is_protected(descriptor))


def file_change_owner(descriptor: int, mode: int, uid: int, gid: int) -> None:
    """Give a store file this mode, owner and group; one that is protected stays so."""
    _check(lib.relay_file_change_owner(descriptor, mode, uid, gid))


def file_open(path: str) -> int:
    """Open a store file for reading and writing, also a protected one."""
    return _check(lib.relay_file_open(os.fsencode(path)), path)


def file_unlink(path: str) -> None:
    """Unlink a store file, also a protected one."""
    _check(lib.relay_file_unlink(os.fsencode(path)), path)


class _Handle:
    """Own a pointer of the library until it is closed."""

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    @property
    def _open(self) -> Any:
        if self._pointer is None:
            raise ValueError(f"{type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._pointer is None

    def _take(self) -> Any:
        pointer, self._pointer = self._pointer, None
        return ffi.NULL if pointer is None else pointer


class _Memory(_Handle, ABC):
    """Own a mapping of memory that others write to."""

    path: str

    @abstractmethod
    def damage(self) -> str:
        """Say what contradicts itself in the memory, after EBADMSG or IS_DAMAGED; nothing does: an empty string."""

    def check(self, result: int) -> int:
        """Return a result of the library's, or raise the error that it is."""
        if result == -errno.EBADMSG:
            raise OSError(errno.EBADMSG, self.damage() or os.strerror(errno.EBADMSG), self.path)
        return _check(result, self.path)


class Buffer(_Memory):
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
        super().__init__(_mapped(pointer, path))
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

    def moved(self) -> tuple[int, int]:
        """Return what keep_moved() was given last; 0, 0: it never was."""
        lib.relay_buf_moved(self._open, self._count, self._time_ns)
        return int(self._count[0]), int(self._time_ns[0])

    def keep_moved(self, count: int, time_ns: int) -> None:
        """Keep, for the next file server, what was counted of data and when it was first so."""
        lib.relay_buf_keep_moved(self._open, count, time_ns)

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
    _check(lib.relay_buf_wait_any(c_buffers, c_seqs, len(buffers), word.word, value, timeout_ms))


class ChannelHandle(_Handle):
    """Attach to a channel for writing.

    path: the path of its relay files without the number
    options: None to attach to an existing one, else what may follow `create PATH`
    """

    def __init__(self, path: str, options: str | None = None) -> None:
        c_path = os.fsencode(path)
        if options is None:
            super().__init__(_opened(lib.relay_attach(c_path), path))
        else:
            super().__init__(_made(lib.relay_create(c_path, os.fsencode(options)), path))

    def close(self) -> None:
        """Let go of it."""
        lib.relay_close(self._take())

    def write(self, data: AnyBuffer, will_retry: bool = False) -> None:
        """Write one record; will_retry: ENOSPC is not counted as a loss."""
        view = _record(data)
        write = lib.relay_try_write if will_retry else lib.relay_write
        _check(write(self._open, view, len(view)))

    def write_many(self, records: Sequence[AnyBuffer]) -> int:
        """Write records in order; return how many were written."""
        for record in records:
            _record(record)
        data = b"".join(records)
        lengths = ffi.new("size_t[]", [memoryview(record).nbytes for record in records])
        return _check(lib.relay_write_batch(self._open, ffi.from_buffer(data), lengths, len(records)))

    def flush(self) -> None:
        """Switch to the next sub-buffer in every buffer."""
        _check(lib.relay_flush(self._open))

    def reset(self) -> None:
        """Bring every buffer to its initial state."""
        _check(lib.relay_reset(self._open))

    def subbufs_consumed(self, cpu: int, n: int) -> None:
        """Count the next n sub-buffers of a CPU's buffer as consumed."""
        _check(lib.relay_subbufs_consumed(self._open, cpu, n))


class ReaderHandle(_Handle):
    """Read one relay file without copying.

    relay_file: its path
    """

    def __init__(self, relay_file: str) -> None:
        super().__init__(_opened(lib.relay_reader_open(os.fsencode(relay_file)), relay_file))
        self._data = ffi.new("void **")
        self._length = ffi.new("size_t *")

    def close(self) -> None:
        """Let go of it; a piece that is not done stays unread."""
        lib.relay_reader_close(self._take())

    def next(self, timeout_ms: int) -> memoryview | None:
        """Wait for the next piece; None: there was none in time, or the channel is closed and drained."""
        if not _check(lib.relay_reader_next(self._open, self._data, self._length, timeout_ms)):
            return None
        return memoryview(ffi.buffer(self._data[0], self._length[0])).toreadonly()

    def done(self) -> None:
        """Consume the piece; OSError EOVERFLOW: it was overwritten meanwhile."""
        _check(lib.relay_reader_done(self._open))

    def finished(self) -> bool:
        """Whether the channel was removed and everything has been read."""
        return bool(lib.relay_reader_finished(self._open))


_CALLER = 0xFFFFFFFF


@dataclass(frozen=True)
class CounterSpec:
    """What is said of a counter at its first add; see struct relay_perf_spec."""

    kind: int = 0
    unit: str = ""
    help: str = ""
    mode: int = 0
    uid: int = _CALLER
    gid: int = _CALLER


@dataclass(frozen=True)
class CounterInfo:
    """What is known of a counter; see struct relay_perf_info."""

    instance: int
    kind: int
    uid: int
    gid: int
    mode: int
    name: str
    unit: str
    help: str


def counters_create(store: str, limit: int) -> None:
    """Make the counters of a store, if they are not there.

    limit: how many names there can be
    """
    _check(lib.relay_counters_create(os.fsencode(store), limit), store)


# Room for the text of so many bytes at first, and for so much more than there was.
_TEXT_BYTES = 1 << 16


def _counter_info(info: Any) -> CounterInfo:
    texts = (os.fsdecode(ffi.string(text)) for text in (info.name, info.unit, info.help))
    return CounterInfo(info.instance, info.kind, info.uid, info.gid, info.mode, *texts)


class CountersHandle(_Handle):
    """Hold the counters of a mount or store.

    path: None for the default mount
    """

    def __init__(self, path: str | None) -> None:
        c_path = ffi.NULL if path is None else os.fsencode(path)
        super().__init__(_pointer(lib.relay_counters_open(c_path), path or "the default mount"))
        self._value = ffi.new("int64_t *")
        header = lib.relay_counters_header(self._open)
        self.n_cpus: int = header.nr_cpus
        self.n_blocks: int = header.nr_blocks
        self.slots: int = header.slots
        self.data_at: int = header.data_at

    def close(self) -> None:
        """Let go of them."""
        lib.relay_counters_close(self._take())

    def fileno(self) -> int:
        """Return the descriptor of the file to map."""
        return int(lib.relay_counters_fd(self._open))

    def mapped_bytes(self) -> int:
        """Tell how much of it there was at the last refresh."""
        return int(lib.relay_counters_mapped_bytes(self._open))

    def add(self, name: str, spec: CounterSpec) -> int:
        """Add a counter, or find it again; return its number."""
        return self._add(lib.relay_perf_add_as, name, spec)

    def _add(self, way: Callable[..., int], name: str, spec: CounterSpec) -> int:
        c_unit, c_help = ffi.new("char[]", os.fsencode(spec.unit)), ffi.new("char[]", os.fsencode(spec.help))
        c_spec = ffi.new("struct relay_perf_spec *")
        c_spec.size = ffi.sizeof("struct relay_perf_spec")
        c_spec.kind, c_spec.mode, c_spec.uid, c_spec.gid = spec.kind, spec.mode, spec.uid, spec.gid
        c_spec.unit, c_spec.help = c_unit, c_help
        return _check(way(self._open, os.fsencode(name), c_spec), name)

    def enter(self, name: str, spec: CounterSpec) -> int:
        """Add a counter for somebody else, or find it again; return its number. This handle does not adjust it."""
        return self._add(lib.relay_counters_enter, name, spec)

    def delete(self, instance: int) -> None:
        """Take a counter off the list."""
        _check(lib.relay_perf_del(self._open, instance))

    def adjust_for(self, instance: int, delta: int) -> None:
        """Add to a counter, on no CPU, for a process that cannot map it."""
        _check(lib.relay_counters_adjust(self._open, instance, delta))

    def free(self, instance: int) -> None:
        """Take a counter off the list that this process alone sets; its number may become another's."""
        _check(lib.relay_counters_free(self._open, instance))

    @property
    def limit(self) -> int:
        """How many names there can be."""
        return int(lib.relay_counters_limit(self._open))

    def adjust(self, instance: int, delta: int) -> None:
        """Add to a counter on the current CPU."""
        _check(lib.relay_perf_adjust(self._open, instance, delta))

    def refresh(self) -> bool:
        """Notice what was added and deleted; tell whether something was."""
        return bool(_check(lib.relay_counters_refresh(self._open)))

    def is_changing(self) -> bool:
        """Tell whether a change is under way, or was when somebody died."""
        header = lib.relay_counters_header(self._open)
        return bool(header.gen1 != header.gen2)

    def generation(self) -> int:
        """Return the generation now."""
        return int(lib.relay_counters_header(self._open).gen1)

    def read(self, block: int, instance: int) -> int:
        """Return a counter of one CPU, or of block n_cpus: of none."""
        _check(lib.relay_counters_read(self._open, block, instance, self._value))
        return int(self._value[0])

    def sum(self, instance: int) -> int:
        """Return a counter."""
        _check(lib.relay_counters_sum(self._open, instance, self._value))
        return int(self._value[0])

    def set(self, block: int, instance: int, value: int) -> None:
        """Store a counter of one CPU that nobody else changes."""
        _check(lib.relay_counters_set(self._open, block, instance, value))

    def find(self, name: str) -> int:
        """Return the number of a name."""
        return _check(lib.relay_counters_find(self._open, os.fsencode(name)), name)

    def infos(self) -> list[CounterInfo]:
        """List the counters as of the last refresh."""
        found, after, info = [], 0, ffi.new("struct relay_perf_info *")
        while lib.relay_counters_next(self._open, after, info):
            after = info.instance
            found.append(_counter_info(info))
        return found

    def info(self, instance: int) -> CounterInfo | None:
        """Return what is known of one; None: it is not listed."""
        info = ffi.new("struct relay_perf_info *")
        if instance <= 0 or not lib.relay_counters_next(self._open, instance - 1, info) or info.instance != instance:
            return None
        return _counter_info(info)

    def names_text(self) -> bytes:
        """List the counters, of the generation that the first line tells; OSError EAGAIN: they do not stop changing."""
        return self._text(lib.relay_counters_list)

    def values_text(self) -> bytes:
        """List names and sums as of the last refresh."""
        return self._text(lib.relay_counters_values)

    def _text(self, way: Callable[..., int]) -> bytes:
        room = _TEXT_BYTES
        while True:
            text = ffi.new("char[]", room)
            length = _check(way(self._open, text, room))
            if length <= room:
                return bytes(ffi.buffer(text, length))
            room = length + _TEXT_BYTES

    def mirror(self) -> None:
        """Copy the counters of other owners into the file to map."""
        _check(lib.relay_counters_mirror(self._open))

    def repair(self) -> None:
        """Make up for one who died in the middle of a change."""
        _check(lib.relay_counters_repair(self._open))

    def hold(self) -> int:
        """Keep others from changing anything until the descriptor that this returns is closed."""
        return _check(lib.relay_counters_hold(self._open))
