"""The store: the directory on tmpfs that holds all channels, traces and counters of a mount.

    STORE/.root                   an empty file, whose mode and group the mount's root directory shows
    STORE/.lock                   locked by the server of this store, whose process it names
    STORE/.supervisor             the socket on which its supervisor is asked for another version (cli/upgrades.py)
    STORE/.counters/              counters (native/src/counters/format.h)
    STORE/.traces-lost            how many events programs lost that got no buffers of a trace (native/src/trace/lost.c)
    STORE/.traces-lost-UID        the same for programs of other users
    STORE/.traces                 the control file of traces (native/src/trace/control_file.c), which traces/ serves
    STORE/app/                    a plain directory, which holds directories only; implicit ones are marked
                                  (<relayfs/store.h>)
    STORE/app/cpu/mem0 .. memN-1  a channel, of relay buffers or of rings
    STORE/TRACE/                  a trace (fs/traces/registry.py)
    STORE/.early/                 events for traces that do not exist yet (fs/early.py)
    STORE/.crashed/               cards of traced processes that have died (fs/traces/cards.py)
    STORE/.snapshots/             snapshots of traces (fs/traces/snapshots.py)
    STORE/.removed-*              a directory that a server is deleting, once no file in it is open, or was when it died

A channel whose files cannot be used is a DamagedChannel.

The contents of the store are not trusted: symbolic links are not followed, and the library checks files when it opens
them. Only the server's user may open the files, because a program that may write to a file may also truncate it, and
then each program that has it mapped dies of SIGBUS. Other users map the files through the mount, which refuses to
truncate them. All directories belong to the server's user, and no other user may write to them and replace what is in
them. The modes of a channel's mem files say who may use the channel.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError, StoreError
from relayfs_fuse.fs.commands.control import check_name, check_path_length
from relayfs_fuse.fs.early import EARLY_NAME
from relayfs_fuse.fs.kinds.channel import KINDS, BadMemoryError, StoredChannel, mem_names
from relayfs_fuse.fs.kinds.damaged import DamagedChannel
from relayfs_fuse.fs.kinds.mapped import mapped
from relayfs_fuse.fs.kinds.unmapper import unmapper
from relayfs_fuse.fs.ledger import Charge, Ledger, Limits, memory_available, shared_charge
from relayfs_fuse.fs.own_path import stranger_above
from relayfs_fuse.fs.protection import REMOVED, Protection, delete, delete_removed, delete_when_closed
from relayfs_fuse.fs.store_lock import LOCK_NAME, SOCKET_NAME, StoreLock
from relayfs_fuse.fs.survey import Survey
from relayfs_fuse.native.store import TRACES_NAME
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles.snapshots import SNAPSHOTS_NAME

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

# make_room() does not make a survey if the last one was made less than so long ago.
FRESH_S = 0.5
# How many channels' files a survey looks at: a command makes them, and they hardly ever change.
RECHARGED_MAX = 128
# How long make_room() waits for memory that is being unmapped.
FREEING_S = 2.0
# st_nlink of a directory in which there is no other one, and st_size of one of tmpfs in which there is nothing.
NLINK_EMPTY, SIZE_EMPTY = 2, 40
ROOT_NAME = ".root"
COUNTERS_NAME, CRASHED_NAME = ".counters", ".crashed"
LOST_NAME = ".traces-lost"


@dataclass(frozen=True)
class Problem:
    """A part of the store that the mount cannot show, and the reason."""

    path: str
    message: str


@dataclass(frozen=True)
class Unread:
    """A directory that has files, and was not looked into: that of a channel, if they can be used.

    inode: its inode number
    """

    path: str
    inode: int


@dataclass(frozen=True)
class Removed:
    """A channel that a server which died was removing, and that is removed now."""

    path: str


# What scan() yields: the path of a plain directory, or one of these.
Found: TypeAlias = str | Unread | Problem
# What load() yields: the path of a plain directory, a channel, or a part of the store that cannot be shown.
Loaded: TypeAlias = str | StoredChannel | DamagedChannel | Removed | Problem


class Store:
    """The store of one server, locked until close().

    directory: its path, on tmpfs
    lock: its lock, see lock_store()
    limits: how much of its memory users may take
    trusted: whether other users may open its files, as far as the files' modes allow it
    goes_on: whether programs have files of the mount open, because another server of it has died
    ledger: who holds how much of its memory
    protection: makes files immutable
    channels: the channels that the mount shows, by path; the server sets it
    began_ns: when the first server of the mount began; the server sets it
    """

    def __init__(self, directory: str, lock: StoreLock, limits: Limits, trusted: bool, goes_on: bool) -> None:
        self.directory = os.path.abspath(directory)
        self.ledger = Ledger(limits, self.directory)
        self.protection = Protection(is_wanted=not trusted)
        self.began_ns = time.time_ns()
        self._goes_on = goes_on
        self.channels: Mapping[str, StoredChannel] = {}
        self._survey = Survey(self.directory, {COUNTERS_NAME, CRASHED_NAME, SNAPSHOTS_NAME})
        self._recharged: list[str] = []
        self._surveying = threading.Lock()
        self._surveyed_at = -math.inf
        self.lock = lock
        self._set_modes(trusted)
        if trusted:
            self.protection.lift_all(self.directory)

    def close(self) -> None:
        """Delete what is removed, lift the protection of all files, and release the lock."""
        delete_removed(self.directory)
        self.protection.lift_all(self.directory)
        self.lock.close()

    def locate(self, path: str) -> str:
        """Return the path in the file system of a channel or directory; "" is the store itself."""
        return os.path.join(self.directory, path) if path else self.directory

    def identify(self, path: str) -> int:
        """Return the inode number of what is at a path in the store; 0: there is nothing."""
        try:
            return os.lstat(self.locate(path)).st_ino
        except OSError:
            return 0

    def owner_path(self, path: str) -> str:
        """Return the path of what has the mode, owner and group that the mount shows.

        That is the directory itself; for the root, .root.
        """
        return self.locate(path or ROOT_NAME)

    def free_bytes(self, uid: int | None = None) -> int:
        """Return the bytes that new channels of a user can take; None: of all users together."""
        return min(self._machine_bytes(), self.ledger.room_bytes(uid))

    def check_room(self, need: int, uid: int) -> None:
        """Raise CommandError: ENOSPC if a user may not take `need` more bytes, or so many are not free."""
        self.ledger.check_bytes(need, uid)
        free = self._machine_bytes()
        if need > free:
            raise CommandError(errno.ENOSPC, f"{need} bytes are needed; {free} are free in the store")

    def ensure_room(self, need: int, uid: int) -> None:
        """Do what check_room() does, but call make_room() and check again before refusing; may block."""
        try:
            self.check_room(need, uid)
        except CommandError:
            self.make_room()
            self.check_room(need, uid)

    @contextmanager
    def claim_room(self, need: int, uid: int) -> Iterator[None]:
        """Call check_room(), and count `need` as taken in the body of the `with` statement, which makes the files."""
        self.check_room(need, uid)
        with self.ledger.claim(need, uid):
            yield

    def make_room(self) -> None:
        """Wait for memory that is being unmapped, and make a survey; blocks."""
        unmapper.wait(FREEING_S)
        if time.monotonic() - self._surveyed_at > FRESH_S:
            self.survey()

    def survey(self) -> None:
        """Replace the ledger's charges by the files that are there; of channels, those of RECHARGED_MAX; blocks.

        The store's own files, which have fixed sizes, are not charged to anybody.
        """
        with self._surveying:
            self.ledger.begin_survey()
            found: dict[int, Charge] = {}
            directories: set[str] = set()
            for path, files in self._survey.walk(self.channels):
                directories.add(path)
                if path:
                    found.update(_charges_in(self.locate(path), files, path == COUNTERS_NAME))
            self.ledger.end_survey(found, directories)
            self._recharge()
            self._surveyed_at = time.monotonic()

    def _recharge(self) -> None:
        """Charge the files of a few channels again, of others each time."""
        self._recharged = self._recharged or list(self.channels)
        for path in self._recharged[-RECHARGED_MAX:]:
            channel = self.channels.get(path)
            if channel is not None:
                self.ledger.recharge(_charges_of(channel))
        del self._recharged[-RECHARGED_MAX:]

    def charge(self, directory: str) -> None:
        """Charge the files below a directory that was just made to their owners."""
        for path, _, names in os.walk(directory):
            self.ledger.add(dict(_charges_in(path, names, of_users=False)))

    def unname(self, channel: StoredChannel | DamagedChannel) -> None:
        """Go on charging for a channel that is about to be removed, until no file of it is open."""
        self.ledger.unname(_charges_of(channel))
        for stored in channel.buffers:
            stored.closed += (partial(self.ledger.release, stored.inode),)

    def change_owner(self, channel: StoredChannel, mode: int, uid: int, gid: int) -> None:
        """Set mode, owner and group of a channel's files, and charge them to the owner."""
        channel.change_owner(mode, uid, gid)
        for stored in channel.buffers:
            if stored.backing.number:
                self.protection.add(stored.descriptor)
        self.ledger.add(_charges_of(channel))

    def _machine_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return min(status.f_bavail * status.f_frsize, memory_available())

    def create(self, path: str, type_of: str, spec: Mapping[str, int]) -> StoredChannel:
        """Make a channel and return it; blocks. OSError, StoreError.

        spec: the fields of struct relay_spec or relay_ring_spec
        """
        directory = self.locate(path)
        KINDS[type_of].create(directory, spec)
        return self._made(path, directory)

    def adopt(self, path: str, buffers: list[native.Buffer], perm: int, uid: int, gid: int) -> StoredChannel:
        """Make a channel of buffers whose files have no names yet, and return it; blocks. OSError, StoreError."""
        directory = self.locate(path)
        for buffer in buffers:
            os.chown(buffer.fileno(), uid, gid)
            os.chmod(buffer.fileno(), perm)
        native.store_adopt(directory, [buffer.fileno() for buffer in buffers])
        return self._made(path, directory)

    def copy(self, path: str, buffers: list[native.Buffer], perm: int, uid: int, gid: int) -> StoredChannel:
        """Make a channel of copies of buffers, and return it; blocks. OSError.

        The program that has made the buffers keeps its descriptors, with which it could truncate the originals.
        """
        directory = self.locate(path)
        native.store_copy(directory, [buffer.fileno() for buffer in buffers], perm, uid, gid)
        try:
            return self._made(path, directory)
        except StoreError as error:
            delete(self.hide(path))
            raise OSError(errno.EBADMSG, str(error)) from error

    def _made(self, path: str, directory: str) -> StoredChannel:
        channel = StoredChannel(path, directory)
        self.ledger.add(_charges_of(channel))
        return channel

    def remove(self, channel: StoredChannel | DamagedChannel) -> None:
        """Delete the files of a channel, once none is open; blocks. Programs that have mapped them keep the memory."""
        delete_when_closed(self.hide(channel.path), channel.buffers)
        channel.removed = True
        channel.buffers = ()  # open files refer to their buffers themselves

    def make_directory(self, path: str, mode: int, *, is_there: bool = False) -> None:
        """Make a plain directory; only the server's user may write to it, whatever `mode` says. OSError.

        is_there: whether another server has made it, which died and may not have set its mode
        """
        if not is_there:
            os.mkdir(self.locate(path), PERMS["NEW_DIR"])
        os.chmod(self.locate(path), PERMS["PLAIN_LEAST"] | mode & PERMS["PLAIN"])

    def make_implicit(self, path: str, uid: int) -> None:
        """Make an implicit directory above a channel, and charge it to a user; OSError."""
        native.implicit_make(self.locate(path))
        self.ledger.add_directory(path, uid)

    def is_implicit(self, path: str) -> bool:
        """Whether a directory still has the mark of make_implicit(); a chmod(2) removes the mark."""
        return bool(path) and native.implicit_is(self.locate(path))

    def keep_directory(self, path: str) -> None:
        """Make an implicit directory an ordinary one, which stays when it is empty."""
        if self.is_implicit(path):
            os.chmod(self.locate(path), PERMS["PLAIN"])

    def remove_directory(self, path: str) -> None:
        """Remove an empty plain directory; OSError."""
        os.rmdir(self.locate(path))
        self.ledger.remove_directory(path)

    def scan(self, traces: Container[str] = ()) -> Iterator[Found]:
        """Yield the directories of all channels, and plain ones, parents first, and what cannot be shown.

        Files that a dead server has left half made or half removed are deleted.

        traces: the directories of traces, which are skipped
        """
        found = list(self._walk(traces))
        n_in = Counter(_above(one if isinstance(one, str) else one.path) for one in found)
        gone = set()
        for path in reversed([one for one in found if isinstance(one, str)]):
            # A process was killed after it had made the directory for a channel, or removed the last channel in it.
            with suppress(OSError):
                if not n_in[path] and self.is_implicit(path):
                    self.remove_directory(path)
                    gone.add(path)
                    n_in[_above(path)] -= 1
        yield from (one for one in found if not (isinstance(one, str) and one in gone))

    def _walk(self, traces: Container[str]) -> Iterator[Found]:
        """Do as scan(), but do not remove implicit directories; a loop, because users may nest hundreds of them."""
        left = self._entries("")
        while left:
            path, entry = left.pop()
            if path in traces:
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield Problem(path, f"{entry.path} is no directory: only channels and directories belong in a store")
                continue
            try:
                check_name(entry.name)
                check_path_length(path)
                inner = None if _seems_to_hold_files(entry) else self._entries(path)
            except CommandError as error:
                yield Problem(path, str(error))
            except OSError as error:
                yield _unusable(path, entry.path, error)
            else:
                if inner is None:
                    yield Unread(path, entry.inode())
                else:
                    yield path
                    left += inner

    def _entries(self, path: str) -> list[tuple[str, os.DirEntry[str]]]:
        """Return the paths and entries of what a directory holds, the last one first, and sweep what is hidden."""
        with os.scandir(self.locate(path)) as listing:
            entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
        shown = []
        for entry in entries:
            if entry.name.startswith("."):
                self._sweep(path, entry)
            else:
                shown.append((f"{path}/{entry.name}" if path else entry.name, entry))
        return shown

    def load(self, path: str) -> Iterator[Loaded]:
        """Yield what there is in a directory that scan() has not looked into.

        A channel that a dead server was removing is removed.
        """
        directory = self.locate(path)
        try:
            if not _holds_files(directory):
                self._entries(path)
                yield path
                return
            channel = StoredChannel(path, directory)
        except BadMemoryError as error:
            yield Problem(path, str(error))
            yield DamagedChannel(path, directory, mem_names(directory), error.damage)
        except StoreError as error:
            yield Problem(path, str(error))
        except OSError as error:
            yield _unusable(path, directory, error)
        else:
            if channel.stats.closed:
                # A server died while it removed the channel, or a program that may write to the buffer set the flag.
                log.info("%s was closed: it is removed", path)
                self.remove(channel)
                yield Removed(path)
            else:
                self.ledger.add(_charges_of(channel))
                for stored in channel.buffers:
                    if not self._goes_on:
                        stored.forget_mapped()
                mapped.trim()
                yield channel

    def _sweep(self, path: str, entry: os.DirEntry[str]) -> None:
        """Delete a file with a hidden name that a dead server or program has left half made, or half removed."""
        ours = {LOCK_NAME, SOCKET_NAME, ROOT_NAME, COUNTERS_NAME, TRACES_NAME, LOST_NAME, EARLY_NAME}
        ours |= {CRASHED_NAME, SNAPSHOTS_NAME}
        others = (f"{LOST_NAME}-", REMOVED) if self._goes_on else f"{LOST_NAME}-"
        if not (path == "" and (entry.name in ours or entry.name.startswith(others))):
            delete(entry.path)

    def hide(self, path: str) -> str:
        """Rename a directory that is to be deleted, if need be by the next server, to .removed-*; return its path."""
        hidden = os.path.join(self.directory, f"{REMOVED}{os.getpid()}-{time.monotonic_ns()}")
        os.rename(self.locate(path), hidden)
        return hidden

    def _set_modes(self, trusted: bool) -> None:
        """Set the mode of the store's directory, and make .root if it is missing."""
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(FileExistsError):
            descriptor = os.open(self.locate(ROOT_NAME), flags, PERMS["PLAIN"])
            os.fchmod(descriptor, PERMS["PLAIN"])  # open(2) has applied the umask
            os.close(descriptor)
        os.chmod(self.directory, PERMS["STORE_TRUSTED" if trusted else "STORE"])


