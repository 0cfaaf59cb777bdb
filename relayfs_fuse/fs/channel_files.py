"""What stands in the mount for the buffers of a channel, whatever it is made of."""

from __future__ import annotations

import errno
import os
import re
import stat
import weakref
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE
from relayfs_fuse.fs.kinds.handles import TOKEN_BYTES, HoldHandle, MemHandle
from relayfs_fuse.fs.nodes import Node, TextFile, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.kinds.base import Backing, Stored
    from relayfs_fuse.fs.kinds.damaged import DamagedChannel
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.store import Store

# As files are named after it.
TOKEN = re.compile(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


class HoldFile(TextFile):
    """What a program maps to keep its memory file open without a descriptor; see native/src/buffer/open.h.

    held: the open memory file, if it is still open; who opened that may open this
    """

    def __init__(self, name: str, held: MemHandle) -> None:
        super().__init__(name, bytes)
        self.held = weakref.ref(held)
        self._owner = 0o400, held.opener.uid, held.opener.gid

    def owner(self) -> tuple[int, int, int]:
        """Tell its mode, owner and group."""
        return self._owner

    def open(self, opening: Opening) -> HoldHandle:
        """Open it."""
        return HoldHandle(self, opening)


class BufferFile(Node):
    """Stand for a buffer in one of two ways.

    The kernel may remember an inode long after its channel was removed; that must not keep the memory.
    """

    def __init__(self, name: str, stored: Stored[Any]) -> None:
        super().__init__(name)
        self._stored: Stored[Any] | None = stored
        self._open_somewhere = weakref.ref(stored)

    @property
    def stored(self) -> Stored[Any]:
        """The buffer; of a removed channel only while somebody has it open."""
        stored = self._stored or self._open_somewhere()
        if stored is None:
            raise failure(errno.ESTALE)
        return stored

    def let_go(self) -> None:
        """Leave the buffer to those who have it open."""
        self._stored = None

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell what its file in the store says, and the buffer."""
        stored = self.stored
        status = os.fstat(stored.descriptor)
        size, mtime_ns = stored.measure(pid)
        return Attributes(
            inode=self.inode,
            mode=stat.S_IFREG | stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size=size,
            mtime_ns=mtime_ns,
            ctime_ns=status.st_ctime_ns,
            nlink=0 if self.removed else 1,
            block_size=stored.block_size(pid),
        )

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Give all files of the channel this mode, owner and group."""
        channel = self.stored.channel
        # Its protection would be lifted for a moment, as often as its owner likes.
        if caller not in (0, os.geteuid()) and channel.is_protected():
            raise failure(errno.EBUSY)
        store.change_owner(channel, mode & 0o666, uid, gid)

    def check_usable(self) -> None:
        """Refuse to be opened after the channel was removed."""
        if self.removed:
            raise failure(errno.ESTALE)

    def mapped(self) -> Backing:
        """Return what is mapped of it."""
        return self.stored.backing


class RelayFile(BufferFile):
    """A relay file."""

    @property
    def has_end(self) -> bool:
        """Whether lseek(2) can find where it ends.

        What is overwritten has no fixed end: programs that look for one would miss what they then go back for. They
        read it through instead, as they do with pipes.
        """
        return self.stored.channel.stats.mode == native.MODE_NO_OVERWRITE

    def truncate(self, size: int) -> None:
        """Let `>` open it."""

    def open(self, opening: Opening) -> Handle:
        """Open it."""
        return self.stored.open(opening)


class MemFile(BufferFile):
    """The memory of a buffer."""

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell the same of the whole file."""
        attributes = super().attributes(store, pid)
        attributes.size, attributes.block_size = self.stored.channel.stats.file_bytes, BLOCK_SIZE
        return attributes

    @property
    def backing_path(self) -> str | None:
        """Where its file lies in the store."""
        return None if self.removed else self.stored.backing.path

    def hold(self, name: str, token: str, unlist: Callable[[], None]) -> HoldFile | None:
        """Make what keeps an open file of it open, which only its opener can name: memN.TOKEN.

        unlist: is called when there is nothing to keep open any more
        """
        held = self.stored.memories.get(int(token, 16)) if TOKEN.fullmatch(token) else None
        if held is None:
            return None
        held.unlist = unlist
        return HoldFile(name, held)

    def open(self, opening: Opening) -> MemHandle:
        """Open it."""
        if opening.truncates:
            raise failure(errno.EPERM)
        return MemHandle(self.stored, opening)


class DamagedFile(Node):
    """Stand for a relay file that cannot be used.

    channel: which
    mem_name: its file in the store
    """

    def __init__(self, name: str, channel: DamagedChannel, mem_name: str) -> None:
        super().__init__(name)
        self.channel = channel
        self.mem_name = mem_name

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell what its file in the store says."""
        status = self.channel.status(self.mem_name)
        mode = stat.S_IFREG | stat.S_IMODE(status.st_mode)
        return Attributes(self.inode, mode, status.st_uid, status.st_gid, 0, status.st_mtime_ns, status.st_ctime_ns)

    def check_usable(self) -> None:
        """Refuse to be opened."""
        raise failure(errno.EBADMSG)
