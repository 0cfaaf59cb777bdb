"""The files of a trace's triggers, in its directory in the store.

    STORE/TRACE/.triggers       the triggers, a line of JSON each; the server writes it
    STORE/TRACE/.triggered      what they have done, a line each; the mount shows it as TRACE/triggered
    STORE/TRACE/.trigger-state  how far the events are evaluated, in JSON

The process that evaluates triggers (triggers/watch.py) writes the last two. If it is killed, the next one goes on where
the state says: it cuts off .triggered there, and evaluates again what came after. So each file is replaced as a whole,
or longer than the state says; .triggered gets shorter only while it has nothing that the state does not know.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import Any, NamedTuple

from relayfs_fuse.errors import failure
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import PERMS

TRIGGERS, JOURNAL, STATE = ".triggers", ".triggered", ".trigger-state"
# When the journal is longer than the first one, only the last whole lines that take the second one are kept.
JOURNAL_MAX, JOURNAL_KEPT = 8 << 20, 4 << 20
_APPENDS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Definition(NamedTuple):
    """A trigger.

    since: when it was added, ns since 1970; no two of a trace have the same
    line: the command
    living: the processes that lived then, by the names of their directories, with the inodes of these; only if it waits
        for the ends of processes
    """

    since: int
    line: str
    living: dict[str, int]


def read_definitions(directory: str) -> list[Definition]:
    """Return the triggers of a trace; none if it has none. OSError."""
    try:
        with open(os.path.join(directory, TRIGGERS), "rb") as file:
            return [Definition(**json.loads(line)) for line in file]
    except FileNotFoundError:
        return []
    except (TypeError, ValueError) as error:
        raise OSError(errno.EBADMSG, "it is not what the server has written", TRIGGERS) from error


def write_definitions(directory: str, definitions: list[Definition]) -> None:
    """Replace the triggers of a trace; OSError."""
    text = "".join(f"{json.dumps(one._asdict())}\n" for one in definitions)
    replace_file(os.path.join(directory, TRIGGERS), text.encode())


def processes_in(directory: str) -> dict[str, int]:
    """Return the directories of processes in a trace by name, with their inodes; OSError."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries if not entry.name.startswith(".")}


def lives(directory: str, name: str) -> bool:
    """Return whether the process of a directory in a trace lives, as far as that can be found out."""
    try:
        return native_trace.trace_is_alive(os.path.join(directory, name))
    except OSError:
        return False


def read_state(directory: str) -> dict[str, Any]:
    """Return the state of a trace's triggers; empty: there is none."""
    try:
        with open(os.path.join(directory, STATE), "rb") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(directory: str, state: dict[str, Any]) -> None:
    """Replace the state; OSError."""
    replace_file(os.path.join(directory, STATE), json.dumps(state).encode())


def replace_file(path: str, data: bytes) -> None:
    """Write a file under another name, and give it its own then; OSError."""
    os.close(_replaced(path, data))


def _replaced(path: str, data: bytes, *, is_locked: bool = False) -> int:
    """Replace a file; return a descriptor that appends to it.

    is_locked: whether it is locked before others can find it
    """
    descriptor = os.open(f"{path}.new", _APPENDS | os.O_TRUNC, PERMS["OWN"])
    try:
        if os.write(descriptor, data) != len(data):
            os.truncate(descriptor, 0)
            raise failure(errno.ENOSPC, path)
        if is_locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(f"{path}.new", path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Journal:
    """The file of what a trace's triggers have done, open for appending; OSError.

    It is locked until close(): the process of a server that has died may not have ended yet.

    size: its length, bytes
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, JOURNAL)
        self._descriptor = self._locked()
        self.size = os.fstat(self._descriptor).st_size

    def _locked(self) -> int:
        """Open and lock the file; while this waits for the lock, who has it may replace the file."""
        while True:
            descriptor = os.open(self._path, _APPENDS, PERMS["OWN"])
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def cut(self, size: int) -> None:
        """Cut off what is behind `size`."""
        self.size = min(size, self.size)
        os.ftruncate(self._descriptor, self.size)

    def close(self) -> None:
        """Close and unlock the file."""
        os.close(self._descriptor)

    def append(self, lines: bytes) -> None:
        """Append lines, all or none; OSError: there is no room for them."""
        written = os.write(self._descriptor, lines)
        if written != len(lines):
            os.ftruncate(self._descriptor, self.size)
            raise failure(errno.ENOSPC, self._path)
        self.size += written

    def shorten(self) -> bool:
        """Keep only the last lines, if there are too many; return whether the size is another one.

        It may be called when the state has the size.
        """
        if self.size <= JOURNAL_MAX:
            return False
        kept = os.pread(self._descriptor, JOURNAL_KEPT, self.size - JOURNAL_KEPT)
        kept = kept[kept.find(b"\n") + 1 :]
        try:
            descriptor = _replaced(self._path, kept, is_locked=True)
        except OSError:
            return False  # there is no room for a copy now
        os.close(self._descriptor)
        self._descriptor, self.size = descriptor, len(kept)
        return True
