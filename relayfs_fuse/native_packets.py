"""Reading the buffers of traces, packet by packet; see native.py, <relayfs/store.h> and <relayfs/trace_store.h>."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

# The library describes up to 256 packets at once, each a head and few pieces, unless many of its writers died.
_N_SPANS = 4096
ALL = (1 << 63) - 1


class Consumer:
    """Take packets out of a buffer, without a copy.

    buffer: it stays the caller's

    Between begin() and end() or abort() nobody else can read the buffer. OSError EBADMSG: the memory is damaged; EBUSY:
    somebody else is reading.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._spans = ffi.new("struct relay_span[]", _N_SPANS)
        self._total = ffi.new("size_t *")

    def begin(self, max_bytes: int = ALL) -> list[Any]:
        """Return pieces of finished packets, in order, as objects with the buffer interface; none: there are none.

        max_bytes: where to stop, be it within a packet
        """
        n = self.buffer.check(
            lib.relay_consume_begin(self.buffer.pointer, max_bytes, self._spans, _N_SPANS, self._total)
        )
        spans = self._spans
        return [ffi.buffer(spans[i].data, spans[i].length) for i in range(n)]

    def valid(self) -> bool:
        """Tell whether what begin() returned was intact up to now."""
        result = lib.relay_consume_valid(self.buffer.pointer)
        if result == -errno.EOVERFLOW:
            return False
        return not self.buffer.check(result)

    def end(self) -> None:
        """Consume what begin() returned."""
        lib.relay_consume_end(self.buffer.pointer)

    def abort(self) -> None:
        """Leave it to the next begin()."""
        lib.relay_consume_abort(self.buffer.pointer)


def copy_packets(buffer: Buffer, size: int) -> Iterator[memoryview]:
    """Copy the finished packets that a buffer holds, the oldest first; each copy is valid until the next.

    size: of a sub-buffer; OSError EBADMSG: the memory is damaged
    """
    data = ffi.new("char[]", size)
    number, records = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    while length := buffer.check(lib.relay_packet_copy(buffer.pointer, number, records, data, size)):
        yield memoryview(ffi.buffer(data, length))
        number[0] += 1
