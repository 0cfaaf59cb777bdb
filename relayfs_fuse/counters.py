"""Adjust counters, and read those of all programs."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.native import KINDS, CountersHandle, CounterSpec, library

if TYPE_CHECKING:
    from relayfs_fuse.native import CounterInfo

# How often names are read anew that have changed meanwhile, before changes are prevented.
_TRIES = 4


class Counter:
    """A counter that Counters.add() returned.

    number: of the counter; the same for this name in all processes
    """

    def __init__(self, handle: CountersHandle, number: int) -> None:
        self.number = number
        self._handle = handle

    def adjust(self, delta: int = 1) -> None:
        """Add delta on the current CPU; wraps around at 64 bits."""
        self._handle.adjust(self.number, (delta + (1 << 63)) % (1 << 64) - (1 << 63))


class Counters(library.Closing):
    """Open the counters of a mount, or of a store that has no server.

        with Counters("/mnt/relay") as counters:
            requests = counters.add("app/requests")
            requests.adjust()
            print(counters.values()["app/requests"])

    path: None for the default mount

    Any number of threads may use one Counters. Methods raise OSError: ENOENT, there are no counters, or no such
    counter; EACCES, the group of the name belongs to another user; EINVAL, ENAMETOOLONG, the name, kind, unit, help or
    mode is not allowed; ENOSPC, the limit is reached; EBADMSG, the memory is damaged.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._handle = CountersHandle(None if path is None else os.fspath(path))

    @property
    def n_cpus(self) -> int:
        """The number of CPUs; per_cpu() and view() have one value more, of threads without restartable sequences."""
        return self._handle.n_cpus

    def add(self, name: str, *, kind: str = "counter", unit: str = "", help: str = "", mode: int = 0) -> Counter:  # noqa: A002  # as it is called everywhere
        """Add a counter, or find an existing one.

        name: a path, whose first component is the group
        kind: "counter", which only grows, or "gauge"
        mode: of a new group: who may adjust, 0o200 the owner, 0o020 the group, 0o002 others; 0 means 0o200
        """
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
        return Counter(self._handle, self._handle.add(name, CounterSpec(KINDS.index(kind), unit, help, mode)))

    def delete(self, name: str) -> None:
        """Delete a counter from the list; if it is added again, it keeps its value."""
        self._handle.delete(self._handle.find(name))

    def refresh(self) -> bool:
        """Update the handle after counters were added or deleted; return whether there was a change."""
        return self._handle.refresh()

    def infos(self) -> dict[str, CounterInfo]:
        """Return all counters' properties by name."""
        while (infos := self._infos_between_changes()) is None:
            # They change so often that they could not be read. While the lock is held, they do not change.
            with suppress(PermissionError):
                held = self._handle.hold()
                try:
                    self._handle.refresh()
                    infos = self._handle.infos()
                    break
                finally:
                    os.close(held)
        return {info.name: info for info in infos}

    def _infos_between_changes(self) -> list[CounterInfo] | None:
        for _ in range(_TRIES):
            self._handle.refresh()
            infos = self._handle.infos()
            if not self._handle.refresh():
                return infos
        return None

    def value(self, name: str) -> int:
        """Return a counter's value, the sum over all CPUs."""
        self._handle.refresh()
        return self._handle.sum(self._handle.find(name))

    def values(self) -> dict[str, int]:
        """Return all counters' values by name."""
        return {name: self.sum(info.instance) for name, info in self.infos().items()}

    def sum(self, number: int) -> int:
        """Return the value of a counter by its number (infos()), the sum over all CPUs."""
        return self._handle.sum(number)

    def per_cpu(self, number: int) -> list[int]:
        """Return a counter's value on each CPU, then that of threads without restartable sequences."""
        return [self._handle.read(block, number) for block in range(self._handle.n_blocks)]

    def view(self) -> memoryview:
        """Map the counters: view[n // 512, cpu, n % 512] is counter n on a CPU, a signed 64-bit number.

        The view always has the current values, without system calls: `numpy.asarray(counters.view())` works.
        Counters that are added later may lie behind it: after a refresh() that returns True, call view() again.
        """
        handle = self._handle
        handle.refresh()
        length = handle.mapped_bytes()
        memory = memoryview(mmap.mmap(handle.fileno(), length, mmap.MAP_SHARED, mmap.PROT_READ))
        shape = (length - handle.data_at) // (handle.n_blocks * handle.slots * 8), handle.n_blocks, handle.slots
        return memory[handle.data_at :].cast("q", shape)

    def close(self) -> None:
        """Close the handle; views stay valid."""
        self._handle.close()
