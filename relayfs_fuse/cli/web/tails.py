"""Following channels and traces for clients: one thread reads the buffers for all clients that follow the same.

    thread: look, merge, write JSON lines  ---- put() ---->  a Queue for each client  ---- take() ---->  event loop

A queue has a limit. What does not fit is left out, and counted in its place in the stream, so a client that reads
slowly learns what it has missed, and neither the thread nor other clients wait for it. Nothing is consumed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from contextlib import ExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING, NamedTuple

from anyio import CapacityLimiter, to_thread

from relayfs_fuse.cli.channel import Channel, find_channel
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER, Export, Style
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup

    from relayfs_fuse.reading.records import Records

log = logging.getLogger(__name__)

TAILS_MAX = 16
STREAMS_MAX = 64
# Bytes of lines that wait for one client.
QUEUE_BYTES = 1 << 20
# How old an event is when it is sent, so that earlier ones have been written.
_DELAY_NS = 200_000_000
_LOOK_S = 0.025
# How many messages for users a new client gets of those from before.
_SAID_MAX = 20


class Followed(NamedTuple):
    """What a client follows.

    sort: trace or channel
    """

    sort: str
    name: str


class Missed(NamedTuple):
    """So many lines were left out here."""

    n_lines: int


class Said(NamedTuple):
    """A message for users, as that a process has damaged its memory."""

    text: str


class Ended(NamedTuple):
    """Nothing will follow, and why."""

    why: str


class Queue:
    """What waits for one client. The constructor and wait() are for the event loop, put() for any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._lock = threading.Lock()
        self._items: deque[bytes | Missed | Said | Ended] = deque()
        self._n_bytes = 0

    def put(self, item: bytes | Said | Ended) -> None:
        """Add JSON lines, which are whole, or another item."""
        with self._lock:
            was_empty = not self._items
            n_bytes = _bytes_of(item)
            if not n_bytes or not self._n_bytes or self._n_bytes + n_bytes <= QUEUE_BYTES:
                self._items.append(item)
                self._n_bytes += n_bytes
            else:
                last = self._items[-1]
                missed = last.n_lines if isinstance(last, Missed) else 0
                if missed:
                    self._items.pop()
                self._items.append(Missed(missed + (item.count(b"\n") if isinstance(item, bytes) else 1)))
        if was_empty:
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> bytes | Missed | Said | Ended:
        """Wait for the next item, and remove it."""
        while True:
            with self._lock:
                if self._items:
                    item = self._items.popleft()
                    self._n_bytes -= _bytes_of(item)
                    return item
                self._event.clear()
            await self._event.wait()


