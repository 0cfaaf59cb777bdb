"""relayctl version: of the program, the library, the server of a mount, the kernel and the FUSE protocol."""

from __future__ import annotations

import importlib.metadata
import os
from contextlib import suppress

import click

from relayfs_fuse import native
from relayfs_fuse.cli.common import check_stdout, json_option, mount_option, show_json, show_table
from relayfs_fuse.reading.source import find_mount

# Of the root directory of a mount: the server's version, and that of the FUSE protocol.
SERVER_XATTR = "user.relayfs.server"


@click.command()
@mount_option
@json_option
def version(mount: str | None, json_wanted: bool) -> None:
    """Show the versions of this program, the library, the server of the mount, the kernel and the FUSE protocol.

    A line is the name of a part, and its version; a - if nothing is mounted, or its server does not tell.
    """
    check_stdout()
    versions = {
        "program": importlib.metadata.version("relayfs"),
        "library": native.VERSION,
        "server": None,
        "kernel": os.uname().release,
        "fuse": None,
    }
    place = find_mount(mount)
    if place is not None:
        # ENODATA, ENOTSUP: it is a store, or the server is of an earlier version. ValueError: it is another program.
        with suppress(OSError, ValueError):
            versions["server"], versions["fuse"] = os.getxattr(place, SERVER_XATTR).decode("ascii").split()
    if json_wanted:
        show_json([versions])
    else:
        show_table(["PART", "VERSION"], [[part, of_part or ""] for part, of_part in versions.items()])
