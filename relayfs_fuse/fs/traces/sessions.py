"""Sessions: processes that take part in a trace through an open `.traces/join`, as they may not open the store's files.

    STORE/TRACE/PROCESS/.events       the server keeps it locked while a process has a session in this directory, which
                                      then counts as the directory of a process that lives
                        .state        states that processes pass; see native/include/relayfs/trace_store.h
                        .objects      what processes say that they have loaded; see native/src/trace/loaded.h
                        .processes    "PID START" of each such process, and the line of its image. If this server is
                                      killed, the processes go on writing, and the next server inherits the sessions

A session checks the declarations of events that its process passes, and appends them to .events.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import struct
import threading
from array import array
from bisect import bisect_left, insort
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles import ctf, objects
from relayfs_fuse.tracefiles.streams import OBJECTS_FILE, STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.tracefiles.ctf import Declaration

log = logging.getLogger(__name__)

# The sessions of one user. Each takes a descriptor of the server; a process needs one for each of at most 16 traces.
USER_SESSIONS = 1024
# The bytes of declarations in the directories of one user's sessions; the server remembers each declaration.
USER_DECLARED = 64 << 20
PROCESSES_NAME = ".processes"
_REQUEST_OF_STATE = re.compile(rb"state (\d{1,4})\n")
# The bytes of .events that are read at a time: longer than two declarations, each of which is at most a request long.
_PIECE = 65536
_DECLARE_TRIES = 100
_ID_BITS = 16
_HASH_BYTES = 6
_KEY = os.urandom(16)

_FLOCK = struct.Struct("hhqqi4x")


def start_of(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot; None: there is no such process, or it is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in (b"Z", b"X") else int(words[19])


def _hash(declaration: Declaration) -> int:
    """Return a keyed hash of a declaration without its id: programs cannot construct two with the same hash."""
    text = declaration.with_id(0).text
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES, key=_KEY).digest(), "little")


class Totals:
    """How many bytes of declarations the server remembers, by user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Counter[int] = Counter()

    def add(self, uid: int, n_bytes: int) -> None:
        """Add bytes to those of a user, or subtract them if negative; CommandError: ENOSPC, more than USER_DECLARED."""
        with self._lock:
            if uid and n_bytes > 0 and self._bytes[uid] + n_bytes > USER_DECLARED:
                raise CommandError(
                    errno.ENOSPC,
                    f"the processes of user {uid} have declared {self._bytes[uid]} bytes of events; at most "
                    f"{USER_DECLARED} are allowed",
                )
            self._bytes[uid] += n_bytes