class Tail(Closing):
    """Follow a channel or trace, from now on, for some queues.

    store: the store's directory

    RelayError, OSError: it does not exist, has no times, or cannot be read
    """

    def __init__(self, store: str, followed: Followed) -> None:
        self.followed = followed
        self._queues: set[Queue] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        # What queues that are added later are told, too.
        self._said: deque[Said] = deque(maxlen=_SAID_MAX)
        self._ended: Ended | None = None
        with ExitStack() as stack:
            self._live: Live | Records
            if followed.sort == "trace":
                source = stack.enter_context(closing(Source(followed.name, store)))
                wanted = Wanted(since=source.now(), share=TAILS_MAX)
                self._live = stack.enter_context(Live(source, wanted, self._say, consumes=False))
            else:
                channel = find_channel_in(store, followed.name)
                self._live = stack.enter_context(channel.records(time.time_ns(), self._say))
            style = Style("json" if followed.sort == "trace" else "records.json")
            self._exporter = stack.enter_context(closing(Export(self._live.merged, style)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    def add(self, queue: Queue) -> None:
        """Have a queue get what is found from now on."""
        with self._lock:
            self._queues.add(queue)
            for said in self._said:
                queue.put(said)
            if self._ended is not None:
                queue.put(self._ended)

    def remove(self, queue: Queue) -> bool:
        """Forget a queue; return whether there is none any more."""
        with self._lock:
            self._queues.discard(queue)
            return not self._queues

    def stop(self, why: str) -> None:
        """Have run() return."""
        self._give(Ended(why))
        self._stopped.set()

    def run(self) -> None:
        """Read until stop(), or the channel or trace was removed; close this."""
        with self:
            try:
                while not self._stopped.is_set() and self._step():
                    if not self._live.merged.is_behind:
                        self._stopped.wait(_LOOK_S)
                self._give(Ended(f"the {self.followed.sort} {self.followed.name} was removed"))
            except OSError as error:
                self._give(Ended(f"{self.followed.name}: {reason(error)}"))
            except RelayError as error:
                self._give(Ended(str(error)))
            except Exception as error:
                # Other channels and traces are followed on.
                log.exception("%s", self.followed)
                self._give(Ended(f"{self.followed.name}: relayctl serve has failed: {error!r}"))

    def _step(self) -> bool:
        looked = self._live.look()
        self._live.merged.limit(looked if looked == EVER else looked - _DELAY_NS)
        for piece in self._exporter.pieces():
            self._give(bytes(piece))
            if self._stopped.is_set():
                break
        return self._live.tick()

    def _say(self, line: str) -> None:
        self._give(Said(line))

    def _give(self, item: bytes | Said | Ended) -> None:
        with self._lock:
            if isinstance(item, Said):
                self._said.append(item)
            elif isinstance(item, Ended):
                self._ended = item
            for queue in self._queues:
                queue.put(item)


def _bytes_of(item: bytes | Missed | Said | Ended) -> int:
    """Return by how much it fills a queue. The last item has always room, and what is missing takes none."""
    if isinstance(item, bytes):
        return len(item)
    return len(item.text) if isinstance(item, Said) else 0


def find_channel_in(store: str, path: str) -> Channel:
    """Find a channel by its path; RelayError: there is none."""
    channel = find_channel(path, None, store)
    if channel is None:
        raise RelayError(f"{path} is a trace, and no channel")
    return channel


class Tails:
    """All that is followed now; used in the event loop.

    store: the store's directory
    group: the tasks of the threads that read
    """

    def __init__(self, store: str, group: TaskGroup) -> None:
        self._store = store
        self._group = group
        self._tails: dict[Followed, Tail] = {}
        # Some threads are just ending.
        self._limiter = CapacityLimiter(2 * TAILS_MAX)
        self._n_opening = 0
        self._is_closed = False
        self.n_streams = 0

    @asynccontextmanager
    async def following(self, followed: Followed) -> AsyncIterator[Queue]:
        """Give a queue of what is found from now on; when the last client has left, let go of all buffers.

        RelayError, OSError: see Tail. BusyError: too much is followed
        """
        if self.n_streams >= STREAMS_MAX:
            raise BusyError(f"{self.n_streams} clients follow channels and traces, which is as many as there may be")
        self.n_streams += 1
        try:
            tail = await self._tail(followed)
            queue = Queue()
            tail.add(queue)
            try:
                yield queue
            finally:
                if tail.remove(queue):
                    tail.stop("nobody follows it")
                    self._forget(tail)
        finally:
            self.n_streams -= 1

    def stop(self) -> None:
        """End all streams, and all to come."""
        self._is_closed = True
        for tail in self._tails.values():
            tail.stop("relayctl serve ends")

    async def _tail(self, followed: Followed) -> Tail:
        while (tail := self._tails.get(followed)) is None:
            if self._is_closed or len(self._tails) + self._n_opening >= TAILS_MAX:
                raise BusyError(
                    f"{len(self._tails)} channels and traces are followed, which is as many as there may be"
                )
            self._n_opening += 1
            try:
                tail = await to_thread.run_sync(Tail, self._store, followed, limiter=self._limiter)
            finally:
                self._n_opening -= 1
            if followed in self._tails or self._is_closed:
                tail.close()  # another client was sooner, or it is too late
            else:
                self._tails[followed] = tail
                self._group.start_soon(self._run, tail)
        return tail

    async def _run(self, tail: Tail) -> None:
        await to_thread.run_sync(tail.run, limiter=self._limiter)
        self._forget(tail)

    def _forget(self, tail: Tail) -> None:
        if self._tails.get(tail.followed) is tail:
            del self._tails[tail.followed]


class BusyError(RelayError):
    """There are as many clients as are allowed."""
