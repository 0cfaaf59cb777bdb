"""Python declarations of the tap, a C library between libfuse and the kernel (native/fuse/tap.h).

Importing this module loads the tap. That must happen before pyfuse3 is imported; otherwise the tap has no effect.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from relayfs_fuse.errors import failure

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

# read_flags of FUSE_READ (linux/fuse.h): the request comes from read(2) and not from the page cache.
READ_LOCKOWNER = 1 << 1
# In the number of a request: the kernel has sent it before, to a server that died.
RESENT = 1 << 63
# getattr_flags of FUSE_GETATTR: the request is about an open file. The kernel sends such only for lseek(2) to the end.
GETATTR_FH = 1 << 0

_lib = ctypes.CDLL(str(Path(__file__).parent.parent / "lib" / "librelayfs_tap.so"), mode=ctypes.RTLD_GLOBAL)


class _Request(ctypes.Structure):
    _fields_ = (
        ("unique", ctypes.c_uint64),
        ("opcode", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("io_flags", ctypes.c_uint32),
        ("file_flags", ctypes.c_uint32),
        ("poll_handle", ctypes.c_uint64),
    )


class _Reply(ctypes.Structure):
    _fields_ = (("unique", ctypes.c_uint64), ("number", ctypes.c_uint64), ("end", ctypes.c_uint64))


class _Known(ctypes.Structure):
    _fields_ = (
        ("parent", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("mem_inode", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("mtime_ns", ctypes.c_int64),
        ("show", ctypes.c_void_p),
        ("block_size", ctypes.c_uint32),
        ("counts_holes", ctypes.c_uint32),
    )


_HasTasks = ctypes.CFUNCTYPE(ctypes.c_int)
_Lookup = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint32)
# struct fuse_entry_out (linux/fuse.h): number, generation, seconds that the name and the attributes may be used, and
# nanoseconds; number, size, blocks, times; nanoseconds of times, mode, links, owner, group, device, block size, flags.
_ENTRY = struct.Struct("=4Q2I6Q10I")
_entry = ctypes.create_string_buffer(_ENTRY.size)

_lib.relay_tap_learn.restype = ctypes.c_void_p
_lib.relay_tap_learn.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
_lib.relay_tap_lookups.restype = ctypes.c_uint64
_lib.relay_tap_lookups.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_lookups_taken.restype = None
_lib.relay_tap_lookups_taken.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_forget.restype = None
_lib.relay_tap_forget.argtypes = (ctypes.c_void_p,)
_lib.relay_tap_answer_lookups.restype = None
_lib.relay_tap_answer_lookups.argtypes = (_Lookup, ctypes.c_void_p)


class Flag:
    """A word that other C code looks at, too."""

    def __init__(self) -> None:
        self.word = ctypes.c_uint32()

    def set(self, *, on: bool) -> None:
        """Set it to 1 or 0."""
        self.word.value = on


class _Lane(ctypes.Structure):
    _fields_ = (
        ("fh", ctypes.c_uint64),
        ("buf", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
        ("most", ctypes.c_uint64),
        ("is_told", ctypes.POINTER(ctypes.c_uint32)),
        ("noted", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("kept_room", ctypes.c_uint64),
        ("kept_most", ctypes.c_uint64),
        ("large", ctypes.c_uint64),
        ("kept_of_large", ctypes.c_uint64),
        ("overwrite", ctypes.c_uint32),
        ("is_off", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
    )


_lib.relay_tap_request.restype = ctypes.POINTER(_Request)
_lib.relay_tap_request.argtypes = ()
_lib.relay_tap_interrupt_next.restype = ctypes.c_uint64
_lib.relay_tap_interrupt_next.argtypes = ()
_lib.relay_tap_terminal_next.restype = ctypes.c_uint64
_lib.relay_tap_terminal_next.argtypes = ()
_lib.relay_tap_open_stream.restype = None
_lib.relay_tap_open_stream.argtypes = (ctypes.c_uint64,)
_lib.relay_tap_open_backed.restype = None
_lib.relay_tap_open_backed.argtypes = (ctypes.c_uint64, ctypes.c_int)
_lib.relay_tap_protocol_minor.restype = ctypes.c_uint
_lib.relay_tap_protocol_minor.argtypes = ()
_lib.relay_tap_allow_reads.restype = None
_lib.relay_tap_allow_reads.argtypes = (ctypes.c_size_t,)
_lib.relay_tap_backing_close.restype = None
_lib.relay_handover_last_reply.restype = _Reply
_lib.relay_handover_last_reply.argtypes = ()
_lib.relay_handover_use.restype = None
_lib.relay_handover_use.argtypes = (ctypes.c_void_p, ctypes.c_int)
_lib.relay_handover_notify_poll.restype = None
_lib.relay_handover_notify_poll.argtypes = (ctypes.c_int, ctypes.c_uint64)
_lib.relay_handover_awaits.argtypes = (ctypes.c_int, ctypes.c_uint64)
_lib.relay_tap_read.restype = ctypes.c_ssize_t
_lib.relay_tap_read.argtypes = (
    *(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64),
    *(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
)
_lib.relay_tap_read_copy.restype = None
_lib.relay_tap_read_copy.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_lib.relay_tap_peek.restype = ctypes.c_ssize_t
_lib.relay_tap_peek.argtypes = (
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)

_lib.relay_tap_lane_open.restype = None
_lib.relay_tap_lane_open.argtypes = (ctypes.POINTER(_Lane),)
_lib.relay_tap_lane_close.restype = None
_lib.relay_tap_lane_close.argtypes = (ctypes.c_uint64,)
_lib.relay_tap_answers.restype = ctypes.c_uint64
_lib.relay_tap_answers.argtypes = ()
_lib.relay_tap_turn_for.restype = None
_lib.relay_tap_turn_for.argtypes = (ctypes.POINTER(ctypes.c_int), ctypes.c_size_t, _HasTasks)
_lib.relay_tap_share(ctypes.pythonapi.PyEval_SaveThread, ctypes.pythonapi.PyEval_RestoreThread)

_end = ctypes.c_uint64()
_S_NS = 1_000_000_000
# Functions that the tap calls.
_kept: list[object] = []


@dataclass(frozen=True)
class Request:
    """The header of a request, as in struct relay_tap_request.

    unique: the number of this sending of the request
    pid: the thread that makes the request, in the server's PID namespace
    io_flags: read_flags of FUSE_READ, getattr_flags of FUSE_GETATTR
    file_flags: the flags of the open file, of FUSE_READ and FUSE_WRITE
    """

    unique: int
    pid: int
    uid: int
    gid: int
    io_flags: int
    file_flags: int

    @property
    def number(self) -> int:
        """The number of the request, the same also if the kernel sends it again."""
        return self.unique & ~RESENT

    @property
    def nonblocking(self) -> bool:
        """Whether the descriptor has O_NONBLOCK now."""
        return bool(self.file_flags & os.O_NONBLOCK)

    @property
    def from_page_cache(self) -> bool:
        """Whether a FUSE_READ fills the page cache; its data may never reach a program."""
        return not self.io_flags & READ_LOCKOWNER

    @property
    def seeks_end(self) -> bool:
        """Whether a FUSE_GETATTR comes from lseek(2) with SEEK_END."""
        return bool(self.io_flags & GETATTR_FH)


class Known(NamedTuple):
    """What the tap has to know of a relay file that nobody has open.

    parent, inode: the numbers of its directory and of itself
    mem_file, mem_inode: its mem file
    written: as long as this is what was written, its data was changed last at `mtime_ns`
    show: the address of the function that says what a listing shows of the mem file
    counts_holes: whether discarded records are part of st_size
    """

    parent: int
    name: str
    inode: int
    mem_file: str
    mem_inode: int
    written: int
    mtime_ns: int
    show: int
    block_size: int
    counts_holes: bool


class KnownFile:
    """A relay file of which the tap answers lookups until forget(); OSError: ENOMEM."""

    def __init__(self, known: Known) -> None:
        name, mem_file = os.fsencode(known.name), os.fsencode(known.mem_file)
        numbers = known.parent, known.inode, known.mem_inode, known.written, known.mtime_ns, known.show
        words = _Known(*numbers, known.block_size, known.counts_holes)
        self._file = _lib.relay_tap_learn(name, mem_file, ctypes.byref(words))
        if self._file is None:
            raise failure(errno.ENOMEM)

    @property
    def lookups(self) -> int:
        """How many lookups were answered since take_lookups()."""
        return int(_lib.relay_tap_lookups(self._file))

    def take_lookups(self) -> int:
        """Return `lookups`, and count from 0 again."""
        lookups = self.lookups
        _lib.relay_tap_lookups_taken(self._file)
        return lookups

    def forget(self) -> None:
        """Answer no more lookups; nothing else is called after this."""
        _lib.relay_tap_forget(self._file)


class Entry(NamedTuple):
    """What the kernel is to know of a name, which it looks up again each time.

    attributes_ns: how long it may use what follows the name without asking
    """

    inode: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    block_size: int
    mtime_ns: int
    ctime_ns: int
    attributes_ns: int


def turn_for_tasks() -> None:
    """Have trio's loop turn when it has an event or a task to run, although the tap answers requests by itself."""
    descriptors = [*_event_polls()]
    function = _HasTasks(lambda: trio.lowlevel.current_statistics().tasks_runnable > 0)
    _kept.append(function)
    _lib.relay_tap_turn_for((ctypes.c_int * len(descriptors))(*descriptors), len(descriptors), function)


