"""The lock of a trace's recorder: only one at a time, because two would share the packets between them.

    STORE/TRACE/.recorder     locked by the recorder as long as it lives; contains a text that identifies it

The kernel releases the lock however the recorder ends, so its successor never waits for a dead process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import socket
import struct
import time

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.tables import PERMS

_NAME = ".recorder"
_FLOCK = struct.Struct("hhqqi4x")
_HOLDER_BYTES = 1024
# The holder writes the text a moment after it has taken the lock.
_TRIES, _RETRY_S = 50, 0.02


class RecorderLock:
    """Take the lock of a trace's recorder, until close().

    directory: of the trace, in the store

    RelayError: another recorder has it
    """

    def __init__(self, directory: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(os.path.join(directory, _NAME), flags, PERMS["OWN"])
        try:
            # A lock of the open file, so that it does not end when this process closes another descriptor of the file.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            _write_holder(self._descriptor)
        except BlockingIOError:
            other = _read(self._descriptor)
            self.close()
            raise RelayError(f"another recorder has this trace: {other}") from None
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def holder(directory: str) -> str | None:
    """Return the text that identifies a trace's recorder; None: it has none."""
    try:
        descriptor = os.open(os.path.join(directory, _NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Test the lock without taking it, which could make a recorder fail that begins just then.
        looked = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        return None if _FLOCK.unpack(looked)[0] == fcntl.F_UNLCK else _read(descriptor)
    finally:
        os.close(descriptor)


def _write_holder(descriptor: int) -> None:
    """Write this process's text; if the store is full, leave it out, because recording is then all the more useful."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _describe_self().encode(errors="replace"), 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _describe_self() -> str:
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    return f"pid {os.getpid()} of {user} on {socket.gethostname()}\n"


def _read(descriptor: int) -> str:
    """Read the holder's text."""
    for _ in range(_TRIES):
        line = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
        if line.endswith("\n"):
            return line.strip()
        time.sleep(_RETRY_S)
    return "it has not said which"
