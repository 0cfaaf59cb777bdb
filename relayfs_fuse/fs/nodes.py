"""Nodes: the files and directories of the mount. Those of channels' buffers are in channel_files.py.

tree.py has the names of nodes and their inode numbers. A node says what stat(2) shows, makes the handle of an open file
(kinds/handles.py), and says which file of the store programs map in its place.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import Backing
from relayfs_fuse.fs.kinds.handles import JoinHandle, TextHandle
from relayfs_fuse.native.tables import PERMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.opener import Opener, Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree


# log2 of how many inode numbers there are for the directories in .channels of a traced process, a channel and a buffer,
# with what is in them; and for each name inside, at a place that place_of() in tree.py chooses.
PROCESS_BITS, CHANNEL_BITS, BUFFER_BITS = 26, 25, 11
INSIDE_BITS = {PROCESS_BITS: CHANNEL_BITS, CHANNEL_BITS: BUFFER_BITS, BUFFER_BITS: 0}


class Node(ABC):
    """A file or directory of the mount.

    name: its name in its directory
    inode: its inode number
    lookups: how often the kernel has looked it up, minus how often the kernel has forgotten it
    parent: its directory; None: the root, or not in the tree yet
    removed: whether it was removed from its directory; the kernel may still refer to it
    view_of: if this is a view, the node that it shows and the user whom it is for; see Tree.view()
    has_views: whether each user is shown a view of it, with an inode of its own
    identity: a number that another file of the same name would not have; 0: what the store has at the path tells it
    """

    has_views = False
    identity = 0

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
        names = [self.name]
        above = self.parent
        while above is not None and above.parent is not None:
            names.append(above.name)
            above = above.parent
        return "/".join(reversed(names))

    @property
    def family(self) -> tuple[str, int] | None:
        """By what its channel tells the inode number of a relay file; None: it is another file.

        That is what the number is made of, with `identity`, instead of the name; and a place, from 1 on.
        """
        return None

    @property
    def has_end(self) -> bool:
        """Whether lseek(2) with SEEK_END works."""
        return True

    @property
    def backing_path(self) -> str | None:
        """The path of the file of the store that programs may open instead; None: there is none."""
        return None

    def let_go(self) -> None:
        """Drop references to buffers and files on removal; the kernel may remember the inode for long."""

    @abstractmethod
    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows; OSError.

        pid: the thread that asks; a relay file's size counts from the position where this thread has opened the file
        """

    def truncate(self, size: int) -> None:
        """Set its size; by default, OSError: EPERM. A class that ignores this lets shells open the file with `>`."""
        raise failure(errno.EPERM)

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Set mode, owner and group; by default, OSError: EPERM.

        caller: the user who asks; the kernel has checked that he may
        """
        raise failure(errno.EPERM)

    def check_usable(self) -> None:
        """Raise OSError if it cannot be opened any more."""

    @abstractmethod
    def open(self, opening: Opening) -> Handle:
        """Return a new handle; OSError."""

    def mapped(self) -> Backing | None:
        """Return the file of the store that mappings of it show; None: it cannot be mapped."""
        return None


class SubjectFile(Node):
    """A file that shows a channel or a trace, and cannot be opened after that was removed."""

    def check_usable(self) -> None:
        """Raise OSError: ESTALE after the channel or trace was removed."""
        if self.removed:
            raise failure(errno.ESTALE)


def check_only_reads(opening: Opening) -> None:
    """Raise OSError: EACCES unless open(2) asks for O_RDONLY alone."""
    if opening.truncates or opening.access != os.O_RDONLY:
        raise failure(errno.EACCES)


class Directory(Node):
    """A directory.

    store_path: the path of this directory in the store; None: it is not in the store, or users may not make
        directories in it
    mode: permission bits if store_path is None
    is_tentative: whether it was made for a channel that is still being made, and goes if that fails
    n_unloaded: how many directories will be in it when channels are loaded
    """

    mode = 0o555

    def __init__(self, name: str = "", store_path: str | None = None) -> None:
        super().__init__(name)
        self.store_path = store_path
        self.is_tentative = False
        self.n_unloaded = 0
        self._children: dict[str, Node] = {}
        # Kept up to date for st_nlink, which the kernel asks for at each lookup of a path through the directory.
        self._n_inside = 0

    @property
    def children(self) -> dict[str, Node]:
        """The nodes in it, by name."""
        return self._children

    @property
    def n_directories(self) -> int:
        """How many directories are in it."""
        return self._n_inside + self.n_unloaded

    @property
    def is_removed_by_name(self) -> bool:
        """Whether it is removed by rmdir(2) in the mount only, also by the server, so that the kernel knows of it."""
        return self.store_path is not None and not self.is_tentative

    def making(self, name: str) -> str | None:
        """Return the command of control that mkdir(2) of a name in it stands for; None: it makes a plain directory."""
        return None

    def removing(self, name: str) -> str | None:
        """Return the command of control that rmdir(2) of a directory in it stands for; None: as making()."""
        return None

    def put(self, node: Node) -> None:
        """Add a node, in place of one with the same name."""
        self.drop(node.name)
        self.children[node.name] = node
        self._n_inside += isinstance(node, Directory)

    def drop(self, name: str) -> None:
        """Remove the node of this name, if there is one."""
        self._n_inside -= isinstance(self.children.pop(name, None), Directory)

    def open(self, opening: Opening) -> Handle:
        """Refuse, because the kernel opens directories by opendir()."""
        raise failure(errno.EISDIR)

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return mode, owner and times of its directory in the store, or otherwise those of the server."""
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
        """Set mode and group; OSError: EPERM for another owner, or if other users could write to the directory."""
        if self.store_path is None:
            super().change_owner(store, mode, uid, gid, caller)
            return
        # A user who may write to a directory of the store could replace what the server opens there. IMPLICIT_MARK is a
        # permission bit that the store uses for itself.
        if mode & (PERMS["STRANGERS"] | native.IMPLICIT_MARK) or uid != os.geteuid():
            raise failure(errno.EPERM)
        os.chown(store.owner_path(self.store_path), -1, gid)
        os.chmod(store.owner_path(self.store_path), mode | PERMS["PLAIN_LEAST"])


