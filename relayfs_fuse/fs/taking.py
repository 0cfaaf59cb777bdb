"""Notes for the next server that are written before records are consumed, or a record is written.

Records leave a buffer before the reply that has them is sent. So they are copied into memory that the next server has,
too, the library says there what it is about to consume (<relayfs/store.h>, relay_taken_store()), and then it does.

    killed before the library has said so   nothing is consumed: the kernel asks again, and the read(2) begins anew
    killed then                             the consumer's position tells whether it is consumed
    killed after that                       the kernel tells whether it has the reply; if not, it gets the copy

A write(2) to a relay file is noted likewise. The successor makes a note of what it finds, because it may die, too, and
because the kernel may ask for others first:

    WRITTEN   | state | what was written since the write(2) began |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.notes import AGAIN, AREA_BYTES, PAGE_BYTES, WRITTEN
from relayfs_fuse.native.memory import store_taken

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.notes import Notes

# The words of the second half of the page: of struct relay_taken and begin() (native/fuse/lane.h), and of a write(2).
_POSITION, _LENGTH, _UNIQUE, _HANDLE, _PLACE = range(5)
_WRITE, _WRITE_STATE, _WRITE_BEFORE, _WRITE_BUFFER = range(8, 12)
# Where the records are: in the area, or in the note RECORD of the handle.
IN_AREA, IN_RECORD = 1, 2
# The states of a write(2): it is being carried out; it has been.
_BEGUN, _DONE = 1, 2
_REQUEST = struct.Struct("=QQ")


class Again(NamedTuple):
    """Data that left a buffer, and may not have reached the program.

    unique: the read(2)
    returned: the number of the note RETURNED that had it; 0: none
    """

    unique: int
    returned: int
    data: bytes

    def pack(self) -> bytes:
        """Return the note AGAIN that says it."""
        return _REQUEST.pack(self.unique, self.returned) + self.data

    @classmethod
    def unpack(cls, note: bytes) -> Again:
        """Return what a note AGAIN says."""
        unique, returned = _REQUEST.unpack_from(note)
        return cls(unique, returned, note[_REQUEST.size :])


class Taking:
    """The second half of the page, and the area.

    notes: of the mount
    words: which the tap writes, too: struct relay_lane_taking
    area: where records are copied
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        half = memoryview(notes.memory)[PAGE_BYTES // 2 : PAGE_BYTES]
        self.area = memoryview(notes.memory)[PAGE_BYTES : PAGE_BYTES + AREA_BYTES]
        self.words = half.cast("Q")
        store_taken(half)

    def begin(self, unique: int, handle: int, place: int) -> None:
        """Note that a read(2) is going to consume records; without another await the reply is sent."""
        words = self.words
        words[_LENGTH] = 0
        words[_UNIQUE], words[_HANDLE], words[_PLACE] = unique, handle, place

    def consumed(self, handle: int, place: int, stored: Stored[Any]) -> int:
        """Return how many bytes a dead server has copied to a place for a handle, and consumed; 0: none."""
        words = self.words
        if (words[_HANDLE], words[_PLACE]) != (handle, place) or not words[_LENGTH]:
            return 0
        return words[_LENGTH] if stored.n_consumed() >= words[_POSITION] else 0

    def left(self, handle: int, stored: Stored[Any]) -> Again | None:
        """Return what a dead server has consumed for a handle, if the program has not got it."""
        note = self.notes.get(AGAIN, handle)
        again = None if note is None else Again.unpack(note)
        length = self.consumed(handle, IN_AREA, stored)
        if length:
            again = Again(self.words[_UNIQUE], 0, bytes(self.area[:length]))
        return again if again and tap.awaits(again.unique) else None

    def begin_write(self, unique: int, stored: Stored[Any]) -> None:
        """Note that a write(2) is about to be carried out, and what was written before."""
        words = self.words
        words[_WRITE_STATE] = 0
        self.notes.drop(WRITTEN, unique)
        words[_WRITE], words[_WRITE_BEFORE], words[_WRITE_BUFFER] = unique, stored.n_written(), stored.inode
        words[_WRITE_STATE] = _BEGUN

    def end_write(self, *, is_written: bool) -> None:
        """Note that the write(2) was carried out, or refused."""
        self.words[_WRITE_STATE] = _DONE if is_written else 0

    def look_for_write(self, find: Callable[[int], Stored[Any] | None]) -> None:
        """If a server died in a write(2), note what was written since that began, before anybody reads or writes.

        find: returns the buffer with an inode number; None: there is none
        """
        for number, _ in list(self.notes.all(WRITTEN)):
            if not tap.awaits(number):
                self.notes.drop(WRITTEN, number)
        words = self.words
        unique, state = words[_WRITE], words[_WRITE_STATE]
        # The server that has noted it may have died, too, before the kernel asked it again.
        if state and tap.awaits(unique) and self.notes.get(WRITTEN, unique) is None:
            stored = find(words[_WRITE_BUFFER]) if state == _BEGUN else None
            found = stored.written_since(words[_WRITE_BEFORE]) if stored else b""
            self.notes.put(WRITTEN, unique, bytes([state]) + found)
        words[_WRITE_STATE] = 0

    def was_written(self, unique: int, data: bytes) -> bool:
        """Whether a dead server has carried out a write(2) of a record, which the kernel asks for again."""
        note = self.notes.get(WRITTEN, unique)
        return note is not None and (note[0] == _DONE or note.find(data, 1) > 0)
