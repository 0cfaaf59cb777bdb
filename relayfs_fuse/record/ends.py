"""The file DIR/.ends of a recording with rotation: the last headers of all streams at the last rotation.

A directory that is complete may be removed before the next one has room for what says how many events were lost before
it. A recorder that goes on then has the counts from here. The file gets its room while streams begin, so that a
rotation writes it also on a disk that is full.

It has entries PROCESS HEADER of one size, and zeros behind them; PROCESS is a hash of what identifies the process.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from relayfs_fuse.reading.packet import HEAD_BYTES, Head
from relayfs_fuse.record.full import BLOCK_BYTES
from relayfs_fuse.record.writing import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE = ".ends"
_HASH_BYTES = 16
_ENTRY_BYTES = _HASH_BYTES + HEAD_BYTES


class Ends:
    """The file in a directory, which is made if there is none.

    OSError, of all methods that change it: there is no room
    """

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, FILE)
        # Of processes that an earlier recorder has recorded.
        self._heads: dict[bytes, list[Head]] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o644)
        self._room = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, self._room, 0)
        for at in range(0, len(data) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
            process = data[at : at + _HASH_BYTES]
            if any(process):
                self._heads.setdefault(process, []).append(Head.of(data[at + _HASH_BYTES : at + _ENTRY_BYTES]))

    def of(self, process: str) -> dict[int, Head]:
        """Return the headers of a process's streams, by CPU, that an earlier recorder has left."""
        return {head.stream_instance_id: head for head in self._heads.get(_hash(process), ())}

    def missing(self, n: int) -> int:
        """Return how many bytes the file has to grow for so many streams besides those that only an earlier one had."""
        n_bytes = _ENTRY_BYTES * (n + sum(map(len, self._heads.values())))
        return max(0, -(-n_bytes // BLOCK_BYTES) * BLOCK_BYTES - self._room)

    def grow(self, n_bytes: int) -> None:
        """Take room on the disk."""
        write_all(self._descriptor, [bytes(n_bytes)], self._room)
        self._room += n_bytes

    def write(self, heads: Mapping[str, Iterable[Head]]) -> None:
        """Replace the headers of processes; those of processes that are not recorded now stay."""
        entries = self._heads | {_hash(process): list(some) for process, some in heads.items()}
        data = b"".join(process + head.pack() for process, some in entries.items() for head in some)
        write_all(self._descriptor, [data.ljust(self._room, b"\0")], 0)
        self._room = max(self._room, len(data))

    def forget(self, process: str) -> None:
        """Leave a process out that has ended."""
        self._heads.pop(_hash(process), None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _hash(process: str) -> bytes:
    return hashlib.sha256(os.fsencode(process)).digest()[:_HASH_BYTES]
