"""Limits of memory and names: size=, user_size= and user_files=."""

import errno
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from mounts import NOBODY, Mount, User, wait_until
from traffic import at_once

from relayfs_fuse import native
from relayfs_fuse.fs.cgroup import memory_limit
from relayfs_fuse.fs.ledger import Charge, Ledger, Limits

MIB = 1 << 20
# A channel of somewhat more than 4 MiB.
FOUR_MIB = "buffers=single subbuf_size=1M n_subbufs=4"
N_CPUS = native.n_possible_cpus()


def create(user: User, mount: Mount, line: str) -> str:
    """Write a command as another user; return the name of the errno, or "0"."""
    code = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
try:
    os.write(fd, sys.argv[2].encode())
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print(0)
"""
    done = user.python(code, mount.control, line)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def said(mount: Mount) -> str:
    """The last entry of error_log."""
    return mount.error_log.rpartition("\n[")[2]


@pytest.fixture
def open_mount(make_mount: Callable[..., Mount]) -> Mount:
    """A mount in which everybody may make channels, but not many."""
    return make_mount("control_mode=0666,size=64M,user_size=10M")


@contextmanager
def holding(user: User, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Have a file of the mount open as another user, and mapped where the mount maps."""
    code = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    mapped = mmap.mmap(fd, os.fstat(fd).st_size)
    os.close(fd)
except (OSError, ValueError):
    pass  # a relay file, or a mount that maps nothing
