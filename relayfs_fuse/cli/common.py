"""What commands of relayctl have in common."""

from __future__ import annotations

import click

from relayfs_fuse.fs.commands.control import parse_size
from relayfs_fuse.record.trust import CHECKS

NOTHING_MATCHES = 3

mount_option = click.option(
    "-m", "--mount", metavar="MNT", help="Of this mount; else of $RELAYFS or the first there is."
)
check_option = click.option(
    "--check", type=click.Choice(CHECKS), default="others", show_default=True,
    help="Check the events of everybody, of other users than this one and root, or of nobody.",
)  # fmt: skip
store_option = click.option("--store", metavar="STORE", help="Of this store, which nobody need serve.")


class Size(click.ParamType[int]):
    """A number of bytes, with K, M or G."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        try:
            size = parse_size(value)
        except ValueError:
            self.fail(f"{value} is no number of bytes, with K, M or G", param, ctx)
        return size
