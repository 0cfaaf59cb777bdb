"""Python declarations of the tap, a C library between libfuse and the kernel (native/fuse/tap.h).

Importing this module loads the tap. That must happen before pyfuse3 is imported; otherwise the tap has no effect.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import failure

if TYPE_CHECKING:
    import mmap

# read_flags of FUSE_READ (linux/fuse.h): the request comes from read(2) and not from the page cache.
READ_LOCKOWNER = 1 << 1
# In the number of a request: the kernel has sent it before, to a server that died.
RESENT = 1 << 63
# getattr_flags of FUSE_GETATTR: the request is about an open file. The kernel sends such only for lseek(2) to the end.
GETATTR_FH = 1 << 0

library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "../lib/librelayfs_tap.so"), mode=ctypes.RTLD_GLOBAL)


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


library.relay_tap_request.restype = ctypes.POINTER(_Request)
library.relay_tap_request.argtypes = ()
library.relay_tap_interrupt_next.restype = ctypes.c_uint64
library.relay_tap_interrupt_next.argtypes = ()
library.relay_tap_terminal_next.restype = ctypes.c_uint64
library.relay_tap_terminal_next.argtypes = ()
library.relay_tap_open_stream.restype = None
library.relay_tap_open_stream.argtypes = (ctypes.c_uint64,)
library.relay_tap_open_backed.restype = None
library.relay_tap_open_backed.argtypes = (ctypes.c_uint64, ctypes.c_int)
library.relay_tap_protocol_minor.restype = ctypes.c_uint
library.relay_tap_protocol_minor.argtypes = ()
library.relay_tap_allow_reads.restype = None
library.relay_tap_allow_reads.argtypes = (ctypes.c_size_t,)
library.relay_tap_backing_close.restype = None
library.relay_handover_last_reply.restype = _Reply
library.relay_handover_last_reply.argtypes = ()
library.relay_handover_use.restype = None
library.relay_handover_use.argtypes = (ctypes.c_void_p, ctypes.c_int)
library.relay_handover_notify_poll.restype = None
library.relay_handover_notify_poll.argtypes = (ctypes.c_int, ctypes.c_uint64)
library.relay_handover_awaits.argtypes = (ctypes.c_int, ctypes.c_uint64)
library.relay_tap_read.restype = ctypes.c_ssize_t
library.relay_tap_read.argtypes = (
    *(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64),
    *(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
)
library.relay_tap_read_copy.restype = None
library.relay_tap_read_copy.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
library.relay_tap_peek.restype = ctypes.c_ssize_t
library.relay_tap_peek.argtypes = (
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


_end = ctypes.c_uint64()


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


def request() -> Request:
    """Return the header of the request that is being handled; a handler must call this before its first await."""
    raw = library.relay_tap_request().contents
    return Request(raw.unique, raw.pid, raw.uid, raw.gid, raw.io_flags, raw.file_flags)


def keep_in(memory: mmap.mmap) -> None:
    """Keep what the kernel and libfuse have agreed upon in the first page of a memory file, for the next server."""
    library.relay_handover_use(ctypes.addressof(ctypes.c_char.from_buffer(memory)), -1)


def take_over(memory: mmap.mmap, device: int) -> None:
    """Have pyfuse3.init() take over the mount of a server that has died, by its descriptor of /dev/fuse."""
    library.relay_handover_use(ctypes.addressof(ctypes.c_char.from_buffer(memory)), device)


def can_hand_over() -> bool:
    """Whether the kernel can send requests again to another server; valid after keep_in() and FUSE_INIT."""
    return bool(library.relay_handover_is_possible())


def session_fd() -> int:
    """Return the descriptor of /dev/fuse; -1: the tap is not in effect."""
    return int(library.relay_tap_session_fd())


def resend() -> None:
    """Have the kernel send all requests again that were not answered; OSError."""
    result = int(library.relay_handover_resend(session_fd()))
    if result < 0:
        raise failure(-result)


def awaits(number: int) -> bool:
    """Whether the kernel waits for the answer to a request, which it has sent to some server; OSError."""
    for unique in (number & ~RESENT, number | RESENT):
        result = int(library.relay_handover_awaits(session_fd(), unique))
        if result < 0:
            raise failure(-result)
        if result:
            return True
    return False


def last_reply() -> tuple[int, int, int]:
    """Return which reply to read() a dead server was sending, or has sent: request, `number`, and stream position.

    0, 0, 0: none, whose data are not consumed yet.
    """
    reply = library.relay_handover_last_reply()
    return (reply.unique, reply.number, reply.end) if reply.unique else (0, 0, 0)


def end_reply() -> None:
    """Note that the data of last_reply() are consumed."""
    library.relay_handover_end_reply()


def notify_poll(poll_handle: int) -> None:
    """Have the kernel ask again what a polled file is ready for; if it is closed, nothing happens.

    poll_handle: as poll_handle() returned it
    """
    library.relay_handover_notify_poll(session_fd(), poll_handle)


def poll_handle() -> int:
    """Return the kernel's number of the file of the FUSE_POLL that is being handled; 0: it need not be notified."""
    return int(library.relay_tap_request().contents.poll_handle)


