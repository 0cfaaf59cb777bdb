"""The handlers of FUSE requests: names, attributes, opening, and what files say.

Reading, writing and waiting for relay files is in streams.py. Handlers run in one thread, so between two awaits a
handler is alone. Each is wrapped: OSError and CommandError become the errno that they carry, anything unexpected is
logged and becomes EIO, because pyfuse3 would end the mount.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import stat
from typing import TYPE_CHECKING, Any

import pyfuse3
import trio

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.attributes import BLOCK_SIZE, Attributes
from relayfs_fuse.fs.commands import Caller
from relayfs_fuse.fs.control import NAME_MAX, check_name
from relayfs_fuse.fs.handles import Handle, MappableHandle, MemHandle, StreamHandle, TextHandle
from relayfs_fuse.fs.tree import (
    BufferFile,
    ControlFile,
    Directory,
    ErrorLogFile,
    MappableFile,
    MemFile,
    Node,
    StreamFile,
    TextFile,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from relayfs_fuse.fs.attributes import AttributeSource
    from relayfs_fuse.fs.commands import Commands
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.store import Store, StoredBuffer
    from relayfs_fuse.fs.streams import Streams
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

BACKING_XATTR = b"user.relayfs.backing"
# Between an open that is answered with ESTALE and the same thread's next try.
WANT_MAPPABLE_S = 1.0
ALWAYS_READY = select.POLLIN | select.POLLRDNORM | select.POLLOUT | select.POLLWRNORM


def _guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let nothing out of a handler that would end the mount."""

    @functools.wraps(handler)
    async def guarded(*args: Any) -> Any:
        try:
            return await handler(*args)
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        except CommandError as error:
            raise pyfuse3.FUSEError(error.errno) from error
        except Exception as error:
            log.exception("%s failed", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from error

    return guarded


class Operations(pyfuse3.Operations):
    """Answer the kernel.

    store, tree, attributes, commands, errors, streams: what it answers from
    """

    # Names that begin with a dot are ours, and the tree does not know "." and "..".
    supports_dot_lookup = False

    def __init__(  # noqa: PLR0913  # the parts of the server, all of them
        self,
        store: Store,
        tree: Tree,
        attributes: AttributeSource,
        commands: Commands,
        errors: ErrorLog,
        streams: Streams,
    ) -> None:
        super().__init__()
        self._store = store
        self._tree = tree
        self._attributes = attributes
        self._commands = commands
        self._errors = errors
        self._streams = streams
        self._handles: dict[int, Handle] = {}
        self._listings: dict[int, list[tuple[str, Node]]] = {}
        self._next_handle = 1
        # Threads that were told ESTALE, and until when their next lookup finds the mappable inode.
        self._wanted: dict[tuple[int, int], float] = {}
        # Names come and go one change at a time.
        self._naming = trio.Lock()

    # ---------------------------------------------------------------- names

    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Find a name."""
        node = self._directory(parent_inode).children.get(os.fsdecode(name))
        if node is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        if isinstance(node, StreamFile) and self._wants_mappable(node):
            node = node.mappable
        entry = self._entry(node)
        node.lookups += 1
        return entry

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Let go of inodes."""
        for inode, lookups in inode_list:
            node = self._tree.node(inode)
            if node is not None:
                self._tree.forget(node, lookups)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """List a directory as it is now."""
        handle = self._new_handle()
        self._listings[handle] = list(self._directory(inode).children.items())
        return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Give as much of the list as the kernel takes."""
        for index, (name, node) in enumerate(self._listings[fh][start_id:], start_id + 1):
            if node.removed:
                continue
            if not pyfuse3.readdir_reply(token, os.fsencode(name), self._entry(node), index):
                return
            node.lookups += 1

    async def releasedir(self, fh: int) -> None:
        """Drop the list."""
        self._listings.pop(fh, None)

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Make a plain directory."""
        async with self._naming:
            parent, text = self._directory(parent_inode), os.fsdecode(name)
            if parent.store_path is None:
                raise pyfuse3.FUSEError(errno.EPERM)
            check_name(text)
            path = f"{parent.store_path}/{text}" if parent.store_path else text
            if path in self._tree.channels or text in parent.children:
                raise pyfuse3.FUSEError(errno.EEXIST)
            self._store.make_directory(path, mode)
            node = self._tree.add_directory(path)
            entry = self._entry(node)
            node.lookups += 1
            return entry

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty plain directory."""
        async with self._naming:
            node = self._directory(parent_inode).children.get(os.fsdecode(name))
            if node is None:
                raise pyfuse3.FUSEError(errno.ENOENT)
            if not isinstance(node, Directory):
                raise pyfuse3.FUSEError(errno.ENOTDIR)
            if node.store_path is None:
                raise pyfuse3.FUSEError(errno.EPERM)
            if node.children:
                raise pyfuse3.FUSEError(errno.ENOTEMPTY)
            self._store.remove_directory(node.store_path)
            self._tree.detach(node)

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse: files go with their channel."""
        node = self._directory(parent_inode).children.get(os.fsdecode(name))
        if isinstance(node, BufferFile):
            path = node.stored.channel.path
            self._errors.notice(f"unlink {node.path}", f"a channel goes as a whole: write `remove {path}` to control", 7)
        raise pyfuse3.FUSEError(errno.EPERM)

    async def rename(  # noqa: PLR0913  # the request's own
        self, parent_old: int, name_old: bytes, parent_new: int, name_new: bytes, flags: int, ctx: pyfuse3.RequestContext
    ) -> None:
        """Refuse: names say what is behind them."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def link(
        self, inode: int, new_parent: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse, as rename does."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse: the store holds no links."""
        raise pyfuse3.FUSEError(errno.EPERM)

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Refuse, as debugfs does: files come from commands."""
        raise pyfuse3.FUSEError(errno.EACCES)

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Refuse, as mknod does."""
        raise pyfuse3.FUSEError(errno.EACCES)

    # ---------------------------------------------------------------- attributes

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Say what stat(2) wants to know."""
        return self._entry(self._node(inode))

    async def setattr(  # noqa: PLR0913  # the request's own
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change mode and owner; the kernel has checked who may. Sizes stay: `>` must not lose data."""
        node = self._node(inode)
        if fields.update_size:
            if isinstance(node, ErrorLogFile) and attr.st_size == 0:
                self._errors.clear()
            elif not isinstance(node, StreamFile | MappableFile | ControlFile):
                raise pyfuse3.FUSEError(errno.EPERM)
        if fields.update_mode or fields.update_uid or fields.update_gid:
            now = self._attributes.of(node)
            mode = stat.S_IMODE(attr.st_mode if fields.update_mode else now.mode)
            uid = attr.st_uid if fields.update_uid else now.uid
            gid = attr.st_gid if fields.update_gid else now.gid
            self._change_owner(node, mode, uid, gid)
        return self._entry(node)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Tell of the store's memory."""
        space = self._attributes.space()
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = space.block_size
        data.f_blocks = space.blocks
        data.f_bfree = data.f_bavail = space.free_blocks
        data.f_files = data.f_ffree = data.f_favail = space.files
        data.f_namemax = NAME_MAX
        return data

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Name the file behind a memory."""
        node = self._node(inode)
        if not isinstance(node, MemFile) or name != BACKING_XATTR or node.removed:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return os.fsencode(node.stored.buffer.path)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        """Name the attribute that memories have."""
        node = self._node(inode)
        return [BACKING_XATTR] if isinstance(node, MemFile) and not node.removed else []

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse."""
        raise pyfuse3.FUSEError(errno.ENOTSUP)

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse."""
        raise pyfuse3.FUSEError(errno.ENOTSUP)

    # ---------------------------------------------------------------- open files

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file.

        The kernel does not let one inode be both mappable and without position. So an open of a relay file for reading
        and writing, which whoever maps it needs, is answered with ESTALE: the kernel then looks the name up once more,
        and the same thread finds the other inode. The other way round likewise.
        """
        request = tap.request()
        node = self._node(inode)
        both = flags & os.O_ACCMODE == os.O_RDWR
        if isinstance(node, StreamFile) and both:
            self._wanted[request.pid, node.inode] = trio.current_time() + WANT_MAPPABLE_S
            raise pyfuse3.FUSEError(errno.ESTALE)
        if isinstance(node, MappableFile):
            self._wanted.pop((request.pid, node.stream_inode), None)
            if not both:
                raise pyfuse3.FUSEError(errno.ESTALE)
        if node.removed and isinstance(node, BufferFile):
            raise pyfuse3.FUSEError(errno.ESTALE)
        handle = self._new_handle()
        self._handles[handle] = self._open(node, flags)
        if isinstance(node, StreamFile):
            tap.open_stream(request.unique)
        elif isinstance(node, BufferFile) and self._back(node.stored):
            tap.open_backed(request.unique, node.stored.backing or 0)
        return pyfuse3.FileInfo(fh=handle, direct_io=True, keep_cache=False)

    async def release(self, fh: int) -> None:
        """Close a file."""
        handle = self._handles.pop(fh, None)
        if isinstance(handle, TextHandle) or handle is None:
            return
        self._streams.waiting.forget(handle.stored, fh)
        if isinstance(handle, MemHandle):
            handle.stored.buffer.resolve(handle.token)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read."""
        request = tap.request()
        handle = self._handles[fh]
        if isinstance(handle, StreamHandle):
            return await self._streams.read(handle, off, size, request)
        return handle.read(off, size)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write a record, or commands."""
        request = tap.request()
        handle = self._handles[fh]
        if isinstance(handle, StreamHandle):
            self._streams.write(handle, off, buf, request)
        elif isinstance(handle, TextHandle) and isinstance(handle.node, ControlFile):
            await self._command(buf, request)
        elif isinstance(handle, TextHandle) and isinstance(handle.node, ErrorLogFile):
            self._errors.clear()
        else:
            raise pyfuse3.FUSEError(errno.EINVAL)
        return len(buf)

    async def poll(
        self, inode: int, fh: int, poll_handle: pyfuse3.PollHandle | None, ctx: pyfuse3.RequestContext
    ) -> int:
        """Say what a descriptor is ready for, and keep the handle to tell of changes."""
        handle = self._handles[fh]
        if isinstance(handle, TextHandle):
            return ALWAYS_READY
        return self._streams.waiting.poll(handle.stored, fh, poll_handle)

    # ---------------------------------------------------------------- helpers

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
        return _entry_of(self._attributes.of(node))

    def _new_handle(self) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        return handle

    def _wants_mappable(self, node: StreamFile) -> bool:
        # The kernel may look up more than once before it opens again.
        deadline = self._wanted.get((tap.request().pid, node.inode))
        if len(self._wanted) > 1000:  # threads that were told ESTALE and died before they came back
            self._wanted = {key: end for key, end in self._wanted.items() if end >= trio.current_time()}
        return deadline is not None and deadline >= trio.current_time()

    def _open(self, node: Node, flags: int) -> Handle:
        if isinstance(node, StreamFile):
            return StreamHandle(node.stored)
        if isinstance(node, MappableFile):
            return MappableHandle(node.stored)
        if isinstance(node, MemFile):
            if flags & os.O_TRUNC:
                raise pyfuse3.FUSEError(errno.EPERM)
            return MemHandle(node.stored)
        assert isinstance(node, TextFile)
        if isinstance(node, ErrorLogFile) and flags & os.O_TRUNC:
            self._errors.clear()
        return TextHandle(node)

    def _back(self, stored: StoredBuffer) -> bool:
        """Register the buffer's file for mapping, once: all opens of an inode need the same registration."""
        if stored.backing is None:
            stored.backing = 0
            if tap.has_passthrough():
                try:
                    stored.backing = tap.backing_open(stored.buffer.fileno())
                except OSError as error:
                    log.warning("%s cannot be mapped through the mount: %s", stored.buffer.path, error.strerror)
        return stored.backing > 0

    def _change_owner(self, node: Node, mode: int, uid: int, gid: int) -> None:
        if isinstance(node, BufferFile):
            node.stored.channel.change_owner(mode & 0o666, uid, gid)
        elif isinstance(node, Directory) and node.store_path is not None:
            # Who could write to a store's directory could move things under our hands.
            if mode & 0o022 or uid != os.geteuid():
                raise pyfuse3.FUSEError(errno.EPERM)
            os.chown(self._store.locate(node.store_path), -1, gid)
            os.chmod(self._store.locate(node.store_path), mode | 0o700)
        else:
            raise pyfuse3.FUSEError(errno.EPERM)

    async def _command(self, text: bytes, request: tap.Request) -> None:
        """Carry out commands; what blocks runs in a worker thread."""
        caller = Caller(request.uid, request.gid, lambda: pyfuse3.get_sup_groups(request.pid))
        async with self._naming:
            work = self._commands.run(os.fsdecode(text), caller)
            try:
                job = next(work)
                while True:
                    try:
                        result = await trio.to_thread.run_sync(job)
                    except (OSError, CommandError) as error:
                        job = work.throw(error)
                    else:
                        job = work.send(result)
            except StopIteration:
                return


def _entry_of(attributes: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = attributes.inode
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_size = attributes.size
    entry.st_blocks = (attributes.size + 511) // 512
    entry.st_blksize = BLOCK_SIZE
    entry.st_atime_ns = entry.st_mtime_ns = attributes.mtime_ns
    entry.st_ctime_ns = attributes.ctime_ns
    # Everything changes without the kernel's knowledge.
    entry.attr_timeout = entry.entry_timeout = 0
    return entry


for _name in dir(pyfuse3.Operations):
    _handler = vars(Operations).get(_name)
    if _handler is not None and not _name.startswith("_") and callable(_handler):
        setattr(Operations, _name, _guarded(_handler))
