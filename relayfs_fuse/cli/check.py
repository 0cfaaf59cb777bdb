"""relayctl check: whether what a store holds is sound."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from relayfs_fuse import explain, native
from relayfs_fuse.checking.finding import DAMAGED
from relayfs_fuse.checking.store import Checker, is_store
from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import (
    NOTHING_MATCHES,
    check_stdout,
    escaped,
    json_lines_option,
    place_options,
    printable,
    say,
)
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.source import find_mount, find_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.checking.account import Account
    from relayfs_fuse.checking.finding import Finding


@click.command()
@click.argument("places", metavar="[STORE|PATH]...", nargs=-1, shell_complete=complete.stored)
@place_options
@click.option("--account", is_flag=True, help="Show where the records of each channel and process are.")
@json_lines_option
def check(places: tuple[str, ...], mount: str | None, store: str | None, account: bool, json_wanted: bool) -> None:
    """Check whether what a store holds is sound: of all objects, or of those given. Nothing is changed.

    STORE is the directory of a store, or a mount. PATH is a channel's PATH or MNT/PATH, a directory of channels, the
    name of a trace, or TRACE/PROCESS.

    A line is damaged or warning; the object; the file and the offset in it; the value's name, what it is, and what is
    allowed; what to do. Exit status: 0 if nothing is damaged; 1 if something is, or the store cannot be read; 3 if
    there is no such PATH.
    """
    check_stdout()
    native.guard_install()
    damaged: set[tuple[int, str]] = set()
    n_warnings = 0
    n_objects = 0
    missing: list[str] = []
    for number, checker in enumerate(_checkers(places, mount, store)):
        for finding in checker.check():
            if finding.level == DAMAGED:
                damaged.add((number, finding.name))
            else:
                n_warnings += 1
            _show(finding, json_wanted=json_wanted)
        if account:
            _show_accounts(checker.accounts, json_wanted=json_wanted)
        n_objects += checker.n_objects
        missing += [path for path, n in checker.n_found.items() if not n]
    if n_objects or not missing:
        _sum_up(n_objects, len(damaged), n_warnings, json_wanted=json_wanted)
    for path in missing:
        say(f"there is no channel, directory or trace {printable(path)}")
    if damaged:
        sys.exit(1)
    if missing:
        sys.exit(NOTHING_MATCHES)


def _checkers(places: Sequence[str], mount: str | None, store: str | None) -> list[Checker]:
    """Return a checker for each store."""
    wanted: dict[tuple[str, str | None], list[str]] = {}
    for place in places or ("",):
        where, root, path = _find(place, mount, store)
        wanted.setdefault((where, root), []).append(path)
    return [Checker(where, root, () if "" in paths else paths) for (where, root), paths in wanted.items()]


def _find(place: str, mount: str | None, store: str | None) -> tuple[str, str | None, str]:
    """Return the store of a STORE or PATH, its mount if that is known, and the path in it; empty: all of it."""
    is_chosen = mount is not None or store is not None
    if place and not is_chosen and os.path.isdir(place):
        if os.path.isdir(os.path.join(place, ".channels")):
            return find_store(place), place, ""
        if is_store(place):
            return place, None, ""
    if not is_chosen and "/" in place:
        for root, path in explain.mounts_of(place):
            return find_store(root), root, path
        if os.path.isabs(place):
            raise RelayError(f"{place} is no store, and in no mount of relayfs; --store checks any directory")
    where = find_store(mount, store)
    if mount is not None:
        place = place.removeprefix(f"{mount.rstrip('/')}/")
    return where, None if store is not None else find_mount(mount), place


def _show(finding: Finding, *, json_wanted: bool) -> None:
    if json_wanted:
        fields = asdict(finding) | {"name": printable(finding.name), "file": printable(finding.file)}
        click.echo(json.dumps(fields | {"advice": printable(finding.advice), "found": printable(finding.found)}))
    else:
        click.echo(escaped(finding.line()))


def _show_accounts(accounts: dict[str, Account], *, json_wanted: bool) -> None:
    for name, account in accounts.items():
        if json_wanted:
            click.echo(json.dumps({"level": "account", "name": printable(name), **account.as_json()}))
        else:
            click.echo(escaped(f"account  {name}: {account}"))


def _sum_up(n_objects: int, damaged: int, warnings: int, *, json_wanted: bool) -> None:
    if json_wanted:
        click.echo(json.dumps({"checked": n_objects, "damaged": damaged, "warnings": warnings}))
        return
    many = f"{n_objects} object{'s' if n_objects != 1 else ''} checked"
    is_what = f"{damaged} damaged" if damaged else "no damage"
    click.echo(f"{many}, {is_what}" + (f", {warnings} warning{'s' if warnings != 1 else ''}" if warnings else ""))
