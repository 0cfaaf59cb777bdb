"""relayctl crashed: list, show and remove the crash cards of traced processes that have died."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import (
    NOTHING_MATCHES,
    check_stdout,
    escaped,
    format_bytes,
    json_lines_option,
    mount_option,
    show_json,
    show_table,
)
from relayfs_fuse.cli.names import CRASHED, cards_of
from relayfs_fuse.errors import RelayError, failure
from relayfs_fuse.reading.source import find_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What `show` prints of a card, in this order; the other files are for other programs.
_SHOWN = ("process", "cause", "losses", "events")


@click.group(invoke_without_command=True)
@mount_option
@json_lines_option
@click.pass_context
def crashed(context: click.Context, mount: str | None, json_wanted: bool) -> None:
    """List, show or remove crash cards: what traced processes have left that died without closing their trace.

    Without a command: list those that this user may read, the oldest first. A line is NAME, cause, bytes.
    """
    context.obj = mount
    if context.invoked_subcommand is not None:
        if json_wanted:
            raise click.UsageError("--json belongs behind the command, or to the list")
        return
    check_stdout()
    place = _place(mount)
    found = sorted((_read(place, name) for name in cards_of(place)), key=lambda one: (one["died"], one["name"]))
    if json_wanted:
        show_json(found)
    else:
        show_table(
            ["NAME", "CAUSE", "BYTES"],
            [[one["name"], _cause_of(one), format_bytes(one["bytes"])] for one in found],
        )


@crashed.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.crash_cards)
@mount_option
@json_lines_option
@click.pass_obj
def show(above: str | None, names: tuple[str, ...], mount: str | None, json_wanted: bool) -> None:
    """Show cards: the process, how it has ended, what was lost, and its last events.

    The directory MNT/.crashed/NAME has more: see relayfs(5).
    """
    check_stdout()
    place = _place(mount or above)
    _check(place, names)
    if json_wanted:
        show_json(_read(place, name) | {"events": _text(place, name, "events").splitlines()} for name in names)
        return
    for number, name in enumerate(names):
        if len(names) > 1:
            click.echo(("\n" if number else "") + escaped(f"{name}:"))
        for file in _SHOWN:
            click.echo(_text(place, name, file).encode(errors="surrogateescape"), nl=False)


@crashed.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.crash_cards)
@mount_option
@click.pass_obj
def rm(above: str | None, names: tuple[str, ...], mount: str | None) -> None:
    """Remove cards."""
    place = _place(mount or above)
    _check(place, names)
    for name in names:
        os.rmdir(os.path.join(place, CRASHED, name))


# As traces and triggers are removed.
crashed.add_command(rm, "remove")


def _place(mount: str | None) -> str:
    """Return the mount; RelayError: nothing is mounted."""
    root = find_root(mount)
    if root.is_store:
        raise RelayError("nothing is mounted: only a server keeps crash cards")
    return root.place


def _check(place: str, names: Sequence[str]) -> None:
    """Exit with NOTHING_MATCHES if there is no card of one of the names."""
    for name in names:
        if "/" in name or not os.path.isdir(os.path.join(place, CRASHED, name)):
            click.echo(f"relayctl: there is no crash card {escaped(name)}; relayctl crashed lists them", err=True)
            sys.exit(NOTHING_MATCHES)


def _text(place: str, name: str, file: str) -> str:
    """Return the text of a file of a card; "": it has no such file. OSError."""
    try:
        with open(os.path.join(place, CRASHED, name, file), encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read()
    except FileNotFoundError:
        return ""


def _pairs(text: str) -> Iterator[tuple[str, str | int]]:
    for line in text.splitlines():
        key, _, value = line.partition("=")
        yield key, int(value) if value.isascii() and value.isdigit() else value


def _read(place: str, name: str) -> dict[str, Any]:
    """Return what a card says of its process and its end, and the bytes of its files; OSError."""
    directory = os.path.join(place, CRASHED, name)
    sizes = (os.stat(os.path.join(at, file)).st_size for at, _, files in os.walk(directory) for file in files)
    about = {"name": name, "bytes": sum(sizes)}
    for file in ("process", "cause"):
        about |= _pairs(_text(place, name, file))
    if "died" not in about:
        raise failure(errno.ESTALE, directory)  # it was just removed
    return about


def _cause_of(card: dict[str, Any]) -> str:
    """Return how a process has ended, for people."""
    if card["cause"] == "signal":
        core = ", core dumped" if card["core_dumped"] else ""
        return f"{card['signal']}{core}" + (", out of memory" if card.get("out_of_memory") == 1 else "")
    return f"exit status {card['status']}" if card["cause"] == "exit" else "unknown"
