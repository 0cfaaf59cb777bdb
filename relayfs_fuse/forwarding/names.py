"""What is sent of a recording: its files, their subjects, and the headers of messages.

A file of a recording is sent in units, and a unit in messages of at most PAYLOAD_BYTES, each with the offset of its
bytes:

PACKETS   cpu0, cpu0_1 ..., state: a unit is a packet, which never changes once another follows it
WHOLE     metadata, .threads, .relayfs, .lost, .framing ...: a unit is all that the file holds, each time that the
          recorder has replaced it; offsets count the bytes of all units before
APPENDED  .clocks, .damaged/PROCESS/FILE, of a channel cpu0, cpu1 ..., and counters.jsonl: a unit is what was appended
          since the last one; of rings whole records of that, and of counters whole lines

Forwarders of later versions may send files beside these, whose names _is_kept() tells. A receiver writes them as it
gets them: as WHOLE if the message has the header VERSION, as those of all such files have, otherwise as APPENDED.

The subject of a file is relayfs.HOST.TRACE.PROCESS.STREAM: TRACE is the recording's name, PROCESS the file's directory
in it and STREAM the file's name. What a token of a subject may not contain is written %XX. A file of no process, as
.relayfs, has % for PROCESS.
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, unquote_to_bytes

import google_crc32c
import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.record.atomic import NEW
from relayfs_fuse.record.counters import FILE as COUNTERS
from relayfs_fuse.record.counters import LOST
from relayfs_fuse.tracefiles import clock_pairs, streams

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "relayfs"
ALL = f"{PREFIX}.>"
STREAM = "RELAYFS"
PAYLOAD_BYTES = 256 << 10
# A longer packet does not fit into a file of the recorder's with others.
UNIT_BYTES = 128 << 20
# Where records of a ring end: see framing.py.
FRAMING = ".framing"
_NO_PROCESS = "%"
PREVIOUS = "Relay-Previous"
VERSION = "Relay-Version"
_NAME_BYTES = 255
# Of a file: a receiver adds a dot before the name, and a dot and an offset behind it.
_FILE_NAME_BYTES = _NAME_BYTES - len(f"..{1 << 62}")
_OFFSET_MAX = 1 << 62
_TOKENS = 5

_LOST_RECORDS = re.compile(rb"lost=(\d{1,18})\b")
_RECORDS_FILE = re.compile(r".*\d", re.DOTALL | re.ASCII)
_WHOLE_FILE = re.compile(r"metadata|\.threads|\.lost_before_cpu\d{1,6}", re.ASCII)
_NUMBERED = re.compile(r"\d{4,9}", re.ASCII)
# One dot only: what a receiver notes of a file FILE is in .FILE.known and .FILE.OFFSET, see target.py.
_HIDDEN_DIRECTORY = re.compile(r"\.[^.]+")
_DIRECTORIES_MAX = 3


class Kind(enum.Enum):
    """How a file is sent: see above."""

    PACKETS = enum.auto()
    WHOLE = enum.auto()
    APPENDED = enum.auto()


class MessageError(RelayError):
    """A message is none that a forwarder sends: its subject, headers or contents are wrong."""


def is_name(name: str) -> bool:
    """Return whether a text is the name of a host, a recording or a process, as a directory is to be called."""
    return bool(name) and not name.startswith(".") and _is_file_name(name)


def _is_file_name(name: str, most: int = _NAME_BYTES) -> bool:
    return name not in {"", ".", ".."} and not set("/\0") & set(name) and len(os.fsencode(name)) <= most


def kind_of(path: str) -> Kind | None:
    """Return how a file of a recording is sent; None: it is none of the recorder's.

    path: relative to the recording
    """
    *directories, name = path.split("/")
    if not _is_file_name(name, _FILE_NAME_BYTES) or not all(map(is_name, directories[-1:])):
        return None
    if not directories:
        grows = path in {COUNTERS, clock_pairs.FILE} or (is_name(name) and _RECORDS_FILE.fullmatch(name))
        return Kind.WHOLE if path in {streams.MARK, LOST, FRAMING} else Kind.APPENDED if grows else None
    if directories[0] == streams.QUARANTINE:
        return Kind.APPENDED if len(directories) == 2 and is_name(name) else None
    if len(directories) > 2 or (len(directories) == 2 and not _NUMBERED.fullmatch(directories[0])):
        return None
    if streams.stream_of(name):
        return Kind.PACKETS
    return Kind.WHOLE if _WHOLE_FILE.fullmatch(name) else None


def _is_kept(path: str) -> bool:
    """Return whether a receiver writes a file that no forwarder of this version sends.

    It is in a hidden directory, or hidden itself, or in no directory: nobody takes it for a stream of events. It has
    none of the names that the receiver's own files have while they are written.
    """
    *directories, name = path.split("/")
    is_own = name.startswith(NEW) or (name.startswith(".") and streams.stream_of(name[1:]) is not None)
    if not _is_file_name(name, _FILE_NAME_BYTES) or is_own or name.removesuffix(streams.COMPRESSED) == streams.METADATA:
        return False
    if not directories:
        return True
    is_hidden = _HIDDEN_DIRECTORY.fullmatch(directories[0]) is not None
    visible = directories[is_hidden:]
    return (is_hidden or name.startswith(".")) and len(directories) <= _DIRECTORIES_MAX and all(map(is_name, visible))


def is_beside(path: str) -> bool:
    """Return whether a file has what is told beside records and events: it goes when these are removed."""
    name = os.path.basename(path)
    return kind_of(path) is Kind.WHOLE or path == clock_pairs.FILE or (name.startswith(".") and kind_of(path) is None)


def stream_of(path: str) -> str:
    """Return the stream that a file of packets continues: its path without the number."""
    directory, _, name = path.rpartition("/")
    found = streams.stream_of(name) if directory else None
    return f"{directory}/{streams.stream_name(found[0])}" if found else path


def lost_in(text: bytes) -> int:
    """Return the number in a file LOST; 0: there is none."""
    found = _LOST_RECORDS.match(text)
    return int(found[1]) if found else 0


def token(name: str) -> str:
    """Return a name as a token of a subject."""
    return quote(os.fsencode(name), safe="").replace(".", "%2E").replace("~", "%7E")


def name_of(text: str) -> str:
    """Return the name that a token stands for. MessageError: token() does not make it."""
    name = os.fsdecode(unquote_to_bytes(text))
    if token(name) != text:
        raise MessageError(f"{text!r} is no token of a subject")
    return name


@dataclass(frozen=True)
class Place:
    """Which file it is.

    host: the name of the machine that sends it
    recording: the name of the recording
    path: of the file in the recording
    other: how it is sent, if its kind is that of a later version
    """

    host: str
    recording: str
    path: str
    other: Kind | None = field(default=None, compare=False)

    @cached_property
    def subject(self) -> str:
        """The subject of the file's messages."""
        directory, _, name = self.path.rpartition("/")
        process = token(directory) if directory else _NO_PROCESS
        return f"{recording_subject(self.host, self.recording)}.{process}.{token(name)}"

    @cached_property
    def quoted(self) -> str:
        """The path as a header has it."""
        return quote(os.fsencode(self.path), safe="/")

    @cached_property
    def kind(self) -> Kind:
        """How it is sent. MessageError: it is no file of a recording."""
        kind = kind_of(self.path) or self.other
        if kind is None:
            raise MessageError(f"{self.path} is no file of a recording")
        return kind

    @classmethod
    def of(cls, subject: str, headers: Mapping[str, str]) -> Place:
        """Parse the subject of a message. MessageError: none of a file of a recording."""
        prefix, *tokens = subject.split(".")
        if prefix != PREFIX or len(tokens) != _TOKENS - 1:
            raise MessageError(f"{subject} is no {PREFIX}.HOST.TRACE.PROCESS.STREAM")
        host, recording = map(name_of, tokens[:2])
        if not is_name(host) or not is_name(recording):
            raise MessageError(f"{subject}: {host!r} and {recording!r} are no names of a host and a recording")
        directory = "" if tokens[2] == _NO_PROCESS else f"{name_of(tokens[2])}/"
        path = directory + name_of(tokens[3])
        if kind_of(path) is None and not _is_kept(path):
            raise MessageError(f"{subject}: {path!r} is no file of a recording")
        return cls(host, recording, path, Kind.WHOLE if VERSION in headers else Kind.APPENDED)


