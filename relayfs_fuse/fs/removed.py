"""Channels that are removed while programs have files of them open.

Their files stay in the store, under hidden names, until the last one is closed: if the server dies meanwhile, the next
one opens them there again, so that programs can read what is left, as they could before.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.channel_files import MemFile, PeekFile, RelayFile
from relayfs_fuse.fs.kinds.channel import StoredChannel
from relayfs_fuse.fs.kinds.unmapper import unmapper
from relayfs_fuse.fs.protection import delete, delete_when_closed, removed_in
from relayfs_fuse.fs.tree import STATS_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relayfs_fuse.fs.channel_files import BufferFile
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)


class RemovedChannels:
    """Those that a server which has died had removed; while open files are restored.

    store, tree: of the mount
    """

    def __init__(self, store: Store, tree: Tree) -> None:
        self._store = store
        self._tree = tree
        self._channels: dict[str, StoredChannel | None] = {}
        # By the inode number of a mem file, its directory.
        self._directories: dict[int, str] = {}
        for directory in removed_in(store.directory):
            with suppress(OSError), os.scandir(directory) as entries:
                self._directories.update((entry.inode(), directory) for entry in entries)

    def node(self, about: Mapping[str, Any]) -> BufferFile | None:
        """Return the node of a file that was open; None: its channel is not there.

        about: what OpenFiles.add() has noted
        """
        channel = self._channel(self._directories.get(about["buffer"], ""), about["channel"])
        stored = next((one for one in channel.buffers if one.inode == about["buffer"]), None) if channel else None
        if stored is None:
            return None
        above, _, name = about["path"].rpartition("/")
        of_stats = MemFile if name.startswith("mem") else PeekFile
        node = (of_stats if above == f"{STATS_NAME}/{about['channel']}" else RelayFile)(name, stored)
        node.let_go()
        self._tree.attach_removed(node, about["node"])
        return node

    def finish(self) -> None:
        """Delete the channels of which no file is open."""
        others = (one for one in removed_in(self._store.directory) if one not in self._channels)
        unmapper.put(*(partial(delete, one) for one in others))
        for directory, channel in self._channels.items():
            if channel is not None:
                delete_when_closed(directory, channel.buffers)
                channel.buffers = ()  # open files refer to their buffers themselves

    def _channel(self, directory: str, path: str) -> StoredChannel | None:
        if directory and directory not in self._channels:
            self._channels[directory] = None
            try:
                channel = self._channels[directory] = StoredChannel(path, directory)
            except (OSError, StoreError) as error:
                log.info("%s, which was removed, cannot be opened again: %s", path, error)
            else:
                channel.removed = True
                self._store.unname(channel)
        return self._channels.get(directory)
