"""System calls that Python does not have, or not as they are."""

import ctypes
import errno
import faulthandler
import mmap
import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path

from mounts import opened

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_ssize_t
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mremap.restype = ctypes.c_ssize_t
LIBC.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library; OSError where it returns -1."""
    result = int(getattr(LIBC, name)(*arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def map_memory(
    descriptor: int, length: int, offset: int = 0, *, flags: int = mmap.MAP_SHARED, protection: int = mmap.PROT_READ
) -> int:
    """Do as mmap(2), whose length Python's compares with st_size; return the address."""
    return call("mmap", None, length, protection, flags, descriptor, offset)


def write(path: Path, data: bytes) -> None:
    """Write one record."""
    with opened(path, os.O_WRONLY) as descriptor:
        os.write(descriptor, data)


def events(descriptor: int, mask: int = 0xFFFF, timeout_ms: int = 0) -> int:
    """Return what poll(2) says of one descriptor."""
    poll = select.poll()
    poll.register(descriptor, mask)
    return next((events for _, events in poll.poll(timeout_ms)), 0)


def name_of(error: OSError) -> str:
    """Return the name of an errno as the tables have it."""
    name = errno.errorcode[error.errno or 0]
    return "ENOTSUP" if name == "EOPNOTSUPP" else name


def how_it_ends(act: Callable[[], object]) -> str:
    """Run something in a child; return the signal that ended it, or "exit" and its status."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            act()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"
