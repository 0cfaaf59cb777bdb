"""A channel of the store: a directory with mem files of one kind."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.commands.control import format_create
from relayfs_fuse.fs.commands.jobs import for_each
from relayfs_fuse.fs.kinds.relay import RELAY
from relayfs_fuse.fs.kinds.ring import RING

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class BadMemoryError(StoreError):
    """Say why a mem file cannot be used.

    path: of the file
    reason: what is wrong with it
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.damage = f"{os.path.basename(path)}: {reason}"


class StoredChannel:
    """A channel; each of its buffers stays mapped as long as anybody refers to it.

    path: its path in the mount
    directory: where it lies
    maker: the process that made it; 0: it is not known any more
    kind: what it is made of
    damage: where its memory contradicts itself, and how; "": nowhere, as far as anybody has looked
    """

    def __init__(self, path: str, directory: str) -> None:
        self.path = path
        self.directory = directory
        self.removed = False
        self.maker = 0
        self.damage = ""
        # For whom create_line() was made last, and the line: there can be thousands, and each stat(2) of control asks.
        self._created: tuple[dict[str, int], str] | None = None
        self.buffers: Sequence[Stored[Any]] = []
        self.kind, mapped = _map_files(directory)
        self.stats: Fields = mapped[0].stats()
        self.buffers = [self.kind.stored(self, index, memory) for index, memory in enumerate(mapped)]

    @property
    def flush_interval_ms(self) -> int:
        """How often it is flushed; 0: never."""
        return self.stats.flush_interval_ms

    @property
    def uid(self) -> int:
        """Its owner."""
        return os.fstat(self.buffers[0].descriptor).st_uid

    def relay_path(self, index: int) -> str:
        """Name the relay file of a buffer."""
        return self.path if self.stats.buffers == native.BUFFERS_SINGLE else f"{self.path}{index}"

    @property
    def relay_paths(self) -> list[str]:
        """Name the relay files of all."""
        return [self.relay_path(stored.index) for stored in self.buffers]

    def create_line(self) -> str:
        """Write the command that would make it again."""
        status = os.fstat(self.buffers[0].descriptor)
        owner = {"perm": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}
        if self._created is None or self._created[0] != owner:
            self._created = owner, format_create(self.path, self.kind.name, self.stats, owner)
        return self._created[1]

    def note_damage(self, damage: str) -> None:
        """Mark it as damaged; the log says so once."""
        if not self.damage:
            log.warning("%s is damaged: %s; `remove %s` takes it away", self.path, damage, self.path)
            self.damage = damage

    def state(self) -> str:
        """Look whether its memory is sound, and whether it is in use."""
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
        """Tell the programs that write to it; may block."""
        for_each(self.kind.memory.of_descriptor, self.buffers, lambda memory: memory.stop(native.CLOSED, True))

    def is_protected(self) -> bool:
        """Tell whether another user may have one of its files mapped for writing."""
        return any(native.file_is_protected(stored.descriptor) for stored in self.buffers)

    def change_owner(self, mode: int, uid: int, gid: int) -> None:
        """Give all of its files this mode, owner and group."""
        for stored in self.buffers:
            native.file_change_owner(stored.descriptor, mode, uid, gid)


def mem_names(directory: str) -> list[str]:
    """List the mem files of a channel, and what else has no hidden name there."""
    return [name for name in os.listdir(directory) if not name.startswith(".")]


def _map_files(directory: str) -> tuple[Kind[Any], list[native.ChannelMemory]]:
    """Map all mem files of a channel; StoreError: they are none, or cannot be used."""
    names = mem_names(directory)
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
            kind, memory = _map_file(path)
            kinds.append(kind)
            mapped.append(memory)
            stats = memory.stats()
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


def _map_file(path: str) -> tuple[Kind[Any], native.ChannelMemory]:
    """Map a mem file; BadMemoryError: what is in it does not let us."""
    try:
        kind, memory = _map_any(path)
        try:
            memory.stats()
        except BaseException:
            memory.close()
            raise
    except OSError as error:
        code, message = error.errno or 0, error.strerror or ""
        if code == errno.EPERM:
            # A server that was killed leaves files immutable that others may have mapped; see protection.py.
            message = "it is immutable, and to open it nevertheless takes CAP_LINUX_IMMUTABLE"
        if code not in _REASONS:
            raise StoreError(f"{path} cannot be used: {message}") from error
        raise BadMemoryError(path, _REASONS[code] if message == os.strerror(code) else message) from error
    return kind, memory


def _map_any(path: str) -> tuple[Kind[Any], native.ChannelMemory]:
    """Map a mem file of the kind that it is; of none: the last one's error."""
    for kind in KINDS.values():
        try:
            return kind, kind.memory(path)
        except OSError as error:
            failure = error
            if error.errno != errno.EBADMSG:
                break
    raise failure
