"""Users without privileges: their own mounts, and what the modes of others' channels let them do."""

import errno
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import forking
import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, LISTED, NOBODY, RELAYFS, Mount, User, tmpfs_directory, wait_until
from traffic import Stream, drain, lines, some_cpu

from relayfs_fuse.native.tables import PERMS

GROUP = 60_001


@dataclass(frozen=True)
class Member:
    """The same user as a member of one more group."""

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return forking.run(
            list(map(str, command)), user=NOBODY, group=NOBODY, extra_groups=[GROUP], capture_output=True, text=True,
            check=False, cwd="/", timeout=DEADLINE_S,
        )  # fmt: skip


def write_text(path: Path, text: str) -> list[str]:
    """Return the command that writes one record by a shell."""
    return ["sh", "-c", f'printf %s "{text}" > "{path}"']


WRITE_BY_LIBRARY = """
import sys
from relayfs_fuse import Channel
Channel(sys.argv[1]).write(sys.argv[2].encode())
"""


# --- a mount of one's own ---


@pytest.fixture
def own(make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None) -> Mount:
    mount: Mount = make_mount(user=unprivileged.uid)
    return mount


def test_a_user_mounts_uses_and_unmounts_with_nothing_but_a_shell(
    unprivileged: User, open_fuse_device: None, scratch_store: Path, tmp_path: Path
) -> None:
    scratch_store.parent.chmod(0o1777)
    script = f"""
set -e
mnt=$(mktemp -d /tmp/relayfs-test-XXXXXX)
"{RELAYFS}" "$mnt" -o store={scratch_store}
trap 'fusermount3 -u "$mnt"; rmdir "$mnt"' EXIT
mkdir "$mnt/app"
echo create app/log buffers=single > "$mnt/control"
echo one > "$mnt/app/log"
echo two >> "$mnt/app/log"
cat "$mnt/app/log"
echo remove app/log > "$mnt/control"
rmdir "$mnt/app"
ls "$mnt"
"""
    done = unprivileged.run("sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"one\ntwo\n{LISTED}", "")


@pytest.mark.parametrize("kind", ["c", "python"])
def test_a_users_producers_write_and_readers_read_every_line(own: Mount, unprivileged: User, kind: str) -> None:
    stream = Stream(own, "app/cpu", kind)
    created = unprivileged.run("sh", "-c", f"echo create app/cpu > {own.control}")
    assert created.returncode == 0, created.stderr
    cpu_file = own.path / f"app/cpu{stream.cpu}"
    stream.start(burst=1000, at_most=3000, user=unprivileged.uid)
    try:
        count = own.path / f".channels/app/cpu/buffer{stream.cpu}/records"
        wait_until(lambda: unprivileged.run("cat", count).stdout == "3000\n", "all is written")
        stream.finish()
    finally:
        stream.kill()
    assert unprivileged.run("cat", cpu_file).stdout.encode() == lines(3000)


def test_a_users_waiting_reader_ends_at_a_signal(own: Mount, unprivileged: User) -> None:
    path = own.path / "log"
    unprivileged.run("sh", "-c", f"echo create log buffers=single read=wait > {own.control}")
    # GNU timeout sends SIGINT after the time and says 124.
    done = unprivileged.run("timeout", "-s", "INT", "0.2", "cat", path)
    assert (done.returncode, done.stdout, done.stderr) == (124, "", "")
    unprivileged.run(*write_text(path, "late"))
    assert unprivileged.run("head", "-c", "4", path).stdout == "late"


def test_a_users_store_is_the_users_alone(own: Mount, unprivileged: User) -> None:
    unprivileged.run("sh", "-c", f"echo create app/cpu > {own.control}")
    for path in (own.store, own.store / "app", own.store / "app/cpu"):
        status = path.stat()
        assert status.st_uid == unprivileged.uid
        assert not status.st_mode & PERMS["STRANGERS"]
    mem = (own.store / "app/cpu/mem0").stat()
    assert (mem.st_uid, stat.S_IMODE(mem.st_mode)) == (unprivileged.uid, PERMS["BUFFER"])


def test_a_user_makes_channels_for_nobody_else(own: Mount, unprivileged: User) -> None:
    for option in ("uid=0", "gid=0", "scheme=nonsense"):
        done = unprivileged.run("sh", "-c", f"echo create x {option} > {own.control}")
        assert done.returncode != 0
    shown = unprivileged.run("grep", "-v", "^#", own.control)
    assert (shown.returncode, shown.stdout) == (1, ""), "grep finds nothing"
    assert unprivileged.run("ls", own.store).stdout == ""


def test_a_dead_server_of_a_user_is_mounted_again_with_everything(own: Mount, unprivileged: User) -> None:
    unprivileged.run("sh", "-c", f"echo create log buffers=single > {own.control}")
    unprivileged.run(*write_text(own.path / "log", "kept"))
    own.kill()
    own.start()
    assert unprivileged.run("cat", own.path / "log").stdout == "kept"


# --- root's mount, and what modes let others do ---


def may(user: User | Member, path: Path) -> str:
    """Tell what a user may do with a relay file, by really doing it, as the letters r and w."""
    reads = user.run("head", "-c", "1", path).returncode == 0
    writes = user.run(*write_text(path, "0123456789")).returncode == 0
    return "r" * reads + "w" * writes


@pytest.mark.parametrize(
    ("perm", "other", "member"),
    [
        ("0640", "", "r"),
        ("0644", "r", "r"),
        ("0622", "w", "w"),
        ("0666", "rw", "rw"),
        ("0660", "", "rw"),
        ("0600", "", ""),
        ("0606", "rw", ""),
    ],
)
def test_modes_say_who_may_read_and_write(mount: Mount, unprivileged: User, perm: str, other: str, member: str) -> None:
    path = mount.create("app/log", f"buffers=single perm={perm} gid={GROUP}")
    assert (may(unprivileged, path), may(Member(), path)) == (other, member)
    assert may(User(0, 0), path) == "rw"


@pytest.mark.parametrize(("perm", "allowed"), [("0640", False), ("0644", False), ("0622", False), ("0666", True)])
def test_the_library_needs_to_read_and_write_the_memory(
    mount: Mount, unprivileged: User, perm: str, allowed: bool
) -> None:
    path = mount.create("log", f"buffers=single perm={perm}")
    done = unprivileged.python(WRITE_BY_LIBRARY, path, "record\n")
    assert (done.returncode == 0) is allowed, done.stderr
    assert allowed or "PermissionError" in done.stderr
    assert drain(path) == (b"record\n" if allowed else b"")


def test_another_users_c_producer_writes_where_the_mode_lets_it(mount: Mount, unprivileged: User) -> None:
    stream = Stream(mount, "open")
    mount.create("open", "perm=0666")
    stream.start(burst=3000, at_most=3000, user=unprivileged.uid)
    wait_until(lambda: stream.shown("records") == 3000, "all is written")
    assert stream.rest() == lines(3000)
    mount.create("closed", "perm=0644")
    program = compile_c([PROGRAMS / "line_producer.c"])
    done = unprivileged.run(program, mount.path / "closed", str(some_cpu()), "0", "1", "0", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize("verb", ["remove", "flush", "reset", "disable", "enable"])
def test_only_owner_and_root_command_a_channel(make_mount: Callable[..., Mount], unprivileged: User, verb: str) -> None:
    mount: Mount = make_mount("control_mode=0666")
    mount.create("roots", "buffers=single perm=0666")
    unprivileged.run("sh", "-c", f"echo create theirs buffers=single > {mount.control}")
    for name in ("roots", "theirs"):
        (mount.path / name).write_bytes(b"data")
    before = mount.channels(), mount.shown("roots", "produced"), mount.shown("roots", "unread_bytes")
    refused = unprivileged.run("bash", "-c", f"echo {verb} roots > {mount.control}")
    assert "Operation not permitted" in refused.stderr
    assert before == (mount.channels(), mount.shown("roots", "produced"), mount.shown("roots", "unread_bytes"))
    assert mount.shown("roots", "disabled") == "0"
    assert unprivileged.run("sh", "-c", f"echo {verb} theirs > {mount.control}").returncode == 0
    if verb == "remove":
        unprivileged.run("sh", "-c", f"echo create theirs buffers=single > {mount.control}")
    mount.command(f"{verb} theirs")


def test_nobody_else_changes_mode_or_owner(mount: Mount, unprivileged: User) -> None:
    path = mount.create("log", "buffers=single perm=0666")
    for command in (["chmod", "777", path], ["chown", str(NOBODY), path], ["chgrp", str(NOBODY), path]):
        assert unprivileged.run(*command).returncode != 0
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o666)


def test_stats_are_for_everybody_and_for_reading(mount: Mount, unprivileged: User) -> None:
    path = mount.create("log", "buffers=single perm=0600")
    stats = mount.path / ".channels/log"
    path.write_bytes(b"data")
    assert unprivileged.run("cat", stats / "records").stdout == "1\n"
    for statistic in ("records", "lost", "mode"):
        with pytest.raises(OSError):
            (stats / statistic).write_text("7\n")
        assert unprivileged.run("sh", "-c", f"echo 7 > {stats / statistic}").returncode != 0
    assert mount.shown("log", "records") == "1"


def test_programs_of_another_user_find_the_package(unprivileged: User) -> None:
    assert pwd.getpwuid(NOBODY).pw_uid == unprivileged.uid
    done = unprivileged.python("import relayfs_fuse, os; print(os.getuid())")
    assert (done.stdout, done.stderr) == (f"{NOBODY}\n", "")
    assert os.access(sys.executable, os.X_OK)


def test_in_a_user_namespace_a_strangers_store_is_not_taken_for_ones_own() -> None:
    """Users without a number there, this program's among them, all look like one."""
    use = "import sys; from relayfs_fuse import Channel; {}(sys.argv[1]).write(b'x')"
    with tmpfs_directory() as directory:
        directory.chmod(0o777)
        store = directory / "store"

        def run(*command: str, **who: object) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, store / "app"], env={**os.environ, "RELAYFS_STORE": str(store)}, capture_output=True,
                text=True, check=False, timeout=DEADLINE_S, **who,
            )  # fmt: skip

        made = run(sys.executable, "-c", use.format("Channel.create"), user=1000, group=1000, extra_groups=[])
        assert made.returncode == 0, made.stderr
        for path in (store, *store.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o666)
        done = run("unshare", "-U", sys.executable, "-c", use.format("Channel"))
        assert os.strerror(errno.EACCES) in done.stderr, done
