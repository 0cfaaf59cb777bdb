"""One process's events on their way from its buffers to an output.

A packet is consumed after it is in the file. Whoever is killed between the two finds it in both, and writes it no more:
see Recording._take(). Heads of packets are checked in any case, as nonsense there spoils more than what this process
wrote; events if the process is not trusted: see check.py.

Errors of the process's memory become SpoiledError, and cost this process. While the output takes nothing, which is an
OutputFullError, all stays in the buffers; its other errors are the recorder's end.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.record import packet as packets_of
from relayfs_fuse.record.check import COPY_BYTES, Checked, copied
from relayfs_fuse.record.full import OutputFullError
from relayfs_fuse.record.process import REMOVED, RESERVED
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from relayfs_fuse.native.packets import Consumer
    from relayfs_fuse.record.output import ProcessOutput
    from relayfs_fuse.record.packet import Head, Packet
    from relayfs_fuse.record.process import Process
    from relayfs_fuse.record.source import Source
    from relayfs_fuse.tracefiles.ctf import Clocks, Origin

# How much a time may be wrong that comes from another CPU, or from who is just writing, in ticks of either clock.
_SKEW = 1_000_000_000
_AHEAD_NS = 10_000_000_000
# It may be overwritten as fast as it is read; the next time may be better.
_TRIES = 8
# Other readers take so long at most; and all of them together, while the last of a process is taken.
_BUSY_S, _BUSY_PAUSE_S = 3.0, 0.02
_ALL_BUSY_S = 10.0
# Of what is wrong with a process's packets, so many bytes are kept.
_KEPT_BYTES = 16 << 20


class SpoiledError(Exception):
    """Say what is wrong with a process's memory."""


@dataclass
class Summary:
    """What was recorded.

    lost: events that were refused or overwritten, as the packets tell, or removed unread
    lost_without_buffers: events of programs that could get no buffers, of which no packet tells
    lost_without_buffers_by_user: the same of programs of other users than the store's owner and root, as these count
    unwritten: events that are left in the buffers, as the output took no more, or they could not be had
    damaged: processes whose memory was spoiled, and how
    skipped: processes that may not be read, and why
    """

    bytes: int = 0
    packets: int = 0
    lost: int = 0
    lost_without_buffers: int = 0
    lost_without_buffers_by_user: dict[int, int] = field(default_factory=dict)
    unwritten: int = 0
    processes: int = 0
    buffers: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def note_lost_without_buffers(self, lost: int, by_user: dict[int, int]) -> None:
        """Take what is known by now."""
        self.lost_without_buffers, self.lost_without_buffers_by_user = lost, by_user


def reason(error: OSError) -> str:
    """Tell people what went wrong."""
    return error.strerror or os.strerror(error.errno or errno.EIO)


@contextmanager
def spoiling(where: str = "") -> Iterator[None]:
    """Take errors for the fault of whose memory is looked at."""
    before = f"{where}: " if where else ""
    try:
        yield
    except OSError as error:
        raise SpoiledError(f"{before}{reason(error)}") from error
    except (ValueError, ArithmeticError, LookupError) as error:
        raise SpoiledError(f"{before}{error}") from error


def check_heads(cpu: int, packets: list[Packet], last: Head | None, latest: int) -> None:
    """Refuse heads that cannot be: one process's are not to make the whole trace unreadable.

    last: what is known of the packet before them
    latest: see latest()
    """
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
        if head.events_discarded > native_trace.LOST_MAX:
            raise SpoiledError(f"cpu{cpu}: {head.events_discarded} events are said to be lost")
        if last and head.events_discarded < last.events_discarded:
            head = head._replace(events_discarded=last.events_discarded)
        packet.head = last = head


def latest(origin: Origin, clocks: Clocks) -> int:
    """Return a time that no packet can have, by the process's clock.

    clocks: now, or as late as they are known of another boot
    """
    if origin.boot != native_trace.boot_id():
        return ctf.last_time(origin, clocks)
    return clocks.tsc + 16 * _AHEAD_NS if origin.is_tsc else clocks.mono_ns + _AHEAD_NS


@dataclass
class _Found:
    """A packet, and what the check of it has found.

    n_lost: events that are not in its good part
    """

    packet: Packet
    checked: Checked
    n_lost: int = 0


