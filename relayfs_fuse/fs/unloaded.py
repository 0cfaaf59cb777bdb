"""The channels that the store has, and that a server which has just begun has not loaded yet.

There can be many thousands of channels. A server knows the directories of all of them before it answers. It opens, maps
and shows the files of a channel when a request is the first to ask for a name that may be one of it; and those of the
others afterwards, between requests:

    relay files of the channel DIR/NAME   DIR/NAME, or DIR/NAME0, DIR/NAME1 ...
    its statistics                        .channels/DIR/NAME/
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DIGITS = "0123456789"


class Unloaded:
    """These channels.

    load: loads the channel at a path, which is not among these any more; it may ask for others
    numbers: returns numbers of inodes that the channel at a path may have, as Tree.numbers_at()
    n, n_bytes: how many they are, and the bytes of all their paths
    """

    def __init__(self, load: Callable[[str], object], numbers: Callable[[str, int], Iterable[int]]) -> None:
        self._load = load
        self._numbers = numbers
        # By directory, the names of channels, in the order in which they were found, and what their directories'
        # inode numbers are in the store.
        self._names: dict[str, dict[str, int]] = {}
        # By number, the directory and the name; empty: it was not asked for yet.
        self._at: dict[int, tuple[str, str]] = {}
        self.n = self.n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, path: str, inode: int) -> None:
        """Note that there is a channel at a path, whose directory in the store has this inode number."""
        directory, _, name = path.rpartition("/")
        self._names.setdefault(directory, {})[name] = inode
        self.n += 1
        self.n_bytes += len(os.fsencode(path))

    def load(self, directory: str, name: str) -> None:
        """Load the channels that a name in a directory may be of, shorter names first."""
        names = self._names.get(directory)
        if names is None:
            return
        prefix = name.rstrip(_DIGITS)
        for end in range(len(prefix), len(name) + 1):
            if name[:end] in names:
                self._take(directory, name[:end])

    def load_number(self, *numbers: int) -> None:
        """Load the channel that has one of these numbers, if there is one."""
        if not self._at:
            for directory, names in self._names.items():
                for name, inode in names.items():
                    path = f"{directory}/{name}" if directory else name
                    self._at.update(dict.fromkeys(self._numbers(path, inode), (directory, name)))
        for number in numbers:
            if number in self._at:
                self.load(*self._at[number])

    def has(self, directory: str) -> bool:
        """Whether there are any in a directory."""
        return directory in self._names

    def load_some(self, n: int, directory: str | None = None) -> bool:
        """Load up to so many, of a directory or of all; return whether there may be others."""
        for _ in range(n):
            above = next(iter(self._names), None) if directory is None else directory
            if above is None or above not in self._names:
                return False
            self._take(above, next(iter(self._names[above])))
        return True

    def load_all(self, directory: str | None = None) -> None:
        """Load those of a directory, or all."""
        while self.load_some(1, directory):
            pass

    def _take(self, directory: str, name: str) -> None:
        names = self._names[directory]
        del names[name]
        if not names:
            del self._names[directory]
        if not self._names:
            self._at = {}
        path = f"{directory}/{name}" if directory else name
        self.n -= 1
        self.n_bytes -= len(os.fsencode(path))
        self._load(path)
