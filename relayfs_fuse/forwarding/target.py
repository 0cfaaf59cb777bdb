"""The directory of received recordings.

DIR/HOST/RECORDING/...                   each recording, byte for byte as its machine has it, and CTF at any time
DIR/.received/name                       the name of this directory at the server
DIR/.received/turn                       locked by the receiver that writes; holds the one that wrote last
DIR/.received/files/HOST/RECORDING/...   of each file FILE there:
    .FILE.known                          of one that is sent as a whole: where its unit starts; of one that was removed
                                         to make room: how much of it is known
    .FILE.START                          the first messages of the unit that starts there
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.names import UNIT_BYTES, Kind, MessageError, Place
from relayfs_fuse.forwarding.written import AppendedFile, EarlierMissingError, PacketsFile, Part, WholeFile
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.record.stream import OpenFiles
from relayfs_fuse.tracefiles.streams import MARK, METADATA, RECEIVED

if TYPE_CHECKING:
    from relayfs_fuse.forwarding.names import Message
    from relayfs_fuse.forwarding.written import Written

# So many files are remembered; others are looked at again when a message for them comes.
_FILES_MAX = 4096
_TOKEN_BYTES = 64
_CHANNEL_BYTES = 1 << 43
_MARK_BYTES = 4096


class Target:
    """The directory, which several receivers may write to, each with a Target.

    path: is made if it does not exist. RelayError, OSError: it cannot be used
    name: of this directory at the server
    """

    def __init__(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.path = os.path.realpath(path)
        self._state = os.path.join(self.path, RECEIVED)
        os.makedirs(self._state, mode=0o755, exist_ok=True)
        self._turn = os.open(os.path.join(self._state, "turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._token = uuid.uuid4().hex.encode()
        self._open_files = OpenFiles()
        self._files: dict[Place, Written] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self._changed: dict[Place, Written] = {}
        self.name = self._name()

    def close(self) -> None:
        """Close all files; they stay as they are."""
        self._forget()
        os.close(self._turn)

    def _name(self) -> str:
        """Return the name; of several receivers that make it, one does so first."""
        path = os.path.join(self._state, "name")
        if not os.path.exists(path):
            new = f"{path}-{uuid.uuid4().hex}"
            write_atomically(new, f"relayfs-{uuid.uuid4().hex}\n".encode())
            with suppress(FileExistsError):
                os.link(new, path)
            os.unlink(new)
        with open(path, encoding="ascii", errors="replace") as file:
            name = re.fullmatch(r"relayfs-[0-9a-f]{32}", file.read(_TOKEN_BYTES).strip())
        if not name:
            raise RelayError(f"{path} has no name that a receiver has written; without the file it gets all again")
        return name[0]

    def begin(self) -> bool:
        """Begin to write, until end(); False: another receiver does so now."""
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.pread(self._turn, _TOKEN_BYTES, 0) != self._token:
            self._forget()
            os.pwrite(self._turn, self._token, 0)
        return True

    def end(self) -> None:
        """Let other receivers write. What is not safe on disk yet is synchronized first."""
        self.sync()
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _forget(self) -> None:
        for file in self._files.values():
            file.forget()
        self._files, self._origins = {}, {}

    def take(self, message: Message) -> bool:
        """Write what a message holds, between begin() and end(); return whether it is new.

        EarlierMissingError: messages before it are missing. MessageError: it is wrong, and nothing was written.
        OutputFullError: there is no room for it now.
        """
        place, piece = message.place, message.piece
        self._check_origin(message)
        if piece.metadata is not None and place.kind is Kind.PACKETS and not self._metadata(place).has(piece.metadata):
            raise EarlierMissingError(_metadata_of(place))
        file = self.file(place)
        try:
            is_new = file.take(piece, message.data)
        except EarlierMissingError:
            raise EarlierMissingError(place) from None
        if is_new:
            self._changed[place] = file
        return is_new

    def skip(self, message: Message) -> int:
        """Do without the messages before one, which nobody has any more; return how many bytes of the file are missing.

        MessageError: it is of no use without them. OutputFullError: as take()
        """
        file = self.file(message.place)
        self._changed[message.place] = file
        return file.skip(message.piece, message.data)

    def _check_origin(self, message: Message) -> None:
        """Raise MessageError if the directory has another recording of this name."""
        place = message.place
        key = place.host, place.recording
        if key not in self._origins:
            mark = os.path.join(self.path, *key, MARK)
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                open(mark, encoding="utf-8", errors="replace") as file,
            ):
                self._origins[key] = file.read(_MARK_BYTES).strip()
        if self._origins.get(key, message.origin) != message.origin:
            raise MessageError(f"{place.host}/{place.recording} is another recording here: {self._origins[key]}")

    def _metadata(self, place: Place) -> WholeFile:
        file = self.file(_metadata_of(place))
        assert isinstance(file, WholeFile)
        return file

    def waive_metadata(self, place: Place, start: int) -> None:
        """Take packets that need metadata which nobody has any more.

        place: of the metadata
        start: where its unit starts
        """
        file = self.file(place)
        assert isinstance(file, WholeFile)
        file.waived = start

    def sync(self) -> None:
        """Have the disk hold what was written."""
        for file in self._changed.values():
            file.sync()
        self._changed = {}

    def remove(self, place: Place) -> None:
        """Remove a file of packets, between begin() and end(). MessageError, OutputFullError: as take()."""
        file = self.file(place)
        assert isinstance(file, PacketsFile)
        file.remove()
        del self._files[place]
        self._changed.pop(place, None)

    def forget(self, place: Place) -> None:
        """Look at a file again, which was removed."""
        self._files.pop(place, None)

    def file(self, place: Place) -> Written:
        """Return a file, which need not exist. MessageError: its name is another's in the directory."""
        if place not in self._files:
            if len(self._files) >= _FILES_MAX:
                self._forget()
            self._files[place] = self._look(place)
        return self._files[place]

    def _look(self, place: Place) -> Written:
        directory = os.path.join(self.path, place.host, place.recording)
        part = Part(os.path.join(self._state, "files", place.host, place.recording, place.path))
        path = os.path.join(directory, place.path)
        self._check(path)
        if place.kind is Kind.PACKETS:
            return PacketsFile(path, part, self._open_files)
        if place.kind is Kind.WHOLE:
            return WholeFile(path, part)
        # Of a channel, a receiver may be late by as much as there ever was.
        return AppendedFile(path, part, UNIT_BYTES if "/" in place.path else _CHANNEL_BYTES)

    def _check(self, path: str) -> None:
        """Raise MessageError if anything on the way to a file is a symbolic link, or has the wrong type."""
        at = self.path
        *directories, _ = names = os.path.relpath(path, self.path).split("/")
        for n, name in enumerate(names):
            at = os.path.join(at, name)
            with suppress(FileNotFoundError):
                mode = os.lstat(at).st_mode
                if not (stat.S_ISDIR(mode) if n < len(directories) else stat.S_ISREG(mode)):
                    raise MessageError(f"{at} is no {'directory' if n < len(directories) else 'regular file'}")


def _metadata_of(place: Place) -> Place:
    return Place(place.host, place.recording, os.path.join(os.path.dirname(place.path), METADATA))
