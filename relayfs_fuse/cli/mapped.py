"""Channels of a store and processes of its traces, mapped, so that their figures can be read again and again."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.cli.figures import CAUSES, Figures
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.kinds.channel import map_files
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.tables import STATISTICS, TYPES
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.process import Process

if TYPE_CHECKING:
    from relayfs_fuse.native.library import Fields

_RELAY, _RING = TYPES
# Of a buffer; the first one that one of the buffers has is the channel's.
_STATES = ("closed", "disabled", "suspended", "ok")
# The unit of st_blocks.
_BLOCK_BYTES = 512
_DAMAGED = (errno.EBADMSG, errno.EPROTO)
_COUNTED = ("records", "bytes", "producer_position", "unread_bytes", "file_bytes", "suspended")
# By type of channel: the statistics that figures are made of.
SHOWN = {
    kind: [one for one in found if one.name in _COUNTED or one.name.removeprefix("lost_") in CAUSES]
    for kind, found in STATISTICS.items()
}


class MappedChannel(Closing):
    """The buffers of a channel.

    identity: differs from that of an earlier channel of the same path

    FileNotFoundError: it was removed. StoreError: as map_files().
    """

    def __init__(self, where: str, path: str) -> None:
        self._path = path
        self._directory = os.path.join(where, path)
        try:
            kind, self._memories = map_files(self._directory)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        self._kind = kind.name
        self.identity = os.fstat(self._memories[0].fileno()).st_ino

    def close(self) -> None:
        """Unmap the buffers."""
        for memory in self._memories:
            memory.close()

    def is_in_place(self) -> bool:
        """Return whether the channel is still there, and not another one of the same path."""
        return number_of(self._directory) == self.identity

    def read(self) -> Figures:
        """Read the figures."""
        stats = []
        for index, memory in enumerate(self._memories):
            try:
                stats.append(memory.stats())
            except OSError as error:
                why = f"damaged: mem{index}: {reason(error)}"
                return Figures(self._path, self._kind, why, len(self._memories), identity=self.identity)
        is_single = stats[0].buffers == native.BUFFERS_SINGLE
        parts = [_buffer(self._path if is_single else f"{self._path}{one.cpu}", self._kind, one) for one in stats]
        states = {part.state for part in parts}
        state = next(state for state in _STATES if state in states)
        figures = Figures(self._path, self._kind, state, len(parts), parts[0].size, identity=self.identity)
        figures.parts = parts
        figures.add_up(parts)
        return figures


class MappedProcess(Closing):
    """The buffers of a process's directory in a trace.

    name: NAME/PROCESS-PID

    OSError, ValueError: as Process
    """

    def __init__(self, directory: str, name: str) -> None:
        self._name = name
        self._process = Process(directory)

    def close(self) -> None:
        """Unmap the buffers."""
        self._process.close()

    def is_in_place(self) -> bool:
        """Return whether its directory is still there, and not another one of the same name."""
        return self._process.is_in_place()

    def read(self) -> Figures:
        """Read the figures; FileNotFoundError: it was removed."""
        process = self._process
        process.lost()  # ValueError: a number is impossible
        buffers = [
            _buffer(f"{self._name}/cpu{cpu}", _RELAY, consumer.buffer.stats())
            for cpu, consumer in process.buffers.items()
        ]
        is_alive = process.is_alive()
        figures = Figures(self._name, "process", "alive" if is_alive else "dead", len(buffers), identity=process.number)
        figures.add_up(buffers)
        figures.parts = buffers
        figures.size, figures.writers = buffers[0].size, int(is_alive)
        # Memory is allocated when a CPU first writes.
        files = (os.path.join(process.directory, "cpu", f"mem{cpu}") for cpu in process.buffers)
        figures.memory = sum(os.stat(file).st_blocks * _BLOCK_BYTES for file in files)
        return figures


def number_of(directory: str) -> int | None:
    """Return the number of a channel's first file, which no other channel has; None: there is none."""
    try:
        return os.stat(os.path.join(directory, "mem0")).st_ino
    except OSError:
        return None


def failed_process(name: str, error: Exception) -> Figures | None:
    """Return what is known of a process that could not be mapped or read; None: it was removed."""
    if isinstance(error, FileNotFoundError):
        return None
    if isinstance(error, OSError) and error.errno not in _DAMAGED:
        return Figures(name, "process", reason(error))
    return Figures(name, "process", "damaged")


def _state(kind: str, stats: Fields) -> str:
    if stats.closed:
        return "closed"
    if stats.disabled:
        return "disabled"
    return "suspended" if kind == _RELAY and stats.suspended else "ok"


def _buffer(name: str, kind: str, stats: Fields) -> Figures:
    """Return the figures of a buffer of a channel of this kind, or of a process."""
    values = {one.name: one.of(stats) for one in SHOWN[kind]}
    if kind == _RING:
        size, used = stats.ring_size, stats.unread_bytes
    else:
        size, used = stats.subbuf_size * stats.n_subbufs, stats.used_bytes
    return Figures(
        name, "buffer", _state(kind, stats), 1, size, values["file_bytes"],
        count=values["records"], bytes=written(kind, values), unread_bytes=values["unread_bytes"],
        fill=used / size, lost_by_cause=lost(values),
    )  # fmt: skip


def written(kind: str, values: dict[str, int | None]) -> int | None:
    """Return the bytes written, with the headers of a ring's records and what was discarded."""
    return values["bytes"] if kind == _RELAY else values["producer_position"]


def lost(values: dict[str, int | None]) -> dict[str, int | None]:
    """Return the lost records by cause, from the statistics of these names."""
    return {cause: values.get(f"lost_{cause}", 0) for cause in CAUSES}
