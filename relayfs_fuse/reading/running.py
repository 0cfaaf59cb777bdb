"""The events that running programs declare, read from their memory; /proc decides who may read whose.

Programs with tracepoints have mapped the first page of the control file of traces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    files = set()
    for path in control_files:
        status = os.stat(path)
        files.add((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        # It may end at any moment, or be of somebody else.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError), _opened(f"/proc/{pid}") as directory:
            program = _program(pid, directory, files)
            if program:
                yield program


@contextmanager
def _opened(path: str, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _program(pid: int, directory: int, files: set[tuple[int, int, int]]) -> RunningProgram | None:
    pages = _pages(directory, files)
    if not pages:
        return None
    uid = os.fstat(directory).st_uid
    comm = _contents(directory, "comm").decode(errors="surrogateescape").rstrip("\n")
    try:
        with _opened("mem", directory) as memory:
            texts = [text for page in pages if (text := _text(memory, page)) is not None]
    except OSError as error:
        return RunningProgram(native_trace.Process(comm, pid, pid, uid, 0), [], error.strerror or str(error))
    if not texts:
        return RunningProgram(native_trace.Process(comm, pid, pid, uid, 0), [], "it has another version of librelayfs")
    name = texts[0].partition(b"\n")[0].decode(errors="surrogateescape")
    declarations = [one for text in texts for one in ctf.declarations(text)]
    return RunningProgram(native_trace.Process(name, pid, pid, uid, 0), declarations)


def _text(memory: int, page: int) -> bytes | None:
    return native_trace.running_declarations(memory, page, ctf.EVENTS_MAX)


def _pages(directory: int, files: set[tuple[int, int, int]]) -> list[int]:
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
