"""The handlers of FUSE requests about inodes and open files; those about names are in names.py.

What reading, writing and waiting for relay files does is in streams.py. Handlers run in one thread, so between two
awaits a handler is alone.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import re
import select
import stat
from typing import TYPE_CHECKING, Any

import pyfuse3
import trio

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.attributes import space as space_of
from relayfs_fuse.fs.channel_files import BufferFile, DamagedFile, HoldFile, MemFile, RelayFile
from relayfs_fuse.fs.commands.control import NAME_MAX, split_write
from relayfs_fuse.fs.commands.jobs import Patient
from relayfs_fuse.fs.counter_files import CounterFile
from relayfs_fuse.fs.kinds.base import READABLE
from relayfs_fuse.fs.kinds.handles import (
    TOKEN_BYTES,
    CounterFileHandle,
    Handle,
    HoldHandle,
    JoinHandle,
    MemHandle,
    RelayHandle,
    SeekableHandle,
    StreamHandle,
    TextHandle,
)
from relayfs_fuse.fs.kinds.relay import StoredBuffer
from relayfs_fuse.fs.kinds.ring import RingHandle, StoredRing
from relayfs_fuse.fs.nodes import (
    ControlFile,
    CounterNamesFile,
    CountersFile,
    ErrorLogFile,
    JoinFile,
    LostFile,
    MappedFile,
    MetadataFile,
    TextFile,
)
from relayfs_fuse.fs.requests.mapped import Mapped
from relayfs_fuse.fs.requests.names import NameOperations, guarded
from relayfs_fuse.fs.requests.opener import opener_of, process_of
from relayfs_fuse.fs.requests.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.channel import Commands
    from relayfs_fuse.fs.commands.jobs import LineWork
    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.nodes import Directory, Mappable, Node
    from relayfs_fuse.fs.requests.opener import Opener
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.watch import Tracing
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.fs.upkeep import Flushing

log = logging.getLogger(__name__)

BACKING_XATTR = b"user.relayfs.backing"
# As files are named after it.
TOKEN = re.compile(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}")
# Of `.traces/control`: which process asks, in the server's PID namespace; 0: it cannot be seen from there.
PID_XATTR = b"user.relayfs.pid"
# Of `join`: a token and a request, from processes that may not write to files (RLIMIT_FSIZE).
JOIN_XATTR = b"user.relayfs.join"
JOIN_REQUEST_MAX = 32768
# How long the kernel may take to finish an open that was answered.
SETTLE_S = 0.1
ALWAYS_READY = select.POLLIN | select.POLLRDNORM | select.POLLOUT | select.POLLWRNORM


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
        self._tracing = tracing
        self._flushing = flushing
        self._counters = counters
        if counters is not None:
            self.requests = counters.requests
        self._commands = commands
        self._streams = streams
        self._handles: dict[int, Handle] = {}
        self._joining: dict[int, JoinHandle] = {}
        self._memories: dict[int, MemHandle] = {}
        self._mapped = Mapped()
        self._turns = Turns()
        self._joins = Turns()

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
        if not isinstance(self._node(inode), JoinFile) or name != JOIN_XATTR:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        token, request = value[:TOKEN_BYTES], value[TOKEN_BYTES:]
        for fh, handle in self._joining.items():
            if handle.token == token:
                await self._ask(fh, handle, request)
                return
        raise pyfuse3.FUSEError(errno.EBADF)

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
        handle = self._new_handle()
        if isinstance(node, DamagedFile):
            raise pyfuse3.FUSEError(errno.EBADMSG)
        if isinstance(node, RelayFile) and flags & os.O_ACCMODE != os.O_WRONLY:
            await self._flushing.before_open(node.stored.channel)
        stream = isinstance(node, RelayFile) and await self._is_stream(node, flags, handle)
        if node.removed and isinstance(node, BufferFile):
            raise pyfuse3.FUSEError(errno.ESTALE)
        kind = StreamHandle if stream else SeekableHandle
        self._budget.hold(handle, 0, request.uid)
        try:
            if isinstance(node, HoldFile):
                opened: Handle = HoldHandle(node, opener_of(request))
            else:
                opened = self._open(handle, node, flags, request, kind)
        except BaseException:
            self._budget.release(handle)
            raise
        self._handles[handle] = opened
        # Who opens a relay file only to read hardly ever maps it.
        both = flags & os.O_ACCMODE == os.O_RDWR
        if isinstance(opened, MemHandle) or (isinstance(opened, SeekableHandle) and both):
            self._mapped.opened(handle, opened.stored, request.pid)
        if isinstance(opened, StreamHandle | RingHandle):
            tap.open_stream(request.unique)
        elif backing := self._backing_of(node):
            tap.open_backed(request.unique, backing)
        return pyfuse3.FileInfo(fh=handle, direct_io=True, keep_cache=False)

    async def release(self, fh: int) -> None:
        """Close a file."""
        handle = self._handles.pop(fh, None)
        self._joining.pop(fh, None)
        if isinstance(handle, HoldHandle):
            self._budget.release(fh)
            fh, handle = handle.held.number, handle.held
        if isinstance(handle, MemHandle):
            handle.n_open -= 1
            if handle.n_open:
                return
            del self._memories[handle.token]
            if handle.hold is not None:
                self._tree.note_outdated(*handle.hold)
        self._mapped.closed(fh)
        self._budget.release(fh)
        if isinstance(handle, JoinHandle):
            await self._leave(handle)
        if isinstance(handle, TextHandle) or handle is None:
            return
        self._streams.waiting.forget(handle.stored, fh)
        if isinstance(handle.stored, StoredBuffer):
            handle.stored.mappable.discard(fh)
        if isinstance(handle, MemHandle):
            handle.stored.buffer.resolve(handle.token)
            self._streams.waiting.tell(handle.stored)
        else:
            await self._streams.close(handle)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read."""
        request = tap.request()
        while terminal := tap.next_terminal():
            asked = self._handles.get(terminal)
            if isinstance(asked, SeekableHandle):
                asked.by_line = True
        handle = self._handles[fh]
        if isinstance(handle, RelayHandle | RingHandle):
            data = await self._streams.read(handle, off, size, request)
        elif isinstance(handle, TextHandle) and isinstance(handle.node, MetadataFile):
            # It takes long where much is declared: others are served meanwhile, and each user has one thread.
            async with self._joins.of(handle.opener.uid):
                data = await trio.to_thread.run_sync(handle.read, off, size)
        else:
            data = handle.read(off, size)
        self._keep(fh, handle)
        return data

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write a record, or commands."""
        request = tap.request()
        handle = self._handles[fh]
        if isinstance(handle, RelayHandle | RingHandle):
            await self._streams.write(handle, buf, request)
            if isinstance(handle, SeekableHandle):
                handle.written = off + len(buf)
        elif isinstance(handle, JoinHandle):
            await self._ask(fh, handle, bytes(buf))
            handle.asked(off + len(buf))
        elif isinstance(handle, TextHandle) and isinstance(handle.node, CounterNamesFile):
            await self._change_counters(buf, handle.opener)
        elif isinstance(handle, TextHandle) and isinstance(handle.node, ControlFile):
            await self._command(buf, handle.opener)
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
        waiting = self._streams.waiting
        if isinstance(handle, RingHandle):
            events = waiting.poll(handle.stored, fh, poll_handle, skips=handle.reads)
            return events | (READABLE if handle.is_inside else 0)
        return waiting.poll(handle.stored, fh, poll_handle, by_mem=isinstance(handle, MemHandle))

    # ---------------------------------------------------------------- helpers

    def _keep(self, fh: int, handle: Handle) -> None:
        """Let an open file keep what it gave; a text that is too much cannot be read, other data not again."""
        if isinstance(handle, TextHandle | SeekableHandle):
            try:
                self._budget.hold(fh, handle.kept_bytes)
            except OSError:
                handle.drop_kept()
                self._budget.hold(fh, 0)
                if isinstance(handle, TextHandle):
                    raise

    async def _is_stream(self, node: RelayFile, flags: int, handle: int) -> bool:
        """Tell whether a relay file is opened as a stream: where readers wait, unless somebody may map it.

        A stream cannot be mapped. Who opens to map, opens for both, or, as he never sleeps, with O_NONBLOCK. While such
        a file is open, the kernel refuses all others to be streams, also one that has been answered, but whose opener
        has not run since.
        """
        stored = node.stored
        if not isinstance(stored, StoredBuffer):
            return True
        if stored.channel.stats.read != native.READ_WAIT:
            return False
        never_sleeps = flags & os.O_ACCMODE == os.O_RDONLY and flags & os.O_NONBLOCK
        maps = flags & os.O_ACCMODE == os.O_RDWR or never_sleeps or stored.mappable
        if not (maps and self._backing_of(node)):
            stored.last_stream = trio.current_time()
            return True
        stored.mappable.add(handle)
        await trio.sleep_until(stored.last_stream + SETTLE_S)
        return False

    def _unlisted(self, parent: Directory, name: str) -> Node | None:
        """Find what keeps a memory file open, which only its opener can name: memN.TOKEN."""
        mem_name, _, token = name.partition(".")
        node = parent.children.get(mem_name)
        if not isinstance(node, MemFile) or not TOKEN.fullmatch(token):
            return None
        held = self._memories.get(int(token, 16))
        if held is None or held.stored is not node.stored:
            return None
        hold = HoldFile(name, held)
        self._tree.attach_unlisted(parent, hold)
        held.hold = parent.path, name
        return hold

    def _open(
        self, handle: int, node: Node, flags: int, request: tap.Request, kind: type[StreamHandle | SeekableHandle]
    ) -> Handle:
        if isinstance(node, RelayFile):
            stored, reads = node.stored, flags & os.O_ACCMODE != os.O_WRONLY
            if isinstance(stored, StoredRing):
                return RingHandle(stored, request.pid, reads)
            assert isinstance(stored, StoredBuffer)
            opened = kind(stored, stored.stats(), request.pid)
            if reads:
                stored.readers.append(opened)
            return opened
        if isinstance(node, MemFile):
            if flags & os.O_TRUNC:
                raise pyfuse3.FUSEError(errno.EPERM)
            memory = MemHandle(node.stored, handle, opener_of(request))
            self._memories[memory.token] = memory
            return memory
        assert isinstance(node, TextFile)
        if isinstance(node, JoinFile):
            self._joining[handle] = joining = JoinHandle(node, opener_of(request))
            return joining
        if isinstance(node, MappedFile):
            allowed = (os.O_RDONLY, os.O_RDWR if node.is_writable else os.O_RDONLY)
            if flags & os.O_TRUNC or flags & os.O_ACCMODE not in allowed:
                raise pyfuse3.FUSEError(errno.EACCES)
        if isinstance(node, LostFile) and (flags & os.O_TRUNC or flags & os.O_ACCMODE != os.O_RDWR):
            raise pyfuse3.FUSEError(errno.EACCES)
        if isinstance(node, CounterFile):
            return CounterFileHandle(node, opener_of(request))
        if isinstance(node, CountersFile):
            node.refresh()
        if isinstance(node, ErrorLogFile) and flags & os.O_TRUNC:
            self._errors.clear()
        return TextHandle(node, opener_of(request))

    def _backing_of(self, node: Node) -> int:
        """Return the kernel's number of the file that an open file is to be mapped from; 0: it cannot be mapped.

        It is registered once, because all opens of an inode need the same registration.
        """
        mappable = node.mappable() if tap.has_passthrough() else None
        if mappable is None:
            return 0
        if mappable.backing is None:
            mappable.backing = self._register(mappable)
        return mappable.backing

    def _register(self, mappable: Mappable) -> int:
        """Register a file to be mapped; 0: it cannot be."""
        try:
            if mappable.is_writable:
                self._store.protection.add(mappable.descriptor)
            return tap.backing_open(mappable.descriptor)
        except OSError as error:
            log.warning("%s cannot be mapped through the mount: %s", mappable.backing_path, error.strerror)
        return 0

    async def _change_counters(self, text: bytes, opener: Opener) -> None:
        """Carry out what was written to counters.names; a line that is refused ends it."""
        counters = self._counters
        assert counters is not None
        line = ""
        try:
            async with self._turns.of(opener.uid):
                for line in split_write(text):
                    await trio.to_thread.run_sync(counters.change, line, opener.uid, opener.groups)
        except CommandError as error:
            log.info("%s", self._errors.error(line, error))
            raise

    async def _ask(self, fh: int, handle: JoinHandle, request: bytes) -> None:
        """Let a process take part in a trace, or do what it asks for as one that does."""
        if len(request) > JOIN_REQUEST_MAX:
            raise pyfuse3.FUSEError(errno.EMSGSIZE)
        if handle.is_busy:
            raise pyfuse3.FUSEError(errno.EBUSY)
        handle.is_busy = True
        try:
            # Otherwise one user's requests could take all threads of the server.
            async with self._joins.of(handle.opener.uid):
                await self._take_part(handle, request)
        finally:
            handle.is_busy = False
        if fh not in self._joining:
            await self._leave(handle)

    async def _take_part(self, handle: JoinHandle, request: bytes) -> None:
        if handle.session is not None and request.startswith(b"event {"):
            await trio.to_thread.run_sync(handle.session.declare, request)
        elif handle.session is not None and request.startswith(b"allocate "):
            await self._tracing.allocate(handle.session, os.fsdecode(request))
        else:
            await self._leave(handle)
            handle.session = await self._tracing.join(os.fsdecode(request), handle.opener)

    async def _leave(self, handle: JoinHandle) -> None:
        session, handle.session = handle.session, None
        if session is not None:
            await self._tracing.leave(session)

    async def _command(self, text: bytes, opener: Opener) -> None:
        """Carry out commands; what blocks runs in a worker thread."""
        async with self._turns.of(opener.uid):
            for line in self._commands.lines(text):
                # Others' commands, and their requests about names, come in between.
                async with self._naming:
                    removed = await self._carry_out(self._commands.run(line, opener))
                if removed is not None:
                    await self._implicit.remove_above(removed)
        # What was removed is hidden, and the kernel told of it, which tells us: not while names are kept from changing.
        await self._tracing.compare_all()

    async def _carry_out(self, work: LineWork) -> str | None:
        """Do the jobs of a command, in worker threads; return the path of a channel that it has removed."""
        try:
            job = next(work)
            while True:
                try:
                    result = await self._do(job)
                except (OSError, CommandError) as error:
                    job = work.throw(error)
                else:
                    job = work.send(result)
        except StopIteration as end:
            removed: str | None = end.value
            return removed

    async def _do(self, job: Callable[[], Any]) -> Any:
        if not isinstance(job, Patient):
            return await trio.to_thread.run_sync(job)
        self._naming.release()
        try:
            return await trio.to_thread.run_sync(job)
        finally:
            with trio.CancelScope(shield=True):
                await self._naming.acquire()


for _class in (NameOperations, Operations):
    for _name, _handler in list(vars(_class).items()):
        if inspect.iscoroutinefunction(_handler) and not _name.startswith("_"):
            setattr(_class, _name, guarded(_handler))
