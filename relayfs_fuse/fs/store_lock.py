"""One server for each store: who has it, and how another one gets it.

    STORE/.lock     locked by flock(2); `process PID, mounted at MNT`, or `process PID, unmounted`

A server whose mount was detached (umount -l) goes on while programs have its files open or mapped. It hands the store
over as soon as it is mounted again: the new server asks it to end. Programs keep what they have mapped, and write on.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time

from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs import mounts

# A server that was killed gives up its lock only when the kernel has taken its memory apart.
LOCK_WAIT_S = 10.0
LOCK_NAME = ".lock"

_HOLDER = re.compile(r"process (?P<pid>[0-9]+), (?:mounted at (?P<place>.*)|unmounted)", re.DOTALL)


class StoreLock:
    """Keep other servers away: each would have its own idea of what exists, and give out the same names.

    directory: the store
    mountpoint: where it will be mounted

    StoreError: another server has it.
    """

    def __init__(self, directory: str, mountpoint: str) -> None:
        path = os.path.join(directory, LOCK_NAME)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._take(directory)
            self._sign(f"mounted at {mountpoint}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another server have it."""
        os.close(self._descriptor)

    def give_way(self) -> None:
        """Let a server that wants the store know that this one serves only what is still open."""
        self._sign("unmounted")

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
        """Have the process that has the lock end, if its mount is gone; False: it is not, or another one has it now."""
        found = _HOLDER.fullmatch(holder)
        if found is None or found["place"] is not None:
            return False
        try:
            process = os.pidfd_open(int(found["pid"]))
        except OSError:
            return False
        try:
            # The number may have been another's before it was opened, but not after.
            if self._holder() != holder:
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except OSError:
            return False
        finally:
            os.close(process)
        return True

    def _sign(self, state: str) -> None:
        """Name this process and its mount, for those who find the lock taken."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, os.fsencode(f"process {os.getpid()}, {state}\n"), 0)


def _is_mounted(holder: str) -> bool:
    """Whether the mount that the lock names is there; one that was detached will be said to be unmounted soon."""
    found = _HOLDER.fullmatch(holder)
    if found is None or found["place"] is None:
        return False
    top = mounts.top_at(found["place"])
    return top is not None and top.kind == mounts.KIND


def _is_alive(holder: str) -> bool:
    """Whether the lock's holder runs, as opposed to having been killed a moment ago."""
    found = _HOLDER.fullmatch(holder)
    try:
        with open(f"/proc/{found['pid'] if found else ''}/stat", encoding="ascii", errors="replace") as file:
            # The state stands behind the program's name; Z and X are dead, and a killed process is in R or D with
            # PF_EXITING among its flags.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & 0x4
