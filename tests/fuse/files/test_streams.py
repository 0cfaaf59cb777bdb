"""Relay files: reading, writing and waiting, by system calls on a real mount."""

import errno
import mmap
import os
import select
import subprocess
import threading
from pathlib import Path

import pytest
from mounts import DEADLINE_S, opened, shell
from traffic import append, short_lines, wait_asleep

pytestmark = pytest.mark.one_mount

MIB = 1 << 20


def append_lines(path, n):
    """Write so many lines by one descriptor, each with a write(2); return them."""
    data = short_lines(n)
    with opened(path, os.O_WRONLY) as descriptor:
        for start in range(0, len(data), 12):
            os.write(descriptor, data[start : start + 12])
    return data


# --- reading and writing ---


def pages_of_a_request() -> int:
    """Return the most that the kernel lets a server ask for; before Linux 6.13 it is a constant."""
    limit = Path("/proc/sys/fs/fuse/max_pages_limit")
    return int(limit.read_text()) if limit.exists() else 256


def test_one_write_is_one_record(mount, single):
    append(single, b"one\n")
    append(single, b"two\n")
    assert mount.shown("log", "records") == "2"
    assert single.read_bytes() == b"one\ntwo\n"
    assert single.read_bytes() == b""


@pytest.mark.parametrize("options", ["subbuf_size=256K", "subbuf_size=2M", "subbuf_size=200000", "type=ring size=4M"])
@pytest.mark.parametrize("script", ["cat big >to", "cp big to", "cat <big >>to"])
def test_tools_that_copy_into_a_relay_file_write_blocks_that_are_records(mount, tmp_path, options, script):
    big = os.urandom(MIB + 12345)
    (tmp_path / "big").write_bytes(big)
    path = mount.create("to", f"buffers=single {options}")
    done = shell(script.replace("big", str(tmp_path / "big")), mount.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes() == big


def test_redirection_never_loses_data(mount, single):
    done = shell("echo one > log; echo two >> log; : > log; truncate -s 0 log; cat log", mount.path)
    assert (done.stdout, done.stderr) == ("one\ntwo\n", "")


def test_a_full_buffer_refuses_writers(mount, single):
    for _ in range(4):
        append(single, bytes(4096))
    blocking = os.open(single, os.O_WRONLY)
    nonblocking = os.open(single, os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(OSError) as full:
        os.write(blocking, b"x")
    with pytest.raises(BlockingIOError):
        os.write(nonblocking, b"x")
    os.close(blocking)
    os.close(nonblocking)
    assert full.value.errno == errno.ENOSPC
    assert mount.shown("log", "lost_full") == "2"
    assert len(single.read_bytes()) == 4 * 4096


@pytest.mark.parametrize(("command", "code"), [("disable log", errno.ECANCELED), ("remove log", errno.EPIPE)])
def test_a_stopped_channel_refuses_writers(mount, single, command, code):
    descriptor = os.open(single, os.O_WRONLY)
    mount.command(command)
    with pytest.raises(OSError) as error:
        os.write(descriptor, b"x")
    os.close(descriptor)
    assert error.value.errno == code


def test_enable_lets_writers_go_on(mount, single):
    mount.command("disable log")
    assert mount.shown("log", "disabled") == "1"
    mount.command("enable log")
    append(single, b"x")
    assert single.read_bytes() == b"x"


@pytest.mark.parametrize("size", [4097, MIB, 3 * MIB])
def test_a_record_longer_than_a_sub_buffer_is_refused(mount, single, size):
    with pytest.raises(OSError) as error:
        append(single, bytes(size))
    assert error.value.errno == errno.EMSGSIZE
    assert mount.shown("log", "records") == "0"
    assert mount.shown("log", "lost_too_large") == "1"


@pytest.mark.parametrize("size", [MIB - 4096, MIB - 4095, MIB, 2 * MIB, 2 * MIB + 10])
def test_a_long_write_is_one_record_or_none(mount, size):
    path = mount.create("long", "buffers=single subbuf_size=4M n_subbufs=2")
    try:
        append(path, os.urandom(size))
    except OSError as error:
        assert error.errno == errno.EMSGSIZE
        assert size > MIB - 4096
        assert mount.shown("long", "records") == "0"
        assert mount.shown("long", "lost_too_large") == "1"
    else:
        assert size <= MIB - 4096
        assert mount.shown("long", "records") == "1"


def test_a_writev_of_more_pieces_than_one_request_carries_is_several_records_in_order(mount, single):
    descriptor = os.open(single, os.O_WRONLY)
    pieces = [b"%04d" % number for number in range(300)]
    assert os.writev(descriptor, pieces) == 1200
    os.close(descriptor)
    assert mount.shown("log", "records") == ("2" if pages_of_a_request() < 300 else "1")
    assert single.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize("geometry", ["subbuf_size=16 n_subbufs=5000", "subbuf_size=1000 n_subbufs=300"])
def test_a_read_gathers_many_sub_buffers(mount, mode, geometry):
    path = mount.create("tiny", f"buffers=single mode={mode} {geometry}")
    data = append_lines(path, 2000)
    descriptor = os.open(path, os.O_RDONLY)
    assert os.read(descriptor, MIB) == data
    os.close(descriptor)


def test_padding_is_not_read(mount, single):
    records = [bytes([65 + i]) * 1500 for i in range(6)]
    for record in records:
        append(single, record)
    assert int(mount.shown("log", "padding")) == 2 * (4096 - 3000)
    assert single.read_bytes() == b"".join(records)


def test_overwrite_keeps_the_latest_and_counts_the_rest(mount):
    path = mount.create("o", "buffers=single mode=overwrite subbuf_size=1200 n_subbufs=4")
    data = append_lines(path, 1000)
    kept = path.read_bytes()
    assert data.endswith(kept)
    assert len(kept) >= 3 * 1200
    assert int(mount.shown("o", "lost_overwritten")) == (len(data) - len(kept)) // 12


def test_large_reads_arrive_in_one_request(mount):
    path = mount.create("big", "buffers=single subbuf_size=1M n_subbufs=8")
    record = os.urandom(MIB // 2)
    for _ in range(8):
        append(path, record)
    size = min(4096 * pages_of_a_request(), 4 * MIB)
    descriptor = os.open(path, os.O_RDONLY)
    assert os.fstat(descriptor).st_blksize == MIB
    buffer = mmap.mmap(-1, size)
    assert os.readv(descriptor, [buffer]) == size
    os.close(descriptor)
    assert buffer[:] == record * (size // len(record))
    assert mount.shown("big", "reads") == "1"


def test_readers_share_what_there_is(mount):
    path = mount.create("shared", "buffers=single subbuf_size=64K n_subbufs=8")
    data = short_lines(30000)
    for start in range(0, len(data), 12000):
        append(path, data[start : start + 12000])
    command = ["dd", f"if={path}", "bs=120", "status=none"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    got = b"".join(reader.communicate()[0] for reader in readers)
    assert sorted(got.split()) == sorted(data.split())


def test_page_cache_reads_are_refused_and_consume_nothing(mount, single):
    append(single, b"data\n")
    source = os.open(single, os.O_RDONLY)
    read_end, write_end = os.pipe()
    with pytest.raises(OSError):
        os.splice(source, write_end, 4096)
    assert os.read(source, 100) == b"data\n"
    for descriptor in (source, read_end, write_end):
        os.close(descriptor)


def test_a_descriptor_without_page_cache_can_be_spliced_and_sent(mount, single):
    append(single, b"one\n")
    source = os.open(single, os.O_RDONLY | os.O_DIRECT)
    read_end, write_end = os.pipe()
    assert os.splice(source, write_end, 4096) == 4
    append(single, b"two\n")
    assert os.sendfile(write_end, source, None, 4096) == 4
    assert os.sendfile(write_end, source, None, 4096) == 0
    assert os.read(read_end, 100) == b"one\ntwo\n"
    for descriptor in (source, read_end, write_end):
        os.close(descriptor)


# --- the position ---


@pytest.fixture
def numbers(single):
    """The relay file with bytes in it that tell where they are, and a descriptor for reading."""
    append(single, bytes(range(200)))
    descriptor = os.open(single, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def unread(mount):
    return int(mount.shown("log", "unread_bytes"))


def test_reading_on_consumes_and_going_back_gives_the_same_again(mount, numbers):
    assert os.read(numbers, 50) == bytes(range(50))
    assert unread(mount) == 150
    assert os.lseek(numbers, 10, os.SEEK_SET) == 10
    assert os.read(numbers, 20) == bytes(range(10, 30))
    assert os.read(numbers, 100) == bytes(range(30, 50))
    assert os.read(numbers, 100) == bytes(range(50, 150))
    assert os.pread(numbers, 10, 45) == bytes(range(45, 55))
    assert unread(mount) == 50


def test_reading_ahead_only_looks_until_it_is_read_on_there(mount, single, numbers):
    assert os.pread(numbers, 10, 100) == bytes(range(100, 110))
    assert os.pread(numbers, 10, 50) == bytes(range(50, 60))
    assert unread(mount) == 200
    assert os.read(numbers, 10) == bytes(range(10))
    assert os.pread(numbers, 10, 150) == bytes(range(150, 160))
    assert os.pread(numbers, 10, 160) == bytes(range(160, 170))
    assert unread(mount) == 30
    # What was passed over is kept as if it had been given.
    assert os.pread(numbers, 300, 5) == bytes(range(5, 170))
    assert single.read_bytes() == bytes(range(170, 200))


def test_closing_consumes_what_was_looked_at(mount, single):
    append(single, bytes(range(200)))
    descriptor = os.open(single, os.O_RDONLY)
    assert os.pread(descriptor, 10, 100) == bytes(range(100, 110))
    assert os.pread(descriptor, 10, 20) == bytes(range(20, 30))
    assert os.pread(descriptor, 10, 1000) == b""
    assert unread(mount) == 200
    os.close(descriptor)
    assert single.read_bytes() == bytes(range(110, 200))


def test_the_end_is_where_what_is_unread_ends(mount, single, numbers):
    assert os.lseek(numbers, 0, os.SEEK_END) == os.fstat(numbers).st_size == 200
    assert os.read(numbers, 10) == b""
    assert unread(mount) == 200
    append(single, b"more")
    assert os.read(numbers, 10) == b"more"
    assert unread(mount) == 0
    assert os.lseek(numbers, 0, os.SEEK_END) == 204


def test_what_is_long_gone_cannot_be_sought(mount):
    path = mount.create("big", "buffers=single subbuf_size=1M n_subbufs=4")
    for _ in range(4):
        append(path, os.urandom(MIB // 2))
    descriptor = os.open(path, os.O_RDONLY)
    got = b"".join(os.read(descriptor, 4096) for _ in range(2 * MIB // 4096))
    assert os.pread(descriptor, MIB, MIB) == got[MIB:]
    with pytest.raises(OSError) as error:
        os.pread(descriptor, 1, MIB - 1)
    os.close(descriptor)
    assert error.value.errno == errno.ESPIPE


def test_a_descriptor_reads_on_where_others_have_left_off(mount, single, numbers):
    assert os.read(numbers, 10) == bytes(range(10))
    other = os.open(single, os.O_RDONLY)
    assert os.read(other, 90) == bytes(range(10, 100))
    assert os.read(numbers, 10) == bytes(range(100, 110))
    assert os.read(other, 10) == bytes(range(110, 120))
    assert os.pread(numbers, 20, 0) == bytes([*range(10), *range(100, 110)])
    assert os.pread(other, 100, 0) == bytes([*range(10, 100), *range(110, 120)])
    os.close(other)


def test_after_a_reset_nothing_old_is_given_again(mount, single, numbers):
    assert len(os.read(numbers, 150)) == 150
    mount.command("reset log")
    assert os.fstat(numbers).st_size == 0
    append(single, b"new\n")
    assert os.pread(numbers, 100, 0) == b"new\n"
    append(single, b"newer\n")
    assert os.lseek(numbers, 0, os.SEEK_END) == 10
    assert os.read(numbers, 100) == b""
    assert os.pread(numbers, 100, 0) == b"new\n"
    assert os.pread(numbers, 100, 4) == b"newer\n"


def test_what_is_overwritten_has_no_end_to_look_for(mount):
    path = mount.create("o", "buffers=single mode=overwrite subbuf_size=100 n_subbufs=2")
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError) as error:
        os.lseek(descriptor, 0, os.SEEK_END)
    assert error.value.errno == errno.ESPIPE
    for number in range(50):
        append(path, b"%09d\n" % number)
    # Offsets count from what is left.
    assert os.pread(descriptor, 10, 195) == b"0049\n"
    assert os.pread(descriptor, 20, 100) == b"%09d\n%09d\n" % (40, 41)
    assert os.pread(descriptor, 20, 0) == b"%09d\n%09d\n" % (30, 31)
    os.close(descriptor)


def test_a_file_whose_readers_wait_is_a_stream(mount, waiting):
    descriptor = os.open(waiting, os.O_RDONLY)
    with pytest.raises(OSError) as error:
        os.lseek(descriptor, 0, os.SEEK_SET)
    os.close(descriptor)
    assert error.value.errno == errno.ESPIPE


# --- read=wait ---


@pytest.fixture
def waiting(mount):
    return mount.create("wait", "buffers=single read=wait subbuf_size=4K n_subbufs=4")


def test_a_waiting_read_does_not_wait_for_a_full_buffer(mount, waiting):
    append(waiting, b"one\n")
    descriptor = os.open(waiting, os.O_RDONLY)
    assert os.read(descriptor, 4 * MIB) == b"one\n"
    os.close(descriptor)


def test_a_long_read_does_not_wait_for_its_rest(mount):
    path = mount.create("wait", "buffers=single read=wait subbuf_size=1M n_subbufs=4")
    record = bytes(MIB // 2)
    append(path, record)
    append(path, record)
    descriptor = os.open(path, os.O_RDONLY)
    buffer = mmap.mmap(-1, 4 * MIB)
    assert os.readv(descriptor, [buffer]) == MIB
    os.close(descriptor)


def test_a_nonblocking_read_does_not_wait(mount, waiting):
    descriptor = os.open(waiting, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        os.read(descriptor, 100)
    os.set_blocking(descriptor, True)
    os.set_blocking(descriptor, False)
    with pytest.raises(BlockingIOError):
        os.read(descriptor, 100)
    os.close(descriptor)


def test_many_sleepers_do_not_keep_others_from_being_served(mount, waiting):
    sleepers = [subprocess.Popen(["head", "-c", "1", waiting], stdout=subprocess.PIPE) for _ in range(150)]
    for sleeper in sleepers:
        wait_asleep(sleeper, waiting)
    assert mount.channels().startswith("create wait")
    for _ in sleepers:
        append(waiting, b"x")
    assert b"".join(sleeper.communicate(timeout=DEADLINE_S)[0] for sleeper in sleepers) == 150 * b"x"


# --- poll ---


READ = select.POLLIN | select.POLLRDNORM
WRITE = select.POLLOUT | select.POLLWRNORM


def events_of(descriptor: int, timeout_ms: int = 0, wanted: int = READ | WRITE) -> int:
    poll = select.poll()
    poll.register(descriptor, wanted)
    return dict(poll.poll(timeout_ms)).get(descriptor, 0)


def test_poll_waits_for_a_whole_sub_buffer_in_bulk(mount):
    single = mount.create("log", "buffers=single delivery=bulk")
    descriptor = os.open(single, os.O_RDONLY)
    append(single, b"x")
    assert not events_of(descriptor) & select.POLLIN
    mount.command("flush log")
    assert events_of(descriptor) & READ == READ
    os.read(descriptor, 100)
    assert not events_of(descriptor) & select.POLLIN
    os.close(descriptor)


def test_poll_tells_of_any_data_with_packets(mount):
    path = mount.create("p", "buffers=single delivery=packet")
    descriptor = os.open(path, os.O_RDONLY)
    assert not events_of(descriptor) & select.POLLIN
    append(path, b"x")
    assert events_of(descriptor) & select.POLLIN
    os.close(descriptor)


def test_poll_tells_of_removal(mount, single):
    descriptor = os.open(single, os.O_RDONLY)
    mount.command("remove log")
    assert events_of(descriptor) & (select.POLLERR | select.POLLHUP) == select.POLLERR | select.POLLHUP
    assert os.read(descriptor, 10) == b""
    os.close(descriptor)


def test_poll_tells_when_there_is_room_again(mount, single):
    descriptor = os.open(single, os.O_WRONLY)
    for _ in range(4):
        os.write(descriptor, bytes(4096))
    assert not events_of(descriptor) & select.POLLOUT
    threading.Timer(0.1, single.read_bytes).start()
    assert events_of(descriptor, 900, WRITE) & select.POLLOUT
    os.close(descriptor)
