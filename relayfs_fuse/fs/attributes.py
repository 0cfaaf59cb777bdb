"""What stat(2) and statfs(2) say."""

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
    """What is known of an inode; times in nanoseconds."""

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
    """What statfs(2) says of the store."""

    block_size: int
    blocks: int
    free_blocks: int
    files: int


def space(store: Store) -> Space:
    """Tell how much memory a store has and how much of it is free."""
    status = os.statvfs(store.directory)
    total = min(status.f_blocks * status.f_frsize, store.ledger.size)
    free = min(total, store.free_bytes())
    return Space(_STATFS_BLOCK, total // _STATFS_BLOCK, free // _STATFS_BLOCK, status.f_files)
