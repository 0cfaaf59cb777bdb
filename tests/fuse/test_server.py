"""The mount as programs see it: real mounts, real tools, real system calls."""

import ctypes
import errno
import hashlib
import mmap
import os
import select
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import wait_until

MIB = 1 << 20


def shell(script: str, cwd: Path, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


def append(path: Path, data: bytes) -> None:
    """One write(2), one record."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


def lines(n: int, start: int = 0) -> bytes:
    return b"".join(b"line %06d\n" % i for i in range(start, start + n))


@pytest.fixture
def single(mount):
    """A channel of one file, small sub-buffers."""
    return mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")


# --- names ---


def test_relay_files_appear_and_disappear_with_their_channel(mount):
    mount.create("app/cpu")
    n_cpus = int(mount.fact("app/cpu", "n_buffers"))
    assert sorted(os.listdir(mount.path / "app")) == sorted(f"cpu{i}" for i in range(n_cpus))
    mount.command("remove app/cpu\n")
    assert os.listdir(mount.path / "app") == []
    assert not (mount.path / ".channels/app").exists()
    assert list((mount.store / "app").iterdir()) == []


def test_directories_are_made_and_removed(mount):
    (mount.path / "a/b").mkdir(parents=True)
    mount.create("a/b/cpu")
    with pytest.raises(OSError, match="not empty"):
        (mount.path / "a").rmdir()
    mount.command("remove a/b/cpu")
    (mount.path / "a/b").rmdir()
    (mount.path / "a").rmdir()
    assert not (mount.store / "a").exists()


@pytest.mark.parametrize("path", [".hidden", ".channels/x", "control", "error_log"])
def test_reserved_names_are_not_made(mount, path):
    with pytest.raises(OSError):
        (mount.path / path).mkdir()


def test_a_channel_keeps_its_path_from_directories(mount):
    mount.create("app/cpu")
    with pytest.raises(FileExistsError):
        (mount.path / "app/cpu").mkdir()


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda path: os.unlink(path / "log"), errno.EPERM),
        (lambda path: os.rename(path / "log", path / "other"), errno.EPERM),
        (lambda path: os.link(path / "log", path / "other"), errno.EPERM),
        (lambda path: os.symlink("log", path / "other"), errno.EPERM),
        (lambda path: os.close(os.open(path / "other", os.O_CREAT | os.O_WRONLY)), errno.EACCES),
        (lambda path: os.rmdir(path / ".channels"), errno.EPERM),
        (lambda path: os.mkdir(path / ".channels/x"), errno.EPERM),
        (lambda path: os.truncate(path / ".channels/log/mem0", 0), errno.EPERM),
        (lambda path: os.setxattr(path / "log", "user.x", b"1"), errno.ENOTSUP),
    ],
)
def test_what_only_commands_may_do_is_refused(mount, single, act, code):
    with pytest.raises(OSError) as error:
        act(mount.path)
    assert error.value.errno == code
    assert (mount.store / "log/mem0").stat().st_size > 0


def test_unlink_tells_what_to_do_instead(mount, single):
    with pytest.raises(PermissionError):
        single.unlink()
    assert "`remove log`" in mount.error_log


# --- reading and writing ---


def test_one_write_is_one_record(mount, single):
    append(single, b"one\n")
    append(single, b"two\n")
    assert mount.fact("log", "records") == "2"
    assert single.read_bytes() == b"one\ntwo\n"
    assert single.read_bytes() == b""


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
    assert mount.fact("log", "lost_full") == "2"
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
    assert mount.fact("log", "disabled") == "1"
    mount.command("enable log")
    append(single, b"x")
    assert single.read_bytes() == b"x"


@pytest.mark.parametrize("size", [4097, MIB, 3 * MIB])
def test_a_record_longer_than_a_sub_buffer_is_refused(mount, single, size):
    with pytest.raises(OSError) as error:
        append(single, bytes(size))
    assert error.value.errno == errno.EMSGSIZE
    assert mount.fact("log", "records") == "0"


@pytest.mark.parametrize("size", [MIB - 4096, MIB - 4095, MIB, 2 * MIB, 2 * MIB + 10])
def test_a_long_write_is_one_record_or_none(mount, size):
    path = mount.create("long", "buffers=single subbuf_size=4M n_subbufs=2")
    try:
        append(path, os.urandom(size))
    except OSError as error:
        assert error.errno == errno.EMSGSIZE
        assert size > MIB - 4096
        assert mount.fact("long", "records") == "0"
    else:
        assert size <= MIB - 4096
        assert mount.fact("long", "records") == "1"


def test_a_writev_of_many_pieces_is_not_cut_silently(mount, single):
    descriptor = os.open(single, os.O_WRONLY)
    written = os.writev(descriptor, [b"abcd"] * 300)
    os.close(descriptor)
    assert mount.fact("log", "records") == "1"
    assert single.read_bytes() == b"abcd" * (written // 4)


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize("geometry", ["subbuf_size=16 n_subbufs=5000", "subbuf_size=1000 n_subbufs=300"])
def test_a_read_gathers_many_sub_buffers(mount, mode, geometry):
    path = mount.create("tiny", f"buffers=single mode={mode} {geometry}")
    data = lines(2000)
    for start in range(0, len(data), 12):
        append(path, data[start : start + 12])
    descriptor = os.open(path, os.O_RDONLY)
    assert os.read(descriptor, MIB) == data
    os.close(descriptor)


def test_padding_is_not_read(mount, single):
    records = [bytes([65 + i]) * 1500 for i in range(6)]
    for record in records:
        append(single, record)
    assert int(mount.fact("log", "padding")) == 2 * (4096 - 3000)
    assert single.read_bytes() == b"".join(records)


def test_overwrite_keeps_the_latest_and_counts_the_rest(mount):
    path = mount.create("o", "buffers=single mode=overwrite subbuf_size=1200 n_subbufs=4")
    data = lines(1000)
    for start in range(0, len(data), 12):
        append(path, data[start : start + 12])
    kept = path.read_bytes()
    assert data.endswith(kept)
    assert len(kept) >= 3 * 1200
    assert int(mount.fact("o", "lost_overwritten")) == (len(data) - len(kept)) // 12


def test_large_reads_arrive_in_one_request(mount):
    path = mount.create("big", "buffers=single subbuf_size=1M n_subbufs=8")
    record = os.urandom(MIB // 2)
    for _ in range(8):
        append(path, record)
    assert path.stat().st_blksize == MIB
    descriptor = os.open(path, os.O_RDONLY)
    buffer = mmap.mmap(-1, MIB)
    assert os.readv(descriptor, [buffer]) == MIB
    os.close(descriptor)
    assert buffer[:] == record * 2
    assert mount.fact("big", "reads") == "1"


def test_readers_share_what_there_is(mount):
    path = mount.create("shared", "buffers=single subbuf_size=64K n_subbufs=8")
    data = lines(30000)
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


def test_a_relay_file_is_a_stream(mount, single):
    descriptor = os.open(single, os.O_RDONLY)
    with pytest.raises(OSError) as error:
        os.lseek(descriptor, 0, os.SEEK_SET)
    os.close(descriptor)
    assert error.value.errno == errno.ESPIPE


# --- read=wait ---


@pytest.fixture
def waiting(mount):
    return mount.create("wait", "buffers=single read=wait subbuf_size=4K n_subbufs=4")


def test_a_waiting_read_gets_what_comes(mount, waiting):
    reader = subprocess.Popen(["head", "-c", "8", waiting], stdout=subprocess.PIPE)
    time.sleep(0.1)
    append(waiting, b"one\n")
    time.sleep(0.05)
    append(waiting, b"two\n")
    assert reader.communicate(timeout=5)[0] == b"one\ntwo\n"


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


def test_a_waiting_read_ends_when_the_channel_is_removed(mount, waiting):
    reader = subprocess.Popen(["cat", waiting], stdout=subprocess.PIPE)
    time.sleep(0.1)
    append(waiting, b"last\n")
    mount.command("remove wait")
    assert reader.communicate(timeout=5)[0] == b"last\n"
    assert reader.returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_sleeping_read_and_nothing_is_lost(mount, waiting, signum):
    for _ in range(5):
        reader = subprocess.Popen(["cat", waiting], stdout=subprocess.PIPE)
        time.sleep(0.1)
        reader.send_signal(signum)
        started = time.monotonic()
        reader.wait(5)
        assert time.monotonic() - started < 0.1
        assert reader.returncode == -signum
        reader.stdout.close()
    append(waiting, b"for the next\n")
    descriptor = os.open(waiting, os.O_RDONLY)
    assert os.read(descriptor, 100) == b"for the next\n"
    os.close(descriptor)


def test_many_sleepers_do_not_keep_others_from_being_served(mount, waiting):
    sleepers = [threading.Thread(target=lambda: os.read(os.open(waiting, os.O_RDONLY), 1)) for _ in range(150)]
    for sleeper in sleepers:
        sleeper.start()
    time.sleep(0.5)
    assert (mount.path / "control").read_text().startswith("create wait")
    for _ in sleepers:
        append(waiting, b"x")
    for sleeper in sleepers:
        sleeper.join(10)
        assert not sleeper.is_alive()


# --- poll ---


READ = select.POLLIN | select.POLLRDNORM
WRITE = select.POLLOUT | select.POLLWRNORM


def events_of(descriptor: int, timeout_ms: int = 0, wanted: int = READ | WRITE) -> int:
    poll = select.poll()
    poll.register(descriptor, wanted)
    return dict(poll.poll(timeout_ms)).get(descriptor, 0)


def test_poll_waits_for_a_whole_sub_buffer_in_bulk(mount, single):
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


@pytest.mark.parametrize("kind", ["poll", "select", "epoll", "epoll-edge"])
def test_waiters_wake_within_50_ms_of_a_switch(mount, single, kind):
    descriptor = os.open(single, os.O_RDONLY)
    epoll = select.epoll()
    if kind.startswith("epoll"):
        epoll.register(descriptor, select.EPOLLIN | (select.EPOLLET if kind.endswith("edge") else 0))

    def wait() -> bool:
        if kind == "poll":
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(2000))
        if kind == "select":
            return bool(select.select([descriptor], [], [], 2)[0])
        return bool(epoll.poll(2))

    for _ in range(10):
        written: list[float] = []

        def write(written: list[float] = written) -> None:
            append(single, bytes(4096))
            written.append(time.monotonic())
            append(single, b"x")  # the switch

        timer = threading.Timer(0.03, write)
        timer.start()
        assert wait()
        delay = time.monotonic() - written[0]
        timer.join()
        assert delay < 0.05
        while os.read(descriptor, MIB):
            pass
    epoll.close()
    os.close(descriptor)


def test_edge_triggered_epoll_hears_every_switch(mount, single):
    descriptor = os.open(single, os.O_RDONLY)
    with select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        append(single, bytes(4000))
        for _ in range(3):
            append(single, bytes(4000))
            assert epoll.poll(2), "unread data of before must not hide the next event"
    os.close(descriptor)


# --- memory ---


def map_memory(path: Path, length: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, length)
    finally:
        os.close(descriptor)


@pytest.fixture
def mapping(mount):
    if os.geteuid() != 0:
        pytest.skip("only root can map through a mount")
    with mount.log.open() as log:
        if "maps no files" in log.read():
            pytest.skip("this kernel cannot map through a mount")


def test_memory_shows_what_producers_write(mount, single, mapping):
    path = mount.path / ".channels/log/mem0"
    with map_memory(path, path.stat().st_size) as memory:
        append(single, b"hello\n")
        assert memory[:6] == b"hello\n"
        memory[0:1] = b"j"
        assert single.read_bytes() == b"jello\n"


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
FAILED = ctypes.c_void_p(-1).value


def raw_mmap(descriptor: int, length: int) -> tuple[int, int]:
    """mmap(2) itself: Python's compares the length with st_size."""
    address = LIBC.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    return (0, ctypes.get_errno()) if address == FAILED else (address, 0)


def test_a_relay_file_opened_for_both_can_be_mapped_while_others_read_it(mount, single, mapping):
    reader = os.open(single, os.O_RDONLY)
    both = os.open(single, os.O_RDWR)
    address, _ = raw_mmap(both, 4 * 4096)
    assert address
    append(single, b"hello\n")
    assert ctypes.string_at(address, 6) == b"hello\n"
    assert os.read(reader, 100) == b"hello\n"
    os.close(reader)
    os.close(both)


def test_a_reader_cannot_map_a_relay_file(mount, single):
    descriptor = os.open(single, os.O_RDONLY)
    address = LIBC.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    os.close(descriptor)
    assert address == FAILED
    assert ctypes.get_errno() == errno.ENODEV


def test_who_opens_for_both_and_reads_too_much_can_go_back(mount, single):
    append(single, lines(100))
    done = shell("exec 3<>log; for i in 1 2 3; do read -r -u 3 x; echo $x; done; cat <&3", mount.path)
    assert done.stdout.encode() == lines(100)


def test_memory_has_a_token_behind_its_end_and_names_its_file(mount, single):
    path = mount.path / ".channels/log/mem0"
    size = path.stat().st_size
    tokens = set()
    for _ in range(3):
        descriptor = os.open(path, os.O_RDWR)
        token = os.pread(descriptor, 8, size)
        assert token == os.pread(descriptor, 8, size)
        tokens.add(token)
        os.close(descriptor)
    assert len(tokens) == 3
    assert bytes(8) not in tokens
    assert os.getxattr(path, "user.relayfs.backing") == os.fsencode(mount.store / "log/mem0")
    append(single, b"hello\n")
    assert path.read_bytes()[:6] == b"hello\n"
    assert single.read_bytes() == b"hello\n"


# --- attributes ---


def test_size_and_times_move_with_data_and_not_with_looking(mount, single):
    append(single, lines(10))
    first = single.stat()
    time.sleep(0.02)
    again = single.stat()
    assert (first.st_size, first.st_blocks) == (120, 1)
    assert first.st_mtime_ns == again.st_mtime_ns
    append(single, lines(90))
    later = single.stat()
    assert (later.st_size, later.st_blocks) == (1200, 3)
    assert later.st_mtime_ns > first.st_mtime_ns
    single.read_bytes()
    assert single.stat().st_size == 1200


def test_statfs_tells_of_the_store(make_mount):
    mount = make_mount("size=64M")
    before = os.statvfs(mount.path)
    assert before.f_blocks * before.f_frsize == 64 * MIB
    mount.create("a", "buffers=single subbuf_size=1M n_subbufs=16")
    after = os.statvfs(mount.path)
    assert before.f_bfree - after.f_bfree >= 16 * MIB // before.f_frsize
    with pytest.raises(OSError) as error:
        mount.create("b", "buffers=single subbuf_size=1M n_subbufs=64")
    assert error.value.errno == errno.ENOSPC
    assert "are free" in mount.error_log


def test_facts_are_lines_and_true(mount, single):
    for _ in range(3):
        append(single, bytes(3000))
    facts = mount.path / ".channels/log"
    assert (facts / "produced").read_text() == "2\n"
    assert (facts / "buffer0/offset").read_text() == "3000\n"
    assert shell("cat produced mode; busybox cat consumed", facts).stdout == "2\nno-overwrite\n0\n"
    descriptor = os.open(facts / "unread_bytes", os.O_RDONLY)
    assert os.pread(descriptor, 100, 0) == b"9000\n"
    single.read_bytes()
    assert os.pread(descriptor, 100, 0) == b"0\n"
    os.close(descriptor)


# --- who may ---


def test_modes_of_a_channel_are_enforced(mount, unprivileged):
    path = mount.create("app/cpu", "buffers=single perm=0640 uid=0 gid=0")
    append(path, b"secret\n")
    assert unprivileged.run("cat", path).returncode != 0
    assert unprivileged.run("cat", mount.path / ".channels/app/cpu/mem0").returncode != 0
    assert unprivileged.run("cat", mount.store / "app/cpu/mem0").returncode != 0
    path.chmod(0o644)
    assert unprivileged.run("cat", path).stdout == "secret\n"
    assert unprivileged.run("sh", "-c", f"echo x > '{path}'").returncode != 0
    os.chown(path, unprivileged.uid, unprivileged.gid)
    assert unprivileged.run("sh", "-c", f"echo mine > '{path}'").returncode == 0
    assert stat.S_IMODE((mount.path / ".channels/app/cpu/mem0").stat().st_mode) == 0o644
    assert (mount.store / "app/cpu/mem0").stat().st_uid == unprivileged.uid
    assert path.read_bytes() == b"mine\n"


def test_commands_are_for_root_unless_others_are_let_in(mount, make_mount, unprivileged):
    assert unprivileged.run("sh", "-c", f"echo create x > {mount.control}").returncode != 0


def test_only_the_owner_may_command_a_channel(make_mount, unprivileged):
    mount = make_mount("control_mode=0666")
    mount.create("roots", "buffers=single")
    assert unprivileged.run("sh", "-c", f"echo create theirs > {mount.control}").returncode == 0
    assert (mount.path / "theirs0").stat().st_uid == unprivileged.uid
    for verb in ("remove", "flush", "reset", "enable", "disable"):
        assert unprivileged.run("sh", "-c", f"echo {verb} roots > {mount.control}").returncode != 0
        assert "only user 0, who owns roots, or root may do this" in mount.error_log
        assert unprivileged.run("sh", "-c", f"echo flush theirs > {mount.control}").returncode == 0
    assert unprivileged.run("sh", "-c", f"echo create x uid=0 > {mount.control}").returncode != 0
    assert unprivileged.run("sh", "-c", f"echo create x gid=0 > {mount.control}").returncode != 0
    assert unprivileged.run("sh", "-c", f"echo remove theirs > {mount.control}").returncode == 0


def test_directories_of_the_store_stay_the_servers(mount, unprivileged):
    mount.create("app/cpu", f"uid={unprivileged.uid} perm=0666")
    with pytest.raises(PermissionError):
        (mount.path / "app").chmod(0o777)
    (mount.path / "app").chmod(0o750)
    assert unprivileged.run("ls", mount.path / "app").returncode != 0
    for directory in (mount.store, mount.store / "app", mount.store / "app/cpu"):
        assert directory.stat().st_uid == 0
        assert not directory.stat().st_mode & 0o022


# --- the server dies ---


def contents(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_nothing_is_lost_when_the_server_is_killed(mount):
    (mount.path / "empty").mkdir()
    path = mount.create("app/cpu", "buffers=single subbuf_size=4K n_subbufs=4 perm=0600 flush_interval=0")
    mount.create("other", "mode=overwrite delivery=packet read=wait subbuf_size=3000 n_subbufs=3")
    for _ in range(5):
        try:
            append(path, bytes(3000))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    names = ("produced", "consumed", "lost", "unread_bytes", "records", "padding", "file_bytes")
    before = mount.control.read_text(), [mount.fact("app/cpu", name) for name in names], path.stat()
    mount.kill()
    with pytest.raises(OSError):
        mount.control.read_text()
    mount.start()
    after = mount.control.read_text(), [mount.fact("app/cpu", name) for name in names], path.stat()
    assert after[:2] == before[:2]
    for name in ("st_size", "st_mode", "st_uid", "st_gid", "st_mtime_ns"):
        assert getattr(after[2], name) == getattr(before[2], name)
    assert (mount.path / "empty").is_dir()
    assert path.read_bytes() == bytes(12000)


def test_what_a_dead_server_left_half_done_is_cleaned_up(mount):
    mount.create("app/cpu", "buffers=single")
    mount.kill()
    (mount.store / ".removed-1-1").mkdir()
    (mount.store / ".removed-1-1/mem0").write_bytes(bytes(4096))
    (mount.store / "app/.new-1-x").mkdir()
    mount.start()
    assert sorted(path.name for path in mount.store.iterdir()) == [".lock", "app"]
    assert [path.name for path in (mount.store / "app").iterdir()] == ["cpu"]


def patch_version(path: Path) -> None:
    """The control area is the last page: magic, then the version."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 4096 + 8)
        file.write((99).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: os.truncate(path, 100), "truncated, damaged or no relay buffer"),
        (lambda path: os.truncate(path, 8192), "truncated, damaged or no relay buffer"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "truncated, damaged or no relay buffer"),
        (patch_version, "another layout version"),
        (lambda path: path.rename(path.with_name("stranger")), "'stranger' is not one of"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "cannot be used"),
    ],
    ids=["short", "page", "foreign", "version", "stranger", "link"],
)
def test_a_bad_store_file_is_refused_and_the_rest_works(mount, damage, reason):
    good = mount.create("good", "buffers=single")
    append(good, b"fine\n")
    mount.create("dir/bad")
    mount.kill()
    damage(mount.store / "dir/bad/mem0")
    mount.expect(reason)
    mount.start()
    assert reason in mount.error_log
    assert "create dir/bad" not in mount.control.read_text()
    assert good.read_bytes() == b"fine\n"
    with pytest.raises(FileExistsError):
        mount.create("dir/bad")
    mount.create("dir/better")


def test_a_file_truncated_under_the_server_costs_only_its_channel(mount, single):
    other = mount.create("other", "buffers=single")
    append(single, b"gone\n")
    os.truncate(mount.store / "log/mem0", 0)
    with pytest.raises(OSError):
        single.read_bytes()
    append(other, b"fine\n")
    assert other.read_bytes() == b"fine\n"
    mount.command("remove log")


# --- removal ---


def test_open_files_are_read_on_to_the_end(mount, single):
    append(single, lines(100))
    descriptor = os.open(single, os.O_RDONLY)
    assert os.read(descriptor, 12) == lines(1)
    mount.command("remove log")
    assert not single.exists()
    got = b""
    while piece := os.read(descriptor, 500):
        got += piece
    assert got == lines(99, start=1)
    assert os.fstat(descriptor).st_nlink == 0
    mount.create("log", "buffers=single")
    assert os.read(descriptor, 10) == b""
    os.close(descriptor)


def test_memory_is_freed_with_the_last_reference(mount):
    path = mount.create("large", "buffers=single subbuf_size=4M n_subbufs=16")
    descriptor = os.open(path, os.O_RDONLY)

    def used() -> int:
        status = os.statvfs("/dev/shm")
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    before = used()
    mount.command("remove large")
    assert used() > before - 32 * MIB
    os.close(descriptor)
    wait_until(lambda: used() < before - 60 * MIB, "the memory is freed")


def test_flush_interval_shows_data_to_readers_of_whole_sub_buffers(mount):
    path = mount.create("timed", "buffers=single flush_interval=50")
    descriptor = os.open(path, os.O_RDONLY)
    append(path, b"x")
    assert events_of(descriptor, 2000, READ) & select.POLLIN
    produced = mount.fact("timed", "produced")
    time.sleep(0.3)
    assert mount.fact("timed", "produced") == produced, "empty sub-buffers are left alone"
    os.close(descriptor)