class Declared:
    """The events declared in a directory; all sessions in it share this object.

    lock: to be held for all methods except forget()
    uid: the user of the first session, to whom the bytes are charged

    For each declaration there is a 64-bit word with the hash of its text and its id. The words are in a sorted array,
    because a dictionary would take ten times the memory.
    """

    def __init__(self, uid: int, totals: Totals) -> None:
        self.lock = threading.Lock()
        self.uid = uid
        self._totals = totals
        self._words = array("Q")
        self._taken = bytearray(ctf.ID_MAX + 1)
        self._read = 0
        self._charged: Counter[str] = Counter()

    def __contains__(self, id_: int) -> bool:
        return bool(self._taken[id_])

    def find(self, one: Declaration) -> int | None:
        """Return the id of a declaration with the same text except for the id; None: there is none."""
        word = _hash(one) << _ID_BITS
        at = bisect_left(self._words, word)
        found = at < len(self._words) and self._words[at] >> _ID_BITS == word >> _ID_BITS
        return self._words[at] & ctf.ID_MASK if found else None

    def free_id(self) -> int:
        """Return the lowest id that is not taken; CommandError: ENOSPC."""
        at = self._taken.find(0)
        if at < 0:
            raise CommandError(errno.ENOSPC, f"{ctf.ID_MAX + 1} events are declared, which is the limit")
        return at

    def read_on(self, descriptor: int, length: int) -> None:
        """Read what was appended to .events since the last call; CommandError: ENOSPC, more than USER_DECLARED.

        descriptor, length: of .events
        """
        end = min(length, ctf.EVENTS_MAX)
        while self._read < end:
            data = os.pread(descriptor, min(_PIECE, end - self._read), self._read)
            found, passed = ctf.declarations_from(data, 0)
            if not passed and len(data) == _PIECE:
                passed = _PIECE // 2  # this is no declaration that the library has written
            if not passed:
                return
            self._totals.add(self.uid, passed)
            self._read += passed
            # If two declarations have the same id, the first one is valid, as for all readers.
            for one in found:
                if not self._taken[one.id]:
                    self._taken[one.id] = 1
                    insort(self._words, _hash(one) << _ID_BITS | one.id)

    def charge(self, name: str, n_bytes: int) -> None:
        """Add the growth of a file to this length to the bytes of the user; CommandError: ENOSPC, as read_on()."""
        grown = max(0, n_bytes - self._charged[name])
        self._totals.add(self.uid, grown)
        self._charged[name] += grown

    def forget(self) -> None:
        """Free the memory, and subtract the bytes from those of the user."""
        with self.lock:
            self._totals.add(self.uid, -self._read - self._charged.total())
            self._read = 0
            self._charged.clear()
            self._words = array("Q")
            self._taken = bytearray(ctf.ID_MAX + 1)


class Image(NamedTuple):
    """One execution of a program by a process; execve(2) begins another one.

    pid: of the process, in the server's PID namespace
    start: the process's start time, see start_of()
    line: the line by which the library identifies the execution, see native/src/trace/join.c; "": it sent none
    """

    pid: int
    start: int
    line: str


