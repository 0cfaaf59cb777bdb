"""The nodes of cards of processes that have died, and of snapshots: each is a directory of the store.

See traces/cards.py and traces/snapshots.py.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.nodes import Directory, TextFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree


class CrashedDirectory(Directory):
    """The directory .crashed. The kernel lets each user remove his own cards there, as of files in /tmp."""

    mode = 0o1777
    identity = 1  # in the store it is made later


class StoredDirectory(Directory):
    """A directory of the store whose files nobody changes.

    path: in the file system
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self._path = path

    def fill(self, tree: Tree) -> None:
        """Show what is in it; OSError."""
        with os.scandir(self._path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                directory = StoredDirectory(entry.name, entry.path)
                tree.attach(self, directory)
                directory.fill(tree)
            else:
                tree.attach(self, StoredFile(entry.name, entry.path))

    def attributes(self, store: Store, pid: int) -> Attributes:  # noqa: ARG002
        """Return owner and times of the directory; only the owner may enter it."""
        status = os.stat(self._path)
        times = status.st_mtime_ns, status.st_ctime_ns
        mode = stat.S_IFDIR | 0o500
        return Attributes(self.inode, mode, status.st_uid, status.st_gid, 0, *times, 2 + self.n_directories)


class CardDirectory(StoredDirectory):
    """A card or a snapshot, which rmdir(2) removes with all that is in it.

    remove: deletes it in the store; may block
    """

    def __init__(self, name: str, path: str, remove: Callable[[], None]) -> None:
        super().__init__(name, path)
        self.remove_whole = remove


class StoredFile(TextFile):
    """A file of a StoredDirectory.

    path: in the file system
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, bytes)
        self._path = path
        self.read = self._read

    def attributes(self, store: Store, pid: int) -> Attributes:  # noqa: ARG002
        """Return what stat(2) shows of the file."""
        status = os.stat(self._path)
        times = status.st_mtime_ns, status.st_ctime_ns
        return Attributes(self.inode, status.st_mode, status.st_uid, status.st_gid, status.st_size, *times)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise failure(errno.ESTALE) from None
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)
