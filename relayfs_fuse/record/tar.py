"""A recording as one stream, for a pipe: a tar archive, whose members are written as the packets arrive.

`tar x` unpacks it to a recording in a directory. Because a member's length precedes it, each batch of packets is a
separate file, cpu0, cpu0_1, cpu0_2 ...; if events are declared later, a further member `metadata` replaces the first.
"""

from __future__ import annotations

import os
import tarfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.native.trace import STATE_CPU
from relayfs_fuse.reading.packet import Packet
from relayfs_fuse.record.full import OutputFullError, temporary_errors_mean_full
from relayfs_fuse.tracefiles import clock_pairs, ctf, thread_names
from relayfs_fuse.tracefiles.streams import QUARANTINE, stream_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.tracefiles.ctf import Origin


class TarOutput:
    """Record to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # The rest of a member that is not written completely yet.
        self._unwritten = memoryview(b"")
        self._clocks = b""
        self._names: set[str] = set()
        self._n_quarantined: dict[str, int] = {}

    def process(self, name: str, origin: Origin) -> TarProcess:  # noqa: ARG002  # as the other outputs
        """Begin the recording of a process."""
        number, unique = 1, name
        while unique in self._names:
            number += 1
            unique = f"{name}-{number}"
        self._names.add(unique)
        return TarProcess(self, unique)

    def quarantine(self, process: str, name: str, data: bytes) -> None:
        """Write a separate file for each call, because members cannot be appended to."""
        path = f"{QUARANTINE}/{process}/{name}"
        number = self._n_quarantined.get(path, 0)
        self._n_quarantined[path] = number + 1
        self.member(f"{path}_{number}" if number else path, data)

    def note_clocks(self, lines: bytes) -> None:
        """Keep them for the end, because each further member takes room."""
        self._clocks += lines

    def rotate(self) -> None:
        """Do nothing: there is only one stream."""

    def close(self) -> None:
        """End the archive. OutputFullError: its end is missing, and cannot be written any more."""
        if self._clocks:
            self.member(clock_pairs.FILE, self._clocks)
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        try:
            self.write_rest()
        except OutputFullError as full:
            missing = f"the archive, of which the last {len(self._unwritten)} bytes are missing"
            raise OutputFullError(full.errno, full.strerror, missing) from full

    def member(self, name: str, data: bytes) -> None:
        """Write a file as a member."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mtime = int(time.time())
        self._write(info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE))

    def write_rest(self) -> None:
        """Write the rest of the last members. OutputFullError: there is no room for it now."""
        with temporary_errors_mean_full("the archive"):
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._descriptor, self._unwritten) :]

    def _write(self, data: bytes) -> None:
        """Write data. What does not fit now is kept for the next write_rest(), and counts as written."""
        self._unwritten = memoryview(bytes(self._unwritten) + data)
        with suppress(OutputFullError):
            self.write_rest()


class TarProcess:
    """The recording of one process."""

    def __init__(self, output: TarOutput, name: str) -> None:
        self._output = output
        self._name = name
        self._metadata = b""
        self._uuid = ctf.new_uuid()
        self._is_written = True
        self._threads = b""
        self._last: dict[int, Head] = {}
        self._n_files: dict[int, int] = {}

    def last(self, cpu: int) -> Head | None:
        """Return the header of the last packet of a stream."""
        return self._last.get(cpu)

    def has_events(self) -> bool:
        """Return whether there are streams besides that of states."""
        return any(cpu != STATE_CPU for cpu in self._last)

    def metadata(self) -> bytes:
        """Return the last metadata given."""
        return self._metadata

    def set_metadata(self, data: bytes) -> None:
        """Write metadata before the next packets."""
        self._metadata, self._is_written = ctf.with_uuid(data, self._uuid), False

    def threads(self) -> bytes:
        """Return the last names of threads given."""
        return self._threads

    def set_threads(self, data: bytes) -> None:
        """Write names of threads when the process ends, because each further member takes room."""
        self._threads = data

    def quarantine(self, name: str, data: bytes) -> None:
        """Write a file to .damaged, where viewers find no trace."""
        self._output.quarantine(self._name, name, data)

    def n_with_room(self, cpu: int, packets: Sequence[Packet]) -> int:  # noqa: ARG002  # as the other output
        """Return how many packets have room: all of them, as a stream has no limit."""
        return len(packets)

    def append(
        self,
        cpu: int,
        packets: Sequence[Packet],
        is_valid: Callable[[], bool],
        *,
        is_urgent: bool = False,  # noqa: ARG002  # as the other output
    ) -> bool:
        """Write packets as a file; False: is_valid() returned False after they were copied, so nothing was written."""
        self._output.write_rest()
        pieces = []
        if cpu not in self._last:
            pieces.append(packets[0].head.before().pack())
        for packet in packets:
            pieces += [packet.head.pack(), *packet.body]
        data = b"".join(pieces)
        if not is_valid():
            return False
        if not self._is_written:
            self._output.member(f"{self._name}/metadata", self._metadata)
            self._is_written = True
        number = self._n_files.get(cpu, 0)
        self._output.member(f"{self._name}/{stream_name(cpu, number)}", data)
        self._n_files[cpu] = number + 1
        self._last[cpu] = packets[-1].head
        return True

    def close(self, discarded: dict[int, int]) -> None:
        """Write the number of events lost since the last packets, names of threads, and the last metadata."""
        for cpu, last in list(self._last.items()):
            if discarded.get(cpu, 0) > last.events_discarded:
                end = last.empty(events_discarded=discarded[cpu], timestamp_begin=last.timestamp_end)
                self.append(cpu, [Packet(end, [])], lambda: True)
        if self._last and self._threads:
            self._output.member(f"{self._name}/{thread_names.FILE}", self._threads)
        if self._last and not self._is_written:
            self._output.member(f"{self._name}/metadata", self._metadata)
            self._is_written = True
