"""relayctl: show counters, record and show traces, and write to the log of a relayfs.

Exit status: 0 it was done; 1 it failed, for the reason in one line on stderr; 2 the command line is wrong; 3 nothing
matches.
"""

from __future__ import annotations

import sys

import click

from relayfs_fuse import native
from relayfs_fuse.cli.counters import counters
from relayfs_fuse.cli.export import export_command
from relayfs_fuse.cli.log import log
from relayfs_fuse.cli.record import record
from relayfs_fuse.cli.snapshot import snapshot
from relayfs_fuse.cli.traces import list_traces, stat
from relayfs_fuse.cli.view import view
from relayfs_fuse.errors import RelayError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(native.VERSION, "-V", "--version", message="%(prog)s %(version)s")
def relayctl() -> None:
    """Show counters, record traces and write to the log of a mounted relayfs.

    Exit status: 0 it was done; 1 it failed; 2 the command line is wrong; 3 nothing matches.
    """


for command in (counters, export_command, list_traces, log, record, snapshot, stat, view):
    relayctl.add_command(command)


def main() -> None:
    """Run a command; an error is one line on stderr."""
    try:
        native.guard_install()
        relayctl(prog_name="relayctl")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"relayctl: {where}{error.strerror}", err=True)
        sys.exit(1)
    except RelayError as error:
        click.echo(f"relayctl: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