def host_subject(host: str) -> str:
    """Return the subject of all files of a host."""
    return f"{PREFIX}.{token(host)}.>"


def recording_subject(host: str, recording: str) -> str:
    """Return what the subjects of a recording's files begin with."""
    return f"{PREFIX}.{token(host)}.{token(recording)}"


@dataclass(frozen=True)
class Piece:
    """What one message holds of a file.

    offset, end: of its bytes
    start, length: of the unit that it belongs to
    checksum: CRC-32C of its bytes
    lost: how many events the packet says were lost in its stream so far; 0 for other units
    metadata: where the unit of the metadata starts that the packet needs; None: it needs none
    is_last: whether it ends a complete file
    behind: bytes of the file that can be sent after this message; about so many, if they are many
    waited: for how many seconds the oldest of them has waited
    """

    offset: int
    end: int
    start: int
    length: int
    checksum: int
    lost: int = 0
    metadata: int | None = None
    is_last: bool = False
    behind: int = 0
    waited: int = 0

    def headers(self, place: Place) -> dict[str, str]:
        """Return the headers of its message."""
        found = {
            "Relay-Path": place.quoted,
            "Relay-Offset": str(self.offset),
            "Relay-End": str(self.end),
            "Relay-Packet": f"{self.start} {self.length}",
            "Relay-Lost": str(self.lost),
            "Relay-Crc32c": f"{self.checksum:08x}",
            "Relay-Behind": str(self.behind),
            "Relay-Waited": str(self.waited),
        }
        if self.metadata is not None:
            found["Relay-Metadata"] = str(self.metadata)
        if self.is_last:
            found["Relay-Last"] = "1"
        return found

    @classmethod
    def of(cls, place: Place, headers: Mapping[str, str]) -> Piece:
        """Parse headers. MessageError: they contradict each other or the subject, or are out of range."""
        if (path := headers.get("Relay-Path")) != place.quoted:
            raise MessageError(f"Relay-Path: {path!r} is not the file of the subject, {place.path}")
        start, _, length = headers.get("Relay-Packet", "").partition(" ")
        metadata = headers.get("Relay-Metadata")
        piece = cls(
            _number(headers, "Relay-Offset"), _number(headers, "Relay-End"), _parse("Relay-Packet", start),
            _parse("Relay-Packet", length), _parse("Relay-Crc32c", headers.get("Relay-Crc32c", ""), 16),
            _number(headers, "Relay-Lost"), None if metadata is None else _parse("Relay-Metadata", metadata),
            headers.get("Relay-Last") == "1", _parse("Relay-Behind", headers.get("Relay-Behind", "0")),
            _parse("Relay-Waited", headers.get("Relay-Waited", "0")),
        )  # fmt: skip
        if not piece.start <= piece.offset <= piece.end <= piece.start + piece.length or piece.length > UNIT_BYTES:
            raise MessageError(
                f"bytes {piece.offset} to {piece.end} are none of {piece.length} from {piece.start} on, "
                f"or these are more than {UNIT_BYTES}"
            )
        return piece


