"""Run as a user who may write a channel: try to truncate, grow, keep or tear its memory. Prints what each try came to.

intruder.py FILE [beyond|remove]       FILE: a memory or relay file of a mount
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = -100, 0x400, 0x1000
O_TMPFILE_NAME = "/tmp/relayfs-intruder-%d"
FALLOCATE_MODES = {
    "allocate": 0,
    "keep_size": 1,
    "punch": 3,
    "collapse": 8,
    "zero": 0x10,
    "zero_keep": 0x11,
    "insert": 0x20,
}
FS_IOC_SETFLAGS, FICLONE = 0x40086602, 0x40049409
F_ADD_SEALS = 1033
MREMAP_MAYMOVE = 1
MADV_REMOVE = 9


def call(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def map_all(descriptor: int, length: int) -> int:
    LIBC.mmap.restype = ctypes.c_void_p
    at = LIBC.mmap(None, ctypes.c_size_t(max(length, 4096)), 3, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    assert at != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return int(at)


def beyond(file: str) -> None:
    """Touch what lies behind the end of the memory: a signal for whoever does it."""
    descriptor = os.open(file, os.O_RDWR)
    length = os.fstat(descriptor).st_size
    at = ctypes.c_void_p(map_all(descriptor, length))
    LIBC.mremap.restype = ctypes.c_void_p
    grown = LIBC.mremap(at, ctypes.c_size_t(length), ctypes.c_size_t(2 * length), MREMAP_MAYMOVE)
    ctypes.memset(grown + length + 4096, 1, 1)


def remove(file: str) -> None:
    """Free the memory's pages: they are zeros then."""
    descriptor = os.open(file, os.O_RDWR)
    length = os.fstat(descriptor).st_size
    at = ctypes.c_void_p(map_all(descriptor, length))
    call(LIBC.madvise(at, ctypes.c_size_t(max(length, 4096)), MADV_REMOVE))


class Intruder:
    """One open file, and what can be tried on it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.fd = os.open(file, os.O_RDWR)
        self.length = os.fstat(self.fd).st_size
        self.memory = map_all(self.fd, self.length)
        self.link = f"/proc/self/fd/{self.fd}"
        self.elsewhere = O_TMPFILE_NAME % os.getpid()

    def tries(self) -> dict[str, Callable[[], object]]:
        return {
            **self._lengths(),
            **{f"fallocate {name}": lambda mode=mode: self._fallocate(mode) for name, mode in FALLOCATE_MODES.items()},
            **self._names(),
            **self._descriptors(),
            "copy into it": self._copy_into,
            "sendfile into it": lambda: os.sendfile(self.fd, os.open("/bin/sh", os.O_RDONLY), 0, 8192),
            "append-only": lambda: fcntl.ioctl(self.fd, FS_IOC_SETFLAGS, struct.pack("l", 0x20)),
            "clone": lambda: fcntl.ioctl(self.fd, FICLONE, os.open("/bin/sh", os.O_RDONLY)),
            "seal": lambda: fcntl.fcntl(self.fd, F_ADD_SEALS, 0xF),
            "chmod": lambda: os.fchmod(self.fd, 0o777),
            "swapon": lambda: call(LIBC.swapon(os.fsencode(self.file), 0)),
        }

    def _lengths(self) -> dict[str, Callable[[], object]]:
        return {
            "ftruncate": lambda: os.ftruncate(self.fd, 0),
            "ftruncate longer": lambda: os.ftruncate(self.fd, 1 << 40),
            "truncate": lambda: os.truncate(self.file, 0),
            "truncate through /proc": lambda: os.truncate(self.link, 0),
            "O_TRUNC": lambda: os.open(self.file, os.O_RDWR | os.O_TRUNC),
            "O_TRUNC through /proc": lambda: os.open(self.link, os.O_RDWR | os.O_TRUNC),
            "O_TRUNC of O_PATH": lambda: os.open(
                f"/proc/self/fd/{os.open(self.file, os.O_PATH)}", os.O_RDWR | os.O_TRUNC
            ),
            "ftruncate of another open": lambda: os.ftruncate(os.open(self.link, os.O_RDWR), 0),
            "creat": lambda: os.open(self.file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC),
            "write at the end": lambda: os.pwrite(self.fd, bytes(4096), self.length),
        }

    def _fallocate(self, mode: int) -> None:
        call(LIBC.fallocate(self.fd, mode, ctypes.c_long(0), ctypes.c_long(2 * self.length & -4096)))

    def _names(self) -> dict[str, Callable[[], object]]:
        beside = os.path.join(os.path.dirname(self.file), "mem9")
        return {
            "link": lambda: os.link(self.file, self.elsewhere),
            "link beside": lambda: os.link(self.file, beside),
            "link through /proc": lambda: self._link(AT_FDCWD, self.link, AT_SYMLINK_FOLLOW, self.elsewhere),
            "link through /proc to shm": lambda: self._link(
                AT_FDCWD, self.link, AT_SYMLINK_FOLLOW, "/dev/shm/" + os.path.basename(self.elsewhere)
            ),
            "link of the descriptor": lambda: self._link(self.fd, "", AT_EMPTY_PATH, self.elsewhere),
            "rename": lambda: os.rename(self.file, beside),
            "rename away": lambda: os.rename(self.file, self.elsewhere),
            "unlink": lambda: os.unlink(self.file),
        }

    def _link(self, directory: int, name: str, flags: int, to: str) -> None:
        call(LIBC.linkat(directory, os.fsencode(name), AT_FDCWD, os.fsencode(to), flags))

    def _descriptors(self) -> dict[str, Callable[[], object]]:
        return {"map_files": self._map_files, "file handle": self._file_handle, "backing file": self._backing}

    def _map_files(self) -> None:
        """The file that the mapping is really one of."""
        entries = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        area = next(words[0] for words in entries if words[-1].startswith(os.path.dirname(self.file)))
        os.ftruncate(os.open(f"/proc/self/map_files/{area}", os.O_RDWR), 0)

    def _file_handle(self) -> None:
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
        mount_id = ctypes.c_int()
        call(LIBC.name_to_handle_at(self.fd, b"", handle, ctypes.byref(mount_id), AT_EMPTY_PATH))
        os.ftruncate(call(LIBC.open_by_handle_at(os.open("/dev/shm", os.O_RDONLY), handle, os.O_RDWR)), 0)

    def _backing(self) -> None:
        path = os.getxattr(self.file, "user.relayfs.backing")
        os.ftruncate(os.open(path, os.O_RDWR), 0)

    def _copy_into(self) -> None:
        os.copy_file_range(os.open("/bin/sh", os.O_RDONLY), self.fd, 8192, 0, self.length)


def main() -> None:
    if sys.argv[2:]:
        {"beyond": beyond, "remove": remove}[sys.argv[2]](sys.argv[1])
        return
    intruder = Intruder(sys.argv[1])
    for name, attempt in intruder.tries().items():
        try:
            attempt()
        except OSError as error:
            print(f"{name}: {error.strerror}")
        else:
            print(f"{name}: done")


main()
