"""One file of a recording on its way to the server: what the stream has of it, and what is sent next.

A file has one message on its way at most. The server knows a message again by its id, which is where its bytes are, for
DUPLICATES_S. The first message of a file, one that follows much later, and one whose answer was missing, also say which
message of the subject is the last one, so the server refuses them if another forwarder has sent more of the file: what
the stream has then decides. That would cost too much for each message, because the server reads the last one for it.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.framing import unit_end
from relayfs_fuse.forwarding.names import (
    PAYLOAD_BYTES,
    PREVIOUS,
    UNIT_BYTES,
    VERSION,
    Kind,
    MessageError,
    Piece,
    Place,
    checksum,
    lost_in,
    token,
    version_of,
)
from relayfs_fuse.forwarding.server import DUPLICATES_S, UnexpectedSequenceError
from relayfs_fuse.forwarding.waiting import Waiting
from relayfs_fuse.reading.packet import HEAD_BYTES, closed
from relayfs_fuse.record.counters import LOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from relayfs_fuse.forwarding.recording import OpenFile, Recording
    from relayfs_fuse.forwarding.server import Server, Stored
    from relayfs_fuse.reading.packet import Head

_NS = 1_000_000_000
# In this time the server has not forgotten the id of a message.
_CHECK_S = DUPLICATES_S / 4
_BLOCK_BYTES = 512
# While a message waits, what is more is estimated.
_PACKETS_LOOKED_AT = 64
# So often another forwarder's message may be found in a file's place: one that was killed left one on its way at most.
_FOREIGN_MAX = 1
_NANOSECONDS = re.compile(r"\d{1,19}", re.ASCII)


@dataclass(frozen=True)
class Sender:
    """Who sends.

    machine: an id of the machine; "": it has none
    node: its name
    started_ns: when the forwarder started, ns since 1970
    """

    machine: str
    node: str
    pid: int
    started_ns: int

    @property
    def text(self) -> str:
        """What tells it from others, in the header Relay-Forwarder."""
        return f"{token(self.node)} {self.pid} {self.started_ns}"


@dataclass
class Link:
    """What all files of one forwarder have in common.

    server: the server
    recording: the recording
    host, name: under which it is sent
    sender: this forwarder
    encode: compresses the bytes of a message; returns them with the name of their encoding, "" for none
    admit: waits until so many bytes may be sent
    """

    server: Server
    recording: Recording
    host: str
    name: str
    sender: Sender
    encode: Callable[[bytes], tuple[bytes, str]]
    admit: Callable[[int], Awaitable[None]]
    messages: int = 0
    bytes: int = 0

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers that all messages have."""
        found = {"Relay-Origin": quote(self.recording.origin), "Relay-Forwarder": self.sender.text}
        return {**found, "Relay-Machine": self.sender.machine} if self.sender.machine else found

    def place(self, path: str) -> Place:
        """Return which file a path of the recording is."""
        return Place(self.host, self.name, path)


class OvertakenError(Exception):
    """Another forwarder has sent more of the file: look again at what the stream has."""


