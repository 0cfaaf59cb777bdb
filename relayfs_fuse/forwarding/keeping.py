"""Removes old files of received recordings, so that their directory stays within bounds.

Files of packets are removed one by one, those that were written to longest ago first; a directory of a process goes
with its last one. How much of a file was received is remembered: what is removed does not come again, and a file that
still grows goes on with an empty packet in place of what was removed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.forwarding.names import Kind, Place, is_beside, kind_of
from relayfs_fuse.reading.packet import HEAD_BYTES, unpack
from relayfs_fuse.tracefiles import clock_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.forwarding.target import Target

_BLOCK_BYTES = 512
# A recorder that goes on has noted the clocks in this time, and its notes are here.
_NOTED_S = 600.0


@dataclass(frozen=True)
class Bounds:
    """What is kept.

    age_s: seconds since a file was written to; None: however long ago
    bytes: of all files together; files that still grow are kept in any case. None: however many
    """

    age_s: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class _File:
    place: Place
    path: str
    bytes: int
    written_s: float


def prune(target: Target, bounds: Bounds, now_s: float) -> int:
    """Remove what is beyond the bounds, between begin() and end() of the target; return how many files were removed."""
    files = sorted(_files(target.path), key=lambda file: file.written_s)
    total = sum(file.bytes for file in files)
    n_removed = 0
    for file in files:
        is_old = bounds.age_s is not None and file.written_s < now_s - bounds.age_s
        is_complete = _is_complete(file.path)
        if not is_old and not (bounds.bytes is not None and total > bounds.bytes and is_complete):
            continue
        with suppress(RelayError, FileNotFoundError):
            target.remove(file.place)
            total -= file.bytes
            n_removed += 1
            if is_complete:
                _remove_empty(target, file.place)
    for host in _visible(target.path):
        for recording in _visible(os.path.join(target.path, host)):
            _remove_left(target, Place(host, recording, ""), now_s)
    return n_removed


def _visible(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [
            entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        ]


def _files(directory: str) -> Iterator[_File]:
    """Iterate over the files of packets."""
    for path, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        host, _, rest = os.path.relpath(path, directory).partition("/")
        recording, _, inside = rest.partition("/")
        for name in names:
            if inside and kind_of(os.path.join(inside, name)) is Kind.PACKETS:
                full = os.path.join(path, name)
                with suppress(FileNotFoundError):
                    status = os.lstat(full)
                    place = Place(host, recording, os.path.join(inside, name))
                    yield _File(place, full, status.st_blocks * _BLOCK_BYTES, status.st_mtime)


def _is_complete(path: str) -> bool:
    """Return whether a file ends with the header that a complete one ends with."""
    with suppress(OSError), open(path, "rb") as file:
        head = unpack(os.pread(file.fileno(), HEAD_BYTES, max(0, os.fstat(file.fileno()).st_size - HEAD_BYTES)))
        return head is not None and head.packet_bytes == HEAD_BYTES
    return False


def _remove_empty(target: Target, place: Place) -> None:
    """Remove the directory of a process without files of packets, and those above it that are empty then."""
    inside = os.path.dirname(place.path)
    _remove_directory(target, Place(place.host, place.recording, inside))
    top = os.path.join(target.path, place.host, place.recording)
    with suppress(OSError):
        os.rmdir(os.path.join(top, os.path.dirname(inside)) if "/" in inside else os.path.join(top, inside))
    left = os.listdir(top)
    if clock_pairs.FILE not in left and all(map(is_beside, left)):
        _remove_recording(target, Place(place.host, place.recording, ""))


def _remove_left(target: Target, place: Place, now_s: float) -> None:
    """Remove a recording without processes whose recorder notes the clocks no more, which it does each minute.

    place: with an empty path
    """
    directory = os.path.join(target.path, place.host, place.recording)
    with suppress(FileNotFoundError):
        written_s = os.lstat(os.path.join(directory, clock_pairs.FILE)).st_mtime
        if all(map(is_beside, os.listdir(directory))) and written_s < now_s - _NOTED_S:
            _remove_recording(target, place)


def _remove_recording(target: Target, place: Place) -> None:
    """Remove what a recording has when the directories of all its processes are removed."""
    _remove_directory(target, place)
    with suppress(OSError):
        os.rmdir(os.path.join(target.path, place.host))


def _remove_directory(target: Target, place: Place) -> None:
    """Remove a directory that has only files beside packets and records, which are gone.

    place: its path is that of the directory
    """
    directory = os.path.join(target.path, place.host, place.recording, place.path)
    with os.scandir(directory) as entries:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    paths = [os.path.join(place.path, name) for name in found]
    if not all(found.values()) or not all(map(is_beside, paths)):
        return
    for path in paths:
        os.unlink(os.path.join(target.path, place.host, place.recording, path))
        target.forget(Place(place.host, place.recording, path))
    os.rmdir(directory)
