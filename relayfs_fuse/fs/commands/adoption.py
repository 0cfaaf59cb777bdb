"""Checking the files that `adopt PATH FD,FD,...` is to make a channel of.

A program that ran without a server has made the buffers in files without names, and passes its descriptors of them. The
server opens the files again through /proc, trusts nothing about them, and takes them only if they belong to the caller
and are all buffers of one channel.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.native.tables import RELAY_OPTIONS

if TYPE_CHECKING:
    from relayfs_fuse.fs.commands.control import Command

_NEEDED = "a memory file that relay_open() has made without a name (O_TMPFILE) is needed"
# The statistics that are the same in all buffers of a channel.
_COMMON = (
    *("n_buffers", "format"),
    *(option.field for option in RELAY_OPTIONS.values() if option.field and option.file),
)


def take(command: Command, process: int, uid: int, store: str) -> list[native.Buffer]:
    """Map the buffers that a command names, and return them in the order of its descriptors; CommandError.

    process: the process that opened control; 0: it is not visible to the server
    uid: its user
    store: the directory where the files will get names
    """
    if process == 0:
        raise command.refuse(
            errno.ESRCH, "the process that opened control is gone, or in a PID namespace that the server cannot see"
        )
    if len(command.descriptors) > native.n_possible_cpus():
        message = (
            f"{len(command.descriptors)} descriptors: a channel has at most {native.n_possible_cpus()} buffers here"
        )
        raise command.refuse(errno.EINVAL, message, "descriptors")
    buffers: list[native.Buffer] = []
    try:
        for descriptor in command.descriptors:
            buffers.append(_take_one(command, f"/proc/{process}/fd/{descriptor}", descriptor, uid, store))
        _check_alike(command, [buffer.stats() for buffer in buffers])
    except BaseException:
        for buffer in buffers:
            buffer.close()
        raise
    return buffers


def _take_one(command: Command, path: str, descriptor: int, uid: int, store: str) -> native.Buffer:
    what = f"descriptor {descriptor}"
    try:
        # O_PATH, because opening a device or a pipe can have side effects.
        seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        code = errno.EBADF if error.errno == errno.ENOENT else error.errno or errno.EIO
        message = f"{what} of process {path.split('/')[2]} cannot be opened: {error.strerror}; {_NEEDED}"
        raise command.refuse(code, message, "descriptors") from error
    try:
        _check_file(command, what, os.fstat(seen), uid, os.stat(store).st_dev)
        return _map(command, what, seen)
    finally:
        os.close(seen)


def _check_file(command: Command, what: str, status: os.stat_result, uid: int, device: int) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_nlink:
        raise command.refuse(errno.EINVAL, f"{what} is not a file without a name; {_NEEDED}", "descriptors")
    if status.st_uid != uid:
        raise command.refuse(errno.EPERM, f"{what} belongs to user {status.st_uid}, not to you, {uid}", "descriptors")
    if status.st_dev != device and uid == os.geteuid():
        raise command.refuse(
            errno.EXDEV,
            f"{what} lies in another file system than this mount's store: make the channel with "
            f"RELAYFS_STORE set to a directory in that of the store",
            "descriptors",
        )
    if status.st_blocks * 512 < status.st_size:
        message = f"{what} has holes: a channel's memory is allocated before it has a name"
        raise command.refuse(errno.EINVAL, message, "descriptors")


def _map(command: Command, what: str, seen: int) -> native.Buffer:
    try:
        opened = os.open(f"/proc/self/fd/{seen}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return native.Buffer.of_descriptor(opened)
        finally:
            os.close(opened)
    except OSError as error:
        code = errno.EINVAL if error.errno == errno.EBADMSG else error.errno or errno.EIO
        message = f"{what} is not a buffer of this layout: {error.strerror}; {_NEEDED}"
        raise command.refuse(code, message, "descriptors") from error


def _check_alike(command: Command, stats: list[native.Stats]) -> None:
    first = stats[0]
    expected = native.n_possible_cpus() if first.buffers == native.BUFFERS_PERCPU else 1
    for index, (descriptor, of_one) in enumerate(zip(command.descriptors, stats, strict=True)):
        if of_one.cpu != index or any(getattr(of_one, name) != getattr(first, name) for name in _COMMON):
            message = f"descriptor {descriptor} is not buffer {index} of the same channel"
            raise command.refuse(errno.EINVAL, message, "descriptors")
        if of_one.closed:
            raise command.refuse(errno.EINVAL, f"descriptor {descriptor}: the channel is closed", "descriptors")
    if (first.n_buffers, len(stats)) != (expected, expected):
        word = RELAY_OPTIONS["buffers"].format(first.buffers)
        message = f"{len(stats)} buffers of {first.n_buffers}: {word} has {expected} here"
        raise command.refuse(errno.EINVAL, message, "descriptors")
