"""The credentials of the process that opened a file, with which all requests about the open file are carried out.

A program can pass a descriptor to another process: to a child, through a socket, or as the standard error of a setuid
program, which then writes its messages there. So the credentials at open(2), and not those of the writer, decide what a
write may do. The kernel has the same rule for its files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayfs_fuse.fs.tap import Request


@dataclass(frozen=True)
class Opener:
    """The credentials of the process that opened a file, as they were at open(2).

    groups: all groups, the effective one first
    pid: the process's number in the server's PID namespace; 0: it has ended, or is not visible there
    vpid: the process's number in its own PID namespace
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    pid: int
    vpid: int


class Opening:
    """One open(2).

    number: the number that the new open file gets; see Handle
    flags: of open(2)
    request: the request of the kernel
    access: O_RDONLY, O_WRONLY or O_RDWR
    never_sleeps: whether the flags are O_RDONLY | O_NONBLOCK
    as_stream: whether a relay file of relay buffers is opened as a stream; see kinds/relay.py
    is_again: whether a program has had the file open since another server, which has died, opened it
    """

    def __init__(self, number: int, flags: int, request: Request) -> None:
        self.number = number
        self.flags = flags
        self.request = request
        self.access = flags & os.O_ACCMODE
        self.reads = self.access != os.O_WRONLY
        self.is_for_both = self.access == os.O_RDWR
        self.never_sleeps = self.access == os.O_RDONLY and bool(flags & os.O_NONBLOCK)
        self.truncates = bool(flags & os.O_TRUNC)
        self.as_stream = False
        self.is_again = False

    @property
    def has_opener(self) -> bool:
        """Whether `opener` was asked for."""
        return "opener" in vars(self)

    @cached_property
    def opener(self) -> Opener:
        """The credentials of the process; they are read from /proc at the first call."""
        return opener_of(self.request)


def opener_of(request: Request) -> Opener:
    """Return the credentials of the thread that makes a request; it sleeps until the answer, so they cannot change."""
    pid, vpid, groups = _read_status(request.pid)
    return Opener(request.uid, request.gid, (request.gid, *(gid for gid in groups if gid != request.gid)), pid, vpid)


def process_of(thread: int) -> int:
    """Return the process of a thread; 0: the thread has ended, or is not visible in the server's PID namespace."""
    return _read_status(thread)[0]


def _read_status(thread: int) -> tuple[int, int, list[int]]:
    """Return the process of a thread, its number in its own PID namespace, and its groups; 0, 0, [] if not visible."""
    try:
        with open(f"/proc/{thread}/status", encoding="utf-8", errors="replace") as file:
            stats = dict(line.rstrip("\n").partition(":")[::2] for line in file)
    except OSError:
        return 0, 0, []
    pid = int(stats.get("Tgid", 0))
    vpid = int(stats.get("NStgid", str(pid)).split()[-1])
    return pid, vpid, [int(word) for word in stats.get("Groups", "").split()]
