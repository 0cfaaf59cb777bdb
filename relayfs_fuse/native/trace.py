"""Traces of a store; see <relayfs/trace_store.h>."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUFFERS_PERPROCESS: int = lib.RELAY_TRACE_PERPROCESS
BUFFERS_SHARED: int = lib.RELAY_TRACE_SHARED
CLOCK_MONO: int = lib.RELAY_MONO

# Bytes of struct relay_packet, at the beginning of each sub-buffer.
PACKET_HEAD_BYTES = 72

# The states of a process's file .state, bytes of each of the two places of one, and the magic of its value; see struct
# relay_state_value. The packet of states in recordings has STATE_CPU in place of a CPU.
STATES: int = lib.RELAY_STATES
STATE_BYTES: int = lib.RELAY_STATE_BYTES
STATE_MAGIC: int = lib.RELAY_STATE_MAGIC
STATE_CPU: int = lib.RELAY_STATE_CPU
# The most bytes of a process's file .objects.
OBJECTS_BYTES: int = lib.RELAY_OBJECTS_BYTES

N_TRACES: int = lib.RELAY_N_TRACES
# The most bytes of these texts of a trace.
NAME_MAX: int = lib.RELAY_TRACE_NAME_BYTES - 1
FILTER_MAX: int = lib.RELAY_TRACE_FILTER_BYTES - 1
RULES_MAX: int = lib.RELAY_TRACE_RULES_BYTES - 1

# struct flock.
_FLOCK = struct.Struct("hhqqi4x")

# How many steps the conditions of a trace have at most, and bytes of their texts with a null byte behind each.
CONDITION_STEPS: int = lib.RELAY_CONDITION_STEPS
CONDITION_TEXT_MAX: int = lib.RELAY_CONDITION_TEXT_BYTES - 1


class Operand(IntEnum):
    """What a field is compared with; see enum relay_operand."""

    LEVEL = lib.RELAY_OPERAND_LEVEL
    POSITIVE = lib.RELAY_OPERAND_POSITIVE
    NEGATIVE = lib.RELAY_OPERAND_NEGATIVE
    REAL = lib.RELAY_OPERAND_REAL
    TEXT = lib.RELAY_OPERAND_TEXT
    PATTERN = lib.RELAY_OPERAND_PATTERN


class Order(IntFlag):
    """How a field stands to an operand; see enum relay_order."""

    LESS = lib.RELAY_LESS
    EQUAL = lib.RELAY_EQUAL
    GREATER = lib.RELAY_GREATER
    UNORDERED = lib.RELAY_UNORDERED


class Target(IntEnum):
    """The results of a condition, which Step.next may have in place of a step."""

    TAKE = lib.RELAY_CONDITION_TAKE
    REFUSE = lib.RELAY_CONDITION_REFUSE


class Step(NamedTuple):
    """A comparison of a condition; see struct relay_condition_step.

    accepts: for which orders it is true
    next: the step if it is false, and if it is true; or a Target
    field, text: where the name and the text begin in the texts
    number: the bits of an integer or a double
    """

    operand: Operand
    accepts: Order
    next: tuple[int, int]
    field: int
    text: int
    number: int


# Prefix of the files in which programs of other users than the store's count lost events.
_LOST_OF_USER = ".traces-lost-"
# A buffer's or user's count of lost events cannot be so large; if it is, the memory is damaged.
LOST_MAX = 1 << 62


@dataclass(frozen=True)
class Clocks:
    """A trace's clock, CLOCK_MONOTONIC and CLOCK_REALTIME at one moment."""

    ticks: int = 0
    mono_ns: int = 0
    real_ns: int = 0


