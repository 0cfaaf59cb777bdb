"""Where a reader of a file with offsets is, and the bytes that it was given last, so that they can be read again.

Both are in notes, which the tap reads and changes, too (native/fuse/lane.h):

    PLACE   | read(2) | now: end, consumed, kept end, kept | next: the same |
    KEPT    | the bytes: numbered.py |

A file that gives whole records has a PLACE, too, the `end` of which is how many bytes were given.

`next` counts once the kernel has the answer to the read(2), `now` until then. The bytes that a read(2) adds leave those
that were kept before it, for the case that its reply was not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.kinds.numbered import Added, all_of, load, room_for, store
from relayfs_fuse.fs.notes import KEPT, PLACE

if TYPE_CHECKING:
    from relayfs_fuse.fs.notes import Notes

# The words of PLACE: struct relay_lane_noted.
_UNIQUE, _NOW, _NEXT, _WORDS = 0, 1, 5, 9
# Of `now` and `next`.
_END, _CONSUMED, _KEPT_END, _N_KEPT = range(4)


_NOTHING = memoryview(b"")

# Memory that is too small is replaced by one with room for so many times what is needed.
_AHEAD = 4


class Place:
    """The place of an open file, and the bytes before it.

    number: of the handle
    most: how many bytes are kept
    consumed: see there; at open(2)

    words: as in the note; None: the file was not read
    kept: the memory of the bytes
    """

    def __init__(self, number: int, most: int, consumed: int) -> None:
        self._number = number
        self._most = most
        self._consumed = consumed
        self._notes: Notes | None = None
        self.words: memoryview | None = None
        self.kept = _NOTHING

    @property
    def end(self) -> int:
        """The offset of the next byte to consume."""
        return self._get(_END)

    @property
    def consumed(self) -> int:
        """The stream position before which all was consumed when the file was read last."""
        return self._get(_CONSUMED)

    @property
    def n_kept(self) -> int:
        """How many of the bytes before `end` can be read again."""
        return self._get(_N_KEPT)

    @property
    def kept_bytes(self) -> int:
        """The bytes of memory that they take, at most those that may be kept."""
        return min(len(self.kept), self._most)

    def _get(self, field: int) -> int:
        if self.words is None:
            return self._consumed if field == _CONSUMED else 0
        return self.words[(_NEXT if self.words[_UNIQUE] else _NOW) + field]

    def part(self, back: int, size: int) -> bytes:
        """Return at most `size` of the last `back` bytes, of which there are as many."""
        begin = self._get(_KEPT_END) - back
        return self._copy(begin, begin + min(back, size))

    def _copy(self, begin: int, end: int) -> bytes:
        return load(self.kept, begin, end - begin)

    # ---------------------------------------------------------------- changes

    def move(self, notes: Notes, unique: int, end: int, consumed: int) -> None:
        """Go to another place, by a read(2) that will be answered; what is kept stays; OSError: ENOMEM."""
        words = self._change(notes, unique)
        words[_NEXT + _END], words[_NEXT + _CONSUMED] = end, consumed

    def clear(self, notes: Notes, unique: int) -> None:
        """Keep nothing, from the answer to a read(2) on; OSError: ENOMEM."""
        self._change(notes, unique)[_NEXT + _N_KEPT] = 0

    def keep(self, notes: Notes, unique: int, added: Added) -> None:
        """Keep further bytes, from the answer to a read(2) on; OSError: ENOMEM."""
        words = self._change(notes, unique)
        length = min(added.length, self._most)
        if not length:
            return
        begin = words[_NEXT + _KEPT_END]
        first = words[_NOW + _KEPT_END] - words[_NOW + _N_KEPT]
        needed = begin + length - first
        if needed > len(self.kept):
            self._grow(notes, first, words[_NOW + _KEPT_END], needed)
        store(self.kept, begin, Added(length, added.copy))
        words[_NEXT + _KEPT_END] = begin + length
        words[_NEXT + _N_KEPT] = min(words[_NEXT + _N_KEPT] + length, self._most)

    def drop(self) -> None:
        """Free what is kept."""
        if self.words is not None:
            self.words[_NOW + _N_KEPT] = self.words[_NEXT + _N_KEPT] = 0
        self.kept = _NOTHING
        if self._notes is not None:
            self._notes.drop(KEPT, self._number)

    def note(self, notes: Notes) -> memoryview:
        """Have the note PLACE, before something is done that cannot be undone; return its words. OSError: ENOMEM."""
        if self.words is None:
            self.words = memoryview(bytearray(8 * _WORDS)).cast("Q")
            self.words[_NOW + _CONSUMED] = self._consumed
        if self._notes is None:
            notes.put(PLACE, self._number, bytes(self.words))
            self._take(notes)
        return self.words

    def _change(self, notes: Notes, unique: int) -> memoryview:
        """Return the words, of which `next` is that of a read(2) that is not answered."""
        words = self.note(notes)
        if words[_UNIQUE] != unique:
            if words[_UNIQUE]:
                _settle(words)
            words[_NEXT:_WORDS] = words[_NOW:_NEXT]
            words[_UNIQUE] = unique
        return words

    def _take(self, notes: Notes) -> None:
        view = notes.view(PLACE, self._number)
        if view is not None:
            self._notes, self.words = notes, view.cast("Q")

    def _grow(self, notes: Notes, begin: int, end: int, needed: int) -> None:
        """Make room for `needed` bytes, with a copy of those from number `begin` to `end`."""
        # Who reads on will need more, and each time it takes a handler in place of the tap.
        ahead = _AHEAD * needed if self.kept else needed
        size = room_for(ahead if ahead < self._most // 2 else 2 * self._most)

        def fill(room: memoryview) -> None:
            store(room, begin, all_of(self._copy(begin, end)))

        try:
            self.kept = notes.reserve(KEPT, self._number, size, fill)
        except OSError:  # there is no room: the next server keeps nothing
            room = memoryview(bytearray(size))
            fill(room)
            notes.drop(KEPT, self._number)
            self.kept = room

    # ---------------------------------------------------------------- after the death of another server

    def restore(self, notes: Notes) -> None:
        """Go on where a dead server was, if the file was read."""
        self._take(notes)
        words = self.words
        if words is None:
            return
        if words[_UNIQUE] and not tap.awaits(words[_UNIQUE]):
            _settle(words)
        words[_UNIQUE] = 0
        self.kept = notes.view(KEPT, self._number) or _NOTHING
        words[_NOW + _N_KEPT] = min(words[_NOW + _N_KEPT], len(self.kept))


def _settle(words: memoryview) -> None:
    words[_NOW:_NEXT] = words[_NEXT:_WORDS]
    words[_UNIQUE] = 0
