"""inotify(7): what appears in a directory."""

from __future__ import annotations

import ctypes
import os
import struct

CREATE = 0x100
MOVED_TO = 0x80
MOVED_FROM = 0x40
DELETE = 0x200
DELETE_SELF = 0x400
OVERFLOW = 0x4000

_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """Watch directories; poll(2) tells when there is something to read()."""

    def __init__(self) -> None:
        self._descriptor = _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), None)

    def add(self, path: str, mask: int) -> int:
        """Watch a path; return the number of the watch."""
        return _check(_libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask), path)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._descriptor

    def read(self) -> list[tuple[int, int, str]]:
        """Return what happened: (watch, mask, name) each."""
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            found.append((watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))))
            at += length
        return found

    def close(self) -> None:
        """Watch no more."""
        os.close(self._descriptor)


def _check(result: int, path: str | None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return result
