"""relayctl snapshot: write what a trace's buffers hold now."""

from __future__ import annotations

import os
from contextlib import closing

import click

from relayfs_fuse.cli.common import check_option, mount_option, store_option
from relayfs_fuse.reading.source import Source, find_store
from relayfs_fuse.record.report import Progress, as_json, summarize
from relayfs_fuse.record.snapshot import Snapshot


@click.command()
@click.argument("name")
@click.option("-o", "--output", required=True, metavar="DIR", help="Output directory, empty or new.")
@mount_option
@store_option
@check_option
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@click.option("--json", "json_wanted", is_flag=True, help="Print a summary as a JSON object.")
def snapshot(  # noqa: PLR0913, PLR0917  # an option each
    name: str, output: str, mount: str | None, store: str | None, check: str, progress: bool, json_wanted: bool
) -> None:
    """Write what the buffers of the trace NAME hold now to a CTF trace, and leave the events there."""
    shown = Progress(shows_always=progress)
    with closing(Source(name, find_store(mount, store))) as source:
        taken = Snapshot(source, os.path.abspath(output), shown.say, check)
        taken.take(lambda: shown.tick(taken.summary))
    shown.close()
    if json_wanted:
        click.echo(as_json(name, output, taken.summary))
    else:
        click.echo(summarize(name, output, taken.summary), err=True)
