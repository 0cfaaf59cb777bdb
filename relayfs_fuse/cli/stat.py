"""relayctl list and stat: channels, traces and counters, in one form."""

from __future__ import annotations

import fnmatch
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from relayfs_fuse import explain
from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import (
    NOTHING_MATCHES,
    Seconds,
    check_stdout,
    json_lines_option,
    place_options,
    printable,
    say,
    show_json,
    show_table,
)
from relayfs_fuse.cli.figures import add_rates
from relayfs_fuse.cli.losses import show_losses
from relayfs_fuse.cli.objects import read_all
from relayfs_fuse.cli.opened import absolute
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.commands.control import format_size
from relayfs_fuse.reading.source import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.cli.figures import Figures

_LISTED = ("NAME", "KIND", "BUFFERS", "SIZE", "MEMORY", "STATE")
_RATES = ("RATE", "BYTES/S")
# The columns of stat, and the attributes that they show.
SHOWN = {
    "NAME": "name", "KIND": "kind", "BUFFERS": "buffers", "SIZE": "size", "MEMORY": "memory",
    "COUNT": "count", "BYTES": "bytes", "RATE": "rate", "BYTES/S": "byte_rate", "UNREAD": "unread_bytes",
    "FILL": "fill", "LOST": "lost", "CAUSES": "causes", "STATE": "state",
}  # fmt: skip


@click.command("list")
@place_options
@json_lines_option
def list_all(mount: str | None, store: str | None, json_wanted: bool) -> None:
    """List the channels, traces and counters.

    A line is NAME, kind (relay, ring, trace, counter, gauge), number of buffers, size of each, memory of all, state.
    """
    check_stdout()
    show(read_all(mount, store, lambda _: True), _LISTED, json_wanted=json_wanted)


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete.everything)
@place_options
@click.option(
    "-i", "--interval", type=Seconds(0.01), metavar="SECONDS",
    help="Read twice, so long apart, and show rates per second.",
)  # fmt: skip
@click.option("-p", "--parts", is_flag=True, help="Also show each buffer of a channel, and each process of a trace.")
@click.option("--losses", is_flag=True, help="Show when records were lost, and why.")
@json_lines_option
def stat(  # noqa: PLR0913, PLR0917  # an option each
    names: tuple[str, ...],
    mount: str | None,
    store: str | None,
    interval: float | None,
    parts: bool,
    losses: bool,
    json_wanted: bool,
) -> None:
    """Show statistics of channels, traces and counters: of all, or of those that a NAME matches.

    NAME is a channel's PATH or MNT/PATH, the name of a trace or counter, or a glob, in which * matches slashes, too.

    A line is NAME, kind, buffers, size of each, memory of all, records or events written, bytes,
    with --interval both per second, unread bytes, fill of the fullest buffer, lost records or events, their causes,
    state. A - stands for what there is not, or cannot be known. On a terminal, the columns have titles.

    With --losses, a line is NAME, buffer, the times between which records were lost, records, bytes, cause.
    """
    check_stdout()
    if losses and (store is not None or interval is not None or parts):
        raise click.UsageError(
            "--losses are those that a server has seen: give it without --store, --interval, --parts"
        )
    patterns, mount = chosen(names, mount, store)
    known: set[str] = set()

    def is_wanted(name: str) -> bool:
        known.add(name)
        return is_chosen(name, patterns)

    if losses:
        show_losses(mount, is_wanted, json_wanted=json_wanted)
        _note_missing(patterns, known, known)
        return
    since = time.monotonic()
    found = read_all(mount, store, is_wanted)
    if interval is not None:
        time.sleep(interval)
        before, found = found, read_all(mount, store, is_wanted)
        add_rates(found, before, since)
    if parts:
        found = [one for whole in found for one in (whole, *whole.parts)]
    show(found, [title for title in SHOWN if interval is not None or title not in _RATES], json_wanted=json_wanted)
    _note_missing(patterns, {one.name for one in found}, known)


def _note_missing(patterns: Sequence[str], found: set[str], known: set[str]) -> None:
    """Exit with NOTHING_MATCHES if one of the patterns matches none of the names that were found.

    known: the names of all that there is
    """
    missing = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in found)]
    for pattern in missing:
        say(f"there is no channel, trace or counter {printable(pattern)}; {_instead(pattern, known)}")
    if missing:
        sys.exit(NOTHING_MATCHES)


def chosen(names: Sequence[str], mount: str | None, store: str | None) -> tuple[list[str], str | None]:
    """Return the patterns of names of the command line, and the mount in which they are."""
    if mount is None and store is None and names and os.path.isabs(names[0]):
        mount = next((root for root, _ in explain.mounts_of(names[0])), None)
    return [_below(name, mount) for name in names], mount


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name is one of those that the patterns choose; without any, all are."""
    return not patterns or any(_matches(name, pattern) for pattern in patterns)


def _instead(pattern: str, known: set[str]) -> str:
    """Return what there is in place of what a pattern matches."""
    if any(name.startswith(f"{pattern}/") for name in known):
        return f"it is a directory: '{printable(pattern)}/*' matches what is in it"
    return listed("there are", sorted(known)) or "there is none at all"


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _below(name: str, mount: str | None) -> str:
    """Return the PATH of MNT/PATH or STORE/PATH, or the name."""
    if mount is None and os.path.isabs(name):
        with suppress(RelayError):
            return absolute(name)[1]
    return name.removeprefix(f"{mount.rstrip('/')}/") if mount is not None else name


def show(found: Sequence[Figures], titles: Sequence[str], *, json_wanted: bool) -> None:
    """Print figures: a table of these columns, or JSON objects."""
    if json_wanted:
        show_json(one.as_json() | {"name": printable(one.name)} for one in found)
    else:
        show_table(list(titles), [[_cell(one, title) for title in titles] for one in found])


def _cell(one: Figures, title: str) -> str:
    """Return the text of a column; empty: unknown."""
    value = getattr(one, SHOWN[title])
    if value is None:
        return ""
    if title in ("SIZE", "MEMORY"):
        return format_size(value)
    if title in _RATES:
        return f"{value:.1f}"
    if title == "FILL":
        return f"{value:.0%}"
    return str(value)
