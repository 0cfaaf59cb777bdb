"""The limit of memory that control groups set for this process, as in a container.

A process belongs to a group of the unified hierarchy (cgroup v2), or of the hierarchy of the memory controller (v1).
The limits of the groups above it apply, too:

    /proc/self/cgroup         has the path of the group, from the root of its hierarchy
    /proc/self/mountinfo      shows which part of the hierarchy is mounted, and where
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

# The name of the file with the limit, by the type of the hierarchy's file system.
LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


def memory_limit() -> int | None:
    """Return the smallest limit of the process's group and the groups above it, in bytes; None: there is none."""
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    groups = dict(_groups())
    for kind, root, mountpoint in _hierarchies():
        if kind in groups:
            for directory in _upwards(mountpoint, root, groups[kind]):
                with suppress(OSError, ValueError), open(os.path.join(directory, LIMIT_FILES[kind])) as file:
                    yield int(file.read())  # ValueError for "max", which means no limit


def _groups() -> Iterator[tuple[str, str]]:
    """Yield the type of each hierarchy that can limit memory, and the path of this process's group in it."""
    for line in _lines("/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _hierarchies() -> Iterator[tuple[str, str, str]]:
    """Yield the mounted hierarchies that can limit memory: type, the group at the root of the mount, and mountpoint."""
    with suppress(OSError):
        for mounted in mounts.table():
            if mounted.kind == "cgroup2" or (mounted.kind == "cgroup" and "memory" in mounted.options.split(",")):
                yield mounted.kind, mounted.root, mounted.place


def _upwards(mountpoint: str, root: str, group: str) -> Iterator[str]:
    """Yield the directories of a group and of the groups above it, as far as they are mounted."""
    inside = os.path.relpath(group, root)
    # In a container the mounted root can be its own group, and the group's path can lie outside of that.
    directory = os.path.normpath(os.path.join(mountpoint, inside)) if inside.partition("/")[0] != ".." else mountpoint
    while directory != mountpoint:
        yield directory
        directory = os.path.dirname(directory)
    yield mountpoint


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()
    return []