@dataclass
class File:
    """One file.

    offset: of the next byte to send
    unit: where the unit starts that has the next byte
    sequence: of the last message of the subject; 0: there is none
    version: checksum of the last unit, of files that are sent as a whole
    is_complete: whether all of it is sent, and no more will come
    seen: what Recording.changed() returned when all was sent
    lost: events that its packets say were lost in its stream
    has_more: whether packets() has left some for the next time
    behind: bytes that can be sent and are not sent yet; about so many, if has_more
    last: where the bytes of the last message start
    waiting: how long they have waited
    lost_before: events of which an earlier forwarder has said that they were lost
    """

    link: Link
    place: Place
    offset: int = 0
    unit: int = 0
    sequence: int | None = None
    version: int | None = None
    is_complete: bool = False
    seen: tuple[int, ...] = ()
    lost: int = 0
    has_more: bool = False
    behind: int = 0
    last: int = 0
    waiting: Waiting = field(default_factory=Waiting, repr=False)
    lost_before: int = 0
    _n_foreign: int = 0
    _renewed: int = field(default=0, repr=False)
    _is_found: bool = False
    _check_at_s: float = 0.0

    @property
    def kind(self) -> Kind:
        """How it is sent."""
        return self.place.kind

    async def find(self, source: OpenFile) -> None:
        """Find out what the stream has of the file, and go on behind it.

        RelayError: it is of another recording, or no forwarder has sent it
        """
        last = await self.link.server.last(self.place.subject)
        if last is None:
            self.offset = self.unit = self.sequence = 0
            self.version = None
            return
        self._check_origin(last)
        try:
            piece, version = Piece.of(self.place, last.headers), version_of(last.headers)
        except MessageError as error:
            raise RelayError(
                f"{self.link.server.url}: message {last.sequence} of {self.link.server.stream}, the last one of "
                f"{self.place.subject}, is none that a forwarder sends: {error}. Delete it to go on"
            ) from error
        there = source.read(piece.end - piece.offset, piece.offset)
        if self.kind is not Kind.WHOLE and checksum(there) != piece.checksum:
            raise RelayError(
                f"{self.link.recording.path}: bytes {piece.offset} to {piece.end} of {self.place.path} are not those "
                f"that {self._name(last)} has sent as {self.link.host}/{self.link.name}: that was another recording. "
                "Choose another name with --as or --host"
            )
        self.sequence, self.lost, self.is_complete = last.sequence, piece.lost, piece.is_last
        if not self._is_found:
            self.lost_before, self._is_found = piece.lost, True
        self.last = piece.offset
        is_whole_unit = piece.end == piece.start + piece.length
        if self.kind is Kind.WHOLE:
            self.offset, self.unit = piece.start + piece.length, piece.start
            self.version = version if is_whole_unit else None
        else:
            self.offset, self.unit = piece.end, piece.end if is_whole_unit else piece.start

    def packets(self, source: OpenFile, n: int | None) -> list[tuple[int, Head, bool]]:
        """Find packets that can be sent, with their offsets, and whether they end the file; n of them at most.

        RelayError: one is too large
        """
        descriptor = source.descriptor()
        try:
            status = os.fstat(descriptor)
            found = [
                (at, head, at + HEAD_BYTES == status.st_size)
                for at, head in islice(closed(descriptor, status.st_size, self.unit), n)
            ]
        finally:
            source.release(descriptor)
        for at, head, _ in found:
            if head.packet_bytes > UNIT_BYTES:
                why = f"the packet at {at} has {head.packet_bytes} bytes; {UNIT_BYTES} can be forwarded"
                raise RelayError(f"{self.place.path}: {why}")
        self.has_more = len(found) == n
        end = self.unit + sum(head.packet_bytes for _, head, _ in found)
        if self.has_more:
            # What is not allocated yet has no packets.
            end = max(end, min(status.st_size, status.st_blocks * _BLOCK_BYTES))
        self._note_end(end)
        return found

    def _note_end(self, end: int) -> None:
        """Note up to where bytes can be sent."""
        self.behind = max(0, end - self.offset)
        self.waiting.note(self.offset, end, time.monotonic())

    def look(self, source: OpenFile) -> None:
        """Look how much can be sent by now, while a message is on its way."""
        if self.kind is Kind.PACKETS:
            has_more = self.has_more
            self.packets(source, _PACKETS_LOOKED_AT)
            self.has_more = has_more
        elif self.kind is Kind.APPENDED:
            self._note_end(source.settled())

    def waited_s(self, offset: int | None = None) -> float:
        """Return for how long the oldest byte has waited that can be sent, from an offset on; 0: there is none."""
        since_s = self.waiting.since(self.offset if offset is None else offset)
        return 0.0 if since_s is None or not self.behind else time.monotonic() - since_s

    async def send_packet(self, source: OpenFile, at: int, head: Head, metadata: int, *, is_last: bool) -> None:
        """Send a packet, or what is left of it.

        metadata: where the unit of the metadata starts that it needs
        """
        end = at + head.packet_bytes
        while self.offset < end:
            data = source.read(min(PAYLOAD_BYTES, end - self.offset), self.offset)
            if not data:
                return  # somebody has cut it
            reached = self.offset + len(data)
            piece = Piece(
                self.offset, reached, at, head.packet_bytes, checksum(data), head.events_discarded, metadata,
                is_last and reached == end, *self._after(reached),
            )  # fmt: skip
            await self._send(piece, data)
            self.behind = max(0, self.behind - len(data))
        self.unit, self.lost = end, head.events_discarded
        self.is_complete = is_last

    async def send_whole(self, source: OpenFile) -> None:
        """Send the file, if the stream does not have it as it is now."""
        whole = source.read(UNIT_BYTES, 0)
        version = checksum(whole)
        if not whole or version == self.version:
            return
        start = self.offset
        if self.place.path == LOST:
            self.lost = lost_in(whole)
        for at in range(0, len(whole), PAYLOAD_BYTES):
            data = whole[at : at + PAYLOAD_BYTES]
            piece = Piece(start + at, start + at + len(data), start, len(whole), checksum(data), self.lost)
            await self._send(piece, data, {VERSION: f"{version:08x}"})
        self.unit, self.version = start, version

    async def send_appended(self, source: OpenFile, framing: str) -> None:
        """Send what was appended by now.

        framing: where records end, see framing.py
        """
        settled = source.settled()
        self._note_end(settled)
        while (end := unit_end(source, self.unit, settled, framing)) > self.offset:
            while data := source.read(min(PAYLOAD_BYTES, end - self.offset), self.offset):
                start, reached = self.offset, self.offset + len(data)
                piece = Piece(
                    start, reached, self.unit, end - self.unit, checksum(data), 0, None, False, *self._after(reached)
                )
                await self._send(piece, data)
                self.behind, self.last = max(0, self.behind - len(data)), start
            if self.offset < end:
                return  # its recorder has cut it
            self.unit = end
        self.behind = 0

    def _after(self, end: int) -> tuple[int, int]:
        """Return how many bytes are behind after a message that ends there, and for how many seconds they wait."""
        behind = max(0, self.behind - (end - self.offset))
        return behind, int(self.waited_s(end)) if behind else 0

    async def _send(self, piece: Piece, data: bytes, more: dict[str, str] | None = None) -> None:
        """Send a message, until it is in the stream. OvertakenError: another forwarder's is there."""
        link = self.link
        await link.admit(len(data))
        payload, encoding = link.encode(data)
        headers = {**piece.headers(self.place), **link.headers, **(more or {})}
        if encoding:
            headers["Content-Encoding"] = encoding
        while True:
            message_id = self._message_id(piece.offset)
            headers["Nats-Msg-Id"] = message_id
            headers[PREVIOUS] = str(self.sequence or 0)
            checks = time.monotonic() > self._check_at_s
            try:
                self.sequence, is_duplicate = await link.server.publish(
                    self.place.subject, payload, headers, self.sequence or 0, checks=checks
                )
                self._check_at_s = time.monotonic() + _CHECK_S
                if not is_duplicate:
                    break
            except UnexpectedSequenceError:
                is_duplicate, self._check_at_s = False, 0.0
            if await self._is_there(message_id, is_duplicate=is_duplicate):
                break
        link.messages += 1
        link.bytes += len(data)
        self.offset = piece.end

    def _message_id(self, offset: int) -> str:
        """Return BOOT:TRACE:FILE:OFFSET; TRACE with its host, because the ids of a stream are of all hosts together."""
        renewed = f"+{self._renewed}" if self._renewed else ""
        name = f"{token(self.link.host)}.{token(self.link.name)}"
        return f"{self.link.recording.boot}:{name}:{self.place.quoted}:{offset}{renewed}"

    async def _is_there(self, message_id: str, *, is_duplicate: bool) -> bool:
        """Find out whether the stream has the message already; OvertakenError: it has a later one."""
        last = await self.link.server.last(self.place.subject)
        if last is None:
            # Somebody has purged the stream, but the server still knows the ids.
            self.sequence = 0
            self._renewed += is_duplicate
            return False
        self._check_origin(last)
        self.sequence = last.sequence
        is_ours = last.headers.get("Relay-Forwarder") == self.link.sender.text
        if not is_ours:
            self._meet(last)
        if last.headers.get("Nats-Msg-Id") == message_id:
            return True
        if not is_ours:
            raise OvertakenError
        self._renewed += is_duplicate
        return False

    def _check_origin(self, last: Stored) -> None:
        origin = last.headers.get("Relay-Origin", "")
        if origin != self.link.headers["Relay-Origin"]:
            raise RelayError(
                f"{self.link.server.url} has another recording as {self.link.host}/{self.link.name}, which "
                f"{self._name(last)} has sent: two machines may have this name, or two recordings. "
                "Choose another name with --host or --as"
            )

    def _meet(self, last: Stored) -> None:
        """Let the forwarder that started first go on: RelayError: this is the second one."""
        self._n_foreign += 1
        started = _started(last)
        if self._n_foreign > _FOREIGN_MAX and started is not None and started < self.link.sender.started_ns:
            raise RelayError(
                f"{self.link.recording.path} is forwarded as {self.link.host}/{self.link.name} by {self._name(last)} "
                f"already, to {self.link.server.url}: end that one first"
            )

    @staticmethod
    def _name(last: Stored) -> str:
        """Return who has sent a message, for people."""
        node, _, rest = last.headers.get("Relay-Forwarder", "").partition(" ")
        pid, started = rest.partition(" ")[0], _started(last)
        when = f" since {datetime.fromtimestamp(started // _NS, UTC):%F %T} UTC" if started is not None else ""
        return f"{node or 'another forwarder'} (pid {pid or '?'}{when})"


def _started(last: Stored) -> int | None:
    """Return when the forwarder of a message has started, ns since 1970; None: it does not say."""
    text = last.headers.get("Relay-Forwarder", "").rpartition(" ")[2]
    return int(text) if _NANOSECONDS.fullmatch(text) else None
