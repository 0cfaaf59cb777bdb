"""Reads that go on where the last one of the descriptor has ended: all but the first need no handler of the server."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import Mount, opened, wait_until
from traffic import append, lines

from relayfs_fuse import Counters

pytestmark = pytest.mark.one_mount
MIB = 1 << 20


def fill(path: Path, seed: int = 1) -> bytes:
    """Write records of changing lengths, behind most of which a sub-buffer of 4 KiB has padding; return all of them."""
    chance = random.Random(seed)
    records = [chance.randbytes(chance.randrange(700, 2000)) for _ in range(60)]
    with opened(path, os.O_WRONLY) as descriptor:
        for record in records:
            os.write(descriptor, record)
    return b"".join(records)


@pytest.fixture(params=["read=nowait", "read=wait", "mode=overwrite", "scheme=lockless read=wait"])
def path(request: pytest.FixtureRequest, mount: Mount) -> Iterator[Path]:
    yield mount.create("log", f"buffers=single subbuf_size=4K n_subbufs=64 {request.param}")
    mount.command("remove log")


@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK])  # which decides whether read=wait makes it a stream
def test_reads_of_any_size_give_each_byte_once(mount: Mount, path: Path, flags: int) -> None:
    written, got, n_reads = fill(path), b"", 0
    with opened(path, os.O_RDONLY | flags) as descriptor:
        for size in [1] * 40 + [7, 512, 4096, 5000, 1, 20000] + [MIB] * 100:
            data = os.read(descriptor, size)
            got, n_reads = got + data, n_reads + 1
            if len(got) == len(written):
                break
            assert 0 < len(data) <= size
    assert got == written
    shown = {name: int(mount.shown("log", name)) for name in ("unread_bytes", "read_bytes", "read_records", "reads")}
    assert shown == {"unread_bytes": 0, "read_bytes": len(got), "read_records": 60, "reads": n_reads}


def test_who_shares_a_descriptor_gets_each_byte_once_while_it_is_written(mount: Mount) -> None:
    """The first ones sleep, then there are more bytes than they take."""
    path = mount.create("log", "buffers=single subbuf_size=4K n_subbufs=64 read=wait")
    n_lines, got = 300, [bytearray() for _ in range(4)]
    end = threading.Event()

    def read_on(descriptor: int, into: bytearray) -> None:
        while not end.is_set():
            into += os.read(descriptor, len(lines(1)))

    with opened(path) as descriptor, path.open("wb", buffering=0) as file:
        threads = [threading.Thread(target=read_on, args=(descriptor, into)) for into in got]
        for thread in threads:
            thread.start()
        for n in range(n_lines):
            file.write(lines(1, n))
        wait_until(lambda: sum(map(len, got)) == len(lines(n_lines)), "all is read")
        end.set()
        wait_until(lambda: not any(file.write(lines(1)) and thread.is_alive() for thread in threads), "they end")
    found = sorted(line for into in got for line in bytes(into).splitlines(keepends=True))
    assert b"".join(line for line in found if line != lines(1)) == lines(n_lines - 1, 1)
    mount.command("remove log")


def test_what_was_read_can_be_read_again_however_it_was_read(mount: Mount) -> None:
    path = mount.create("log", "buffers=single subbuf_size=1M n_subbufs=8")
    written = random.Random(2).randbytes(5 * MIB)
    for at in range(0, len(written), MIB // 4):
        append(path, written[at : at + MIB // 4])
    with opened(path) as descriptor:
        at = 0
        for size in [1] * 20 + [100] * 50 + [4096] * 10 + [100_000] * 5 + [131_072] * 3 + [100_000] * 25:
            assert os.read(descriptor, size) == written[at : at + size]
            at += size
        assert os.pread(descriptor, 2 * MIB, at - MIB) == written[at - MIB : at]
        assert os.read(descriptor, 100) == written[at : at + 100]
        assert os.pread(descriptor, 1000, at - 900) == written[at - 900 : at + 100]
        at += 100
        assert os.read(descriptor, 200_000) == written[at : at + 200_000]  # who has gone back may do so again
        at += 200_000
        assert os.pread(descriptor, 200_000, at - 200_000) == written[at - 200_000 : at]
    mount.command("remove log")


def test_a_write_a_seek_and_a_reset_are_noticed_between_reads(mount: Mount) -> None:
    path = mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")
    append(path, bytes(range(200)))
    with opened(path, os.O_RDWR) as descriptor:
        assert [os.read(descriptor, 10)[0] for _ in range(5)] == [0, 10, 20, 30, 40]
        os.write(descriptor, b"more")  # moves the descriptor, and not what is read next
        assert [os.read(descriptor, 10)[0] for _ in range(3)] == [50, 60, 70]
        os.lseek(descriptor, -10, os.SEEK_CUR)
        assert [os.read(descriptor, 10)[0] for _ in range(3)] == [70, 80, 90]
        here = os.lseek(descriptor, 0, os.SEEK_CUR)
        assert os.pread(descriptor, 10, here + 20)[0] == 120
        assert [os.read(descriptor, 10)[0] for _ in range(3)] == [100, 110, 120]
        mount.command("reset log")
        append(path, b"new")
        assert os.read(descriptor, 2) + os.read(descriptor, 2) == b"new"
        with pytest.raises(OSError, match="Illegal seek"):
            os.pread(descriptor, 10, here)
        assert os.read(descriptor, 2) == b""
        append(path, b"er")
        assert os.read(descriptor, 1) + os.read(descriptor, 1) == b"er"
    mount.command("remove log")


def test_they_count_as_requests(mount: Mount) -> None:
    """The counter is looked at in the store, which takes no request."""
    path = mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")
    append(path, bytes(3000))
    with Counters(mount.store) as counters, opened(path) as descriptor:
        before = counters.values()["relayfs/server/requests"]
        for _ in range(3000):
            os.read(descriptor, 1)
        wait_until(lambda: counters.values()["relayfs/server/requests"] >= before + 3000, "they are counted")
    mount.command("remove log")
