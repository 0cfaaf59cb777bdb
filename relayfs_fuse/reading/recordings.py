"""Recordings that are followed. One that is renamed, or is reached by several paths, is the same one.

It is known by the device and the inode number of its directory, which is kept open: otherwise another directory could
get the inode number when this one is removed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relayfs_fuse.tracefiles.hosts import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.tracefiles.clock_pairs import Pair
    from relayfs_fuse.tracefiles.recorded import Clock, Part

# Of a file: what changes with it.
Signature = tuple[int, int, int]


@dataclass
class Followed:
    """A part.

    numbers: in the merge, of each stretch of its times; the last one has all later times
    identity: of the process, as in packets
    metadata: what the file was when it was read
    n_declared: how many of its declarations the merge has
    paths: of files that were found, or of copies of compressed ones, by their names as if they were not compressed
    is_missing: whether the last scan has not found its directory, which may have been renamed during the scan
    has_left: whether its directory was removed
    """

    part: Part
    numbers: list[int]
    identity: int
    metadata: Signature | None
    n_declared: int
    paths: dict[str, str] = field(default_factory=dict)
    is_missing: bool = False
    has_left: bool = False

    @property
    def until_ns(self) -> dict[str, int]:
        """Up to when the causes of losses are known, by buffer."""
        return {buffer: intervals[-1].until_ns for buffer, intervals in self.part.losses.items() if intervals}


@dataclass
class FollowedRecording:
    """A recording.

    path: of its directory
    descriptor: of its directory; None: there are too many open files
    is_displaced: whether another directory has its path, and `path` is one that leads through the descriptor
    parts: by their directories
    pairs, signature: of its clocks, and what the file of them was when it was read
    clocks: of its processes
    ahead: how far its clock is ahead of this machine's, ns
    """

    path: str
    descriptor: int | None
    is_displaced: bool = False
    parts: dict[str, Followed] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    signature: Signature | None = None
    clocks: dict[object, Clock] = field(default_factory=dict)
    ahead: int = 0

    @property
    def numbers(self) -> list[int]:
        """Of all parts, in the merge."""
        return [number for part in self.parts.values() for number in part.numbers]

    @property
    def is_there(self) -> bool:
        """Whether its path leads to it, because it was not renamed or removed."""
        with suppress(OSError):
            there = os.stat(self.path)
            return self.descriptor is None or os.path.samestat(there, os.fstat(self.descriptor))
        return False

    def close(self) -> None:
        """Close its directory."""
        if self.descriptor is not None:
            os.close(self.descriptor)


class Recordings:
    """The recordings that are there."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int] | str, FollowedRecording] = {}

    def close(self) -> None:
        """Close their directories."""
        for one in self._of.values():
            one.close()

    def all(self) -> list[FollowedRecording]:
        """Return those that were found, and those that have parts that were not read to their ends."""
        return list(self._of.values())

    def find(self, places: Sequence[Place]) -> list[tuple[Place, FollowedRecording]]:
        """Return the recordings of these places, each once; one that was renamed has the path that it had before.

        Of recordings that are in none of these places, but whose path another one has now, the place is another path
        that leads to them.
        """
        found: dict[int, tuple[Place, FollowedRecording]] = {}
        for place in places:
            key = self._key(place.path)
            one = self._of.get(key)
            if one is None:
                one = self._of[key] = FollowedRecording(place.path, _open_directory(place.path))
                if one.descriptor is None:  # its inode number may become that of another directory
                    self._of[place.path] = self._of.pop(key)
            if one.path == place.path or one.is_displaced or self._key(one.path) != key:
                found[id(one)] = place, one
                one.is_displaced = False
        for key, one in list(self._of.items()):
            is_there = id(one) in found or (self._key(one.path) == key and not one.is_displaced)
            if not is_there and not one.parts:
                self._of.pop(key).close()
            elif not is_there and one.descriptor is not None and os.path.lexists(one.path):
                one.is_displaced = True
                found[id(one)] = Place(f"/proc/self/fd/{one.descriptor}", ""), one
        return list(found.values())

    def _key(self, path: str) -> tuple[int, int] | str:
        """Return by what a recording is known."""
        with suppress(OSError):
            status = os.stat(path)
            key = status.st_dev, status.st_ino
            return path if path in self._of and key not in self._of else key
        return path


def _open_directory(path: str) -> int | None:
    with suppress(OSError):
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return None
