"""Programs of other users where the mount maps no files: what they write and read goes through the server."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Mount, User, wait_until
from making import environment_of, making, relay_files
from traffic import Stream, drain, lines

PYTHON = Path(sys.executable)

RESERVING = """
import ctypes, os, relayfs_fuse, sys
lib = ctypes.CDLL(os.path.dirname(relayfs_fuse.__file__) + "/lib/librelayfs.so", use_errno=True)
lib.relay_attach.restype = lib.relay_reserve.restype = ctypes.c_void_p
lib.relay_reserve.argtypes = ctypes.c_void_p, ctypes.c_size_t
lib.relay_commit.argtypes = lib.relay_discard.argtypes = ctypes.c_void_p, ctypes.c_void_p
chan = lib.relay_attach(sys.argv[1].encode())
def reserve(data):
    at = lib.relay_reserve(chan, len(data))
    assert at, os.strerror(ctypes.get_errno())
    ctypes.memmove(at, data, len(data))
    return at
first, second, third = reserve(b"one\\n"), reserve(b"two\\n"), reserve(b"three\\n")
lib.relay_commit(chan, third)
lib.relay_discard(chan, second)
for _ in range(2):  # the second time there is nothing to commit
    lib.relay_commit(chan, first)
lib.relay_commit(chan, lib.relay_reserve(chan, 0))
assert not lib.relay_reserve(chan, 5000)
print(ctypes.get_errno())
"""


@pytest.mark.parametrize("kind", ["c", "python"])
@pytest.mark.parametrize("options", ["", "scheme=lockless", "scheme=locking"])
def test_every_record_of_another_users_producer_arrives_in_order(
    unmapped: Mount, unprivileged: User, kind: str, options: str
) -> None:
    stream = Stream(unmapped, "app/cpu", kind)
    unmapped.create(stream.channel, f"perm=0666 {options}")
    stream.start(burst=100, at_most=3000, user=unprivileged.uid)
    wait_until(lambda: stream.fact("records") == 3000, "all is written")
    maps = Path(f"/proc/{stream.process.pid}/maps").read_text() if stream.process else ""
    assert "mem" + str(stream.cpu) not in maps
    assert stream.rest() == lines(3000)


@pytest.mark.parametrize(
    ("command", "length", "code", "lost"),
    [
        ("", 5000, errno.EMSGSIZE, "lost_too_large"),
        ("", 2 << 20, errno.EMSGSIZE, "lost_too_large"),
        ("disable log\n", 10, errno.ECANCELED, "lost_disabled"),
        ("remove log\n", 10, errno.EPIPE, ""),
    ],
)
def test_what_is_refused_has_the_errors_of_a_mapped_channel(
    unmapped: Mount, unprivileged: User, command: str, length: int, code: int, lost: str
) -> None:
    path = unmapped.create("log", "buffers=single subbuf_size=4K n_subbufs=2 perm=0666")
    write = f"""
import sys
from relayfs_fuse import Channel
channel = Channel(sys.argv[1])
print(flush=True)
input()
try:
    channel.write(bytes({length}))
except OSError as error:
    print(error.errno)
"""
    with subprocess.Popen(
        [os.fspath(PYTHON), "-c", write, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        user=unprivileged.uid, group=unprivileged.gid, extra_groups=[], cwd="/",
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        if command:
            unmapped.command(command)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.read() == f"{code}\n"
    if lost:
        assert unmapped.fact("log", lost) == unmapped.fact("log", "lost") == "1"


def test_a_full_buffer_refuses_and_counts(unmapped: Mount, unprivileged: User) -> None:
    path = unmapped.create("log", "buffers=single subbuf_size=4K n_subbufs=2 perm=0666")
    write = """
import sys
from relayfs_fuse import Channel
channel = Channel(sys.argv[1])
print(channel.write_many([b"x" * 1024] * 20))
"""
    assert unprivileged.python(write, path).stdout == "8\n"
    assert (unmapped.fact("log", "records"), unmapped.fact("log", "lost_full")) == ("8", "1")


def test_reservations_are_private_until_they_are_committed(unmapped: Mount, unprivileged: User) -> None:
    path = unmapped.create("log", "buffers=single subbuf_size=4K n_subbufs=2 perm=0666")
    done = unprivileged.python(RESERVING, path)
    assert (done.stdout, done.stderr) == (f"{errno.EMSGSIZE}\n", "")
    assert drain(path) == b"three\none\n"
    assert unmapped.fact("log", "lost_too_large") == unmapped.fact("log", "lost") == "1"


@pytest.mark.parametrize("options", ["", "read=wait", "mode=overwrite"])
def test_another_users_reader_reads_all_and_finds_the_end(unmapped: Mount, unprivileged: User, options: str) -> None:
    path = unmapped.create("log", f"buffers=single perm=0666 {options}")
    read = """
import sys
from relayfs_fuse import Reader
with Reader(sys.argv[1]) as reader:
    for piece in reader:
        sys.stdout.buffer.write(bytes(piece))
        sys.stdout.flush()
"""
    path.write_bytes(b"before\n")
    with subprocess.Popen(
        [os.fspath(PYTHON), "-c", read, path], stdout=subprocess.PIPE, user=unprivileged.uid,
        group=unprivileged.gid, extra_groups=[], cwd="/",
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == b"before\n"
        path.write_bytes(b"while it sleeps\n")
        assert program.stdout.readline() == b"while it sleeps\n"
        path.write_bytes(b"last\n")
        unmapped.command("remove log\n")
        assert program.stdout.read() == b"last\n"
    assert program.returncode == 0


def test_another_user_makes_and_removes_a_channel(make_unmapped: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_unmapped("control_mode=0666")
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask("open cpu - 4096 4")
        maker.ask("write one")
        maker.ask("flush")
        assert [fact for fact in ("records", "lost") if mount.fact("cpu", fact) != "1"] == ["lost"]
        maker.ask("close")
        assert relay_files(mount.path) == []


def test_what_needs_the_memory_itself_is_refused(make_unmapped: Callable[..., Mount], unprivileged: User) -> None:
    mount = make_unmapped("control_mode=0666")
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask("start 0")
        assert maker("open cpu - 4096 4") == "EOPNOTSUPP"
        assert mount.control.read_text() == ""


def test_files_later_are_refused_and_the_channel_goes_on(
    make_unmapped: Callable[..., Mount], unprivileged: User
) -> None:
    mount = make_unmapped("control_mode=0666")
    with making(environment_of(mount), user=unprivileged.uid) as maker:
        maker.ask("open - - 4096 4")
        assert maker("late cpu -") == "ENODEV"
        assert mount.control.read_text() == ""
        maker.ask("write one")


def test_commands_need_the_right_to_give_them(unmapped: Mount, unprivileged: User) -> None:
    path = unmapped.create("log", "buffers=single perm=0666")
    flush = "import sys; from relayfs_fuse import Channel; Channel(sys.argv[1]).flush()"
    assert "PermissionError" in unprivileged.python(flush, path).stderr


def test_rings_that_cannot_be_mapped_are_written_and_read_as_files(unmapped: Mount, unprivileged: User) -> None:
    path = unmapped.create("ring", "type=ring framing=line perm=0666")
    attach = "import sys; from relayfs_fuse import Ring; Ring(sys.argv[1])"
    assert f"[Errno {errno.ENODEV}]" in unprivileged.python(attach, path).stderr
    file = unmapped.path / "ring0"
    assert unprivileged.run("sh", "-c", f"echo one > {file}").returncode == 0
    assert unprivileged.run("head", "-c", "4", file).stdout == "one\n"
