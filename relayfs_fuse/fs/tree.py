"""The names in the mount, and the nodes and inode numbers behind them.

    control  error_log  counters  counters.names  counters.txt  .counters/  .traces/
    DIR/...            plain directories, as in the store
    TRACE/PROCESS/     what a process writes to a trace (traces/registry.py)
    TRACE/merged       the trace's events in the order of their times, and merged.json
    PATH0 ..           relay files
    .channels/PATH/    the statistics of a channel; in it bufferN/, those of a buffer, memN, the buffer's memory, peekN,
                       what is unread in it, losses, and merged, merged.json and merged.raw, if its records have times

This module does not know the kernel's requests; requests/names.py answers them from the tree.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import zlib
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.channel_files import DamagedFile, MemFile, RelayFile, merged_of, peeks_of
from relayfs_fuse.fs.kinds import stats
from relayfs_fuse.fs.nodes import (
    BUFFER_BITS,
    CHANNEL_BITS,
    INSIDE_BITS,
    PROCESS_BITS,
    Directory,
    Node,
    StatsDirectory,
    TextFile,
    TraceDirectory,
)
from relayfs_fuse.fs.unloaded import Unloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.damaged import DamagedChannel

# The number of the root, which the kernel chooses.
ROOT_INODE = 1
STATS_NAME = ".channels"
# Inode numbers; see _numbers_of().
_HASH_BITS = 62
# log2 of how many numbers the relay files of a channel have.
RELAY_BITS = 13
_VIEW = 1 << _HASH_BITS
_UID_BITS = 32
# What place_of() begins with: chosen so that no two names that there are have the same place.
PLACES = 7


class Tree:
    """All nodes.

    root: the root directory
    stats_root: .channels
    channels, damaged: the channels that are loaded, by path
    unloaded: the others; child(), children() and find() load what they are asked for
    identify: returns a number for a path in the store that changes if another directory gets the path; 0: there is none
    is_inherited: whether the kernel may remember the nodes that are added, because another server has shown them
    is_loading: whether the nodes that are added are of a channel that was there, so that no directory has changed
    touched: is called with the inode number of a directory whose attributes have changed
    watchers: are called with the path of each channel that was added or removed, or has a new owner, mode or damage
    """

    def __init__(self) -> None:
        self.identify: Callable[[str], int] = len
        self.is_inherited = False
        self.is_loading = False
        self.touched: Callable[[int], object] = abs
        self.watchers: list[Callable[[str], None]] = []
        self._inodes: dict[int, Node] = {}
        # The nodes with views, by the last bits of their numbers.
        self._viewed: dict[int, Node] = {}
        self.root = Directory("", store_path="")
        self.root.inode = ROOT_INODE
        self._inodes[ROOT_INODE] = self.root
        self.stats_root = Directory(STATS_NAME)
        self.attach(self.root, self.stats_root)
        self.unloaded = Unloaded(len, self.numbers_at)
        self.channels: dict[str, StoredChannel] = {}
        # One object for all channels, since each `self._tell` is a new one.
        self._told = self._tell
        self.damaged: dict[str, DamagedChannel] = {}
        self._views: dict[tuple[Node, int], Node] = {}
        # By directory, removed names that the kernel may still remember.
        self._outdated: dict[str, set[str]] = {}

    def node(self, inode: int) -> Node | None:
        """Return the node with an inode number; None: there is none.

        The kernel may know it from another server, and this one may not have made it yet.
        """
        node = self.known(inode)
        if node is None and self.unloaded:
            self.unloaded.load_number(inode, inode >> RELAY_BITS << RELAY_BITS, inode >> CHANNEL_BITS << CHANNEL_BITS)
            node = self.known(inode)
        return node

    def numbers_at(self, path: str, inode: int) -> Iterator[int]:
        """Yield the numbers of what may be at a path in the store, or in its directory in .channels, as _number() does.

        Those are of a plain directory, and the first of relay files, and of statistics.

        inode: of the directory in the store
        """
        above, _, name = path.rpartition("/")
        directory: Node | None = self.root
        for part in above.split("/") if above else ():
            directory = directory.children.get(part) if isinstance(directory, Directory) else None
        if isinstance(directory, Directory):
            hashed = _hash(directory, name, inode)
            yield from (hashed, hashed >> RELAY_BITS << RELAY_BITS)
            yield _hash(self.stats_directory(above), name, inode) >> CHANNEL_BITS << CHANNEL_BITS

    def known(self, inode: int) -> Node | None:
        """Return the node with an inode number, unless a channel has to be loaded for that."""
        node = self._inodes.get(inode)
        if node is None and inode & _VIEW:
            viewed = self._viewed.get(inode >> _UID_BITS & (1 << _HASH_BITS - _UID_BITS) - 1)
            return viewed and self.view(viewed, inode & (1 << _UID_BITS) - 1)
        for bits in (PROCESS_BITS, CHANNEL_BITS, BUFFER_BITS):
            group = None if node else self._inodes.get(inode >> bits << bits)
            if isinstance(group, StatsDirectory) and group.children:  # `children` makes the nodes
                node = self._inodes.get(inode)
        return node

    def find(self, path: str) -> Node | None:
        """Return the node at a path in the mount; None: there is none."""
        node: Node | None = self.root
        for name in path.split("/") if path else ():
            if not isinstance(node, Directory):
                return None
            node = self.child(node, name)
        return node

    def child(self, directory: Directory, name: str) -> Node | None:
        """Return the node of a name in a directory; None: there is none."""
        if self.unloaded:
            self.unloaded.load(_stored_path(directory), name)
        return directory.children.get(name)

    def children(self, directory: Directory) -> dict[str, Node]:
        """Return all nodes in a directory, by name."""
        if self.unloaded:
            self.unloaded.load_all(_stored_path(directory))
        return directory.children

    def is_empty(self, directory: Directory) -> bool:
        """Whether there is nothing in a directory; this loads channels of it until one is shown."""
        while not directory.children:
            if not self.load_some(directory, 1):
                return not directory.children
        return False

    def load_some(self, directory: Directory, n: int) -> bool:
        """Load up to so many of the channels of a directory; return whether there may be others."""
        return bool(self.unloaded) and self.unloaded.load_some(n, _stored_path(directory))

    def attach(self, parent: Directory, node: Node) -> None:
        """Add a node to a directory, and give it an inode number."""
        parent.put(node)
        node.parent = parent
        self._number(node)
        self._touch(parent, node)

    def attach_unlisted(self, parent: Directory, node: Node) -> None:
        """Give a node an inode number and a parent, but do not list it there; it goes when the kernel forgets it."""
        node.parent = parent
        node.removed = True
        self._number(node)

    def attach_removed(self, node: Node, inode: int) -> None:
        """Give a node that was removed, and that a program has open, the number by which the kernel knows it."""
        node.removed = True
        node.inode, node.lookups = inode, 1
        self._inodes[inode] = node

    def detach(self, node: Node) -> None:
        """Remove a node, with all that is in it, from its directory."""
        directory, _, name = node.path.rpartition("/")
        parent = node.parent
        if self._take_out(node):
            self.note_outdated(directory, name)
        if parent is not None:
            self._touch(parent, node)

    def _touch(self, parent: Directory, node: Node) -> None:
        """Say that a directory has changed, in which a node was added or removed."""
        if not self.is_loading and (parent.store_path is not None or isinstance(node, Directory)):
            self.touched(parent.inode)

    def touch_above(self, path: str) -> None:
        """Say that the directory above a path in the store has changed, and the store's own, where removed ones are."""
        for directory in (self.root, self.find(path.rpartition("/")[0])):
            if directory is not None:
                self.touched(directory.inode)

    def _take_out(self, node: Node) -> bool:
        """Remove a node; return whether the kernel remembers it or a node in it."""
        node.let_go()  # first, so that `children` of a StatsDirectory does not make nodes now
        is_remembered = node.lookups > 0
        if isinstance(node, Directory):
            for child in list(node.children.values()):
                is_remembered |= self._take_out(child)
        if node.parent is not None:
            node.parent.drop(node.name)
        node.removed = True
        self.forget(node, 0)
        return is_remembered

    def note_outdated(self, directory: str, *names: str) -> None:
        """Note removed names in a directory that the kernel may still remember; see forget_removed() in upkeep.py."""
        self._outdated.setdefault(directory, set()).update(names)

    @property
    def n_outdated(self) -> int:
        """The number of names that were noted."""
        return sum(map(len, self._outdated.values()))

    def take_outdated(self) -> dict[str, set[str]]:
        """Return the names that were noted, by directory, and clear the list."""
        outdated, self._outdated = self._outdated, {}
        return outdated

    def forget(self, node: Node, lookups: int) -> None:
        """Subtract lookups that the kernel has forgotten; free a removed node, or a view, that has none left."""
        node.lookups = max(0, node.lookups - lookups)
        if node.lookups == 0 and (node.removed or node.view_of is not None):
            if self._inodes.get(node.inode) is node:
                del self._inodes[node.inode]
            if node.view_of is not None:
                self._views.pop(node.view_of, None)

    def view(self, node: Node, uid: int) -> Node:
        """Return the node to show to a user: the node itself or, if it has_views, a copy with its own inode number.

        The kernel carries out one write(2) to an inode at a time. A process that waits for another's write(2) cannot be
        killed, so different users must not write to the same inode.
        """
        if not node.has_views or uid in (0, os.geteuid()):
            return node
        view = self._views.get((node, uid))
        if view is None:
            view = self._views[node, uid] = copy.copy(node)
            view.view_of, view.lookups = (node, uid), 0
            last = node.inode & (1 << _HASH_BITS - _UID_BITS) - 1
            view.inode = _VIEW | last << _UID_BITS | uid
            self._inodes[view.inode] = view
        return view

    def add_directory(self, path: str) -> Directory:
        """Add a plain directory, whose parent must exist, and return it."""
        parent, _, name = path.rpartition("/")
        directory = Directory(name, store_path=path)
        self.attach(self._directory(parent), directory)
        return directory

    def missing_directories(self, path: str) -> list[str]:
        """Return the paths of directories above `path` that do not exist, outermost first.

        CommandError: a path above is a channel, a file or a trace.
        """
        missing = []
        parts = path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            node = self.find(above)
            if (
                above in self.channels
                or above in self.damaged
                or (node is not None and not isinstance(node, Directory))
            ):
                raise CommandError(errno.ENOTDIR, f"{above} is not a directory")
            if isinstance(node, TraceDirectory):
                raise CommandError(errno.EPERM, f"{above} is a trace: only what its processes write is in it")
            if node is None:
                missing.append(above)
        return missing

    def check_free(self, path: str, relay_paths: list[str]) -> None:
        """Raise CommandError if a name of a new channel is taken.

        relay_paths: the paths of its relay files
        """
        if path in self.channels:
            raise CommandError(errno.EEXIST, f"channel {path} exists")
        if path in self.damaged:
            raise CommandError(errno.EEXIST, f"channel {path} exists, though damaged: it can be removed")
        taken = self.find(path)
        if isinstance(taken, Directory):
            raise CommandError(errno.EEXIST, f"{path} is a directory: a channel and a directory cannot share a path")
        for relay_path in relay_paths:
            if self.find(relay_path) is not None:
                raise CommandError(errno.EEXIST, f"{relay_path} exists: the channel's relay file would have its name")

    def add_channel(self, channel: StoredChannel) -> None:
        """Add the files of a channel; the directory above must exist."""
        self.channels[channel.path] = channel
        channel.changed = self._told
        self._tell(channel.path)
        for stored in channel.buffers:
            parent, _, name = channel.relay_path(stored.index).rpartition("/")
            self.attach(self._directory(parent), RelayFile(name, stored))
        parent, _, name = channel.path.rpartition("/")
        self.attach(self.stats_directory(parent), StatsDirectory(name, self, lambda: self._channel_files(channel)))

    def add_unloaded(self, path: str, inode: int) -> None:
        """Note that a channel may be at a path; the directory above must exist; inode: of the one in the store."""
        self.unloaded.add(path, inode)
        self.stats_directory(path.rpartition("/")[0]).n_unloaded += 1

    def add_damaged(self, channel: DamagedChannel) -> None:
        """Add the files of a damaged channel."""
        self.damaged[channel.path] = channel
        self._tell(channel.path)
        for path, mem_name in channel.relay_paths.items():
            parent, _, name = path.rpartition("/")
            self.attach(self._directory(parent), DamagedFile(name, channel, mem_name))
        parent, _, name = channel.path.rpartition("/")
        directory = Directory(name)
        self.attach(self.stats_directory(parent), directory)
        self.attach(directory, TextFile("state", f"{channel.state()}\n".encode))

    def remove_channel(self, channel: StoredChannel | DamagedChannel) -> None:
        """Remove the files of a channel."""
        self.channels.pop(channel.path, None)
        self.damaged.pop(channel.path, None)
        self._tell(channel.path)
        for node in map(self.find, (*channel.relay_paths, f"{STATS_NAME}/{channel.path}")):
            if node is not None:
                self.detach(node)
        self.prune_stats(channel.path.rpartition("/")[0])

    def _channel_files(self, channel: StoredChannel) -> Iterator[Node]:
        yield from self.channel_stats(channel)
        yield from peeks_of(channel)

    def channel_stats(self, channel: StoredChannel) -> Iterator[Node]:
        """Yield new nodes for the directory .channels/PATH of a channel."""
        yield from starmap(TextFile, stats.of_channel(channel))
        yield TextFile("losses", channel.losses_text)
        yield from merged_of(channel)
        for stored in channel.buffers:
            yield MemFile(f"mem{stored.index}", stored)
            yield StatsDirectory(
                f"buffer{stored.index}", self, partial(_buffer_stats, channel, stored), bits=BUFFER_BITS
            )

    def _directory(self, path: str) -> Directory:
        node = self.find(path)
        assert isinstance(node, Directory), path
        return node

    def stats_directory(self, path: str) -> Directory:
        """Return the directory at a path in .channels, and make it if it is missing."""
        directory = self.stats_root
        for name in path.split("/") if path else ():
            child = directory.children.get(name)
            if not isinstance(child, Directory):
                child = Directory(name)
                self.attach(directory, child)
            directory = child
        return directory

    def prune_stats(self, path: str) -> None:
        """Remove the directory at a path in .channels, and those above it, if they are empty."""
        node = self.find(f"{STATS_NAME}/{path}") if path else None
        while isinstance(node, Directory) and node is not self.stats_root and self.is_empty(node):
            above = node.parent
            self.detach(node)
            node = above

    def _tell(self, path: str) -> None:
        for watcher in self.watchers:
            watcher(path)

    def _number(self, node: Node) -> None:
        """Give a node its inode number, which the next server will give it again.

        Numbers are hashes, as far as the number of nodes permits:

            0 | hash of the directory's number, the name, and what the store has there (identify())
            0 | the first bits of such a hash of the channel's name | number of the relay file
            0 | the first bits of such a hash | place of the name in a StatsDirectory | the same in one inside
            1 | last 30 bits of the number of the node that it is a view of | user
        """
        parent = node.parent
        assert parent is not None, "attach() comes first"
        bits = node.bits if isinstance(node, StatsDirectory) else RELAY_BITS if node.family else 0
        if isinstance(parent, StatsDirectory) and not node.removed:
            bits = INSIDE_BITS[parent.bits]
            inode = parent.inode + (place_of(node.name, parent.bits - bits) << bits)
        else:
            path = node.path.removeprefix(f"{STATS_NAME}/")
            name, place = node.family or (node.name, 0)
            inode = (_hash(parent, name, node.identity or self.identify(path)) >> bits << bits) + place
        while inode <= ROOT_INODE or not self._is_free(inode):
            inode = (inode + (1 << bits)) & (1 << _HASH_BITS) - 1
        node.inode = inode
        node.lookups = max(node.lookups, self.is_inherited)
        self._inodes[inode] = node
        if node.has_views:
            self._viewed[inode & (1 << _HASH_BITS - _UID_BITS) - 1] = node

    def _is_free(self, inode: int) -> bool:
        """Whether no node that is shown has a number; a removed one that the kernel remembers may be the same again."""
        node = self._inodes.get(inode)
        return node is None or node.removed


