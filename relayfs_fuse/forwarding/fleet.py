"""What a stream tells of the machines that forward to it, and of those that receive from it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from relayfs_fuse.forwarding.names import Kind, MessageError, Piece, Place, stream_of

if TYPE_CHECKING:
    from datetime import datetime

    from relayfs_fuse.forwarding.server import Server, Stored

# So many messages are asked for at once.
_AT_ONCE = 32
# No machine has waited longer; whoever may publish may say anything.
_WAITED_MAX_S = 10**9


@dataclass
class Sent:
    """One recording, as far as it was forwarded.

    files, messages: in the stream
    bytes: of its files, as far as they were sent
    lost: events that it says were lost
    behind: bytes that its machine had, and had not sent, when it sent the last message of each file
    waits_since: when the machine has seen the oldest of them, by the server's clock; None: none is behind
    last_seen: when the server got its last message
    machines: ids of the machines that sent it; more than one: they have the same name
    """

    host: str
    recording: str
    files: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    behind: int = 0
    waits_since: datetime | None = None
    last_seen: datetime | None = None
    machines: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Receiving:
    """A directory that receives.

    name: at the server
    directory: where it is, as its receiver says
    behind: messages that it has not acknowledged
    waits_since: when the server got the first of them; None: there is none, or it is deleted
    """

    name: str
    directory: str
    behind: int
    waits_since: datetime | None


@dataclass(frozen=True)
class Fleet:
    """All of them.

    messages, bytes: in the stream
    max_bytes: the most that it holds; -1: no limit
    """

    sent: list[Sent]
    receiving: list[Receiving]
    messages: int
    bytes: int
    max_bytes: int


async def survey(server: Server) -> Fleet:
    """Look at a stream. RelayError: there is none."""
    info = await server.check_stream()
    slots = asyncio.Semaphore(_AT_ONCE)

    async def last(subject: str) -> Stored | None:
        async with slots:
            return await server.last(subject)

    counts = await server.subjects()
    messages = await asyncio.gather(*map(last, counts))
    found: dict[tuple[str, str], Sent] = {}
    lost: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for message in filter(None, messages):
        # Whoever may publish may also publish what no forwarder sends.
        with suppress(MessageError):
            place = Place.of(message.subject, message.headers)
            key = place.host, place.recording
            piece = Piece.of(place, message.headers)
            sent = found.setdefault(key, Sent(*key))
            _add(sent, place, piece, message, counts[message.subject])
            stream = stream_of(place.path)
            lost[key][stream] = max(lost[key][stream], piece.lost)
    for key, sent in found.items():
        sent.lost = sum(lost[key].values())
    receiving = []
    for name, directory, behind, first in await server.consumers():
        oldest = await server.message(first) if behind else None
        receiving.append(Receiving(name, directory, behind, oldest.time if oldest else None))
    in_order = sorted(found.values(), key=lambda sent: (sent.host, sent.recording))
    return Fleet(in_order, receiving, info.state.messages, info.state.bytes, info.config.max_bytes or -1)


def _add(sent: Sent, place: Place, piece: Piece, message: Stored, n_messages: int) -> None:
    sent.files += 1
    sent.messages += n_messages
    # Of a file that is sent as a whole, only the last unit is one.
    sent.bytes += piece.length if place.kind is Kind.WHOLE else piece.end
    sent.behind += piece.behind
    if message.time and piece.behind:
        since = message.time - timedelta(seconds=min(piece.waited, _WAITED_MAX_S))
        sent.waits_since = min(sent.waits_since or since, since)
    if message.time and (sent.last_seen is None or message.time > sent.last_seen):
        sent.last_seen = message.time
    if machine := message.headers.get("Relay-Machine"):
        sent.machines.add(machine)
