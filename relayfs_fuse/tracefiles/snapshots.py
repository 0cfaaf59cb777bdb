"""Snapshots of traces in a store: STORE/.snapshots/ID/NAME/, ID of the trace; fs/traces/snapshots.py makes them."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

SNAPSHOTS_NAME = ".snapshots"
PAGE_BYTES = mmap.PAGESIZE


class Kept(NamedTuple):
    """A snapshot.

    made_ns: when it was complete, ns since 1970
    n_bytes: the pages of its files and directories
    """

    name: str
    made_ns: int
    n_bytes: int


def pages(n_bytes: int) -> int:
    """Return the bytes of the pages that a file of this length takes."""
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES


def kept(store: str, number: int) -> list[Kept]:
    """Return the snapshots of a trace in the order of their names; OSError: they cannot be listed.

    number: the trace's id
    """
    directory = os.path.join(store, SNAPSHOTS_NAME, str(number))
    try:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []
    return [_kept(os.path.join(directory, name), name) for name in names]


def _kept(path: str, name: str) -> Kept:
    n_bytes = 0
    for at, _, files in os.walk(path):
        n_bytes += PAGE_BYTES + sum(pages(os.lstat(os.path.join(at, file)).st_size) for file in files)
    return Kept(name, os.lstat(path).st_mtime_ns if os.path.lexists(path) else 0, n_bytes)
