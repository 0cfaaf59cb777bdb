"""Where records end in a file that grows by records: those of a ring, or lines of counters.

The file FRAMING of a recording has one of these words; without it, nothing tells where records end.

line          each record ends with a newline
length        each follows its length, 4 bytes, little endian
time,length   the same, and before that its time, 8 bytes: nanoseconds since 1970, or 0
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from relayfs_fuse.forwarding.names import PAYLOAD_BYTES, UNIT_BYTES

if TYPE_CHECKING:
    from relayfs_fuse.forwarding.recording import OpenFile

LINE = "line"
_HEADS = {"length": struct.Struct("<I"), "time,length": struct.Struct("<8xI")}


def unit_end(source: OpenFile, start: int, end: int, framing: str) -> int:
    """Return where the unit ends that begins with the record at `start`: as many records as fit into a message, or one.

    end: up to where the file can be sent
    framing: one of the words above; "": unknown

    `start`: there is no whole line yet.
    """
    if framing == LINE:
        return _end_of_lines(source, start, end)
    window = min(end, start + PAYLOAD_BYTES)
    return _end_of_records(source, start, end, _HEADS[framing]) if window < end and framing in _HEADS else window


def _end_of_lines(source: OpenFile, start: int, end: int) -> int:
    at = start
    while at < end:
        data = source.read(min(PAYLOAD_BYTES, end - at), at)
        found = data.rfind(b"\n") if at == start else data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
        if not data or at - start > UNIT_BYTES:
            break
    # A longer line has parts.
    return start + UNIT_BYTES if at - start > UNIT_BYTES else start


def _end_of_records(source: OpenFile, start: int, end: int, head: struct.Struct) -> int:
    data = source.read(PAYLOAD_BYTES, start)
    at = 0
    while at + head.size <= len(data):
        length = head.size + head.unpack_from(data, at)[0]
        if at + length > len(data):
            # The first record alone is longer than a message; a length that the file has not is none.
            return start + (at or (length if length <= min(UNIT_BYTES, end - start) else len(data)))
        at += length
    return start + at
