"""Merge what a recording holds: see native.merge."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

from relayfs_fuse.native.merge import CAUSES, EVER, NO_CPU, EventKind, Loss, Merge, MergedProcess
from relayfs_fuse.tracefiles.ctf import NS
from relayfs_fuse.tracefiles.losses import NO_BUFFER
from relayfs_fuse.tracefiles.streams import stream_name
from relayfs_fuse.tracefiles.thread_names import THREADS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relayfs_fuse.tracefiles.ctf import Declaration
    from relayfs_fuse.tracefiles.losses import Interval
    from relayfs_fuse.tracefiles.recorded import Part, Recording
    from relayfs_fuse.tracefiles.thread_names import Names


def merge(
    parts: Sequence[Part], patterns: Sequence[str] = (), since: int = 0, until: int = EVER, condition: bytes = b""
) -> Merge:
    """Merge the streams of parts of a recording.

    patterns: globs of PROVIDER:NAME, one of which must match; empty: all events are wanted
    since, until, condition: as for Merge
    """
    merged = Merge(since, until, condition)
    # In a rotated recording, several directories can each have a part of the same process.
    identities: dict[str, int] = {}
    # The last directory of a process has all intervals.
    known = {part.origin.line: part.losses for part in parts if part.losses}
    try:
        for part, names in zip(parts, thread_names_of(parts), strict=True):
            identity = identities.setdefault(part.origin.line, len(identities))
            process = process_of(part, identity, patterns)
            number = merged.add_process(process)
            for (vpid, tid), name in names.items():
                merged.name_thread(number, process.pid or vpid, tid, name)
            merged.explain(number, _losses_of(known.get(part.origin.line, {})))
            for cpu, paths in part.streams.items():
                merged.add_files(number, cpu, paths)
        _add_lost(merged, parts, len(identities))
    except BaseException:
        merged.close()
        raise
    return merged


def _losses_of(losses: Mapping[str, Sequence[Interval]]) -> list[Loss]:
    """Return why events were lost that are missing in a part."""
    return [
        Loss(one.since_ns, one.until_ns, one.n_records, CAUSES.get(one.cause, 0), int(buffer))
        for buffer, intervals in losses.items()
        if buffer.isdecimal() and int(buffer) < NO_CPU
        for one in intervals
    ]


def _add_lost(merged: Merge, parts: Sequence[Part], identity: int) -> None:
    """Add what programs have lost because they got no buffers; the part that was written last knows most of it."""
    newest = max(parts, key=lambda part: part.changed_ns)
    intervals = newest.losses.get(NO_BUFFER)
    if not intervals:
        return
    number = merged.add_process(MergedProcess(newest.origin.trace, 0, identity, (), (NS, 0, 0), ()))
    begin = newest.origin.real
    losses = [
        Loss(max(begin, one.since_ns), one.until_ns, one.n_records, CAUSES.get(one.cause, 0)) for one in intervals
    ]
    merged.add_lost(number, sorted(losses, key=lambda loss: loss.until))


def unread(merged: Merge, recording: Recording) -> str | None:
    """Say which stream of a recording could not be read to its end, by its path in the recording; None: all were."""
    error = -merged.stats().error
    for number, part in enumerate(recording.parts):
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
    later: dict[str, Names] = {}
    found = []
    for part in reversed(parts):
        own, line = part.threads, part.origin.line
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
