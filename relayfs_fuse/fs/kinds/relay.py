"""Relay buffers of the store, apart from how the kernel asks for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.commands.control import choose_geometry
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE, Kind, Plan, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.handles import RelayHandle
    from relayfs_fuse.native.library import Fields


class StoredBuffer(Stored[native.Buffer]):
    """One buffer of a channel.

    mappable: open relay files that can be mapped, by number; where readers wait for data
    last_stream: when one was opened that cannot
    """

    readers: list[RelayHandle]
    moved_field = "bytes"

    def __init__(self, channel: StoredChannel, index: int, buffer: native.Buffer) -> None:
        super().__init__(channel, index, buffer)
        self.mappable: set[int] = set()
        self.last_stream = self.rests_until = -math.inf
        self.wakes_for_records = channel.stats.delivery != native.DELIVERY_BULK

    def _size(self, stats: Fields, pid: int) -> int:
        """Count what its reader was given since the open, and what is unread."""
        readers = [reader for reader in self.readers if reader.pid == pid] or self.readers
        start = min((reader.start_for_size(stats) for reader in readers), default=stats.passed_bytes)
        return stats.passed_bytes + stats.unread_bytes - stats.unread_holes - start

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the bytes or sub-buffers written."""
        state = self.buffer.state()
        stats = self.stats()
        bulk = stats.delivery == native.DELIVERY_BULK
        progress = stats.produced if bulk else stats.bytes
        events = 0
        if state & native.IS_DAMAGED:
            self.note_state(state)
            return GONE, progress
        if state & native.IS_CLOSED:
            # What is left can be read on to the end, finished or not.
            events |= GONE
            bulk = False
        # While another reader holds the reader's lock, a read would wait.
        if state & (native.HAS_FINISHED if bulk else native.HAS_DATA) and not state & native.IS_HELD:
            events |= READABLE
        if _has_room(stats):
            events |= WRITABLE
        return events, progress

    def count_mapped(self, opened: bool) -> None:
        """Tell the channel's maker (native/src/channel/buf_mapped.c)."""
        self.buffer.count_mapped(self._first(), opened)

    def forget_mapped(self) -> None:
        """Take all open files for ended."""
        self.buffer.forget_mapped(self._first())

    def _first(self) -> native.Buffer:
        """Return the buffer whose maker sleeps on it; of a channel that was removed, nobody does."""
        buffers = self.channel.buffers
        first: native.Buffer = buffers[0].buffer if buffers else self.buffer
        return first


def _has_room(stats: Fields) -> bool:
    if stats.suspended:
        return False
    if stats.mode == native.MODE_OVERWRITE:
        return True
    if stats.mode == native.MODE_NO_OVERWRITE:
        unread = stats.produced - stats.consumed
        return unread < stats.n_subbufs - (stats.offset >= stats.largest_offset)
    # A program's callback lets sub-buffers begin; what is written through the mount fills those that have, or, where
    # the program is one of <relayfs/classic.h>, whose channels have timestamps, has it asked.
    return bool(stats.timestamp) or 0 < stats.offset < stats.largest_offset


# ---------------------------------------------------------------- the kind


def _plan(command: Command, n_buffers: int, free_bytes: int) -> Plan:
    subbuf_size, n_subbufs, notice = choose_geometry(command, n_buffers, free_bytes)
    fields = {"subbuf_size": subbuf_size, "n_subbufs": n_subbufs, "n_buffers": n_buffers}
    what = f"{n_buffers} buffers of {n_subbufs} sub-buffers of {subbuf_size} bytes"
    return Plan(fields, what, ("n_subbufs", "subbuf_size"), notice)


def _file_bytes(spec: Mapping[str, int]) -> int:
    return native.buf_file_bytes(spec["subbuf_size"], spec["n_subbufs"]) * spec["n_buffers"]


RELAY = Kind(
    name="relay",
    memory=native.Buffer,
    stored=StoredBuffer,
    create=native.store_create,
    file_bytes=_file_bytes,
    plan=_plan,
    acts={
        "flush": lambda buffer, _: buffer.flush(),
        "reset": lambda buffer, _: buffer.reset(),
        "resume": lambda buffer, _: buffer.resume(),
        "consumed": lambda buffer, command: buffer.subbufs_consumed(command.count),
        "enable": lambda buffer, _: buffer.stop(native.DISABLED, False),
        "disable": lambda buffer, _: buffer.stop(native.DISABLED, True),
    },
    refused={},
    takes_log=True,
)
