"""Cutting a stream of bytes into records of a channel; see <relayfs/split_store.h>."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native.channel import ChannelHandle
from relayfs_fuse.native.library import check

if TYPE_CHECKING:
    from relayfs_fuse.native.ring import RingsHandle

LINES: int = lib.RELAY_SPLIT_LINES
FIXED: int = lib.RELAY_SPLIT_FIXED
PREFIXED: int = lib.RELAY_SPLIT_PREFIXED


class Split:
    """Write records to a channel.

    channel: the channel or its rings, which stay the caller's
    by: LINES, FIXED or PREFIXED
    fixed: the length of a record with FIXED
    waits: whether a full buffer ends write() with the error ENOSPC; otherwise the record is lost, and counted in n_full
    """

    def __init__(self, channel: ChannelHandle | RingsHandle, by: int = LINES, fixed: int = 1, *, waits: bool) -> None:
        self.by = by
        self._channel = channel
        self._split = ffi.new("struct relay_split *", {"by": by, "fixed": fixed, "waits": waits})
        setattr(self._split, "chan" if isinstance(channel, ChannelHandle) else "rings", channel.pointer)
        check(lib.relay_split_start(self._split))

    @property
    def largest(self) -> int:
        """No longer record can be written."""
        return int(self._split.largest)

    @property
    def n_records(self) -> int:
        """How many records were written."""
        return int(self._split.records)

    @property
    def n_full(self) -> int:
        """How many records were lost because a buffer was full."""
        return int(self._split.full)

    @property
    def error(self) -> int:
        """The errno with which the record after those of the last write() was refused; 0: it was not."""
        return -int(self._split.error)

    @property
    def length(self) -> int:
        """The length of the refused record, or of the part of it that is there."""
        return int(self._split.length)

    @property
    def extent(self) -> int:
        """The bytes that the refused record takes in the stream; 0: up to the next newline."""
        return int(self._split.extent)

    def write(self, data: bytearray, begin: int, end: int, *, ends: bool) -> int:
        """Write the records that are complete in a part of data; return the number of bytes that were passed."""
        with ffi.from_buffer(data) as buffer:
            return int(lib.relay_split_write(self._split, buffer + begin, end - begin, ends))

    def flush(self) -> None:
        """Let readers of whole sub-buffers have all records; OSError."""
        if isinstance(self._channel, ChannelHandle):
            self._channel.flush()