def _unusable(path: str, directory: str, error: OSError) -> Problem:
    return Problem(path, f"{directory} cannot be used: {error}")


def _above(path: str) -> str:
    """Return the path of the directory that something is in."""
    return path.rpartition("/")[0]


def lock_store(directory: str, mountpoint: str) -> StoreLock:
    """Make a store's directory if it is missing, and take its lock; StoreError: another server has it."""
    _check_directory(os.path.abspath(directory))
    return StoreLock(os.path.abspath(directory), mountpoint)


def _check_directory(directory: str) -> None:
    """Make the store's directory if it is missing; StoreError if another user could change it."""
    try:
        stranger = stranger_above(directory)
        if stranger is not None:
            raise StoreError(f"cannot use {directory} as a store: {stranger}")
        with suppress(FileExistsError):
            os.mkdir(directory, PERMS["NEW_DIR"])
        status = os.lstat(directory)
    except OSError as error:
        raise StoreError(f"cannot use {directory} as a store: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"cannot use {directory} as a store: it is no directory")
    if status.st_uid != os.geteuid() or status.st_mode & PERMS["STRANGERS"]:
        raise StoreError(
            f"cannot use {directory} as a store: it must belong to user {os.geteuid()} and be writable to "
            f"nobody else; it belongs to {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):04o}"
        )


def _seems_to_hold_files(entry: os.DirEntry[str]) -> bool:
    """Do as _holds_files(), but take a directory that has names, and no directories, for one with files; OSError.

    tmpfs counts both, so that of many thousands of channels none has to be opened.
    """
    status = entry.stat(follow_symlinks=False)
    return status.st_size != SIZE_EMPTY if status.st_nlink == NLINK_EMPTY else _holds_files(entry.path)


def _holds_files(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return any(not entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") for entry in entries)


def _charges_of(channel: StoredChannel | DamagedChannel) -> dict[int, Charge]:
    """Return the charges of a channel's files, by inode number."""
    statuses = []
    for stored in channel.buffers:
        with suppress(FileNotFoundError):  # it was removed, and nobody has it open
            statuses.append(stored.status())
    return {status.st_ino: shared_charge(status.st_uid, status.st_blocks * 512, counts=True) for status in statuses}


def _charges_in(directory: str, names: Iterable[str], of_users: bool) -> Iterator[tuple[int, Charge]]:
    """Yield the inode numbers and charges of files in a directory.

    of_users: only files of other users than the server's own
    """
    for name in names:
        try:
            status = os.lstat(os.path.join(directory, name))
        except OSError:
            continue  # it was removed meanwhile
        if not (of_users and status.st_uid == os.geteuid()):
            taken = status.st_blocks * 512
            # A program that has a file of a trace mapped can allocate all of its memory by storing into it.
            promised = 0 if status.st_uid == os.geteuid() else status.st_size
            yield status.st_ino, Charge(status.st_uid, max(taken, promised))
