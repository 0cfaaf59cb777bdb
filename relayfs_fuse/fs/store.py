"""The store on disk: which channels and directories there are, and how they come and go.

    STORE/.root                   an empty file: its mode and group are those that the mount's root directory shows
    STORE/.lock                   held by the server of this store, names it
    STORE/.counters/              counters (native/src/counters/format.h)
    STORE/.traces-lost            what programs lost that could get no buffers of a trace (native/src/trace/lost.c)
    STORE/.traces-lost-UID        the same of programs of other users
    STORE/.traces                 which traces there are (native/src/trace/control_file.c); traces/ serves them
    STORE/app/                    a plain directory: holds directories only; marked, if implicit (<relayfs/store.h>)
    STORE/app/cpu/mem0 .. memN-1  a channel, of buffers or of rings: its files tell
    STORE/.removed-*              what a server that died was about to delete

A channel whose files cannot be used is a DamagedChannel.

Nothing here is trusted: directories are not followed out of the store, files are opened by the library, which checks
them. Nobody but the server's user opens them: a descriptor that writes a file also truncates it, and whoever maps it
dies of SIGBUS then. Other users map files through the mount, whose descriptors do no more than read, write and map.
All directories belong to the server's user and only that user may write to them, so that nobody else can move
things under our hands; who may use a channel is said by the modes of its mem files.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError, StoreError
from relayfs_fuse.fs.commands.control import check_path
from relayfs_fuse.fs.early import EARLY_NAME
from relayfs_fuse.fs.kinds.channel import KINDS, BadMemoryError, StoredChannel, mem_names
from relayfs_fuse.fs.kinds.damaged import DamagedChannel
from relayfs_fuse.fs.kinds.unmapper import unmapper
from relayfs_fuse.fs.ledger import Charge, Ledger, Limits, memory_available
from relayfs_fuse.fs.own_path import stranger_above
from relayfs_fuse.fs.protection import Protection, delete
from relayfs_fuse.fs.store_lock import LOCK_NAME, StoreLock

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

# A survey that was made so recently is not made again because room is short.
FRESH_S = 0.5
# How long a command that finds no room waits for memory that is being freed.
FREEING_S = 2.0
ROOT_NAME = ".root"
COUNTERS_NAME = ".counters"
TRACES_NAME = ".traces"
LOST_NAME = ".traces-lost"


@dataclass(frozen=True)
class Problem:
    """A part of the store that cannot be shown, and why."""

    path: str
    message: str


# Of the store: a directory by its path, a channel, or what cannot be shown.
Found: TypeAlias = str | StoredChannel | DamagedChannel | Problem


class Store:
    """Hold the store of one server.

    directory: on tmpfs; made if it is missing
    mountpoint: to tell others who serves it
    limits: how much of it users may take
    trusted: whether other users may open its files, as far as the files' own modes let them
    began_ns: since when it is served
    """

    def __init__(self, directory: str, mountpoint: str, limits: Limits, trusted: bool = False) -> None:
        self.directory = os.path.abspath(directory)
        self._check_directory()
        self.ledger = Ledger(limits, self.directory)
        self.protection = Protection(is_wanted=not trusted)
        self.began_ns = time.time_ns()
        self._surveying = threading.Lock()
        self._surveyed_at = -math.inf
        self.lock = StoreLock(self.directory, mountpoint)
        self._set_modes(trusted)
        if trusted:
            self.protection.lift_all(self.directory)

    def close(self) -> None:
        """Let another server have it, or somebody remove it."""
        self.protection.lift_all(self.directory)
        self.lock.close()

    def locate(self, path: str) -> str:
        """Name the place of a channel or directory in the store."""
        return os.path.join(self.directory, path) if path else self.directory

    def owner_path(self, path: str) -> str:
        """Name what has the mode, owner and group that the mount shows of a directory."""
        return self.locate(path or ROOT_NAME)

    def free_bytes(self, uid: int | None = None) -> int:
        """Count the memory that a user's new channels can have; None: those of all users together."""
        return min(self._machine_bytes(), self.ledger.room_bytes(uid))

    def check_room(self, need: int, uid: int) -> None:
        """Refuse more bytes than a user may have, or than there are; CommandError: ENOSPC."""
        self.ledger.check_bytes(need, uid)
        free = self._machine_bytes()
        if need > free:
            raise CommandError(errno.ENOSPC, f"{need} bytes are needed; {free} are free in the store")

    def ensure_room(self, need: int, uid: int) -> None:
        """Do so, after a second look at what has been freed lately; may take long."""
        try:
            self.check_room(need, uid)
        except CommandError:
            self.make_room()
            self.check_room(need, uid)

    @contextmanager
    def claim_room(self, need: int, uid: int) -> Iterator[None]:
        """Check so, and hold the room while the files are made that will take it."""
        self.check_room(need, uid)
        with self.ledger.claim(need, uid):
            yield

    def make_room(self) -> None:
        """Find out what has been freed lately; for who was refused, and can wait."""
        unmapper.wait(FREEING_S)
        if time.monotonic() - self._surveyed_at > FRESH_S:
            self.survey()

    def survey(self) -> None:
        """Bring the ledger up to date with what is there; may take long.

        The store's own files, which have fixed sizes, are nobody's.
        """
        with self._surveying:
            self.ledger.begin_survey()
            found: dict[int, Charge] = {}
            directories: set[str] = set()
            for directory, names, files in os.walk(self.directory):
                is_top = directory == self.directory
                names[:] = [name for name in names if not name.startswith(".") or (is_top and name == COUNTERS_NAME)]
                directories.add(os.path.relpath(directory, self.directory))
                if not is_top:
                    found.update(_charges_in(directory, files, directory == self.locate(COUNTERS_NAME)))
            self.ledger.end_survey(found, directories)
            self._surveyed_at = time.monotonic()

    def charge(self, directory: str) -> None:
        """Charge the files below a directory of the store, which somebody has just made, to their owners."""
        for path, _, names in os.walk(directory):
            self.ledger.add(dict(_charges_in(path, names, of_users=False)))

    def unname(self, channel: StoredChannel | DamagedChannel) -> None:
        """Keep charging for a channel that is about to go, until nobody has it open."""
        self.ledger.unname(_charges_of(channel))
        for stored in channel.buffers:
            stored.closed += (partial(self.ledger.release, os.fstat(stored.descriptor).st_ino),)

    def change_owner(self, channel: StoredChannel, mode: int, uid: int, gid: int) -> None:
        """Give a channel's files this mode, owner and group; the owner is charged for them."""
        channel.change_owner(mode, uid, gid)
        for stored in channel.buffers:
            if stored.backing.number:
                self.protection.add(stored.descriptor)
        self.ledger.add(_charges_of(channel))

    def _machine_bytes(self) -> int:
        status = os.statvfs(self.directory)
        return min(status.f_bavail * status.f_frsize, memory_available())

    def create(self, path: str, type_of: str, spec: Mapping[str, int]) -> StoredChannel:
        """Make a channel; may take long.

        spec: what struct relay_spec, or relay_ring_spec, says
        """
        directory = self.locate(path)
        KINDS[type_of].create(directory, spec)
        return self._made(path, directory)

    def adopt(self, path: str, buffers: list[native.Buffer], perm: int, uid: int, gid: int) -> StoredChannel:
        """Make a channel of buffers that have no names yet."""
        directory = self.locate(path)
        for buffer in buffers:
            os.chown(buffer.fileno(), uid, gid)
            os.chmod(buffer.fileno(), perm)
        native.store_adopt(directory, [buffer.fileno() for buffer in buffers])
        return self._made(path, directory)

    def copy(self, path: str, buffers: list[native.Buffer], perm: int, uid: int, gid: int) -> StoredChannel:
        """Make a channel of copies of such buffers: their user's program keeps their descriptors, as it may."""
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
        """Take a channel out of the store; its memory lives on while somebody has it mapped."""
        delete(self.hide(channel.path))
        channel.removed = True
        channel.buffers = ()  # whoever reads one to its end has that one

    def make_directory(self, path: str, mode: int) -> None:
        """Make a plain directory, writable to the server's user alone."""
        os.mkdir(self.locate(path), 0o700)
        os.chmod(self.locate(path), 0o700 | mode & 0o755)

    def make_implicit(self, path: str, uid: int) -> None:
        """Make a directory above a channel that a user wants."""
        native.implicit_make(self.locate(path))
        self.ledger.add_directory(path, uid)

    def is_implicit(self, path: str) -> bool:
        """Tell whether a directory was made so, and nobody has made it his own since."""
        return bool(path) and native.implicit_is(self.locate(path))

    def keep_directory(self, path: str) -> None:
        """Make a directory an ordinary one, which stays."""
        if self.is_implicit(path):
            os.chmod(self.locate(path), 0o755)

    def remove_directory(self, path: str) -> None:
        """Remove an empty plain directory."""
        os.rmdir(self.locate(path))
        self.ledger.remove_directory(path)

    def scan(self, traces: Container[str] = ()) -> Iterator[Found]:
        """Find what is there: directories by path, parents first; channels; and what cannot be shown.

        traces: directories that are none of these
        """
        yield from self._scan("", traces)

    def _scan(self, path: str, traces: Container[str] = ()) -> Iterator[Found]:
        with os.scandir(self.locate(path)) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            inner = f"{path}/{entry.name}" if path else entry.name
            if entry.name.startswith("."):
                self._sweep(path, entry)
            elif inner in traces:
                continue
            elif entry.is_dir(follow_symlinks=False):
                yield from self._scan_directory(inner)
            else:
                yield Problem(inner, f"{entry.path} is no directory: only channels and directories belong in a store")

    def _scan_directory(self, path: str) -> Iterator[Found]:
        try:
            check_path(path)
            if not _holds_files(self.locate(path)):
                found = list(self._scan(path))
                # Somebody was killed before he had put a channel there, or after he had removed the last one.
                if not found and self.is_implicit(path):
                    self.remove_directory(path)
                else:
                    yield path
                    yield from found
                return
            channel = StoredChannel(path, self.locate(path))
        except BadMemoryError as error:
            yield Problem(path, str(error))
            yield DamagedChannel(path, self.locate(path), mem_names(self.locate(path)), error.damage)
        except (StoreError, CommandError) as error:
            yield Problem(path, str(error))
        except OSError as error:
            yield Problem(path, f"{self.locate(path)} cannot be used: {error}")
        else:
            if channel.buffers[0].buffer.state() & native.IS_CLOSED:
                # A server died half-way through removing it, or somebody who may write to it has marked it so.
                log.info("%s was closed: it is removed", path)
                self.remove(channel)
            else:
                self.ledger.add(_charges_of(channel))
                yield channel

    def _sweep(self, path: str, entry: os.DirEntry[str]) -> None:
        """Delete what a dead server left behind: half made, or half removed."""
        ours = {LOCK_NAME, ROOT_NAME, COUNTERS_NAME, TRACES_NAME, LOST_NAME, EARLY_NAME}
        if not (path == "" and (entry.name in ours or entry.name.startswith(f"{LOST_NAME}-"))):
            delete(entry.path)

    def hide(self, path: str) -> str:
        """Put a directory out of sight, which is to be deleted: the next server does it if this one dies."""
        hidden = os.path.join(self.directory, f".removed-{os.getpid()}-{time.monotonic_ns()}")
        os.rename(self.locate(path), hidden)
        return hidden

    def _check_directory(self) -> None:
        try:
            stranger = stranger_above(self.directory)
            if stranger is not None:
                raise StoreError(f"cannot use {self.directory} as a store: {stranger}")
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            status = os.lstat(self.directory)
        except OSError as error:
            raise StoreError(f"cannot use {self.directory} as a store: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(f"cannot use {self.directory} as a store: it is no directory")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise StoreError(
                f"cannot use {self.directory} as a store: it must belong to user {os.geteuid()} and be writable to "
                f"nobody else; it belongs to {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):04o}"
            )

    def _set_modes(self, trusted: bool) -> None:
        """Say who may enter the store and, if nobody has said it before, the mount."""
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(FileExistsError):
            descriptor = os.open(self.locate(ROOT_NAME), flags, 0o755)
            os.fchmod(descriptor, 0o755)  # whatever the umask is
            os.close(descriptor)
        os.chmod(self.directory, 0o755 if trusted else 0o700)


def _holds_files(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return any(not entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") for entry in entries)


def _charges_of(channel: StoredChannel | DamagedChannel) -> dict[int, Charge]:
    """Tell whom a channel's files are charged to, by inode number."""
    statuses = [os.fstat(stored.descriptor) for stored in channel.buffers]
    return {status.st_ino: Charge(status.st_uid, status.st_blocks * 512, counts=True) for status in statuses}


def _charges_in(directory: str, names: Iterable[str], of_users: bool) -> Iterator[tuple[int, Charge]]:
    """Tell whom files are charged to, by inode number.

    of_users: those of the server's own user are not counted
    """
    for name in names:
        try:
            status = os.lstat(os.path.join(directory, name))
        except OSError:
            continue  # it has gone meanwhile
        if not (of_users and status.st_uid == os.geteuid()):
            taken = status.st_blocks * 512
            # Who may map a file of a trace can take all of its memory by storing there.
            promised = 0 if status.st_uid == os.geteuid() else status.st_size
            yield status.st_ino, Charge(status.st_uid, max(taken, promised))
