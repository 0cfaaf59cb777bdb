"""Names of channels and traces: what a mount's control file says in one request, also of damage; what is in a store."""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from relayfs_fuse import explain
from relayfs_fuse.errors import MountError
from relayfs_fuse.native.store import control_in_mount, control_in_store
from relayfs_fuse.native.trace import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CHANNEL = re.compile(r"create (\S+)|# (\S+) is damaged: ")
CHANNEL_WITH_TIMES = re.compile(r"create (\S+) .*\btimes=(?!none)")
TRIGGER = re.compile(r"trigger add (\S+)")
# The group of counters that are statistics of the server and of channels.
SERVER_COUNTERS = "relayfs/"
# What `relayctl forward` tells of itself: see forwarders.py.
FORWARDERS = "forward/"
# The longest line: a path of PATH_MAX bytes, with options or with what is damaged.
_LINE_BYTES = 16 << 10
# A hundred times what the largest mounts have.
_FILE_BYTES = 64 << 20
# A file of each channel of a store.
FIRST_FILE = "mem0"
# The directory of crash cards in a mount.
CRASHED = ".crashed"
# A file of each process of a trace.
EVENTS_FILE = ".events"
_DAMAGE = re.compile(r"# (\S+) is damaged: (.*)")


def names_in(mount: str, *patterns: re.Pattern[str]) -> Iterator[str]:
    """Yield the names in the lines that begin as one of the patterns says; OSError, MountError."""
    for match in _matches(mount, *patterns):
        yield next(filter(None, match.groups()))


def damage_in(mount: str) -> dict[str, str]:
    """Return what is wrong with damaged channels, by their paths; none if the file cannot be read."""
    with suppress(OSError, MountError):
        return {match[1]: match[2] for match in _matches(mount, _DAMAGE)}
    return {}


def traces_of(where: str, place: str | None = None) -> list[str]:
    """Return the names of the traces of a store, in their order; OSError.

    place: a mount, which tells them in place of the store; None: the store does
    """
    control = control_in_store(where) if place is None else control_in_mount(place)
    try:
        with closing(Traces(control)) as traces:
            return sorted(trace.name for trace in traces.all().values())
    except FileNotFoundError:
        return []  # no server has served the store yet


def channels_of_store(where: str, traces: Sequence[str], note: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """Yield the paths of the channels in a store.

    traces: the names of its traces, whose directories are none of channels
    note: is called with each directory below the store, before it is listed
    """
    for directory, directories, files in os.walk(where):
        if EVENTS_FILE in files:
            # Of a process, in a trace whose name is not known: its slot was being changed when the server died.
            directories.clear()
            continue
        hidden = traces if directory == where else ()
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name not in hidden)
        for name in directories:
            note(os.path.join(directory, name))
        if FIRST_FILE in files:
            yield os.path.relpath(directory, where)


def cards_of(mount: str) -> list[str]:
    """Return the names of the crash cards of a mount that this user may read, in their order; OSError."""
    above = os.path.join(mount, CRASHED)
    return sorted(name for name in os.listdir(above) if os.access(os.path.join(above, name), os.R_OK | os.X_OK))


def _matches(mount: str, *patterns: re.Pattern[str]) -> Iterator[re.Match[str]]:
    path = os.path.join(mount, "control")
    with explain.regular_file(path) as file:
        left = _FILE_BYTES
        while line := file.readline(_LINE_BYTES + 1):
            left -= len(line)
            if len(line) > _LINE_BYTES or left < 0:
                what = f"a line longer than {_LINE_BYTES} bytes" if left >= 0 else f"more than {_FILE_BYTES >> 20} MiB"
                raise MountError(f"{path} has {what}, which a server of relayfs does not write")
            yield from filter(None, (pattern.match(os.fsdecode(line)) for pattern in patterns))
