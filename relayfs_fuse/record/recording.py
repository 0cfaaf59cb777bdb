"""One process's events on their way from its buffers to an output.

A packet is consumed after it is in the file. Whoever is killed between the two finds it in both, and writes it no more:
see Recording._take(). What is found in the buffers is checked as far as it could spoil more than what this process
wrote.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relayfs_fuse import ctf, native_trace
from relayfs_fuse.record import packet as packets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.ctf import Origin
    from relayfs_fuse.native_packets import Consumer
    from relayfs_fuse.record.output import ProcessOutput
    from relayfs_fuse.record.packet import Head, Packet
    from relayfs_fuse.record.process import Process
    from relayfs_fuse.record.source import Source

# How much a time may be wrong that comes from another CPU, or from who is just writing, in ticks of either clock.
_SKEW = 1_000_000_000
_AHEAD_NS = 10_000_000_000
# It may be overwritten as fast as it is read; the next time may be better.
_TRIES = 8
# Other readers take so long at most.
_BUSY_S = 3.0
# The library describes so many packets at once.
_PACKETS_AT_ONCE = 256


class SpoiledError(Exception):
    """Say what is wrong with a process's memory."""


@dataclass
class Summary:
    """What was recorded.

    lost: events that were refused or overwritten, as the packets tell
    damaged: processes whose memory was spoiled, and how
    skipped: processes that may not be read, and why
    """

    bytes: int = 0
    packets: int = 0
    lost: int = 0
    processes: int = 0
    buffers: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def reason(error: OSError) -> str:
    """Tell people what went wrong."""
    return os.strerror(error.errno or errno.EIO)


def check_heads(cpu: int, packets: list[Packet], last: Head | None, origin: Origin) -> None:
    """Refuse heads that cannot be: one process's are not to make the whole trace unreadable.

    last: what is known of the packet before them
    """
    latest = _latest(origin)
    for packet in packets:
        head = packet.head
        if last and head.timestamp_begin < last.timestamp_end <= head.timestamp_begin + _SKEW:
            head = head._replace(timestamp_begin=last.timestamp_end)
            head = head._replace(timestamp_end=max(head.timestamp_begin, head.timestamp_end))
        begin = last.timestamp_end if last else 0
        if not begin <= head.timestamp_begin <= head.timestamp_end <= latest:
            raise SpoiledError(f"cpu{cpu}: packet {head.packet_seq_num} has a time that cannot be")
        if head.stream_instance_id != cpu:
            raise SpoiledError(f"cpu{cpu}: packet {head.packet_seq_num} is of another CPU")
        if last and head.events_discarded < last.events_discarded:
            head = head._replace(events_discarded=last.events_discarded)
        packet.head = last = head


def _latest(origin: Origin) -> int:
    """Return a time that no packet can have, by the trace's clock."""
    if origin.boot != native_trace.boot_id():
        return 1 << 64
    clocks = native_trace.read_clocks()
    return clocks.tsc + 16 * _AHEAD_NS if origin.is_tsc else clocks.mono_ns + _AHEAD_NS


class Recording:
    """What one process writes, on its way."""

    def __init__(self, process: Process, output: ProcessOutput, source: Source) -> None:
        self.process = process
        self.output = output
        self._source = source
        self.died: float | None = None
        self._busy: dict[int, float] = {}
        process.learn(ctf.declarations(output.metadata()))
        self.update()

    def check(self) -> None:
        """Look whether the buffers are what they were."""
        try:
            self.process.lost()
        except OSError as error:
            raise SpoiledError(reason(error)) from error

    def update(self) -> None:
        """Bring the metadata up to date."""
        clocks = self._source.clocks()
        if self.process.has_new_metadata(clocks):
            self.output.set_metadata(self.process.metadata(clocks))

    def drain(self, summary: Summary) -> bool:
        """Take what is finished in all buffers; tell whether there was something."""
        taken = [self._drain(cpu, consumer, summary) for cpu, consumer in self.process.buffers.items()]
        return any(taken)

    def _drain(self, cpu: int, consumer: Consumer, summary: Summary) -> bool:
        limit: int | None = None
        for _ in range(_TRIES):
            packets, skipped, whole = self._begin(cpu, consumer, limit)
            if not packets and not skipped and whole:
                return False
            try:
                if whole and self._take(cpu, packets, consumer.valid, summary):
                    consumer.end()
                    return True
            finally:
                consumer.abort()
            # Not whole: the pieces were too many; else it was overwritten meanwhile: be quicker.
            some = packets if not whole else packets[: max(1, len(packets) // 2)]
            limit = skipped + sum(packet.head.packet_bytes for packet in some)
            if not limit:
                raise SpoiledError(f"cpu{cpu}: a packet in too many pieces")
        return False

    def _begin(self, cpu: int, consumer: Consumer, limit: int | None) -> tuple[list[Packet], int, bool]:
        try:
            pieces = consumer.begin() if limit is None else consumer.begin(limit)
            self._busy.pop(cpu, None)
            try:
                return packets_of.split(pieces)
            except ValueError:
                consumer.abort()
                raise
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise SpoiledError(f"cpu{cpu}: {reason(error)}") from error
        except ValueError as error:
            raise SpoiledError(f"cpu{cpu}: {error}") from error
        # Somebody else reads, who is soon done; or the memory only says so.
        if time.monotonic() - self._busy.setdefault(cpu, time.monotonic()) > _BUSY_S:
            raise SpoiledError(f"cpu{cpu}: it cannot be read as somebody does not end reading it")
        return [], 0, True

    def _take(self, cpu: int, packets: list[Packet], is_valid: Callable[[], bool], summary: Summary) -> bool:
        """Hand packets to the output, but for those that it has; tell whether they were valid."""
        last = self.output.last(cpu)
        if last:
            packets = [packet for packet in packets if packet.head.packet_seq_num > last.packet_seq_num]
        else:
            # To finish a sub-buffer of which nothing was used makes a packet, too.
            while packets and packets[0].head.is_empty and not packets[0].head.events_discarded:
                del packets[0]
        if not packets:
            return True
        check_heads(cpu, packets, last, self.process.origin)
        self.update()
        lost = last.events_discarded if last else 0
        try:
            if not self.output.append(cpu, packets, is_valid):
                return False
        except OSError as error:
            if error.errno == errno.EBADMSG:
                raise SpoiledError(f"cpu{cpu}: {reason(error)}") from error
            raise
        summary.packets += len(packets)
        summary.bytes += sum(packet.head.packet_bytes for packet in packets)
        summary.lost += packets[-1].head.events_discarded - lost
        return True

    def finish(self, summary: Summary) -> None:
        """Take all that there is now, also of sub-buffers that are not full, and complete the output."""
        self.flush()
        for _ in range(2 + self.process.n_subbufs // _PACKETS_AT_ONCE):
            if not self.drain(summary):
                break
        self.update()
        self.check()
        lost = self.process.lost()
        for cpu, n in lost.items():
            last = self.output.last(cpu)
            if last:
                summary.lost += max(0, n - last.events_discarded)
        self.output.close(lost)

    def flush(self) -> None:
        """Let also what is in sub-buffers that are not full be taken."""
        try:
            self.process.flush()
        except OSError as error:
            raise SpoiledError(reason(error)) from error
