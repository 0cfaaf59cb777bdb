"""Files of received recordings, and how a message is written: all of it, or nothing that a viewer sees.

What is written twice is the same: bytes that the file has already are compared, and not written.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from relayfs_fuse.forwarding.names import MessageError
from relayfs_fuse.reading.packet import HEAD_BYTES, Packet, unpack
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.record.full import temporary_errors_mean_full
from relayfs_fuse.record.stream import ROOM_BYTES, StreamFile
from relayfs_fuse.record.writing import write_all
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.forwarding.names import Piece
    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.record.stream import OpenFiles

# A larger number of a packet has no room for its successors.
_NUMBER_MAX = (1 << 63) - 1
# No metadata is longer, and no other file that is sent as a whole.
_WHOLE_BYTES = ctf.EVENTS_MAX + (64 << 10)


class EarlierMissingError(Exception):
    """Messages are missing before one. The argument: of which file."""


class Part:
    """What is known of a file beside it: a number, and the first messages of a unit.

    path: of the file, in the directory DIR/.received/files. What is there has names that no host or process has
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
        self._known = f"{self._path}.known"

    def number(self, default: int) -> int:
        """Return the number."""
        with suppress(FileNotFoundError, ValueError), open(self._known, encoding="ascii") as file:
            return int(file.read(20))
        return default

    def set_number(self, number: int) -> None:
        """Store the number."""
        with temporary_errors_mean_full(self._known):
            make_directories(os.path.dirname(self._known))
            write_atomically(self._known, f"{number}\n".encode())
            _sync(self._known)

    def add(self, piece: Piece, data: bytes) -> bytes | None:
        """Add a message to its unit; return the unit if it is whole now.

        EarlierMissingError: messages of the unit before this one are missing
        """
        if (piece.offset, piece.end) == (piece.start, piece.start + piece.length):
            return data
        path = f"{self._path}.{piece.start}"
        with temporary_errors_mean_full(path):
            make_directories(os.path.dirname(path))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                at = piece.offset - piece.start
                if os.fstat(descriptor).st_size < at:
                    raise EarlierMissingError
                write_all(descriptor, [data], at)
                os.fsync(descriptor)
                return os.pread(descriptor, piece.length, 0) if piece.end == piece.start + piece.length else None
            finally:
                os.close(descriptor)

    def drop(self, start: int) -> None:
        """Remove the messages of a unit, which is written or will not be whole."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self._path}.{start}")


class Written(ABC):
    """A file that messages are written to.

    path: where it is, or will be
    """

    def __init__(self, path: str, part: Part) -> None:
        self.path = path
        self.part = part

    @abstractmethod
    def take(self, piece: Piece, data: bytes) -> bool:
        """Write a message; return whether it is new.

        EarlierMissingError: without an argument. MessageError: it is wrong. OutputFullError: there is no room now.
        """

    @abstractmethod
    def skip(self, piece: Piece, data: bytes) -> int:
        """Do without what is before a message, so that take() takes it; return how many bytes of the file are missing.

        MessageError: it is of no use without that
        """

    def forget(self) -> None:  # noqa: B027  # most files are not kept open
        """Close the file, which another receiver may write to."""

    def sync(self) -> None:
        """Have the disk hold the file and its name."""
        # It may have been removed meanwhile.
        with suppress(FileNotFoundError), temporary_errors_mean_full(self.path):
            _sync(self.path)


class PacketsFile(Written):
    """A stream's file: it grows by packets, as the recorder's own, and is valid CTF at any time."""

    def __init__(self, path: str, part: Part, files: OpenFiles) -> None:
        super().__init__(path, part)
        self._files = files
        self._stream: StreamFile | None = None
        self._last: Head | None = None
        # Of a file that was removed, to save room, so much is known.
        self.tail = part.number(0)
        with suppress(FileNotFoundError):
            self._last, self._stream = StreamFile.reopen(path, files)
            self.tail = self._stream.tail if self._stream else os.stat(path).st_size

    @property
    def is_complete(self) -> bool:
        """Whether no packet can follow."""
        return self._last is not None and self._stream is None

    def forget(self) -> None:
        """Close the file, which another receiver may write to."""
        if self._stream:
            self._files.close(self._stream)

    def take(self, piece: Piece, data: bytes) -> bool:
        """Append a packet."""
        if piece.end <= self.tail:
            self._compare(piece, data)
            return False
        if piece.start + piece.length > ROOM_BYTES - HEAD_BYTES:
            raise MessageError(f"{self.path}: it would have more than {ROOM_BYTES} bytes")
        if self.is_complete or piece.start < self.tail:
            raise MessageError(f"{self.path} has {self.tail} bytes already; no packet can begin at {piece.start}")
        if piece.start > self.tail:
            raise EarlierMissingError
        if (unit := self.part.add(piece, data)) is None:
            return True
        head = unpack(unit)
        if head is None or head.packet_bytes != len(unit) or head.packet_seq_num > _NUMBER_MAX:
            self.part.drop(piece.start)
            raise MessageError(f"{self.path}: there is no packet of {len(unit)} bytes at {piece.start}")
        if piece.is_last:
            self._end(head, unit)
        else:
            self._append(Packet(head, [memoryview(unit)[HEAD_BYTES:]]))
        self.part.drop(piece.start)
        return True

    def _compare(self, piece: Piece, data: bytes) -> None:
        """Raise MessageError if the file has other bytes there; without the file, nobody knows."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            there = os.pread(file.fileno(), len(data), piece.offset)
            if there != data and there.strip(b"\0"):
                raise MessageError(f"{self.path} has other bytes from {piece.offset} on than the message")

    def skip(self, piece: Piece, data: bytes) -> int:
        """Have an empty packet in place of what is missing."""
        head = unpack(data) if piece.offset == piece.start else None
        missing = piece.start - self.tail
        if head is None or missing < HEAD_BYTES:
            raise MessageError(f"{self.path}: what is before byte {piece.offset} of its packet is missing")
        self._leave_out(piece.start, head)
        return missing

    def _leave_out(self, end: int, head: Head) -> None:
        """Have an empty packet up to a place in the file.

        head: that of the packet there
        """
        if self._stream is None:
            self._open(head.before().empty(end))
        elif end > self.tail:
            with temporary_errors_mean_full(self.path):
                last = self._stream.last
                self._stream.append_hole(last.empty(end - self.tail, timestamp_begin=last.timestamp_end))
            self._note()

    def _append(self, packet: Packet) -> None:
        if self._stream is None and self.tail:
            # What was there is removed.
            self._leave_out(self.tail, packet.head)
        if self._stream is None:
            self._open(packet.head, packet)
            return
        with temporary_errors_mean_full(self.path):
            self._stream.append([packet], lambda: True)
        self._note()

    def _open(self, head: Head, packet: Packet | None = None) -> None:
        """Begin the file with a packet; None: with an empty one, of this header, whose padding is a hole."""
        with temporary_errors_mean_full(self.path):
            make_directories(os.path.dirname(self.path))
            stream = StreamFile.create(self.path, packet or Packet(head, []), self._files, goes_on=True)
            try:
                if packet:
                    stream.append([packet], lambda: True)
                else:
                    stream.append_hole(head)
            except OSError:
                stream.discard()
                raise
        self._stream = stream
        self._note()

    def _note(self) -> None:
        assert self._stream
        self._last, self.tail = self._stream.last, self._stream.tail

    def _end(self, head: Head, unit: bytes) -> None:
        """Complete the file. MessageError: it does not end so."""
        if self._stream is None and not self.tail:
            raise MessageError(f"{self.path}: the file ends before it has begun")
        if len(unit) != HEAD_BYTES or not head.is_empty:
            raise MessageError(f"{self.path}: the packet at {self.tail} is not the one that ends a file")
        with temporary_errors_mean_full(self.path):
            if self._stream:
                self._stream.close(head)
        self._stream = None
        self.tail += HEAD_BYTES
        if self._last is None:
            # What was there is removed.
            self.part.set_number(self.tail)

    def remove(self) -> None:
        """Remove the file, and remember how much of it is known. OutputFullError: there is no room to remember it."""
        self.part.set_number(self.tail)
        self.forget()
        os.unlink(self.path)


