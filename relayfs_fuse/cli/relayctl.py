"""relayctl: show counters, record and show traces, and write to the log of a relayfs.

Exit status: 0 it was done; 1 it failed, for the reason in one line on stderr; 2 the command line is wrong; 3 nothing
matches.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import cast

import click

from relayfs_fuse import native
from relayfs_fuse.errors import RelayError

# In which module of relayfs_fuse.cli each command is, and the function's name.
COMMANDS = {
    "counters": ("counters", "counters"),
    "events": ("events", "events"),
    "export": ("export", "export_command"),
    "list": ("traces", "list_traces"),
    "live": ("live", "live"),
    "log": ("log", "log"),
    "record": ("record", "record"),
    "run": ("run", "run"),
    "snapshot": ("snapshot", "snapshot"),
    "stat": ("traces", "stat"),
    "view": ("view", "view"),
    "write": ("write", "write"),
}


class Commands(click.Group):
    """Commands whose modules are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: D102, ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: D102, ARG002
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        return cast("click.Command", getattr(import_module(f"relayfs_fuse.cli.{module}"), function))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(native.VERSION, "-V", "--version", message="%(prog)s %(version)s")
def relayctl() -> None:
    """Show counters, record traces and write to the log of a mounted relayfs.

    Exit status: 0 it was done; 1 it failed; 2 the command line is wrong; 3 nothing matches.
    """


def main() -> None:
    """Run a command; an error is one line on stderr."""
    _open_standard_files()
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


def _open_standard_files() -> None:
    """Open /dev/null for each of them that is closed; otherwise a file that is opened later would get the messages."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115  # it stays open


if __name__ == "__main__":
    main()
