"""The server of LTTng's live protocol: who is connected, and which traces there are.

A session of the protocol is a trace, or recordings. Each attached viewer reads the buffers for itself, so none delays
another. For a viewer that fetches nothing a limited number of bytes is kept; events that are overwritten after that
count as lost.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from relayfs_fuse import native
from relayfs_fuse.lttng_live import messages
from relayfs_fuse.lttng_live.attachment import LOOK_S, Attachment, Threads
from relayfs_fuse.lttng_live.connection import Connection
from relayfs_fuse.lttng_live.messages import Attach
from relayfs_fuse.lttng_live.recorded import GrowingRounds, RecordedRounds
from relayfs_fuse.lttng_live.rounds import ROUND_S, VIEWERS_MAX, Rounds
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.lttng_live.rounds import AnyRounds, Shown
    from relayfs_fuse.native.trace import Trace

# The most connections, more than VIEWERS_MAX. To accept one more, that one of the connections which are not attached to
# a trace is closed that has been idle longest, if it was idle for _IDLE_S.
_CONNECTIONS_MAX = 32
_IDLE_S = 30.0
# How often the server checks whether the trace still exists.
_TICK_S = 0.5
# How long viewers have to fetch the rest of a trace that was removed.
_REST_S = 30.0


class Served(Protocol):
    """What viewers may see."""

    @property
    def is_endless(self) -> bool:
        """Whether there may be something to see when nothing is there now."""

    def all(self) -> Sequence[Shown]:
        """Return what viewers can attach to now."""

    def n_streams(self, shown: Shown) -> int:
        """Return about how many streams it has."""

    def rounds(self, shown: Shown, *, is_whole: bool) -> AnyRounds:
        """Begin to show it; is_whole: with what is there already. May block. OSError, RelayError: it cannot be read."""

    def say(self, line: str, /) -> None:
        """Tell users when something goes wrong."""


@dataclass(frozen=True)
class ServedTraces:
    """The traces of a store.

    store: directory of the store
    only: the only trace that viewers may see; None: all
    delay_ns: see Rounds
    say: called with a line for users when something goes wrong
    """

    store: str
    only: Trace | None
    delay_ns: int
    say: Callable[[str], None]

    @property
    def is_endless(self) -> bool:
        """Whether others may be made."""
        return self.only is None

    def all(self) -> list[Trace]:
        """Return the traces that exist now; if the control file cannot be read, report that and return none."""
        try:
            with closing(Traces(control_in_store(self.store))) as traces:
                found = list(traces.all().values())
        except OSError as error:
            self.say(f"the traces of {self.store} cannot be read: {reason(error)}")
            return []
        return [trace for trace in found if self.only is None or trace.id == self.only.id]

    def n_streams(self, shown: Shown) -> int:
        """Return how many streams its processes may have."""
        try:
            names = os.listdir(os.path.join(self.store, shown.name))
        except FileNotFoundError:  # it is being removed
            names = []
        return native.n_possible_cpus() * sum(not name.startswith(".") for name in names)

    def rounds(self, shown: Shown, *, is_whole: bool) -> AnyRounds:
        """Begin to read a trace."""
        return Rounds(self.store, shown, self.delay_ns, is_whole=is_whole, say=self.say)


@dataclass(frozen=True)
class ServedRecordings:
    """Recordings, which are one session; a viewer sees all that they have.

    directories: as for RecordedRounds
    name: of the session
    delay_ns: as for GrowingRounds; None: a viewer sees what they have when it attaches, and that is the end
    say: called with a line for users when something goes wrong
    """

    directories: tuple[str, ...]
    name: str
    delay_ns: int | None
    say: Callable[[str], None]
    id: int = 1
    is_endless: bool = True

    def all(self) -> list[Shown]:
        """Return the session."""
        return [self]

    def n_streams(self, shown: Shown) -> int:  # noqa: ARG002  # as of traces
        """Return 1: how many there are is known when they are read."""
        return 1

    def rounds(self, shown: Shown, *, is_whole: bool) -> AnyRounds:  # noqa: ARG002  # as of traces
        """Begin to read them, from the beginning: nothing is written to them later than it was recorded."""
        if self.delay_ns is None:
            return RecordedRounds(self.directories)
        return GrowingRounds(self.directories, self.delay_ns, self.say)


class Server:
    """Serve viewers until nothing can be seen any more; if that cannot be, until cancelled."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._threads = Threads()
        self._host = os.uname().nodename
        self._attached: list[Attachment] = []
        self._connections: list[Connection] = []
        self._n_connections = 0

    async def run(self, listeners: list[trio.SocketListener]) -> None:
        """Serve; the listeners are closed in the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            while self._served.is_endless or await self._has_any():
                await trio.sleep(_TICK_S)
            with trio.move_on_after(_REST_S):
                while self._attached:
                    await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        if len(self._connections) >= _CONNECTIONS_MAX:
            oldest = min(self._connections, key=lambda one: (one.is_attached, one.asked))
            if trio.current_time() - oldest.asked < _IDLE_S:
                await stream.aclose()
                return
            oldest.scope.cancel()
        self._n_connections += 1
        connection = Connection(self, stream, self._n_connections)
        self._connections.append(connection)
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)

    async def _has_any(self) -> bool:
        return bool(await self._threads.run(self._served.all))

    # --- what viewers can attach to ---

    async def sessions(self) -> list[messages.Session]:
        """Return what can be attached to."""
        return await self._threads.run(self._sessions)

    def _sessions(self) -> list[messages.Session]:
        return [self._session(shown) for shown in self._served.all()]

    def _session(self, shown: Shown) -> messages.Session:
        n_clients = sum(one.has_begun and one.trace.id == shown.id for one in self._attached)
        timer_us = round(ROUND_S * 1_000_000)
        n_streams = self._served.n_streams(shown)
        return messages.Session(shown.id, timer_us, n_clients, n_streams, self._host, shown.name)

    async def attach(self, session: int, is_whole: bool, nursery: trio.Nursery) -> Attachment | Attach:
        """Attach a viewer to what has this id, until the nursery ends; else return why it is refused."""
        there = await self._threads.run(self._served.all)
        shown = next((one for one in there if one.id == session), None)
        if shown is None:
            return Attach.UNKNOWN
        if len(self._attached) >= VIEWERS_MAX:
            return Attach.ALREADY
        begin = partial(self._served.rounds, shown, is_whole=is_whole)
        attached = Attachment(shown, begin, self._threads, self._served.say)
        self._attached.append(attached)
        is_read = await nursery.start(self._hold, attached)
        return attached if is_read else Attach.UNKNOWN

    async def _hold(self, attached: Attachment, *, task_status: trio.TaskStatus[bool]) -> None:
        try:
            await attached.run(task_status=task_status)
        finally:
            self._attached.remove(attached)
