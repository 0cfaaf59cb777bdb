"""What stat(2) and statfs(2) say."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.counter_files import CounterFile
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE
from relayfs_fuse.fs.nodes import (
    BufferFile,
    ControlFile,
    DamagedFile,
    Directory,
    ErrorLogFile,
    HoldFile,
    JoinFile,
    LostFile,
    MappedFile,
    MemFile,
    MetadataFile,
    Node,
    TextFile,
)

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


class AttributeSource:
    """Find out the attributes of nodes.

    store: where directories are
    control_mode: permission bits of the control file
    """

    def __init__(self, store: Store, control_mode: int) -> None:
        self._store = store
        self._control_mode = control_mode
        self._started_ns = time.time_ns()

    def of(self, node: Node, pid: int) -> Attributes:
        """Look now.

        pid: the thread that asks: each sees a relay file's size as its own descriptor does
        """
        if isinstance(node, Directory):
            return self._of_directory(node)
        if isinstance(node, BufferFile):
            return self._of_buffer(node, pid)
        if isinstance(node, DamagedFile):
            return self._of_damaged(node)
        assert isinstance(node, TextFile)
        return self._of_text(node)

    def space(self) -> Space:
        """Tell how much memory the store has and how much of it is free."""
        status = os.statvfs(self._store.directory)
        total = min(status.f_blocks * status.f_frsize, self._store.ledger.size)
        free = min(total, self._store.free_bytes())
        return Space(_STATFS_BLOCK, total // _STATFS_BLOCK, free // _STATFS_BLOCK, status.f_files)

    def _of_directory(self, node: Directory) -> Attributes:
        n_directories = node.n_directories
        if node.store_path is None:
            times = self._started_ns
            return Attributes(
                node.inode, stat.S_IFDIR | node.mode, os.geteuid(), os.getegid(), 0, times, times, 2 + n_directories
            )
        status = os.stat(self._store.locate(node.store_path))
        owner = os.stat(self._store.owner_path(node.store_path))
        return Attributes(
            inode=node.inode,
            mode=stat.S_IFDIR | stat.S_IMODE(owner.st_mode) & ~native.IMPLICIT_MARK,
            uid=owner.st_uid,
            gid=owner.st_gid,
            size=0,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            nlink=2 + n_directories,
        )

    def _of_buffer(self, node: BufferFile, pid: int) -> Attributes:
        stored = node.stored
        status = os.fstat(stored.descriptor)
        size, mtime_ns = stored.measure(pid)
        return Attributes(
            inode=node.inode,
            mode=stat.S_IFREG | stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size=stored.channel.stats.file_bytes if isinstance(node, MemFile) else size,
            mtime_ns=mtime_ns,
            ctime_ns=status.st_ctime_ns,
            nlink=0 if node.removed else 1,
            block_size=BLOCK_SIZE if isinstance(node, MemFile) else stored.block_size(pid),
        )

    def _of_damaged(self, node: DamagedFile) -> Attributes:
        status = node.channel.status(node.mem_name)
        return Attributes(
            inode=node.inode,
            mode=stat.S_IFREG | stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size=0,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
        )

    def _of_text(self, node: TextFile) -> Attributes:
        mode = 0o444
        uid, gid = os.geteuid(), os.getegid()
        if isinstance(node, CounterFile) and not node.removed:
            status = node.status()
            mode, uid, gid = status.st_mode & (0o666 if node.is_writable else 0o444), status.st_uid, status.st_gid
        elif isinstance(node, ControlFile):
            mode = self._control_mode
        elif isinstance(node, ErrorLogFile):
            mode = 0o644
        elif isinstance(node, JoinFile | LostFile):
            mode = 0o666
        elif isinstance(node, HoldFile):
            mode, uid, gid = 0o400, node.uid, node.gid
        now = time.time_ns()
        return Attributes(
            inode=node.inode,
            mode=stat.S_IFREG | mode,
            uid=uid,
            gid=gid,
            # Busybox cat and others copy as many bytes as are announced.
            size=0 if node.removed else _length(node),
            mtime_ns=now,
            ctime_ns=now,
        )


def _length(node: TextFile) -> int:
    """Count the bytes of a text; who reads one that cannot be had is told, but a directory can be listed."""
    if isinstance(node, LostFile):
        return node.LENGTH
    try:
        return node.length() if isinstance(node, MappedFile | MetadataFile) else len(node.text())
    except OSError:
        return 0
