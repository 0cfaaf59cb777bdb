"""inotify(7): names that appear in directories and disappear."""

from __future__ import annotations

import ctypes
import os
import struct

from relayfs_fuse.errors import failure

MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
QUEUE_OVERFLOW = 0x4000
IGNORED = 0x8000
ONLY_DIRECTORIES = 0x1000000

_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, path: str | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise failure(code, path)
    return result


class Inotify:
    """Watch directories. The descriptor is readable while there are events."""

    def __init__(self) -> None:
        self._descriptor = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def add(self, path: str, mask: int) -> int:
        """Watch a directory; return the watch's number, the same for the same directory."""
        return _check(_libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask), path)

    def remove(self, watch: int) -> None:
        """Stop watching a directory; a removed directory has no watch any more."""
        _libc.inotify_rm_watch(self._descriptor, watch)

    def events(self) -> list[tuple[int, int, str]]:
        """Return the pending events: watch, mask, name; the watch of QUEUE_OVERFLOW is -1."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            found.append((watch, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))))
            at += length
        return found
