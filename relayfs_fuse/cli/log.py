"""relayctl log: write lines to the channel `log`."""

from __future__ import annotations

import os
import sys

import click

from relayfs_fuse.cli.common import NOTHING_MATCHES, mount_option
from relayfs_fuse.native.events import log_is_heard, log_text


@click.command()
@click.argument("text", nargs=-1)
@mount_option
@click.option("--check", is_flag=True, help="Exit with status 3 if the channel does not exist.")
def log(text: tuple[str, ...], mount: str | None, check: bool) -> None:
    """Write TEXT, or each line of the standard input, to the channel `log`, if it exists.

    Each line gets the time and this program's PID. Without such a channel, the command does nothing and succeeds.
    """
    if mount is not None:
        os.environ["RELAYFS"] = mount
    written = log_is_heard()
    if text and text != ("-",):
        written = log_text(os.fsencode(" ".join(text)))
    elif text or not check:
        for line in sys.stdin.buffer:
            written = log_text(line)
    if check and not written:
        sys.exit(NOTHING_MATCHES)
