"""The mount as programs see it: real mounts, real tools, real system calls."""

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import stat
import time
from pathlib import Path

import pytest
from mounts import KEPT_IN_STORE, shell, used, wait_until
from traffic import append, short_lines

from relayfs_fuse import Channel, Ring, native
from relayfs_fuse.native.ring import RingMemory

pytestmark = pytest.mark.one_mount

MIB = 1 << 20


# --- names ---


def test_relay_files_appear_and_disappear_with_their_channel(mount):
    mount.create("app/cpu")
    n_cpus = int(mount.shown("app/cpu", "n_buffers"))
    assert sorted(os.listdir(mount.path / "app")) == sorted(f"cpu{i}" for i in range(n_cpus))
    mount.command("remove app/cpu\n")
    assert not (mount.path / "app").exists()
    assert not (mount.path / ".channels/app").exists()
    assert not (mount.store / "app").exists()


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


# --- memory ---


def map_memory(path: Path, length: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, length)
    finally:
        os.close(descriptor)


def test_memory_shows_what_producers_write(mount, single, mapped_through):
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


def test_a_relay_file_opened_for_both_can_be_mapped_while_others_read_it(mount, single, mapped_through):
    reader = os.open(single, os.O_RDONLY)
    both = os.open(single, os.O_RDWR)
    address, _ = raw_mmap(both, 4 * 4096)
    assert address
    append(single, b"hello\n")
    assert ctypes.string_at(address, 6) == b"hello\n"
    assert os.read(reader, 100) == b"hello\n"
    os.close(reader)
    os.close(both)


def test_who_opens_for_both_and_reads_too_much_can_go_back(mount, single):
    append(single, short_lines(100))
    done = shell("exec 3<>log; for i in 1 2 3; do read -r -u 3 x; echo $x; done; cat <&3", mount.path)
    assert done.stdout.encode() == short_lines(100)


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
    append(single, short_lines(10))
    first = single.stat()
    wait_until(lambda: time.time_ns() > first.st_mtime_ns, "the clock goes on")
    again = single.stat()
    assert (first.st_size, first.st_blocks) == (120, 1)
    assert first.st_mtime_ns == again.st_mtime_ns
    append(single, short_lines(90))
    later = single.stat()
    assert (later.st_size, later.st_blocks) == (1200, 3)
    assert later.st_mtime_ns > first.st_mtime_ns
    with single.open("rb") as file:
        assert len(file.read()) == os.fstat(file.fileno()).st_size == 1200
    assert single.stat().st_size == 0
    assert single.stat().st_mtime_ns == later.st_mtime_ns


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
    assert "are left of the limit size=64M: user 0 has 1" in mount.error_log


def test_a_statistic_is_what_it_is_when_it_is_read(mount, single):
    with (mount.path / ".channels/log/bytes").open("rb", buffering=0) as statistic:
        append(single, b"abc")
        assert statistic.read() == b"3\n"
        append(single, b"d")
        assert os.pread(statistic.fileno(), 10, 0) == b"4\n"


def test_stats_are_lines_and_true(mount, single):
    for _ in range(3):
        append(single, bytes(3000))
    stats = mount.path / ".channels/log"
    assert (stats / "produced").read_text() == "2\n"
    assert (stats / "buffer0/offset").read_text() == "3000\n"
    assert shell("cat produced mode; busybox cat consumed", stats).stdout == "2\nno-overwrite\n0\n"
    descriptor = os.open(stats / "unread_bytes", os.O_RDONLY)
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


@pytest.mark.one_mount(False)
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
    before = mount.channels(), [mount.shown("app/cpu", name) for name in names], path.stat()
    mount.kill()
    with pytest.raises(OSError):
        mount.channels()
    mount.start()
    after = mount.channels(), [mount.shown("app/cpu", name) for name in names], path.stat()
    assert after[:2] == before[:2]
    for name in ("st_size", "st_mode", "st_uid", "st_gid", "st_mtime_ns"):
        assert getattr(after[2], name) == getattr(before[2], name)
    assert (mount.path / "empty").is_dir()
    assert path.read_bytes() == bytes(12000)


ONE_FILE = ("buffers=single subbuf_size=4K n_subbufs=4", "type=ring buffers=single size=4K")


def fault(memory: Path) -> None:
    """Store to a page that a new mapping has not touched: the kernel sets the file's time, as producers have it do."""
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[3 * mmap.PAGESIZE - 1] = 0


@pytest.mark.parametrize("options", ONE_FILE, ids=["relay", "ring"])
@pytest.mark.one_mount(False)
def test_the_time_outlives_the_server_whatever_the_kernel_does_with_that_of_the_store(mount, options):
    path, memory = mount.create("log", options), mount.store / "log/mem0"
    append(path, b"hello\n")
    before = path.stat().st_mtime_ns
    # The kernel's time goes in ticks.
    wait_until(lambda: fault(memory) or memory.stat().st_mtime_ns > before, "the file's time moves")
    mount.kill()
    mount.start()
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("options", ONE_FILE, ids=["relay", "ring"])
@pytest.mark.one_mount(False)
def test_the_time_moves_with_data_that_moved_while_no_server_ran(mount, options):
    path = mount.create("log", options)
    before = path.stat().st_mtime_ns
    with Ring(path) if "ring" in options else Channel(path) as producer:
        mount.kill()
        producer.output(b"hello\n") if isinstance(producer, Ring) else producer.write(b"hello\n")
    mount.start()
    moved = path.stat().st_mtime_ns
    assert moved > before
    mount.kill()
    mount.start()
    assert path.stat().st_mtime_ns == moved


