"""relayctl log: write lines to the channel `log`."""

from __future__ import annotations

import os
import sys

import click

from relayfs_fuse.cli.common import NOTHING_MATCHES
from relayfs_fuse.native.events import log_is_heard, log_text


@click.command()
@click.argument("text", nargs=-1)
@click.option("-m", "--mount", metavar="MNT", help="Of this mount; else of $RELAYFS or the first there is.")
@click.option("--check", is_flag=True, help="Exit with status 3 when nobody listens.")
def log(text: tuple[str, ...], mount: str | None, check: bool) -> None:
    """Write TEXT, or each line of the standard input, to the channel `log`, if somebody has made one.

    The line gets the time and this program's number. Without such a channel nothing is done, and that is no failure.
    """
    if mount is not None:
        os.environ["RELAYFS"] = mount
    heard = log_is_heard()
    if text and text != ("-",):
        heard = log_text(os.fsencode(" ".join(text)))
    elif text or not check:
        for line in sys.stdin.buffer:
            heard = log_text(line)
    if check and not heard:
        sys.exit(NOTHING_MATCHES)
