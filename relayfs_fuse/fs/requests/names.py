"""The handlers of FUSE requests about names: looking up, listing, making and removing.

All handlers run in one thread, so nothing changes between two awaits of a handler.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyfuse3
import trio

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.card_files import CardDirectory
from relayfs_fuse.fs.channel_files import BufferFile, MemFile
from relayfs_fuse.fs.commands.control import check_name
from relayfs_fuse.fs.counters import Requests
from relayfs_fuse.fs.implicit import ImplicitDirectories
from relayfs_fuse.fs.kinds.mapped import mapped
from relayfs_fuse.fs.nodes import Directory, Node
from relayfs_fuse.fs.notes import OPEN_DIRECTORY
from relayfs_fuse.fs.opener import opener_of, process_of
from relayfs_fuse.fs.requests.budget import NAME_BYTES, Budget
from relayfs_fuse.fs.requests.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from relayfs_fuse.fs.attributes import Attributes
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.handover import Handover
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.announcements import Announcements
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

# The number of channels that are loaded before other requests are served.
LOADED_AT_ONCE = 4
# How long the kernel may use what it knows of a directory. Each path through the mount needs that of all directories in
# it. The server tells the kernel when it changes a directory; only the store's owner can do so without the server.
DIRECTORY_S = 1.0
# The same of the root, which the kernel rounds up to its next tick: that the server is dead must be seen at once, but a
# program that looks at many paths should not have each of them begin with a request for the root.
ROOT_S = 1e-6


def guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap a handler so that it raises only FUSEError, because pyfuse3 ends the mount at any other exception.

    OSError and CommandError have an errno. Any other exception is a bug: it is logged and becomes EIO. The wrapper also
    counts requests and errors in operations.requests, and unmaps buffers if too many are mapped.
    """

    async def translated(*args: Any) -> Any:
        try:
            return await handler(*args)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        except CommandError as error:
            raise pyfuse3.FUSEError(error.errno) from error
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            log.exception("%s failed", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from error

    @functools.wraps(handler)
    async def guarded(operations: NameOperations, *args: Any) -> Any:
        operations.requests.requests += 1
        mapped.trim()
        try:
            return await translated(operations, *args)
        except pyfuse3.FUSEError:
            operations.requests.errors += 1
            raise

    return guarded


class NameOperations(pyfuse3.Operations):
    """The handlers; requests/files.py adds those about inodes and open files.

    store: the files behind the mount
    tree: the names in the mount
    errors: error_log
    announcements: says which requests are the server's own
    notes: for the next server, if this one dies
    handover: says which server was before this one
    requests: counts requests and errors
    begun: is set when the kernel's first request, FUSE_INIT, is being answered
    loaded: is set when all channels of the store are loaded, for which writes to control wait
    """

    # Set by Operations, which needs what this class makes.
    _acts: Acts
    # The kernel must not look up "." and "..", which the tree does not have.
    supports_dot_lookup = False

    def __init__(
        self,
        store: Store,
        tree: Tree,
        errors: ErrorLog,
        announcements: Announcements,
        notes: Notes,
        handover: Handover,
    ) -> None:
        super().__init__()
        self._store = store
        self._tree = tree
        self._errors = errors
        self._announcements = announcements
        self._notes = notes
        self._journal = Journal(notes)
        self._handover = handover
        self._budget = Budget()
        # Of each open directory; a node that is None is looked for when it is listed.
        self._listings: dict[int, tuple[Directory, list[tuple[str, Node | None]]]] = {}
        # No number comes twice: the close of a file may be asked for again after its server died.
        self._next_handle = handover.generation << 32 | 1
        # Held while names are added to the tree or removed from it by commands, mkdir(2) and rmdir(2).
        self._naming = trio.Lock()
        self._implicit = ImplicitDirectories(store, tree, announcements, self._naming)
        self.requests = Requests()
        self.begun = trio.Event()
        self.loaded = trio.Event()
        tree.touched = self._forget_attributes

    def init(self) -> None:
        """Note that FUSE_INIT is being answered; tasks that wait for `begun` run only after the answer is sent."""
        self.begun.set()

    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Look up a name in a directory."""
        parent, text = self._directory(parent_inode), os.fsdecode(name)
        if parent.removed:
            # The kernel does not know that. At ESTALE it looks up the directory again, in whose place may be another.
            raise pyfuse3.FUSEError(errno.ESTALE)
        node = self._tree.child(parent, text) or self._unlisted(parent, text)
        if node is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        node = self._tree.view(node, ctx.uid)
        entry = self._entry(node)
        node.lookups += 1
        return entry

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Subtract lookups that the kernel has forgotten; nodes without any are freed if they were removed."""
        for inode, lookups in inode_list:
            node = self._tree.known(inode)
            if node is not None:
                self._tree.forget(node, lookups)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Open a directory: readdir(2) will list it as it is now."""
        number, directory = tap.request().number, self._directory(inode)
        while self._tree.load_some(directory, LOADED_AT_ONCE):
            await trio.lowlevel.checkpoint()
        listing: list[tuple[str, Node | None]] = list(directory.children.items())
        handle = self._new_handle()
        self._budget.hold(handle, NAME_BYTES * len(listing), ctx.uid)
        self._listings[handle] = directory, listing
        about = f"{number}/{ctx.uid}/{inode}/" + "/".join(name for name, _ in listing)
        self._notes.put(OPEN_DIRECTORY, handle, os.fsencode(about))
        return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a directory from entry `start_id` on, as far as the reply has room.

        Of what is not a directory only the name is given (native/fuse/replies.c).
        """
        uid = tap.request().uid
        directory, listing = self._listings.get(fh) or self._list_again(fh)
        file = _file()
        for index in range(max(0, start_id), len(listing)):
            name, listed = listing[index]
            if listed is None:
                listed = self._tree.child(directory, name)
                await trio.lowlevel.checkpoint()
            if listed is None or listed.removed:
                continue
            node = self._tree.view(listed, uid)
            is_directory = isinstance(node, Directory)
            file.st_ino = node.inode
            entry = self._entry(node) if is_directory else file
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, index + 1):
                return
            if is_directory:
                node.lookups += 1

    async def releasedir(self, fh: int) -> None:
        """Close a directory."""
        self._listings.pop(fh, None)
        self._notes.drop(OPEN_DIRECTORY, fh)
        self._budget.release(fh)

    def _forget_unopened(self) -> None:
        """Forget the directories whose opendir(3) a dead server has not answered: the kernel asks for it again."""
        for handle, about in list(self._notes.all(OPEN_DIRECTORY)):
            if tap.awaits(int(about.partition(b"/")[0])):
                self._notes.drop(OPEN_DIRECTORY, handle)

    def _list_again(self, handle: int) -> tuple[Directory, list[tuple[str, Node | None]]]:
        """Return the listing of a directory that a dead server had open, with the names of then."""
        _, uid, inode, *names = os.fsdecode(self._notes.get(OPEN_DIRECTORY, handle) or b"0/0/0").split("/")
        directory = self._directory(int(inode))
        listing: list[tuple[str, Node | None]] = [(name, None) for name in names if name]
        self._budget.hold(handle, NAME_BYTES * len(listing), int(uid))
        self._listings[handle] = directory, listing
        return directory, listing

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a plain directory, a trace, or a snapshot of one."""
        announced = self._announced(parent_inode, name)
        if announced is not None:
            return announced
        above = self._directory(parent_inode)
        try:
            line = above.making(os.fsdecode(name))
        except CommandError as error:
            log.info("%s", self._errors.error(f"mkdir {above.path}/{os.fsdecode(name)}", error))
            raise
        if line is not None:
            await self._acts.command(os.fsencode(line), opener_of(tap.request()), tap.request().number)
            made = above.children.get(os.fsdecode(name))
            if made is None:
                raise pyfuse3.FUSEError(errno.ENOENT)  # another command has removed it meanwhile
            made.lookups += 1
            return self._entry(made)
        if self._announcements.is_asking(tap.request().pid) or self._is_from_dead():
            raise pyfuse3.FUSEError(errno.EPERM)  # too late: the change was made without being announced
        unique = tap.request().number
        async with self._naming:
            parent, text = self._directory(parent_inode), os.fsdecode(name)
            if parent.store_path is None:
                raise pyfuse3.FUSEError(errno.EPERM)
            check_name(text)
            path = f"{parent.store_path}/{text}" if parent.store_path else text
            request = self._journal.open(unique)
            there = self._tree.child(parent, text)
            if path in self._tree.channels or (there is not None and not request.was_begun):
                raise pyfuse3.FUSEError(errno.EEXIST)
            request.begin()
            self._store.make_directory(path, mode, is_there=there is not None)
            node = there or self._tree.add_directory(path)
            entry = self._entry(node)
            node.lookups += 1
            self._journal.close(unique)
            return entry

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty plain directory, a trace, or a crash card or snapshot with all that is in it."""
        change = self._change(parent_inode, name)
        if change is not None:
            change()
            return
        above, text = self._directory(parent_inode), os.fsdecode(name)
        if isinstance(above.children.get(text), Directory) and (line := above.removing(text)) is not None:
            await self._acts.command(os.fsencode(line), opener_of(tap.request()), tap.request().number)
            return
        if self._is_from_dead():
            raise pyfuse3.FUSEError(errno.EPERM)
        by_server, unique = self._announcements.is_asking(tap.request().pid), tap.request().number
        async with self._naming:
            parent = self._directory(parent_inode)
            node = self._tree.child(parent, os.fsdecode(name))
            request = self._journal.open(unique)
            self._journal.close(unique)
            if node is None and request.was_begun:
                return
            if node is None:
                raise pyfuse3.FUSEError(errno.ENOENT)
            if not isinstance(node, Directory):
                raise pyfuse3.FUSEError(errno.ENOTDIR)
            if isinstance(node, CardDirectory) and not by_server:
                request.begin()
                await trio.to_thread.run_sync(node.remove_whole)
                self._tree.detach(node)
                return
            if node.store_path is None:
                raise pyfuse3.FUSEError(errno.EPERM)
            if not self._tree.is_empty(node):
                raise pyfuse3.FUSEError(errno.ENOTEMPTY)
            # If the announcing thread is late, another program may have made a directory of the same name meanwhile.
            if by_server and not self._store.is_implicit(node.store_path):
                raise pyfuse3.FUSEError(errno.EPERM)
            request.begin()
            self._store.remove_directory(node.store_path)
            self._tree.detach(node)
            # An implicit directory goes with the last channel in it, or when the next server finds it empty. A user has
            # emptied this one, so it is to stay.
            if not by_server and parent.store_path and self._tree.is_empty(parent):
                self._store.keep_directory(parent.store_path)

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse, because only `remove` in control removes the files of a channel; error_log says so."""
        node = self._tree.child(self._directory(parent_inode), os.fsdecode(name))
        if isinstance(node, BufferFile):
            hint = f"only a whole channel can be removed: write `remove {node.stored.channel.path}` to control"
            self._errors.notice(f"unlink {node.path}", hint, len("unlink "))
        raise pyfuse3.FUSEError(errno.EPERM)

    async def rename(
        self,
        parent_old: int,
        name_old: bytes,
        parent_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Refuse, because the paths of the store are those of the mount."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def link(
        self, inode: int, new_parent: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse hard links."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse symbolic links."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse, as debugfs does: files are made by commands."""
        raise pyfuse3.FUSEError(errno.EACCES)

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Refuse, as mknod does."""
        raise pyfuse3.FUSEError(errno.EACCES)

    def _unlisted(self, parent: Directory, name: str) -> Node | None:
        """Find a file that readdir(2) does not list: memN.TOKEN, see MemFile.hold()."""
        mem_name, _, token = name.partition(".")
        node = parent.children.get(mem_name)
        if not isinstance(node, MemFile):
            return None
        hold = node.hold(name, token, partial(self._tree.note_outdated, parent.path, name))
        if hold is not None:
            self._tree.attach_unlisted(parent, hold)
        return hold

    def _change(self, parent_inode: int, name: bytes) -> Callable[[], Node | None] | None:
        """Return the change that the announcing thread's request for a name is to make; None: another thread asks."""
        parent = self._directory(parent_inode)
        path = f"{parent.path}/{os.fsdecode(name)}"
        return self._announcements.take(tap.request().pid, path)

    def _announced(self, parent_inode: int, name: bytes) -> pyfuse3.EntryAttributes | None:
        """Make a directory that the announcing thread asks for; None: another thread asks."""
        change = self._change(parent_inode, name)
        node = change() if change is not None else None
        if node is None:
            return None
        entry = self._entry(node)
        node.lookups += 1
        return entry

    def _is_from_dead(self) -> bool:
        """Whether the announcing thread of the server before, which has died, waits for the answer to this request."""
        return self._handover.is_from_dead(process_of(tap.request().pid)) if self._handover.died[0] else False

    def _node(self, inode: int) -> Node:
        node = self._tree.node(inode)
        if node is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return node

    def _directory(self, inode: int) -> Directory:
        node = self._node(inode)
        if not isinstance(node, Directory):
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        return node

    def _entry(self, node: Node) -> pyfuse3.EntryAttributes:
        entry = _entry_of(node.attributes(self._store, tap.request().pid))
        if isinstance(node, Directory) and node.parent is not None:
            entry.attr_timeout = DIRECTORY_S
            entry.entry_timeout = DIRECTORY_S if node.is_removed_by_name else 0
        elif node is self._tree.root:
            entry.attr_timeout = ROOT_S
        return entry

    def _forget_attributes(self, inode: int) -> None:
        """Have the kernel ask for the attributes of a directory that has changed, if it knows them."""
        if self.begun.is_set():
            with suppress(OSError):
                pyfuse3.invalidate_inode(inode, attr_only=True)

    def _new_handle(self) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        return handle


def _entry_of(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = attributes.inode
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_size = attributes.size
    entry.st_blocks = (attributes.size + 511) // 512
    entry.st_blksize = attributes.block_size
    entry.st_atime_ns = entry.st_mtime_ns = attributes.mtime_ns
    entry.st_ctime_ns = attributes.ctime_ns
    # 0: the kernel must ask every time, because everything can change without its knowledge.
    entry.attr_timeout = entry.entry_timeout = 0
    return entry


def _file() -> pyfuse3.EntryAttributes:
    """Return what a listing says of a file besides its inode number: its type."""
    entry = pyfuse3.EntryAttributes()
    entry.st_mode = stat.S_IFREG
    return entry
