"""relayctl doctor: what of relayfs works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import check_stdout, escaped, json_option
from relayfs_fuse.cli.machine import NOTE, OK, PROBLEM, Finding, machine
from relayfs_fuse.cli.mounted import mounted, mounts_found


@click.command()
@click.option(
    "-m", "--mount", metavar="MNT", shell_complete=complete.directories, help="Of the mounts, look at this one only."
)
@json_option
def doctor(mount: str | None, json_wanted: bool) -> None:
    """Check the machine and the mounts, and say what to do about what is wrong.

    A line is OK, note or problem; what was checked; what that means. What to do follows on a line of its own. Exit
    status: 1 if there is a problem.
    """
    check_stdout()
    of_mounts = {place: mounted(place) for place in mounts_found(mount)}
    is_served = any(found and found[0].level != PROBLEM for found in of_mounts.values())
    found = [*machine(is_served=is_served), *(one for place in of_mounts for one in of_mounts[place])]
    if not of_mounts:
        found.append(Finding(NOTE, "mounts", "no relayfs is mounted", "mount one with: relayfs DIR"))
    if json_wanted:
        click.echo(json.dumps({"findings": [asdict(one) for one in found]}))
    else:
        for one in found:
            click.echo(escaped(f"{one.level:7}  {one.subject}: {one.meaning}"))
            if one.advice and one.level != OK:
                click.echo(escaped(f"{'':7}  -> {one.advice}"))
    if any(one.level == PROBLEM for one in found):
        sys.exit(1)
