"""Cutting a stream of bytes into records of a channel; see <relayfs/split_store.h>."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native.channel import ChannelHandle
from relayfs_fuse.native.library import Fields, check, record

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

    from relayfs_fuse.native.ring import RingsHandle

LINES: int = lib.RELAY_SPLIT_LINES
FIXED: int = lib.RELAY_SPLIT_FIXED
PREFIXED: int = lib.RELAY_SPLIT_PREFIXED
SEPARATED: int = lib.RELAY_SPLIT_SEPARATED


class Split(Fields):
    """Write records to a channel. The attributes are the fields of struct relay_split.

    channel: the channel or its rings, which stay the caller's
    by: LINES, FIXED or PREFIXED
    fixed: the length of a record with FIXED
    waits: whether a full buffer ends write() with the error ENOSPC; otherwise the record is lost, and counted in `full`
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: ChannelHandle | RingsHandle, by: int = LINES, fixed: int = 1, *, waits: bool) -> None:
        super().__init__(ffi.new("struct relay_split *", {"by": by, "fixed": fixed, "waits": waits}))
        self._channel = channel
        setattr(self._raw, "chan" if isinstance(channel, ChannelHandle) else "rings", channel.pointer)
        check(lib.relay_split_start(self._raw))

    @property
    def error(self) -> int:
        """The errno with which the record after those of the last write() was refused; 0: it was not."""
        return -int(self._raw.error)

    def write(self, data: bytearray, begin: int, end: int, *, ends: bool) -> int:
        """Write the records that are complete in a part of data; return the number of bytes that were passed."""
        with ffi.from_buffer(data) as buffer:
            return int(lib.relay_split_write(self._raw, buffer + begin, end - begin, ends))

    def flush(self) -> None:
        """Let readers of whole sub-buffers have all records; OSError."""
        if isinstance(self._channel, ChannelHandle):
            self._channel.flush()


def write_all(
    channel: ChannelHandle | RingsHandle,
    data: AnyBuffer,
    *,
    length: int | None = None,
    separator: bytes | None = None,
    flags: int = 0,
) -> int:
    """Write the records that lie one behind the other in a buffer, up to the first that is refused; return how many.

    length, separator: one of them: of each record, its bytes; the byte that ends it, and belongs to it
    flags: of relay_rings_output()

    OSError: the first record is refused. TypeError, ValueError: nothing is written.
    """
    view = record(data)
    split = ffi.new("struct relay_split *", {"flags": flags})
    setattr(split, "chan" if isinstance(channel, ChannelHandle) else "rings", channel.pointer)
    if (length is None) == (separator is None):
        raise TypeError("either length= or separator= says where the records of a buffer end")
    if separator is not None:
        if not isinstance(separator, bytes) or len(separator) != 1:
            raise ValueError(f"separator={separator!r:.100}: it is one byte, as bytes")
        split.by, split.separator = SEPARATED, separator[0]
    else:
        if not isinstance(length, int) or length < 1 or len(view) % length:
            raise ValueError(f"length={length!r:.100}: it is 1 or more, and divides the buffer's {len(view)} bytes")
        split.by, split.fixed = FIXED, length
    return check(lib.relay_split_all(split, view, len(view)))
