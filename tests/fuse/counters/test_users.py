"""Counters of other users than the mount's: what they see, what they may, and what they cannot harm."""

import os
import subprocess
import sys
import tempfile

import forking
import pytest
from access import ARRANGE
from build import ROOT
from counting import HOLD, own_names, values
from mounts import DEADLINE_S, User, wait_until

from relayfs_fuse import native
from relayfs_fuse.native.tables import PERMS


def test_without_root_a_mount_counts_for_its_own_user(make_mount, unprivileged: User, open_fuse_device):
    mount = make_mount(user=unprivileged.uid)
    done = unprivileged.python(HOLD, mount.path, "app/a", "0200")
    assert done.returncode == 0, done.stderr
    text = unprivileged.run("cat", mount.path / "counters.txt").stdout
    assert "app/a 3000\n" in text
    assert unprivileged.run("sh", "-c", f"echo add app/b > {mount.path}/counters.names").returncode == 0
    assert "app/b 0\n" in unprivileged.run("cat", mount.path / "counters.txt").stdout


def test_another_users_counters_are_seen_by_all_and_changed_by_nobody_else(open_mount, unprivileged: User):
    mount = open_mount
    done = unprivileged.python(HOLD, mount.path, "theirs/a", "0200")
    assert done.returncode == 0, done.stderr
    n = int(done.stdout)
    assert own_names(mount) == {"theirs/a": n}
    assert values(mount)["theirs/a"] == 3000
    assert f"uid={unprivileged.uid} gid={unprivileged.gid} mode=0200" in (mount.path / "counters.names").read_text()
    other = User(12345, 12345)
    for name in ("theirs/a", "theirs/b"):
        assert "PermissionError" in other.python(HOLD, mount.path, name, "0200").stderr
    assert other.run("sh", "-c", f"echo del {n} > {mount.path}/counters.names").returncode != 0
    assert unprivileged.run("sh", "-c", f"echo del {n} > {mount.path}/counters.names").returncode == 0
    assert own_names(mount) == {}


def test_what_others_count_arrives_without_being_asked_for(open_mount, unprivileged: User):
    mount = open_mount
    assert unprivileged.python(HOLD, mount.path, "all/a", "0222").returncode == 0
    counters = native.CountersHandle(str(mount.path))
    counters.refresh()
    n = counters.find("all/a")
    wait_until(lambda: counters.sum(n) == 3000, lambda: str(counters.sum(n)))
    assert User(12345, 12345).python(HOLD, mount.path, "all/a", "0222").returncode == 0
    wait_until(lambda: counters.sum(n) == 6000, lambda: str(counters.sum(n)))
    counters.close()


def test_who_may_not_command_may_not_add(mount, unprivileged: User):
    assert "PermissionError" in unprivileged.python(HOLD, mount.path, "theirs/a", "0200").stderr
    assert own_names(mount) == {}


# --- programs of others open files of the mount alone ---