class TraceDirectory(Directory):
    """The directory of a trace, in which only the server makes and removes directories."""

    mode = 0o755


class StatsDirectory(Directory):
    """A directory whose nodes are made when somebody looks into it, such as one with the statistics of a channel.

    fill: makes the nodes
    bits: log2 of how many inode numbers it has for itself and what is in it, one of INSIDE_BITS
    n_directories: how many of them are directories; None: they are made to find out
    """

    def __init__(
        self, name: str, tree: Tree, fill: Callable[[], Iterator[Node]], n_directories: int | None = None,
        bits: int = CHANNEL_BITS,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.bits = bits
        self._tree = tree
        self._fill: Callable[[], Iterator[Node]] | None = fill
        self._n_directories = n_directories

    def let_go(self) -> None:
        """Drop `fill`, which refers to a channel."""
        self._fill = None

    @property
    def children(self) -> dict[str, Node]:
        """The nodes in it, by name, which are made at the first call."""
        if self._fill:
            fill, self._fill = self._fill, None
            for node in fill():
                self._tree.attach(self, node)
        return self._children

    @property
    def n_directories(self) -> int:
        """How many directories are in it."""
        if self._n_directories is not None:
            return self._n_directories
        return super().n_directories if self.children else 0  # `children` makes the nodes


class TextFile(Node):
    """A file whose contents a function makes when a program reads it.

    text: returns the contents
    length: returns the length of the contents, or an upper limit of it; None: text() is called to find out
    mode: permission bits of a file that belongs to the server
    is_slow: whether text() takes long, so that a worker thread has to call it
    is_of_all: whether it is about all channels, which a read waits for: to load them at once would hold up all requests
    read: returns the bytes at an offset, for contents that can change between two reads of a handle; None: the handle
        keeps the result of text() from its last read at offset 0
    """

    mode = 0o444
    is_slow = False
    is_of_all = False
    read: Callable[[int, int], bytes] | None = None

    def __init__(self, name: str, text: Callable[[], bytes], length: Callable[[], int] | None = None) -> None:
        super().__init__(name)
        self.text = text
        self._length = length

    def let_go(self) -> None:
        """Drop `text`, which may refer to a channel."""
        self.text = bytes

    def owner(self) -> tuple[int, int, int]:
        """Return permission bits, owner and group."""
        return self.mode, os.geteuid(), os.getegid()

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows, with the length of the contents now."""
        mode, uid, gid = self.owner()
        now = time.time_ns()
        # The size must not be 0 for contents that can be read: busybox cat and other programs read st_size bytes.
        size = 0 if self.removed else self._size()
        return Attributes(self.inode, stat.S_IFREG | mode, uid, gid, size, now, now)

    def _size(self) -> int:
        """Return the length of the contents; 0 if they cannot be made: an error would spoil the listing."""
        try:
            return self._length() if self._length else len(self.text())
        except OSError:
            return 0

    def open(self, opening: Opening) -> TextHandle:
        """Return a new handle."""
        return TextHandle(self, opening)

    async def write(self, acts: Acts, data: bytes, opener: Opener, unique: int) -> None:
        """Carry out a request to write; by default, OSError: EINVAL.

        unique: the number of the request
        """
        raise failure(errno.EINVAL)


class ControlFile(TextFile):
    """The file `control`: its contents are the commands that would make all channels; writing carries out commands."""

    has_views = True
    is_of_all = True

    def __init__(
        self, name: str, text: Callable[[], bytes], mode: int, length: Callable[[], int] | None = None
    ) -> None:
        super().__init__(name, text, length)
        self.mode = mode

    def truncate(self, size: int) -> None:
        """Do nothing."""

    async def write(self, acts: Acts, data: bytes, opener: Opener, unique: int) -> None:
        """Carry out commands; CommandError."""
        await acts.command(data, opener, unique)


class CounterNamesFile(ControlFile):
    """The file `counters.names`: lists the counters; writing carries out commands that change the list."""

    is_of_all = False

    async def write(self, acts: Acts, data: bytes, opener: Opener, unique: int) -> None:
        """Carry out commands; CommandError."""
        await acts.change_counters(data, opener, unique)


class ErrorLogFile(TextFile):
    """The file `error_log`: lists the commands that were refused last; writing or truncating clears it."""

    mode = 0o644

    def __init__(self, name: str, errors: ErrorLog) -> None:
        super().__init__(name, errors.text)
        self._errors = errors

    def truncate(self, size: int) -> None:
        """Clear the list; OSError: EPERM if size is not 0."""
        if size:
            super().truncate(size)
        self._errors.clear()

    def open(self, opening: Opening) -> TextHandle:
        """Return a new handle; with O_TRUNC, clear the list."""
        if opening.truncates:
            self._errors.clear()
        return super().open(opening)

    async def write(self, acts: Acts, data: bytes, opener: Opener, unique: int) -> None:
        """Clear the list."""
        self._errors.clear()


class MetadataFile(TextFile):
    """The CTF metadata of a process's events, which take long to make if there are many events."""

    is_slow = True


class MappedFile(TextFile):
    """A file that shows one of the store; programs can map it, but not write(2) to it.

    backing: the file of the store
    """

    def __init__(self, name: str, text: Callable[[], bytes], backing: Backing, length: Callable[[], int]) -> None:
        super().__init__(name, text, length)
        self.backing = backing

    @property
    def backing_path(self) -> str:
        """The path of the file of the store."""
        return self.backing.path

    def open(self, opening: Opening) -> TextHandle:
        """Return a new handle; OSError: EACCES unless O_RDONLY or, if it may be mapped for writing, O_RDWR is asked."""
        allowed = (os.O_RDONLY, os.O_RDWR) if self.backing.is_writable else (os.O_RDONLY,)
        if opening.truncates or opening.access not in allowed:
            raise failure(errno.EACCES)
        return super().open(opening)

    def mapped(self) -> Backing:
        """Return the file of the store."""
        return self.backing


class CountersFile(MappedFile):
    """The file `counters`: the memory of all counters.

    refresh: brings the memory up to date; it is called at each open(2)
    """

    def __init__(self, name: str, counters: Counters, refresh: Callable[[], None]) -> None:
        backing = Backing(counters.descriptor, counters.path)
        super().__init__(name, counters.memory, backing, counters.memory_bytes)
        self._refresh = refresh

    def open(self, opening: Opening) -> TextHandle:
        """Return a new handle, with the memory up to date."""
        handle = super().open(opening)
        self._refresh()
        return handle


class JoinFile(TextFile):
    """The file `.traces/join`, through which processes take part in a trace (JoinHandle, traces/sessions.py).

    open_by_token: the handles of this file and of all its views
    """

    mode = 0o666
    has_views = True

    def __init__(self, name: str) -> None:
        super().__init__(name, bytes)
        self.open_by_token: dict[bytes, JoinHandle] = {}

    def open(self, opening: Opening) -> JoinHandle:
        """Return a new handle."""
        return JoinHandle(self, opening)