@dataclass(frozen=True)
class Trace:
    """A trace, as it is in the control file; see struct relay_trace.

    clock: from CLOCK_MONO on, enum relay_timestamp
    buffers, mode: as in struct relay_trace
    boot: the boot that the clocks belong to
    memory: bytes that the buffers of all processes take at most; 0: no limit
    snapshot_memory: bytes that the snapshots in the store take at most; 0: as many as `memory`
    flush_interval_ms: how often a recorder or server flushes sub-buffers that are not full; 0: never
    conditions: those of the rules, as pack_conditions() returns them; empty: there are none
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
    snapshot_memory: int = 0
    flush_interval_ms: int = 0
    conditions: bytes = b""


@dataclass(frozen=True)
class Process:
    """A process that writes to a trace.

    pid, vpid: in the server's PID namespace, and in its own
    """

    name: str
    pid: int
    vpid: int
    uid: int
    gid: int


_NUMBERS = (
    *("id", "is_started", "clock", "buffers", "mode", "subbuf_size", "n_subbufs", "memory", "snapshot_memory"),
    "flush_interval_ms",
)
_TEXTS = ("boot", "name", "filter", "rules")


def _clocks(c_clocks: Any) -> Clocks:
    return Clocks(int(c_clocks.ticks), int(c_clocks.mono_ns), int(c_clocks.real_ns))


def _trace(c_trace: Any) -> Trace:
    return Trace(
        **{name: int(getattr(c_trace, name)) for name in _NUMBERS},  # type: ignore[arg-type]
        **{name: os.fsdecode(ffi.string(getattr(c_trace, name))) for name in _TEXTS},  # type: ignore[arg-type]
        made=_clocks(c_trace.made),
        latest=_clocks(c_trace.latest),
        conditions=_conditions(c_trace)[:] if c_trace.conditions.n_conditions else b"",
    )


def _conditions(c_trace: Any) -> Any:
    """Return the memory of a trace's conditions."""
    return ffi.buffer(ffi.addressof(c_trace, "conditions"))


def _c_trace(trace: Trace) -> Any:
    c_trace = ffi.new("struct relay_trace *")
    for name in _NUMBERS:
        setattr(c_trace, name, int(getattr(trace, name)))
    for name in _TEXTS:
        setattr(c_trace, name, os.fsencode(getattr(trace, name)))
    for name in ("made", "latest"):
        for clock in ("ticks", "mono_ns", "real_ns"):
            setattr(getattr(c_trace, name), clock, getattr(getattr(trace, name), clock))
    _conditions(c_trace)[: len(trace.conditions)] = trace.conditions
    return c_trace


def pack_conditions(steps: Sequence[Step], first: Sequence[int], texts: bytes) -> bytes:
    """Return the bytes for Trace.conditions; empty if there are no conditions. The caller checks that they fit.

    first: of each rule that has a condition, the step to begin with
    texts: at most CONDITION_TEXT_MAX bytes
    """
    if not first:
        return b""
    conditions = ffi.new("struct relay_conditions *")
    for at, step in enumerate(steps):
        conditions.steps[at] = step
    conditions.first[0 : len(first)] = first
    ffi.memmove(conditions.texts, texts, len(texts))
    conditions.n_steps, conditions.n_conditions = len(steps), len(first)
    return bytes(ffi.buffer(conditions))


def read_clocks(clock: int) -> Clocks:
    """Read a trace's clock and the others, all at one moment."""
    clocks = ffi.new("struct relay_clocks *")
    lib.relay_clocks_read(clock, clocks)
    return _clocks(clocks)


def boot_id() -> str:
    """Return the id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def trace_make(store: str, trace: Trace, process: Process) -> tuple[str, bool]:
    """Make a directory for a process, which is to lock it soon, in a trace; return its name, and whether it is new."""
    name = ffi.new("char[]", lib.RELAY_TRACE_NAME_BYTES)
    c_process = os.fsencode(process.name), process.pid, process.vpid, process.uid, process.gid
    there = library.check(lib.relay_trace_make(os.fsencode(store), _c_trace(trace), *c_process, ffi.NULL, name), store)
    return os.fsdecode(ffi.string(name)), not there


def trace_allocate(directory: str, trace: Trace, descriptor: int) -> None:
    """Allocate memory for the data of a process's buffer; may take long.

    directory: of the trace
    descriptor: the buffer
    """
    data = trace.subbuf_size * trace.n_subbufs
    library.check(lib.relay_trace_allocate(os.fsencode(directory), trace.memory, descriptor, data), directory)


def trace_remove(directory: str) -> None:
    """Remove a process's directory from its trace, and close its buffers."""
    library.check(lib.relay_trace_remove(os.fsencode(directory)), directory)


