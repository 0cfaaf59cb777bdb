"""Looking for files of the store that were made or have grown without a command of `control`.

Such files are in the directories of traces and of counters, or the store's owner has made them. A directory with
nothing but directories in it is not read again before its mtime has changed, and those of channels that the mount shows
are not read at all: the ledger has their files. A survey takes a look-up for each of them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

# A directory's mtime has the resolution of the kernel's clock tick. So a directory that was changed a shorter time ago
# is read again.
SETTLED_NS = 1_000_000_000


class Survey:
    """The walks through a store, one at a time.

    directory: of the store
    hidden: the names at its top, beginning with a dot, of directories that are read, too
    """

    def __init__(self, directory: str, hidden: Container[str]) -> None:
        self._directory = directory
        self._hidden = hidden
        # By path, the mtime of directories without files, and the names of the directories in them.
        self._seen: dict[str, tuple[int, list[str]]] = {}

    def walk(self, channels: Container[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield the path of each directory other than channels', and the names of the files in it.

        Paths are those in the store; "" is the store itself.
        """
        seen, self._seen = self._seen, {}
        left = [""]
        while left:
            path = left.pop()
            try:
                mtime_ns = os.stat(os.path.join(self._directory, path), follow_symlinks=False).st_mtime_ns
                known = seen.get(path)
                names, files = (known[1], []) if known and known[0] == mtime_ns else self._read(path)
            except OSError:
                continue  # it was removed meanwhile
            if not files and time.time_ns() - mtime_ns > SETTLED_NS:
                self._seen[path] = mtime_ns, names
            yield path, files
            left += [inner for name in names if (inner := _join(path, name)) not in channels]

    def _read(self, path: str) -> tuple[list[str], list[str]]:
        """Return the names of directories and of files in a directory; OSError."""
        names, files = [], []
        with os.scandir(os.path.join(self._directory, path)) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.name.startswith("."):
                    if not path and entry.name in self._hidden:
                        names.append(entry.name)
                else:
                    names.append(entry.name)
        return names, files


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
