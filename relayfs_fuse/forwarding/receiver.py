"""Receives recordings from a NATS server: messages are written, made safe on disk, and acknowledged then.

Messages of a file are written in the order of their bytes, and packets after the metadata that they need. If a message
comes before its turn, because another receiver has the earlier ones, or had them when it was killed, these are read
from the stream: each message says which one was before it. What the stream has no more is left out, and that is said.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from relayfs_fuse.forwarding.keeping import prune
from relayfs_fuse.forwarding.names import ALL, Message, MessageError, Place, previous_of
from relayfs_fuse.forwarding.written import EarlierMissingError
from relayfs_fuse.record.full import OutputFullError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext

    from relayfs_fuse.forwarding.keeping import Bounds
    from relayfs_fuse.forwarding.server import Server, Stored
    from relayfs_fuse.forwarding.target import Target

# So many messages are asked for at once.
_BATCH = 64
_FETCH_S = 0.5
# If a receiver does not acknowledge messages in this time, they are sent again.
_ACKNOWLEDGE_S = 5.0
_UNACKNOWLEDGED_MAX = 1024
_RETRY_S = 0.2
_FULL_S = 1.0
# How long what is beyond the bounds may stay.
_PRUNE_S = 10.0
# Of so many messages in a chain of earlier ones, the bytes are kept in memory.
_CHAIN_BYTES_OF = 64
_REFUSED_SAID = 20


@dataclass
class Received:
    """What was received.

    messages, bytes: written; not those that were there already
    refused: messages that were wrong
    missing: bytes that the stream has no more
    removed: files, to make room
    """

    messages: int = 0
    bytes: int = 0
    refused: int = 0
    missing: int = 0
    removed: int = 0


@dataclass
class _Link:
    """A message in a chain of earlier ones.

    message: None: it was read, and is to be read again
    is_after: whether those before it were looked for
    """

    sequence: int
    message: Message | None
    is_after: bool = False


class Receiver:
    """Receives what the stream has of all hosts.

    say: prints a message
    tick: is called now and then
    bounds: of what is kept of it
    """

    def __init__(
        self,
        server: Server,
        target: Target,
        say: Callable[[str], None],
        tick: Callable[[], None],
        bounds: Bounds | None = None,
    ) -> None:
        self.received = Received()
        self._server = server
        self._target = target
        self._say = say
        self._tick = tick
        self._bounds = bounds
        self._prune_at_s = 0.0
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def run(self, *, follows: bool = True) -> None:
        """Receive until this is cancelled; without `follows`, until all is received that the stream has now."""
        # Not the sequence of the last message: after it others may have been deleted, and nats-server then finds none.
        until = (await self._server.check_stream()).state.last_seq
        while follows or not await self._has_all(until):
            messages = await self._fetch()
            if messages:
                await self._take_all(messages)
            await self._prune()
            self._tick()
        self._prune_at_s = 0.0
        await self._prune()

    async def _prune(self) -> None:
        """Remove what is beyond the bounds, from time to time."""
        if self._bounds is None or time.monotonic() < self._prune_at_s:
            return
        await self._begin()
        try:
            self.received.removed += prune(self._target, self._bounds, time.time())
        finally:
            self._target.end()
        self._prune_at_s = time.monotonic() + _PRUNE_S

    async def _begin(self) -> None:
        while not self._target.begin():
            await asyncio.sleep(_RETRY_S)

    async def _has_all(self, until: int) -> bool:
        if self._subscription is None:
            await self._subscribe()
        assert self._subscription
        info = await self._server.ask(self._subscription.consumer_info)
        has_rest = bool(info.num_pending or info.num_ack_pending)
        return not has_rest or bool(info.ack_floor and info.ack_floor.stream_seq >= until)

    async def _subscribe(self) -> None:
        settings = ConsumerConfig(
            durable_name=self._target.name, description=self._target.path, deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACKNOWLEDGE_S, max_ack_pending=_UNACKNOWLEDGED_MAX,
        )  # fmt: skip
        jetstream, stream = self._server.jetstream, self._server.stream
        self._subscription = await self._server.ask(
            lambda: jetstream.pull_subscribe(ALL, self._target.name, stream=stream, config=settings)
        )

    async def _fetch(self) -> list[Msg]:
        """Return the next messages; none: there are none for now."""
        if self._subscription is None:
            await self._subscribe()
        assert self._subscription
        try:
            return await self._subscription.fetch(_BATCH, timeout=_FETCH_S)
        except TimeoutError:
            return []
        except nats.errors.Error as error:
            self._server.waits(str(error))
        # The server has lost the consumer, or this the server.
        with suppress(nats.errors.Error):
            await self._subscription.unsubscribe()
        self._subscription = None
        await asyncio.sleep(_RETRY_S)
        return []

    async def _take_all(self, messages: list[Msg]) -> None:
        done: list[Msg] = []
        await self._begin()
        full = None
        try:
            for message in messages:
                try:
                    await self._take_one(message)
                except OutputFullError as error:
                    full = error
                    break
                done.append(message)
        finally:
            try:
                self._target.end()
            except OutputFullError as error:
                full, done = error, []
        for message in done:
            await message.ack()
        if full:
            self._server.waits(f"{full.filename}: {full.strerror}")
            for message in messages[len(done) :]:
                await message.nak(_FULL_S)
            await asyncio.sleep(_FULL_S)

    async def _take_one(self, message: Msg) -> None:
        """Write a message; one that is wrong is refused, and not asked for again."""
        sequence = message.metadata.sequence.stream
        try:
            await self._take(Message.of(message.subject, sequence, message.headers or {}, message.data))
        except MessageError as error:
            self.received.refused += 1
            if self.received.refused <= _REFUSED_SAID:
                more = "; further ones are counted only" if self.received.refused == _REFUSED_SAID else ""
                self._say(f"message {sequence} of {self._server.stream} is refused: {error}{more}")

    async def _take(self, message: Message) -> None:
        """Write a message, and before it those that are missing."""
        chain = [_Link(message.sequence, message)]
        while chain:
            link = chain[-1]
            if link.message is None:
                link.message = await self._read(link.sequence)
            try:
                if link.message:
                    is_new = self._target.take(link.message)
                    self.received.messages += is_new
                    self.received.bytes += is_new * len(link.message.data)
                chain.pop()
            except EarlierMissingError as error:
                assert link.message
                await self._go_back(chain, error.args[0])
            except MessageError:
                # Of the messages before the one that is to be written, each may be wrong.
                if len(chain) == 1:
                    raise
                chain.pop()

    async def _go_back(self, chain: list[_Link], missing: Place) -> None:
        """Have what is missing before the last message of a chain written, or do without."""
        link = chain[-1]
        assert link.message
        if missing != link.message.place:
            await self._take_metadata(missing, link.message.piece.metadata or 0)
            return
        earlier = None if link.is_after else await self._before(link.message)
        link.is_after = True
        if earlier:
            if len(chain) > _CHAIN_BYTES_OF:
                link.message = None
            chain.append(_Link(earlier.sequence, earlier))
            return
        n = self._target.skip(link.message)
        self.received.missing += n
        name = f"{missing.host}/{missing.recording}/{missing.path}"
        self._say(f"{name}: {n} bytes are missing, which the stream does not have")

    async def _before(self, message: Message) -> Message | None:
        """Return the message before one of the same file; None: the stream has it no more."""
        previous, sequence = message.previous, message.sequence
        while 0 < previous < sequence:
            stored = await self._server.message(previous)
            if stored is None or stored.subject != message.place.subject:
                return None
            try:
                return _checked(stored)
            except MessageError:
                sequence, previous = previous, _previous(stored)
        return None

    async def _read(self, sequence: int) -> Message | None:
        stored = await self._server.message(sequence)
        return _checked(stored) if stored else None

    async def _take_metadata(self, place: Place, start: int) -> None:
        """Write the latest metadata that the stream has; packets need at least the one that starts there."""
        stored = await self._server.last(place.subject)
        try:
            if stored:
                await self._take(_checked(stored))
        except MessageError as error:
            self._say(f"{place.host}/{place.recording}/{place.path}: {error}")
        self._target.waive_metadata(place, start)


def _checked(stored: Stored) -> Message:
    return Message.of(stored.subject, stored.sequence, stored.headers, stored.data)


def _previous(stored: Stored) -> int:
    try:
        return previous_of(stored.headers)
    except MessageError:
        return 0
