"""The directory of a recording, as `relayctl record` writes it and `relayctl forward` reads it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.names import FRAMING, kind_of
from relayfs_fuse.record.rings import UNFINISHED
from relayfs_fuse.tracefiles.recorded import open_regular, regular_descriptor, unpack
from relayfs_fuse.tracefiles.streams import COMPRESSED, MARK, QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MARK_BYTES = 4096
# Times of files have the resolution of the kernel's tick; this is longer.
_TICK_NS = 100_000_000
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None)
_NUMBER = re.compile(r"\d{4,}", re.ASCII)
_BOOT = re.compile(r"\bboot=(\S+)")


class Recording:
    """A recording that may grow.

    path: its directory
    origin: the text by which its recorder knows the trace again
    boot: the boot in which the trace was made

    RelayError: it is none of a trace
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            with open_regular(os.path.join(path, MARK)) as file:
                self.origin = file.read(_MARK_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:
            os.listdir(path)  # to say so if it is no directory
            raise RelayError(f"{path} is no recording of a trace by `relayctl record`: it has no {MARK}") from None
        boot = _BOOT.search(self.origin)
        if not boot:
            raise RelayError(f"{os.path.join(path, MARK)} names no boot")
        self.boot = boot[1]

    @cached_property
    def framing(self) -> str:
        """Where records of a ring end, see framing.py; "": nothing tells."""
        with suppress(FileNotFoundError), open_regular(os.path.join(self.path, FRAMING)) as file:
            return file.read(_MARK_BYTES).decode("ascii").strip()
        return ""

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """Iterate over its directories, and the paths of the files in them."""
        for directory, directories, names in os.walk(self.path):
            inside = os.path.relpath(directory, self.path)
            inside = "" if inside == "." else inside
            directories[:] = sorted(name for name in directories if not name.startswith(".") or name == QUARANTINE)
            if found := _paths(inside, names):
                yield inside, found

    def paths(self, directory: str) -> list[str]:
        """Return the paths of the files that are in a directory now."""
        return _paths(directory, os.listdir(os.path.join(self.path, directory)))

    def changed(self, path: str) -> tuple[int, ...]:
        """Return what tells whether a file has changed; (): it has just changed, and a further change may not be told.

        FileNotFoundError: there is none any more
        """
        full = os.path.join(self.path, path)
        try:
            status = os.stat(full)
        except FileNotFoundError:
            status = os.stat(full + COMPRESSED)
        if time.time_ns() - status.st_mtime_ns < _TICK_NS:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def has_left(self, directory: str) -> bool:
        """Return whether a directory is complete: the recorder has gone on in one of a later number."""
        number = directory.partition("/")[0]
        return bool(_NUMBER.fullmatch(number)) and any(
            _NUMBER.fullmatch(name) and int(name) > int(number) for name in os.listdir(self.path)
        )

    def remove(self, directory: str) -> None:
        """Remove a directory that its recorder has left; the numbered one when nothing is left in it."""
        shutil.rmtree(os.path.join(self.path, directory))
        with suppress(OSError):
            os.rmdir(os.path.join(self.path, directory.partition("/")[0]))

    def free(self, path: str, end: int) -> None:
        """Free what the disk has of a file up to an offset; the file is as long as before."""
        descriptor = os.open(os.path.join(self.path, path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A file system that cannot keeps it until remove_all().
            _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end))
        finally:
            os.close(descriptor)

    def remove_all(self) -> None:
        """Remove the recording, which its recorder has left; its mark at last, as without it nobody would go on."""
        for entry in list(os.scandir(self.path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != MARK:
                os.unlink(entry.path)
        os.unlink(os.path.join(self.path, MARK))
        os.rmdir(self.path)

    def open(self, path: str) -> OpenFile:
        """Open a file for reading. FileNotFoundError: there is none any more."""
        return OpenFile(os.path.join(self.path, path))


def _paths(directory: str, names: Iterable[str]) -> list[str]:
    """Return the paths of files that are sent, of all the names that a directory has."""
    plain = {os.path.join(directory, name.removesuffix(COMPRESSED)) for name in names}
    return sorted(path for path in plain if kind_of(path))


class OpenFile:
    """A file of a recording; a compressed one is unpacked.

    It is open only while something is read: the recorder replaces a file that others have open by a copy when it is
    complete.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._unpacked: BinaryIO | None = None

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unpacked:
            self._unpacked.close()

    def descriptor(self) -> int:
        """Return a descriptor, which release() closes. RelayError: it is no regular file, or cannot be unpacked."""
        if self._unpacked is None:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            with suppress(FileNotFoundError):
                return regular_descriptor(self._path, flags)
            compressed = self._path + COMPRESSED
            with open(compressed, "rb", opener=lambda path, _: regular_descriptor(path, flags)) as source:
                self._unpacked = tempfile.TemporaryFile(prefix="relayctl-")  # noqa: SIM115  # until __exit__()
                unpack(source, self._unpacked)
                self._unpacked.flush()
        return self._unpacked.fileno()

    def release(self, descriptor: int) -> None:
        """Close what descriptor() has returned."""
        if self._unpacked is None:
            os.close(descriptor)

    def settled(self) -> int:
        """Return up to where a file that grows by any bytes will not change: a part of a block may be taken back."""
        descriptor = self.descriptor()
        try:
            # In this order: the recorder sets the attribute, and writes then.
            size = os.fstat(descriptor).st_size
            with suppress(OSError, ValueError):
                _, start, length = map(int, os.getxattr(descriptor, UNFINISHED).split()[1:])
                if start <= size < start + length:
                    return start
            return size
        finally:
            self.release(descriptor)

    def read(self, n: int, at: int) -> bytes:
        """Read up to n bytes."""
        descriptor = self.descriptor()
        try:
            return os.pread(descriptor, n, at)
        finally:
            self.release(descriptor)
