"""The events that running programs declare, read from their memory; /proc decides who may read whose.

Programs with tracepoints have mapped the first page of the control file of traces.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from multiprocessing import Pipe
from signal import SIGKILL
from time import monotonic
from typing import TYPE_CHECKING

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from relayfs_fuse.native.trace import Process
    from relayfs_fuse.tracefiles.ctf import Declaration

_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) r\S+ 0+ ([0-9a-f]+):([0-9a-f]+) (\d+) ")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COMM_BYTES = 64
# One for each shared library with tracepoints.
_MAPPINGS_MAX = 4096
# Files by major and minor number of the device, and inode.
_Files = set[tuple[int, int, int]]
# How long reading all processes of one user may take; of root and this user only reads that fail or time out count. The
# time of a single read is limited to what is left of that, but not to less than _LEAST_PATIENCE_S.
_PATIENCE_S, _LEAST_PATIENCE_S = 5.0, 0.2


@dataclass(frozen=True)
class RunningProgram:
    """A running program that has mapped the control file of traces.

    reason: why its memory cannot be read; empty: it can
    """

    process: Process
    declarations: list[Declaration]
    reason: str = ""


def running_programs(control_files: Iterable[str]) -> Iterator[RunningProgram]:
    """Return the programs that have mapped a control file, in the order of their pids.

    control_files: paths of the same file: STORE/.traces, MNT/.traces/control
    """
    files: _Files = set()
    for path in control_files:
        status = os.stat(path)
        files.add((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    spent_s: defaultdict[int, float] = defaultdict(float)
    with closing(_Reader(files)) as reader:
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
            # It may have ended.
            with suppress(FileNotFoundError, ProcessLookupError):
                program = _read_patiently(reader, pid, spent_s)
                if program:
                    yield program


def _read_patiently(reader: _Reader, pid: int, spent_s: dict[int, float]) -> RunningProgram | None:
    """Read a process, unless all processes of its user have taken too long together.

    spent_s: by user; of root and this user, what was spent on processes that could not be read
    """
    uid = os.stat(f"/proc/{pid}").st_uid
    left_s, is_trusted = _PATIENCE_S - spent_s[uid], uid in {0, os.geteuid()}
    if not is_trusted and left_s <= 0:
        is_first = spent_s[uid] < inf
        spent_s[uid] = inf
        return _unread(pid, f"no more programs of uid {uid} are read: that takes too long") if is_first else None
    begin, is_counted = monotonic(), not is_trusted
    try:
        return reader.read(pid, max(left_s, _LEAST_PATIENCE_S))
    except TimeoutError:
        is_counted = True
        return _unread(pid, "reading its memory takes too long")
    except (EOFError, ConnectionError):
        is_counted = True
        return _unread(pid, "reading its memory failed")
    finally:
        if is_counted:
            spent_s[uid] += monotonic() - begin


class _Reader:
    """A child process that reads the memory of others; one that does not answer is replaced.

    A thread could not be abandoned: a read of memory that maps a file of FUSE may never return, not even after SIGKILL.
    """

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._child: int | None = None

    def read(self, pid: int, patience_s: float) -> RunningProgram | None:
        """Return a process's events; None: it has not mapped a control file, has ended, or its maps may not be read.

        TimeoutError; EOFError, ConnectionError: the child has ended.
        """
        if self._child is None:
            self._start()
        try:
            self._pipe.send(pid)
            if not self._pipe.poll(patience_s):
                raise TimeoutError
            program: RunningProgram | None = self._pipe.recv()
        except BaseException:
            self.close()
            raise
        return program

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                self._pipe.close()
                self._answer(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def _answer(self, pipe: Connection) -> None:
        """Read one process after the other, in the child, until the parent has ended."""
        # Otherwise a pipe to which this command writes would stay open as long as the child lives.
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        while True:
            pipe.send(_read(pipe.recv(), self._files))

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._pipe.close()
            os.kill(self._child, SIGKILL)
            os.waitpid(self._child, os.WNOHANG)
            self._child = None


def _read(pid: int, files: _Files) -> RunningProgram | None:
    # It may end at any moment, or belong to another user.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError), _opened(f"/proc/{pid}") as directory:
        return _program(pid, directory, files)
    return None


def _unread(pid: int, reason: str) -> RunningProgram:
    with _opened(f"/proc/{pid}") as directory:
        return RunningProgram(_process(pid, directory), [], reason)


@contextmanager
def _opened(path: str, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _program(pid: int, directory: int, files: _Files) -> RunningProgram | None:
    pages = _pages(directory, files)
    if not pages:
        return None
    process = _process(pid, directory)
    try:
        with _opened("mem", directory) as memory:
            found = [native_trace.running_declarations(memory, page, ctf.EVENTS_MAX) for page in pages]
    except OSError as error:
        return RunningProgram(process, [], error.strerror or str(error))
    texts = [text for text in found if text is not None]
    if not texts:
        return RunningProgram(process, [], "it has another version of librelayfs")
    name = texts[0].partition(b"\n")[0].decode(errors="surrogateescape")
    declarations = [one for text in texts for one in ctf.declarations(text)]
    return RunningProgram(replace(process, name=name), declarations)


def _process(pid: int, directory: int) -> Process:
    with _opened("comm", directory) as descriptor:
        comm = os.read(descriptor, _COMM_BYTES).decode(errors="surrogateescape").rstrip("\n")
    return native_trace.Process(comm, pid, pid, os.fstat(directory).st_uid, 0)


def _pages(directory: int, files: _Files) -> list[int]:
    """Return the addresses at which a process has mapped the first page of one of the files alone."""
    found = []
    with _opened("maps", directory) as descriptor, open(descriptor, "rb", closefd=False) as lines:
        # The paths in them may be of hundreds of megabytes together.
        for line in lines:
            mapping = _MAPPING.match(line)
            if mapping and (int(mapping[3], 16), int(mapping[4], 16), int(mapping[5])) in files:
                start, end = int(mapping[1], 16), int(mapping[2], 16)
                # Servers and recorders map the whole file, and have no tracepoints.
                if end - start == _PAGE_BYTES:
                    found.append(start)
    return found[:_MAPPINGS_MAX]
