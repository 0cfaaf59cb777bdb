"""The tasks of the server that keep its traces up to date, and the requests of traced processes.

When the directory of a traced process appears in the store or goes, inotify(7) wakes a task, which compares the store
with what the mount shows, and adds and removes directories (requests/announcements.py). An inotify event only
says that a trace is to be compared, so it does no harm if the kernel drops such events. A second task calls
Traces.tidy() every second.
"""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.fs.supervise import keep, tick
from relayfs_fuse.fs.traces.sessions import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.requests.announcements import Announcements
    from relayfs_fuse.fs.traces.registry import Traces
    from relayfs_fuse.fs.traces.sessions import Session
    from relayfs_fuse.fs.traces.triggers import Triggers

log = logging.getLogger(__name__)

# The pause of the task that calls Traces.tidy().
TIDY_S = 1.0
# The pause after a comparison, so that many processes which start one after the other are shown together.
GATHER_S = 0.01


class Tracing:
    """The tasks, and the requests of traced processes.

    traces: the registry; None: the traces of this store cannot be used
    triggers: the triggers of these traces
    announcements: adds directories to the mount and removes them
    """

    def __init__(self, traces: Traces | None, triggers: Triggers | None, announcements: Announcements) -> None:
        self._traces = traces
        self._triggers = triggers
        self.announcements = announcements
        self._comparing = trio.Lock()

    async def run(self) -> None:
        """Run the tasks until cancelled."""
        if self._traces is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep, partial(self._watch, self._traces), "watching traces")
                nursery.start_soon(keep, partial(self._tidy, self._traces), "tidying traces")
                if self._triggers is not None:
                    nursery.start_soon(keep, self._triggers.run_process, "evaluating triggers")

    async def join(self, line: str, opener: Opener) -> Session:
        """Let a process take part in a trace, and show its directory; CommandError, OSError.

        line: what it wrote to `join`; see Traces.join()
        """
        if self._traces is None:
            raise CommandError(errno.ENOENT, "this store has no traces")
        name, make = self._traces.join(line, opener)
        session = await trio.to_thread.run_sync(make)
        await self.compare(name)
        return session

    async def allocate(self, session: Session, request: str) -> None:
        """Allocate the memory of one of a process's buffers; see Traces.allocate()."""
        if self._traces is not None:
            await trio.to_thread.run_sync(self._traces.allocate(session, request))

    def reclaim(self, directory: str, image: Sequence[Any]) -> Session | None:
        """Return the session of a process, inherited from a dead server; None: it has ended.

        image: as Image
        """
        return None if self._traces is None else self._traces.sessions.reclaim(directory, Image(*image))

    async def leave(self, session: Session) -> None:
        """End a process's part in a trace."""
        if self._traces is not None:
            await trio.to_thread.run_sync(self._traces.sessions.close, session)

    async def compare(self, name: str) -> None:
        """Compare the directories of a trace in the store with those that the mount shows, and change the latter.

        The caller must not hold the lock of names, because this makes and removes directories through the mount.
        """
        traces = self._traces
        if traces is None:
            return
        async with self._comparing:
            if name in traces.hidden():
                await self.announcements.make("", {name: partial(traces.show_trace, name)})
            new, gone = traces.changes(name)
            if gone:
                await self.announcements.remove(name, {place: partial(traces.hide, name, place) for place in gone})
            if new:
                await self.announcements.make(name, {place: partial(traces.show, name, place) for place in new})
            if name in traces.removed():
                await self.announcements.remove("", {name: partial(traces.forget, name)})

    async def compare_all(self) -> None:
        """Call compare() for all traces that were made or removed and are not shown so yet."""
        if self._traces is not None:
            for name in self._traces.hidden() | self._traces.removed():
                await self.compare(name)

    async def _watch(self, traces: Traces) -> None:
        while True:
            await trio.lowlevel.wait_readable(traces.inotify.fileno())
            for name in traces.touched():
                try:
                    await self.compare(name)
                except (OSError, RelayError) as error:
                    log.info("trace %s: %s", name, error)
                except Exception:
                    log.exception("trace %s", name)
            await trio.sleep(GATHER_S)

    async def _tidy(self, traces: Traces) -> None:
        while True:
            try:
                traces.note_clocks()
                traces.settle()
                if traces.names:
                    await trio.to_thread.run_sync(traces.tidy(), abandon_on_cancel=True)
            except OSError as error:
                log.info("traces: %s", error)
            await tick(TIDY_S)
