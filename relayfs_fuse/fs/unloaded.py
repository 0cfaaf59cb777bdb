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
    from collections.abc import Callable

_DIGITS = "0123456789"


class Unloaded:
    """These channels.

    load: loads the channel at a path, which is not among these any more; it may ask for others
    n, n_bytes: how many they are, and the bytes of all their paths
    """

    def __init__(self, load: Callable[[str], object]) -> None:
        self._load = load
        # By directory, the names of channels, in the order in which they were found.
        self._names: dict[str, dict[str, None]] = {}
        self.n = self.n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, path: str) -> None:
        """Note that there is a channel at a path."""
        directory, _, name = path.rpartition("/")
        self._names.setdefault(directory, {})[name] = None
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
        path = f"{directory}/{name}" if directory else name
        self.n -= 1
        self.n_bytes -= len(os.fsencode(path))
        self._load(path)
