"""Reading the buffers of traces, packet by packet; see <relayfs/store.h> and <relayfs/trace_store.h>."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer as AnyBuffer

# The library returns up to 256 packets at once, each a header and a few pieces, unless many reservations are torn.
_N_SPANS = 4096
ALL = (1 << 63) - 1
# Of memory for copies: a page, also of most disks.
COPY_ALIGNMENT = 4096
_HEAD_BYTES = ffi.sizeof("struct relay_packet")


_of_thread = threading.local()


def _scratch() -> tuple[Any, Any]:
    """Return this thread's memory for the results of relay_consume_begin()."""
    if not hasattr(_of_thread, "spans"):
        _of_thread.spans = ffi.new("struct relay_span[]", _N_SPANS), ffi.new("size_t *")
    spans: tuple[Any, Any] = _of_thread.spans
    return spans


def address_of(data: AnyBuffer) -> int:
    """Return where data are in memory."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(data)))


class Consumer:
    """Consume packets of a buffer, without a copy.

    buffer: the buffer, which the caller closes

    Between begin() and end() or abort() no other reader can read the buffer. OSError EBADMSG: the memory is damaged;
    EBUSY: another reader is consuming.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def begin(self, max_bytes: int = ALL, most_pieces: int = _N_SPANS) -> list[Any]:
        """Return pieces of finished packets, in order, as objects with the buffer interface; none if there are none.

        max_bytes: return at most so many, which may end within a packet
        most_pieces: return at most so many. A packet has two if it has no holes: its header, and its events
        """
        spans, total = _scratch()
        n_spans = min(most_pieces, _N_SPANS)
        n = self.buffer.check(lib.relay_consume_begin(self.buffer.pointer, max_bytes, spans, n_spans, total))
        return [ffi.buffer(spans[i].data, spans[i].length) for i in range(n)]

    def valid(self) -> bool:
        """Return whether the pieces of begin() have not been overwritten."""
        result = lib.relay_consume_valid(self.buffer.pointer)
        if result == -errno.EOVERFLOW:
            return False
        return not self.buffer.check(result)

    def n_records(self) -> int:
        """Return the number of records in the pieces of begin(), as the buffer says."""
        return int(lib.relay_consume_records(self.buffer.pointer))

    def end(self) -> None:
        """Consume the pieces of begin()."""
        lib.relay_consume_end(self.buffer.pointer)

    def abort(self) -> None:
        """Leave the pieces of begin() unread."""
        lib.relay_consume_abort(self.buffer.pointer)


class Copies:
    """Memory for copies of packets. It is reused, because allocating memory takes as long as copying."""

    def __init__(self) -> None:
        self._memory = ffi.new("char[]", 0)
        self._start = 0

    def take(self, packets: Sequence[Sequence[Any]]) -> list[memoryview]:
        """Join the pieces of each packet's body; the copies are valid until the next call.

        Each begins as far behind a multiple of COPY_ALIGNMENT as in a sub-buffer: by the size of a header.
        """
        size = COPY_ALIGNMENT * (len(packets) + 1) + sum(len(piece) for pieces in packets for piece in pieces)
        if size > len(self._memory):
            self._memory = ffi.new("char[]", size)
            self._start = -address_of(ffi.buffer(self._memory)) % COPY_ALIGNMENT
        view, copies, end = memoryview(ffi.buffer(self._memory)), [], self._start
        for pieces in packets:
            end = start = end + (self._start + _HEAD_BYTES - end) % COPY_ALIGNMENT
            for piece in pieces:
                ffi.memmove(self._memory + end, piece, len(piece))
                end += len(piece)
            copies.append(view[start:end])
        return copies


def copy_packets(buffer: Buffer, size: int) -> Iterator[tuple[memoryview, int]]:
    """Copy the finished packets that a buffer holds, the oldest first; each copy is valid until the next.

    Each copy comes with the number of its records, as the buffer says.

    size: bytes of a sub-buffer; OSError EBADMSG: the memory is damaged
    """
    data = ffi.new("char[]", size)
    number, records = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    buffer.check(lib.relay_packet_start(buffer.pointer, number, records))
    before = int(records[0])
    while length := buffer.check(lib.relay_packet_copy(buffer.pointer, number, records, data, size)):
        now = int(records[0])
        yield memoryview(ffi.buffer(data, length)), (now - before) % (1 << 64)
        before = now
        number[0] += 1


_FAULTS = {
    lib.RELAY_PACKET_CUT: "the packet ends within an event's head",
    lib.RELAY_PACKET_TIME: "an event's time is before the last one's, or not within the packet's",
    lib.RELAY_PACKET_UNDECLARED: "no event of id {id} is declared",
    lib.RELAY_PACKET_FIELDS: "an event of id {id} is longer than the packet, or than any may be",
}


class Checked(NamedTuple):
    """Result of checking a packet.

    n_bytes, n_events: of the events before the first wrong one
    fault: what is wrong with it; "" if all are right
    """

    n_bytes: int
    n_events: int
    fault: str


class Layouts:
    """The lengths of a process's events, by which packets are checked.

    context_bytes: bytes between each event's header and its fields
    """

    def __init__(self, context_bytes: int) -> None:
        pointer = lib.relay_layouts_new(context_bytes)
        if pointer == ffi.NULL:
            raise MemoryError
        self._layouts = ffi.gc(pointer, lib.relay_layouts_free)
        self._checked = ffi.new("struct relay_packet_checked *")

    def add(self, event_id: int, types: Sequence[int]) -> None:
        """Add an event; OSError EEXIST: its id was added before.

        types: of its fields, numbers of events.FieldForm
        """
        library.check(lib.relay_layouts_add(self._layouts, event_id, list(types), len(types)))

    def check(self, events: AnyBuffer, begin: int, end: int) -> Checked:
        """Check the events of a packet, up to the first wrong one.

        events: the bytes after the packet's header, in memory that no other thread or process changes
        begin, end: the times in the header
        """
        view, checked = ffi.from_buffer(events), self._checked
        lib.relay_packet_check(self._layouts, view, len(view), begin, end, checked)
        fault = _FAULTS[checked.fault].format(id=checked.id) if checked.fault else ""
        return Checked(int(checked.good_bytes), int(checked.n_events), fault)
