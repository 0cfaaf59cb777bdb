"""A recording as one stream, for a pipe: a tar archive, whose members appear as the packets come.

`tar x` makes of it what a recording to a directory is. As a member's length comes before it, each batch of packets is a
file of its own, cpu0, cpu0_1, cpu0_2 ...; events that are declared later come as a later metadata, which replaces the
first.
"""

from __future__ import annotations

import os
import tarfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.record.full import OutputFullError, waiting_for
from relayfs_fuse.record.output import APART
from relayfs_fuse.record.packet import Packet
from relayfs_fuse.record.stream import before
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.record.packet import Head
    from relayfs_fuse.tracefiles.ctf import Origin


class TarOutput:
    """Record to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Of a member that is not written whole yet.
        self._left = memoryview(b"")
        self._names: set[str] = set()
        self._n_apart: dict[str, int] = {}

    def process(self, name: str, origin: Origin) -> TarProcess:  # noqa: ARG002  # as the other outputs
        """Begin what a process writes."""
        number, unique = 1, name
        while unique in self._names:
            number += 1
            unique = f"{name}-{number}"
        self._names.add(unique)
        return TarProcess(self, unique)

    def set_apart(self, process: str, name: str, data: bytes) -> None:
        """Write a file for each piece: it cannot be appended to."""
        path = f"{APART}/{process}/{name}"
        number = self._n_apart.get(path, 0)
        self._n_apart[path] = number + 1
        self.member(f"{path}_{number}" if number else path, data)

    def rotate(self) -> None:
        """Do nothing: what follows is of the same stream."""

    def close(self) -> None:
        """End the archive. OutputFullError: its end is missing, which cannot be had any more."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        try:
            self.write_rest()
        except OutputFullError as full:
            missing = f"the archive, of which the last {len(self._left)} bytes are missing"
            raise OutputFullError(full.errno, full.strerror, missing) from full

    def member(self, name: str, data: bytes) -> None:
        """Write a file."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mtime = int(time.time())
        self._write(info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE))

    def write_rest(self) -> None:
        """Write what is left of the last members. OutputFullError: not now."""
        with waiting_for("the archive"):
            while self._left:
                self._left = self._left[os.write(self._descriptor, self._left) :]

    def _write(self, data: bytes) -> None:
        """Write data; what there is no room for is left to the next write_rest(), and counts as written."""
        self._left = memoryview(bytes(self._left) + data)
        with suppress(OutputFullError):
            self.write_rest()


class TarProcess:
    """What one process writes."""

    def __init__(self, output: TarOutput, name: str) -> None:
        self._output = output
        self._name = name
        self._metadata = b""
        self._uuid = ctf.new_uuid()
        self._is_written = True
        self._last: dict[int, Head] = {}
        self._n_files: dict[int, int] = {}

    def last(self, cpu: int) -> Head | None:
        """Tell what is known of the last packet of a stream."""
        return self._last.get(cpu)

    def metadata(self) -> bytes:
        """Return what was given before."""
        return self._metadata

    def set_metadata(self, data: bytes) -> None:
        """Write it before the next packets."""
        self._metadata, self._is_written = ctf.with_uuid(data, self._uuid), False

    def set_apart(self, name: str, data: bytes) -> None:
        """Write a file of what viewers are not to see."""
        self._output.set_apart(self._name, name, data)

    def append(self, cpu: int, packets: Sequence[Packet], is_valid: Callable[[], bool]) -> bool:
        """Write packets as a file, if they were valid all the time; tell whether they were."""
        self._output.write_rest()
        pieces = []
        if cpu not in self._last:
            pieces.append(before(packets[0].head).pack())
        for packet in packets:
            pieces += [packet.head.pack(), *packet.body]
        data = b"".join(pieces)
        if not is_valid():
            return False
        if not self._is_written:
            self._output.member(f"{self._name}/metadata", self._metadata)
            self._is_written = True
        number = self._n_files.get(cpu, 0)
        self._output.member(f"{self._name}/cpu{cpu}_{number}" if number else f"{self._name}/cpu{cpu}", data)
        self._n_files[cpu] = number + 1
        self._last[cpu] = packets[-1].head
        return True

    def close(self, discarded: dict[int, int]) -> None:
        """Write what was lost since the last packets, and the last metadata."""
        for cpu, last in list(self._last.items()):
            if discarded.get(cpu, 0) > last.events_discarded:
                end = last.empty(events_discarded=discarded[cpu], timestamp_begin=last.timestamp_end)
                self.append(cpu, [Packet(end, [])], lambda: True)
        if self._last and not self._is_written:
            self._output.member(f"{self._name}/metadata", self._metadata)
            self._is_written = True
