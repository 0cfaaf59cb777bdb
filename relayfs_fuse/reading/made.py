"""What tells a directory of a store from a later one of the same path, as that of a channel that was made again."""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME = -100, 0x100, 0x800
# struct statx: stx_mask is its first member; seconds and nanoseconds of stx_btime are at _BTIME_AT.
_STATX_BYTES, _BTIME_AT = 256, 80
_TIME = struct.Struct("<qI")


def made_as(directory: str) -> str:
    """Return INODE-TIME: the number of its inode and, where the file system says it, when that was made.

    A number alone may be given to a later directory on some file systems. OSError: there is no such directory.
    """
    seconds, nanoseconds = _birth_of(directory)
    return f"{os.lstat(directory).st_ino}-{seconds}.{nanoseconds:09}"


def _birth_of(path: str) -> tuple[int, int]:
    """Return when an inode was made, in seconds and nanoseconds since 1970; 0, 0: nobody says."""
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    if not int.from_bytes(found.raw[:4], "little") & _STATX_BTIME:
        return 0, 0
    seconds, nanoseconds = _TIME.unpack_from(found, _BTIME_AT)
    return seconds, nanoseconds
