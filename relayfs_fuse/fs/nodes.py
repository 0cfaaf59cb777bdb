"""What a name in the mount may stand for, and what it answers to requests; buffers of channels are in channel_files.py.

tree.py has the names.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import Backing
from relayfs_fuse.fs.kinds.handles import JoinHandle, TextHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.opener import Opener, Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree


def failure(code: int) -> OSError:
    """Make the error of this number."""
    return OSError(code, os.strerror(code))


class Node:
    """Anything that has an inode.

    lookups: how often the kernel looked the node up, less what it has forgotten
    view_of: the node and the user, if it stands for a node to one user only; see Tree.view()
    has_views: whether each user has an inode of his own
    """

    has_views = False

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.inode = 0
        self.lookups = 0
        self.parent: Directory | None = None
        self.removed = False
        self.view_of: tuple[Node, int] | None = None

    @property
    def path(self) -> str:
        """Its path in the mount, without a leading slash."""
        if self.parent is None or self.parent.parent is None:
            return self.name
        return f"{self.parent.path}/{self.name}"

    @property
    def has_end(self) -> bool:
        """Whether lseek(2) can find where it ends."""
        return True

    @property
    def backing_path(self) -> str | None:
        """Where the file lies that others open in its place; None: nowhere."""
        return None

    def let_go(self) -> None:
        """Drop, on removal, what the kernel's memory of the inode must not keep."""

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell what stat(2) says.

        pid: the thread that asks: each sees a relay file's size as its own descriptor does
        """
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        """Set its size; by default, refuse. Relay files only seem to: `>` must not lose data."""
        raise failure(errno.EPERM)

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Give it this mode, owner and group; by default, refuse.

        caller: the user who asks, whom the kernel has found to be allowed to
        """
        raise failure(errno.EPERM)

    def check_usable(self) -> None:
        """Refuse to be opened."""

    def open(self, opening: Opening) -> Handle:
        """Open it."""
        raise NotImplementedError

    def mapped(self) -> Backing | None:
        """Return what is mapped of it; None: nothing can be."""
        return None


class Directory(Node):
    """Hold other nodes.

    store_path: its path in the store; None: it is not there, or nobody may make anything in it
    mode: permission bits of one that has no store_path
    """

    mode = 0o555

    def __init__(self, name: str = "", store_path: str | None = None) -> None:
        super().__init__(name)
        self.store_path = store_path
        self._children: dict[str, Node] = {}
        # Counted as they come and go: each lookup of a file asks for the attributes of what is above it.
        self._n_inside = 0

    @property
    def children(self) -> dict[str, Node]:
        """What it holds, by name."""
        return self._children

    @property
    def n_directories(self) -> int:
        """How many directories it holds."""
        return self._n_inside

    def put(self, node: Node) -> None:
        """Hold a node, in place of what had its name."""
        self.drop(node.name)
        self.children[node.name] = node
        self._n_inside += isinstance(node, Directory)

    def drop(self, name: str) -> None:
        """Hold it no longer."""
        self._n_inside -= isinstance(self.children.pop(name, None), Directory)

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell what the store says of it; else it is the server's, and as old as that."""
        nlink = 2 + self.n_directories
        if self.store_path is None:
            times = store.began_ns
            return Attributes(self.inode, stat.S_IFDIR | self.mode, os.geteuid(), os.getegid(), 0, times, times, nlink)
        status = os.stat(store.locate(self.store_path))
        owner = os.stat(store.owner_path(self.store_path))
        mode = stat.S_IFDIR | stat.S_IMODE(owner.st_mode) & ~native.IMPLICIT_MARK
        return Attributes(
            self.inode, mode, owner.st_uid, owner.st_gid, 0, status.st_mtime_ns, status.st_ctime_ns, nlink
        )

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Give it this mode and group, but what would let others write to the store."""
        if self.store_path is None:
            super().change_owner(store, mode, uid, gid, caller)
            return
        # Who could write to a store's directory could move things under our hands; the mark is the store's own.
        if mode & (0o022 | native.IMPLICIT_MARK) or uid != os.geteuid():
            raise failure(errno.EPERM)
        os.chown(store.owner_path(self.store_path), -1, gid)
        os.chmod(store.owner_path(self.store_path), mode | 0o700)


class TraceDirectory(Directory):
    """Hold the directories of a trace; the server itself makes and removes them."""

    mode = 0o755

    @property
    def n_directories(self) -> int:
        """How many directories it holds: there is nothing else in it, and there may be thousands."""
        return len(self.children)


class StatsDirectory(Directory):
    """Show statistics of a channel, or of one of its buffers; its files come to be when somebody looks.

    fill: makes its files
    n_directories: how many of them are directories; None: to know that one has to look
    """

    def __init__(
        self, name: str, tree: Tree, fill: Callable[[], Iterator[Node]], n_directories: int | None = None
    ) -> None:
        super().__init__(name)
        self._tree = tree
        self._fill: Callable[[], Iterator[Node]] | None = fill
        self._n_directories = n_directories

    def let_go(self) -> None:
        """Forget what it was about."""
        self._fill = None

    @property
    def children(self) -> dict[str, Node]:
        """Its files."""
        if self._fill:
            fill, self._fill = self._fill, None
            for node in fill():
                self._tree.attach(self, node)
        return self._children

    @property
    def n_directories(self) -> int:
        """How many directories it holds."""
        if self._n_directories is not None:
            return self._n_directories
        return super().n_directories if self.children else 0  # to look fills it


class TextFile(Node):
    """Show a text that is made when the file is opened.

    mode: permission bits, if it is the server's
    is_slow: whether it takes long to make
    read: returns a part of what is not kept for its reader, given an offset and a size; None: the text is
    length: tells how long it is, or how long it is at most; None: it is made to find out
    """

    mode = 0o444
    is_slow = False
    read: Callable[[int, int], bytes] | None = None

    def __init__(self, name: str, text: Callable[[], bytes], length: Callable[[], int] | None = None) -> None:
        super().__init__(name)
        self.text = text
        self._length = length

    def let_go(self) -> None:
        """Forget what it was about."""
        self.text = bytes

    def owner(self) -> tuple[int, int, int]:
        """Tell its mode, owner and group."""
        return self.mode, os.geteuid(), os.getegid()

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Tell how long it is now."""
        mode, uid, gid = self.owner()
        now = time.time_ns()
        # Busybox cat and others copy as many bytes as are announced.
        size = 0 if self.removed else self._size()
        return Attributes(self.inode, stat.S_IFREG | mode, uid, gid, size, now, now)

    def _size(self) -> int:
        """Count its bytes; who reads a text that cannot be had is told, but a directory can be listed."""
        try:
            return self._length() if self._length else len(self.text())
        except OSError:
            return 0

    def open(self, opening: Opening) -> TextHandle:
        """Open it."""
        return TextHandle(self, opening)

    async def write(self, acts: Acts, data: bytes, opener: Opener) -> None:
        """Take what its opener writes; by default, refuse."""
        raise failure(errno.EINVAL)