class Recording:
    """What one process writes, on its way.

    complain: is given what is wrong with a packet

    OutputFullError: nothing can be written now, and all stays in the buffers
    SpoiledError: its memory is damaged so that nothing more can be had of it
    """

    def __init__(
        self, process: Process, output: ProcessOutput, source: Source, complain: Callable[[str], None]
    ) -> None:
        self.process = process
        self.output = output
        self._source = source
        self._complain = complain
        self.died: float | None = None
        self._busy: dict[int, float] = {}
        # Of each CPU, packets and rests of packets that were taken and not had before, be they recorded or not.
        self._n_taken: Counter[int] = Counter()
        # Of each CPU, events in what was set apart.
        self._n_apart: dict[int, int] = {}
        self._n_kept_bytes = 0
        process.learn(ctf.declarations(output.metadata()))
        self.update()

    def check(self) -> None:
        """Look whether the buffers are what they were."""
        with spoiling():
            self.process.check_size()
        self._lost()

    def _lost(self) -> dict[int, int]:
        with spoiling():
            return {cpu: n + self._n_apart.get(cpu, 0) for cpu, n in self.process.lost().items()}

    def update(self, at_end: bool = False) -> None:
        """Bring the metadata up to date."""
        clocks, unbuffered = self._source.clocks(), self._source.unbuffered
        with spoiling(".events"):
            is_new = self.process.has_new_metadata(clocks, unbuffered, at_end)
            metadata = self.process.metadata(clocks, unbuffered) if is_new else None
        if metadata is not None:
            self.output.set_metadata(metadata)

    def drain(self, summary: Summary) -> bool:
        """Take what is finished in all buffers; tell whether there was something."""
        taken = [self._drain(cpu, consumer, summary) for cpu, consumer in self.process.buffers.items()]
        return any(taken)

    def _drain_undisturbed(self, summary: Summary, until: float) -> None:
        """Do so once nobody else reads, as there is no next time; see _wait_for_reader().

        until: so long, by time.monotonic(), others may read, one CPU's buffer or another's
        """
        self.drain(summary)
        while self._busy:
            if time.monotonic() >= until:
                self._refuse_reader(next(iter(self._busy)))
            time.sleep(_BUSY_PAUSE_S)
            self.drain(summary)

    def _drain(self, cpu: int, consumer: Consumer, summary: Summary) -> bool:
        limit: int | None = max(COPY_BYTES, self.process.subbuf_size) if self.process.checker else None
        for _ in range(_TRIES):
            packets, skipped, whole = self._begin(cpu, consumer, limit)
            if not packets and not skipped and whole:
                return False
            try:
                if whole and self._take(cpu, packets, consumer, summary):
                    self._n_taken[cpu] += bool(skipped)
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
        with spoiling(f"cpu{cpu}"):
            try:
                pieces = consumer.begin() if limit is None else consumer.begin(limit)
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
        """Come again while somebody else reads, who is soon done; or the memory only says so."""
        if time.monotonic() - self._busy.setdefault(cpu, time.monotonic()) > _BUSY_S:
            self._refuse_reader(cpu)

    def _refuse_reader(self, cpu: int) -> NoReturn:
        raise SpoiledError(f"cpu{cpu}: it cannot be read as somebody does not end reading it")

    def _take(self, cpu: int, packets: list[Packet], consumer: Consumer, summary: Summary) -> bool:
        """Hand packets to the output, but for those that it has; tell whether they were valid."""
        last = self.output.last(cpu)
        n_found = len(packets)
        if last:
            packets = [packet for packet in packets if packet.head.packet_seq_num > last.packet_seq_num]
        n_new = len(packets)
        if not last:
            # To finish a sub-buffer of which nothing was used makes a packet, too.
            while packets and packets[0].head.is_empty and not packets[0].head.events_discarded:
                del packets[0]
        if not packets:
            self._n_taken[cpu] += n_new
            return True
        n_records = consumer.n_records() if len(packets) == n_found else 0
        is_valid = _guarded(cpu, consumer)
        if self.process.checker:
            packets = copied(packets)
            if not is_valid():
                return False
            is_valid = _always
        self._count_apart(cpu, packets, last)
        check_heads(cpu, packets, last, latest(self.process.origin, self._source.clocks()))
        self.update()
        found = self._checked(packets, n_records)
        try:
            is_taken = self.output.append(cpu, [one.checked.packet for one in found], is_valid)
            self._n_taken[cpu] += n_new if is_taken else 0
            return is_taken
        except OSError as error:
            # The memory that it was to be written from is gone: its file was truncated.
            if error.errno == errno.EFAULT:
                raise SpoiledError(f"cpu{cpu}: {reason(error)}") from error
            raise
        finally:
            self._account(cpu, found, last, summary)

    def _account(self, cpu: int, found: list[_Found], last: Head | None, summary: Summary) -> None:
        """Count those of the packets that are written, which need not be all where the output is full.

        last: what was known of the packet before them
        """
        now = self.output.last(cpu)
        if now is None or now is last:
            return
        written = [one for one in found if one.packet.head.packet_seq_num <= now.packet_seq_num]
        for one in written:
            if one.n_lost:
                self._n_apart[cpu] += one.n_lost
                self._set_apart(cpu, one)
        summary.packets += len(written)
        summary.bytes += sum(one.checked.packet.head.packet_bytes for one in written)
        summary.lost += now.events_discarded - (last.events_discarded if last else 0)

    def _count_apart(self, cpu: int, packets: list[Packet], last: Head | None) -> None:
        """Count events in what was set apart before as lost, too."""
        if cpu not in self._n_apart:
            # What another recorder has set apart, only its last packet tells.
            more = last.events_discarded - packets[0].head.events_discarded if last and self.process.checker else 0
            self._n_apart[cpu] = max(0, more)
        n = self._n_apart[cpu]
        for packet in packets if n else []:
            packet.head = packet.head._replace(events_discarded=packet.head.events_discarded + n)

    def _checked(self, packets: list[Packet], n_records: int) -> list[_Found]:
        """Find the good parts of packets, and how many events are in the rest.

        n_records: so many events are said to be in them; 0: that is not known
        """
        checker = self.process.checker
        if not checker:
            return [_Found(packet, Checked(packet, 0, 0, "")) for packet in packets]
        found = [_Found(packet, checker.check(packet)) for packet in packets]
        n_bad = sum(bool(one.checked.most_lost) for one in found)
        # Who writes nonsense there may write nonsense here.
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

    def _set_apart(self, cpu: int, found: _Found) -> None:
        packet, checked = found.packet, found.checked
        at = packets_of.HEAD_BYTES + sum(map(len, checked.packet.body))
        why = f"cpu{cpu}: packet {packet.head.packet_seq_num}, byte {at}: {checked.fault}"
        self._complain(why)
        raw = b"".join([packet.head.pack(), *packet.body])
        if self._n_kept_bytes + len(raw) > _KEPT_BYTES:
            return
        # Where there is no room, at least it was said, and its events are counted.
        with suppress(OutputFullError):
            if not self._n_kept_bytes:
                self.output.set_apart("events", self.process.raw_events())
            self._n_kept_bytes += len(raw)
            self.output.set_apart("why", f"{why}; {found.n_lost} events lost\n".encode())
            self.output.set_apart(f"cpu{cpu}", raw)

    def finish(self, summary: Summary, until: float = 0.0) -> list[str]:
        """Take all that there is now, also of sub-buffers that are not full, and complete the output.

        until: see Process.flush()

        Returns what of it could not be had, for people.
        """
        # Who dies meanwhile may have written after the last look.
        is_dead = not self.process.is_alive()
        with spoiling():
            self.process.flush(until)
        busy_until = time.monotonic() + _ALL_BUSY_S
        self._drain_to_the_end(summary, busy_until)
        closed = self.process.closed_buffers()
        if closed:  # what was finished until then is the last of it
            with spoiling():
                self.process.note_finished()
            self._drain_to_the_end(summary, busy_until)
        self.update(at_end=True)
        self.check()
        lost = self._lost()
        for cpu, n in lost.items():
            last = self.output.last(cpu)
            if last:
                summary.lost += max(0, n - last.events_discarded)
        said = []
        for cpu, n, why in self._left(closed, is_dead):
            if cpu in closed:
                lost[cpu] += n
                summary.lost += n
                said.append(f"{n} events in cpu{cpu} are lost: {why}")
            else:
                summary.unwritten += n
                said.append(f"{n} events in cpu{cpu} are not recorded, and are left there: {why}")
        self.output.close(lost)
        return said

    def _drain_to_the_end(self, summary: Summary, busy_until: float) -> None:
        """Take what was finished at the last note_finished(), and what comes meanwhile.

        A hostile process may say for ever that something is unread. So it goes on only while that buffer gives packets
        that were not had before, and no more of them than it has sub-buffers.
        """
        start = self._n_taken.copy()
        unread = list(self.process.buffers)
        while unread:
            before = self._n_taken.copy()
            self._drain_undisturbed(summary, busy_until)
            with spoiling():
                unread = [
                    cpu
                    for cpu in self.process.buffers
                    if before[cpu] < self._n_taken[cpu] <= start[cpu] + self.process.n_subbufs
                    and self.process.is_unread(cpu)
                ]

    def _left(self, closed: Collection[int], is_dead: bool) -> Iterator[tuple[int, int, str]]:
        """Tell what is unread and should have been read: the CPU, how many events, and why.

        closed: the buffers of these CPUs are
        is_dead: nobody has written since it was flushed
        """
        with spoiling():
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
        """Count the events that are in the buffers."""
        try:
            return sum(map(self.process.n_unread, self.process.buffers))
        except OSError:
            return 0  # damaged

    def flush(self) -> None:
        """Let also what is in sub-buffers that are not full be taken."""
        with spoiling():
            self.process.flush()

    def flush_idle(self) -> None:
        """Do so for who writes little."""
        with spoiling():
            self.process.flush_idle()


def _guarded(cpu: int, consumer: Consumer) -> Callable[[], bool]:
    def is_valid() -> bool:
        with spoiling(f"cpu{cpu}"):
            return consumer.valid()

    return is_valid


def _always() -> bool:
    return True
