"""Counts of the events that programs have lost because they could get no buffers of a trace.

Programs count in files of the store, STORE/.traces-lost for trusted users and STORE/.traces-lost-UID for each other
user (native/src/trace/lost.c). They map these files through the mount, at .traces/lost.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.kinds.base import Backing
from relayfs_fuse.fs.nodes import TextFile
from relayfs_fuse.fs.store import LOST_NAME
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import losses

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.handles import TextHandle
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.native.trace import Trace
    from relayfs_fuse.tracefiles.ctf import Unbuffered

log = logging.getLogger(__name__)


class Losses:
    """The files of counts, and the messages about them.

    store: the store's directory
    control: the control file of its traces
    errors: error_log, which gets the messages
    """

    def __init__(self, store: str, control: native_trace.Traces, errors: ErrorLog) -> None:
        self._store = store
        self._control = control
        self._errors = errors
        # By the trace's id and the user (None: all trusted users), the number of lost events in the last message.
        self._reported: dict[tuple[int, int | None], int] = {}
        self._by_user: dict[int, dict[int, int]] = {}
        self._counted_ns = 0  # before that was read, by CLOCK_REALTIME
        self._files: dict[int, Backing] = {}
        # By the trace's id: its name, and when it has lost events.
        self._intervals: dict[int, tuple[str, losses.Intervals]] = {}

    def close(self) -> None:
        """Close the files."""
        for backing in self._files.values():
            os.close(backing.descriptor)

    def file(self, uid: int) -> Backing:
        """Return the file in which the programs of a user count, and make it if it is missing; OSError."""
        backing = self._files.get(uid)
        if backing is None:
            is_own = uid in (0, os.geteuid())
            path = os.path.join(self._store, LOST_NAME if is_own else f"{LOST_NAME}-{uid}")
            descriptor = native.file_open(path) if is_own else os.dup(self._control.lost_file(uid))
            backing = self._files[uid] = Backing(descriptor, path, is_writable=True)
        return backing

    def count(self) -> None:
        """Read the files of users who are not trusted; blocks."""
        asked_ns = time.time_ns()
        self._by_user = native_trace.lost_by_user(self._store)
        self._counted_ns = asked_ns

    def of(self, trace: Trace | None) -> Unbuffered:
        """Return the numbers of lost events of a trace, of trusted and of other users; (0, 0) if there is no trace."""
        return (0, 0) if trace is None else (self._control.lost(trace), sum(self._by_user.get(trace.id, {}).values()))

    def text(self) -> bytes:
        """Return the text of .traces/losses: as .channels/PATH/losses, with the name of a trace for a buffer."""
        return losses.text(line for name, one in self._intervals.values() for line in one.lines(name))

    def look(self, trace: Trace) -> None:
        """Note how many events of a trace were lost since the last look, because programs got no buffers."""
        asked_ns = self._counted_ns or time.time_ns()
        counts: dict[str, tuple[int, int | None]] = {"no_buffers": (sum(self.of(trace)), None)}
        # Programs that get buffers in the end count there what they have lost before.
        self._intervals.setdefault(trace.id, (trace.name, losses.Intervals()))[1].look(
            counts, asked_ns, begins_anew=False
        )

    def report(self, trace: Trace) -> None:
        """Write the number of lost events to error_log and the log if it is over ten times the one written last."""
        for uid, lost in [(None, self._control.lost(trace)), *self._by_user.get(trace.id, {}).items()]:
            if lost <= 10 * self._reported.get((trace.id, uid), 0):
                continue
            self._reported[trace.id, uid] = lost
            who = "programs" if uid is None else f"programs of user {uid}"
            message = f"{who} could get no buffers, and have lost {lost} events; see relayctl stat {trace.name}"
            log.info("%s", self._errors.notice(f"trace start {trace.name}", message))

    def forget(self, trace: int) -> None:
        """Forget a trace that was removed, and which messages were written: one about another trace may come again."""
        self._intervals.pop(trace, None)
        self._reported.clear()


class LostFile(TextFile):
    """The file .traces/lost, which programs map to count lost events; each user sees a file of the store of his own.

    file_of: returns the file of a user
    """

    LENGTH = 4096
    mode = 0o666
    has_views = True

    def __init__(self, name: str, file_of: Callable[[int], Backing]) -> None:
        super().__init__(name, bytes, lambda: self.LENGTH)
        self._file_of = file_of

    def open(self, opening: Opening) -> TextHandle:
        """Open the file with O_RDWR; OSError: EACCES for any other access."""
        if opening.truncates or not opening.is_for_both:
            raise failure(errno.EACCES)
        return super().open(opening)

    def mapped(self) -> Backing:
        """Return the file of the user to whom this node is shown."""
        return self._file_of(self.view_of[1] if self.view_of else os.geteuid())
