"""Notes on requests that must not be carried out twice: commands, mkdir(2), rmdir(2).

The kernel sends a request again that a dead server has taken and not answered. The note of a request says how many of
its lines are carried out, and whether the next one was begun: then its effect may be there already, see Commands.run().

    | lines done | line begun + 1 | what was there before |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.notes import REQUEST

if TYPE_CHECKING:
    from relayfs_fuse.fs.notes import Notes

_BYTES = 24


class Entry:
    """The note of one request.

    n_done: how many lines are carried out; the thread that carries out a line may set it
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words

    @property
    def n_done(self) -> int:
        """How many lines are carried out."""
        return int(self._words[0])

    @n_done.setter
    def n_done(self, n: int) -> None:
        self._words[0] = n

    def begin(self, before: int = 0) -> None:
        """Note that the effect of the next line is going to come; before: what the effect changes."""
        self._words[2] = before
        self._words[1] = self._words[0] + 1

    @property
    def was_begun(self) -> bool:
        """Whether a dead server has begun the next line."""
        return bool(self._words[1] == self._words[0] + 1)

    @property
    def before(self) -> int:
        """What begin() was given."""
        return int(self._words[2])


class Journal:
    """The notes of requests, by number."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._answered: list[int] = []

    def restore(self) -> None:
        """Forget the requests of a dead server that it has answered."""
        for number, _ in list(self._notes.all(REQUEST)):
            if not tap.awaits(number):
                self._notes.drop(REQUEST, number)

    def open(self, unique: int) -> Entry:
        """Return the note of a request that is being carried out; OSError: ENOMEM."""
        for number in self._answered:
            self._notes.drop(REQUEST, number)
        self._answered.clear()
        view = self._notes.view(REQUEST, unique)
        return Entry((view or self._notes.reserve(REQUEST, unique, _BYTES)).cast("Q"))

    def close(self, unique: int) -> None:
        """Note that a request is being answered, without another await."""
        self._answered.append(unique)
