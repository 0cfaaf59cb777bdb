"""The tap in C (native/fuse/tap.c), as Python sees it.

Importing this module loads it; that must happen before pyfuse3 is imported, or the tap stays without effect.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

# FUSE_READ's read_flags: the request comes from read(2) and not from the page cache (linux/fuse.h).
READ_LOCKOWNER = 1 << 1
# FUSE_GETATTR's getattr_flags: of an open file. Only lseek(2) to the end asks so.
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
_lib.relay_tap_backing_close.restype = None
_lib.relay_tap_read.restype = ctypes.c_ssize_t
_lib.relay_tap_read.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_lib.relay_tap_read_copy.restype = None
_lib.relay_tap_read_copy.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_lib.relay_tap_peek.restype = ctypes.c_ssize_t
_lib.relay_tap_peek.argtypes = (
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)

_end = ctypes.c_uint64()


@dataclass(frozen=True)
class Request:
    """What is known of a request; see struct relay_tap_request."""

    unique: int
    pid: int
    uid: int
    gid: int
    io_flags: int
    file_flags: int

    @property
    def nonblocking(self) -> bool:
        """Whether the descriptor has O_NONBLOCK now."""
        return bool(self.file_flags & os.O_NONBLOCK)

    @property
    def from_page_cache(self) -> bool:
        """Whether a READ fills the page cache, where nobody may ever look at the bytes."""
        return not self.io_flags & READ_LOCKOWNER

    @property
    def seeks_end(self) -> bool:
        """Whether a GETATTR is lseek(2) looking for the end of the file."""
        return bool(self.io_flags & GETATTR_FH)


def request() -> Request:
    """Return what is known of the request being handled; only until the handler first awaits something."""
    raw = _lib.relay_tap_request().contents
    return Request(raw.unique, raw.pid, raw.uid, raw.gid, raw.io_flags, raw.file_flags)


def interrupt_fd() -> int:
    """Return the descriptor that is readable while there are interrupts; -1: the tap is not in effect."""
    return int(_lib.relay_tap_interrupt_fd())


def next_interrupt() -> int:
    """Take the next interrupted request's `unique`; 0: there is none."""
    return int(_lib.relay_tap_interrupt_next())


def next_terminal() -> int:
    """Take the handle of an open file of which somebody asked whether it is a terminal; 0: there is none."""
    return int(_lib.relay_tap_terminal_next())


def has_passthrough() -> bool:
    """Whether files of this mount can be mapped."""
    return bool(_lib.relay_tap_has_passthrough())


def backing_open(descriptor: int) -> int:
    """Register a file to be mapped in place of one of ours."""
    backing = int(_lib.relay_tap_backing_open(descriptor))
    if backing < 0:
        raise OSError(-backing, os.strerror(-backing))
    return backing


def backing_close(backing: int) -> None:
    """Take the registration back; files that are open keep it."""
    _lib.relay_tap_backing_close(backing)


def open_stream(unique: int) -> None:
    """Make the file that this request opens a stream, without a position."""
    _lib.relay_tap_open_stream(unique)


def open_backed(unique: int, backing: int) -> None:
    """Let mappings of the file that this request opens be those of a registered one."""
    _lib.relay_tap_open_backed(unique, backing)


def read(unique: int, address: int, max_bytes: int, overwrite: bool) -> tuple[int, int]:
    """Let the reply to this request carry and consume what is next in a buffer.

    Return how many bytes, and the stream position behind them.

    unique: the request; its handler must return next, without awaiting
    address: of the struct rchan_buf
    """
    got = int(_lib.relay_tap_read(unique, address, max_bytes, overwrite, ctypes.byref(_end)))
    if got < 0:
        raise OSError(-got, os.strerror(-got))
    return got, _end.value


def read_copy(length: int) -> bytes:
    """Return the last bytes, so many, that read() has just described."""
    data = ctypes.create_string_buffer(length)
    _lib.relay_tap_read_copy(data, length)
    return data.raw


def peek(address: int, skip: int, max_bytes: int) -> tuple[bytes, int]:
    """Return what is unread in a buffer, and the stream position behind it; leave it unread.

    address: of the struct rchan_buf
    skip: how many bytes to leave out before it
    """
    data = ctypes.create_string_buffer(max_bytes)
    got = int(_lib.relay_tap_peek(address, skip, max_bytes, data, ctypes.byref(_end)))
    if got < 0:
        raise OSError(-got, os.strerror(-got))
    return data.raw[:got], _end.value
