"""What a name in the mount may stand for. tree.py has the names."""

from __future__ import annotations

import errno
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.kinds.damaged import DamagedChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.handles import MemHandle
    from relayfs_fuse.fs.tree import Tree


class Node:
    """Anything that has an inode.

    lookups: how often the kernel looked the node up, less what it has forgotten
    view_of: the node and the user, if it stands for a node to one user only; see Tree.view()
    """

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

    def let_go(self) -> None:
        """Drop, on removal, what the kernel's memory of the inode must not keep."""


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
    """Show a text that is made when the file is opened, to everybody."""

    def __init__(self, name: str, text: Callable[[], bytes]) -> None:
        super().__init__(name)
        self.text = text

    def let_go(self) -> None:
        """Forget what it was about."""
        self.text = bytes


class ControlFile(TextFile):
    """Take commands."""


class ErrorLogFile(TextFile):
    """Show the refused ones."""


class MappedFile(TextFile):
    """A file of the store, which can be mapped but not written to.

    descriptor: it, open for reading
    backing_path: where it lies
    length: tells how long it is
    """

    def __init__(
        self, name: str, text: Callable[[], bytes], descriptor: int, backing_path: str, length: Callable[[], int]
    ) -> None:
        super().__init__(name, text)
        self.descriptor = descriptor
        self.backing_path = backing_path
        self.length = length
        self.backing: int | None = None


class CountersFile(MappedFile):
    """The memory of the counters.

    counters: whose
    refresh: brings what others count up to date
    """

    def __init__(self, name: str, counters: Counters, refresh: Callable[[], None]) -> None:
        super().__init__(name, counters.memory, counters.descriptor, counters.path, counters.memory_bytes)
        self.refresh = refresh


class MetadataFile(TextFile):
    """The metadata of a process's events, which take long to describe where it has declared many.

    length: tells how long it is, or how long it is at most
    """

    def __init__(self, name: str, text: Callable[[], bytes], length: Callable[[], int]) -> None:
        super().__init__(name, text)
        self.length = length


class JoinFile(TextFile):
    """Where programs ask for a place in a trace (traces/registry.py)."""

    def __init__(self, name: str) -> None:
        super().__init__(name, bytes)


class LostFile(TextFile):
    """What a program maps to count what it loses for want of buffers; each user maps a file of the store of his own.

    file_of: returns the path of that, and its registration, of a user; see traces/registry.py
    """

    LENGTH = 4096

    def __init__(self, name: str, file_of: Callable[[int], LostMapping]) -> None:
        super().__init__(name, bytes)
        self._file_of = file_of

    def mapping(self) -> LostMapping:
        """Return what is mapped of it: the user's whose view this is."""
        return self._file_of(self.view_of[1] if self.view_of else os.geteuid())


@dataclass
class LostMapping:
    """A file of the store that programs of one user map.

    descriptor: it, open for writing
    backing: its registration; None: it has not been registered yet, 0: it cannot be
    """

    path: str
    descriptor: int
    backing: int | None = None


class HoldFile(TextFile):
    """What a program maps to keep its memory file open without a descriptor; see native/src/buffer/open.h.

    held: the open memory file, if it is still open
    uid, gid: who opened that, and may open this
    """

    def __init__(self, name: str, held: weakref.ref[MemHandle], uid: int, gid: int) -> None:
        super().__init__(name, bytes)
        self.held = held
        self.uid, self.gid = uid, gid


class CounterNamesFile(ControlFile):
    """List the counters, and take commands that change the list."""


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
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stored

    def let_go(self) -> None:
        """Leave the buffer to those who have it open."""
        self._stored = None


class DamagedFile(Node):
    """Stand for a relay file that cannot be used.

    channel: which
    mem_name: its file in the store
    """

    def __init__(self, name: str, channel: DamagedChannel, mem_name: str) -> None:
        super().__init__(name)
        self.channel = channel
        self.mem_name = mem_name


class RelayFile(BufferFile):
    """A relay file."""


class MemFile(BufferFile):
    """The memory of a buffer."""