@dataclass(frozen=True)
class Message:
    """A message whose headers and bytes agree.

    sequence: its number in the stream
    previous: of the message before it with the same subject, as its forwarder knew; 0: none
    origin: of the recording, see recording.py
    """

    place: Place
    piece: Piece
    data: bytes
    sequence: int
    previous: int
    origin: str

    @classmethod
    def of(cls, subject: str, sequence: int, headers: Mapping[str, str], payload: bytes) -> Message:
        """Check a message of the stream. MessageError: it is none that a forwarder sends."""
        place = Place.of(subject, headers)
        piece = Piece.of(place, headers)
        data = _decode(payload, headers.get("Content-Encoding", ""))
        if len(data) != piece.end - piece.offset:
            raise MessageError(f"it has {len(data)} bytes; it should have those from {piece.offset} to {piece.end}")
        if checksum(data) != piece.checksum:
            raise MessageError("its bytes have another checksum than the header Relay-Crc32c says")
        origin = unquote(headers.get("Relay-Origin", ""))
        return cls(place, piece, data, sequence, previous_of(headers), origin)


def previous_of(headers: Mapping[str, str]) -> int:
    """Return the number of the message before one with the same subject; 0: there is none."""
    return _parse(PREVIOUS, headers.get(PREVIOUS, "0"))


def version_of(headers: Mapping[str, str]) -> int:
    """Return the checksum of the whole unit, of a file that is sent as a whole."""
    return _parse(VERSION, headers.get(VERSION, "0"), 16)


def checksum(data: bytes) -> int:
    """Return the CRC-32C of bytes."""
    value: int = google_crc32c.value(data)
    return value


def _decode(payload: bytes, encoding: str) -> bytes:
    if not encoding:
        return payload
    if encoding != "zstd":
        raise MessageError(f"Content-Encoding: {encoding[:40]!r} is not zstd")
    try:
        if not 0 <= zstandard.frame_content_size(payload) <= PAYLOAD_BYTES:
            raise MessageError(f"Content-Encoding: it does not say its length, or has more than {PAYLOAD_BYTES} bytes")
        return zstandard.decompress(payload, max_output_size=PAYLOAD_BYTES)
    except zstandard.ZstdError as error:
        raise MessageError(f"Content-Encoding: {error}") from error


def _number(headers: Mapping[str, str], name: str) -> int:
    return _parse(name, headers.get(name, ""))


def _parse(name: str, text: str, base: int = 10) -> int:
    if not re.fullmatch(r"[0-9a-f]{1,19}" if base == 16 else r"\d{1,19}", text, re.ASCII):
        raise MessageError(f"{name}: {text[:40]!r} is no number")
    value = int(text, base)
    if value > _OFFSET_MAX:
        raise MessageError(f"{name}: {value} is more than {_OFFSET_MAX}")
    return value
