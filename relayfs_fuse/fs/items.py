"""Of what the files `merged` consist: lines, lines of JSON, or blocks of pcapng (native/src/merge/pcapng.c)."""

from __future__ import annotations

import json
import struct
import time
from typing import Protocol

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_SYSTEMD_JOURNAL_EXPORT = 9


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


class Lines:
    """Lines; notices begin with "# "."""

    left = 0

    def cut(self, ready: bytearray, most: int) -> int:
        """Cut behind a newline."""
        return ready.rfind(b"\n", 0, most) + 1 or most

    def notice(self, said: str) -> bytes:
        """Return a line."""
        return f"# {said}\n".encode()


class JsonLines(Lines):
    """An object a line."""

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
