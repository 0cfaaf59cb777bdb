"""Writing packets to a file: through the page cache, or large ones past it (O_DIRECT).

Through the page cache, the recorder copies each byte, and a thread of the kernel writes it to the disk later. Both take
CPU time, and the page cache takes memory, from the programs that are recorded. Past it, the disk takes the bytes from
the memory of the buffer, or from the copy that has been checked:

    file, in blocks   |--------|--------|--------|--------|--------|--
    packet            |head,events........................|padding |head,events
                       '------' '----------------' '------'
                        a copy   from the memory    a copy

For this, what is written begins at multiples of BLOCK_BYTES in the file and in memory, as sub-buffers do. So large
packets get padding up to the end of a block, where the next packet begins. The first block of a packet is a copy,
because its header is not in the buffer, and so is the last one, because other data may follow in the buffer.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from relayfs_fuse.native.packets import address_of
from relayfs_fuse.reading.packet import HEAD_BYTES, Packet
from relayfs_fuse.record.full import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relayfs_fuse.reading.packet import Head

# With a packet, so many bytes of other headers may be written, as a file may begin with it.
_HEADS_BYTES = 3 * HEAD_BYTES
# Packets of so many bytes are worth the padding; with it, larger ones could not be forwarded.
_LARGE_BYTES, _LARGEST_BYTES = 32 << 10, 64 << 20
# The least bytes for which it is worth to wait for the disk.
_LEAST_BYTES = 512 << 10
# The most pieces that writev(2) accepts.
_IOV_MAX = 1024
_SYNC_FILE_RANGE_WRITE = 2
_UNKNOWN = float("inf")
# By what the rate of the disk is multiplied with each batch that it has not taken, so that it is tried again.
_AGING = 1.1
_libc = ctypes.CDLL(None)


def write_all(descriptor: int, pieces: Sequence[Any], at: int) -> None:
    """Write pieces one behind the other, from an offset on. OSError: a part of them may be written."""
    left = list(pieces)
    done = 0
    while done < len(left):
        written = os.pwritev(descriptor, left[done : done + _IOV_MAX], at)
        at += written
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        if written:
            left[done] = memoryview(left[done])[written:]


def write_packets(descriptor: int, packets: Sequence[Packet], at: int) -> None:
    """Write packets to a file, from an offset on, except for the header of the first."""
    pieces: list[Any] = []
    for packet in packets:
        pieces += [packet.head.pack(), *packet.body]
        if padding := _padding(packet):
            pieces.append(padding)
    write_all(descriptor, pieces[1:], at + HEAD_BYTES)


def padded(packets: Sequence[Packet], at: int) -> list[Packet]:
    """Return packets for a file, from an offset on: large ones with padding up to the end of a block."""
    laid_out = []
    for packet in packets:
        head = packet.head
        at += head.packet_bytes
        if _is_large(head) and (padding := -at % BLOCK_BYTES):
            at += padding
            laid_out.append(Packet(head._replace(packet_size=head.packet_size + 8 * padding), packet.body))
        else:
            laid_out.append(packet)
    return laid_out


def most_bytes(head: Head) -> int:
    """Return the bytes of a packet in a file, with the most padding that padded() may give it."""
    return head.packet_bytes + _is_large(head) * BLOCK_BYTES


def bytes_with(packet: Packet) -> int:
    """Return how many bytes may be written with a packet."""
    return most_bytes(packet.head) + _HEADS_BYTES


def _is_large(head: Head) -> bool:
    return _LARGE_BYTES <= head.packet_bytes <= _LARGEST_BYTES


class Writer:
    """Write packets of a recording in the better way.

    Batches of few bytes go through the page cache, which does not wait for the disk. Large ones do not, unless the
    buffer is filling up and the page cache is faster: it also takes what a slow disk cannot take at once.
    """

    def __init__(self) -> None:
        self._is_possible = True
        # Bytes a second of the last large batch, with and without the page cache.
        self._cached_rate = self._direct_rate = _UNKNOWN
        self._blocks = memoryview(mmap.mmap(-1, BLOCK_BYTES))

    def write(self, descriptor: int, packets: Sequence[Packet], at: int, *, is_urgent: bool) -> None:
        """As write_packets(); is_urgent: the buffer is filling up."""
        end = at + sum(packet.head.packet_bytes for packet in packets)
        if end - at < _LEAST_BYTES or not self._is_possible:
            write_packets(descriptor, packets, at)
            _start_writeback(descriptor, at + BLOCK_BYTES, end)
            return
        if not is_urgent:
            self._cached_rate = _UNKNOWN  # what the page cache has had to wait for may be on the disk now
        began = time.monotonic()
        if is_urgent and self._cached_rate > self._direct_rate:
            write_packets(descriptor, packets, at)
            self._cached_rate = (end - at) / (time.monotonic() - began)
            self._direct_rate *= _AGING
        else:
            self._write_directly(descriptor, packets, at)
            self._direct_rate = (end - at) / (time.monotonic() - began)

    def _write_directly(self, descriptor: int, packets: Sequence[Packet], at: int) -> None:
        for run in self._runs(packets, at):
            if run.is_direct and self._is_possible:
                try:
                    with _past_the_page_cache(descriptor):
                        write_all(descriptor, run.pieces, run.at)
                    continue
                except OSError as error:
                    # The file system cannot, or needs larger blocks.
                    if error.errno != errno.EINVAL:
                        raise
                    self._is_possible = False
            write_all(descriptor, run.pieces, run.at)

    def _runs(self, packets: Sequence[Packet], at: int) -> list[_Run]:
        """Divide packets into what is written directly, and what is not; without the header of the first."""
        if 2 * len(packets) * BLOCK_BYTES > len(self._blocks):
            self._blocks = memoryview(mmap.mmap(-1, 2 * len(packets) * BLOCK_BYTES))
        runs = [_Run(at + HEAD_BYTES)]
        for n, packet in enumerate(packets):
            head = packet.head.pack() if n else b""
            if not _is_aligned(packet, at):
                _run(runs, is_direct=False).add([head, *packet.body, _padding(packet)])
            else:
                blocks = self._blocks[2 * n * BLOCK_BYTES : 2 * (n + 1) * BLOCK_BYTES]
                first, rest = _aligned(packet, head, blocks)
                _run(runs, is_direct=n > 0).add([first])
                _run(runs, is_direct=True).add(rest)
            at += packet.head.packet_bytes
        return runs


def _padding(packet: Packet) -> bytes:
    return bytes(packet.head.packet_bytes - HEAD_BYTES - sum(map(len, packet.body)))


class _Run:
    """Pieces that are written in one way, one behind the other.

    at: where the first one begins in the file; end: where the last one ends
    """

    def __init__(self, at: int, *, is_direct: bool = False) -> None:
        self.at = self.end = at
        self.is_direct = is_direct
        self.pieces: list[Any] = []

    def add(self, pieces: Sequence[Any]) -> None:
        """Add pieces, but for empty ones."""
        for piece in filter(len, pieces):
            self.pieces.append(piece)
            self.end += len(piece)


def _run(runs: list[_Run], *, is_direct: bool) -> _Run:
    """Return the last run, or a new one if that is written in the other way."""
    if runs[-1].is_direct != is_direct:
        runs.append(_Run(runs[-1].end, is_direct=is_direct))
    return runs[-1]


def _is_aligned(packet: Packet, at: int) -> bool:
    """Return whether the blocks of a packet at this offset of a file are blocks in memory, too, but for its header."""
    return (
        _is_large(packet.head)
        and at % BLOCK_BYTES == 0
        and packet.head.packet_bytes % BLOCK_BYTES == 0
        and len(packet.body) == 1
        and address_of(packet.body[0]) % BLOCK_BYTES == HEAD_BYTES
    )


def _aligned(packet: Packet, head: bytes, blocks: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the first block of a packet, and the others; without a head, the first one begins behind it.

    blocks: memory for copies of the first and of the last one
    """
    first, last = blocks[:BLOCK_BYTES], blocks[BLOCK_BYTES:]
    body = memoryview(packet.body[0])
    n_first = BLOCK_BYTES - HEAD_BYTES
    first[: len(head)] = head
    first[HEAD_BYTES:] = body[:n_first]
    n_last = (len(body) - n_first) % BLOCK_BYTES
    middle = body[n_first : len(body) - n_last]
    if not n_last:
        return first[HEAD_BYTES - len(head) :], [middle]
    last[:n_last] = body[len(body) - n_last :]
    last[n_last:] = bytes(BLOCK_BYTES - n_last)
    return first[HEAD_BYTES - len(head) :], [middle, last]


@contextmanager
def _past_the_page_cache(descriptor: int) -> Iterator[None]:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _start_writeback(descriptor: int, start: int, end: int) -> None:
    """Start to write complete data to the disk; otherwise the recorder waits later, for much data at once."""
    if end > start:
        _libc.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(end - start), _SYNC_FILE_RANGE_WRITE)
