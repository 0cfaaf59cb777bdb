"""Try single operations on files of a mount, as whatever user this runs as.

Lines of JSON come in, {"operation": ..., "path": ..., ...}; answers go out: "yes", "ignored", or the errno's name.
It is run by its text (python -c), as other users cannot enter the clone.
"""

import ctypes
import errno
import json
import mmap
import os
import select
import sys

from relayfs_fuse import Channel, Counters

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
READ, WRITE, BOTH = os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY, os.O_RDWR
BYTES = 4096


class Opened:
    """A descriptor, closed at the end."""

    def __init__(self, path: str, flags: int) -> None:
        self.fd = os.open(path, flags)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *args: object) -> None:
        os.close(self.fd)


def opens(path: str, flags: int) -> None:
    with Opened(path, flags):
        pass


def text(path: str) -> str:
    with Opened(path, READ) as fd:
        return os.read(fd, 1 << 20).decode(errors="replace")


def read(path: str) -> str:
    with Opened(path, READ) as fd:
        os.read(fd, 1 << 16)
        return "yes"


def write(path: str, text: str = "record\n") -> str:
    with Opened(path, WRITE) as fd:
        return "yes" if os.write(fd, text.encode()) == len(text) else "in part"


def seek(path: str) -> None:
    with Opened(path, READ) as fd:
        os.lseek(fd, 0, os.SEEK_END)


def poll(path: str) -> str:
    with Opened(path, READ) as fd:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        events = dict(poller.poll(0)).get(fd, 0)
        return "no" if events & (select.POLLERR | select.POLLNVAL) else "yes"


def maps(path: str, flags: int, protection: int) -> None:
    """Map a page; not by Python's mmap, which refuses what is longer than the file says it is."""
    with Opened(path, flags) as fd:
        address = LIBC.mmap(None, BYTES, protection, mmap.MAP_SHARED, fd, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        ctypes.string_at(address, BYTES)
        LIBC.munmap(address, BYTES)


def truncate(path: str) -> str:
    before = os.stat(path).st_size
    os.truncate(path, 0)
    # The size of some files changes all the time.
    return "yes" if before and os.stat(path).st_size == 0 else "ignored"


def fallocate(path: str) -> None:
    with Opened(path, WRITE) as fd:
        if LIBC.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(1 << 30)):
            raise OSError(ctypes.get_errno(), "fallocate")


def splice(path: str) -> None:
    reader, writer = os.pipe()
    try:
        with Opened(path, READ) as fd:
            os.splice(fd, writer, BYTES, flags=os.SPLICE_F_NONBLOCK)
    finally:
        os.close(reader)
        os.close(writer)


def rename(path: str) -> None:
    os.rename(path, f"{path}-renamed")


def link(path: str) -> None:
    os.link(path, f"{path}-linked")


def chown(path: str) -> None:
    os.chown(path, 60_009, -1)


def adjust(path: str, counter: str) -> str:
    """Count through the library."""
    with Counters(path) as counters:
        counters.add(counter).adjust()
        return "yes"


def library(path: str) -> str:
    """Write a record through the library."""
    with Channel(path) as channel:
        channel.write(b"record\n")
    return "yes"


def restore(path: str, attributes: str) -> None:
    mode, uid, gid = json.loads(attributes)
    os.chown(path, uid, gid)
    os.chmod(path, mode)


OPERATIONS = {
    "list": os.listdir,
    "stat": os.stat,
    "open to read": lambda path: opens(path, READ),
    "open to write": lambda path: opens(path, WRITE),
    "open to read and write": lambda path: opens(path, BOTH),
    "read": read,
    "write": write,
    "poll": poll,
    "seek to the end": seek,
    "map to read": lambda path: maps(path, READ, mmap.PROT_READ),
    "map to write": lambda path: maps(path, BOTH, mmap.PROT_READ | mmap.PROT_WRITE),
    "truncate": truncate,
    "fallocate": fallocate,
    "splice": splice,
    "link": link,
    "rename": rename,
    "remove": os.unlink,
    "make a directory in it": lambda path: os.mkdir(f"{path}/made"),
    "make a file in it": lambda path: os.close(os.open(f"{path}/made", os.O_CREAT | os.O_WRONLY)),
    "remove the directory": os.rmdir,
    "change the mode": lambda path: os.chmod(path, 0o777),
    "change the owner": chown,
    "change the group": lambda path: os.chown(path, -1, os.getgid()),
    "set an attribute": lambda path: os.setxattr(path, "user.probe", b"value"),
    "ask for the backing file": lambda path: os.getxattr(path, "user.relayfs.backing"),
    "ask for the space": os.statvfs,
    "library": library,
    "adjust": adjust,
    "command": write,
    # For who arranges things, not to be tried.
    "make the directory": os.mkdir,
    "attributes": lambda path: json.dumps([os.stat(path).st_mode & 0o7777, os.stat(path).st_uid, os.stat(path).st_gid]),
    "restore": restore,
    "names": lambda path: json.dumps(os.listdir(path)),
    "text": lambda path: json.dumps(text(path)),
}


def attempt(operation: str, path: str, **arguments: str) -> str:
    try:
        result = OPERATIONS[operation](path, **arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return result if isinstance(result, str) else "yes"


if __name__ == "__main__":
    for line in sys.stdin:
        print(attempt(**json.loads(line)), flush=True)
