"""A viewer's attachment to a trace: a task has worker threads read it until _QUEUED_MAX bytes wait for the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from relayfs_fuse.errors import RelayError
from relayfs_fuse.lttng_live.viewer import Viewer
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.lttng_live.rounds import AnyRounds, Shown

Result = TypeVar("Result")

# How many bytes wait for a viewer when no more is read for it.
_QUEUED_MAX = 32 << 20
# The pause after a step that has read everything in the buffers.
LOOK_S = 0.025
# How many worker threads read buffers.
_THREADS = 2


class Threads:
    """The worker threads of a server."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def run(self, act: Callable[[], Result]) -> Result:
        """Call a function that may block in one of them."""
        return await trio.to_thread.run_sync(act, limiter=self._limiter)


class Attachment:
    """Read a trace for a viewer.

    trace: what is read
    begin: makes its Rounds; may block
    viewer: answers the viewer's commands
    say: called with a line for users when something goes wrong
    has_begun: whether the buffers are being read, so that events written from now on will be shown
    """

    def __init__(
        self, trace: Shown, begin: Callable[[], AnyRounds], threads: Threads, say: Callable[[str], None]
    ) -> None:
        self.trace = trace
        self.viewer = Viewer()
        self.has_begun = False
        self._begin = begin
        self._threads = threads
        self._say = say
        self._scope = trio.CancelScope()
        self._room = trio.Event()

    def leave(self) -> None:
        """End the task."""
        self._scope.cancel()

    def note_taken(self) -> None:
        """Wake the task if it waits for room: the viewer has sent a command whose answer takes data from the queue."""
        self._room.set()

    async def run(self, *, task_status: trio.TaskStatus[bool]) -> None:
        """Read until the trace has been removed; return after leave(). Tells task_status whether it can be read."""
        try:
            rounds = await self._threads.run(self._begin)
        except (OSError, RelayError) as error:
            self._complain(error)
            task_status.started(False)
            return
        self.has_begun = True
        with self._scope:
            task_status.started(True)
            await self._read_and_close(rounds)
            await trio.sleep_forever()  # the viewer takes the rest

    async def _read_and_close(self, rounds: AnyRounds) -> None:
        try:
            await self._read(rounds)
        except OSError as error:
            self._complain(error)
            self.viewer.end()
        finally:
            with trio.CancelScope(shield=True):
                await self._threads.run(rounds.close)

    async def _read(self, rounds: AnyRounds) -> None:
        while True:
            while self.viewer.queued >= _QUEUED_MAX:
                self._room = trio.Event()
                await self._room.wait()
            found = await self._threads.run(rounds.step)
            if found is not None:
                self.viewer.add(found)
                if found.is_over:
                    return
            if not rounds.has_more:
                await trio.sleep(LOOK_S)

    def _complain(self, error: Exception) -> None:
        why = reason(error) if isinstance(error, OSError) else str(error)
        self._say(f"{self.trace.name} cannot be shown to a viewer: {why}")