# Adds a counter and then, in a file that it has open, does what it is told; prints the errno's name.
HURT = """
import ctypes, errno, mmap, os, sys
from relayfs_fuse.native import CounterSpec, CountersHandle
mnt, group, how = sys.argv[1:]
counters = CountersHandle(mnt)
n = counters.add(group + "/a", CounterSpec(mode=0o222))
counters.adjust(n, 3)
path = f"{mnt}/.counters/{os.getuid()}-{os.getgid()}-0666"
fd = os.open(path, os.O_RDWR)
again = f"/proc/self/fd/{fd}"
view = mmap.mmap(fd, os.fstat(fd).st_size)
ways = {
    "truncate": lambda: os.truncate(path, 0),
    "ftruncate": lambda: os.ftruncate(fd, 0),
    "grow": lambda: os.ftruncate(fd, 1 << 40),
    "reopen": lambda: os.ftruncate(os.open(again, os.O_RDWR), 0),
    "trunc": lambda: os.open(path, os.O_RDWR | os.O_TRUNC),
    "write": lambda: os.pwrite(fd, b"x" * 4096, 4096),
    "write only": lambda: os.open(path, os.O_WRONLY),
    "fallocate": lambda: os.posix_fallocate(fd, 0, 1 << 30),
    "link": lambda: os.link(path, f"{mnt}/.counters/more"),
    "unlink": lambda: os.unlink(path),
    "rename": lambda: os.rename(path, path + "x"),
    "chmod": lambda: os.chmod(path, 0o777),
    "store": lambda: os.open(os.getxattr(path, "user.relayfs.backing"), os.O_RDWR),
    "scribble": lambda: view.write(os.urandom(len(view))),
    "zeros": lambda: view.madvise(mmap.MADV_REMOVE),
}
try:
    ways[how]()
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
REFUSED = {
    "truncate": {"EPERM"},
    "ftruncate": {"EPERM"},
    "grow": {"EPERM", "EFBIG"},
    "reopen": {"EPERM"},
    "trunc": {"EPERM", "EACCES"},
    "write": {"EINVAL"},
    "write only": {"EACCES"},
    "fallocate": {"EOPNOTSUPP", "EPERM", "EINVAL", "ENODEV"},
    "link": {"EPERM", "EACCES"},
    "unlink": {"EPERM", "EACCES"},
    "rename": {"EPERM", "EACCES"},
    "chmod": {"EPERM"},
    "store": {"EACCES"},
    "scribble": {"done"},
    "zeros": {"EPERM"},
}


@pytest.mark.parametrize("how", REFUSED)
def test_whose_group_it_is_cannot_kill_who_counts_in_it(open_mount, unprivileged: User, how):
    """Root's program counts in the group of a user who lets everybody."""
    mount = open_mount
    assert unprivileged.python(HOLD, mount.path, "theirs/b", "0222").returncode == 0
    root = native.CountersHandle(str(mount.path))
    n, own = root.add("theirs/b", native.CounterSpec()), root.add("roots/a", native.CounterSpec())
    root.adjust(n, 1)
    done = unprivileged.python(HURT, mount.path, "theirs", how)
    assert (done.stdout.strip() in REFUSED[how], done.stderr) == (True, ""), done.stdout
    root.adjust(n, 1)  # would be SIGBUS
    root.adjust(own, 1)
    assert values(mount)["roots/a"] == 1
    if how != "scribble":
        assert values(mount)["theirs/b"] == 3002
        assert values(mount)["theirs/a"] == 3
    root.close()


def test_others_map_what_the_mount_shows_and_hold_no_file_of_the_store(open_mount, unprivileged: User):
    code = """
import os, sys
from relayfs_fuse.native import CounterSpec, CountersHandle
counters = CountersHandle(sys.argv[1])
counters.adjust(counters.add("theirs/a", CounterSpec()), 1)
for entry in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{entry}"))
    except FileNotFoundError:
        pass
"""
    opened = unprivileged.python(code, open_mount.path).stdout
    assert f"{open_mount.path}/.counters/names" in opened
    assert str(open_mount.store) not in opened
    assert values(open_mount)["theirs/a"] == 1


def test_the_files_in_the_store_are_open_to_others_only_if_they_are_trusted(make_mount, unprivileged: User):
    mount = make_mount("trusted")
    names_file = mount.store / ".counters/names"
    assert unprivileged.run("test", "-r", names_file).returncode == 0
    assert mount.stop() == 0
    mount.options.clear()
    mount.start()
    assert (mount.store / ".counters").stat().st_mode & 0o777 == PERMS["STORE"]
    assert unprivileged.run("test", "-r", names_file).returncode != 0


def test_files_of_the_counters_are_read_and_shown_with_owner_and_mode(open_mount, unprivileged: User):
    mount = open_mount
    assert unprivileged.python(HOLD, mount.path, "theirs/a", "0220").returncode == 0
    uid, gid = unprivileged.uid, unprivileged.gid
    directory = mount.path / ".counters"
    assert sorted(path.name for path in directory.iterdir()) == sorted([f"{uid}-{gid}-0660", "counters", "names"])
    status = (directory / f"{uid}-{gid}-0660").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (uid, gid, 0o660)
    assert (directory / "names").stat().st_mode & 0o7777 == 0o444
    for name in ("names", "counters", f"{uid}-{gid}-0660"):
        shown, stored = directory / name, mount.store / ".counters" / name
        # The server counts what it does, at any moment also between the two reads.
        wait_until(lambda a=shown, b=stored: a.read_bytes() == b.read_bytes(), f"{name} is the store's")
    assert User(12345, 12345).run("cat", directory / f"{uid}-{gid}-0660").returncode != 0


