"""The events that running programs declare, read from their memory; /proc decides who may read whose.

Programs with tracepoints have mapped the first page of the control file of traces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from signal import SIGKILL
from time import monotonic
from typing import TYPE_CHECKING

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from relayfs_fuse.native.trace import Process
    from relayfs_fuse.tracefiles.ctf import Declaration

_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) r\S+ 0+ ([0-9a-f]+):([0-9a-f]+) (\d+) ")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# One for each shared library with tracepoints.
_MAPPINGS_MAX = 4096
# Files by major and minor number of the device, and inode.
_Files = set[tuple[int, int, int]]
# How long all processes whose memory does not come are waited for together, and each at least.
_PATIENCE_S, _LEAST_PATIENCE_S = 5.0, 0.2


@dataclass(frozen=True)
class RunningProgram:
    """A program that has found the traces.

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
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    patience_s = _PATIENCE_S
    while pids:
        begin = monotonic()
        for program in _read_in_child(pids, files, max(patience_s, _LEAST_PATIENCE_S)):
            del pids[0]
            if program:
                yield program
            begin = monotonic()
        if pids:
            patience_s -= monotonic() - begin
            program = _unread(pids.pop(0))
            if program:
                yield program


def _read_in_child(pids: list[int], files: _Files, patience_s: float) -> Iterator[RunningProgram | None]:
    """Return what there is of each process, up to the first for which that takes longer.

    A thread could not be left behind: reading memory that is of a file of FUSE may have no end, not even by SIGKILL.
    """
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            # Who reads the output of this command must not wait for the child.
            null = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(null, standard)
            for pid in pids:
                sender.send(_read(pid, files))
        finally:
            os._exit(0)
    sender.close()
    try:
        with receiver, suppress(EOFError):
            for _ in range(len(pids)):
                if not receiver.poll(patience_s):
                    return
                yield receiver.recv()
    finally:
        os.kill(child, SIGKILL)
        os.waitpid(child, os.WNOHANG)


def _read(pid: int, files: _Files) -> RunningProgram | None:
    # It may end at any moment, or be of somebody else.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError), _opened(f"/proc/{pid}") as directory:
        return _program(pid, directory, files)
    return None


def _unread(pid: int) -> RunningProgram | None:
    """Return a process whose memory may be that of a file whose server does not answer, if it still runs."""
    with suppress(FileNotFoundError, ProcessLookupError), _opened(f"/proc/{pid}") as directory:
        return RunningProgram(_process(pid, directory), [], "reading its memory takes too long")
    return None


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
            texts = [text for page in pages if (text := _text(memory, page)) is not None]
    except OSError as error:
        return RunningProgram(process, [], error.strerror or str(error))
    if not texts:
        return RunningProgram(process, [], "it has another version of librelayfs")
    name = texts[0].partition(b"\n")[0].decode(errors="surrogateescape")
    declarations = [one for text in texts for one in ctf.declarations(text)]
    return RunningProgram(replace(process, name=name), declarations)


def _process(pid: int, directory: int) -> Process:
    comm = _contents(directory, "comm").decode(errors="surrogateescape").rstrip("\n")
    return native_trace.Process(comm, pid, pid, os.fstat(directory).st_uid, 0)


def _text(memory: int, page: int) -> bytes | None:
    return native_trace.running_declarations(memory, page, ctf.EVENTS_MAX)


def _pages(directory: int, files: _Files) -> list[int]:
    """Return the addresses at which a process has mapped the first page of one of the files alone."""
    found = []
    for line in _contents(directory, "maps").splitlines():
        mapping = _MAPPING.match(line)
        if mapping and (int(mapping[3], 16), int(mapping[4], 16), int(mapping[5])) in files:
            start, end = int(mapping[1], 16), int(mapping[2], 16)
            # Servers and recorders map the whole file, and have no tracepoints.
            if end - start == _PAGE_BYTES:
                found.append(start)
    return found[:_MAPPINGS_MAX]


def _contents(directory: int, name: str) -> bytes:
    with _opened(name, directory) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()