def _hash(parent: Directory, name: str, identity: int) -> int:
    """Return the hash from which inode numbers are made."""
    about = os.fsencode(f"{parent.inode} {name} {identity}")
    return int.from_bytes(hashlib.blake2b(about, digest_size=8).digest(), "little") >> 64 - _HASH_BITS


def _stored_path(directory: Directory) -> str:
    """Return the path in the store of what a directory of the mount shows, or one of .channels."""
    path = directory.path
    return "" if path == STATS_NAME else path.removeprefix(f"{STATS_NAME}/")


def place_of(name: str, bits: int) -> int:
    """Return the place of a name in a StatsDirectory that has 2^bits: it depends on no other name.

    So another version of the server, which has more statistics, gives those that there were the same inode numbers. Two
    names of a directory must not have the same place, which is tested. Names with numbers have the second half.
    """
    stem = name.rstrip("0123456789")
    half = 1 << bits - 1
    value = zlib.crc32(stem.encode(), PLACES)
    if bits == 1:
        return 1
    if stem == name:
        return 1 + value % (half - 1)
    return half + (value + int(name.removeprefix(stem))) % half


def _buffer_stats(channel: StoredChannel, stored: Stored[Any]) -> Iterator[Node]:
    return starmap(TextFile, stats.of_buffer(channel, stored))
