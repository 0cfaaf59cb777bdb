"""Of what the files `merged` consist: lines, lines of JSON, or blocks of pcapng (native/src/merge/pcapng.c)."""

from __future__ import annotations

import json
import re
import struct
import time
from typing import Protocol

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_ENHANCED_PACKET, _SYSTEMD_JOURNAL_EXPORT = 6, 9
# Of an enhanced packet, where its parts are.
_TIME_AT, _CAPTURED_AT, _DATA_AT = 12, 20, 28


class Items(Protocol):
    """The items of one open file.

    left: how many bytes of an item are left, of which the last read has taken a part and which has no end of its own
    """

    left: int

    def cut(self, ready: bytearray, most: int) -> int:
        """Return how many bytes the next read takes, of at most `most`: whole items, or a part of a longer one.

        ready: begins where the last read has ended, and ends with an item
        """

    def notice(self, said: str) -> bytes:
        """Return an item that says something to users; said: is printable."""

    def split(self, data: bytes) -> list[bytes]:
        """Return the whole items of data that begins with one."""

    def key(self, item: bytes) -> bytes | None:
        """Return what of an item is the same if another merge makes it; None: it may be needed anew."""


class Lines:
    """Lines; notices begin with "# "."""

    left = 0
    _late = re.compile(rb" late(:|$)")

    def cut(self, ready: bytearray, most: int) -> int:
        """Cut behind a newline."""
        return ready.rfind(b"\n", 0, most) + 1 or most

    def notice(self, said: str) -> bytes:
        """Return a line."""
        return f"# {said}\n".encode()

    def split(self, data: bytes) -> list[bytes]:
        """Split behind newlines."""
        return [line + b"\n" for line in data.split(b"\n")[:-1]]

    def key(self, item: bytes) -> bytes:
        """Return the line without what says that it is late."""
        return self._late.sub(rb"\1", item, count=1)


class JsonLines(Lines):
    """An object a line."""

    _late = re.compile(rb'(),"late":true')

    def notice(self, said: str) -> bytes:
        """Return an object."""
        return f"{json.dumps({'notice': said})}\n".encode()


class Blocks:
    """Blocks of pcapng; notices are entries of a journal, as systemd exports them."""

    def __init__(self) -> None:
        self.left = 0

    def cut(self, ready: bytearray, most: int) -> int:
        """Cut behind a block."""
        at, end = 0, self.left
        while end <= most:
            at = end
            if at == len(ready):
                break
            end += _HEAD.unpack_from(ready, at)[1]
        taken = at or most
        self.left = end - taken if taken > at else 0
        return taken

    def notice(self, said: str) -> bytes:
        """Return a block."""
        entry = f"__REALTIME_TIMESTAMP={time.time_ns() // 1000}\nMESSAGE={said}\n".encode()
        entry += bytes(-len(entry) % 4)
        length = _HEAD.size + len(entry) + _LENGTH.size
        return _HEAD.pack(_SYSTEMD_JOURNAL_EXPORT, length) + entry + _LENGTH.pack(length)

    def split(self, data: bytes) -> list[bytes]:
        """Split behind blocks."""
        found, at = [], 0
        while at + _HEAD.size <= len(data) and (end := at + _HEAD.unpack_from(data, at)[1]) <= len(data):
            found.append(data[at:end])
            at = end
        return found

    def key(self, item: bytes) -> bytes | None:
        """Return the time, lengths and data of a packet; other blocks belong to their section."""
        if _HEAD.unpack_from(item)[0] != _ENHANCED_PACKET:
            return None
        (length,) = _LENGTH.unpack_from(item, _CAPTURED_AT)
        return item[_TIME_AT : _DATA_AT + length]
