"""Counters of a store; see <relayfs/counters.h> and <relayfs/counters_store.h>."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("counter", "gauge")
COUNTERS_LIMIT: int = lib.RELAY_PERF_DEFAULT_LIMIT
COUNTERS_HIGHEST_LIMIT: int = lib.RELAY_PERF_HIGHEST_LIMIT
# The most bytes of the texts of a counter.
COUNTER_NAME_MAX: int = lib.RELAY_PERF_NAME_BYTES - 1
COUNTER_UNIT_MAX: int = lib.RELAY_PERF_UNIT_BYTES - 1
COUNTER_HELP_MAX: int = lib.RELAY_PERF_HELP_BYTES - 1

_CALLER = 0xFFFFFFFF


@dataclass(frozen=True)
class CounterSpec:
    """The properties of a new counter; see struct relay_perf_spec."""

    kind: int = 0
    unit: str = ""
    help: str = ""
    mode: int = 0
    uid: int = _CALLER
    gid: int = _CALLER


@dataclass(frozen=True)
class CounterInfo:
    """The properties of a counter; see struct relay_perf_info."""

    instance: int
    kind: int
    uid: int
    gid: int
    mode: int
    name: str
    unit: str
    help: str


def counters_create(store: str, limit: int) -> None:
    """Make the counters of a store, unless they exist.

    limit: the most names
    """
    library.check(lib.relay_counters_create(os.fsencode(store), limit), store)


# First size of the memory for a text, and how much more than the text's length is allocated when that is too small.
_TEXT_BYTES = 1 << 16


def _counter_info(info: Any) -> CounterInfo:
    texts = (os.fsdecode(ffi.string(text)) for text in (info.name, info.unit, info.help))
    return CounterInfo(info.instance, info.kind, info.uid, info.gid, info.mode, *texts)


class CountersHandle(library.Handle):
    """The counters of a mount or store.

    path: None for the default mount
    """

    def __init__(self, path: str | None) -> None:
        c_path = ffi.NULL if path is None else os.fsencode(path)
        super().__init__(library.not_null(lib.relay_counters_open(c_path), path or "the default mount"))
        self._value = ffi.new("int64_t *")
        header = lib.relay_counters_header(self._open)
        self.n_cpus: int = header.nr_cpus
        self.n_blocks: int = header.nr_blocks
        self.slots: int = header.slots
        self.data_at: int = header.data_at

    def close(self) -> None:
        """Close the counters."""
        lib.relay_counters_close(self._disown())

    def fileno(self) -> int:
        """Return the descriptor of the file to map."""
        return int(lib.relay_counters_fd(self._open))

    def mapped_bytes(self) -> int:
        """Return the bytes of the file that were mapped at the last refresh."""
        return int(lib.relay_counters_mapped_bytes(self._open))

    def add(self, name: str, spec: CounterSpec) -> int:
        """Add a counter, or find an existing one; return its number."""
        return self._add(lib.relay_perf_add_as, name, spec)

    def _add(self, function: Callable[..., int], name: str, spec: CounterSpec) -> int:
        c_unit, c_help = ffi.new("char[]", os.fsencode(spec.unit)), ffi.new("char[]", os.fsencode(spec.help))
        c_spec = ffi.new("struct relay_perf_spec *")
        c_spec.size = ffi.sizeof("struct relay_perf_spec")
        c_spec.kind, c_spec.mode, c_spec.uid, c_spec.gid = spec.kind, spec.mode, spec.uid, spec.gid
        c_spec.unit, c_spec.help = c_unit, c_help
        return library.check(function(self._open, os.fsencode(name), c_spec), name)

    def enter(self, name: str, spec: CounterSpec) -> int:
        """Add or find a counter for another process; return its number. This handle does not adjust it."""
        return self._add(lib.relay_counters_enter, name, spec)

    def delete(self, instance: int) -> None:
        """Delete a counter from the list."""
        library.check(lib.relay_perf_del(self._open, instance))

    def adjust_for(self, instance: int, delta: int) -> None:
        """Add to a counter, in the block of no CPU, for a process that cannot map it."""
        library.check(lib.relay_counters_adjust(self._open, instance, delta))

    def free(self, instance: int) -> None:
        """Delete a counter that only this process sets; its number may be given to another name."""
        library.check(lib.relay_counters_free(self._open, instance))

    @property
    def limit(self) -> int:
        """The most names."""
        return int(lib.relay_counters_limit(self._open))

    def adjust(self, instance: int, delta: int) -> None:
        """Add to a counter on the current CPU."""
        library.check(lib.relay_perf_adjust(self._open, instance, delta))

    def refresh(self) -> bool:
        """Update the handle after counters were added or deleted; return whether there was a change."""
        return bool(library.check(lib.relay_counters_refresh(self._open)))

    def is_changing(self) -> bool:
        """Return whether a change is under way, or was interrupted by a process's death."""
        header = lib.relay_counters_header(self._open)
        return bool(header.gen1 != header.gen2)

    def generation(self) -> int:
        """Return the present generation."""
        return int(lib.relay_counters_header(self._open).gen1)

    def read(self, block: int, instance: int) -> int:
        """Return a counter's value in the block of a CPU, or in block n_cpus: of no CPU."""
        library.check(lib.relay_counters_read(self._open, block, instance, self._value))
        return int(self._value[0])

    def sum(self, instance: int) -> int:
        """Return a counter's sum over all blocks."""
        library.check(lib.relay_counters_sum(self._open, instance, self._value))
        return int(self._value[0])

    def set(self, block: int, instance: int, value: int) -> None:
        """Store a counter's value in one block; only for counters that no other process changes."""
        library.check(lib.relay_counters_set(self._open, block, instance, value))

    def find(self, name: str) -> int:
        """Return the number of a name."""
        return library.check(lib.relay_counters_find(self._open, os.fsencode(name)), name)

    def infos(self) -> list[CounterInfo]:
        """Return the properties of all counters at the last refresh."""
        found, after, info = [], 0, ffi.new("struct relay_perf_info *")
        while lib.relay_counters_next(self._open, after, info):
            after = info.instance
            found.append(_counter_info(info))
        return found

    def info(self, instance: int) -> CounterInfo | None:
        """Return the properties of a counter; None: it is not listed."""
        info = ffi.new("struct relay_perf_info *")
        if instance <= 0 or not lib.relay_counters_next(self._open, instance - 1, info) or info.instance != instance:
            return None
        return _counter_info(info)

    def names_text(self) -> bytes:
        """Return counters.names, of the generation in its first line; OSError EAGAIN: it keeps changing."""
        return self._text(lib.relay_counters_list)

    def values_text(self) -> bytes:
        """Return counters.txt at the last refresh."""
        return self._text(lib.relay_counters_values)

    def _text(self, function: Callable[..., int]) -> bytes:
        room = _TEXT_BYTES
        while True:
            text = ffi.new("char[]", room)
            length = library.check(function(self._open, text, room))
            if length <= room:
                return bytes(ffi.buffer(text, length))
            room = length + _TEXT_BYTES

    def mirror(self) -> None:
        """Copy the counters of other owners into the file to map."""
        library.check(lib.relay_counters_mirror(self._open))

    @property
    def has_others(self) -> bool:
        """Whether there are or were counters of other owners, which mirror() copies."""
        return bool(lib.relay_counters_has_others(self._open))

    def repair(self) -> None:
        """Complete a change that was interrupted by a process's death."""
        library.check(lib.relay_counters_repair(self._open))

    def hold(self) -> int:
        """Prevent changes by other processes until the returned descriptor is closed."""
        return library.check(lib.relay_counters_hold(self._open))