def _event_polls() -> Iterator[int]:
    """Yield the descriptors of epoll(7) of this process, which are readable when trio has an event."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                yield int(name)


def answer_lookups(answer: Callable[[int, bytes, int], Entry | None]) -> None:
    """Have the tap answer lookups by itself.

    answer: returns the answer to the lookup of a name in the directory with a number, by a thread; None: the handler of
        the request is to answer it
    """

    def lookup(parent: int, name: bytes, pid: int) -> int:
        entry = answer(parent, name, pid)
        if entry is None:
            return 0
        modified_s, modified_ns = divmod(entry.mtime_ns, _S_NS)
        changed_s, changed_ns = divmod(entry.ctime_ns, _S_NS)
        _ENTRY.pack_into(
            _entry, 0, entry.inode, 0, 0, 0, 0, entry.attributes_ns, entry.inode, entry.size, (entry.size + 511) // 512,
            modified_s, modified_s, changed_s, modified_ns, modified_ns, changed_ns, entry.mode, entry.nlink, entry.uid,
            entry.gid, 0, entry.block_size, 0,
        )  # fmt: skip
        return 1

    function = _Lookup(lookup)
    _kept.append(function)
    _lib.relay_tap_answer_lookups(function, _entry)


def request() -> Request:
    """Return the header of the request that is being handled; a handler must call this before its first await."""
    raw = _lib.relay_tap_request().contents
    return Request(raw.unique, raw.pid, raw.uid, raw.gid, raw.io_flags, raw.file_flags)


def keep_in(memory: mmap.mmap) -> None:
    """Keep what the kernel and libfuse have agreed upon in the first page of a memory file, for the next server."""
    _lib.relay_handover_use(ctypes.addressof(ctypes.c_char.from_buffer(memory)), -1)


def take_over(memory: mmap.mmap, device: int) -> None:
    """Have pyfuse3.init() take over the mount of a server that has died, by its descriptor of /dev/fuse."""
    _lib.relay_handover_use(ctypes.addressof(ctypes.c_char.from_buffer(memory)), device)


def can_hand_over() -> bool:
    """Whether the kernel can send requests again to another server; valid after keep_in() and FUSE_INIT."""
    return bool(_lib.relay_handover_is_possible())


def session_fd() -> int:
    """Return the descriptor of /dev/fuse; -1: the tap is not in effect."""
    return int(_lib.relay_tap_session_fd())


def resend() -> None:
    """Have the kernel send all requests again that were not answered; OSError."""
    result = int(_lib.relay_handover_resend(session_fd()))
    if result < 0:
        raise failure(-result)


def awaits(number: int) -> bool:
    """Whether the kernel waits for the answer to a request, which it has sent to some server; OSError."""
    for unique in (number & ~RESENT, number | RESENT):
        result = int(_lib.relay_handover_awaits(session_fd(), unique))
        if result < 0:
            raise failure(-result)
        if result:
            return True
    return False


def last_reply() -> tuple[int, int, int]:
    """Return which reply to read() a dead server was sending, or has sent: request, `number`, and stream position.

    0, 0, 0: none, whose data are not consumed yet.
    """
    reply = _lib.relay_handover_last_reply()
    return (reply.unique, reply.number, reply.end) if reply.unique else (0, 0, 0)


def end_reply() -> None:
    """Note that the data of last_reply() are consumed."""
    _lib.relay_handover_end_reply()


def notify_poll(poll_handle: int) -> None:
    """Have the kernel ask again what a polled file is ready for; if it is closed, nothing happens.

    poll_handle: as poll_handle() returned it
    """
    _lib.relay_handover_notify_poll(session_fd(), poll_handle)


def poll_handle() -> int:
    """Return the kernel's number of the file of the FUSE_POLL that is being handled; 0: it need not be notified."""
    return int(_lib.relay_tap_request().contents.poll_handle)