class ControlFile(TextFile):
    """Take commands."""

    has_views = True

    def __init__(self, name: str, text: Callable[[], bytes], mode: int) -> None:
        super().__init__(name, text)
        self.mode = mode

    def truncate(self, size: int) -> None:
        """Let `>` open it."""

    async def write(self, acts: Acts, data: bytes, opener: Opener) -> None:
        """Carry out commands."""
        await acts.command(data, opener)


class CounterNamesFile(ControlFile):
    """List the counters, and take commands that change the list."""

    async def write(self, acts: Acts, data: bytes, opener: Opener) -> None:
        """Carry out commands."""
        await acts.change_counters(data, opener)


class ErrorLogFile(TextFile):
    """Show the refused ones."""

    mode = 0o644

    def __init__(self, name: str, errors: ErrorLog) -> None:
        super().__init__(name, errors.text)
        self._errors = errors

    def truncate(self, size: int) -> None:
        """Clear it."""
        if size:
            super().truncate(size)
        self._errors.clear()

    def open(self, opening: Opening) -> TextHandle:
        """Open it; O_TRUNC clears it."""
        if opening.truncates:
            self._errors.clear()
        return super().open(opening)

    async def write(self, acts: Acts, data: bytes, opener: Opener) -> None:
        """Clear it."""
        self._errors.clear()


class MetadataFile(TextFile):
    """The metadata of a process's events, which take long to describe where it has declared many."""

    is_slow = True


class MappedFile(TextFile):
    """A file of the store, which can be mapped but not written to.

    backing: it
    """

    def __init__(self, name: str, text: Callable[[], bytes], backing: Backing, length: Callable[[], int]) -> None:
        super().__init__(name, text, length)
        self.backing = backing

    @property
    def backing_path(self) -> str:
        """Where it lies."""
        return self.backing.path

    def open(self, opening: Opening) -> TextHandle:
        """Open it, for reading or, if it can be mapped to write to it, for both."""
        allowed = (os.O_RDONLY, os.O_RDWR) if self.backing.is_writable else (os.O_RDONLY,)
        if opening.truncates or opening.access not in allowed:
            raise failure(errno.EACCES)
        return super().open(opening)

    def mapped(self) -> Backing:
        """Return what is mapped of it."""
        return self.backing


class CountersFile(MappedFile):
    """The memory of the counters.

    counters: whose
    refresh: brings what others count up to date
    """

    def __init__(self, name: str, counters: Counters, refresh: Callable[[], None]) -> None:
        backing = Backing(counters.descriptor, counters.path)
        super().__init__(name, counters.memory, backing, counters.memory_bytes)
        self._refresh = refresh

    def open(self, opening: Opening) -> TextHandle:
        """Open it."""
        handle = super().open(opening)
        self._refresh()
        return handle


class JoinFile(TextFile):
    """Where programs ask for a place in a trace (traces/registry.py).

    open_by_token: its open files; those of its views, too
    """

    mode = 0o666
    has_views = True

    def __init__(self, name: str) -> None:
        super().__init__(name, bytes)
        self.open_by_token: dict[bytes, JoinHandle] = {}

    def open(self, opening: Opening) -> JoinHandle:
        """Open it."""
        return JoinHandle(self, opening)
