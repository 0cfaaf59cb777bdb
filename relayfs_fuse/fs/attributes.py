"""What stat(2) and statfs(2) say."""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.counter_files import CounterFile
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
    from relayfs_fuse.fs.kinds.ring import StoredRing
    from relayfs_fuse.fs.store import Store, StoredBuffer

# Programs that obey st_blksize, as cat does, read as much at a time as one request carries. One that writes as much
# would be refused: of a write(2) that fills a request it is not known whether it is all of a record.
BLOCK_SIZE = 1 << 20
WRITE_BLOCK_MAX = BLOCK_SIZE // 2
# Of stdio, shells among its users, less would make several records of a line that is too long, and nobody were told.
WRITE_BLOCK_MIN = 4096
# What st_size can say.
SIZE_MAX = 2**63 - 1
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
        status = os.fstat(stored.buffer.fileno())
        size, mtime_ns = _measure(stored, pid)
        return Attributes(
            inode=node.inode,
            mode=stat.S_IFREG | stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size=stored.channel.stats.file_bytes if isinstance(node, MemFile) else size,
            mtime_ns=mtime_ns,
            ctime_ns=status.st_ctime_ns,
            nlink=0 if node.removed else 1,
            block_size=BLOCK_SIZE if isinstance(node, MemFile) else _block_size(stored, pid),
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


def _measure(stored: StoredBuffer | StoredRing, pid: int) -> tuple[int, int]:
    """Ask a buffer for its size and time; a damaged one is empty, so that its directory can be listed."""
    try:
        size, mtime_ns = stored.measure(pid)
    except OSError as error:
        if error.errno != errno.EBADMSG:
            raise
        return 0, stored.mtime_ns
    return min(max(size, 0), SIZE_MAX), mtime_ns


def _block_size(stored: StoredBuffer | StoredRing, pid: int) -> int:
    """Tell how much to read or write at a time: what one request carries, or, who does not read, what fits a record."""
    if stored.is_read_by(pid):
        return BLOCK_SIZE
    # A power of two, as the kernel rounds it to one.
    fits = 1 << stored.channel.stats.largest_record.bit_length() - 1
    return max(WRITE_BLOCK_MIN, min(fits, WRITE_BLOCK_MAX))


def _length(node: TextFile) -> int:
    """Count the bytes of a text; who reads one that cannot be had is told, but a directory can be listed."""
    if isinstance(node, LostFile):
        return node.LENGTH
    try:
        return node.length() if isinstance(node, MappedFile | MetadataFile) else len(node.text())
    except OSError:
        return 0
