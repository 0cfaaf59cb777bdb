"""System calls on a relay file: what a kernel was observed to answer, and what relayfs answers.

A case without an answer of its own must be answered as the kernel did, word for word as relay-observed.txt has it.
Where an answer differs, the case says why; docs/conformance.md says it to users.
"""

import ctypes
import errno
import fcntl
import os
import select
import socket
import tempfile
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conformance.calls import LIBC, call, events, name_of
from conformance.observations import COVERED, observations
from mounts import Mount

FICLONE = 0x40049409
UNREAD = b"d" * 100


@dataclass
class File:
    """A relay file and what a case needs to act on it."""

    mount: Mount
    path: Path
    reader: int
    writer: int
    elsewhere: Path


@dataclass(frozen=True)
class Case:
    """One line of the table.

    act: returns what the call returned, or raises what it raised
    ours: the answer, where it is not the kernel's
    why: the reason, then
    """

    section: str
    label: str
    act: Callable[[File], object]
    ours: str | None = None
    why: str = ""


def opened(flags: int) -> Callable[[File], str]:
    def act(file: File) -> str:
        os.close(os.open(file.path, flags, 0o600))
        return "ok"

    return act


def status(file: File) -> str:
    st = os.stat(file.path)
    return f"mode={oct(st.st_mode)} nlink={st.st_nlink} uid={st.st_uid} size={st.st_size} blocks={st.st_blocks} blksize={st.st_blksize}"  # noqa: E501


def magic_number(file: File) -> str:
    buffer = (ctypes.c_long * 64)()
    call("statfs", os.fsencode(file.path), buffer)
    return hex(buffer[0])


def nonblocking_read(file: File) -> bytes:
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 64)
    finally:
        os.close(descriptor)


def read_into(file: File, address: int, size: int) -> str:
    """Read to an address; say what the call returned and, as a program would see it, errno."""
    ctypes.set_errno(0)
    result = LIBC.read(file.reader, ctypes.c_void_p(address), size)
    return f"ret={result} errno={ctypes.get_errno()}"


def bytes_still_there(file: File) -> str:
    for act in (read_to_nowhere, splice, sendfile, copy_file_range):
        with pytest.raises(OSError):
            act(file)
    return f"{len(os.read(file.reader, 4096))} B"


def read_to_nowhere(file: File) -> None:
    call("read", file.reader, ctypes.c_void_p(1), 16)


def splice(file: File, offset: int | None = None) -> int:
    read_end, write_end = os.pipe()
    try:
        return os.splice(file.reader, write_end, 4096, offset_src=offset)
    finally:
        os.close(read_end)
        os.close(write_end)


def sendfile(file: File, offset: int | None = None) -> int:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return os.sendfile(ours.fileno(), file.reader, offset, 4096)


def copy_file_range(file: File) -> int:
    with tempfile.TemporaryFile(dir="/dev/shm") as target:
        return os.copy_file_range(file.reader, target.fileno(), 4096)


def clone(file: File) -> int:
    with tempfile.TemporaryFile(dir="/dev/shm") as target:
        return fcntl.ioctl(target.fileno(), FICLONE, file.reader)


def preadv(file: File) -> int:
    return os.preadv(file.reader, [bytearray(8)], 0)


def preadv2_nowait(file: File) -> int:
    return os.preadv(file.reader, [bytearray(8)], -1, os.RWF_NOWAIT)


def readv(file: File) -> int:
    return os.readv(file.reader, [bytearray(8), bytearray(8)])


def bytes_after_a_read_to_nowhere(file: File) -> str:
    os.read(file.reader, 16)
    with pytest.raises(OSError):
        read_to_nowhere(file)
    return f"{len(os.read(file.reader, 4096))} B"


def promised_by_fionread(file: File) -> int:
    os.read(file.reader, 30)
    os.fstat(file.reader)
    count = ctypes.c_int(-1)
    fcntl.ioctl(file.reader, termios.FIONREAD, count)
    return count.value


def epoll(file: File) -> None:
    with select.epoll() as poll:
        poll.register(file.reader, select.EPOLLIN)


def epoll_events(file: File) -> object:
    with select.epoll() as poll:
        poll.register(file.reader, select.EPOLLIN)
        return poll.poll(0)


def truncated(file: File, size: int) -> tuple[None, int]:
    os.truncate(file.path, size)
    return None, os.stat(file.path).st_size


def changed_mode(file: File) -> tuple[None, str]:
    os.chmod(file.path, 0o644)
    return None, oct(os.stat(file.path).st_mode)