def interrupt_fd() -> int:
    """Return the descriptor that is readable while next_interrupt() has numbers; -1: the tap is not in effect."""
    return int(library.relay_tap_interrupt_fd())


def next_interrupt() -> int:
    """Return the `unique` of the next request that the kernel wants to be interrupted, once; 0: there is none."""
    return int(library.relay_tap_interrupt_next())


def next_terminal() -> int:
    """Return the file handle of the next open file for which isatty(3) was called, once; 0: there is none."""
    return int(library.relay_tap_terminal_next())


def protocol() -> str:
    """Return the version of the FUSE protocol that this mount uses."""
    return f"7.{library.relay_tap_protocol_minor()}"


def allow_reads(most: int) -> None:
    """Have the kernel make requests of up to so many bytes of long reads, as far as fs.fuse.max_pages_limit permits.

    Before pyfuse3.init().
    """
    library.relay_tap_allow_reads(most)


def has_passthrough() -> bool:
    """Whether the kernel supports passthrough for this mount, which mapping its files needs."""
    return bool(library.relay_tap_has_passthrough())


def backing_open(descriptor: int) -> int:
    """Register a file for passthrough; return its backing id, which is greater than 0; OSError."""
    backing = int(library.relay_tap_backing_open(descriptor))
    if backing < 0:
        raise failure(-backing)
    return backing


def backing_close(backing: int) -> None:
    """Undo backing_open(); open files that use the backing id keep it."""
    library.relay_tap_backing_close(backing)


def open_stream(unique: int) -> None:
    """Let the answer to a FUSE_OPEN say that the file is a stream (FOPEN_STREAM), without a position."""
    library.relay_tap_open_stream(unique)


def open_backed(unique: int, backing: int) -> None:
    """Let the answer to a FUSE_OPEN say that mappings of the file show the registered file with this backing id."""
    library.relay_tap_open_backed(unique, backing)


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
    got = int(library.relay_tap_read(unique, address, number, max_bytes, overwrite, ctypes.byref(_end)))
    if got < 0:
        raise failure(-got)
    return got, _end.value


def read_copy(memory: memoryview, behind: int) -> None:
    """Store bytes of the data of the last read(), those before the last `behind` ones."""
    library.relay_tap_read_copy(ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory), behind)


def peek(address: int, skip: int, max_bytes: int) -> tuple[bytes, int]:
    """Return unread data of a relay buffer, and the stream position after it, without consuming it.

    OSError as of read().

    address: of the struct rchan_buf
    skip: how many unread bytes to skip first
    """
    data = ctypes.create_string_buffer(max_bytes)
    got = int(library.relay_tap_peek(address, skip, max_bytes, data, ctypes.byref(_end)))
    if got < 0:
        raise failure(-got)
    return data.raw[:got], _end.value
