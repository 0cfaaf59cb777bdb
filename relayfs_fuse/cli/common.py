"""What several commands of relayctl have in common: options, tables, JSON, messages."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse import native
from relayfs_fuse.cli import complete
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs import mounts
from relayfs_fuse.fs.commands.control import parse_size
from relayfs_fuse.reading.trust import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NOTHING_MATCHES = 3

mount_option = click.option(
    "-m", "--mount", metavar="MNT", shell_complete=complete.directories,
    help="Use this mount. Default: $RELAYFS, or the first mount.",
)  # fmt: skip
check_option = click.option(
    "--check", type=click.Choice(CHECKS), default="others", show_default=True,
    help="Check the events of all users, of users other than this one and root, or of none.",
)  # fmt: skip
json_option = click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object.")
json_lines_option = click.option("--json", "json_wanted", is_flag=True, help="Print a JSON object a line.")
store_option = click.option(
    "--store", metavar="STORE", shell_complete=complete.directories, help="Use this store, without a server."
)


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mount and --store to a command."""
    return mount_option(store_option(command))


def output_option(which: str) -> Callable[..., Any]:
    """Return the option --output, a directory; which: is added to its help."""
    return click.option(
        "-o", "--output", required=True, metavar="DIR", shell_complete=complete.directories,
        help=f"Output directory{which}.",
    )  # fmt: skip


def is_recording(what: str, mount: str | None, store: str | None) -> bool:
    """Return whether TRACE|DIR is a recording: a directory that exists, unless it is said where the trace is."""
    return mount is None and store is None and os.path.isdir(what)


def are_recordings_all(what: Sequence[str], mount: str | None, store: str | None) -> bool:
    """Return whether these are recordings. UsageError: there are several, and one is none."""
    found = [is_recording(one, mount, store) for one in what]
    for one in what:
        if mount is None and store is None and one.startswith(("/", "./", "../")) and not _may_be_there(one):
            raise RelayError(f"{one}: there is no such directory, and it is in no mount of relayfs")
    if len(what) > 1 and not all(found):
        raise click.UsageError(
            f"{what[found.index(False)]} is no directory; only recordings can be shown together, by their directories"
        )
    return all(found) and len(found) > 0


def _may_be_there(path: str) -> bool:
    """Return whether something is at a path, or it may be that of a channel, which need not be a file."""
    # Below the place of a mount that is not there, programs use the store.
    places = (*mounts.places(), os.environ.get("RELAYFS"), native.default_store())
    inside = tuple(os.path.join(place, "") for place in places if place)
    return os.path.lexists(path) or os.path.abspath(path).startswith(inside)


def say(line: str) -> None:
    """Print a line to the standard error; names in it may be those that another user has chosen."""
    click.echo(f"relayctl: {escaped(line)}", err=True)


def check_stdout() -> None:
    """Raise RelayError if the standard output is closed."""
    if sys.stdout is None:
        raise RelayError("the standard output is closed: open it, or give -o if the command has it")


def show_table(titles: list[str], rows: list[list[str]]) -> None:
    """Print a table, with titles on a terminal only; a cell without a text is a -."""
    lines = [[escaped(text) or "-" for text in row] for row in ([titles, *rows] if sys.stdout.isatty() else rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))] if lines else []
    for line in lines:
        # UTF-8, whatever the locale is.
        text = "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        click.echo(text.rstrip().encode())


def show_json(objects: Iterable[dict[str, Any]]) -> None:
    """Print JSON objects, a line each."""
    for one in objects:
        click.echo(json.dumps(one))


def printable(text: str) -> str:
    """Return a text that can be printed, with escapes for bytes that are not UTF-8: names are any bytes."""
    return os.fsencode(text).decode(errors="backslashreplace")


def escaped(text: str) -> str:
    """Return a text for a line: control characters are escaped, too, since they may end it, or command a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in printable(text))


def format_bytes(n: int) -> str:
    """Format a number of bytes for people: with one decimal, and K, M or G as in options."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if n >= 1 << shift:
            return f"{n / (1 << shift):.1f}{unit}"
    return str(n)


class Seconds(click.FloatRange):
    """A number of seconds: not nan, which FloatRange takes to be in each range, and not more than can be waited for."""

    def __init__(self, least: float, most: float = 1e9, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the value."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds, such as 5 or 0.5", param, ctx)
        seconds: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # a text
        if math.isnan(seconds):  # it is outside of no range
            self.fail(f"{value!r} is no number; a number in the range {self._describe_range()} is", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]  # before click 8.2 it has no parameter
    """A number of bytes, with K, M or G."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the value."""
        try:
            size = parse_size(value)
        except ValueError:
            self.fail(f"{value!r}: a size is digits, then K, M, G or nothing, such as 64M", param, ctx)
        return size
