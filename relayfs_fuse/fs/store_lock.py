"""The lock of a store: a store has one server at a time.

    STORE/.lock     locked by flock(2); contains `process PID, mounted at MNT`, or `process PID, unmounted`

The process is the supervisor of the mount (cli/supervisor.py), which has the lock while one server follows another.

A server whose mount was detached (umount -l) goes on as long as programs have files of the mount open or mapped. When
the store is mounted again, the new server sends the old one SIGTERM and waits for its lock. Programs keep their
mappings of the buffers and go on writing.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time

from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs import mounts
from relayfs_fuse.native.tables import PERMS

# How long to wait for the lock. That of a killed server is released only after the kernel has freed the memory.
LOCK_WAIT_S = 10.0
LOCK_NAME = ".lock"
# The socket of the supervisor that has the lock.
SOCKET_NAME = ".supervisor"

_HOLDER = re.compile(r"process (?P<pid>[0-9]+), (?:mounted at (?P<place>.*)|unmounted)", re.DOTALL)


class StoreLock:
    """The lock, from the constructor to close(); StoreError: another server has it.

    directory: the store
    mountpoint: where this server is going to mount the store
    locked: the descriptor of the locked file, and the process that took the lock, if that was before this program ran
    """

    def __init__(self, directory: str, mountpoint: str, locked: tuple[int, int] | None = None) -> None:
        if locked is not None:
            self._descriptor, self._holds = locked
            return
        path = os.path.join(directory, LOCK_NAME)
        self._holds = os.getpid()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PERMS["OWN"])
        try:
            self._take(directory)
            self._write_state(f"mounted at {mountpoint}")
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the locked file."""
        return self._descriptor

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def note_unmounted(self) -> None:
        """Note that the mount is detached, so that another server may ask this one to end."""
        self._write_state("unmounted")

    def _take(self, directory: str) -> None:
        deadline, asked = time.monotonic() + LOCK_WAIT_S, False
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
            if not asked:
                asked = self._ask_to_end(holder)
            if time.monotonic() > deadline or (_is_alive(holder) and _is_mounted(holder)):
                raise StoreError(
                    f"the store {directory} is already served ({holder or 'by a server that is starting'}); "
                    f"a store has one server: use that mount, or another store with -o store=DIR"
                ) from None
            time.sleep(0.02)

    def _holder(self) -> str:
        return os.fsdecode(os.pread(self._descriptor, 8192, 0)).strip()

    def _ask_to_end(self, holder: str) -> bool:
        """Send SIGTERM to the process that has the lock, if it is unmounted; return whether the signal was sent."""
        found = _HOLDER.fullmatch(holder)
        if found is None or found["place"] is not None:
            return False
        try:
            process = os.pidfd_open(int(found["pid"]))
        except OSError:
            return False
        try:
            # The process may have ended before pidfd_open(), and its number been reused. If .lock still has the same
            # text, it has not.
            if self._holder() != holder:
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except OSError:
            return False
        finally:
            os.close(process)
        return True

    def _write_state(self, state: str) -> None:
        """Write the number of the process that took the lock, and the state of its mount, into .lock."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, os.fsencode(f"process {self._holds}, {state}\n"), 0)


def _is_mounted(holder: str) -> bool:
    """Whether the text of .lock names a mountpoint, and a mount of relayfs is there."""
    found = _HOLDER.fullmatch(holder)
    if found is None or found["place"] is None:
        return False
    top = mounts.top_at(found["place"])
    return top is not None and top.kind == mounts.KIND


def _is_alive(holder: str) -> bool:
    """Whether the process that the text of .lock names runs, and is not exiting."""
    found = _HOLDER.fullmatch(holder)
    try:
        with open(f"/proc/{found['pid'] if found else ''}/stat", encoding="ascii", errors="replace") as file:
            # The fields after the program's name, from the state on. A process in state Z or X is dead; one that is
            # being killed has state R or D, and PF_EXITING (4) among its flags.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & 0x4
