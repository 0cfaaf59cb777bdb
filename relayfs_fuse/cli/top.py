"""relayctl top: channels, rings, traces and processes, again and again: on a terminal, as a table, or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import Seconds, check_stdout, json_lines_option, place_options, printable, say
from relayfs_fuse.cli.objects import Objects
from relayfs_fuse.cli.sampler import Sampler
from relayfs_fuse.cli.stat import SHOWN, chosen, is_chosen, show
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.room import permit_many_files

if TYPE_CHECKING:
    from relayfs_fuse.cli.figures import Figures

_PACKAGES = ("textual", "rich")


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete.everything)
@place_options
@click.option(
    "-i", "--interval", type=Seconds(0.01, 3600), default=1.0, show_default=True, metavar="SECONDS",
    help="How often to read.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="After one interval print a table, or with --json the objects, and end.")
@json_lines_option
def top(  # noqa: PLR0913, PLR0917  # an option each
    names: tuple[str, ...], mount: str | None, store: str | None, interval: float, once: bool, json_wanted: bool
) -> None:
    """Show channels, rings, traces and processes while they are written and read: all, or those that a NAME matches.

    NAME is as for `relayctl stat`.

    Keys: / filters, a letter of a column's title sorts by it, z hides what does nothing, p pauses, Enter shows buffers
    and the last records, t takes a snapshot of the selected trace, q ends.

    The server is not asked: the figures are read from mapped memory.
    """
    check_stdout()
    permit_many_files()
    patterns, mount = chosen(names, mount, store)
    is_wanted = partial(is_chosen, patterns=patterns)
    if once or json_wanted:
        with Objects(mount, store, is_wanted) as objects:
            _print(Sampler(objects), interval, once=once, json_wanted=json_wanted)
        return
    try:
        from relayfs_fuse.cli.screen.app import Top  # noqa: PLC0415  # --once and --json do without textual
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        why = "relayctl top needs textual: pip install 'relayfs[top]'; --once and --json do not"
        raise RelayError(why) from error
    if not (os.isatty(0) and sys.stdout.isatty()):
        raise RelayError("standard input and output are no terminal; --once and --json need none")
    with Objects(mount, store, is_wanted) as objects:
        screen = Top(Sampler(objects), interval)
        screen.run()
    if screen.return_code:
        sys.exit(screen.return_code)


def _print(sampler: Sampler, interval: float, *, once: bool, json_wanted: bool) -> None:
    """Print figures after each interval, or after the first one only; SIGINT ends it."""
    sampler.take()
    while True:
        try:
            time.sleep(interval)
            found = sampler.take()
        except KeyboardInterrupt:
            return
        except OSError as error:
            if once:
                raise
            say(f"{error.filename}: {reason(error)}")
            continue
        if json_wanted:
            _print_json(found)
        else:
            show(found, list(SHOWN), json_wanted=False)
        if once:
            return


def _print_json(found: list[Figures]) -> None:
    now = time.time()
    lines = [json.dumps({"time": now, **one.as_json(), "name": printable(one.name)}) for one in found]
    if lines:
        click.echo("\n".join(lines))
