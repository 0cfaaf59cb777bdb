"""relayctl record, of counters: their values go to a file, a line each time."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli.counters import matching
from relayfs_fuse.cli.record_channel import End
from relayfs_fuse.counters import Counters
from relayfs_fuse.errors import RelayError
from relayfs_fuse.explain import mounts_of
from relayfs_fuse.reading.source import find_root
from relayfs_fuse.reading.summary import Summary
from relayfs_fuse.record.counters import CountersFile
from relayfs_fuse.record.report import Progress, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.record.full import Limit

# No channel or trace has this name, as a mount has a file of it.
COUNTERS = "counters"
EVERY_S = 10
_REPEAT_S = 60.0


def counters_place(what: str, mount: str | None, store: str | None) -> str | None:
    """Return the mount or store whose counters this means; None: it is something else. RelayError: there is none."""
    if what == COUNTERS:
        return store or find_root(mount).place
    if mount is None and store is None and "/" in what:
        for place, path in mounts_of(what):
            if path == COUNTERS:
                return place
    return None


def record_counters(  # noqa: PLR0913, PLR0917  # an option each
    place: str,
    output: str,
    every_s: float,
    globs: Sequence[str],
    duration: float | None,
    limit: Limit | None,
    *,
    progress: bool,
    as_json: bool,
) -> None:
    """Record until the store is gone, a signal comes or the time has passed; say what was lost.

    place: a mount, or a store
    globs: names that are wanted; none: all are
    limit: of the bytes that are written; at the limit, lines are lost and counted
    """
    shown, summary = Progress(shows_always=progress, what="lines"), Summary()
    try:
        opened = Counters(place)
    except FileNotFoundError as error:
        raise RelayError(f"there are no counters in {place}") from error
    n_lines, said_s = 0, 0.0
    with opened, CountersFile(output, limit) as file:
        end = End(duration, waits=False)
        lost, due_s = file.lost, time.monotonic()
        while True:
            n = file.append(matching(opened, globs or "*"), time.time())
            n_lines += bool(n)
            summary.bytes, summary.lost = summary.bytes + n, file.lost - lost
            if not n and time.monotonic() > said_s:
                shown.say(f"{output} has no room for the values of counters; they are lost until there is some")
                said_s = time.monotonic() + _REPEAT_S
            shown.tick(summary, 1)
            # After a time in which it could not run, the next ones keep their distance.
            due_s = max(due_s + every_s, time.monotonic())
            if end.comes_by(due_s) or not os.path.exists(place):
                break
    shown.close()
    if as_json:
        told = {"counters": place, "output": output, "lines": n_lines, "bytes": summary.bytes, "lost": summary.lost}
        click.echo(json.dumps(told))
    else:
        text = f"{n_lines} lines, {size(summary.bytes)}, to {output}, {summary.lost} lines lost"
        click.echo(f"{COUNTERS}: {text}", err=True)