def interrupt_fd() -> int:
    """Return the descriptor that is readable while next_interrupt() has numbers; -1: the tap is not in effect."""
    return int(_lib.relay_tap_interrupt_fd())


def next_interrupt() -> int:
    """Return the `unique` of the next request that the kernel wants to be interrupted, once; 0: there is none."""
    return int(_lib.relay_tap_interrupt_next())


def next_terminal() -> int:
    """Return the file handle of the next open file for which isatty(3) was called, once; 0: there is none."""
    return int(_lib.relay_tap_terminal_next())


def protocol() -> str:
    """Return the version of the FUSE protocol that this mount uses."""
    return f"7.{_lib.relay_tap_protocol_minor()}"


def allow_reads(most: int) -> None:
    """Have the kernel make requests of up to so many bytes of long reads, as far as fs.fuse.max_pages_limit permits.

    Before pyfuse3.init().
    """
    _lib.relay_tap_allow_reads(most)


def has_passthrough() -> bool:
    """Whether the kernel supports passthrough for this mount, which mapping its files needs."""
    return bool(_lib.relay_tap_has_passthrough())


def backing_open(descriptor: int) -> int:
    """Register a file for passthrough; return its backing id, which is greater than 0; OSError."""
    backing = int(_lib.relay_tap_backing_open(descriptor))
    if backing < 0:
        raise failure(-backing)
    return backing


