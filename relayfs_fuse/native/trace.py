"""Traces, as the C library keeps them in a store; see <relayfs/trace_store.h>."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

BUFFERS_PERPROCESS: int = lib.RELAY_TRACE_PERPROCESS
BUFFERS_SHARED: int = lib.RELAY_TRACE_SHARED
CLOCK_MONO: int = lib.RELAY_MONO
CLOCK_TSC: int = lib.RELAY_TSC

# struct relay_packet, at the beginning of each sub-buffer.
PACKET_HEAD_BYTES = 72

N_TRACES: int = lib.RELAY_N_TRACES
# Bytes of each that a trace has room for.
NAME_MAX: int = lib.RELAY_TRACE_NAME_BYTES - 1
FILTER_MAX: int = lib.RELAY_TRACE_FILTER_BYTES - 1
RULES_MAX: int = lib.RELAY_TRACE_RULES_BYTES - 1

# The files in which programs of other users than the store's count what they lose.
_LOST_OF_USER = ".traces-lost-"
# Neither a buffer nor a user's programs have lost so many events; who says so has spoilt the memory.
LOST_MAX = 1 << 62


@dataclass(frozen=True)
class Clocks:
    """The clocks at one moment; tsc is 0 where there is no counter of constant rate."""

    tsc: int = 0
    mono_ns: int = 0
    real_ns: int = 0


@dataclass(frozen=True)
class Trace:
    """A trace, as the control file has it; see struct relay_trace.

    clock: CLOCK_MONO or CLOCK_TSC
    buffers, mode: as in struct relay_trace
    boot: in which the clocks are
    memory: bytes that the buffers of all processes take at most; 0: as many as there are
    flush_interval_ms: how often who reads finishes sub-buffers that are not full; 0: never
    """

    id: int
    name: str
    is_started: bool
    clock: int
    buffers: int
    mode: int
    subbuf_size: int
    n_subbufs: int
    boot: str
    made: Clocks = field(default_factory=Clocks)
    latest: Clocks = field(default_factory=Clocks)
    filter: str = ""
    rules: str = ""
    memory: int = 0
    flush_interval_ms: int = 0


@dataclass(frozen=True)
class Process:
    """One that takes part in a trace.

    pid, vpid: as the server sees it, and as it sees itself, in its own PID namespace
    """

    name: str
    pid: int
    vpid: int
    uid: int
    gid: int


_NUMBERS = ("id", "is_started", "clock", "buffers", "mode", "subbuf_size", "n_subbufs", "memory", "flush_interval_ms")
_TEXTS = ("boot", "name", "filter", "rules")


def _clocks(c_clocks: Any) -> Clocks:
    return Clocks(int(c_clocks.tsc), int(c_clocks.mono_ns), int(c_clocks.real_ns))


def _trace(c_trace: Any) -> Trace:
    return Trace(
        **{name: int(getattr(c_trace, name)) for name in _NUMBERS},  # type: ignore[arg-type]
        **{name: os.fsdecode(ffi.string(getattr(c_trace, name))) for name in _TEXTS},  # type: ignore[arg-type]
        made=_clocks(c_trace.made),
        latest=_clocks(c_trace.latest),
    )


def _c_trace(trace: Trace) -> Any:
    c_trace = ffi.new("struct relay_trace *")
    for name in _NUMBERS:
        setattr(c_trace, name, int(getattr(trace, name)))
    for name in _TEXTS:
        setattr(c_trace, name, os.fsencode(getattr(trace, name)))
    for name in ("made", "latest"):
        for clock in ("tsc", "mono_ns", "real_ns"):
            setattr(getattr(c_trace, name), clock, getattr(getattr(trace, name), clock))
    return c_trace


def read_clocks() -> Clocks:
    """Read the clocks, all at one moment."""
    clocks = ffi.new("struct relay_clocks *")
    lib.relay_clocks_read(clocks)
    return _clocks(clocks)


def boot_id() -> str:
    """Name the time since the machine was started."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def trace_make(store: str, trace: Trace, process: Process) -> tuple[str, bool]:
    """Make a directory for a process in a trace, which is to lock it soon; return its name, and whether it is new."""
    name = ffi.new("char[]", lib.RELAY_TRACE_NAME_BYTES)
    c_process = os.fsencode(process.name), process.pid, process.vpid, process.uid, process.gid
    there = library.check(lib.relay_trace_make(os.fsencode(store), _c_trace(trace), *c_process, ffi.NULL, name), store)
    return os.fsdecode(ffi.string(name)), not there


