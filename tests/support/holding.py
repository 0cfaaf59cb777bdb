"""Keep the kernel's lock of a directory, so that no name in it can be made or removed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
from mounts import DEADLINE_S

# Sleeps in getdents64(2) on argv[1], which keeps the directory locked, because nobody fills the memory for its answer.
HOLDER = """
import ctypes, mmap, os, signal, struct, sys, threading
signal.alarm(int(sys.argv[2]))
libc = ctypes.CDLL(None, use_errno=True)
is_x86 = os.uname().machine == "x86_64"
memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
faults = libc.syscall(323 if is_x86 else 282, os.O_CLOEXEC)
api = ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, 0, 0))
register = ctypes.create_string_buffer(struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0))
assert libc.ioctl(faults, ctypes.c_ulong(0xC018AA3F), api) == 0
assert libc.ioctl(faults, ctypes.c_ulong(0xC020AA00), register) == 0
directory = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
list_it = (217 if is_x86 else 61, directory, ctypes.c_void_p(address), mmap.PAGESIZE)
threading.Thread(target=libc.syscall, args=list_it).start()
os.read(faults, 32)
print("held", flush=True)
"""


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """Keep that of a directory; what waits for it goes on after the deadline, and has failed."""
    command = [sys.executable, "-c", HOLDER, directory, str(int(DEADLINE_S))]
    with forking.start(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield
            assert holder.poll() is None, f"something waits for {directory}"
        finally:
            holder.kill()
