"""A channel of the store: a directory whose files mem0, mem1 .. are the buffers, all of the same type."""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse import native
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.commands.control import format_options
from relayfs_fuse.fs.commands.jobs import for_each
from relayfs_fuse.fs.kinds.relay import RELAY
from relayfs_fuse.fs.kinds.ring import RING
from relayfs_fuse.tracefiles.losses import Intervals, counts_of, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.fs.kinds.base import Kind, Stored
    from relayfs_fuse.native.library import Fields

log = logging.getLogger(__name__)

# By the word in `create PATH type=NAME`.
KINDS: dict[str, Kind[Any]] = {kind.name: kind for kind in (RELAY, RING)}

MEM_FILE = re.compile(r"mem[0-9]+")

_REASONS = {
    errno.EPROTO: "it has another layout version than this relayfs knows",
    errno.EBADMSG: "it is truncated, damaged or no relay buffer or ring at all",
    errno.ELOOP: "it is a symbolic link",
}


class _Created(NamedTuple):
    """Mode and owner of a channel's files, and the options that create_line() has made of them and `stats`."""

    owner: tuple[int, int, int]
    options: str


# Most channels have the same mode, owner and options: they share them.
_created = functools.lru_cache(maxsize=1024)(_Created)


class BadMemoryError(StoreError):
    """A mem file cannot be used.

    path: of the file
    reason: what is wrong with it
    damage: the name of the file and the reason, as .channels/PATH/state shows them
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.damage = f"{os.path.basename(path)}: {reason}"


class StoredChannel:
    """A channel whose mem files can be mapped; StoreError: they are not those of a channel, or cannot be used.

    path: its path in the mount
    directory: its directory in the store
    inode: the inode number of that
    maker: the process that made it; 0: unknown, because another server ran then
    kind: its type
    damage: the first inconsistency found in its memory; "": none was found
    stats: the statistics of the first buffer as they were when it was mapped, for the fields that do not change
    buffers: its buffers; empty after the channel was removed
    losses: by the index of a buffer, when it has lost records
    removed: whether a command has removed it
    changed: is called with its path when its owner, mode or damage has changed; in any thread
    """

    def __init__(self, path: str, directory: str) -> None:
        self.path = path
        self.directory = directory
        self.inode = os.lstat(directory).st_ino
        self.removed = False
        self.maker = 0
        self.damage = ""
        self.changed: Callable[[str], object] = len
        # Of the last result of create_line().
        self._created: _Created | None = None
        self.buffers: Sequence[Stored[Any]] = []
        self.kind, mapped = map_files(directory)
        self.stats: Fields = mapped[0].stats()
        self.losses = {index: Intervals() for index in range(len(mapped))}
        for index, memory in enumerate(mapped):
            asked_ns = time.time_ns()
            self.losses[index].look(counts_of(self.kind.name, memory.stats()), asked_ns)
        self.buffers = [self.kind.stored(self, index, memory) for index, memory in enumerate(mapped)]

    @property
    def flush_interval_ms(self) -> int:
        """The interval at which the server flushes it, in ms; 0: never."""
        return self.stats.flush_interval_ms

    @property
    def uid(self) -> int:
        """The user who owns the mem files."""
        return self.buffers[0].status().st_uid

    def losses_text(self) -> bytes:
        """Look at the buffers, and return the text of the file `losses`; OSError."""
        for stored in self.buffers:
            asked_ns = time.time_ns()
            self.losses[stored.index].look(counts_of(self.kind.name, stored.stats()), asked_ns)
        return text(line for index, one in sorted(self.losses.items()) for line in one.lines(str(index)))

    def relay_path(self, index: int) -> str:
        """Return the path of a buffer's relay file in the mount."""
        return self.path if self.stats.buffers == native.BUFFERS_SINGLE else f"{self.path}{index}"

    @property
    def relay_paths(self) -> list[str]:
        """The paths of all relay files in the mount."""
        return [self.relay_path(stored.index) for stored in self.buffers]

    def create_line(self) -> str:
        """Return the `create` command that would make this channel again."""
        status = self.buffers[0].status()
        owner = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
        if self._created is None or self._created.owner != owner:
            named = dict(zip(("perm", "uid", "gid"), owner, strict=True))
            self._created = _created(owner, format_options(self.kind.name, self.stats, named))
        return f"create {self.path} {self._created.options}"

    def note_damage(self, damage: str) -> None:
        """Mark it as damaged, and log that once."""
        if not self.damage:
            log.warning("%s is damaged: %s; `remove %s` removes it", self.path, damage, self.path)
            self.damage = damage
            self.changed(self.path)

    def forget_damage(self) -> None:
        """Mark it as not damaged, because its memory was reset."""
        self.damage = ""
        self.changed(self.path)

    def state(self) -> str:
        """Check all buffers; return the text of .channels/PATH/state."""
        stats: list[Fields] = []
        states = 0
        for stored in self.buffers:
            try:
                stats.append(stored.stats())
                state = stored.buffer.state()
                states |= state
                stored.note_state(state)
            except OSError as error:
                stored.note(error)
        if self.damage:
            return f"damaged: {self.damage}"
        if states & native.IS_CLOSED:
            return "closed"
        return "disabled" if any(one.disabled for one in stats) else "ok"

    def close(self) -> None:
        """Mark all buffers as closed, which stops the programs that write to them; may block."""
        for_each(self.buffers, lambda memory: memory.stop(native.CLOSED, True))

    def is_protected(self) -> bool:
        """Whether a mem file is immutable, because another user may have it mapped for writing; see protection.py."""
        return any(native.file_is_protected(stored.descriptor) for stored in self.buffers)

    def change_owner(self, mode: int, uid: int, gid: int) -> None:
        """Set mode, owner and group of all mem files."""
        for stored in self.buffers:
            native.file_change_owner(stored.descriptor, mode, uid, gid)
        self.changed(self.path)