def trace_allocate(directory: str, trace: Trace, descriptor: int) -> None:
    """Give the data of a process's buffer their memory; may take long.

    directory: of the trace
    descriptor: the buffer
    """
    data = trace.subbuf_size * trace.n_subbufs
    library.check(lib.relay_trace_allocate(os.fsencode(directory), trace.memory, descriptor, data), directory)


def trace_remove(directory: str) -> None:
    """Take a process's directory out of its trace; its buffers are closed."""
    library.check(lib.relay_trace_remove(os.fsencode(directory)), directory)


def trace_remove_dead(directory: str) -> None:
    """Do the same unless a process writes to it, or is about to: OSError EBUSY."""
    library.check(lib.relay_trace_remove_dead(os.fsencode(directory)), directory)


def trace_is_alive(directory: str) -> bool:
    """Tell whether a process writes to the directory, or is about to."""
    return bool(lib.relay_trace_is_alive(os.fsencode(directory)))


def lost_by_user(store: str) -> dict[int, dict[int, int]]:
    """Count, by the id of a trace and by user, the events that other users' programs say they lost for want of buffers.

    Each user can write there what he likes, of himself.
    """
    found: dict[int, dict[int, int]] = defaultdict(dict)
    ids, lost = ffi.new("uint64_t[]", N_TRACES), ffi.new("uint64_t[]", N_TRACES)
    with os.scandir(store) as entries:
        for entry in entries:
            uid = entry.name.removeprefix(_LOST_OF_USER)
            if uid == entry.name or not (uid.isascii() and uid.isdigit()):
                continue
            if lib.relay_traces_lost_in(os.fsencode(entry.path), ids, lost) == 0:
                for trace, n in zip(ids, lost, strict=True):
                    if n:
                        found[trace][int(uid)] = min(n, LOST_MAX)
    return {trace: dict(sorted(by_user.items())) for trace, by_user in found.items()}


class Traces(library.Handle):
    """Map the control file of a store's traces.

    path: the store, to serve it; else STORE/.traces, or MNT/.traces/control
    serves: whether this process is the store's server
    """

    def __init__(self, path: str, *, serves: bool = False) -> None:
        opened = lib.relay_traces_serve if serves else lib.relay_traces_open
        super().__init__(library.not_null(opened(os.fsencode(path)), path))
        self._trace = ffi.new("struct relay_trace *")

    def close(self) -> None:
        """Unmap it."""
        lib.relay_traces_close(self._take())

    def get(self, slot: int) -> Trace | None:
        """Return one of N_TRACES; None: there is none."""
        result = lib.relay_traces_get(self._open, slot, self._trace)
        if result == -errno.ENOENT:
            return None
        library.check(result)
        return _trace(self._trace)

    def all(self) -> dict[int, Trace]:
        """Return those that there are, by slot; one that cannot be read is left out."""
        found = {}
        for slot in range(N_TRACES):
            try:
                trace = self.get(slot)
            except OSError:
                continue
            if trace is not None:
                found[slot] = trace
        return found

    def find(self, name: str) -> Trace | None:
        """Return the trace of a name."""
        return next((trace for trace in self.all().values() if trace.name == name), None)

    def lost(self, trace: Trace) -> int:
        """Count the events of a trace that programs lost because they could get no buffers, also of a removed one."""
        return sum(int(lib.relay_traces_lost(self._open, slot, trace.id)) for slot in range(N_TRACES))

    def lost_file(self, uid: int) -> int:
        """Return a descriptor, which stays this object's, of the file in which programs of another user count."""
        return library.check(lib.relay_traces_lost_file(self._open, uid))

    def set(self, slot: int, trace: Trace | None) -> None:
        """Change one, or take it away: every program sees it at its next event."""
        c_trace = ffi.new("struct relay_trace *") if trace is None else _c_trace(trace)
        lib.relay_traces_set(self._open, slot, c_trace)

    def settle(self) -> None:
        """Have nobody look for what was taken away any more."""
        lib.relay_traces_settle(self._open)

    def new_id(self) -> int:
        """Return an id that no trace of this store has had."""
        return int(lib.relay_traces_new_id(self._open))

    def set_log(self, number: int) -> None:
        """Say which channel `log` there is; 0: none."""
        lib.relay_traces_set_log(self._open, number)
