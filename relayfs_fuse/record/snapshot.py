"""What the buffers of a trace hold now, as files: nothing is consumed, and nobody is stopped."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.packets import copy_packets
from relayfs_fuse.record.output import APART
from relayfs_fuse.record.packet import HEAD_BYTES, Packet, unpack
from relayfs_fuse.record.process import Process
from relayfs_fuse.record.recording import SpoiledError, Summary, check_heads, latest, reason, spoiling
from relayfs_fuse.record.stream import before
from relayfs_fuse.record.trust import owner
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native.packets import Consumer
    from relayfs_fuse.record.packet import Head
    from relayfs_fuse.record.source import Source


class Snapshot:
    """Write a directory for each process, as a recording has them, but complete at once.

    path: is made, or is empty; RelayError: it is not
    say: is given a line for people about what went wrong
    check: whose packets to check, one of trust.CHECKS
    """

    def __init__(self, source: Source, path: str, say: Callable[[str], None], check: str = "others") -> None:
        self.summary = Summary()
        self._source = source
        self._path = path
        self._say = say
        self._check = check
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise RelayError(f"{path} is not empty")

    def take(self, tick: Callable[[], None]) -> None:
        """Take it. OSError: it cannot be written."""
        self.summary.note_lost_without_buffers(*self._source.lost_without_buffers())
        for name in self._source.processes():
            try:
                self._take(name)
            except SpoiledError as spoiled:
                self._mark(name, str(spoiled))
            tick()

    def _take(self, name: str) -> None:
        try:
            process = Process(os.path.join(self._source.directory, name), self._check, self._source.trace)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise SpoiledError(str(error)) from error
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                raise SpoiledError(reason(error)) from error
            self.summary.skipped[name] = reason(error)
            self._say(f"{name}: {reason(error)}")
            return
        try:
            self.summary.processes += 1
            self.summary.buffers += len(process.buffers)
            self._write(process)
        finally:
            process.close()

    def _write(self, process: Process) -> None:
        """Write all streams to a hidden directory, which appears when it is whole, or as far as the memory is."""
        hidden = os.path.join(self._path, f".{process.name}")
        os.mkdir(hidden)
        try:
            with spoiling():
                process.flush()
                process.check_size()
            for cpu, why in process.unfinished.items():
                self._say(f"{process.name}: the last events in cpu{cpu} are not in it: {why}")
            for cpu, consumer in process.buffers.items():
                self._write_stream(process, cpu, consumer, os.path.join(hidden, f"cpu{cpu}"))
        finally:
            if os.listdir(hidden):
                with open(os.path.join(hidden, "metadata"), "wb") as file:
                    file.write(ctf.with_uuid(self._metadata(process), ctf.new_uuid()))
                os.rename(hidden, os.path.join(self._path, process.name))
            else:
                os.rmdir(hidden)

    def _metadata(self, process: Process) -> bytes:
        with spoiling(".events"):
            return process.metadata(self._source.clocks(), self._source.unbuffered)

    def _packets(self, process: Process, cpu: int, consumer: Consumer) -> Iterator[tuple[Packet, int]]:
        """Copy packets, each valid until the next; and say how many events the buffer says are in it."""
        copies = copy_packets(consumer.buffer, process.subbuf_size)
        while True:
            with spoiling(f"cpu{cpu}"):
                found = next(copies, None)
            if found is None:
                return
            copy, n_records = found
            head = unpack(copy)
            if head is None or head.packet_bytes != len(copy):
                raise SpoiledError(f"cpu{cpu}: there is no packet where one should be")
            yield Packet(head, [copy[HEAD_BYTES:]]), n_records

    def _write_stream(self, process: Process, cpu: int, consumer: Consumer, path: str) -> None:
        last: Head | None = None
        n_apart = 0
        for packet, n_records in self._packets(process, cpu, consumer):
            if last is None and packet.head.is_empty and not packet.head.events_discarded:
                continue  # to finish a sub-buffer of which nothing was used makes a packet, too
            packet.head = packet.head._replace(events_discarded=packet.head.events_discarded + n_apart)
            check_heads(cpu, [packet], last, latest(process.origin, self._source.clocks()))
            good, n_lost = self._checked(process, cpu, packet, n_records)
            n_apart += n_lost
            with open(path, "ab") as file:
                file.write((b"" if last else before(good.head).pack()) + good.head.pack())
                file.write(good.body[0])
            self.summary.lost += good.head.events_discarded - (last.events_discarded if last else 0)
            self.summary.packets += 1
            self.summary.bytes += good.head.packet_bytes
            last = good.head

    def _checked(self, process: Process, cpu: int, packet: Packet, n_records: int) -> tuple[Packet, int]:
        """Return the good part of a packet, and how many events are in the rest, which is set apart."""
        if not process.checker:
            return packet, 0
        with spoiling(".events"):
            process.read_declarations()
        good, n_events, most_lost, fault = process.checker.check(packet)
        if not most_lost:
            return packet, 0
        n_lost = min(most_lost, max(1, n_records - n_events))
        good.head = good.head._replace(events_discarded=good.head.events_discarded + n_lost)
        why = f"cpu{cpu}: packet {packet.head.packet_seq_num}: {fault}"
        if process.name not in self.summary.damaged:
            self._mark(process.name, why)
            self._set_apart(process.name, "events", process.raw_events())
        self._set_apart(process.name, f"cpu{cpu}", packet.head.pack(), packet.body[0])
        return good, n_lost

    def _mark(self, name: str, why: str) -> None:
        self.summary.damaged[name] = why
        self._set_apart(name, "why", f"{why}\n".encode())
        try:
            whose = f" (uid {owner(os.path.join(self._source.directory, name))})"
        except OSError:
            whose = ""  # it is gone
        self._say(f"{name}{whose} is damaged: {why}")

    def _set_apart(self, process: str, name: str, *data: Any) -> None:
        directory = os.path.join(self._path, APART, process)
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, name), "ab") as file:
            file.writelines(data)
