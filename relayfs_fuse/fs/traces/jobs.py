"""What is done to the directories of traces in worker threads, where it may take long."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.fs.protection import delete
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.tracefiles import recorder_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.fs.traces.process import TraceProcess
    from relayfs_fuse.native.trace import Trace

log = logging.getLogger(__name__)

# How long a command waits for a job on buffers that a stopped or hostile process holds; the job then goes on in its
# thread.
PATIENCE_S = 5.0
# What `trace remove` waits for the recorder of the trace to write all that there is, and how often it looks.
RECORDER_S, RECORDER_PAUSE_S = 10.0, 0.02
# How old a hidden directory must be before sweep() removes it.
STALE_S = 10.0


def patiently(job: Callable[[], object], what: str) -> None:
    """Do a job that a hostile process may hold up; wait for it, but not for ever."""
    thread = threading.Thread(target=job, name=what, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        log.info("%s: somebody holds it up; it goes on behind the scenes", what)


def visits() -> Iterator[int]:
    """Move the calling thread to each CPU in turn, so that all buffers of one CPU are handled in one visit."""
    before = os.sched_getaffinity(0)
    try:
        for cpu in range(native.n_possible_cpus()):
            if cpu in before:
                with contextlib.suppress(OSError):  # it has been taken away
                    os.sched_setaffinity(0, {cpu})
            yield cpu
    finally:
        os.sched_setaffinity(0, before)


def attempt(job: Callable[[], object]) -> None:
    """Do one of several jobs: the others are done, too, if it fails."""
    try:
        job()
    except OSError as error:
        log.info("traces: %s", error)
    except Exception:
        log.exception("traces")


def flush(processes: Sequence[TraceProcess]) -> None:
    """Flush the buffers of processes, each on its CPU."""
    for cpu in visits() if processes else ():
        for process in processes:
            attempt(partial(process.flush, cpu))


def await_recorder(directory: str) -> bool:
    """Wait, at most RECORDER_S seconds, until no recorder holds the trace's lock; return whether none does."""
    deadline = time.monotonic() + RECORDER_S
    while recorder_lock.holder(directory) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(RECORDER_PAUSE_S)
    return True


def delete_trace(directory: str, unread: dict[str, int]) -> None:
    """Remove a trace's directory; who still writes finds the buffers closed.

    unread: receives, by process, how many events nobody has read, of those that have some
    """
    with os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in paths:
        n = _remove_process(path)
        if n:
            unread[os.path.basename(path)] = n
    with contextlib.suppress(OSError):
        delete(directory)


def not_recorded(unread: dict[str, int], waits: str) -> str:
    """Say what a recorder has not written of a trace that is gone.

    waits: which one has not even ended; empty: it has
    """
    events = f"{sum(unread.values())} events"
    if unread:
        events += f" of {', '.join(sorted(unread)[:8])}"
    if waits:
        return f"its recorder ({waits}) did not end within {RECORDER_S:g} s; {events} were unread, and may be lost"
    return f"{events} are lost, which its recorder left in the buffers"


def _remove_process(directory: str) -> int:
    """Remove a process's directory; return how many events are unread once nobody writes there any more."""
    with contextlib.ExitStack() as stack:
        buffers = []
        for cpu in range(native.n_possible_cpus()):
            with contextlib.suppress(OSError):  # it is damaged
                buffers.append(stack.enter_context(contextlib.closing(
                    native.Buffer(os.path.join(directory, f"cpu/mem{cpu}"))
                )))  # fmt: skip
        try:
            native_trace.trace_remove(directory)
        except OSError as error:
            if error.errno != errno.ENOENT:
                log.info("%s cannot be removed: %s", directory, error.strerror)
        return sum(map(_n_unread, buffers))


def _n_unread(buffer: native.Buffer) -> int:
    try:
        return buffer.stats().unread_records
    except OSError:
        return 0  # damaged


def remove_what_is_over(dead: Sequence[tuple[TraceProcess, Trace]]) -> None:
    """Finish what dead processes have written, and remove the directories of which all has been read."""
    for cpu in visits() if dead else ():
        for process, trace in dead:
            attempt(partial(process.finish, cpu, trace.buffers == native_trace.BUFFERS_PERPROCESS))
    for process, trace in dead:
        try:
            if process.is_over(trace.mode == native.MODE_OVERWRITE) and not _is_to_be_recorded(process):
                native_trace.trace_remove_dead(process.directory)
        except OSError as error:
            # Gone already, or another process takes part in it by now.
            log.debug("%s: %s", process.directory, error)


def _is_to_be_recorded(process: TraceProcess) -> bool:
    return process.is_to_be_seen() and recorder_lock.holder(os.path.dirname(process.directory)) is not None


def sweep(directory: str) -> None:
    """Remove hidden directories, half made or half removed, that are older than STALE_S and whose process is dead."""
    try:
        with os.scandir(directory) as entries:
            hidden = [entry for entry in entries if entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
        for entry in hidden:
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if age > STALE_S and not native_trace.trace_is_alive(entry.path):
                with contextlib.suppress(OSError):
                    delete(entry.path)
    except OSError as error:
        log.debug("%s: %s", directory, error)


def read_given_up(directory: str) -> list[str]:
    """Return, once, what programs have noted of directories that gave way (native/src/trace/memory.c)."""
    path, taken = os.path.join(directory, ".given-up"), os.path.join(directory, ".given-up-taken")
    try:
        # Who has it open at this moment still writes to it, so it is read a while later.
        if not os.path.exists(taken):
            os.rename(path, taken)
            return []
        with open(taken, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
        os.unlink(taken)
    except OSError:
        return []
    return [
        f"{name} has ended and gave way to others, with {records} events that nobody had read: memory= is used up"
        for name, _, records in (line.partition(" ") for line in lines)
    ]
