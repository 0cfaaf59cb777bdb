"""Checking the condition of `trace enable` against the events that programs have declared so far."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.commands import condition
from relayfs_fuse.tracefiles.merged import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from relayfs_fuse.fs.commands.trace_control import TraceCommand
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.traces.process import TraceProcess

log = logging.getLogger(__name__)

# How many processes are checked, and how many bytes of each one's `.events`. That is enough for a notice to the user,
# which says so, because an event that is not checked may meet the condition.
PROCESSES_MAX = 16
EVENTS_MAX = 64 << 10


def notice_unmet(
    command: TraceCommand, processes: Iterable[TraceProcess], errors: ErrorLog
) -> Generator[Callable[[], Any], Any, None]:
    """Note in error_log if the condition of an `enable` leaves out all events that match and are checked.

    Yields a job, as commands/channel.py explains.
    """
    if command.condition:
        some = list(islice(processes, PROCESSES_MAX))
        message: str | None = yield lambda: _unmet(command, some)
        if message:
            log.warning("%s", errors.notice(command.line, message, command.columns["condition"]))


def _unmet(command: TraceCommand, processes: Iterable[TraceProcess]) -> str | None:
    declarations = (one for process in processes for one in process.declarations(EVENTS_MAX))
    named = (one for one in declarations if matches(one, [command.glob]))
    reason = condition.unmet_by_all(command.condition, named)
    return reason and (
        f"of the events declared so far (checked are {PROCESSES_MAX} processes at most, and {EVENTS_MAX >> 10} KiB of "
        f"each one's declarations) none can be taken: {reason}"
    )
