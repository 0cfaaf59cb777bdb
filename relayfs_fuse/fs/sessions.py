"""Processes that take part in a trace through an open `join`, because they open no file of the store.

    STORE/TRACE/PROCESS/.events       locked by the server as long as one of them is there
                        .processes    "PID START" of each, for the next server: they write on when this one is killed

What a program says of its events is checked before it stands in .events.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING

from relayfs_fuse import ctf, native_trace
from relayfs_fuse.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.native_trace import Trace

log = logging.getLogger(__name__)

# Each takes a descriptor of the server; 16 are enough for a process, one for each trace.
USER_SESSIONS = 1024
PROCESSES_NAME = ".processes"

_FLOCK = struct.Struct("hhqqi4x")


def start_of(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did; None: there is none that lives."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in (b"Z", b"X") else int(words[19])


class Session:
    """One process's part in a directory of a trace.

    directory: where that is in the store
    uid, pid, start: whose it is; see start_of()
    """

    def __init__(self, directory: str, uid: int, pid: int, start: int) -> None:
        self.directory = directory
        self.uid = uid
        self.pid = pid
        self.start = start
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._parsed = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(os.path.join(directory, ".events"), flags)
        try:
            # Of the open file: another one of the same file may be closed without an end to it.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except OSError:
            os.close(self._descriptor)
            raise

    @property
    def name(self) -> str:
        """The name of the directory."""
        return os.path.basename(self.directory)

    def close(self) -> None:
        """Take part no longer."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def lives(self) -> bool:
        """Tell whether the process does."""
        return start_of(self.pid) == self.start

    def declare(self, text: bytes) -> None:
        """Add declarations of events, all of them or none; may block. CommandError: EINVAL, ENOSPC."""
        found = ctf.declarations(b"\n" + text)
        if b"".join(one.text for one in found) != text:
            raise CommandError(errno.EINVAL, "this is no declaration of events as the library writes it, each id once")
        with self._lock:
            if self._descriptor < 0:
                raise CommandError(errno.EBADF, "the process takes part no longer")
            length = os.fstat(self._descriptor).st_size
            self._parse(length)
            new = [one for one in found if one.id not in self._known]
            added = b"".join(one.text for one in new)
            if length + len(added) > ctf.EVENTS_MAX:
                raise CommandError(errno.ENOSPC, f"the declarations would be longer than {ctf.EVENTS_MAX} bytes")
            if added and os.write(self._descriptor, added) != len(added):
                raise CommandError(errno.ENOSPC, "there is no room for the declarations")

    def allocate(self, cpu: int, trace: Trace) -> None:
        """Give the data of a CPU's buffer their memory; may block. OSError: ENOSPC, there is none."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(self.directory, f"cpu/mem{cpu}"), flags)
        try:
            native_trace.trace_allocate(os.path.dirname(self.directory), trace, descriptor)
        finally:
            os.close(descriptor)

    def _parse(self, length: int) -> None:
        """Find out what others have declared in the same directory."""
        if self._parsed < length:
            data = os.pread(self._descriptor, min(length - self._parsed, ctf.EVENTS_MAX), self._parsed)
            self._known.update(one.id for one in ctf.declarations(b"\n" + data))
            self._parsed = length


class Sessions:
    """All of them; every method can be called in any thread, and may block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, list[Session]] = {}
        self._inherited: list[Session] = []
        self._users: Counter[int] = Counter()

    def open(self, directory: str, uid: int, pid: int) -> Session:
        """Let a process take part in a directory; CommandError: ESRCH, ENOSPC."""
        start = start_of(pid)
        if start is None:
            raise CommandError(errno.ESRCH, f"process {pid} has ended")
        with self._lock:
            if uid and self._users[uid] >= USER_SESSIONS:
                raise CommandError(
                    errno.ENOSPC, f"the processes of user {uid} take part {USER_SESSIONS} times, as often as is allowed"
                )
            session = self._add(Session(directory, uid, pid, start))
            for inherited in [other for other in self._inherited if (other.directory, other.pid) == (directory, pid)]:
                self._drop(inherited)
            self._write(directory)
            return session

    def close(self, session: Session) -> None:
        """Let its process take part no longer."""
        with self._lock:
            self._drop(session)
            self._write(session.directory)

    def inherit(self, directory: str) -> None:
        """Let the processes take part that did so through another server, and live."""
        with self._lock:
            for pid, start in _read(directory):
                if start_of(pid) == start:
                    uid = os.stat(os.path.join(directory, ".events"), follow_symlinks=False).st_uid
                    self._inherited.append(self._add(Session(directory, uid, pid, start)))

    def sweep(self) -> None:
        """Let go of what was inherited from processes that have ended: their `join` is another server's."""
        with self._lock:
            for session in [other for other in self._inherited if not other.lives()]:
                self._drop(session)
                self._write(session.directory)

    def close_all(self) -> None:
        """Let go of all of them, for the next server to inherit."""
        with self._lock:
            for sessions in self._open.values():
                for session in sessions:
                    session.close()
            self._open.clear()

    def _add(self, session: Session) -> Session:
        self._open.setdefault(session.directory, []).append(session)
        self._users[session.uid] += 1
        return session

    def _drop(self, session: Session) -> None:
        sessions = self._open.get(session.directory, [])
        if session in sessions:
            sessions.remove(session)
            self._users[session.uid] -= 1
        if session in self._inherited:
            self._inherited.remove(session)
        if not sessions:
            self._open.pop(session.directory, None)
        session.close()

    def _write(self, directory: str) -> None:
        """Note who takes part; whole at every moment, as this server may be killed at any."""
        text = "".join(f"{session.pid} {session.start}\n" for session in self._open.get(directory, []))
        path, new = os.path.join(directory, PROCESSES_NAME), os.path.join(directory, f"{PROCESSES_NAME}.new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
            os.rename(new, path)
        except FileNotFoundError:
            log.debug("%s has been removed", directory)
        except OSError as error:
            log.info("%s: who takes part cannot be noted: %s", directory, error.strerror)


def _read(directory: str) -> Iterator[tuple[int, int]]:
    try:
        with open(os.path.join(directory, PROCESSES_NAME), encoding="ascii") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        pid, _, start = line.partition(" ")
        if pid.isdigit() and start.isdigit():
            yield int(pid), int(start)
