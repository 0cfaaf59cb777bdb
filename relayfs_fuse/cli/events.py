"""relayctl events: the events that running programs could write, and the traces that take them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli.common import (
    NOTHING_MATCHES,
    check_stdout,
    json_option,
    mount_option,
    say,
    show_table,
    store_option,
)
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.events import LEVELS
from relayfs_fuse.reading.running import RunningProgram, running_programs
from relayfs_fuse.reading.source import find_mount, find_store
from relayfs_fuse.tracefiles.merged import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relayfs_fuse.native.trace import Process, Trace
    from relayfs_fuse.tracefiles.ctf import Declaration

# How many programs a line names; --json names all.
_PROGRAMS_MAX = 3


@dataclass
class _Event:
    """Declarations of running programs that are equal, whatever their ids."""

    declaration: Declaration
    processes: list[Process] = field(default_factory=list)
    traces: set[str] = field(default_factory=set)


@click.command()
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@mount_option
@store_option
@json_option
def events(patterns: tuple[str, ...], mount: str | None, store: str | None, json_wanted: bool) -> None:
    """List the events of running programs, whether or not a trace takes them.

    A line is PROVIDER:NAME, the level, the traces that take it, the programs, where it is declared, and its fields.

    PATTERN is a glob of PROVIDER:NAME.
    """
    check_stdout()
    control_files = _control_files(mount, store)
    with closing(native_trace.Traces(control_files[0])) as control:
        traces = sorted(control.all().values(), key=lambda trace: trace.name)
    programs = list(running_programs(control_files))
    found = _events(programs, traces, patterns)
    unread = [program for program in programs if program.reason]
    if json_wanted:
        reasons = [{**_describe_process(one.process), "reason": one.reason} for one in unread]
        click.echo(json.dumps({"events": [_describe(event) for event in found], "unreadable": reasons}))
    else:
        show_table(["EVENT", "LEVEL", "TRACES", "PROGRAMS", "DECLARED", "FIELDS"], [_row(event) for event in found])
        for one in unread:
            say(f"the events of {_name(one.process)} cannot be read: {one.reason}")
    if not found:
        say("no running program has an event whose name matches" if patterns else "no running program has an event")
        sys.exit(NOTHING_MATCHES)


def _control_files(mount: str | None, store: str | None) -> list[str]:
    """Return the paths of the control file that this user may open; programs of other users map the mount's."""
    in_store = os.path.join(find_store(mount, store), ".traces")
    place = None if store is not None else find_mount(mount)
    in_mount = [os.path.join(place, ".traces", "control")] if place is not None else []
    return [path for path in (in_store, *in_mount) if os.access(path, os.R_OK)] or [in_store]


def _events(programs: Iterable[RunningProgram], traces: Sequence[Trace], patterns: Sequence[str]) -> list[_Event]:
    found: dict[object, _Event] = {}
    takes = {trace.name: native_trace.taker(trace) for trace in traces}
    for program in programs:
        for one in program.declarations:
            if not matches(one, patterns):
                continue
            event = found.setdefault((one.name, one.place, one.level, one.fields), _Event(one))
            if program.process not in event.processes[-1:]:
                event.processes.append(program.process)
            event.traces.update(name for name, is_taken in takes.items() if is_taken(program.process, one.name))
    return sorted(found.values(), key=lambda event: (event.declaration.name, event.declaration.place))


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