def trace_remove_dead(directory: str) -> None:
    """As trace_remove(), unless a process writes to the directory, or is about to: OSError EBUSY."""
    library.check(lib.relay_trace_remove_dead(os.fsencode(directory)), directory)


def trace_is_alive(directory: str) -> bool:
    """Return whether a process writes to the directory, or is about to."""
    return bool(lib.relay_trace_is_alive(os.fsencode(directory)))


def events_holder(descriptor: int) -> int:
    """Return the process that has locked a file .events; 0: none has; -1: one has that has no number here.

    If several have, it is one of them.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else pid if pid > 0 else -1


def running_declarations(memory: int, page: int, size: int) -> bytes | None:
    """Return a running program's name, a newline and the declarations of its events.

    None: the library's data, in a version that can be read, is not behind that page.

    memory: a descriptor of its /proc/PID/mem
    page: where it has mapped the first page of the control file
    size: the most bytes; OSError EFBIG: there are more
    """
    text = ffi.new("char[]", size)
    length = lib.relay_trace_running(memory, page, text, size)
    if length == -errno.ENOENT:
        return None
    return bytes(ffi.buffer(text, library.check(length)))


def taker(trace: Trace) -> Callable[[Process, str], bool]:
    """Return a function that tells whether the trace is started and takes an event, PROVIDER:NAME, of a process.

    The process's uid must be its effective user.
    """
    c_trace = _c_trace(trace)

    def takes(process: Process, event: str) -> bool:
        who = os.fsencode(process.name), process.pid, process.uid
        return bool(lib.relay_trace_takes(c_trace, *who, event.encode()))

    return takes


def lost_by_user(store: str) -> dict[int, dict[int, int]]:
    """Return, by trace id and user, how many events other users' programs say they lost for want of buffers.

    Each user can write any numbers for that user.
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
    """The mapped control file of a store's traces.

    path: the store, to serve it; else control_in_store() or control_in_mount()
    serves: whether this process is the store's server
    """

    def __init__(self, path: str, *, serves: bool = False) -> None:
        opened = lib.relay_traces_serve if serves else lib.relay_traces_open
        super().__init__(library.not_null(opened(os.fsencode(path)), path))
        self._trace = ffi.new("struct relay_trace *")

    def close(self) -> None:
        """Unmap the file."""
        lib.relay_traces_close(self._disown())

    def get(self, slot: int) -> Trace | None:
        """Return the trace in one of N_TRACES slots; None: there is none."""
        result = lib.relay_traces_get(self._open, slot, self._trace)
        if result == -errno.ENOENT:
            return None
        library.check(result)
        return _trace(self._trace)

    def all(self) -> dict[int, Trace]:
        """Return all traces by slot; one that cannot be read is left out."""
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
        """Return how many events of a trace, also of a removed one, programs lost because they got no buffers."""
        return sum(int(lib.relay_traces_lost(self._open, slot, trace.id)) for slot in range(N_TRACES))

    def lost_file(self, uid: int) -> int:
        """Return a descriptor, owned by this object, of the file in which programs of another user count."""
        return library.check(lib.relay_traces_lost_file(self._open, uid))

    def set(self, slot: int, trace: Trace | None) -> None:
        """Change the trace in a slot, or remove it: every program sees it at its next event."""
        c_trace = ffi.new("struct relay_trace *") if trace is None else _c_trace(trace)
        lib.relay_traces_set(self._open, slot, c_trace)

    def settle(self) -> None:
        """End the time in which programs release the buffers of removed traces; see relay_traces_settle()."""
        lib.relay_traces_settle(self._open)

    def new_id(self) -> int:
        """Return an id that no trace of this store has had."""
        return int(lib.relay_traces_new_id(self._open))

    def set_log(self, number: int) -> None:
        """Store a number that differs each time a channel `log` is made; 0: there is none."""
        lib.relay_traces_set_log(self._open, number)
