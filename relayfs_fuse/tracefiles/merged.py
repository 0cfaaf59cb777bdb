"""Merge what a recording holds: see native.merge."""

from __future__ import annotations

import os
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

from relayfs_fuse.native.merge import CAUSES, EVER, NO_CPU, UNKNOWN, EventKind, Loss, Merge, MergedProcess
from relayfs_fuse.tracefiles.ctf import NS
from relayfs_fuse.tracefiles.losses import NO_BUFFER
from relayfs_fuse.tracefiles.streams import stream_name
from relayfs_fuse.tracefiles.thread_names import THREADS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relayfs_fuse.tracefiles.ctf import Declaration
    from relayfs_fuse.tracefiles.hosts import Hosts
    from relayfs_fuse.tracefiles.losses import Interval
    from relayfs_fuse.tracefiles.recorded import Part
    from relayfs_fuse.tracefiles.thread_names import Names
    from relayfs_fuse.tracefiles.time_line import HostClock


def merge(
    parts: Sequence[Part], patterns: Sequence[str] = (), since: int = 0, until: int = EVER, condition: bytes = b""
) -> Merge:
    """Merge the streams of parts of a recording, or of those of several machines.

    patterns: globs of PROVIDER:NAME, one of which must match; empty: all events are wanted
    since, until, condition: as for Merge
    """
    merged = Merge(since, until, condition)
    # The last directory of a process has all intervals.
    known = {(part.host, part.origin.line): part.losses for part in parts if part.losses}
    identities = identities_of(parts)
    try:
        hosts = {"": 0, **{clock.name: add_host(merged, clock) for clock in _clocks_of(parts)}}
        for part, identity, names in zip(parts, identities, thread_names_of(parts), strict=True):
            losses = losses_of(known.get((part.host, part.origin.line), {}))
            process = replace(process_of(part, identity, patterns), host=hosts[part.host])
            for number in add_part(merged, part, process, losses):
                for (vpid, tid), name in names.items():
                    merged.name_thread(number, process.pid or vpid, tid, name)
        _add_lost(merged, parts, hosts, len(identities))
    except BaseException:
        merged.close()
        raise
    return merged


def add_part(merged: Merge, part: Part, process: MergedProcess, losses: Sequence[Loss]) -> list[int]:
    """Add a part; return its numbers in the merge, one for each stretch of its times.

    process: without a stretch
    losses: why events were lost that are missing in it
    """
    numbers = []
    for stretch in part.stretches or (None,):
        numbers.append(merged.add_process(replace(process, stretch=stretch)))
        merged.explain(numbers[-1], losses)
        for cpu, paths in part.streams.items():
            merged.add_files(numbers[-1], cpu, paths)
    return numbers


def losses_of(losses: Mapping[str, Sequence[Interval]]) -> list[Loss]:
    """Return why events were lost that are missing in a part."""
    return [
        Loss(one.since_ns, one.until_ns, one.n_records, CAUSES.get(one.cause, 0), int(buffer))
        for buffer, intervals in losses.items()
        if buffer.isdecimal() and int(buffer) < NO_CPU
        for one in intervals
    ]


def _add_lost(merged: Merge, parts: Sequence[Part], hosts: Mapping[str, int], first: int) -> None:
    """Add what programs have lost because they got no buffers.

    Of each trace of each machine, the part that was written last knows most of it.

    hosts: the numbers of the machines, by name
    first: the first MergedProcess.identity that no part has
    """
    newest: dict[tuple[str, str], Part] = {}
    for part in sorted(parts, key=lambda part: part.changed_ns):
        newest[part.host, part.origin.trace] = part
    for identity, part in enumerate(newest.values(), first):
        intervals = part.losses.get(NO_BUFFER)
        if not intervals:
            continue
        process = MergedProcess(part.origin.trace, 0, identity, (), (NS, 0, 0), (), host=hosts[part.host])
        number = merged.add_process(process)
        merged.add_lost(number, unbuffered_losses(part.origin.real, intervals))


def unbuffered_losses(begin: int, intervals: Sequence[Interval]) -> list[Loss]:
    """Return losses of programs that got no buffers, for Merge.add_lost().

    begin: when the trace was made
    """
    losses = [
        Loss(max(begin, one.since_ns), one.until_ns, one.n_records, CAUSES.get(one.cause, 0)) for one in intervals
    ]
    return sorted(losses, key=lambda loss: loss.until)


def identities_of(parts: Sequence[Part]) -> list[int]:
    """Return the MergedProcess.identity of each part.

    In a rotated recording, several directories can each have a part of the same process.
    """
    found: dict[tuple[str, str], int] = {}
    return [found.setdefault((part.host, part.origin.line), len(found)) for part in parts]


def _clocks_of(parts: Sequence[Part]) -> list[HostClock]:
    found = {part.host_clock.name: part.host_clock for part in parts if part.host_clock}
    return [found[name] for name in sorted(found)]


def add_host(merged: Merge, clock: HostClock) -> int:
    """Add a machine; return its number."""
    errors = (clock.max_error, clock.est_error) if clock.is_known else (UNKNOWN, UNKNOWN)
    return merged.add_host(clock.name, *errors)


def unread(merged: Merge, recording: Hosts) -> str | None:
    """Say which stream of a recording could not be read to its end, by its path in the recording; None: all were.

    Of several recordings: also which one could not be read at all.
    """
    if recording.unread:
        return "; ".join(recording.unread)
    error = -merged.stats().error
    for number, part in enumerate(one for one in recording.parts for _ in one.stretches or (None,)):
        stats = merged.process_stats(number)
        if stats.error:
            path = os.path.relpath(os.path.join(part.path, stream_name(stats.cpu)), recording.directory)
            return f"{path} cannot be read: {os.strerror(-stats.error)}"
    return f"its events cannot be read: {os.strerror(error)}" if error else None


def thread_names_of(parts: Sequence[Part]) -> list[Names]:
    """Return the names of threads to give to each part, at most THREADS_MAX.

    These are the part's own ones, and those of later parts of the process: the recorder sees a thread's name some time
    after the thread's first event.
    """
    later: dict[tuple[str, str], Names] = {}
    found = []
    for part in reversed(parts):
        own, line = part.threads, (part.host, part.origin.line)
        later[line] = dict(islice((own | later.get(line, {}) | own).items(), THREADS_MAX))
        found.append(later[line])
    return found[::-1]


def matches(declaration: Declaration, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns matches an event's name, or there are no patterns."""
    return not patterns or any(fnmatchcase(declaration.name, pattern) for pattern in patterns)


def kinds_of(declarations: Iterable[Declaration], patterns: Sequence[str]) -> list[EventKind]:
    """Return the EventKinds of declarations; those that match the patterns are wanted."""
    return [EventKind(one.id, one.name, one.fields, matches(one, patterns), one.level) for one in declarations]


def process_of(part: Part, identity: int, patterns: Sequence[str]) -> MergedProcess:
    """Return the MergedProcess of a part."""
    origin, clock = part.origin, part.clock
    # In shared buffers each event has the number of its process, in the process's own PID namespace.
    pid = origin.pid if origin.buffers == "perprocess" else 0
    ticks = clock.freq, clock.offset_s, clock.offset
    kinds = kinds_of(part.declarations, patterns)
    return MergedProcess(origin.process, pid, identity, part.context, ticks, kinds)