class WholeFile(Written):
    """A file that is replaced as a whole.

    start: where the unit starts that it holds; -1: none
    waived: where a unit starts that nobody has any more. Only this one is done without: whoever may publish could name
            one that is later than all that will come
    """

    def __init__(self, path: str, part: Part) -> None:
        super().__init__(path, part)
        self.start = part.number(-1) if os.path.exists(path) else -1
        self.waived: int | None = None

    def has(self, start: int) -> bool:
        """Return whether it holds the unit that starts there, or a later one, or does without."""
        return start <= self.start or start == self.waived

    def take(self, piece: Piece, data: bytes) -> bool:
        """Replace the file, if this is the last message of the unit."""
        if piece.start <= self.start:
            return False
        if piece.length > _WHOLE_BYTES:
            raise MessageError(f"{self.path}: {piece.length} bytes are more than the {_WHOLE_BYTES} that it may have")
        if (unit := self.part.add(piece, data)) is None:
            return True
        with temporary_errors_mean_full(self.path):
            make_directories(os.path.dirname(self.path))
            write_atomically(self.path, unit, is_durable=True)
            _sync(self.path)
        self.part.set_number(piece.start)
        self.part.drop(piece.start)
        self.start = piece.start
        return True

    def skip(self, piece: Piece, data: bytes) -> int:  # noqa: ARG002  # as the others
        """Do without a unit of which a part is missing: a later one will come."""
        self.part.drop(piece.start)
        raise MessageError(f"{self.path}: what is before byte {piece.offset} of its unit is missing")


