"""Events that programs have written for a trace before it was there ($RELAYFS_TRACE_EARLY) become part of it.

    STORE/.early/TRACE/PROCESS-PID/    made by the library as in a trace, but that its first line names no trace yet
    STORE/TRACE/PROCESS-PID/           the same after take(); its process, if that lives, writes on

What lies there waits for its trace also when the process and the server have ended.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayfs_fuse.native.trace import Trace

log = logging.getLogger(__name__)

EARLY_NAME = ".early"
# The first line of .events is no longer.
_LINE_BYTES = 1024
# Names that are tried for a directory whose own is taken.
_MAX_TRIES = 10000


def take(store: str, trace: Trace) -> None:
    """Move what waits for a trace into its directory; blocks."""
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
    # What programs have noted of directories that gave way (native/src/trace/memory.c).
    with suppress(OSError):
        os.rename(os.path.join(early, ".given-up"), os.path.join(store, trace.name, ".given-up"))
    with suppress(OSError):  # a process is making its directory there
        os.rmdir(early)


def _move(directory: str, to: str, name: str, trace: Trace) -> None:
    _set_trace(os.path.join(directory, ".events"), trace)
    for number in range(1, _MAX_TRIES):
        try:
            os.rename(directory, os.path.join(to, name if number == 1 else f"{name}-{number}"))
        except OSError as error:
            # A process's directory is never empty, so it is not replaced.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return


def _set_trace(path: str, trace: Trace) -> None:
    """Write the trace's id and clocks into the first line, which has room for them; its process only appends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        line = os.pread(descriptor, _LINE_BYTES, 0).partition(b"\n")[0]
        made = trace.made
        for key, number in (("id", trace.id), ("tsc", made.tsc), ("mono", made.mono_ns), ("real", made.real_ns)):
            line = re.sub(rb" %s=\d{20} " % key.encode(), b" %s=%020d " % (key.encode(), number), line, count=1)
        os.pwrite(descriptor, line, 0)
    finally:
        os.close(descriptor)
