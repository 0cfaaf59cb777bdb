"""The server dies while producers write and readers read, and is mounted again: nobody lost anything."""

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, Mount, wait_until
from traffic import LINE_BYTES, READ_BYTES, Stream, drain, lines, streaming, wait_asleep

from relayfs_fuse import Channel, Reader, native
from relayfs_fuse.fs.commands.control import PATH_MAX

GONE = (errno.ENOTCONN, errno.ECONNABORTED)
ROOM_BYTES = 16 << 20


class PersistentReader(threading.Thread):
    """Read a relay file to its end; when the server dies, open it again.

    A server that is killed between its reply and noting it gives the same data once more: the first read after a
    restart may begin with all of the last one before. That is no loss, and left out here.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.got = b""
        self.n_restarts = 0
        self.stop = threading.Event()
        self._last = b""

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._read_on()
            except FileNotFoundError:
                pass  # between the dead mount and the next
            except OSError as error:
                if error.errno not in GONE:
                    raise
            self.stop.wait(0.01)

    def _read_on(self) -> None:
        descriptor = os.open(self.file, os.O_RDONLY)
        repeated = self._last
        try:
            while not self.stop.is_set():
                piece = os.read(descriptor, READ_BYTES)
                if piece:
                    self.n_restarts += repeated != b""
                    self.got += piece.removeprefix(repeated)
                    self._last, repeated = piece, b""
                self.stop.wait(0.002)
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def wait_for_records(mount: Mount, stream: Stream, more: int, what: str) -> None:
    at_least = stats_in_store(mount, stream).records + more
    wait_until(lambda: stats_in_store(mount, stream).records >= at_least, what)


def wait_for_room(mount: Mount, stream: Stream) -> None:
    """A producer waits while its buffer is full, which a reader on a busy machine may let it become."""
    wait_until(lambda: stats_in_store(mount, stream).unread_bytes < ROOM_BYTES // 4, "the reader reads on")


def stats_in_store(mount: Mount, stream: Stream) -> native.Stats:
    """Ask the memory itself: there may be no server."""
    buffer = native.Buffer(str(mount.store / stream.channel / f"mem{stream.cpu}"))
    try:
        return buffer.stats()
    finally:
        buffer.close()


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    with streaming(mount, "subbuf_size=64K n_subbufs=64") as stream:
        yield stream


@pytest.mark.parametrize("scheme", ["rseq", "lockless", "locking"])
def test_a_producer_does_not_stop_and_every_line_is_read_once(mount: Mount, scheme: str) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, f"scheme={scheme} subbuf_size=64K n_subbufs={ROOM_BYTES >> 16}")
    before = mount.channels()
    stream.start(burst=20, pause_ms=1)
    reader = PersistentReader(stream.file)
    reader.start()
    try:
        for _ in range(5):
            wait_for_records(mount, stream, 200, "the producer writes")
            wait_for_room(mount, stream)
            mount.kill()
            wait_for_records(mount, stream, 200, "it writes while there is no server")
            mount.start()
            assert mount.channels() == before
        written = stream.finish()
        wait_until(lambda: stream.shown("unread_bytes") == 0, "the reader has it all")
    finally:
        reader.stop.set()
        reader.join()
        stream.kill()
    assert reader.got == lines(written)
    assert reader.n_restarts >= 3
    assert stream.shown("lost") == 0


def test_losses_go_on_being_counted_while_there_is_no_server(mount: Mount) -> None:
    path = mount.create("log", "buffers=single subbuf_size=62 n_subbufs=2")
    with Channel(path) as channel:
        for n in range(10):
            with contextlib.suppress(OSError):
                channel.write(lines(1, n))
        assert mount.shown("log", "lost_full") == "6"
        mount.kill()
        with pytest.raises(OSError) as full:
            channel.write(lines(1))
        assert full.value.errno == errno.ENOSPC
        mount.start()
        assert mount.shown("log", "lost_full") == "7"
        assert mount.shown("log", "lost_full_bytes") == str(7 * LINE_BYTES)
        assert drain(path) == lines(4)
        channel.write(lines(1, 4))
        assert drain(path) == lines(1, 4)


def test_a_sleeping_reader_is_told_that_the_server_died_and_loses_nothing(mount: Mount) -> None:
    path = mount.create("log", "buffers=single read=wait")
    for _ in range(3):
        cat = subprocess.Popen(["cat", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_asleep(cat, path)
        mount.kill()
        out, complaint = cat.communicate(timeout=DEADLINE_S)
        assert out == b""
        assert b"not connected" in complaint or b"connection abort" in complaint
        mount.start()
    path.write_bytes(b"for the next\n")
    assert subprocess.run(["head", "-c", "13", path], capture_output=True, check=True).stdout == b"for the next\n"


def test_old_and_new_producers_write_to_the_same_memory_after_a_restart(stream: Stream, mount: Mount) -> None:
    stream.start(burst=50, pause_ms=1)
    wait_until(lambda: stream.shown("records") >= 100, "the producer writes")
    mount.kill()
    mount.start()
    newcomer = Stream(mount, stream.channel, written=1_000_000)
    try:
        newcomer.write(500)
        written = stream.finish()
    finally:
        newcomer.kill()
    got = drain(stream.file).splitlines(keepends=True)
    assert b"".join(line for line in got if b"line 01" not in line) == lines(written)
    assert b"".join(line for line in got if b"line 01" in line) == lines(500, 1_000_000)


def test_a_zero_copy_reader_reads_on_without_a_server(stream: Stream, mount: Mount) -> None:
    stream.write(100)
    with Reader(stream.file, timeout=DEADLINE_S) as reader:
        mount.kill()
        got = bytes(next(reader))
        mount.start()
        stream.write(100)
        while len(got) < 200 * LINE_BYTES:
            got += bytes(next(reader))
    assert got == lines(200)


@pytest.mark.usefixtures("mapped_through")
def test_a_mapping_through_the_dead_mount_stays(stream: Stream, mount: Mount) -> None:
    mem = mount.path / ".channels" / stream.channel / f"mem{stream.cpu}"
    program = compile_c([PROGRAMS / "mapper.c"])
    mapper = subprocess.Popen([program, mem, "rw", "4096"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert mapper.stdout is not None
    assert mapper.stdout.readline() == b"mapped\n"
    mount.kill()
    mount.start()
    stream.write(1)
    shown = mapper.communicate(b"show 0 %d\n" % (LINE_BYTES - 1))[0]
    assert shown == lines(1)


def test_directories_may_be_nested_as_deeply_as_a_path_is_long(mount: Mount) -> None:
    mount.kill()
    deep = "a/" * (PATH_MAX // 2 - 1) + "b"
    os.makedirs(mount.store / deep, 0o755)
    # Of a program that was killed before it had made its channel.
    native.implicit_make(str(mount.store / "i"))
    native.implicit_make(str(mount.store / "i/i"))
    mount.start()
    assert mount.error_log == ""
    assert (mount.path / deep).is_dir()
    assert not (mount.path / "i").exists()
    assert not (mount.store / "i").exists()
