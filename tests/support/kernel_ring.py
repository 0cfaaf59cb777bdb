"""A consumer that knows only how the kernel lays out a BPF ring buffer for mmap(2): no call of the library.

page 0, which it may write: the consumer position. From page 1 on, read-only: the producer position, the data, and the
data once more. Positions are 64 bits; a record is a 32-bit length with BUSY and DISCARD, 32 bits, and its bytes, all
rounded up to 8.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

PAGE = 4096
BUSY, DISCARD = 1 << 31, 1 << 30


class KernelRing:
    """Consume a file of so many bytes of data."""

    def __init__(self, file: Path, size: int) -> None:
        self.descriptor = os.open(file, os.O_RDWR)
        self.size = size
        self._consumer = mmap.mmap(self.descriptor, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._rest = mmap.mmap(self.descriptor, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)

    @property
    def consumer_position(self) -> int:
        return int(struct.unpack_from("<Q", self._consumer, 0)[0])

    @property
    def producer_position(self) -> int:
        return int(struct.unpack_from("<Q", self._rest, 0)[0])

    def records(self) -> Iterator[bytes]:
        """Consume what is committed."""
        while (position := self.consumer_position) < self.producer_position:
            at = PAGE + position % self.size
            (header,) = struct.unpack_from("<I", self._rest, at)
            if header & BUSY:
                return
            length = header & ~DISCARD
            if not header & DISCARD:
                # One piece, also when it wraps.
                yield self._rest[at + 8 : at + 8 + length]
            struct.pack_into("<Q", self._consumer, 0, position + (length + 8 + 7) // 8 * 8)

    def close(self) -> None:
        self._consumer.close()
        self._rest.close()
        os.close(self.descriptor)
