"""Names of the threads of running programs, from /proc: events hold only the threads' numbers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from relayfs_fuse.tracefiles.thread_names import NAME_BYTES, THREADS_MAX, add

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from relayfs_fuse.tracefiles.thread_names import Names

    # Processes by the device and inode of a file on which they have record locks.
    Holders = Mapping[tuple[int, int], Sequence[int]]

_LOCK = re.compile(rb"^\d+: POSIX +\w+ +READ +([1-9]\d*) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
# Any user can take many locks, and fill the list.
_LOCKS_BYTES = 1 << 20
_OWN_IDS = re.compile(rb"^NSpid:(?:\t\d+)*\t(\d+)$", re.MULTILINE)
_STATUS_BYTES = 4096


def lock_holders() -> Holders:
    """Return which processes have locked which files: a program has locked .events in its directories of traces."""
    holders: dict[tuple[int, int], list[int]] = defaultdict(list)
    with suppress(OSError):
        for pid, major, minor, inode in _LOCK.findall(_read("/proc/locks", _LOCKS_BYTES)):
            holders[os.makedev(int(major, 16), int(minor, 16)), int(inode)].append(int(pid))
    return holders


def note_names(names: Names, pids: Iterable[int]) -> None:
    """Add the names of the threads of processes; at most THREADS_MAX processes and threads are looked at.

    A user may have any number of them.
    """
    looked_at = islice(_threads_of_all(islice(pids, THREADS_MAX)), THREADS_MAX)
    add(names, {ids: name for ids, name in looked_at if name})


def _threads_of_all(pids: Iterable[int]) -> Iterator[tuple[tuple[int, int], bytes]]:
    for pid in pids:
        # A process or a thread may end meanwhile, and others' may be hidden from this user.
        with suppress(OSError):
            yield from _threads(pid)


def _threads(pid: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield the numbers of a process and a thread, in their own PID namespace as in events, and the thread's name."""
    own, is_nested = _own_id(f"/proc/{pid}/status", pid)
    with os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            with suppress(OSError):
                tid = int(task.name)
                name = _read(f"{task.path}/comm", NAME_BYTES + 1).removesuffix(b"\n")[:NAME_BYTES]
                if is_nested:
                    tid, _ = _own_id(f"{task.path}/status", tid)
                yield (own, tid), name


def _own_id(status: str, number: int) -> tuple[int, bool]:
    """Return the number of a process or thread in its own PID namespace, and whether that is another one than here."""
    found = _OWN_IDS.search(_read(status, _STATUS_BYTES))
    if not found:  # a kernel without PID namespaces
        return number, False
    return int(found[1]), found[0].count(b"\t") > 1


def _read(path: str, n_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = b""
        while len(data) < n_bytes and (piece := file.read(n_bytes - len(data))):
            data += piece
        return data
