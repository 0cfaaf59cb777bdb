"""How much memory the control groups leave this process: in a container less than the machine has.

A process belongs to a group of the unified hierarchy (cgroup v2), or of that of the memory controller (v1), and the
limits of all groups above it hold, too:

    /proc/self/cgroup         names the group, seen from the root of its hierarchy
    /proc/self/mountinfo      tells which part of the hierarchy can be seen, and where
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

# The file that holds the limit, by the type of the hierarchy's file system.
LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


def memory_limit() -> int | None:
    """Return the least limit of the groups that this process is in; None: there is none."""
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    groups = dict(_groups())
    for kind, root, mountpoint in _hierarchies():
        if kind in groups:
            for directory in _upwards(mountpoint, root, groups[kind]):
                with suppress(OSError, ValueError), open(os.path.join(directory, LIMIT_FILES[kind])) as file:
                    yield int(file.read())  # "max" is no limit, and no number


def _groups() -> Iterator[tuple[str, str]]:
    """Name this process's group in each kind of hierarchy that can have limits of memory."""
    for line in _lines("/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _hierarchies() -> Iterator[tuple[str, str, str]]:
    """Tell which are mounted: the kind, the group that is the root of what is mounted, and where."""
    with suppress(OSError):
        for mounted in mounts.table():
            if mounted.kind == "cgroup2" or (mounted.kind == "cgroup" and "memory" in mounted.options.split(",")):
                yield mounted.kind, mounted.root, mounted.place


def _upwards(mountpoint: str, root: str, group: str) -> Iterator[str]:
    """Name the directories of a group and of those above it, as far as they can be seen."""
    inside = os.path.relpath(group, root)
    # A container may see its own group as the root, and be told of a path outside.
    directory = os.path.normpath(os.path.join(mountpoint, inside)) if inside.partition("/")[0] != ".." else mountpoint
    while directory != mountpoint:
        yield directory
        directory = os.path.dirname(directory)
    yield mountpoint


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()
    return []
