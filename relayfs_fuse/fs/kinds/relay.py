"""Channels of relay buffers (type=relay): their Kind and their buffers.

A relay file is a queue of bytes: read(2) consumes what it returns. It is opened as a stream without offsets, like a
pipe (StreamHandle), or as a file with offsets, which can be mapped (SeekableHandle): queues.py. With `times` it gives
whole records without the heads that are before them in memory (records.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.commands.control import choose_geometry
from relayfs_fuse.fs.kinds.base import NEVER_S, READABLE, Kind, Plan, Stored
from relayfs_fuse.fs.kinds.queues import BufferHandle, SeekableHandle, StreamHandle
from relayfs_fuse.fs.kinds.records import RecordHandle, StoredRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.native.library import Fields

# Of most buffers no file is open that can be mapped: they share this.
NOBODY: frozenset[int] = frozenset()
# How long the kernel may take to finish an open(2) after the server's answer.
SETTLE_S = 0.1


class StoredBuffer(Stored[native.Buffer]):
    """A relay buffer of a channel.

    mappable: with read=wait, the numbers of the open relay files that can be mapped
    last_stream: when a relay file was last opened as a stream, which cannot be mapped (time.monotonic())
    """

    readers: list[BufferHandle]
    written_field = "bytes"

    def __init__(self, channel: StoredChannel, index: int, buffer: native.Buffer) -> None:
        super().__init__(channel, index, buffer)
        self.wakes_for_records = channel.stats.delivery != native.DELIVERY_BULK
        self.mappable = NOBODY
        self.last_stream = self.rests_until = NEVER_S

    def _size(self, stats: Fields, pid: int) -> int:
        """Return the bytes consumed since the relay file was opened, plus those unread."""
        readers = [reader for reader in self.readers if reader.pid == pid] or self.readers
        start = min((reader.start_for_size(stats) for reader in readers), default=stats.passed_bytes)
        return stats.passed_bytes + stats.unread_bytes - stats.unread_holes - start

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), and the bytes written or, with delivery=bulk, the sub-buffers finished."""
        return self.buffer.ready()

    def address_to_poll(self) -> int | None:
        """Return the address of the buffer."""
        return self.buffer.address

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Open as a stream if the channel has read=wait, unless a program may want to map the file.

        A program that maps the file opens it with O_RDWR or, if it only reads, with O_RDONLY | O_NONBLOCK. While a file
        that can be mapped is open, the kernel does not let others be opened as streams. It refuses even an open(2) that
        the server has answered as a stream, if the thread has not run since. So a file that can be mapped is opened at
        the earliest SETTLE_S after the last stream.
        """
        if self.channel.stats.read != native.READ_WAIT:
            return 0.0
        maps = opening.is_for_both or opening.never_sleeps or self.mappable
        if not (maps and backing()):
            self.last_stream = time.monotonic()
            opening.as_stream = True
            return 0.0
        self.mappable |= {opening.number}
        return self.last_stream + SETTLE_S - time.monotonic()

    def abandon(self, opening: Opening) -> None:
        """Undo prepare(), because the open has failed."""
        self.forget_mappable(opening.number)

    def forget_mappable(self, number: int) -> None:
        """Take an open file off `mappable`."""
        self.mappable = self.mappable - {number} or NOBODY

    def open(self, opening: Opening) -> BufferHandle:
        """Open the relay file; OSError: EBADMSG."""
        handle = (StreamHandle if opening.as_stream else SeekableHandle)(self, opening, self.stats())
        if opening.reads:
            self.readers.append(handle)
        return handle

    def count_mapped(self, opened: bool) -> None:
        """Count an opened or closed file, and wake the channel's maker (native/src/channel/buf_mapped.c)."""
        self.buffer.count_mapped(self._first(), opened)

    def forget_mapped(self) -> None:
        """Set the count to 0."""
        self.buffer.forget_mapped(self._first())

    def _first(self) -> native.Buffer:
        """Return the buffer on which the channel's maker sleeps, the first; if the channel was removed, any will do."""
        buffers = self.channel.buffers
        first: native.Buffer = buffers[0].buffer if buffers else self.buffer
        return first


class StoredTimed(StoredRecords[native.Buffer], StoredBuffer):
    """A relay buffer of a channel with `times`."""

    readers: list[RecordHandle]  # type: ignore[assignment]

    def _read(self, size: int, most: int, into: memoryview) -> bytes:
        """Consume and return whole records, without their heads."""
        return self.buffer.read_records(size, most, into)

    @property
    def _room(self) -> int:
        """The bytes of all sub-buffers."""
        return int(self.channel.stats.subbuf_size * self.channel.stats.n_subbufs)

    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2), also of what is in `returned`, and the progress."""
        events, progress = super().readiness(by_mem)
        return events | (READABLE if self.returned else 0), progress

    def address_to_poll(self) -> int | None:
        """Return None: what is in `returned` is readable, too."""
        return None

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Return 0: every relay file is a stream."""
        return 0.0

    def open(self, opening: Opening) -> RecordHandle:  # type: ignore[override]
        """Open the relay file."""
        return RecordHandle(self, opening)


def _stored(channel: StoredChannel, index: int, buffer: native.Buffer) -> StoredBuffer:
    return (StoredTimed if channel.stats.times else StoredBuffer)(channel, index, buffer)


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
    stored=_stored,
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
