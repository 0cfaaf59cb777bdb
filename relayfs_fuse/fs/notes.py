"""Notes: what a server of a mount writes down for the server after it, should it be killed.

They are in a memory file that only the servers of one mount and their supervisor have (handover.py), and go with it:

    | page | area of taking.py | note | note | note ...  free
                                 `- key, serial, length, room, data

A server may be killed between any two stores. So a note is replaced by another one with a higher serial number, which
is valid once its key is stored; and then the old one is freed by storing the key 0.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from array import array
from typing import TYPE_CHECKING

from relayfs_fuse.errors import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Address space of the memory file, of which notes take what they need.
MEMORY_BYTES = 1 << 30
# Bytes of its first page, of which native/fuse/handover.c has the first half and taking.py the second.
PAGE_BYTES = 4096
# Where records are copied that a read(2) is about to consume; the most that one read(2) gets.
AREA_BYTES = 4 << 20
FIRST_BYTES = PAGE_BYTES + AREA_BYTES

_HEAD = struct.Struct("@QQQQ")
_LEAST_ROOM = 128 - _HEAD.size
# The memory of a freed note of so many bytes goes back to the system.
_LARGE_BYTES = 64 << 10
_NUMBER_BITS = 56

# The kinds of notes.
OPEN_FILE, OPEN_DIRECTORY, TEXT, KEPT, RECORD, AGAIN, RETURNED, BACKING, REQUEST, WRITTEN, ERRORS, PLACE = range(1, 13)


def make_memory() -> int:
    """Return the descriptor of a new memory file for notes."""
    descriptor = os.memfd_create("relayfs-notes", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, MEMORY_BYTES)
    return descriptor


def _key(kind: int, number: int) -> int:
    return kind << _NUMBER_BITS | number & (1 << _NUMBER_BITS) - 1


class Notes:
    """The notes, by kind and number; a number has 56 bits.

    memory: the memory file
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self._words = memoryview(memory).cast("Q")
        self._at: dict[int, int] = {}
        # By room. An array takes less than a list of integers, of which there are many after many files were closed.
        self._free: dict[int, array[int]] = {}
        self._serial = 0
        self._end = FIRST_BYTES
        self._read()

    def _read(self) -> None:
        while self._end < MEMORY_BYTES:
            key, serial, _, room = _HEAD.unpack_from(self.memory, self._end)
            if not room:
                return
            at, self._end = self._end, self._end + _HEAD.size + room
            self._serial = max(self._serial, serial)
            if not key:
                self._free.setdefault(room, array("Q")).append(at)
                continue
            other = self._at.get(key)
            if other is None or self._words[other // 8 + 1] < serial:
                self._at[key], at = at, other  # type: ignore[assignment]
            if at is not None:
                self._clear(at)

    def reserve(
        self, kind: int, number: int, length: int, fill: Callable[[memoryview], None] | None = None
    ) -> memoryview:
        """Make a note of so many bytes, and return them, to be written later; OSError: ENOMEM.

        fill: stores what is to be there before the note is in place of one with the same kind and number
        """
        at = self._room_for(length)
        begin = at + _HEAD.size
        data = memoryview(self.memory)[begin : begin + length]
        if fill is None:
            self.memory[begin : begin + 64] = bytes(64)
        else:
            fill(data)
        self._replace(at, kind, number, length)
        return data

    def view(self, kind: int, number: int) -> memoryview | None:
        """Return the bytes of a note, which can be changed; None: there is none."""
        at = self._at.get(_key(kind, number))
        return None if at is None else memoryview(self.memory)[at + _HEAD.size :][: self._words[at // 8 + 2]]

    def put(self, kind: int, number: int, data: bytes) -> None:
        """Write a note, in place of one with the same kind and number; OSError: ENOMEM."""
        at = self._room_for(len(data))
        begin = at + _HEAD.size
        self.memory[begin : begin + len(data)] = data
        self._replace(at, kind, number, len(data))

    def _replace(self, at: int, kind: int, number: int, length: int) -> None:
        """Have the note at `at`, whose data is stored, be in place of one with the same kind and number."""
        key, word = _key(kind, number), at // 8
        self._serial += 1
        self._words[word + 1] = self._serial
        self._words[word + 2] = length
        self._words[word] = key
        before = self._at.get(key)
        self._at[key] = at
        if before is not None:
            self._clear(before)

    def get(self, kind: int, number: int) -> bytes | None:
        """Return what a note says; None: there is none."""
        at = self._at.get(_key(kind, number))
        return None if at is None else self._data(at)

    def drop(self, kind: int, number: int) -> None:
        """Remove a note, if there is one."""
        at = self._at.pop(_key(kind, number), None)
        if at is not None:
            self._clear(at)

    def all(self, kind: int) -> Iterator[tuple[int, bytes]]:
        """Yield number and data of all notes of a kind, the oldest first."""
        found = [(at, key) for key, at in self._at.items() if key >> _NUMBER_BITS == kind]
        for at, key in sorted(found, key=lambda one: self._words[one[0] // 8 + 1]):
            yield key & (1 << _NUMBER_BITS) - 1, self._data(at)

    def _data(self, at: int) -> bytes:
        begin = at + _HEAD.size
        return self.memory[begin : begin + self._words[at // 8 + 2]]

    def _room_for(self, length: int) -> int:
        """Return the place of a free note, whose data can have this length."""
        room = (_LEAST_ROOM + _HEAD.size << max(0, -(-(length + _HEAD.size) // 128) - 1).bit_length()) - _HEAD.size
        free = self._free.get(room)
        if free:
            return free.pop()
        at, end = self._end, self._end + _HEAD.size + room
        if end > MEMORY_BYTES:
            raise failure(errno.ENOMEM)
        self._words[at // 8] = 0
        self._words[at // 8 + 3] = room
        self._end = end
        return at

    def _clear(self, at: int) -> None:
        self._words[at // 8] = 0
        room = self._words[at // 8 + 3]
        if room >= _LARGE_BYTES:
            begin = -(-(at + _HEAD.size) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (at + _HEAD.size + room) // mmap.PAGESIZE * mmap.PAGESIZE
            self.memory.madvise(mmap.MADV_REMOVE, begin, end - begin)
        self._free.setdefault(room, array("Q")).append(at)
