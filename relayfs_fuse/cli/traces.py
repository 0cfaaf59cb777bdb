"""relayctl list and stat: the traces, and the processes that write to them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.common import NOTHING_MATCHES, check_stdout, json_option, mount_option, show_table, store_option
from relayfs_fuse.fs.commands.control import format_size
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import TRACE_OPTIONS
from relayfs_fuse.reading.source import find_mount, find_store
from relayfs_fuse.record.process_stats import ProcessStats, stats_of_process

if TYPE_CHECKING:
    from relayfs_fuse.native.trace import Trace


@click.command("list")
@mount_option
@store_option
@json_option
def list_traces(mount: str | None, store: str | None, json_wanted: bool) -> None:
    """List the traces, and the channels that are damaged.

    A line is NAME, started or stopped, mode, buffers, clock, number and size of sub-buffers, number of processes; or
    the PATH of a channel, damaged, and the reason. With --store, only traces are listed.
    """
    check_stdout()
    where = find_store(mount, store)
    traces = _traces(where)
    damaged = _damaged(mount) if store is None else []
    if json_wanted:
        channels = [{"path": path, "damage": damage} for path, damage in damaged]
        click.echo(json.dumps({"traces": [_describe(where, trace) for trace in traces], "damaged": channels}))
        return
    rows = [
        [
            text["name"], "started" if text["started"] else "stopped", text["mode"], text["buffers"], text["clock"],
            f"{text['n_subbufs']}x{format_size(text['subbuf_size'])}", str(text["processes"]),
        ]
        for text in (_describe(where, trace) for trace in traces)
    ]  # fmt: skip
    show_table(["TRACE", "STATE", "MODE", "BUFFERS", "CLOCK", "SUBBUFS", "PROCESSES"], rows)
    if damaged:
        show_table(["CHANNEL", "STATE", "DAMAGE"], [[path, "damaged", damage] for path, damage in damaged])


@click.command()
@click.argument("name", required=False, shell_complete=complete.traces)
@mount_option
@store_option
@json_option
def stat(name: str | None, mount: str | None, store: str | None, json_wanted: bool) -> None:
    """Show statistics of each process in the trace NAME, or in all traces.

    A line is TRACE, PROCESS-PID, its state, events and bytes written, events lost, bytes unread.
    If programs got no buffers, one more line says how many events they lost: TRACE - no-buffers - - LOST -;
    for other users' programs, a line per user says what these counted: TRACE user-UID no-buffers - - LOST -.
    """
    check_stdout()
    where = find_store(mount, store)
    traces = [trace for trace in _traces(where) if name in (None, trace.name)]
    unbuffered = _lost_without_buffers(where, traces)
    all_lost = native_trace.lost_by_user(where)
    by_user = {trace.name: all_lost.get(trace.id, {}) for trace in traces}
    found = {trace.name: [stats_of_process(os.path.join(where, trace.name, one)) for one in _processes(where, trace)]
             for trace in traces}  # fmt: skip
    if json_wanted:
        described = [
            {
                **_describe(where, trace),
                "lost_without_buffers": unbuffered[trace.name],
                "lost_without_buffers_by_user": by_user[trace.name],
                "processes": [asdict(one) for one in found[trace.name] if one],
            }
            for trace in traces
        ]
        click.echo(json.dumps({"traces": described}))
    else:
        rows = [[trace, *_row(one)] for trace, all_of in found.items() for one in all_of if one]
        rows += [[trace, "-", "no-buffers", "-", "-", str(lost), "-"] for trace, lost in unbuffered.items() if lost]
        rows += [
            [trace, f"user-{uid}", "no-buffers", "-", "-", str(lost), "-"]
            for trace, users in by_user.items()
            for uid, lost in users.items()
        ]
        show_table(["TRACE", "PROCESS", "STATE", "EVENTS", "BYTES", "LOST", "UNREAD"], rows)
    if name is not None and not traces:
        sys.exit(NOTHING_MATCHES)


def _traces(store: str) -> list[Trace]:
    with closing(native_trace.Traces(os.path.join(store, ".traces"))) as traces:
        return sorted(traces.all().values(), key=lambda trace: trace.name)


def _lost_without_buffers(store: str, traces: list[Trace]) -> dict[str, int]:
    with closing(native_trace.Traces(os.path.join(store, ".traces"))) as control:
        return {trace.name: control.lost(trace) for trace in traces}


def _damaged(mount: str | None) -> list[tuple[str, str]]:
    """Return the paths of damaged channels, and the reasons, from comments in control; none if it cannot be read."""
    place = find_mount(mount)
    if place is None:
        return []
    try:
        with open(os.path.join(place, "control"), encoding="utf-8", errors="surrogateescape") as file:
            comments = [line.removeprefix("# ").rstrip("\n") for line in file if line.startswith("# ")]
    except OSError:
        return []
    return [
        (path, damage)
        for path, is_damaged, damage in (one.partition(" is damaged: ") for one in comments)
        if is_damaged
    ]


def _processes(store: str, trace: Trace) -> list[str]:
    try:
        return sorted(name for name in os.listdir(os.path.join(store, trace.name)) if not name.startswith("."))
    except FileNotFoundError:
        return []


def _describe(store: str, trace: Trace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "id": trace.id,
        "started": trace.is_started,
        "mode": TRACE_OPTIONS["mode"].format(trace.mode),
        "buffers": TRACE_OPTIONS["buffers"].format(trace.buffers),
        "clock": TRACE_OPTIONS["clock"].format(trace.clock - native_trace.CLOCK_MONO),
        "subbuf_size": trace.subbuf_size,
        "n_subbufs": trace.n_subbufs,
        "boot": trace.boot,
        "filter": trace.filter,
        "rules": trace.rules.splitlines(),
        "processes": len(_processes(store, trace)),
    }


def _row(stats: ProcessStats) -> list[str]:
    numbers = (stats.events, stats.bytes, stats.lost, stats.unread)
    return [stats.name, stats.state, *("-" if number is None else str(number) for number in numbers)]