def mem_names(directory: str) -> list[str]:
    """Return the names of all files in a channel's directory that do not begin with a dot; OSError."""
    return [name for name in os.listdir(directory) if not name.startswith(".")]


def map_files(directory: str, n: int | None = None) -> tuple[Kind[Any], list[native.ChannelMemory]]:
    """Map all mem files of a channel, in their order.

    n: how many there are, in a directory of the mount, which has other files, too; None: the directory has no others

    BadMemoryError: a mem file cannot be used. StoreError: this is not the directory of a channel.
    """
    names = mem_names(directory) if n is None else [f"mem{index}" for index in range(n)]
    expected = [f"mem{index}" for index in range(len(names))]
    strangers = set(names) - set(expected)
    if strangers:
        message = f"{min(strangers)!r} is not one of mem0 to mem{len(names) - 1}"
        if all(MEM_FILE.fullmatch(name) for name in names):
            raise BadMemoryError(os.path.join(directory, min(strangers)), message)
        raise StoreError(f"{directory} is no channel: {message}")
    kinds: list[Kind[Any]] = []
    mapped: list[native.ChannelMemory] = []
    try:
        for index, name in enumerate(expected):
            path = os.path.join(directory, name)
            kind, memory, stats = _map_file(path)
            kinds.append(kind)
            mapped.append(memory)
            if kind is not kinds[0]:
                raise BadMemoryError(path, "it and mem0 are of different types")
            if (stats.cpu, stats.n_buffers) != (index, len(expected)):
                found = f"buffer {stats.cpu} of {stats.n_buffers}"
                raise BadMemoryError(path, f"it is {found}, not {index} of {len(expected)}")
    except BaseException:
        for memory in mapped:
            memory.close()
        raise
    return kinds[0], mapped


def _map_file(path: str) -> tuple[Kind[Any], native.ChannelMemory, Any]:
    """Map a mem file, and return its statistics, too.

    BadMemoryError: its contents are wrong. StoreError: it could not be opened for another reason.
    """
    try:
        kind, memory = _map_any(path)
        try:
            stats = memory.stats()
        except BaseException:
            memory.close()
            raise
    except OSError as error:
        code, message = error.errno or 0, error.strerror or ""
        if code == errno.EPERM:
            # A server that was killed has left the file immutable; see protection.py.
            message = "it is immutable, and to open it nevertheless takes CAP_LINUX_IMMUTABLE"
        if code not in _REASONS:
            raise StoreError(f"{path} cannot be used: {message}") from error
        raise BadMemoryError(path, _REASONS[code] if message == os.strerror(code) else message) from error
    return kind, memory, stats


def _map_any(path: str) -> tuple[Kind[Any], native.ChannelMemory]:
    """Map a mem file with the first Kind that recognizes it; OSError."""
    *others, last = KINDS.values()
    for kind in others:
        try:
            return kind, kind.memory(path)
        except OSError as error:
            # Kept in a variable, the error would keep this frame and its callers', and so what they have mapped.
            if error.errno != errno.EBADMSG:
                raise
    return last, last.memory(path)
