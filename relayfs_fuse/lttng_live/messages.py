"""The messages of LTTng's live protocol, version 2.4, as lttng-relayd and its viewers exchange them.

Numbers are big-endian, without padding. A viewer sends commands, each a header with the length of the payload that
follows; the server answers them in order. lttng-viewer-abi.hpp of lttng-tools is the definition.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

MAJOR, MINOR = 2, 4
# The longest payload that is accepted, also of an unknown command.
PAYLOAD_MAX = 4096

COMMAND = struct.Struct(">QII")
CONNECT = struct.Struct(">QIII")
ID = struct.Struct(">Q")
ATTACH = struct.Struct(">QQI")
GET_PACKET = struct.Struct(">QQI")

_STATUS = struct.Struct(">I")
_STATUS_COUNT = struct.Struct(">II")
_SESSION = struct.Struct(">QIII64s255s")
_STREAM = struct.Struct(">QQI4096s255s")
STREAM_BYTES = _STREAM.size
_INDEX = struct.Struct(">QQQQQQQII")
_PACKET = struct.Struct(">III")
_METADATA = struct.Struct(">QI")
# The header of a packet of metadata. Its byte order is that of the traced machine: little-endian.
_TSDL = struct.Struct("<I16sIIIBBBBB")
_TSDL_MAGIC = 0x75D11D57

# What lttng-relayd answers to a command that it does not know.
UNKNOWN_COMMAND = _STATUS.pack(10)


class Command(IntEnum):
    """The numbers of commands."""

    CONNECT = 1
    LIST_SESSIONS = 2
    ATTACH_SESSION = 3
    GET_NEXT_INDEX = 4
    GET_PACKET = 5
    GET_METADATA = 6
    GET_NEW_STREAMS = 7
    CREATE_SESSION = 8
    DETACH_SESSION = 9


# The length of each command's payload.
PAYLOADS = {
    Command.CONNECT: CONNECT.size, Command.LIST_SESSIONS: 0, Command.ATTACH_SESSION: ATTACH.size,
    Command.GET_NEXT_INDEX: ID.size, Command.GET_PACKET: GET_PACKET.size, Command.GET_METADATA: ID.size,
    Command.GET_NEW_STREAMS: ID.size, Command.CREATE_SESSION: 0, Command.DETACH_SESSION: ID.size,
}  # fmt: skip

CLIENT_COMMAND = 1  # the type of a connection that sends commands


class Attach(IntEnum):
    """Answers to ATTACH_SESSION."""

    OK = 1
    ALREADY = 2
    UNKNOWN = 3
    SEEK_ERROR = 5
    NO_SESSION = 6


class Seek(IntEnum):
    """Where a viewer begins."""

    BEGINNING = 1
    LAST = 2


class Index(IntEnum):
    """Answers to GET_NEXT_INDEX."""

    OK = 1
    RETRY = 2
    HUP = 3
    ERROR = 4
    INACTIVE = 5


class Data(IntEnum):
    """Answers to GET_PACKET."""

    OK = 1
    ERROR = 3


class Metadata(IntEnum):
    """Answers to GET_METADATA."""

    OK = 1
    NO_NEW = 2
    ERROR = 3


class NewStreams(IntEnum):
    """Answers to GET_NEW_STREAMS."""

    OK = 1
    NO_NEW = 2
    ERROR = 3
    HUP = 4


class Done(IntEnum):
    """Answers to CREATE_SESSION and DETACH_SESSION."""

    OK = 1
    ERROR = 2  # answers DETACH_SESSION: the viewer is not attached to this session


NEW_METADATA, NEW_STREAM = 1, 2  # flags of an index


class Session(NamedTuple):
    """A trace to attach to."""

    id: int
    timer_us: int
    n_clients: int
    n_streams: int
    host: str
    name: str


class Stream(NamedTuple):
    """A stream of packets, or of metadata."""

    id: int
    trace: int
    is_metadata: bool
    path: str
    channel: str


class PacketIndex(NamedTuple):
    """Offset and length of a packet in its stream, in bytes; its times, in ticks; and its count of lost events."""

    offset: int
    n_bytes: int
    begin: int
    end: int
    discarded: int


_NOWHERE = PacketIndex(0, 0, 0, 0, 0)


def connected(number: int) -> bytes:
    """Answer CONNECT."""
    return CONNECT.pack(number, MAJOR, MINOR, CLIENT_COMMAND)


def sessions(found: list[Session]) -> bytes:
    """Answer LIST_SESSIONS."""
    packed = [_SESSION.pack(*one[:4], one.host.encode()[:63], one.name.encode()[:254]) for one in found]
    return _STATUS.pack(len(found)) + b"".join(packed)


def streams(status: int, found: list[Stream]) -> bytes:
    """Answer ATTACH_SESSION or GET_NEW_STREAMS."""
    packed = [_STREAM.pack(*one[:3], one.path.encode()[:4095], one.channel.encode()[:254]) for one in found]
    return _STATUS_COUNT.pack(status, len(found)) + b"".join(packed)


def index(status: Index, flags: int = 0, at: PacketIndex = _NOWHERE) -> bytes:
    """Answer GET_NEXT_INDEX; all streams are of class 0."""
    bits = 8 * at.n_bytes
    return _INDEX.pack(at.offset, bits, bits, at.begin, at.end, at.discarded, 0, status, flags)


def data(status: Data, content: bytes = b"") -> bytes:
    """Answer GET_PACKET."""
    return _PACKET.pack(status, len(content), 0) + content


def metadata(status: Metadata, content: bytes = b"") -> bytes:
    """Answer GET_METADATA."""
    return _METADATA.pack(len(content), status) + content


def metadata_packet(text: bytes, uuid: str) -> bytes:
    """Return TSDL text as a packet of metadata, because metadata that is sent in several parts must be packets."""
    bits = 8 * (_TSDL.size + len(text))
    return _TSDL.pack(_TSDL_MAGIC, UUID(uuid).bytes, 0, bits, bits, 0, 0, 0, 1, 8) + text


def status(number: int) -> bytes:
    """Answer CREATE_SESSION or DETACH_SESSION."""
    return _STATUS.pack(number)
