"""Lookups of relay files that are answered at once, without a task for each (native/fuse/lookups.h).

The first lookup of a file that nobody has open tells the tap of the file, which answers it and the next ones, until the
file is opened or removed. If something was written to it, the lookup is answered here, and the tap told of that.

The kernel may use the attributes in such an answer for ATTRIBUTES_NS, which it makes some milliseconds: without that it
would ask for them next. That shows nothing old. Who gives a path has the kernel look it up, and so get the attributes,
each time; and of a file that somebody has open, whose descriptor could be asked, it may not use them (see
Operations.open()). If several threads look at a file, the tap sees to that none is shown what another was told before.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs import at_once
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.kinds.mapped import mapped
from relayfs_fuse.fs.nodes import Directory

if TYPE_CHECKING:
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native import Shown

# The kernel rounds up to its next tick.
ATTRIBUTES_NS = 1


class Lookups:
    """These lookups; all others are answered by NameOperations.lookup()."""

    def __init__(self, store: Store, tree: Tree) -> None:
        self._store = store
        self._tree = tree

    def answer(self, parent: int, name: bytes, pid: int) -> at_once.Entry | int:
        """Return what the kernel is to know of a name, HANDLER or LEARNT.

        parent: the number of the directory
        pid: the thread that asks
        """
        directory = self._tree.known(parent)
        if type(directory) is not Directory or directory.removed or self._tree.unloaded:
            return at_once.HANDLER
        node = directory.children.get(os.fsdecode(name))
        if not isinstance(node, RelayFile):
            return at_once.HANDLER
        stored = node.stored
        if node.known is None and stored.is_as_seen and _learn(parent, node, *stored.seen):
            return at_once.LEARNT
        shown = stored.shown()
        if shown is None:
            entry = self._measured(node, pid)
        else:
            entry = _entry(node.inode, stored.write_block, *shown)
            _learn(parent, node, shown[0].written, shown[2])
        if entry is None:
            return at_once.HANDLER
        node.lookups += 1
        return entry

    def _measured(self, node: RelayFile, pid: int) -> at_once.Entry | None:
        mapped.trim()
        try:
            found = node.attributes(self._store, pid)
        except OSError:
            return None
        return at_once.Entry(
            found.inode, found.mode, found.nlink, found.uid, found.gid, found.size, found.block_size,
            found.mtime_ns, found.ctime_ns, 0 if node.stored.n_users else ATTRIBUTES_NS,
        )  # fmt: skip


def _learn(parent: int, node: RelayFile, written: int, mtime_ns: int) -> bool:
    """Have the tap answer the next lookups of a relay file; return whether it does."""
    node.forget_known()
    stored = node.stored
    if stored.is_in_memory:
        show = stored.channel.kind.memory.address_of_show()
        with suppress(OSError):
            known = at_once.Known(
                parent, node.name, node.inode, stored.path, stored.inode, written, mtime_ns, show,
                stored.write_block, stored.counts_holes,
            )  # fmt: skip
            node.known = at_once.KnownFile(known)
    return node.known is not None


def _entry(inode: int, block_size: int, shown: Shown, size: int, mtime_ns: int) -> at_once.Entry:
    mode = stat.S_IFREG | stat.S_IMODE(shown.mode)
    return at_once.Entry(
        inode, mode, 1, shown.uid, shown.gid, size, block_size, mtime_ns, shown.ctime_ns, ATTRIBUTES_NS
    )
