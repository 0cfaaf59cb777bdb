"""Checking the pattern and the condition of `trace enable` against the events that programs have declared so far."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.commands import condition
from relayfs_fuse.native import trace as native_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from relayfs_fuse.fs.commands.trace_control import TraceCommand
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.traces.process import TraceProcess
    from relayfs_fuse.native.trace import Trace

log = logging.getLogger(__name__)

# How many processes are checked, and how many bytes of each one's `.events`. That is enough for a notice to the user,
# which says so, because an event that is not checked may be taken.
PROCESSES_MAX = 16
EVENTS_MAX = 64 << 10
_CHECKED = f"checked are {PROCESSES_MAX} processes at most, and {EVENTS_MAX >> 10} KiB of each one's declarations"


def notice_nothing_taken(
    command: TraceCommand, trace: Trace, processes: Iterable[TraceProcess], errors: ErrorLog
) -> Generator[Callable[[], Any], Any, None]:
    """Note in error_log if the pattern of an `enable` matches no event that is checked, or its condition takes none.

    Yields a job, as commands/channel.py explains.
    """
    some = list(islice(processes, PROCESSES_MAX))
    if command.action != "enable" or not some:
        return
    found: tuple[str, str] | None = yield lambda: _why_none(command, trace, some)
    if found:
        key, message = found
        # A pattern may well be for programs that start later.
        level = logging.INFO if key == "glob" else logging.WARNING
        log.log(level, "%s", errors.notice(command.line, message, command.columns[key]))


def _why_none(command: TraceCommand, trace: Trace, processes: Iterable[TraceProcess]) -> tuple[str, str] | None:
    """Return the word of the command because of which no event is taken, and why."""
    declared = [one for process in processes for one in process.declarations(EVENTS_MAX)]
    # As programs match it: fnmatch(3) and Python's fnmatch differ.
    of_pattern = replace(trace, is_started=True, filter="", rules=f"+{command.glob}\n", conditions=b"")
    takes, nobody = native_trace.taker(of_pattern), native_trace.Process("", 0, 0, 0, 0)
    named = [one for one in declared if takes(nobody, one.name)]
    if declared and not named:
        return "glob", (
            f"no event declared so far in the traces of this mount ({_CHECKED}) matches {command.glob!r}; "
            "relayctl events lists those of running programs"
        )
    reason = condition.unmet_by_all(command.condition, named) if command.condition else None
    return ("condition", f"of the events declared so far ({_CHECKED}) none can be taken: {reason}") if reason else None
