"""The last bytes of an open file `merged` or `peekN`, to be read again; a note has them, too (numbered.py).

The note is longer than what is kept: the bytes that a read(2) adds leave those that were kept before it, for the case
that its reply was not sent.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs.kinds.numbered import all_of, load, room_for, store
from relayfs_fuse.fs.notes import KEPT

if TYPE_CHECKING:
    from relayfs_fuse.fs.notes import Notes


class Kept:
    """The bytes.

    number: of the handle
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._data = bytearray()
        self._copy: memoryview | None = None

    def __len__(self) -> int:
        return len(self._data)

    def part(self, back: int, size: int) -> bytes:
        """Return at most `size` of the last `back` bytes, of which there are as many."""
        first = len(self._data) - back
        return bytes(self._data[first : first + size])

    def clear(self) -> None:
        """Keep nothing."""
        self._data = bytearray()

    def add(self, notes: Notes, data: bytes, end: int, most: int) -> None:
        """Keep further bytes, which end at the number `end`, and of all that are kept the last ones, at most `most`."""
        self._data += data
        if data and (self._copy is None or len(self._copy) < len(self._data)):
            self._copy = None
            with suppress(OSError):  # there is no room: the next server keeps nothing
                self._copy = notes.reserve(KEPT, self._number, room_for(len(self._data)))
            data = bytes(self._data)
        if self._copy is not None:
            store(self._copy, end - len(data), all_of(data))
        del self._data[: max(0, len(self._data) - most)]

    def restore(self, notes: Notes, length: int, end: int) -> None:
        """Take the bytes of a dead server: `length` before the number `end`, behind which it may have stored more."""
        self._copy = notes.view(KEPT, self._number)
        if self._copy is None:
            return
        length = min(length, len(self._copy))
        self._data = bytearray(load(self._copy, end - length, length))
