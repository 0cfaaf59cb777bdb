"""Writing packets past the page cache: the file is the same as through it."""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relayfs_fuse.native.packets import Copies, address_of
from relayfs_fuse.reading.packet import HEAD_BYTES, Head, Packet
from relayfs_fuse.record import writing
from relayfs_fuse.record.writing import Writer, most_bytes, padded, write_packets

BLOCK = 4096
SUBBUF = 1 << 17


def packet(number: int, *body: memoryview | bytes) -> Packet:
    bits = 8 * (HEAD_BYTES + sum(map(len, body)))
    return Packet(Head(0xC1FC1FC1, 0, 5, bits, 0, number, 2, 1, bits, 5, 42), list(body))


def in_buffer(*lengths: int) -> list[Packet]:
    """Return packets of bodies of these lengths, each in a sub-buffer."""
    memory = memoryview(mmap.mmap(-1, SUBBUF * len(lengths)))
    memory[:] = os.urandom(len(memory))
    starts = [SUBBUF * n + HEAD_BYTES for n in range(len(lengths))]
    return [packet(n, memory[start : start + lengths[n]]) for n, start in enumerate(starts)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Tell how many bytes are written with O_DIRECT in each call."""
    lengths: list[int] = []
    write = os.pwritev

    def watched(descriptor: int, pieces: list[object], at: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            lengths.append(sum(map(len, pieces)))  # type: ignore[arg-type]
        return write(descriptor, pieces, at)

    monkeypatch.setattr(os, "pwritev", watched)
    yield lengths
    monkeypatch.undo()


def written(path: Path, writer: Writer, packets: list[Packet], at: int, *, is_urgent: bool = False) -> bytes:
    """Return what a file has behind the first header, and check that nothing is before."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        writer.write(descriptor, packets, at, is_urgent=is_urgent)
        assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
    finally:
        os.close(descriptor)
    data = path.read_bytes()
    assert not any(data[: at + HEAD_BYTES])
    return data[at + HEAD_BYTES :]


def expected(packets: list[Packet]) -> bytes:
    """Return the bytes of packets but for the first header."""
    data = b""
    for one in packets:
        data += (one.head.pack() + b"".join(one.body)).ljust(one.head.packet_bytes, b"\0")
    return data[HEAD_BYTES:]


LENGTHS = [SUBBUF - HEAD_BYTES, 100_000, BLOCK * 20 - HEAD_BYTES, BLOCK * 9, 90_001, 120_000, 100_000]


@pytest.mark.parametrize("at", [0, 72, BLOCK, BLOCK + 1])
def test_it_is_the_same_past_the_page_cache(path, directly, at):
    packets = padded(in_buffer(*LENGTHS), at)
    assert written(path, Writer(), packets, at) == expected(packets)
    assert directly
    # All but the rest of the first block, or the first packet if it does not begin with a block.
    least = sum(one.head.packet_bytes for one in packets[at % BLOCK > 0 :]) - BLOCK
    assert sum(directly) >= least
    assert all(n % BLOCK == 0 for n in directly)


def test_what_is_not_in_blocks_is_written_through_it(path, directly):
    """Packets with holes, small ones, and those that are elsewhere in memory."""
    large, moved, holed = in_buffer(100_000, 100_000, 100_000)
    moved = packet(1, moved.body[0][8:])
    holed = packet(2, holed.body[0][:50_000], holed.body[0][50_100:])
    packets = padded([large, moved, holed, packet(3, b"small"), *in_buffer(*LENGTHS)], 0)
    assert written(path, Writer(), packets, 0) == expected(packets)
    # Those behind the one that follows the small one.
    last = sum(one.head.packet_bytes for one in packets[5:])
    assert directly == [packets[0].head.packet_bytes - BLOCK, last]


def test_large_packets_end_with_a_block(path):
    packets = padded([packet(0, b"small"), *in_buffer(*LENGTHS), packet(9, b"small")], 100)
    at = 100
    for one, before in zip(packets, [packet(0, b"small"), *in_buffer(*LENGTHS), packet(9, b"small")], strict=True):
        at += one.head.packet_bytes
        assert one.head.content_size == before.head.content_size
        assert before.head.packet_bytes <= one.head.packet_bytes <= most_bytes(before.head)
        is_large = len(before.body[0]) > 100
        assert (at % BLOCK == 0) == is_large
    # Those of the largest size have none.
    largest = packet(0)
    largest = Packet(largest.head._replace(packet_size=8 << 27, content_size=8 << 27), [])
    assert padded([largest], 0) == [largest]
    assert most_bytes(largest.head) == 1 << 27


def test_few_bytes_do_not_wait_for_the_disk(path, directly):
    packets = padded(in_buffer(100_000, 100_000), 0)
    assert written(path, Writer(), packets, 0) == expected(packets)
    assert directly == []


def test_a_file_system_that_cannot_do_it_is_written_through_the_page_cache(path, monkeypatch):
    """It is not asked again."""
    asked = []

    def refuse(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            asked.append(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 0

    monkeypatch.setattr(writing.fcntl, "fcntl", refuse)
    writer, packets = Writer(), padded(in_buffer(*LENGTHS), 0)
    for _ in range(2):
        assert written(path, writer, packets, 0) == expected(packets)
    assert len(asked) == 1


def test_a_buffer_that_fills_up_is_written_in_the_faster_way(path, monkeypatch, directly):
    now = 0.0
    takes_s = {"direct": 0.0, "cached": 0.0}

    def tick(way: str, function: object) -> object:
        def timed(*arguments: object) -> None:
            nonlocal now
            now += takes_s[way]
            function(*arguments)  # type: ignore[operator]

        return timed

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(writing, "write_packets", tick("cached", write_packets))
    writer, packets = Writer(), padded(in_buffer(*LENGTHS), 0)
    monkeypatch.setattr(writer, "_write_directly", tick("direct", writer._write_directly))

    def is_direct(*, is_urgent: bool) -> bool:
        directly.clear()
        written(path, writer, packets, 0, is_urgent=is_urgent)
        return bool(directly)

    takes_s.update(direct=2.0, cached=1.0)
    assert is_direct(is_urgent=False)
    # The page cache has not been tried.
    assert not is_direct(is_urgent=True)
    assert not is_direct(is_urgent=True)
    takes_s.update(cached=4.0)  # now it waits for the disk
    assert not is_direct(is_urgent=True)
    assert is_direct(is_urgent=True)
    takes_s.update(cached=1.0)
    # When the buffer has been emptied in between, it is tried anew.
    assert is_direct(is_urgent=True)
    assert is_direct(is_urgent=False)
    assert not is_direct(is_urgent=True)
    # The disk may have been slow for a moment only.
    ways = [is_direct(is_urgent=True) for _ in range(20)]
    assert ways.count(True) in {2, 3}


def test_copies_are_in_blocks():
    """As in a sub-buffer, behind the header."""
    bodies = [[os.urandom(n), os.urandom(m)] for n, m in ((1, 5000), (4096, 0), (70_000, 3), (0, 0))]
    copies = Copies()
    for _ in range(2):
        taken = copies.take(bodies)
        assert [bytes(one) for one in taken] == [b"".join(one) for one in bodies]
        assert all(address_of(one) % BLOCK == HEAD_BYTES for one in taken if one)
        bodies *= 2
