"""Who opened a descriptor: its requests are carried out with these credentials, whoever makes them.

A descriptor is passed on: to children, through sockets, and as the standard error of a setuid program, whose messages
are then written to it. So the credentials of open(2) decide what a write may do, as they do for files of the kernel.
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
    """The credentials of whoever opened a descriptor, as they were at the open(2).

    groups: all its groups, the effective one first
    pid: its process; 0: that is gone, or cannot be seen from here
    vpid: the same in its own PID namespace
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    pid: int
    vpid: int


class Opening:
    """One open(2).

    number: the kernel's for the open file that it makes
    request: of whom
    access: O_RDONLY, O_WRONLY or O_RDWR
    as_stream: whether a relay file of relay buffers is opened as a stream; see kinds/relay.py
    """

    def __init__(self, number: int, flags: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.access = flags & os.O_ACCMODE
        self.reads = self.access != os.O_WRONLY
        self.is_for_both = self.access == os.O_RDWR
        self.never_sleeps = self.access == os.O_RDONLY and bool(flags & os.O_NONBLOCK)
        self.truncates = bool(flags & os.O_TRUNC)
        self.as_stream = False

    @cached_property
    def opener(self) -> Opener:
        """Who opens."""
        return opener_of(self.request)


def opener_of(request: Request) -> Opener:
    """Tell who makes a request; the thread sleeps in it, so that its credentials cannot change meanwhile."""
    pid, vpid, groups = _look(request.pid)
    return Opener(request.uid, request.gid, (request.gid, *(gid for gid in groups if gid != request.gid)), pid, vpid)


def process_of(thread: int) -> int:
    """Tell which process a thread belongs to; 0: it is gone, or cannot be seen from here."""
    return _look(thread)[0]


def _look(thread: int) -> tuple[int, int, list[int]]:
    """Return a thread's process, here and in its own PID namespace, and its groups; 0 and none if it cannot be seen."""
    try:
        with open(f"/proc/{thread}/status", encoding="utf-8", errors="replace") as file:
            stats = dict(line.rstrip("\n").partition(":")[::2] for line in file)
    except OSError:
        return 0, 0, []
    pid = int(stats.get("Tgid", 0))
    vpid = int(stats.get("NStgid", str(pid)).split()[-1])
    return pid, vpid, [int(word) for word in stats.get("Groups", "").split()]