@pytest.mark.parametrize("options", ONE_FILE, ids=["relay", "ring"])
@pytest.mark.parametrize("nonsense", [0, 1 << 62, (1 << 64) - 1])
@pytest.mark.one_mount(False)
def test_a_nonsense_time_in_the_store_is_not_shown(mount, options, nonsense):
    path, memory = mount.create("log", options), os.fspath(mount.store / "log/mem0")
    before = path.stat().st_mtime_ns
    mount.kill()
    with contextlib.closing(RingMemory(memory) if "ring" in options else native.Buffer(memory)) as stored:
        stored.keep_mtime(0, nonsense)
    mount.start()
    assert before < path.stat().st_mtime_ns <= time.time_ns()


@pytest.mark.one_mount(False)
def test_what_a_dead_server_left_half_done_is_cleaned_up(mount):
    mount.create("app/cpu", "buffers=single")
    mount.kill()
    (mount.store / ".removed-1-1").mkdir()
    (mount.store / ".removed-1-1/mem0").write_bytes(bytes(4096))
    (mount.store / "app/.new-1-x").mkdir()
    mount.start()
    assert sorted(path.name for path in mount.store.iterdir()) == [*KEPT_IN_STORE, "app"]
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
@pytest.mark.one_mount(False)
def test_a_bad_store_file_is_refused_and_the_rest_works(mount, damage, reason):
    good = mount.create("good", "buffers=single")
    append(good, b"fine\n")
    mount.create("dir/bad")
    mount.kill()
    damage(mount.store / "dir/bad/mem0")
    mount.expect(reason)
    mount.start()
    assert reason in mount.error_log
    assert "create dir/bad" not in mount.channels()
    assert good.read_bytes() == b"fine\n"
    with pytest.raises(FileExistsError):
        mount.create("dir/bad")
    mount.create("dir/better")


@pytest.mark.one_mount(False)
def test_a_file_truncated_under_the_server_costs_only_its_channel(mount, single):
    other = mount.create("other", "buffers=single")
    append(single, b"gone\n")
    mount.expect("log is damaged: mem0: ")
    os.truncate(mount.store / "log/mem0", 0)
    with pytest.raises(OSError):
        single.read_bytes()
    with pytest.raises(OSError):
        append(single, b"nobody would see it\n")
    append(other, b"fine\n")
    assert other.read_bytes() == b"fine\n"
    mount.command("remove log")


# --- removal ---


def test_open_files_are_read_on_to_the_end(mount, single):
    append(single, short_lines(100))
    descriptor = os.open(single, os.O_RDONLY)
    assert os.read(descriptor, 12) == short_lines(1)
    mount.command("remove log")
    assert not single.exists()
    got = b""
    while piece := os.read(descriptor, 500):
        got += piece
    assert got == short_lines(99, first=1)
    assert os.fstat(descriptor).st_nlink == 0
    mount.create("log", "buffers=single")
    assert os.read(descriptor, 10) == b""
    os.close(descriptor)


def test_memory_is_freed_with_the_last_reference(make_mount, own_tmpfs):
    mount = make_mount("size=none", store=own_tmpfs / "store")
    before = used(own_tmpfs)
    path = mount.create("large", "buffers=single subbuf_size=1M n_subbufs=16")
    descriptor = os.open(path, os.O_RDONLY)
    mount.command("remove large")
    assert used(own_tmpfs) >= before + 16 * MIB
    os.close(descriptor)
    wait_until(lambda: used(own_tmpfs) == before, "the memory is freed")


def test_flush_interval_leaves_empty_sub_buffers_alone(mount):
    path = mount.create("timed", "buffers=single flush_interval=20")
    for produced in ("1", "2"):
        append(path, b"x")
        wait_until(lambda produced=produced: mount.shown("timed", "produced") == produced, "a flush")
    # Many intervals have passed between the first and the second: none of them switched.
    assert mount.shown("timed", "bytes") == "2"


def test_space_cannot_be_allocated_in_a_file_and_nothing_is_written_instead(mount, single):
    """posix_fallocate(3) writes zeros where the file system says that it does not know fallocate(2)."""
    mem = mount.path / ".channels/log/mem0"
    for path, flags in ((single, os.O_RDWR), (single, os.O_WRONLY), (mem, os.O_RDWR), (mount.control, os.O_WRONLY)):
        descriptor = os.open(path, flags)
        for _ in range(2):  # the kernel must not have learned that it need not ask
            with pytest.raises(PermissionError):
                os.posix_fallocate(descriptor, 0, 65536)
        os.close(descriptor)
    assert mount.shown("log", "records") == "0"
    append(single, b"the first\n")
    assert single.read_bytes() == b"the first\n"