def write_to_both(file: File) -> int:
    descriptor = os.open(file.path, os.O_RDWR)
    try:
        return os.write(descriptor, b"abc")
    finally:
        os.close(descriptor)


def set_lock(file: File) -> None:
    fcntl.lockf(file.reader, fcntl.LOCK_SH | fcntl.LOCK_NB)


OPENING = [
    Case("1", "open O_RDONLY", opened(os.O_RDONLY)),
    Case("1", "open O_RDONLY|O_NONBLOCK", opened(os.O_RDONLY | os.O_NONBLOCK)),
    Case("1", "open O_WRONLY", opened(os.O_WRONLY)),
    Case("1", "open O_RDWR", opened(os.O_RDWR)),
    Case("1", "open O_RDONLY|O_TRUNC", opened(os.O_RDONLY | os.O_TRUNC)),
    Case("1", "open O_WRONLY|O_TRUNC", opened(os.O_WRONLY | os.O_TRUNC)),
    Case("1", "open O_RDONLY|O_APPEND", opened(os.O_RDONLY | os.O_APPEND)),
    Case("1", "open O_RDONLY|O_DIRECT", opened(os.O_RDONLY | os.O_DIRECT), "ok", "splice and dd iflag=direct need it"),
    Case("1", "open O_RDONLY|O_CREAT", opened(os.O_RDONLY | os.O_CREAT)),
    Case("1", "open O_RDONLY|O_CREAT|O_EXCL", opened(os.O_RDONLY | os.O_CREAT | os.O_EXCL)),
    Case("1", "open O_DIRECTORY", opened(os.O_DIRECTORY)),
    Case("1", "open O_PATH", opened(os.O_PATH)),
    Case("A", "O_DIRECT open", opened(os.O_RDWR | os.O_DIRECT), "ok", "sendfile needs it"),
    Case(
        "2", "st", status, f"mode=0o100640 nlink=1 uid={os.geteuid()} size=0 blocks=0 blksize=1048576",
        "the mode is the channel's; one request carries 1 MiB, and cat reads as much at a time as st_blksize says",
    ),
    Case("2", "statfs f_type", magic_number, "0x65735546", "it is a FUSE file system"),
]  # fmt: skip
EMPTY = [
    Case("3", "read(64) blocking fd", lambda file: os.read(file.reader, 64)),
    Case("3", "read(64) O_NONBLOCK fd", nonblocking_read),
    Case("3", "read(0)", lambda file: os.read(file.reader, 0)),
    Case("3", "poll(all events)", lambda file: events(file.reader), "260", "there is room for a write(2)"),
    Case("3", "poll on O_WRONLY fd", lambda file: events(file.writer), "260", "there is room for a write(2)"),
    Case("3", "write on O_WRONLY fd", lambda file: os.write(file.writer, b"abc"), "3", "a write(2) is a record"),
    Case("A", "write(O_RDWR)", write_to_both, "3", "a write(2) is a record"),
    Case("3", "read on O_WRONLY fd", lambda file: os.read(file.writer, 1)),
    Case("3", "ftruncate(0) on O_WRONLY", lambda file: os.ftruncate(file.writer, 0)),
    Case("3", "pwrite", lambda file: os.pwrite(file.writer, b"abc", 0), "3", "a write(2) is a record, wherever"),
    Case("3", "write on O_RDONLY fd", lambda file: os.write(file.reader, b"abc")),
    Case("3", "truncate(path,0)", lambda file: os.truncate(file.path, 0)),
    Case(
        "3", "truncate(path,100) -> st_size", lambda file: truncated(file, 100), "(None, 0)",
        "the size says how much was written, whoever truncates",
    ),
]  # fmt: skip
SEEKABLE = "tail -c, head -n -5, split -n and others seek in what is a regular file"
UNREAD_DATA = [
    Case("4", "lseek SEEK_SET 0", lambda file: os.lseek(file.reader, 0, os.SEEK_SET), "0", SEEKABLE),
    Case("4", "lseek SEEK_CUR 0", lambda file: os.lseek(file.reader, 0, os.SEEK_CUR), "0", SEEKABLE),
    Case("4", "lseek SEEK_END 0", lambda file: os.lseek(file.reader, 0, os.SEEK_END), "100", SEEKABLE),
    Case("4", "lseek SEEK_DATA", lambda file: os.lseek(file.reader, 0, os.SEEK_DATA), "0", SEEKABLE),
    Case("4", "lseek SEEK_HOLE", lambda file: os.lseek(file.reader, 0, os.SEEK_HOLE), "100", SEEKABLE),
    Case("4", "lseek bad whence 99", lambda file: os.lseek(file.reader, 0, 99)),
    Case(
        "4", "pread(10,0)", lambda file: os.pread(file.reader, 10, 0), str(UNREAD[:10]),
        "the first bytes are what is next; they are given again to who asks again",
    ),
    Case("4", "preadv(off=0)", preadv, "8", "as pread"),
    Case("4", "preadv2(off=-1,NOWAIT)", preadv2_nowait),
    Case("4", "readv([8,8])", readv),
    Case(
        "4", "read(buf=(void*)1,16)", lambda file: read_into(file, 1, 16), f"ret=-1 errno={errno.EFAULT}",
        "0 would mean that there is no data",
    ),
    Case("4", "then read(4096)", bytes_after_a_read_to_nowhere, "84 B"),
    Case(
        "4", "ioctl FIONREAD", promised_by_fionread, "70",
        "the file system's part of Linux answers, st_size less the position: what is unread",
    ),
    Case("4", "ioctl 0xF500", lambda file: fcntl.ioctl(file.reader, 0xF500)),
    Case("4", "fsync", lambda file: os.fsync(file.reader), "None", "dd conv=fsync and editors may go on"),
    Case("4", "posix_fadvise", lambda file: os.posix_fadvise(file.reader, 0, 0, os.POSIX_FADV_SEQUENTIAL)),
    Case("4", "flock LOCK_EX", lambda file: fcntl.flock(file.reader, fcntl.LOCK_EX | fcntl.LOCK_NB)),
    Case("4", "fcntl F_SETLK rdlock", set_lock),
    Case("4", "readahead()", lambda file: call("readahead", file.reader, ctypes.c_long(0), ctypes.c_size_t(4096))),
    Case("4", "splice(file->pipe, 4096)", splice),
    Case("4", "splice(file->pipe, off_in=0)", lambda file: splice(file, 0)),
    Case("4", "sendfile(out=file)", sendfile),
    Case(
        "4", "sendfile(off=0)", lambda file: sendfile(file, 0), "EINVAL",
        "at any position it reads through the page cache",
    ),
    Case("4", "copy_file_range", copy_file_range),
    Case("4", "still there: read", bytes_still_there),
    Case("4", "ioctl FICLONE(dst,src)", clone),
    Case("4", "epoll_ctl ADD", epoll),
    Case("4", "epoll_wait(0)", epoll_events),
    Case("4", "select() readable", lambda file: bool(select.select([file.reader], [], [], 0)[0])),
    Case("4", "fallocate (O_RDONLY)", lambda file: os.posix_fallocate(file.reader, 0, 9)),
    Case("4", "chmod 0644", changed_mode),
    Case("4", "unlink", lambda file: os.unlink(file.path)),
    Case("4", "rename", lambda file: os.rename(file.path, f"{file.path}x")),
    Case("4", "link", lambda file: os.link(file.path, file.elsewhere)),
    Case("4", "creat in dir", lambda file: os.open(f"{file.path}x", os.O_CREAT | os.O_WRONLY, 0o600)),
    Case("4", "setxattr", lambda file: os.setxattr(file.path, "user.x", b"1")),
]  # fmt: skip
CASES = OPENING + EMPTY + UNREAD_DATA
COVERED.update((case.section, case.label) for case in CASES)


def answer(act: Callable[[File], object], file: File) -> str:
    try:
        return str(act(file))
    except OSError as error:
        return name_of(error)


@pytest.fixture
def file(one_mount: Mount, tmp_path: Path) -> Iterator[File]:
    path = one_mount.create("calls/file", "buffers=single subbuf_size=4K n_subbufs=4 delivery=bulk")
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    yield File(one_mount, path, reader, writer, tmp_path / "link")
    os.close(reader)
    os.close(writer)
    one_mount.command("remove calls/file")


def kernels_answer(case: Case) -> str:
    results = [seen.result for seen in observations() if (seen.section, seen.label) == (case.section, case.label)]
    assert len(results) == 1
    return results[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.section}: {case.label}")
def test_calls_are_answered_as_observed(case: Case, file: File) -> None:
    if case in UNREAD_DATA:
        os.write(file.writer, UNREAD)
    if case.ours is None:
        assert answer(case.act, file) == kernels_answer(case)
    else:
        assert answer(case.act, file) == case.ours, case.why