class AppendedFile(Written):
    """A file that grows by units of any bytes.

    most: the longest hole that it may have
    """

    def __init__(self, path: str, part: Part, most: int) -> None:
        super().__init__(path, part)
        self._most = most

    def take(self, piece: Piece, data: bytes) -> bool:
        """Append to the file, if this is the last message of the unit."""
        if piece.start > self._end:
            raise EarlierMissingError
        if piece.end <= self._end:
            return False
        if (unit := self.part.add(piece, data)) is None:
            return True
        with self._reaches(piece.end), temporary_errors_mean_full(self.path):
            make_directories(os.path.dirname(self.path))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                # A receiver that was killed may have written a part of it.
                write_all(descriptor, [unit], piece.start)
            finally:
                os.close(descriptor)
        self.part.drop(piece.start)
        return True

    @property
    def _end(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_size
        return 0

    def skip(self, piece: Piece, data: bytes) -> int:  # noqa: ARG002  # as the others
        """Leave a hole."""
        if piece.offset > piece.start:
            self.part.drop(piece.start)
            raise MessageError(f"{self.path}: what is before byte {piece.offset} of its record is missing")
        missing = piece.offset - self._end
        if missing > self._most:
            raise MessageError(f"{self.path}: {missing} bytes before a message are missing")
        with self._reaches(piece.offset), temporary_errors_mean_full(self.path):
            make_directories(os.path.dirname(self.path))
            with open(self.path, "ab") as file:
                os.truncate(file.fileno(), piece.offset)
        return missing

    @contextmanager
    def _reaches(self, end: int) -> Iterator[None]:
        """Convert the error of a file that may not be so long to MessageError."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise MessageError(f"{self.path}: no file can have {end} bytes there") from error


def make_directories(path: str) -> None:
    """Make a directory, and those that it is in, each safe on disk."""
    with suppress(FileExistsError):
        try:
            os.mkdir(path)
        except FileNotFoundError:
            make_directories(os.path.dirname(path))
            os.mkdir(path)
        _sync(path)


def _sync(path: str) -> None:
    for one in (path, os.path.dirname(path)):
        descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
