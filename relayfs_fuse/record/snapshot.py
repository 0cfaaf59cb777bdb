"""What the buffers of a trace hold now, as files: nothing is consumed, and nobody is stopped."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native_packets import copy_packets
from relayfs_fuse.record.packet import HEAD_BYTES, Packet, unpack
from relayfs_fuse.record.process import Process
from relayfs_fuse.record.recording import SpoiledError, Summary, check_heads, reason
from relayfs_fuse.record.stream import before

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native_packets import Consumer
    from relayfs_fuse.record.packet import Head
    from relayfs_fuse.record.source import Source


class Snapshot:
    """Write a directory for each process, as a recording has them, but complete at once.

    path: is made, or is empty; RelayError: it is not
    say: is given a line for people about what went wrong
    """

    def __init__(self, source: Source, path: str, say: Callable[[str], None]) -> None:
        self.summary = Summary()
        self._source = source
        self._path = path
        self._say = say
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise RelayError(f"{path} is not empty")

    def take(self, tick: Callable[[], None]) -> None:
        """Take it. OSError: it cannot be written."""
        for name in self._source.processes():
            try:
                self._take(name)
            except SpoiledError as spoiled:
                self._mark(name, str(spoiled))
            tick()

    def _take(self, name: str) -> None:
        try:
            process = Process(os.path.join(self._source.directory, name))
        except FileNotFoundError:
            return
        except ValueError as error:
            raise SpoiledError(str(error)) from error
        except OSError as error:
            if error.errno in (errno.EBADMSG, errno.EPROTO):
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
            process.flush()
            for cpu, consumer in process.buffers.items():
                self._write_stream(process, cpu, consumer, os.path.join(hidden, f"cpu{cpu}"))
        finally:
            if os.listdir(hidden):
                with open(os.path.join(hidden, "metadata"), "wb") as file:
                    file.write(process.metadata(self._source.clocks()))
                os.rename(hidden, os.path.join(self._path, process.name))
            else:
                os.rmdir(hidden)

    def _write_stream(self, process: Process, cpu: int, consumer: Consumer, path: str) -> None:
        last: Head | None = None
        copies = copy_packets(consumer.buffer, process.subbuf_size)
        while True:
            try:
                copy = next(copies, None)
            except OSError as error:
                raise SpoiledError(f"cpu{cpu}: {reason(error)}") from error
            if copy is None:
                return
            head = unpack(copy)
            if head is None or head.packet_bytes != len(copy):
                raise SpoiledError(f"cpu{cpu}: there is no packet where one should be")
            if last is None and head.is_empty and not head.events_discarded:
                continue  # to finish a sub-buffer of which nothing was used makes a packet, too
            packet = Packet(head, [copy[HEAD_BYTES:]])
            check_heads(cpu, [packet], last, process.origin)
            with open(path, "ab") as file:
                file.write((b"" if last else before(head).pack()) + packet.head.pack())
                file.write(packet.body[0])
            self.summary.lost += packet.head.events_discarded - (last.events_discarded if last else 0)
            self.summary.packets += 1
            self.summary.bytes += len(copy)
            last = packet.head

    def _mark(self, name: str, why: str) -> None:
        with open(os.path.join(self._path, f"{name}.damaged"), "w", encoding="utf-8") as file:
            file.write(f"{why}\n")
        self.summary.damaged[name] = why
        self._say(f"{name} is damaged: {why}")