class Session:
    """One process's part in a trace; OSError if the directory's .events cannot be opened and locked.

    directory: the directory in the store to whose buffers the process writes
    uid, image: the process's user and program
    declared: the events declared in the directory
    declared_id: the id of the event that the process declared last; before, an invalid one
    """

    def __init__(self, directory: str, uid: int, image: Image, declared: Declared) -> None:
        self.directory = directory
        self.uid = uid
        self.image = image
        self.declared = declared
        self.declared_id = ctf.ID_MAX + 1
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(os.path.join(directory, ".events"), flags)
        try:
            line = os.pread(self._descriptor, ctf.LINE_BYTES, 0).partition(b"\n")[0]
            self._is_shared = b" buffers=perprocess " not in line
            # A lock of the open file description. A lock of the process would end when any descriptor of the file is
            # closed.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except OSError:
            os.close(self._descriptor)
            raise

    @property
    def name(self) -> str:
        """The name of the directory."""
        return os.path.basename(self.directory)

    def close(self) -> None:
        """Release the lock of .events; waits for a declare() that is in progress."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def lives(self) -> bool:
        """Whether the process lives."""
        return start_of(self.image.pid) == self.image.start

    def declare(self, text: bytes) -> None:
        """Append declarations of events to .events, unless they are there; may block.

        If several processes write to the directory, the server chooses the ids; `declared_id` is the one chosen last.

        CommandError: EINVAL, text is not what the library writes; EEXIST, the id is another event's; ENOSPC; EAGAIN;
        EBADF, the session is closed.
        """
        found = ctf.declarations(b"\n" + text)
        if b"".join(one.text for one in found) != text:
            raise CommandError(errno.EINVAL, "this is no declaration of events as the library writes it, each id once")
        with self._lock, self.declared.lock:
            for one in found:
                self._declare(one)

    def _declare(self, one: Declaration) -> None:
        """Append a declaration, and again with another id if a process has appended one with the same id before."""
        for _ in range(_DECLARE_TRIES):
            if self._descriptor < 0:
                raise CommandError(errno.EBADF, "the process has left the trace")
            length = os.fstat(self._descriptor).st_size
            self.declared.read_on(self._descriptor, length)
            known = self.declared.find(one)
            if known is not None and (self._is_shared or known == one.id):
                self.declared_id = known
                return
            if self._is_shared:
                one = one.with_id(self.declared.free_id())
            elif one.id in self.declared:
                raise CommandError(errno.EEXIST, f"id {one.id} is another event's")
            if length + len(one.text) > ctf.EVENTS_MAX:
                raise CommandError(errno.ENOSPC, f"the declarations would be longer than {ctf.EVENTS_MAX} bytes")
            if os.write(self._descriptor, one.text) != len(one.text):
                raise CommandError(errno.ENOSPC, "there is no room for the declarations")
            if not self._is_shared:
                self.declared_id = one.id
                return
        raise CommandError(errno.EAGAIN, f"other processes declared events during {_DECLARE_TRIES} tries in a row")

    def put_state(self, request: bytes) -> None:
        """Write to .state what a process passes: a line "state PLACE", and the bytes; may block.

        CommandError: EINVAL, there is no such place, or it is too long, or several processes write here; ENOSPC.
        """
        found = _REQUEST_OF_STATE.match(request)
        place, value = (int(found[1]), request[found.end() :]) if found else (-1, b"")
        if (
            not 0 <= place < 2 * native_trace.STATES
            or not 0 < len(value) <= native_trace.STATE_BYTES
            or self._is_shared
        ):
            raise CommandError(
                errno.EINVAL,
                f"state: a process with buffers of its own passes a place, 0 .. {2 * native_trace.STATES - 1}, "
                f"and up to {native_trace.STATE_BYTES} bytes",
            )
        at = place * native_trace.STATE_BYTES
        with self._lock, self.declared.lock:
            self.declared.charge(STATE_FILE, at + len(value))
            with self._opened(STATE_FILE) as descriptor:
                if os.pwrite(descriptor, value, at) != len(value):
                    raise CommandError(errno.ENOSPC, "there is no room for the state")

    def add_objects(self, request: bytes) -> None:
        """Append lines about what the process has loaded to .objects: a line "objects", and these; may block.

        CommandError: EINVAL, these are no such lines, or several processes write here; ENOSPC.
        """
        text = request.partition(b"\n")[2]
        if self._is_shared or not text or objects.text_of(objects.parse(text)) != text:
            raise CommandError(
                errno.EINVAL,
                "objects: a process with buffers of its own passes lines BASE SIZE BIAS BUILD_ID PATH",
            )
        with self._lock, self.declared.lock, self._opened(OBJECTS_FILE) as descriptor:
            length = os.fstat(descriptor).st_size
            if length + len(text) > native_trace.OBJECTS_BYTES:
                raise CommandError(errno.ENOSPC, f"the lines would be longer than {native_trace.OBJECTS_BYTES} bytes")
            self.declared.charge(OBJECTS_FILE, length + len(text))
            if os.pwrite(descriptor, text, length) != len(text):
                raise CommandError(errno.ENOSPC, "there is no room for what is loaded")

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a file of the directory, made if it does not exist."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(os.path.join(self.directory, name), flags, PERMS["OWN"])
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def allocate(self, cpu: int, trace: Trace) -> None:
        """Allocate the memory of a CPU's buffer; may block. OSError: ENOSPC."""
        descriptor = native.file_open(os.path.join(self.directory, f"cpu/mem{cpu}"))
        try:
            native_trace.trace_allocate(os.path.dirname(self.directory), trace, descriptor)
        finally:
            os.close(descriptor)