def test_who_counts_through_a_mount_goes_on_through_the_next(open_mount, unprivileged: User):
    mount = open_mount
    code = """
import sys
from relayfs_fuse.native import CounterSpec, CountersHandle
counters = CountersHandle(sys.argv[1])
first = counters.add("theirs/a", CounterSpec())
counters.adjust(first, 1)
print("ready", flush=True)
sys.stdin.readline()
counters.adjust(first, 1)
print("counted", flush=True)
sys.stdin.readline()
counters.adjust(first, 1)
counters.adjust(counters.add("more/a", CounterSpec(mode=0o222)), 7)
print("done", flush=True)
"""
    with forking.start(
        [sys.executable, "-c", code, mount.path], user=unprivileged.uid, group=unprivileged.gid, extra_groups=[],
        cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout.readline() == "ready\n"
        mount.kill()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "counted\n"
        subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
        mount.start()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "done\n"
    assert values(mount)["theirs/a"] == 3
    assert values(mount)["more/a"] == 7


# --- where the mount maps no files ---

# A mount of a user who lets others in: his server cannot map files. Another user counts; it prints what he sees.
UNMAPPED = """
import subprocess, sys, tempfile
from pathlib import Path
from mounts import User, NOBODY, serving, tmpfs_directory
code = sys.argv[1]
with tmpfs_directory() as path, serving(path / "store") as make:
    mount = make("allow_other", "control_mode=0666", user=NOBODY)
    assert "maps no files" in mount.log.read_text()
    own = User(NOBODY, NOBODY).run("sh", "-c", f"echo add all/a mode=0222 >{mount.path}/counters.names")
    own = User(NOBODY, NOBODY).run("sh", "-c", f"echo add own/a >{mount.path}/counters.names")
    assert own.returncode == 0, own.stderr
    done = User(12345, 12345).python(code, mount.path)
    print(done.stdout, done.stderr, (mount.path / "counters.txt").read_text())
"""
COUNT_UNMAPPED = """
import errno, sys, time
from relayfs_fuse.native import CounterSpec, CountersHandle
counters = CountersHandle(sys.argv[1])
n = counters.add("all/a", CounterSpec())
counters.adjust(n, 5)
counters.adjust(n, -2)
for name in ("own/a", "new/a"):
    try:
        counters.add(name, CounterSpec())
    except PermissionError as error:
        print(name, errno.errorcode[error.errno])
try:
    counters.adjust(n + 1, 1)
except OSError as error:
    print(errno.errorcode[error.errno])
deadline = time.monotonic() + 200
while counters.sum(n) != 3 and time.monotonic() < deadline:
    counters.refresh()
print("sum", counters.sum(n), counters.find("all/a") == n, [info.name for info in counters.infos()][:2])
"""


def test_where_nothing_is_mapped_others_count_by_asking_the_server(unprivileged: User):
    del unprivileged
    with tempfile.TemporaryDirectory(prefix="relayfs-test-") as place:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", ARRANGE, "sh", place, sys.executable, "-c", UNMAPPED, COUNT_UNMAPPED],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support")}, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "own/a EACCES\n" in done.stdout
    assert "new/a EPERM\n" in done.stdout
    assert "sum 3 True" in done.stdout, done.stdout
    assert "all/a 3\n" in done.stdout


def test_counters_are_found_through_a_mount_that_has_no_traces(make_mount):
    mount = make_mount(start=False)
    mount.store.mkdir(mode=0o700)
    (mount.store / ".traces").write_bytes(b"no traces" * 1000)
    mount.expect("cannot be used")
    mount.start()
    assert not (mount.path / ".traces").exists()
    counters = native.CountersHandle(str(mount.path))
    counters.adjust(counters.add("theirs/a", native.CounterSpec()), 3)
    assert values(mount)["theirs/a"] == 3
    counters.close()
