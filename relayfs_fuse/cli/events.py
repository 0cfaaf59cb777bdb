"""relayctl events: the events that running programs could write, which traces take them, and how often."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli.common import (
    NOTHING_MATCHES,
    check_stdout,
    json_option,
    place_options,
    say,
    show_table,
)
from relayfs_fuse.cli.traces import all_traces
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.events import LEVELS
from relayfs_fuse.native.store import control_in_mount, control_in_store
from relayfs_fuse.reading.counting import count_events
from relayfs_fuse.reading.room import permit_many_files
from relayfs_fuse.reading.running import RunningProgram, running_programs
from relayfs_fuse.reading.source import find_mount, find_store
from relayfs_fuse.tracefiles.merged import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.native.trace import Process, Trace
    from relayfs_fuse.tracefiles.ctf import Declaration

# How many programs a line names; --json names all.
_PROGRAMS_MAX = 3
_SECONDS_MAX = 1_000_000
# The place of the counts in a line: behind the traces.
_COUNT_AT = 3
# By the name of a trace: the declarations whose events it got, and how many.
_Counts = dict[str, list[tuple["Declaration", int]]]


@dataclass
class _Event:
    """Declarations that are equal, whatever their ids.

    processes: the running programs that have it
    traces: those that take it
    count: how often it was written to the trace that got most of it; None: to none of the traces that were followed
    """

    declaration: Declaration
    processes: list[Process] = field(default_factory=list)
    traces: set[str] = field(default_factory=set)
    count: int | None = None


@click.command()
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@place_options
@json_option
@click.option(
    "--count", "seconds", type=click.IntRange(1, _SECONDS_MAX), metavar="SECONDS",
    help="Follow the traces for so long, and show how often each event is written.",
)  # fmt: skip
def events(
    patterns: tuple[str, ...], mount: str | None, store: str | None, json_wanted: bool, seconds: int | None
) -> None:
    """List the events of running programs, whether or not a trace takes them.

    A line is PROVIDER:NAME, the level, the traces that take it, with --count the number of times that it was written,
    the programs, where it is declared, and its fields.

    PATTERN is a glob of PROVIDER:NAME.
    """
    check_stdout()
    control_files = _control_files(mount, store)
    traces = all_traces(control_files[0])
    counts = {} if seconds is None else _count(find_store(mount, store), traces, patterns, seconds)
    programs = list(running_programs(control_files))
    found = _events(programs, traces, patterns, counts)
    unread = [program for program in programs if program.reason]
    if json_wanted:
        reasons = [{**_describe_process(one.process), "reason": one.reason} for one in unread]
        shown = [_describe(event) | ({} if seconds is None else {"count": event.count}) for event in found]
        click.echo(json.dumps({"events": shown, "unreadable": reasons}))
    else:
        titles, rows = ["EVENT", "LEVEL", "TRACES", "PROGRAMS", "DECLARED", "FIELDS"], [_row(event) for event in found]
        if seconds is not None:
            titles.insert(_COUNT_AT, "COUNT")
            for row, event in zip(rows, found, strict=True):
                row.insert(_COUNT_AT, "-" if event.count is None else str(event.count))
        show_table(titles, rows)
        for one in unread:
            say(f"the events of {_name(one.process)} cannot be read: {one.reason}")
    if not found:
        say("no running program has an event whose name matches" if patterns else "no running program has an event")
        sys.exit(NOTHING_MATCHES)


def _control_files(mount: str | None, store: str | None) -> list[str]:
    """Return the paths of the control file that this user may open; programs of other users map the mount's."""
    in_store = control_in_store(find_store(mount, store))
    place = None if store is not None else find_mount(mount)
    in_mount = [control_in_mount(place)] if place is not None else []
    return [path for path in (in_store, *in_mount) if os.access(path, os.R_OK)] or [in_store]


def _count(store: str, traces: Sequence[Trace], patterns: Sequence[str], seconds: int) -> _Counts:
    """Follow the traces for so long, or until ^C."""
    permit_many_files()
    boot = native_trace.boot_id()
    names = [trace.name for trace in traces if trace.is_started and trace.boot == boot]
    if not names:
        say("no trace is started, so that nothing is counted")
        return {}
    is_told_to_end = Event()
    before = signal.signal(signal.SIGINT, lambda *_: is_told_to_end.set())
    try:
        return count_events(store, names, patterns, seconds, say=say, is_told_to_end=is_told_to_end.is_set)
    finally:
        signal.signal(signal.SIGINT, before)


def _events(
    programs: Iterable[RunningProgram], traces: Sequence[Trace], patterns: Sequence[str], counts: _Counts
) -> list[_Event]:
    found: dict[object, _Event] = {}
    takes = {trace.name: native_trace.taker(trace) for trace in traces}
    for program in programs:
        for one in program.declarations:
            if not matches(one, patterns):
                continue
            event = found.setdefault(_key(one), _Event(one))
            if program.process not in event.processes[-1:]:
                event.processes.append(program.process)
            event.traces.update(name for name, is_taken in takes.items() if is_taken(program.process, one.name))
    for trace, counted in counts.items():
        n_of: Counter[object] = Counter()
        for one, n in counted:
            n_of[_key(one)] += n
            found.setdefault(_key(one), _Event(one)).traces.add(trace)
        for key, event in found.items():
            if trace in event.traces:
                event.count = max(event.count or 0, n_of[key])
    return sorted(found.values(), key=lambda event: (event.declaration.name, event.declaration.place))


def _key(declaration: Declaration) -> object:
    """Return what equal declarations have in common."""
    return declaration.name, declaration.place, declaration.level, declaration.fields


def _level(declaration: Declaration) -> str | None:
    return None if declaration.level is None else LEVELS[declaration.level]


def _name(process: Process) -> str:
    text = f"{process.name}-{process.pid}"
    return "".join(one if one.isprintable() and one not in " ," else "_" for one in text)


def _row(event: _Event) -> list[str]:
    names = [_name(process) for process in event.processes]
    more = [f"and {len(names) - _PROGRAMS_MAX} more"] if len(names) > _PROGRAMS_MAX else []
    return [
        event.declaration.name,
        _level(event.declaration) or "-",
        ",".join(sorted(event.traces)) or "-",
        ",".join(names[:_PROGRAMS_MAX] + more).replace(" ", "_"),
        event.declaration.place or "-",
        " ".join(f"{name}:{kind}" for name, kind in event.declaration.fields) or "-",
    ]


def _describe(event: _Event) -> dict[str, Any]:
    file, _, line = event.declaration.place.rpartition(":")
    return {
        "name": event.declaration.name,
        "level": _level(event.declaration),
        "file": file or None,
        "line": int(line) if line.isdecimal() else None,
        "fields": [{"name": name, "type": kind} for name, kind in event.declaration.fields],
        "traces": sorted(event.traces),
        "programs": [_describe_process(process) for process in event.processes],
    }


def _describe_process(process: Process) -> dict[str, Any]:
    name = process.name.encode(errors="surrogateescape").decode(errors="replace")
    return {"program": name, "pid": process.pid, "uid": process.uid}
