"""A trace that lives as long as the command that makes it."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relayfs_fuse.cli import control
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.source import find_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def own_trace(mount: str | None, patterns: Sequence[str]) -> Iterator[str]:
    """Make and start a trace of events of these names, and remove it in the end; yield its name.

    mount: as for find_mount()

    RelayError: there is no mount, it has refused a command, or the trace could not be removed. CommandError: a pattern
    is wrong.
    """
    place = control.find_control(mount)
    if find_store(place) == place:
        raise RelayError(f"{place} is a store; --event alone makes a trace, which needs a mount")
    name = f"view-{os.getpid()}"
    enable = [f"trace enable {name} {pattern}" for pattern in patterns]
    for line in enable:
        trace_control.parse(line)
    control.command(place, f"trace create {name}")
    try:
        for line in enable:
            control.command(place, line)
        control.command(place, f"trace start {name}")
        yield name
    finally:
        _remove(place, name)


def _remove(mount: str, name: str) -> None:
    line = f"trace remove {name}"
    try:
        control.write(mount, line)
    except OSError as error:
        # ENOENT of write(2): somebody else has removed the trace. Of open(2), with a file name: there is no control.
        if error.errno == errno.ENOENT and error.filename is None:
            return
        raise RelayError(f"{reason(error)}; the trace {name} stays: `{line}`") from error
