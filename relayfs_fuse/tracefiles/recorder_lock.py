"""Which recorder a trace has: one at a time, because two would share its packets between them.

    STORE/TRACE/.recorder     locked by the recorder as long as it lives, and says who that is

The kernel lets go of the lock with the recorder, however that ends, so a successor never waits for a dead one.
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

_NAME = ".recorder"
_FLOCK = struct.Struct("hhqqi4x")
_WHO_BYTES = 1024
# Who has the lock writes its name into the file a moment later.
_TRIES, _PAUSE_S = 50, 0.02


class RecorderLock:
    """Be the recorder of a trace until close().

    directory: of the trace, in the store

    RelayError: another recorder is
    """

    def __init__(self, directory: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(os.path.join(directory, _NAME), flags, 0o600)
        try:
            # Of the open file, so that nothing else which this process closes ends it.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            _sign(self._descriptor)
        except BlockingIOError:
            other = _read(self._descriptor)
            self.close()
            raise RelayError(f"another recorder has this trace: {other}") from None
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Let another one be."""
        os.close(self._descriptor)


def holder(directory: str) -> str | None:
    """Tell which recorder a trace has; None: it has none."""
    try:
        descriptor = os.open(os.path.join(directory, _NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # It is only looked at: to take it for a moment could turn away a recorder that begins just then.
        looked = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        return None if _FLOCK.unpack(looked)[0] == fcntl.F_UNLCK else _read(descriptor)
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Say who has the lock; where a store is full nobody is told, as what lies in it is to be recorded all the more."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _who().encode(errors="replace"), 0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _who() -> str:
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    return f"pid {os.getpid()} of {user} on {socket.gethostname()}\n"


def _read(descriptor: int) -> str:
    """Read who has the lock."""
    for _ in range(_TRIES):
        line = os.pread(descriptor, _WHO_BYTES, 0).decode(errors="replace")
        if line.endswith("\n"):
            return line.strip()
        time.sleep(_PAUSE_S)
    return "it has not said which"
