"""Accounting for the store's memory: how much each user holds, and how much more he may have.

Each file of the store is charged to its owner, by inode number. Commands add and remove charges when they make and
remove channels. Programs can make other files without a command, such as those of traces. So the store is surveyed from
time to time, and the files that the survey finds replace the charges (`begin_survey`, `end_survey`).

A removed channel keeps its memory while a program has it open or mapped. Its files have no names then, so a survey
cannot find them. They stay charged until the server closes them (`unname`, `release`).

Files are charged before they are made (`claim`), so that two commands at the same time cannot both take the last room.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.cgroup import memory_limit
from relayfs_fuse.fs.commands.control import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNLIMITED = sys.maxsize
# The default of user_files. Each mapped file takes a few kilobytes of the server's memory, a descriptor and a mapping.
USER_FILES = 4096
# How many users an error message names.
NAMED_MAX = 4


class Charge(NamedTuple):
    """The memory of one file.

    uid: the user who is charged
    counts: whether it is a file of a channel, which counts for user_files because the server keeps it open
    """

    uid: int
    n_bytes: int
    counts: bool = False


# Most files of channels have the same owner and size: they share their charge.
shared_charge = functools.lru_cache(maxsize=1024)(Charge)


@dataclass(frozen=True)
class Limits:
    """How much of a store users may take. A size may be None, the default, or UNLIMITED.

    size: the bytes of all files together
    user_size: the bytes of all files of one user, other than root and the store's owner
    user_files: the number of files and directories of channels of one such user
    """

    size: int | None = None
    user_size: int | None = None
    user_files: int = USER_FILES

    def in_store(self, directory: str) -> tuple[int, int]:
        """Return size and user_size, with the defaults computed for the store in this directory; OSError."""
        status = os.statvfs(directory)
        default = min(memory_total(), status.f_blocks * status.f_frsize) // 4
        size = default if self.size is None else self.size
        user_size = min(size, default * 2) // 2 if self.user_size is None else self.user_size
        return size, user_size


class Ledger:
    """The charges of a store; every method can be called in any thread.

    limits: the limits of the mount
    directory: of the store
    size, user_size, user_files: the limits, with defaults
    users_files: the most files and directories of all users, other than root and the store's owner, together
    """

    def __init__(self, limits: Limits, directory: str) -> None:
        self.size, self.user_size = limits.in_store(directory)
        self.user_files = limits.user_files
        self.users_files = _files_of_all_users()
        self._privileged = {0, os.geteuid()}
        self._lock = threading.Lock()
        self._charges: dict[int, Charge] = {}
        self._unnamed: set[int] = set()
        self._directories: dict[str, int] = {}
        # The files other than channels'; and, since the last survey began, the files whose charges have changed, and
        # the directories that were made.
        self._others: set[int] = set()
        self._changed: set[int] = set()
        self._made: set[str] = set()
        self._claimed: list[Charge] = []
        # Sums of the charges, so that the time of a check does not depend on the number of files.
        self._all_bytes = 0
        self._bytes: Counter[int] = Counter()
        self._files: Counter[int] = Counter()  # of channels, and implicit directories

    # ---------------------------------------------------------------- charges

    def add(self, charges: Mapping[int, Charge]) -> None:
        """Set the charges of files, by inode number."""
        with self._lock:
            for inode, charge in charges.items():
                self._put(inode, charge)

    def unname(self, charges: Mapping[int, Charge]) -> None:
        """Set the charges of files that lose their names; a survey keeps them until release()."""
        with self._lock:
            for inode, charge in charges.items():
                self._put(inode, charge)
            self._unnamed.update(charges)

    def release(self, inode: int) -> None:
        """Remove the charge of a file that has no name, because it was closed."""
        with self._lock:
            self._unnamed.discard(inode)
            self._put(inode, None)

    def add_directory(self, path: str, uid: int) -> None:
        """Charge an implicit directory to a user."""
        if uid not in self._privileged:
            with self._lock:
                self._drop_directory(path)
                self._directories[path] = uid
                self._files[uid] += 1
                self._made.add(path)

    def remove_directory(self, path: str) -> None:
        """Remove the charge of a directory."""
        with self._lock:
            self._drop_directory(path)

    def begin_survey(self) -> None:
        """Begin a survey; there must be only one at a time."""
        with self._lock:
            self._changed.clear()
            self._made.clear()

    def end_survey(self, found: Mapping[int, Charge], directories: set[str]) -> None:
        """Replace the charges of files by those found in a survey; channels' files may be missing there.

        Charges that have changed since it began, and those of files that have lost their names, stay.

        directories: the paths of all directories that were found
        """
        with self._lock:
            fixed = self._changed | self._unnamed
            for inode in self._others - found.keys() - fixed:
                self._set(inode, None)
            for inode, charge in found.items():
                if inode not in fixed:
                    known = self._charges.get(inode)
                    self._set(inode, charge._replace(counts=known is not None and known.counts))
            for path in self._directories.keys() - directories - self._made:
                self._drop_directory(path)

    def recharge(self, charges: Mapping[int, Charge]) -> None:
        """Set the charges of files that are charged already."""
        with self._lock:
            for inode, charge in charges.items():
                if inode in self._charges:
                    self._put(inode, charge)

    def _put(self, inode: int, charge: Charge | None) -> None:
        """Change a charge while a survey may be under way."""
        self._changed.add(inode)
        self._set(inode, charge)

    def _set(self, inode: int, charge: Charge | None) -> None:
        before = self._charges.pop(inode, None)
        self._others.discard(inode)
        if before is not None:
            self._bytes[before.uid] -= before.n_bytes
            self._all_bytes -= before.n_bytes
            self._files[before.uid] -= before.counts
        if charge is not None:
            self._charges[inode] = charge
            self._bytes[charge.uid] += charge.n_bytes
            self._all_bytes += charge.n_bytes
            self._files[charge.uid] += charge.counts
            if not charge.counts:
                self._others.add(inode)

    def _drop_directory(self, path: str) -> None:
        uid = self._directories.pop(path, None)
        if uid is not None:
            self._files[uid] -= 1

    # ---------------------------------------------------------------- limits

    def room_bytes(self, uid: int | None = None) -> int:
        """Return how many more bytes the limits allow to a user; None: to all users together."""
        with self._lock:
            return max(0, self._room_bytes(uid))

    def check_bytes(self, need: int, uid: int) -> None:
        """Raise CommandError: ENOSPC if the limits do not allow a user `need` more bytes."""
        with self._lock:
            self._check_bytes(need, uid)

    def check_files(self, need: int, uid: int) -> None:
        """Raise CommandError: ENOSPC if the limits do not allow a user `need` more files and directories."""
        if uid in self._privileged:
            return
        with self._lock:
            has = self._files[uid]
            all_have = sum(n for user, n in self._files.items() if user not in self._privileged)
        if has + need > self.user_files:
            raise CommandError(
                errno.ENOSPC,
                f"it takes {need} files and directories; user {uid} has {has}, at most user_files={self.user_files} "
                "are allowed",
            )
        if all_have + need > self.users_files:
            raise CommandError(
                errno.ENOSPC,
                f"it takes {need} files and directories; users other than the server's have {all_have}, at most "
                f"{self.users_files} are allowed, as the server keeps each open",
            )

    @contextmanager
    def claim(self, need: int, uid: int) -> Iterator[None]:
        """Count `need` bytes as taken in the body of the `with` statement, which makes files; CommandError: ENOSPC."""
        charge = Charge(uid, need)
        with self._lock:
            self._check_bytes(need, uid)
            self._claimed.append(charge)
        try:
            yield
        finally:
            with self._lock:
                self._claimed.remove(charge)

    def _room_bytes(self, uid: int | None) -> int:
        room = self.size - self._all_bytes - sum(charge.n_bytes for charge in self._claimed)
        if uid is None or uid in self._privileged:
            return room
        return min(room, self._user_room_bytes(uid))

    def _user_room_bytes(self, uid: int) -> int:
        claimed = sum(charge.n_bytes for charge in self._claimed if charge.uid == uid)
        return self.user_size - self._bytes[uid] - claimed

    def _check_bytes(self, need: int, uid: int) -> None:
        if uid not in self._privileged and need > self._user_room_bytes(uid):
            unnamed = sum(self._charges[inode].n_bytes for inode in self._unnamed if self._charges[inode].uid == uid)
            still = f", {unnamed} of them in removed channels that are still open" if unnamed else ""
            raise CommandError(
                errno.ENOSPC,
                f"{need} bytes are needed; {max(0, self._user_room_bytes(uid))} are left of the limit "
                f"user_size={format_size(self.user_size)}: user {uid} has {self._bytes[uid]} bytes{still}",
            )
        if need > self._room_bytes(None):
            holders = [f"user {user} has {held}" for user, held in self._bytes.most_common(NAMED_MAX) if held]
            raise CommandError(
                errno.ENOSPC,
                f"{need} bytes are needed; {max(0, self._room_bytes(None))} are left of the limit "
                f"size={format_size(self.size)}" + (": " + ", ".join(holders) if holders else ""),
            )


def memory_total() -> int:
    """Return the bytes of memory of the machine or, if that is less, that the server's control groups allow."""
    machine, limit = _memory("MemTotal"), memory_limit()
    return machine if limit is None else min(machine, limit)


def memory_available() -> int:
    """Return how many bytes can be allocated without swapping; statvfs(2) of a tmpfs can say more."""
    return _memory("MemAvailable")


def _memory(key: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return UNLIMITED


def _files_of_all_users() -> int:
    """Return how many files the server can keep mapped for other users: a part of its descriptors and mappings."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        mappings = int(file.read())
    most = UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors
    return min(most // 2, mappings // 8)
