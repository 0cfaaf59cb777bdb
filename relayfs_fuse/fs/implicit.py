"""Implicit directories: those that `create` has made above a channel. They are removed with the last channel in them.

A permission bit of the directory in the store marks it as implicit (<relayfs/store.h>). The announcing thread
(requests/announcements.py) removes it through the mount, so that inotify(7) reports the removal. If that thread is held
up, the directory is removed without it.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs.nodes import Directory

if TYPE_CHECKING:
    import trio

    from relayfs_fuse.fs.requests.announcements import Announcements
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree


class ImplicitDirectories:
    """The removal of implicit directories.

    store, tree: where the directories are
    announcements: the announcing thread
    naming: the lock that is held while names are added or removed
    """

    def __init__(self, store: Store, tree: Tree, announcements: Announcements, naming: trio.Lock) -> None:
        self._store = store
        self._tree = tree
        self._announcements = announcements
        self._naming = naming

    async def remove_above(self, path: str) -> None:
        """Remove the empty implicit directories above a removed channel; the caller must not hold `naming`."""
        left = self._emptied(path.rpartition("/")[0])
        if not left:
            return
        failed = await self._announcements.ask_to_remove(
            left[0].rpartition("/")[0], [one.rpartition("/")[2] for one in left]
        )
        if failed is not None and failed.errno == errno.EBUSY:
            return  # something is mounted there
        # From the first one on that the announcing thread has not removed.
        for above in left:
            if self._tree.find(above) is None:
                continue
            async with self._naming:
                self._remove(above)
            if self._tree.find(above) is not None:
                return

    def _emptied(self, path: str) -> list[str]:
        """Return a directory and those above it, innermost first, that go because nothing else is in them."""
        left: list[str] = []
        node = self._tree.find(path)
        while path and isinstance(node, Directory) and len(self._tree.children(node)) == bool(left):
            if not self._store.is_implicit(path):
                break
            left.append(path)
            path, node = path.rpartition("/")[0], node.parent
        return left

    def _remove(self, path: str) -> None:
        """Remove a directory if the announcing thread has not done so."""
        node = self._empty(path)
        if node is not None:
            # Not if the directory in the store has something in it that the mount does not show.
            with suppress(OSError):
                self._store.remove_directory(path)
                self._tree.detach(node)

    def _empty(self, path: str) -> Directory | None:
        """Return the directory at a path if it is implicit and empty, else None."""
        node = self._tree.find(path)
        if not isinstance(node, Directory) or not self._tree.is_empty(node) or not self._store.is_implicit(path):
            return None
        return node