print("open", flush=True)
sys.stdin.read()
"""
    with forking.start(
        [sys.executable, "-c", code, path], user=user.uid, group=user.gid, extra_groups=[], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd="/",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


# --- defaults ---


def test_the_default_is_a_quarter_of_the_machines_memory_and_half_of_that_for_a_user(
    make_mount: Callable[..., Mount], scratch_store: Path
) -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:"))
    # The tests themselves may run in a container.
    total = min(total, memory_limit() or total)
    shm = shutil.disk_usage(scratch_store.parent).total
    status = os.statvfs(make_mount().path)
    assert status.f_blocks * status.f_frsize == min(total, shm) // 4 // 4096 * 4096
    ledger = Ledger(Limits(), str(scratch_store))
    assert (ledger.size, ledger.user_size) == (min(total, shm) // 4, min(total, shm) // 8)


@pytest.fixture
def control_groups() -> Iterator[tuple[Path, Path]]:
    """A group of the memory controller, and one in it: directories, where a process may be put."""
    above = Path("/sys/fs/cgroup/memory")  # v1
    if not above.is_dir():
        above = Path("/sys/fs/cgroup")
    outer = above / f"relayfs-test-{os.getpid()}"
    try:
        outer.mkdir()
        if (outer / "cgroup.subtree_control").exists():
            (outer / "cgroup.subtree_control").write_text("+memory")
        inner = outer / "inner"
        inner.mkdir()
    except OSError as error:
        pytest.skip(f"control groups with a memory controller cannot be made here: {error}")
    yield outer, inner
    # Mounts are closed before, as a test asks for make_mount after this fixture; a group is busy for a moment still.
    wait_until(lambda: not (inner / "cgroup.procs").read_text(), "the group is empty")
    wait_until(lambda: _removed(inner) and _removed(outer), "the groups are removed")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def limit(group: Path, n_bytes: int) -> None:
    names = ("memory.max", "memory.limit_in_bytes")
    next(group / name for name in names if (group / name).exists()).write_text(str(n_bytes))


@pytest.mark.parametrize(("outer_bytes", "inner_bytes"), [(512 * MIB, 768 * MIB), (768 * MIB, 512 * MIB)])
def test_the_default_in_a_container_is_a_quarter_of_the_least_limit_of_its_control_groups(
    control_groups: tuple[Path, Path], make_mount: Callable[..., Mount], tmp_path: Path, outer_bytes: int,
    inner_bytes: int,
) -> None:  # fmt: skip
    outer, inner = control_groups
    limit(outer, outer_bytes)
    limit(inner, inner_bytes)
    mount = make_mount(start=False)
    mount.program = inside = tmp_path / "inside"
    inside.write_text(f'#!/bin/sh\necho $$ >{inner}/cgroup.procs\nexec {shutil.which("relayfs")} "$@"\n')
    inside.chmod(0o755)
    mount.start()
    status = os.statvfs(mount.path)
    assert status.f_blocks * status.f_frsize == 128 * MIB


def test_a_small_tmpfs_has_a_quarter_of_its_size(make_mount: Callable[..., Mount], own_tmpfs: Path) -> None:
    mount = make_mount("control_mode=0666", store=own_tmpfs / "store")
    mount.create("half", "buffers=single subbuf_size=1M n_subbufs=8")
    with pytest.raises(OSError) as refused:
        mount.create("more", "buffers=single subbuf_size=1M n_subbufs=8")
    assert refused.value.errno == errno.ENOSPC
    assert "are left of the limit size=16M: user 0 has 8" in said(mount)


def test_none_lifts_a_limit(make_mount: Callable[..., Mount], own_tmpfs: Path, unprivileged: User) -> None:
    mount = make_mount("control_mode=0666,size=none,user_size=none", store=own_tmpfs / "store")
    assert create(unprivileged, mount, "create most buffers=single subbuf_size=1M n_subbufs=48") == "0"
    assert create(unprivileged, mount, "create more buffers=single subbuf_size=1M n_subbufs=48") == "ENOSPC"
    assert "are free in the store" in said(mount)


# --- of one user ---


def test_a_user_gets_no_more_than_his_part_and_others_still_have_theirs(open_mount: Mount, unprivileged: User) -> None:
    answers = [create(unprivileged, open_mount, f"create their{i} {FOUR_MIB}") for i in range(4)]
    assert answers == ["0", "0", "ENOSPC", "ENOSPC"]
    assert re.search(r"4\d{6} bytes are needed; \d+ are left of the limit user_size=10M: user 65534 has 8\d{6} bytes",
                     said(open_mount))  # fmt: skip
    assert create(User(60_002, 60_002), open_mount, f"create another {FOUR_MIB}") == "0"
    for name in ("roots", "large"):
        open_mount.create(name, "buffers=single subbuf_size=1M n_subbufs=16")


def test_what_is_removed_can_be_had_again_at_once(open_mount: Mount, unprivileged: User) -> None:
    for _ in range(8):
        assert create(unprivileged, open_mount, "create large buffers=single subbuf_size=1M n_subbufs=9") == "0"
        assert create(unprivileged, open_mount, "remove large") == "0"


@pytest.mark.parametrize("name", ["relay file", "memory"])
def test_removed_channels_count_while_they_are_open(open_mount: Mount, unprivileged: User, name: str) -> None:
    assert create(unprivileged, open_mount, f"create kept {FOUR_MIB} perm=0600") == "0"
    path = open_mount.path / ("kept" if name == "relay file" else ".channels/kept/mem0")
    with holding(unprivileged, path) as holder:
        assert create(unprivileged, open_mount, "remove kept") == "0"
        assert create(unprivileged, open_mount, f"create second {FOUR_MIB}") == "0"
        assert create(unprivileged, open_mount, f"create third {FOUR_MIB}") == "ENOSPC"
        assert re.search(r"user 65534 has 8\d{6} bytes, 4\d{6} of them in removed channels that are still open",
                         said(open_mount))  # fmt: skip
        free = os.statvfs(open_mount.path)
        assert free.f_bavail * free.f_frsize <= 64 * MIB - 8 * MIB
        holder.kill()
        holder.wait()
    wait_until(lambda: create(unprivileged, open_mount, f"create third {FOUR_MIB}") == "0", "the memory is free")


def test_a_channel_that_changes_hands_is_charged_to_who_has_it(open_mount: Mount, unprivileged: User) -> None:
    path = open_mount.create("gift", "buffers=single subbuf_size=1M n_subbufs=8")
    assert create(unprivileged, open_mount, "create one buffers=single subbuf_size=1M n_subbufs=1") == "0"
    os.chown(path, NOBODY, NOBODY)
    assert create(unprivileged, open_mount, f"create own {FOUR_MIB}") == "ENOSPC"
    os.chown(path, 0, 0)
    assert create(unprivileged, open_mount, f"create own {FOUR_MIB}") == "0"


def test_two_commands_at_once_do_not_share_the_last_of_the_room(open_mount: Mount, unprivileged: User) -> None:
    answers = at_once(lambda i: create(unprivileged, open_mount, f"create c{i} {FOUR_MIB}"), range(6))
    assert sorted(answers) == ["0", "0", *["ENOSPC"] * 4]


def test_limits_hold_after_a_restart(open_mount: Mount, unprivileged: User) -> None:
    for i in range(2):
        assert create(unprivileged, open_mount, f"create c{i} {FOUR_MIB}") == "0"
    open_mount.kill()
    open_mount.start()
    assert create(unprivileged, open_mount, f"create c2 {FOUR_MIB}") == "ENOSPC"


def test_programs_that_join_a_trace_are_charged(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount("user_size=2M,size=64M")
    mount.command("trace create t subbuf_size=256K n_subbufs=4\n")
    mount.command("trace start t\n")
    code = """
