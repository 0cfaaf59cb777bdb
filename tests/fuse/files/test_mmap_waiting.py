"""Relay files whose readers wait are streams, but can be mapped as others are by who opens them for that."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import forking
import pytest
from mapping import Mapper
from mounts import DEADLINE_S, Mount, shell, wait_until
from traffic import append, open_at_once, short_lines, wait_asleep

pytestmark = [pytest.mark.one_mount, pytest.mark.usefixtures("mapped_through")]

SUBBUF_BYTES, N_SUBBUFS = 4096, 4
DATA_BYTES = SUBBUF_BYTES * N_SUBBUFS

# Shows all it gets of a file that it opens for both.
READER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR)
while data := os.read(file, 1 << 20):
    os.write(1, data)
"""


@pytest.fixture
def path(mount: Mount) -> Path:
    return mount.create("wait", f"buffers=single read=wait subbuf_size={SUBBUF_BYTES} n_subbufs={N_SUBBUFS}")


@pytest.fixture
def mapper(path: Path) -> Iterator[Mapper]:
    mapper = Mapper(path, "rw", DATA_BYTES)
    assert mapper.answer == "mapped"
    yield mapper
    mapper.close()


@pytest.fixture
def both(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def can_seek(path: Path, flags: int = os.O_RDONLY) -> bool:
    descriptor = os.open(path, flags)
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError as error:
        assert error.errno == errno.ESPIPE
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def start_reader(file: Path) -> subprocess.Popen[bytes]:
    reader = forking.start([sys.executable, "-c", READER, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_asleep(reader, file)
    return reader


def read_soon(descriptor: int, size: int, first: Callable[[], object] = bool) -> bytes:
    """Read what is there, or comes by what is done meanwhile; b"": the reader sleeps."""
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(os.read(descriptor, size)), daemon=True)
    reader.start()
    first()
    reader.join(DEADLINE_S)
    return b"".join(got)


def answer_of(file: Path, access: str) -> str:
    mapper = Mapper(file, access, 4096)
    mapper.close()
    return mapper.answer


# --- which files can be mapped ---


def test_a_file_is_mapped_if_opened_for_both_or_without_sleeping_and_else_is_a_stream(path: Path) -> None:
    assert answer_of(path, "rw") == "mapped"
    assert answer_of(path, "nonblock") == "mapped"
    assert answer_of(path, "ro") == f"mmap: {errno.ENODEV}"
    assert answer_of(path.parent / ".channels/wait/mem0", "ro") == "mapped"
    assert not can_seek(path)
    assert not can_seek(path, os.O_WRONLY)


def test_while_somebody_can_map_it_all_can(path: Path) -> None:
    first = Mapper(path, "nonblock", 4096)
    assert answer_of(path, "ro") == "mapped"
    first.close()
    wait_until(lambda: not can_seek(path), "it is a stream again")
    assert answer_of(path, "ro") == f"mmap: {errno.ENODEV}"


def test_a_mapping_shows_what_is_written_while_streams_read_on(mount: Mount, path: Path) -> None:
    cat = subprocess.Popen(["cat", path], stdout=subprocess.PIPE)
    wait_asleep(cat, path)
    mapper = Mapper(path, "rw", DATA_BYTES)
    data = short_lines(100)
    append(path, data)
    assert mapper.show(0, len(data)) == data
    wait_until(lambda: mount.shown("wait", "read_bytes") == str(len(data)), "cat has read")
    assert mapper.ask("put 0 LINE") == "done"
    append(path, data)
    assert mapper.show(0, 4) == b"LINE"
    mapper.close()
    mount.command("remove wait")
    assert cat.communicate(timeout=DEADLINE_S)[0] == data * 2


def test_it_can_be_opened_in_all_ways_at_once(path: Path) -> None:
    open_at_once(path, [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK], 60)


# --- reading what can be mapped waits as reading a stream does ---


def test_a_reader_waits_for_data_and_for_the_end(path: Path) -> None:
    reader = start_reader(path)
    for number in range(5):
        append(path, short_lines(1, number))
        wait_asleep(reader, path)
    shell("echo remove wait > control", path.parent)
    assert reader.communicate(timeout=DEADLINE_S) == (short_lines(5), b"")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_sleeping_reader_and_nothing_is_lost(path: Path, signum: signal.Signals) -> None:
    for _ in range(3):
        reader = start_reader(path)
        reader.send_signal(signum)
        assert reader.wait(DEADLINE_S) == -signum
        reader.communicate()
    append(path, b"next\n")
    assert shell("head -n 1 wait", path.parent).stdout == "next\n"


def test_a_descriptor_that_may_not_sleep_gets_eagain(path: Path, both: int) -> None:
    os.set_blocking(both, False)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            os.read(both, 100)
    append(path, b"data\n")
    assert os.read(both, 100) == b"data\n"
    os.set_blocking(both, True)
    append(path, b"more\n")
    assert os.read(both, 100) == b"more\n"


def test_who_has_sought_the_end_waits_for_what_comes_there(path: Path, both: int) -> None:
    append(path, b"old\n")
    assert os.lseek(both, 0, os.SEEK_END) == 4
    os.set_blocking(both, False)
    with pytest.raises(BlockingIOError):
        os.read(both, 100)
    os.set_blocking(both, True)
    assert read_soon(both, 100, lambda: append(path, b"new\n")) == b"new\n"


def test_who_goes_back_gets_it_again_and_who_looks_ahead_leaves_it(path: Path, both: int) -> None:
    append(path, b"0123456789")
    assert os.pread(both, 2, 4) == b"45"
    assert os.read(both, 3) == b"012"
    assert os.pread(both, 3, 0) == b"012"
    assert os.read(both, 100) == b"3456789"


def test_who_writes_and_reads_with_one_descriptor_reads_what_is_next(path: Path, both: int) -> None:
    for number in range(3):
        os.write(both, b"%d, the first\n" % number)
        os.write(both, b"and more\n")
        assert os.read(both, 13) == b"%d, the first\n" % number
        assert os.read(both, 100) == b"and more\n"
    script = "exec 3<>wait; echo one >&3; read -r -u 3 a; echo two >> wait; echo three >&3; read -r -u 3 b; echo $a $b"
    assert shell(script, path.parent).stdout == "one two\n"


def test_threads_that_wait_at_one_place_get_the_same(path: Path, both: int) -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(os.pread(both, 100, 0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    status = [Path(f"/proc/self/task/{thread.native_id}/syscall") for thread in threads]
    wait_until(lambda: all(f" {both:#x} " in each.read_text() for each in status), "all sleep")
    append(path, b"data\n")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == [b"data\n"] * 4


def test_a_long_read_does_not_sleep_for_its_rest(mount: Mount) -> None:
    path = mount.create("large", "buffers=single read=wait subbuf_size=512K n_subbufs=4")
    record = bytes(range(256)) * 2048
    for _ in range(4):
        append(path, record)
    descriptor = os.open(path, os.O_RDWR)
    got = b""
    while len(got) < 4 * len(record):
        piece = read_soon(descriptor, 4 << 20)
        assert piece, "the reader sleeps though there is data"
        got += piece
    os.close(descriptor)
    assert got == record * 4


def test_bash_reads_line_by_line_what_comes_in_blocks(path: Path, both: int) -> None:
    reader = subprocess.Popen(
        ["bash", "-c", 'for i in 1 2 3; do read -r line <"$0"; echo "$line"; done', path], stdout=subprocess.PIPE
    )
    wait_asleep(reader, path)
    append(path, b"one\ntwo\nthree\n")
    assert reader.communicate(timeout=DEADLINE_S)[0] == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("access", ["rw", "nonblock"])
def test_poll_tells_of_data(mount: Mount, access: str) -> None:
    path = mount.create("packets", "buffers=single read=wait delivery=packet")
    descriptor = os.open(path, os.O_RDWR if access == "rw" else os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    for _ in range(3):
        assert poll.poll(0) == []
        append(path, b"x")
        assert poll.poll(DEADLINE_S * 1000) == [(descriptor, select.POLLIN)]
        assert os.read(descriptor, 10) == b"x"
    os.close(descriptor)


def test_nobody_truncates_it(path: Path, mapper: Mapper) -> None:
    append(path, b"data\n")
    assert mapper.ask("truncate 0") == "0"  # `>` appends
    assert mapper.show(0, 5) == b"data\n"
    assert shell(": > wait; head -n 1 wait", path.parent).stdout == "data\n"


def test_after_a_reset_a_waiting_reader_goes_on(path: Path) -> None:
    append(path, b"old\n")
    reader = start_reader(path)
    shell("echo reset wait > control", path.parent)
    append(path, b"new\n")
    wait_asleep(reader, path)
    shell("echo remove wait > control", path.parent)
    assert reader.communicate(timeout=DEADLINE_S)[0] == b"old\nnew\n"
