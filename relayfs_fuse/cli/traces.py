"""relayctl trace: list traces, and commands about them, which the server carries out."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.channels import describe_keys
from relayfs_fuse.cli.common import (
    check_stdout,
    format_bytes,
    json_lines_option,
    mount_option,
    place_options,
    show_json,
    show_table,
)
from relayfs_fuse.cli.control import check_word, commands
from relayfs_fuse.cli.moment import moment
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.control import format_size
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.store import control_in_mount, control_in_store
from relayfs_fuse.native.tables import TRACE_OPTIONS
from relayfs_fuse.reading.source import find_mount, find_store
from relayfs_fuse.tracefiles.snapshots import kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.tracefiles.snapshots import Kept


@click.group()
def trace() -> None:
    """Make, start, stop, list and remove traces, and choose their events."""


@trace.command(epilog="Keys, and allowed values:\n\n" + describe_keys(trace_control.ALLOWED))
@click.argument("name")
@click.argument("options", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete.trace_options)
@mount_option
def create(name: str, options: tuple[str, ...], mount: str | None) -> None:
    """Make the trace NAME, which `trace start` lets programs write to.

    Keys that are not given have defaults, which relayfs(5) describes.
    """
    commands(mount, "trace create", [name], [check_word(option) for option in options])


@trace.command("set", epilog="Keys, and allowed values:\n\n" + describe_keys(trace_control.ALLOWED))
@click.argument("name", shell_complete=complete.traces)
@click.argument("options", metavar="KEY=VALUE...", nargs=-1, required=True, shell_complete=complete.trace_options)
@mount_option
def change(name: str, options: tuple[str, ...], mount: str | None) -> None:
    """Change options of the trace NAME, to which no program has written yet; snapshot_memory at any time."""
    commands(mount, "trace set", [name], [check_word(option) for option in options])


def _about_traces(action: str, text: str) -> None:
    @trace.command(action, help=text)
    @click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.other_traces)
    @mount_option
    def about_traces(names: tuple[str, ...], mount: str | None) -> None:
        commands(mount, f"trace {action}", names)


_about_traces("start", "Let programs write to traces.")
_about_traces("stop", "Stop programs from writing to traces.")
_about_traces("remove", "Remove traces, and the events in them that have not been read; recorders finish first.")


@trace.command()
@click.argument("name", shell_complete=complete.traces)
@click.argument("globs", metavar="GLOB...", nargs=-1, required=True)
@click.option("--if", "condition", metavar="CONDITION", help="Only events that meet it, as 'ms > 500'; see relayfs(5).")
@mount_option
def enable(name: str, globs: tuple[str, ...], condition: str | None, mount: str | None) -> None:
    """Have the trace NAME take the events whose PROVIDER:NAME matches one of the GLOBs.

    Until the first `trace enable` or `trace disable`, a trace takes all events.
    """
    if condition is not None and "\n" in condition:
        raise click.UsageError("a condition has no newlines")
    words = [] if condition is None else ["if", condition]
    for glob in globs:
        commands(mount, "trace enable", [name], [check_word(glob), *words])


@trace.command()
@click.argument("name", shell_complete=complete.traces)
@click.argument("globs", metavar="GLOB...", nargs=-1, required=True)
@mount_option
def disable(name: str, globs: tuple[str, ...], mount: str | None) -> None:
    """Have the trace NAME leave out the events whose PROVIDER:NAME matches one of the GLOBs."""
    for glob in globs:
        commands(mount, "trace disable", [name], [check_word(glob)])


@trace.command("snapshot")
@click.argument("name", shell_complete=complete.traces)
@click.argument("snapshot")
@click.option("--since", metavar="TIME", help="Leave out packets whose events are all earlier.")
@click.option("--until", metavar="TIME", help="Leave out packets whose events are all later.")
@mount_option
def keep(name: str, snapshot: str, since: str | None, until: str | None, mount: str | None) -> None:
    """Keep what the buffers of the trace NAME hold now in the mount, as the directory SNAPSHOT.

    It is MNT/.traces/NAME/snapshots/SNAPSHOT, which rmdir removes. TIME is as for `relayctl view`.
    """
    now = time.time_ns()
    times = [f"{key}={moment(given, now, 0)}" for key, given in (("since", since), ("until", until)) if given]
    commands(mount, "trace snapshot", [name], [check_word(snapshot), *times])


@trace.command("list")
@place_options
@json_lines_option
def list_traces(mount: str | None, store: str | None, json_wanted: bool) -> None:
    """List the traces.

    A line is NAME, started or stopped, mode, buffers, clock, number and size of sub-buffers, number of processes, and
    number and bytes of the snapshots that the mount keeps.
    """
    check_stdout()
    where = find_store(mount, store)
    control = control_in_store(where)
    place = find_mount(mount) if store is None else None
    if place is not None and not os.path.isdir(where):
        control = control_in_mount(place)  # as in a container that has only the mount
    traces = [_describe(where, one) for one in all_traces(control)]
    if json_wanted:
        show_json(traces)
        return
    titles = ["TRACE", "STATE", "MODE", "BUFFERS", "CLOCK", "SUBBUFS", "PROCESSES", "SNAPSHOTS", "BYTES"]
    show_table(titles, [_row(one) for one in traces])


def all_traces(control: str) -> Sequence[Trace]:
    """Return all traces of a control file, in the order of their names; OSError."""
    try:
        with closing(native_trace.Traces(control)) as traces:
            return sorted(traces.all().values(), key=lambda one: one.name)
    except FileNotFoundError:
        return []  # no server has served the store yet


def processes_of(store: str, name: str) -> list[str]:
    """Return the names of the directories of processes that a trace has now."""
    try:
        return sorted(one for one in os.listdir(os.path.join(store, name)) if not one.startswith("."))
    except FileNotFoundError:
        return []


def _describe(store: str, one: Trace) -> dict[str, Any]:
    snapshots = _snapshots(store, one)
    return {
        "name": one.name,
        "id": one.id,
        "started": one.is_started,
        "mode": TRACE_OPTIONS["mode"].format(one.mode),
        "buffers": TRACE_OPTIONS["buffers"].format(one.buffers),
        "clock": TRACE_OPTIONS["clock"].format(one.clock - native_trace.CLOCK_MONO),
        "subbuf_size": one.subbuf_size,
        "n_subbufs": one.n_subbufs,
        "boot": one.boot,
        "filter": one.filter,
        "rules": one.rules.splitlines(),
        "processes": len(processes_of(store, one.name)) if os.path.isdir(store) else None,
        "snapshot_memory": trace_control.snapshot_memory(one),
        "snapshots": None if snapshots is None else len(snapshots),
        "snapshot_bytes": None if snapshots is None else sum(snapshot.n_bytes for snapshot in snapshots),
    }


def _snapshots(store: str, one: Trace) -> list[Kept] | None:
    """Return the snapshots of a trace; None: this user may not see them, or the store is not seen."""
    try:
        return kept(store, one.id) if os.path.isdir(store) else None
    except OSError:
        return None


def _row(text: dict[str, Any]) -> list[str]:
    processes, snapshots = ("" if text[key] is None else str(text[key]) for key in ("processes", "snapshots"))
    size = "" if text["snapshot_bytes"] is None else format_bytes(text["snapshot_bytes"])
    return [
        text["name"], "started" if text["started"] else "stopped", text["mode"], text["buffers"], text["clock"],
        f"{text['n_subbufs']}x{format_size(text['subbuf_size'])}", processes, snapshots, size,
    ]  # fmt: skip
