"""Who holds how much of the store's memory, and how much more everybody may have.

Each file of the store is charged to its owner, by inode number. Commands add and remove charges as they make and remove
channels. Programs of the store's own user make files without a command, too, so the store is surveyed from time to
time, and what the survey finds replaces what was known (`begin_survey`, `end_survey`).

A channel that was removed keeps its memory while anybody has it open or mapped. Its files have no names then, so a
survey cannot find them: they stay charged until the server, through whom they are open, closes them (`unname`,
`release`).

What is about to be made is charged before it is there (`claim`), so that two commands at once cannot both take the
last of the room.
"""

from __future__ import annotations

import errno
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
# Each file that the server has mapped takes a few kilobytes of its memory, a descriptor and a mapping.
USER_FILES = 4096
# How many holders of memory a message names.
NAMED_MAX = 4


class Charge(NamedTuple):
    """What one file takes.

    counts: it is a channel's, which the server keeps open
    """

    uid: int
    n_bytes: int
    counts: bool = False


@dataclass(frozen=True)
class Limits:
    """How much of a store its users may take; None: the default, UNLIMITED: as much as there is.

    size: bytes of all files together
    user_size: bytes of all files of one user, other than root and the store's owner
    user_files: how many files and directories of channels one such user has at most
    """

    size: int | None = None
    user_size: int | None = None
    user_files: int = USER_FILES

    def in_store(self, directory: str) -> tuple[int, int]:
        """Return size and user_size, with the defaults for the store in this directory."""
        status = os.statvfs(directory)
        default = min(memory_total(), status.f_blocks * status.f_frsize) // 4
        size = default if self.size is None else self.size
        user_size = min(size, default * 2) // 2 if self.user_size is None else self.user_size
        return size, user_size


class Ledger:
    """Account for the memory of a store; every method can be called in any thread.

    limits: those that were asked for
    directory: the store
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
        self._changed: dict[int, Charge | None] = {}
        self._made: set[str] = set()
        self._claimed: list[Charge] = []
        # Sums, so that a check costs the same whatever the store holds.
        self._all_bytes = 0
        self._bytes: Counter[int] = Counter()
        self._files: Counter[int] = Counter()

    # ---------------------------------------------------------------- what there is

    def add(self, charges: Mapping[int, Charge]) -> None:
        """Charge files, by inode number; or change what they are charged."""
        with self._lock:
            for inode, charge in charges.items():
                self._put(inode, charge)

    def unname(self, charges: Mapping[int, Charge]) -> None:
        """Charge files that lose their names until each is released."""
        with self._lock:
            for inode, charge in charges.items():
                self._put(inode, charge)
            self._unnamed.update(charges)

    def release(self, inode: int) -> None:
        """Drop the charge of a file that has no name and is open no longer."""
        with self._lock:
            self._unnamed.discard(inode)
            self._put(inode, None)

    def add_directory(self, path: str, uid: int) -> None:
        """Note for whom a directory was made above a channel."""
        if uid not in self._privileged:
            with self._lock:
                self._directories[path] = uid
                self._made.add(path)

    def remove_directory(self, path: str) -> None:
        """Note that a directory is gone."""
        with self._lock:
            self._directories.pop(path, None)

    def begin_survey(self) -> None:
        """Say that the files of the store are going to be listed; one such survey at a time."""
        with self._lock:
            self._changed.clear()
            self._made.clear()

    def end_survey(self, found: Mapping[int, Charge], directories: set[str]) -> None:
        """Take over what a survey has found, but for what has changed since it began."""
        with self._lock:
            known = self._charges
            charges = {inode: known[inode] for inode in self._unnamed}
            for inode, charge in found.items():
                counts = inode in known and known[inode].counts
                charges.setdefault(inode, charge._replace(counts=counts))
            for inode, changed in self._changed.items():
                if changed is None:
                    charges.pop(inode, None)
                else:
                    charges[inode] = changed
            there = directories | self._made
            self._directories = {path: uid for path, uid in self._directories.items() if path in there}
            self._charges = charges
            self._sum_up()

    def _put(self, inode: int, charge: Charge | None) -> None:
        self._changed[inode] = charge
        before = self._charges.pop(inode, None)
        if before is not None:
            self._bytes[before.uid] -= before.n_bytes
            self._all_bytes -= before.n_bytes
            self._files[before.uid] -= before.counts
        if charge is not None:
            self._charges[inode] = charge
            self._bytes[charge.uid] += charge.n_bytes
            self._all_bytes += charge.n_bytes
            self._files[charge.uid] += charge.counts

    def _sum_up(self) -> None:
        self._bytes, self._files = Counter(), Counter()
        for charge in self._charges.values():
            self._bytes[charge.uid] += charge.n_bytes
            self._files[charge.uid] += charge.counts
        self._all_bytes = self._bytes.total()

    # ---------------------------------------------------------------- how much more there may be

    def room_bytes(self, uid: int | None = None) -> int:
        """Count how much more the limits let a user have; None: all users together."""
        with self._lock:
            return max(0, self._room_bytes(uid))

    def check_bytes(self, need: int, uid: int) -> None:
        """Refuse what the limits do not let a user have; CommandError: ENOSPC."""
        with self._lock:
            self._check_bytes(need, uid)

    def check_files(self, need: int, uid: int) -> None:
        """Refuse more files and directories than a user may have; CommandError: ENOSPC."""
        if uid in self._privileged:
            return
        with self._lock:
            held = self._files + Counter(self._directories.values())
        has = held[uid]
        all_have = sum(n for user, n in held.items() if user not in self._privileged)
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
        """Hold room for what is going to be made, until it is charged; CommandError: there is none."""
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
    """Return how much memory the machine has, or this server's control groups allow it."""
    machine, limit = _memory("MemTotal"), memory_limit()
    return machine if limit is None else min(machine, limit)


def memory_available() -> int:
    """Ask how much can be allocated without swapping: tmpfs promises more than there is."""
    return _memory("MemAvailable")


def _memory(key: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return UNLIMITED


def _files_of_all_users() -> int:
    """Return how many files the server can keep for users other than its own, and still serve its own."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        mappings = int(file.read())
    most = UNLIMITED if descriptors == resource.RLIM_INFINITY else descriptors
    return min(most // 2, mappings // 8)
