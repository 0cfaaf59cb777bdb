"""The results of stat(2) and statfs(2), without pyfuse3's types."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse.fs.kinds.base import BLOCK_SIZE

if TYPE_CHECKING:
    from relayfs_fuse.fs.store import Store

_STATFS_BLOCK = 4096


@dataclass
class Attributes:
    """The stat(2) of an inode; sizes are in bytes, times in nanoseconds."""

    inode: int
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    nlink: int = 1
    block_size: int = BLOCK_SIZE


@dataclass
class Space:
    """The statfs(2) of the mount.

    block_size: in bytes, the unit of blocks and free_blocks
    files: the number of inodes of the store's file system
    """

    block_size: int
    blocks: int
    free_blocks: int
    files: int


def space(store: Store) -> Space:
    """Return the size of a store, within its limit, and how much of it is free."""
    status = os.statvfs(store.directory)
    total = min(status.f_blocks * status.f_frsize, store.ledger.size)
    free = min(total, store.free_bytes())
    return Space(_STATFS_BLOCK, total // _STATFS_BLOCK, free // _STATFS_BLOCK, status.f_files)
