"""Directories that `create` made above a channel go with the last channel in them.

The store's directory bears the mark (<relayfs/store.h>). inotify(7) tells of the removal because the announcing thread
(requests/announcements.py) asks for it through the mount. While that thread is held up, directories go without being
announced.
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
    """Remove them.

    store, tree, announcements: where they are
    naming: is held while names come and go
    """

    def __init__(self, store: Store, tree: Tree, announcements: Announcements, naming: trio.Lock) -> None:
        self._store = store
        self._tree = tree
        self._announcements = announcements
        self._naming = naming

    async def remove_above(self, path: str) -> None:
        """Remove those above a channel that are empty; not for who holds what a handler of names waits for."""
        while path := path.rpartition("/")[0]:
            if self._empty(path) is None:
                return
            parent, _, name = path.rpartition("/")
            failed = await self._announcements.ask_to_remove(parent, name)
            if failed is not None and failed.errno == errno.EBUSY:
                return  # something is mounted there
            async with self._naming:
                self._remove(path)
            if self._tree.find(path) is not None:
                return

    def _remove(self, path: str) -> None:
        """Do what the kernel could not be told of."""
        node = self._empty(path)
        if node is not None:
            # The store's directory may hold what cannot be shown.
            with suppress(OSError):
                self._store.remove_directory(path)
                self._tree.detach(node)

    def _empty(self, path: str) -> Directory | None:
        node = self._tree.find(path)
        if not isinstance(node, Directory) or node.children or not self._store.is_implicit(path):
            return None
        return node