class Sessions:
    """All sessions; every method can be called in any thread, and may block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, list[Session]] = {}
        self._inherited: list[Session] = []
        self._users: Counter[int] = Counter()
        self._declared: dict[str, Declared] = {}
        self._totals = Totals()

    def has_other_image(self, directory: str, pid: int, line: str) -> bool:
        """Whether a process has a session in a directory with another `line`, from before an execve(2)."""
        return any(image.pid == pid and image.line != line for image in self.images(directory))

    def images(self, directory: str) -> list[Image]:
        """Return the processes that have sessions in a directory."""
        with self._lock:
            return [session.image for session in self._open.get(directory, [])]

    def open(self, directory: str, uid: int, pid: int, line: str) -> Session:
        """Make a session of a process in a directory, in place of one that was inherited.

        CommandError: ESRCH, the process has ended; ENOSPC, the user has USER_SESSIONS already. OSError.
        """
        start = start_of(pid)
        if start is None:
            raise CommandError(errno.ESRCH, f"process {pid} has ended")
        with self._lock:
            if uid and self._users[uid] >= USER_SESSIONS:
                raise CommandError(
                    errno.ENOSPC, f"the processes of user {uid} take part {USER_SESSIONS} times, which is the limit"
                )
            session = self._add(directory, uid, Image(pid, start, line))
            mine = [one for one in self._inherited if (one.directory, one.image.pid) == (directory, pid)]
            for inherited in mine:
                self._drop(inherited)
            self._write(directory)
            return session

    def close(self, session: Session) -> None:
        """End a session."""
        with self._lock:
            self._drop(session)
            self._write(session.directory)

    def inherit(self, directory: str) -> None:
        """Make sessions for the processes that had one in another server and live; OSError."""
        with self._lock:
            for image in _read(directory):
                if start_of(image.pid) == image.start:
                    uid = os.stat(os.path.join(directory, ".events"), follow_symlinks=False).st_uid
                    self._inherited.append(self._add(directory, uid, image))

    def reclaim(self, directory: str, image: Image) -> Session | None:
        """Return an inherited session, which ends now when the process closes `join`; None: there is none."""
        with self._lock:
            for session in self._inherited:
                if (session.directory, session.image) == (directory, image):
                    self._inherited.remove(session)
                    return session
        return None

    def sweep(self) -> None:
        """End the inherited sessions whose processes have ended; no close(2) of `join` ends those."""
        with self._lock:
            for session in [other for other in self._inherited if not other.lives()]:
                self._drop(session)
                self._write(session.directory)

    def close_all(self) -> None:
        """Close all sessions, but leave .processes as it is, so that the next server inherits them."""
        with self._lock:
            for sessions in self._open.values():
                for session in sessions:
                    session.close()
            self._open.clear()

    def _add(self, directory: str, uid: int, image: Image) -> Session:
        declared = self._declared.get(directory) or Declared(uid, self._totals)
        session = Session(directory, uid, image, declared)
        self._declared[directory] = declared
        self._open.setdefault(directory, []).append(session)
        self._users[uid] += 1
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
            self._declared.pop(session.directory, None)
        session.close()  # waits for a declare() in progress, which uses `declared`
        if not sessions:
            session.declared.forget()

    def _write(self, directory: str) -> None:
        """Write .processes of a directory; by rename(2), since this server may be killed at any moment."""
        images = [session.image for session in self._open.get(directory, [])]
        text = "".join(f"{image.pid} {image.start} {image.line}\n" for image in images)
        path, new = os.path.join(directory, PROCESSES_NAME), os.path.join(directory, f"{PROCESSES_NAME}.new")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(new, flags, PERMS["OWN"])
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
            os.rename(new, path)
        except FileNotFoundError:
            log.debug("%s has been removed", directory)
        except OSError as error:
            log.info("%s/.processes cannot be written: %s", directory, error.strerror)


def _read(directory: str) -> Iterator[Image]:
    """Yield the processes in .processes of a directory; none if there is no such file."""
    try:
        with open(os.path.join(directory, PROCESSES_NAME), encoding="ascii") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        pid, start, image_line = (*line.split(" ", 2), "", "")[:3]
        if pid.isdigit() and start.isdigit():
            yield Image(int(pid), int(start), image_line)
