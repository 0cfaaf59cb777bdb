"""The recording of one process: from its buffers to an output.

A packet is written to the output and then consumed in the buffer. If the recorder is killed in between, the next one
finds the packet in both, and does not write it again: see Recording._take(). Headers of packets are always checked,
because wrong ones can make the recording of other processes unreadable; events are checked if the process is not
trusted: see reading/check.py.

Errors of the process's memory become DamagedError, and end the recording of this process. While the output is full
(OutputFullError), events stay in the buffers; other errors of the output end the recorder.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from relayfs_fuse import native
from relayfs_fuse.native.trace import STATE_CPU
from relayfs_fuse.reading import packet as packets_of
from relayfs_fuse.reading.check import BATCH_BYTES, Checked, copied
from relayfs_fuse.reading.damage import DamagedError, errors_mean_damage, reason
from relayfs_fuse.reading.heads import check_heads, latest
from relayfs_fuse.reading.process import REMOVED, RESERVED
from relayfs_fuse.reading.states import read_states
from relayfs_fuse.record.full import OutputFullError
from relayfs_fuse.tracefiles import ctf, losses, thread_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from relayfs_fuse.native.packets import Consumer
    from relayfs_fuse.reading.packet import Head, Packet
    from relayfs_fuse.reading.process import Process
    from relayfs_fuse.reading.source import Source
    from relayfs_fuse.reading.summary import Summary
    from relayfs_fuse.reading.threads import Holders
    from relayfs_fuse.record.outputs import ProcessOutput

# How often reading is tried if packets are overwritten while they are read.
_TRIES = 8
# How long another reader may hold the lock of one buffer, and how long such readers may keep finish() from ending.
_BUSY_S = 3.0
_ALL_BUSY_S = 10.0
# How many bytes are read at once: a part of the buffer, unless that is little; no more than BATCH_BYTES (see check.py).
_BATCHES, _SMALL_BYTES = 4, 1 << 20
# Of a packet without holes: its header, and its events.
_PIECES = 2
# How many bytes of a process's wrong packets are written to .damaged.
_QUARANTINE_MAX = 16 << 20


@dataclass
class _CheckedPacket:
    """A packet, and the result of checking it.

    n_lost: events that are not in its valid part
    """

    packet: Packet
    checked: Checked
    n_lost: int = 0


class Recording:
    """The recording of one process.

    warn_damage: called with a text when a packet is wrong
    died: set by the recorder, when it finds the process dead (time.monotonic())

    Errors of all methods that read buffers or write to the output:
    OutputFullError: the output cannot be written now, and events stay in the buffers
    DamagedError: the memory is so damaged that no further packets can be read
    """

    def __init__(
        self, process: Process, output: ProcessOutput, source: Source, warn_damage: Callable[[str], None]
    ) -> None:
        self.process = process
        self.output = output
        self._source = source
        self._warn_damage = warn_damage
        self.died: float | None = None
        # By CPU: since when another reader holds the lock of the buffer.
        self._busy: dict[int, float] = {}
        # Since when finish() waits for other readers.
        self._ending: float | None = None
        # By CPU: packets (or rests of packets) consumed, whether or not they were recorded now.
        self._n_packets: Counter[int] = Counter()
        # By CPU: events in packets that were written to .damaged.
        self._n_quarantined: dict[int, int] = {}
        self._n_quarantined_bytes = 0
        # The room of what is written is not used again before all of it is written.
        room = process.n_subbufs * process.subbuf_size
        self._batch_bytes = max(min(BATCH_BYTES, room // _BATCHES), min(_SMALL_BYTES, room), process.subbuf_size)
        self._threads = thread_names.unpack(output.threads())
        process.learn(ctf.declarations(output.metadata()))
        process.begin_losses(losses.told(output.metadata()))
        self.update()

    def check(self) -> None:
        """Check that the buffers are not truncated, and their counts of lost events possible."""
        with errors_mean_damage():
            self.process.check_size()
        self._lost()

    def _lost(self) -> dict[int, int]:
        with errors_mean_damage():
            return {cpu: n + self._n_quarantined.get(cpu, 0) for cpu, n in self.process.lost().items()}

    def update(self, at_end: bool = False) -> None:
        """Write the metadata, if it has changed."""
        clocks, unbuffered, of_trace = self._source.clocks(), self._source.unbuffered, self._source.losses
        with errors_mean_damage(".events"):
            is_new = self.process.has_new_metadata(clocks, unbuffered, at_end, of_trace)
            metadata = self.process.metadata(clocks, unbuffered, of_trace) if is_new else None
        if metadata is not None:
            self.output.set_metadata(metadata)

    def note_threads(self, holders: Holders) -> None:
        """Write the names that threads have now, and that those had which have ended."""
        self.process.note_threads(self._threads, holders)
        self.output.set_threads(thread_names.pack(self._threads))

    def drain(self, summary: Summary) -> bool:
        """Record the finished sub-buffers of all buffers; return whether there were any."""
        taken = [self._drain(cpu, consumer, summary) for cpu, consumer in self.process.buffers.items()]
        return any(taken)

    def _drain(self, cpu: int, consumer: Consumer, summary: Summary) -> bool:
        limit: int | None = None
        for _ in range(_TRIES):
            packets, skipped, whole = self._begin(cpu, consumer, limit)
            if not packets and not skipped and whole:
                return False
            n = 0
            try:
                n = self._n_with_room(cpu, packets) if whole else 0
                if whole and n == len(packets) and self._take(cpu, packets, consumer, summary):
                    self._n_packets[cpu] += bool(skipped)
                    consumer.end()
                    return True
            finally:
                consumer.abort()
            # There were too many pieces, or too little room, or packets were overwritten meanwhile: read fewer.
            fewer = n if n < len(packets) else max(1, n // 2)
            some = packets if not whole else packets[:fewer]
            n_bytes = skipped + sum(packet.head.packet_bytes for packet in some)
            if not n_bytes and limit is not None:
                raise DamagedError(f"cpu{cpu}: a packet in too many pieces")
            limit = n_bytes or self._batch_bytes
        return False

    def _n_with_room(self, cpu: int, packets: list[Packet]) -> int:
        """Return how many packets can be written now, or are in the output already.

        OutputFullError: none. DamagedError: the first one never can
        """
        last = self.output.last(cpu)
        n_there = sum(packet.head.packet_seq_num <= last.packet_seq_num for packet in packets) if last else 0
        if n_there == len(packets):
            return n_there
        try:
            return n_there + self.output.n_with_room(cpu, packets[n_there:])
        except OutputFullError:
            if not n_there:
                raise
        # They are consumed before the output goes on in another directory, which does not have them.
        return n_there

    def _begin(self, cpu: int, consumer: Consumer, limit: int | None) -> tuple[list[Packet], int, bool]:
        n_pieces = _PIECES * (self._batch_bytes // self.process.subbuf_size)
        with errors_mean_damage(f"cpu{cpu}"):
            try:
                pieces = consumer.begin(most_pieces=n_pieces) if limit is None else consumer.begin(limit)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                self._wait_for_reader(cpu)
                return [], 0, True
            self._busy.pop(cpu, None)
            try:
                return packets_of.split(pieces)
            except ValueError:
                consumer.abort()
                raise

    def _wait_for_reader(self, cpu: int) -> None:
        """Note that another reader holds the lock; DamagedError: it has held the lock for more than _BUSY_S."""
        if time.monotonic() - self._busy.setdefault(cpu, time.monotonic()) > _BUSY_S:
            self._raise_reader_stuck(cpu)

    def _raise_reader_stuck(self, cpu: int) -> NoReturn:
        raise DamagedError(f"cpu{cpu}: it cannot be read as somebody does not end reading it")

    def _take(self, cpu: int, packets: list[Packet], consumer: Consumer, summary: Summary) -> bool:
        """Write packets to the output, except for those that it has already; return whether they stayed valid."""
        last = self.output.last(cpu)
        n_found = len(packets)
        if last:
            packets = [packet for packet in packets if packet.head.packet_seq_num > last.packet_seq_num]
        n_new = len(packets)
        if not last:
            # A flush of an unused sub-buffer makes a packet without events.
            while packets and packets[0].head.is_empty and not packets[0].head.events_discarded:
                del packets[0]
        if not packets:
            # Also if the output has all of them: _drain_to_the_end() is to go on behind them.
            self._n_packets[cpu] += n_found
            return True
        n_records = consumer.n_records() if len(packets) == n_found else 0
        is_valid = _validity_check(cpu, consumer)
        with errors_mean_damage(f"cpu{cpu}"):
            stats = consumer.buffer.stats()
        # A disk that adds checksums fails if memory changes that it reads, as it does in mode overwrite.
        if self.process.checker or stats.mode != native.MODE_NO_OVERWRITE:
            packets = copied(packets)
            if not is_valid():
                return False
            is_valid = _is_always_valid
        self._count_quarantined(cpu, packets, last)
        check_heads(cpu, packets, last, latest(self.process.origin, self._source.clocks()))
        # In this order: the metadata has the events of the states, too.
        states = self._first_states()
        self.update()
        found = self._checked(packets, n_records)
        if states:
            self.output.append(STATE_CPU, [states], _is_always_valid)
        try:
            is_urgent = 2 * (stats.produced - stats.consumed) > stats.n_subbufs
            is_taken = self.output.append(cpu, [one.checked.packet for one in found], is_valid, is_urgent=is_urgent)
            self._n_packets[cpu] += n_new if is_taken else 0
            return is_taken
        except OSError as error:
            # EFAULT: the packets' memory is gone, because the process's file was truncated.
            if error.errno == errno.EFAULT:
                raise DamagedError(f"cpu{cpu}: {reason(error)}") from error
            raise
        finally:
            self._account(cpu, found, last, summary)

    def _first_states(self) -> Packet | None:
        """Return the states that the process has set, with which a directory of the output begins; None: none."""
        if self.output.has_events() or self.output.last(STATE_CPU):
            return None
        with errors_mean_damage(".events"):
            return read_states(self.process, self._source.clocks())

    def _account(self, cpu: int, found: list[_CheckedPacket], last: Head | None, summary: Summary) -> None:
        """Count the packets that were written, which need not be all if the output is full.

        last: the header of the packet before them
        """
        now = self.output.last(cpu)
        if now is None or now is last:
            return
        written = [one for one in found if one.packet.head.packet_seq_num <= now.packet_seq_num]
        for one in written:
            if one.n_lost:
                self._n_quarantined[cpu] += one.n_lost
                self.process.note_lost(cpu, "damaged", self._n_quarantined[cpu])
                self._quarantine(cpu, one)
        summary.packets += len(written)
        summary.bytes += sum(one.checked.packet.head.packet_bytes for one in written)
        summary.lost += now.events_discarded - (last.events_discarded if last else 0)

    def _count_quarantined(self, cpu: int, packets: list[Packet], last: Head | None) -> None:
        """Add events in packets that were written to .damaged to the headers' counts of lost events."""
        if cpu not in self._n_quarantined:
            # Only the last packet tells how many events an earlier recorder has written to .damaged.
            more = last.events_discarded - packets[0].head.events_discarded if last and self.process.checker else 0
            self._n_quarantined[cpu] = max(0, more)
            self.process.note_lost(cpu, "damaged", self._n_quarantined[cpu])
        n = self._n_quarantined[cpu]
        for packet in packets if n else []:
            packet.head = packet.head._replace(events_discarded=packet.head.events_discarded + n)

    def _checked(self, packets: list[Packet], n_records: int) -> list[_CheckedPacket]:
        """Find the valid parts of packets, and the number of events in the rest.

        n_records: the number of events in all packets, as the buffer says; 0: unknown
        """
        checker = self.process.checker
        if not checker:
            return [_CheckedPacket(packet, Checked(packet, 0, 0, "")) for packet in packets]
        found = [_CheckedPacket(packet, checker.check(packet)) for packet in packets]
        n_bad = sum(bool(one.checked.most_lost) for one in found)
        # n_records may be wrong, too, so it is limited to what the bytes can hold.
        most = sum(one.checked.most_lost for one in found)
        left = min(most, max(n_bad, n_records - sum(one.checked.n_events for one in found)))
        lost = 0
        for one in found if n_bad else ():
            if one.checked.most_lost:
                n_bad -= 1
                one.n_lost = min(one.checked.most_lost, left - n_bad)
                left -= one.n_lost
                lost += one.n_lost
            good = one.checked.packet
            good.head = good.head._replace(events_discarded=good.head.events_discarded + lost)
        return found

    def _quarantine(self, cpu: int, found: _CheckedPacket) -> None:
        packet, checked = found.packet, found.checked
        at = packets_of.HEAD_BYTES + sum(map(len, checked.packet.body))
        why = f"cpu{cpu}: packet {packet.head.packet_seq_num}, byte {at}: {checked.fault}"
        self._warn_damage(why)
        raw = b"".join([packet.head.pack(), *packet.body])
        if self._n_quarantined_bytes + len(raw) > _QUARANTINE_MAX:
            return
        # If the output is full, the warning and the count of lost events are enough.
        with suppress(OutputFullError):
            if not self._n_quarantined_bytes:
                self.output.quarantine("events", self.process.raw_events())
            self._n_quarantined_bytes += len(raw)
            self.output.quarantine("why", f"{why}; {found.n_lost} events lost\n".encode())
            self.output.quarantine(f"cpu{cpu}", raw)

    def finish(self, summary: Summary, until: float = 0.0) -> list[str] | None:
        """Record all events, also of sub-buffers that are not full, and complete the output.

        until: see Process.flush()

        Returns messages about events that could not be read. None: another reader has one of the buffers; call again.
        This does not wait, because the recorder would read no other process meanwhile.
        """
        # Checked before the flush, because a process that dies after it may have written in between.
        is_dead = not self.process.is_alive()
        with errors_mean_damage():
            self.process.flush(until)
        if not self._drain_to_the_end(summary):
            return None
        closed = self.process.closed_buffers()
        if closed:  # nothing is written to closed buffers, so this is the last round for them
            with errors_mean_damage():
                self.process.note_finished()
            if not self._drain_to_the_end(summary):
                return None
        self.update(at_end=True)
        self.check()
        unread = list(self._unread_events(closed, is_dead))
        for cpu, n, _ in unread:
            if cpu in closed:
                self.process.note_lost(cpu, "removed", n)
        lost = self._lost()
        # Before anything is counted in the summary, because the output may be full, and this is called again.
        self.update(at_end=True)
        for cpu, n in lost.items():
            last = self.output.last(cpu)
            if last:
                summary.lost += max(0, n - last.events_discarded)
        said = []
        for cpu, n, why in unread:
            if cpu in closed:
                lost[cpu] += n
                summary.lost += n
                said.append(f"{n} events in cpu{cpu} are lost: {why}")
            else:
                summary.unwritten += n
                said.append(f"{n} events in cpu{cpu} are not recorded, and are left there: {why}")
        self.output.close(lost)
        return said

    def _drain_to_the_end(self, summary: Summary) -> bool:
        """Record the sub-buffers that were finished at the last note_finished(), and those finished meanwhile.

        Returns False if another reader has one of the buffers.

        A hostile process may always pretend that a sub-buffer is unread. So reading continues only while the buffer
        yields packets, and at most as many as it has sub-buffers.
        """
        start = self._n_packets.copy()
        unread = list(self.process.buffers)
        while unread:
            before = self._n_packets.copy()
            self.drain(summary)
            if self._busy:
                self._check_readers()
                return False
            with errors_mean_damage():
                unread = [
                    cpu
                    for cpu in self.process.buffers
                    if before[cpu] < self._n_packets[cpu] <= start[cpu] + self.process.n_subbufs
                    and self.process.is_unread(cpu)
                ]
        return True

    def _check_readers(self) -> None:
        """Check how long others have kept finish() from reading; DamagedError: for more than _ALL_BUSY_S."""
        if self._ending is None:
            self._ending = time.monotonic()
        if time.monotonic() - self._ending > _ALL_BUSY_S:
            self._raise_reader_stuck(next(iter(self._busy)))

    def _unread_events(self, closed: Collection[int], is_dead: bool) -> Iterator[tuple[int, int, str]]:
        """Find events that should have been read and were not: the CPU, the number, and the reason.

        closed: the CPUs of closed buffers
        is_dead: no process has written since the flush
        """
        with errors_mean_damage():
            for cpu in self.process.buffers:
                why = self.process.unfinished.get(cpu, "")
                if not why and cpu in closed:
                    why = REMOVED
                if not why and (is_dead or self.process.is_held(cpu)):
                    why = RESERVED
                n = self.process.n_unread(cpu) if why else 0
                if n:
                    yield cpu, n, why

    def n_unread(self) -> int:
        """Return the number of unread events in the buffers."""
        try:
            return sum(map(self.process.n_unread, self.process.buffers))
        except OSError:
            return 0  # damaged

    def flush(self) -> None:
        """Finish the sub-buffers that are not full, so that they can be recorded."""
        with errors_mean_damage():
            self.process.flush()

    def flush_idle(self) -> None:
        """Finish the sub-buffers that are not full, of buffers in which no finished sub-buffer is unread."""
        with errors_mean_damage():
            self.process.flush_idle()


def _validity_check(cpu: int, consumer: Consumer) -> Callable[[], bool]:
    def is_valid() -> bool:
        with errors_mean_damage(f"cpu{cpu}"):
            return consumer.valid()

    return is_valid


def _is_always_valid() -> bool:
    return True
