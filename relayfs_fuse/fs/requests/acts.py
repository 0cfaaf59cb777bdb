"""Requests that handles and nodes pass to worker threads: commands, changes of counters, requests of traced programs.

Handles (kinds/handles.py) and nodes (nodes.py) decide what a request does, and call the methods of Acts. Of each user
one such request is carried out at a time, so that one user cannot occupy all worker threads.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from relayfs_fuse.errors import CommandError, failure
from relayfs_fuse.fs.commands.control import split_write
from relayfs_fuse.fs.commands.jobs import Effect, LongJob
from relayfs_fuse.fs.requests.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.channel import Commands
    from relayfs_fuse.fs.commands.jobs import LineWork
    from relayfs_fuse.fs.counters import Counters
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.implicit import ImplicitDirectories
    from relayfs_fuse.fs.kinds.handles import JoinHandle
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.requests.journal import Entry, Journal
    from relayfs_fuse.fs.requests.merging import Merging
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.traces.watch import Tracing

log = logging.getLogger(__name__)

JOIN_REQUEST_MAX = 32768

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Acts:
    """Everything that handles and nodes need from the server.

    streams: reads and writes relay files
    merging: feeds the files `merged` of traces
    commands, counters, tracing: carry out commands and requests; counters is None if they cannot be used
    errors: error_log
    notes: for the next server, if this one dies
    journal: of these, those on commands
    naming: the lock that is held while names are added or removed
    implicit: removes directories above a removed channel
    loaded: is set when all channels of the store are loaded, which tells what names and memory are free
    """

    streams: Streams
    merging: Merging
    commands: Commands
    counters: Counters | None
    tracing: Tracing
    errors: ErrorLog
    notes: Notes
    journal: Journal
    naming: trio.Lock
    implicit: ImplicitDirectories
    loaded: trio.Event
    _turns: Turns = field(default_factory=Turns)
    _joins: Turns = field(default_factory=Turns)

    async def in_turn(self, opener: Opener, act: Callable[[], Result]) -> Result:
        """Call a function in a worker thread, once the user's earlier requests are done; return what it returns."""
        async with self._joins.of(opener.uid):
            return await trio.to_thread.run_sync(act)

    async def change_counters(self, text: bytes, opener: Opener, unique: int) -> None:
        """Carry out the lines written to counters.names; CommandError: the first line that was refused."""
        counters = self.counters
        assert counters is not None
        await self.loaded.wait()
        line = ""
        entry = self.journal.open(unique)

        def change(line: str) -> None:
            try:
                counters.change(line, opener.uid, opener.groups)
            except CommandError as error:
                if not (was_begun and error.errno in (errno.EEXIST, errno.ENOENT)):
                    raise
            entry.n_done += 1

        try:
            async with self._turns.of(opener.uid):
                for line in split_write(text)[entry.n_done :]:
                    was_begun = entry.was_begun
                    entry.begin()
                    await trio.to_thread.run_sync(change, line)
        except CommandError as error:
            log.info("%s", self.errors.error(line, error))
            raise
        finally:
            counters.told()
            self.journal.close(unique)

    async def ask(self, handle: JoinHandle, request: bytes) -> None:
        """Carry out what a process wrote to `join`: take part in a trace, declare an event, set a state, and so on.

        OSError: EMSGSIZE; EBUSY, the handle's last request is not done yet. CommandError: the request was refused.
        """
        if len(request) > JOIN_REQUEST_MAX:
            raise failure(errno.EMSGSIZE)
        if handle.is_busy:
            raise failure(errno.EBUSY)
        handle.is_busy = True
        try:
            await self.loaded.wait()
            async with self._joins.of(handle.opener.uid):
                await self._take_part(handle, request)
        finally:
            handle.is_busy = False
        if handle.is_closed:
            await self.leave(handle)

    async def _take_part(self, handle: JoinHandle, request: bytes) -> None:
        if handle.session is not None and request.startswith(b"event {"):
            await trio.to_thread.run_sync(handle.session.declare, request)
        elif handle.session is not None and request.startswith(b"state "):
            await trio.to_thread.run_sync(handle.session.put_state, request)
        elif handle.session is not None and request.startswith(b"objects\n"):
            await trio.to_thread.run_sync(handle.session.add_objects, request)
        elif handle.session is not None and request.startswith(b"allocate "):
            await self.tracing.allocate(handle.session, os.fsdecode(request))
        else:
            await self.leave(handle)
            handle.session = await self.tracing.join(os.fsdecode(request), handle.opener)

    async def leave(self, handle: JoinHandle) -> None:
        """End a process's part in a trace."""
        session, handle.session = handle.session, None
        if session is not None:
            await self.tracing.leave(session)

    async def command(self, text: bytes, opener: Opener, unique: int) -> None:
        """Carry out the lines written to `control`; CommandError: the first line that was refused.

        unique: the write(2), of which a server that has died may have carried out some lines
        """
        entry = self.journal.open(unique)
        try:
            await self.loaded.wait()
            async with self._turns.of(opener.uid):
                for line in self.commands.lines(text)[entry.n_done :]:
                    begun = entry if entry.was_begun else None
                    # Released between lines, for other users' commands, mkdir(2) and rmdir(2).
                    async with self.naming:
                        removed = await self._carry_out(self.commands.run(line, opener, begun), entry)
                    if removed is not None:
                        await self.implicit.remove_above(removed)
                    entry.n_done += 1
            # This makes and removes directories through the mount, whose handlers wait for `naming`.
            await self.tracing.compare_all()
        finally:
            self.journal.close(unique)

    async def _carry_out(self, work: LineWork, entry: Entry) -> str | None:
        """Run the jobs that a command yields; return the path of the channel that it has removed, or None."""
        try:
            job = next(work)
            while True:
                if isinstance(job, Effect):
                    entry.begin(job.before)
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
        """Call a job in a worker thread; if it is a LongJob, without holding `naming`."""
        if not isinstance(job, LongJob):
            return await trio.to_thread.run_sync(job)
        self.naming.release()
        try:
            return await trio.to_thread.run_sync(job)
        finally:
            with trio.CancelScope(shield=True):
                await self.naming.acquire()
