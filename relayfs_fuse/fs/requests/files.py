"""The handlers of FUSE requests about inodes and open files; those about names are in names.py.

Nodes (nodes.py) and handles (kinds/handles.py) decide what a request does; what may block is in acts.py and streams.py.
All handlers run in one thread, so nothing changes between two awaits of a handler.
"""

from __future__ import annotations

import errno
import inspect
import os
import stat
from typing import TYPE_CHECKING

import pyfuse3
import trio

from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once, tap
from relayfs_fuse.fs.attributes import space as space_of
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.commands.control import NAME_MAX
from relayfs_fuse.fs.kinds.handles import TOKEN_BYTES
from relayfs_fuse.fs.nodes import JoinFile, MappedFile
from relayfs_fuse.fs.opener import Opening, process_of
from relayfs_fuse.fs.requests.acts import Acts
from relayfs_fuse.fs.requests.lookups import Lookups
from relayfs_fuse.fs.requests.names import NameOperations, guarded
from relayfs_fuse.fs.requests.open_files import OpenFiles
from relayfs_fuse.native import VERSION

if TYPE_CHECKING:
    from relayfs_fuse.fs.backings import Backings
    from relayfs_fuse.fs.commands.channel import Commands
    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.handover import Handover
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.nodes import Node
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.requests.merging import Merging
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.watch import Tracing
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.fs.upkeep import Flushing

# Of memory files and others that can be mapped: the path of the file in the store.
BACKING_XATTR = b"user.relayfs.backing"
# Of `.traces/control`: the calling process's number in the server's PID namespace; 0: it is not visible there.
PID_XATTR = b"user.relayfs.pid"
# Of `.traces/join`: a JoinHandle's token and a request, for processes that cannot write to files (RLIMIT_FSIZE).
JOIN_XATTR = b"user.relayfs.join"
# Of the root directory: the server's version, and that of the FUSE protocol that the mount uses.
SERVER_XATTR = b"user.relayfs.server"


