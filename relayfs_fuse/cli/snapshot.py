"""relayctl snapshot: write what a trace's buffers hold now."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import check_option, output_option, place_options
from relayfs_fuse.errors import RelayError
from relayfs_fuse.reading.snapshot import Snapshot
from relayfs_fuse.reading.source import Source, find_store, mount_of
from relayfs_fuse.record.report import Progress, as_json, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.reading.summary import Summary


@click.command()
@click.argument("name", shell_complete=complete.traces)
@output_option(", empty or new")
@place_options
@check_option
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@click.option("--json", "json_wanted", is_flag=True, help="Print a summary as a JSON object.")
def snapshot(  # noqa: PLR0913, PLR0917  # an option each
    name: str, output: str, mount: str | None, store: str | None, check: str, progress: bool, json_wanted: bool
) -> None:
    """Write what the buffers of the trace NAME hold now to a CTF trace, and leave the events there."""
    with closing(Source(name, find_store(mount, store))) as source:
        summary = _take(source, os.path.abspath(output), check, mount_of(mount, store), shows_always=progress)
    if json_wanted:
        click.echo(as_json(name, output, summary))
    else:
        click.echo(summarize(name, output, summary), err=True)


@contextmanager
def held_now(name: str, mount: str | None, store: str | None) -> Iterator[str]:
    """Give a directory with what the buffers of a trace hold now, until this ends; say what is missing in it.

    RelayError: there is no such trace, or nothing in it
    """
    with (
        closing(Source(name, find_store(mount, store))) as source,
        tempfile.TemporaryDirectory(prefix="relayctl-") as directory,
    ):
        summary = _take(source, directory, "others", mount_of(mount, store), shows_always=False)
        if summary.is_incomplete:
            click.echo(summarize(name, "a temporary directory", summary), err=True)
        if not summary.processes:
            raise RelayError(f"{name}: no program has written to it that can be read")
        yield directory


def _take(source: Source, output: str, check: str, mount: str | None, *, shows_always: bool) -> Summary:
    shown = Progress(shows_always=shows_always)
    taken = Snapshot(source, output, shown.say, check, mount=mount)
    taken.take(lambda: shown.tick(taken.summary))
    shown.close()
    return taken.summary