def backing_close(backing: int) -> None:
    """Undo backing_open(); open files that use the backing id keep it."""
    _lib.relay_tap_backing_close(backing)


def open_stream(unique: int) -> None:
    """Let the answer to a FUSE_OPEN say that the file is a stream (FOPEN_STREAM), without a position."""
    _lib.relay_tap_open_stream(unique)


def open_backed(unique: int, backing: int) -> None:
    """Let the answer to a FUSE_OPEN say that mappings of the file show the registered file with this backing id."""
    _lib.relay_tap_open_backed(unique, backing)


class Source(NamedTuple):
    """The relay buffer of a read(2).

    address: of the struct rchan_buf
    number: tells it from other buffers, see last_reply()
    overwrite: whether producers may overwrite data that is unread
    """

    address: int
    number: int
    overwrite: bool


def read(unique: int, source: Source, max_bytes: int) -> tuple[int, int]:
    """Have the tap put the next data of a relay buffer into the reply to a FUSE_READ.

    The data is consumed if the kernel takes the reply. Returns the number of bytes, 0 if there is no data, and the
    stream position after them. OSError: EBUSY, another thread reads; EAGAIN, producers overwrite the data faster than
    it can be copied; EBADMSG.

    unique: the request, whose handler must return without another await
    """
    address, number, overwrite = source
    got = int(_lib.relay_tap_read(unique, address, number, max_bytes, overwrite, ctypes.byref(_end)))
    if got < 0:
        raise failure(-got)
    return got, _end.value


def read_copy(length: int) -> bytes:
    """Return the last `length` bytes of the data of the last read()."""
    data = ctypes.create_string_buffer(length)
    _lib.relay_tap_read_copy(data, length, 0)
    return data.raw


def peek(address: int, skip: int, max_bytes: int) -> tuple[bytes, int]:
    """Return unread data of a relay buffer, and the stream position after it, without consuming it.

    OSError as of read().

    address: of the struct rchan_buf
    skip: how many unread bytes to skip first
    """
    data = ctypes.create_string_buffer(max_bytes)
    got = int(_lib.relay_tap_peek(address, skip, max_bytes, data, ctypes.byref(_end)))
    if got < 0:
        raise failure(-got)
    return data.raw[:got], _end.value


def answers() -> int:
    """Return how many requests were answered without a handler."""
    return int(_lib.relay_tap_answers())


class Lane:
    """The usual reads of an open relay file, which the tap answers without a handler (native/fuse/lane.h).

    close() must come before the buffer is unmapped.

    handle: the number of the open file
    source: the buffer
    most: the most bytes of one answer
    is_told: whether handlers are to be called for all reads of the buffer
    """

    def __init__(self, handle: int, source: Source, most: int, is_told: Flag) -> None:
        address, number, overwrite = source
        word = ctypes.pointer(is_told.word)
        self._lane = _Lane(fh=handle, buf=address, number=number, most=most, is_told=word, overwrite=overwrite)
        _lib.relay_tap_lane_open(ctypes.byref(self._lane))

    def close(self) -> None:
        """Have handlers called for all reads of the file."""
        _lib.relay_tap_lane_close(self._lane.fh)

    def stop(self) -> None:
        """Have a handler called for the next read, until go_on()."""
        self._lane.is_off = 1

    def go_on(self) -> None:
        """Take stop() back."""
        self._lane.is_off = 0

    def set_place(self, noted: memoryview, kept: memoryview, kept_most: int, large: int, kept_of_large: int) -> None:
        """Say where the reader of a file with offsets is, and what is kept of the bytes that it gets.

        noted: the words of a struct relay_lane_noted
        kept: the memory for what is kept
        kept_most: how many bytes are kept
        large, kept_of_large: of a read of at least `large` bytes only so many are kept, unless none were kept before
        """
        lane = self._lane
        lane.noted = _address_of(noted)
        lane.kept, lane.kept_room = _address_of(kept) if kept else None, len(kept)
        lane.kept_most, lane.large, lane.kept_of_large = kept_most, large, kept_of_large


def _address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