class Operations(NameOperations):
    """All handlers.

    store, tree, errors: see NameOperations
    commands: carries out what is written to control
    streams: reads and writes relay files
    merging: feeds the files `merged` of traces
    counters: the counters; None: they cannot be used
    tracing: the traces, and the announcing thread
    flushing: flushes a channel before it is opened
    backings: by which the kernel maps files
    notes, handover: see NameOperations
    """

    def __init__(
        self,
        store: Store,
        tree: Tree,
        commands: Commands,
        errors: ErrorLog,
        streams: Streams,
        merging: Merging,
        counters: Counters | None,
        tracing: Tracing,
        flushing: Flushing,
        backings: Backings,
        notes: Notes,
        handover: Handover,
    ) -> None:
        super().__init__(store, tree, errors, tracing.announcements, notes, handover)
        self._flushing = flushing
        self._backings = backings
        if counters is not None:
            self.requests = counters.requests
        self._acts = Acts(
            streams, merging, commands, counters, tracing, errors, notes, self._journal, self._naming, self._implicit,
            self.loaded,
        )  # fmt: skip
        self._files = OpenFiles(notes, store, tree, self._budget)
        at_once.answer_lookups(
            Lookups(store, tree).answer, lambda: trio.lowlevel.current_statistics().tasks_runnable > 0
        )

    # ---------------------------------------------------------------- attributes

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return what stat(2) shows; ESPIPE if lseek(2) looks for the end of a file that has none."""
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
        """Set size, mode, owner or group; the kernel has checked permissions."""
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
        """Return the size of the store's memory, and how much of it is free."""
        space = space_of(self._store)
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = space.block_size
        data.f_blocks = space.blocks
        data.f_bfree = data.f_bavail = space.free_blocks
        data.f_files = data.f_ffree = data.f_favail = space.files
        data.f_namemax = NAME_MAX
        return data

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Return BACKING_XATTR, PID_XATTR or SERVER_XATTR.

        OSError: ENODATA; EOPNOTSUPP for other attributes than users', so that ls asks no other file of the mount for
        labels and access control lists.
        """
        if not name.startswith(b"user."):
            raise failure(errno.EOPNOTSUPP)
        node = self._node(inode)
        if name == SERVER_XATTR and inode == pyfuse3.ROOT_INODE:
            return f"{VERSION} {tap.protocol()}".encode("ascii")
        if name == PID_XATTR and isinstance(node, MappedFile):
            return str(process_of(tap.request().pid)).encode("ascii")
        if name != BACKING_XATTR or node.backing_path is None:
            raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
        return os.fsencode(node.backing_path)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        """List BACKING_XATTR, if the file has it."""
        node = self._node(inode)
        return [BACKING_XATTR] if node.backing_path is not None and not node.removed else []

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Carry out a request of JOIN_XATTR; refuse other attributes."""
        node = self._node(inode)
        if not isinstance(node, JoinFile) or name != JOIN_XATTR:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        handle = node.open_by_token.get(value[:TOKEN_BYTES])
        if handle is None:
            raise pyfuse3.FUSEError(errno.EBADF)
        request = tap.request()
        await self._acts.ask(handle, value[TOKEN_BYTES:])
        self._files.note(handle, request.number)

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Refuse: no attribute can be removed."""
        raise pyfuse3.FUSEError(errno.ENOTSUP)

    # ---------------------------------------------------------------- open files

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Open a file.

        A relay file whose readers wait for data is opened as a stream if possible. For other files the kernel serves
        one read(2) of a descriptor at a time: while one sleeps, a second one waits and cannot be interrupted.
        """
        request = tap.request()
        node = self._node(inode)
        opening = Opening(self._new_handle(), flags, request)
        try:
            if isinstance(node, RelayFile):
                await self._prepare(node, opening)
            node.check_usable()
            self._budget.hold(opening.number, 0, request.uid)
            if isinstance(node, RelayFile):
                node.forget_known()
            handle = node.open(opening)
            if isinstance(node, RelayFile):
                self._forget_attributes(inode)  # lookups.py says why
            backing = 0 if handle.is_stream else self._backing_of(node)
            self._files.add(handle, node, opening)
        except BaseException:
            self._budget.release(opening.number)
            if isinstance(node, RelayFile):
                node.stored.abandon(opening)
            raise
        if handle.is_stream:
            tap.open_stream(request.unique)
        elif backing:
            tap.open_backed(request.unique, backing)
        return pyfuse3.FileInfo(fh=handle.number, direct_io=True, keep_cache=False)

    async def release(self, fh: int) -> None:
        """Close a file, and those files that only this one kept open."""
        handle = self._files.get(fh)
        if handle is None:
            return  # a server that has died since has closed it
        for ended in handle.ended():
            self._budget.release(ended.number)
            await ended.close(self._acts)
            self._files.close(ended.number)
        self._files.note(handle)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read from an open file; before, tell handles that isatty(3) was called for them."""
        request = tap.request()
        while terminal := tap.next_terminal():
            if asked := self._files.get(terminal):
                asked.note_terminal()
        handle = self._files[fh]
        data = await handle.read(self._acts, off, size, request)
        self._keep(handle)
        self._files.note(handle, request.number)
        return data

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write to an open file."""
        request, handle = tap.request(), self._files[fh]
        await handle.write(self._acts, off, bytes(buf), request)
        self._files.note(handle, request.number)
        return len(buf)

    async def poll(
        self, inode: int, fh: int, poll_handle: pyfuse3.PollHandle | None, ctx: pyfuse3.RequestContext
    ) -> int:
        """Return the events that hold now; `poll_handle` notifies the kernel when they change."""
        request, handle = tap.request(), self._files[fh]
        self._files.note_poll(handle, tap.poll_handle())
        events = handle.poll(self._acts, poll_handle)
        self._files.note(handle, request.number)
        return events

    def restore(self) -> list[int]:
        """Open the files again that a dead server had open; return the kernel's numbers of those that are polled."""
        self._journal.restore()
        self._forget_unopened()
        return self._files.restore(self._acts, self._unlisted)

    def note_loaded(self) -> None:
        """Note that all channels of the store are loaded."""
        self._files.note_loaded()
        self.loaded.set()

    # ---------------------------------------------------------------- helpers

    async def _prepare(self, node: RelayFile, opening: Opening) -> None:
        """Flush a buffer that a reader opens, call Stored.prepare(), and wait as long as that says."""
        if opening.reads:
            await self._flushing.before_open(node.stored.channel)
        node.check_usable()  # prepare() may register the file with the kernel, which must not happen after its removal
        pause_s = node.stored.prepare(opening, lambda: self._backing_of(node))
        if pause_s > 0:
            await trio.sleep(pause_s)

    def _keep(self, handle: Handle) -> None:
        """Charge what an open file keeps to its opener; if that is too much, the data is dropped.

        OSError: ENOMEM, if the file cannot be read without what it keeps.
        """
        try:
            self._budget.hold(handle.number, handle.kept_bytes)
        except OSError:
            handle.drop_kept()
            self._budget.hold(handle.number, 0)
            if handle.needs_kept:
                raise

    def _backing_of(self, node: Node) -> int:
        """Return the backing id of the file that mappings of the node show; 0: it cannot be mapped."""
        backing = node.mapped() if tap.has_passthrough() else None
        return 0 if backing is None else self._backings.number_of(backing)


for _class in (NameOperations, Operations):
    for _name, _handler in list(vars(_class).items()):
        if inspect.iscoroutinefunction(_handler) and not _name.startswith("_"):
            setattr(_class, _name, guarded(_handler))