import errno, os, sys
for _ in range(2):
    pid = os.fork()
    if not pid:
        fd = os.open(sys.argv[1], os.O_RDWR)
        try:
            os.write(fd, b"t program\\n")
        except OSError as error:
            print(errno.errorcode[error.errno], flush=True)
        else:
            print(os.pread(fd, 99, 0).decode(), end="", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""
    each = native.buf_file_bytes(256 << 10, 4) * N_CPUS
    answers = unprivileged.python(code, mount.path / ".traces/join").stdout.split()
    assert answers[-1] == "ENOSPC"
    assert (answers[0] == "ENOSPC") == (each > 2 * MIB)


def test_what_programs_make_in_the_store_themselves_is_counted(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("size=16M")
    before = os.statvfs(mount.path).f_bfree
    (mount.store / "made").mkdir()
    with (mount.store / "made/mem0").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8 * MIB)
    wait_until(lambda: os.statvfs(mount.path).f_bfree == before - 8 * MIB // 4096, "it is counted")
    with pytest.raises(OSError):
        mount.create("large", "buffers=single subbuf_size=1M n_subbufs=12")
    shutil.rmtree(mount.store / "made")
    wait_until(
        lambda: create(User(0, 0), mount, "create large buffers=single subbuf_size=1M n_subbufs=12") == "0",
        "it is counted no longer",
    )


# --- of names ---


def test_a_user_has_so_many_files_and_directories(make_mount: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_mount("control_mode=0666,user_files=8")
    small = "buffers=single subbuf_size=4K n_subbufs=2"
    assert create(unprivileged, mount, f"create a/b/c/d/e {small}") == "0"
    assert create(unprivileged, mount, f"create f/g/h/i {small}") == "ENOSPC"
    assert "it takes 4 files and directories; user 65534 has 5, at most user_files=8 are allowed" in said(mount)
    assert not (mount.path / "f").exists()
    assert [create(unprivileged, mount, f"create x{i} {small}") for i in range(4)] == ["0", "0", "0", "ENOSPC"]
    # A directory that somebody else has made his own stays, and is still that user's.
    (mount.path / "a/b").chmod(0o750)
    for name in ("a/b/c/d/e", "x0"):
        assert create(unprivileged, mount, f"remove {name}") == "0"
    assert [create(unprivileged, mount, f"create y{i} {small}") for i in range(5)] == ["0"] * 4 + ["ENOSPC"]
    for path in ("a/b", "a"):
        os.rmdir(mount.path / path)
    assert [create(unprivileged, mount, f"create z{i} {small}") for i in range(3)] == ["0", "0", "ENOSPC"]
    for i in range(16):
        mount.create(f"roots{i}", small)


def test_removed_channels_count_as_files_while_they_are_open(
    make_mount: Callable[..., Mount], unprivileged: User
) -> None:
    mount = make_mount("control_mode=0666,user_files=2")
    small = "buffers=single subbuf_size=4K n_subbufs=2 perm=0600"
    assert create(unprivileged, mount, f"create x {small}") == "0"
    with holding(unprivileged, mount.path / "x"):
        assert create(unprivileged, mount, "remove x") == "0"
        assert [create(unprivileged, mount, f"create y{i} {small}") for i in range(2)] == ["0", "ENOSPC"]


def test_all_users_together_leave_the_server_enough_descriptors(scratch_store: Path) -> None:
    scratch_store.mkdir()
    ledger = Ledger(Limits(), str(scratch_store))
    assert 1000 <= ledger.users_files <= int(Path("/proc/sys/vm/max_map_count").read_text()) // 8
    ledger.add({i: Charge(1000 + i, 4096, counts=True) for i in range(ledger.users_files)})
    with pytest.raises(Exception, match=f"at most {ledger.users_files} are allowed, as the server keeps each open"):
        ledger.check_files(1, 999)
    ledger.check_files(1, 0)


# --- the ledger ---


def test_a_survey_keeps_what_has_changed_since_it_began(scratch_store: Path) -> None:
    scratch_store.mkdir()
    ledger = Ledger(Limits(size=100, user_size=100), str(scratch_store))
    ledger.add({1: Charge(7, 10, counts=True), 2: Charge(7, 20), 3: Charge(7, 30)})
    ledger.unname({3: Charge(7, 30)})
    ledger.begin_survey()
    found = {1: Charge(7, 11), 2: Charge(7, 20), 4: Charge(7, 1)}
    ledger.add({5: Charge(7, 2)})
    ledger.release(2)
    ledger.end_survey(found, set())
    assert ledger.room_bytes() == 100 - 11 - 30 - 1 - 2
    ledger.release(3)
    assert ledger.room_bytes() == 100 - 11 - 1 - 2
    with ledger.claim(80, 7):
        assert ledger.room_bytes() == 100 - 14 - 80
    assert ledger.room_bytes() == 100 - 14


def test_mapping_needs_no_more_than_the_file(mount: Mount, mapped_through: None) -> None:
    """What a test above holds is really a mapping, where the mount can map."""
    mount.create("x", FOUR_MIB)
    with (mount.path / ".channels/x/mem0").open("r+b") as file:
        mmap.mmap(file.fileno(), 0).close()
