"""The handlers of FUSE requests about inodes and open files; those about names are in names.py.

Nodes (nodes.py) and open files (kinds/) decide what a request does; what takes time is in acts.py and streams.py.
Handlers run in one thread, so between two awaits a handler is alone.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import stat
from typing import TYPE_CHECKING

import pyfuse3
import trio

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.attributes import space as space_of
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.commands.control import NAME_MAX
from relayfs_fuse.fs.kinds.base import READABLE, WRITABLE
from relayfs_fuse.fs.kinds.handles import TOKEN_BYTES
from relayfs_fuse.fs.nodes import JoinFile, MappedFile
from relayfs_fuse.fs.opener import Opening, process_of
from relayfs_fuse.fs.requests.acts import Acts
from relayfs_fuse.fs.requests.names import NameOperations, guarded

if TYPE_CHECKING:
    from relayfs_fuse.fs.commands.channel import Commands
    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.base import Backing
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.nodes import Node
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.watch import Tracing
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.fs.upkeep import Flushing

log = logging.getLogger(__name__)

BACKING_XATTR = b"user.relayfs.backing"
# Of `.traces/control`: which process asks, in the server's PID namespace; 0: it cannot be seen from there.
PID_XATTR = b"user.relayfs.pid"
# Of `join`: a token and a request, from processes that may not write to files (RLIMIT_FSIZE).
JOIN_XATTR = b"user.relayfs.join"


class Operations(NameOperations):
    """Answer the kernel.

    store, tree, commands, errors, streams, counters, tracing, flushing: what it answers from
    """

    def __init__(
        self,
        store: Store,
        tree: Tree,
        commands: Commands,
        errors: ErrorLog,
        streams: Streams,
        counters: Counters | None,
        tracing: Tracing,
        flushing: Flushing,
    ) -> None:
        super().__init__(store, tree, errors, tracing.announcements)
        self._flushing = flushing
        if counters is not None:
            self.requests = counters.requests
        self._acts = Acts(streams, commands, counters, tracing, errors, self._naming, self._implicit)
        self._handles: dict[int, Handle] = {}

    # ---------------------------------------------------------------- attributes

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Say what stat(2) wants to know, and lseek(2) where the end is."""
        node = self._node(inode)
        if tap.request().seeks_end and not node.has_end:
            raise pyfuse3.FUSEError(errno.ESPIPE)
        return self._entry(node)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """Change mode and owner; the kernel has checked who may."""
        node = self._node(inode)
        if fields.update_size:
            node.truncate(attr.st_size)
        if fields.update_mode or fields.update_uid or fields.update_gid:
            now = node.attributes(self._store, ctx.pid)
            mode = stat.S_IMODE(attr.st_mode if fields.update_mode else now.mode)
            uid = attr.st_uid if fields.update_uid else now.uid
            gid = attr.st_gid if fields.update_gid else now.gid
            node.change_owner(self._store, mode, uid, gid, ctx.uid)
        return self._entry(node)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Tell of the store's memory."""
        space = space_of(self._store)
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = space.block_size
        data.f_blocks = space.blocks
        data.f_bfree = data.f_bavail = space.free_blocks
        data.f_files = data.f_ffree = data.f_favail = space.files
        data.f_namemax = NAME_MAX
        return data

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Name the file behind a memory, or the process that asks."""
        node = self._node(inode)
        if name == PID_XATTR and isinstance(node, MappedFile):
            return str(process_of(tap.request().pid)).encode("ascii")
        if name != BACKING_XATTR or node.backing_path is None:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return os.fsencode(node.backing_path)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        """Name the attribute that memories have."""
        node = self._node(inode)
        return [BACKING_XATTR] if node.backing_path is not None and not node.removed else []

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Take a request of a process that may not write to files; refuse anything else."""
        node = self._node(inode)
        if not isinstance(node, JoinFile) or name != JOIN_XATTR:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        handle = node.open_by_token.get(value[:TOKEN_BYTES])
        if handle is None:
            raise pyfuse3.FUSEError(errno.EBADF)
        await self._acts.ask(handle, value[TOKEN_BYTES:])

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse."""
        raise pyfuse3.FUSEError(errno.ENOTSUP)

    # ---------------------------------------------------------------- open files

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file.

        A relay file is a file as the kernel's are, with offsets and mappings, or, where readers wait for data, a
        stream as a pipe is: there the kernel must not keep a second reader of a descriptor waiting for the first.
        """
        request = tap.request()
        node = self._node(inode)
        opening = Opening(self._new_handle(), flags, request)
        try:
            if isinstance(node, RelayFile):
                await self._prepare(node, opening)
            node.check_usable()
            self._budget.hold(opening.number, 0, request.uid)
            handle = node.open(opening)
            backing = 0 if handle.is_stream else self._backing_of(node)
        except BaseException:
            self._budget.release(opening.number)
            if isinstance(node, RelayFile):
                node.stored.abandon(opening)
            raise
        self._handles[handle.number] = handle
        if handle.is_stream:
            tap.open_stream(request.unique)
        elif backing:
            tap.open_backed(request.unique, backing)
        return pyfuse3.FileInfo(fh=handle.number, direct_io=True, keep_cache=False)

    async def release(self, fh: int) -> None:
        """Close a file."""
        for handle in self._handles.pop(fh).ended():
            self._budget.release(handle.number)
            await handle.close(self._acts)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read."""
        request = tap.request()
        while terminal := tap.next_terminal():
            if asked := self._handles.get(terminal):
                asked.note_terminal()
        handle = self._handles[fh]
        data = await handle.read(self._acts, off, size, request)
        self._keep(handle)
        return data

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write a record, or commands."""
        await self._handles[fh].write(self._acts, off, bytes(buf), tap.request())
        return len(buf)

    async def poll(
        self, inode: int, fh: int, poll_handle: pyfuse3.PollHandle | None, ctx: pyfuse3.RequestContext
    ) -> int:
        """Say what a descriptor is ready for, and keep the handle to tell of changes."""
        handle = self._handles[fh]
        if handle.stored is None:
            return READABLE | WRITABLE
        events = self._acts.streams.waiting.poll(handle.stored, fh, poll_handle, handle.by_mem, handle.skips)
        return events | (READABLE if handle.is_inside else 0)

    # ---------------------------------------------------------------- helpers

    async def _prepare(self, node: RelayFile, opening: Opening) -> None:
        """Flush what a reader is about to open, and wait until it can be opened as its kind wants it."""
        if opening.reads:
            await self._flushing.before_open(node.stored.channel)
        node.check_usable()  # a removed channel's file would stay registered with the kernel
        pause_s = node.stored.prepare(opening, lambda: self._backing_of(node))
        if pause_s > 0:
            await trio.sleep(pause_s)

    def _keep(self, handle: Handle) -> None:
        """Let an open file keep what it gave; a text that is too much cannot be read, other data not again."""
        try:
            self._budget.hold(handle.number, handle.kept_bytes)
        except OSError:
            handle.drop_kept()
            self._budget.hold(handle.number, 0)
            if handle.needs_kept:
                raise

    def _backing_of(self, node: Node) -> int:
        """Return the kernel's number of the file that an open file is to be mapped from; 0: it cannot be mapped.

        It is registered once, because all opens of an inode need the same registration.
        """
        backing = node.mapped() if tap.has_passthrough() else None
        if backing is None:
            return 0
        if backing.number is None:
            backing.number = self._register(backing)
        return backing.number

    def _register(self, backing: Backing) -> int:
        """Register a file to be mapped; 0: it cannot be."""
        try:
            if backing.is_writable:
                self._store.protection.add(backing.descriptor)
            return tap.backing_open(backing.descriptor)
        except OSError as error:
            log.warning("%s cannot be mapped through the mount: %s", backing.path, error.strerror)
        return 0


for _class in (NameOperations, Operations):
    for _name, _handler in list(vars(_class).items()):
        if inspect.iscoroutinefunction(_handler) and not _name.startswith("_"):
            setattr(_class, _name, guarded(_handler))
