"""relayctl write: write the standard input to a channel, as records."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import mount_option, say
from relayfs_fuse.cli.feed import Feed
from relayfs_fuse.cli.opened import open_first, open_to_write
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.split import FIXED, LINES, PREFIXED, Split


@click.command()
@click.argument("channel", shell_complete=complete.channels)
@mount_option
@click.option("--fixed", metavar="N", type=click.IntRange(min=1), help="Each record has N bytes.")
@click.option("--length-prefixed", is_flag=True, help="Each record follows its length: 4 bytes, little endian.")
@click.option(
    "--block/--drop", "blocks", default=True, help="While the channel is full: wait (the default), or lose records."
)
def write(channel: str, mount: str | None, fixed: int | None, length_prefixed: bool, blocks: bool) -> None:
    """Write the standard input to CHANNEL: each line, with its newline, becomes a record.

    CHANNEL is PATH or MNT/PATH. Exit status: 1 if a record was not written, because it is too long or was dropped.
    """
    if fixed is not None and length_prefixed:
        raise click.UsageError("--fixed and --length-prefixed exclude each other")
    by = FIXED if fixed is not None else PREFIXED if length_prefixed else LINES
    if sys.stdin is None:
        raise RelayError("the standard input is closed")
    with closing(open_first(channel, mount, open_to_write)) as opened:
        split = Split(opened, by, fixed or 1, waits=blocks)
        if fixed is not None and fixed > split.largest:
            raise click.UsageError(f"--fixed {fixed}: a record of {channel} has at most {split.largest} bytes")
        feed = Feed(channel, split)
        try:
            while feed.take(sys.stdin.fileno()):
                pass
        except KeyboardInterrupt:
            say(f"{channel}: interrupted after {split.n_records} records")
            raise
        if not feed.finish():
            sys.exit(1)
