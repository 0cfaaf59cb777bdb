"""Early events: those that programs have written for a trace before it existed ($RELAYFS_TRACE_EARLY).

    STORE/.early/TRACE/PROCESS-PID/    a process's directory, as in a trace, but the first line of its .events has no id
                                       of a trace yet
    STORE/TRACE/PROCESS-PID/           the same directory after take(); if the process lives, it goes on writing

The directories in .early stay there until a trace of that name is made, also when the process and the server end.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from relayfs_fuse.native.trace import Trace

log = logging.getLogger(__name__)

EARLY_NAME = ".early"
# The number of names that are tried for a directory whose name is taken in the trace.
_MAX_TRIES = 10000


def take(store: str, trace: Trace) -> None:
    """Move the directories of early events into their trace's directory; blocks. Failures are logged."""
    early = os.path.join(store, EARLY_NAME, trace.name)
    try:
        names = sorted(name for name in os.listdir(early) if not name.startswith("."))
    except OSError:
        return
    for name in names:
        try:
            _move(os.path.join(early, name), os.path.join(store, trace.name), name, trace)
        except OSError as error:
            log.info("%s/%s stays where it is: %s", early, name, error)
    # Notes of programs about directories that they removed because memory was used up (native/src/trace/memory.c).
    with suppress(OSError):
        os.rename(os.path.join(early, ".given-up"), os.path.join(store, trace.name, ".given-up"))
    with suppress(OSError):  # fails if a process is making a directory there
        os.rmdir(early)


def _move(directory: str, to: str, name: str, trace: Trace) -> None:
    _set_trace(os.path.join(directory, ".events"), trace)
    for number in range(1, _MAX_TRIES):
        try:
            os.rename(directory, os.path.join(to, name if number == 1 else f"{name}-{number}"))
        except OSError as error:
            # rename(2) replaces only empty directories, and a process's directory never is.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return


def _set_trace(path: str, trace: Trace) -> None:
    """Write the trace's id and clocks into the first line of .events, in place; processes only append to the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        line = os.pread(descriptor, ctf.LINE_BYTES, 0).partition(b"\n")[0]
        made = trace.made
        for key, number in (("id", trace.id), ("tsc", made.ticks), ("mono", made.mono_ns), ("real", made.real_ns)):
            line = re.sub(rb" %s=\d{20} " % key.encode(), b" %s=%020d " % (key.encode(), number), line, count=1)
        os.pwrite(descriptor, line, 0)
    finally:
        os.close(descriptor)
