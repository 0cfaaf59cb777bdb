"""What open files ask for that takes time: it is done in worker threads, or in turn with others.

Handles (kinds/handles.py) and nodes (nodes.py) decide what a request does; they call this to have it done.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands.control import split_write
from relayfs_fuse.fs.commands.jobs import Patient
from relayfs_fuse.fs.requests.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.channel import Commands
    from relayfs_fuse.fs.commands.jobs import LineWork
    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.implicit import ImplicitDirectories
    from relayfs_fuse.fs.kinds.handles import JoinHandle
    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.traces.watch import Tracing

log = logging.getLogger(__name__)

JOIN_REQUEST_MAX = 32768

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Acts:
    """Do it.

    streams, commands, counters, tracing, errors: what does it, and where is said what was refused
    naming: is held while names come and go
    implicit: removes directories above a channel that has gone
    """

    streams: Streams
    commands: Commands
    counters: Counters | None
    tracing: Tracing
    errors: ErrorLog
    naming: trio.Lock
    implicit: ImplicitDirectories
    _turns: Turns = field(default_factory=Turns)
    _joins: Turns = field(default_factory=Turns)

    async def in_turn(self, opener: Opener, act: Callable[[], Result]) -> Result:
        """Do what takes long in a worker thread; otherwise one user's requests could take all threads of the server."""
        async with self._joins.of(opener.uid):
            return await trio.to_thread.run_sync(act)

    async def change_counters(self, text: bytes, opener: Opener) -> None:
        """Carry out what was written to counters.names; a line that is refused ends it."""
        counters = self.counters
        assert counters is not None
        line = ""
        try:
            async with self._turns.of(opener.uid):
                for line in split_write(text):
                    await trio.to_thread.run_sync(counters.change, line, opener.uid, opener.groups)
        except CommandError as error:
            log.info("%s", self.errors.error(line, error))
            raise

    async def ask(self, handle: JoinHandle, request: bytes) -> None:
        """Let a process take part in a trace, or do what it asks for as one that does."""
        if len(request) > JOIN_REQUEST_MAX:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if handle.is_busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        handle.is_busy = True
        try:
            # Otherwise one user's requests could take all threads of the server.
            async with self._joins.of(handle.opener.uid):
                await self._take_part(handle, request)
        finally:
            handle.is_busy = False
        if handle.is_closed:
            await self.leave(handle)

    async def _take_part(self, handle: JoinHandle, request: bytes) -> None:
        if handle.session is not None and request.startswith(b"event {"):
            await trio.to_thread.run_sync(handle.session.declare, request)
        elif handle.session is not None and request.startswith(b"allocate "):
            await self.tracing.allocate(handle.session, os.fsdecode(request))
        else:
            await self.leave(handle)
            handle.session = await self.tracing.join(os.fsdecode(request), handle.opener)

    async def leave(self, handle: JoinHandle) -> None:
        """Let a process take part no longer."""
        session, handle.session = handle.session, None
        if session is not None:
            await self.tracing.leave(session)

    async def command(self, text: bytes, opener: Opener) -> None:
        """Carry out commands; what blocks runs in a worker thread."""
        async with self._turns.of(opener.uid):
            for line in self.commands.lines(text):
                # Others' commands, and their requests about names, come in between.
                async with self.naming:
                    removed = await self._carry_out(self.commands.run(line, opener))
                if removed is not None:
                    await self.implicit.remove_above(removed)
        # What was removed is hidden, and the kernel told of it, which tells us: not while names are kept from changing.
        await self.tracing.compare_all()

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
        self.naming.release()
        try:
            return await trio.to_thread.run_sync(job)
        finally:
            with trio.CancelScope(shield=True):
                await self.naming.acquire()
