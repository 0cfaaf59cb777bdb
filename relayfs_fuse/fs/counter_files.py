"""The directory .counters of a mount, which shows the files of the counters in the store.

    counters, names    can be read, and mapped for reading
    UID-GID-MODE       the counters of one owner; can be mapped for writing, too, as owner and mode allow

Programs of users other than the store's owner map these files instead of those of the store: a descriptor of the
mount's file cannot truncate or extend the store's file. Programs of the store's owner add files without the server, so
the directory is compared with the store whenever a program looks into it.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.kinds.base import Backing
from relayfs_fuse.fs.nodes import Directory, MappedFile

if TYPE_CHECKING:
    from relayfs_fuse.fs.backings import Backings
    from relayfs_fuse.fs.nodes import Node
    from relayfs_fuse.fs.tree import Tree

_GROUP = re.compile(r"[0-9]+-[0-9]+-[0-7]{4}")
_SHARED = ("counters", "names")


class CounterFile(MappedFile):
    """A file of .counters; OSError if the file of the store cannot be opened.

    path: the file of the store
    backings: by which the kernel maps it
    """

    def __init__(self, name: str, path: str, backings: Backings) -> None:
        is_writable = name not in _SHARED
        reads = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = native.file_open(path) if is_writable else os.open(path, reads)
        super().__init__(name, bytes, Backing(descriptor, path, is_writable), lambda: self.status().st_size)
        self._backings = backings

    def status(self) -> os.stat_result:
        """Return the stat(2) of the file of the store; OSError: ESTALE if it was removed."""
        return os.fstat(self._open_descriptor())

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of the contents, for programs that do not map the file; OSError."""
        return os.pread(self._open_descriptor(), size, offset)

    def owner(self) -> tuple[int, int, int]:
        """Return permission bits, owner and group."""
        if self.removed:
            return super().owner()
        status = self.status()
        return status.st_mode & (0o666 if self.backing.is_writable else 0o444), status.st_uid, status.st_gid

    def let_go(self) -> None:
        """Close the file of the store; programs keep their mappings of it."""
        self._backings.close(self.backing)
        os.close(self._open_descriptor())
        self.backing.descriptor = -1

    def _open_descriptor(self) -> int:
        if self.backing.descriptor < 0:
            raise failure(errno.ESTALE)
        return self.backing.descriptor


class CounterDirectory(Directory):
    """The directory .counters.

    path: the directory in the store
    backings: see CounterFile
    """

    def __init__(self, name: str, tree: Tree, path: str, backings: Backings) -> None:
        super().__init__(name)
        self._tree = tree
        self._path = path
        self._backings = backings
        self._is_comparing = False

    @property
    def children(self) -> dict[str, Node]:
        """The files, by name, as they are in the store now."""
        if not self._is_comparing:
            self._is_comparing = True
            try:
                self._compare()
            finally:
                self._is_comparing = False
        return self._children

    @property
    def n_directories(self) -> int:
        """How many directories are in it."""
        return 0

    def _compare(self) -> None:
        with os.scandir(self._path) as entries:
            found = {entry.name: entry.inode() for entry in entries if _is_shown(entry.name)}
        for node in list(self._children.values()):
            if isinstance(node, CounterFile) and found.get(node.name) != node.backing.inode:
                self._tree.detach(node)
        for name in found.keys() - self._children.keys():
            try:
                self._tree.attach(self, CounterFile(name, os.path.join(self._path, name), self._backings))
            except FileNotFoundError:
                continue  # it was removed meanwhile


def _is_shown(name: str) -> bool:
    return name in _SHARED or _GROUP.fullmatch(name) is not None
