"""Jobs on the directories of traces: flushing and removing them. All of these functions may block."""

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

# How long a command waits for a job, which a stopped or hostile process can delay by the lock of a buffer. After that
# time the job goes on in its thread.
TIMEOUT_S = 5.0
# How long `trace remove` waits for the recorder of the trace to end, and the pause between two checks.
RECORDER_S, RECORDER_PAUSE_S = 10.0, 0.02
# How many buffers of traced processes are looked at each second for what they have lost. A look takes 0.05 ms.
LOOKS_MAX = 64
# How old a hidden directory must be before sweep() removes it.
STALE_S = 10.0


def call_with_timeout(job: Callable[[], object], what: str) -> None:
    """Call a job in a thread of its own, and wait for it for at most TIMEOUT_S seconds.

    what: the thread's name, for the log
    """
    thread = threading.Thread(target=job, name=what, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if thread.is_alive():
        log.info("%s: a program holds the lock of a buffer; the job goes on in its thread", what)


def each_cpu() -> Iterator[int]:
    """Move the calling thread to each possible CPU in turn, and yield the number of the CPU.

    A buffer is best flushed on its own CPU. This way all buffers of one CPU are handled at a time.
    """
    before = os.sched_getaffinity(0)
    try:
        for cpu in range(native.n_possible_cpus()):
            if cpu in before:
                with contextlib.suppress(OSError):  # the CPU is offline now
                    os.sched_setaffinity(0, {cpu})
            yield cpu
    finally:
        os.sched_setaffinity(0, before)


def attempt(job: Callable[[], object]) -> None:
    """Call a job and log its exception, if any, so that the caller can go on with the next job."""
    try:
        job()
    except OSError as error:
        log.info("traces: %s", error)
    except Exception:
        log.exception("traces")


def flush(processes: Sequence[TraceProcess]) -> None:
    """Flush the buffers of processes, each on its CPU."""
    for cpu in each_cpu() if processes else ():
        for process in processes:
            attempt(partial(process.flush, cpu))


class Looks:
    """Looks for losses in the buffers of processes, LOOKS_MAX at a time, one after the other."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, processes: Sequence[TraceProcess]) -> None:
        """Look at the next buffers."""
        n_cpus = native.n_possible_cpus()
        n_buffers = len(processes) * n_cpus
        for number in range(self._next, self._next + min(LOOKS_MAX, n_buffers)):
            process = processes[number // n_cpus % len(processes)]
            with contextlib.suppress(OSError):  # it is being removed, or damaged, which others report
                process.look_for_losses(number % n_cpus)
        self._next = (self._next + LOOKS_MAX) % n_buffers if n_buffers > LOOKS_MAX else 0


def await_recorder(directory: str) -> bool:
    """Wait, at most RECORDER_S seconds, until no recorder holds the trace's lock; return whether none does."""
    deadline = time.monotonic() + RECORDER_S
    while recorder_lock.holder(directory) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(RECORDER_PAUSE_S)
    return True


def delete_trace(directory: str, unread: dict[str, int]) -> None:
    """Remove a trace's directory, and mark its buffers as closed, which stops the processes that write to them.

    unread: receives the number of unread events by process, if it is not 0
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
    """Return the message about events that a recorder has not recorded of a removed trace.

    unread: the number of unread events by process
    waits: names the recorder, if it has not ended; "": it has
    """
    events = f"{sum(unread.values())} events"
    if unread:
        events += f" of {', '.join(sorted(unread)[:8])}"
    if waits:
        return f"its recorder ({waits}) did not end within {RECORDER_S:g} s; {events} were unread, and may be lost"
    return f"{events} that its recorder left in the buffers are lost"


def _remove_process(directory: str) -> int:
    """Remove a process's directory, and close its buffers; return the number of events that are unread then."""
    with contextlib.ExitStack() as stack:
        buffers = []
        for cpu in range(native.n_possible_cpus()):
            with contextlib.suppress(OSError):  # the buffer is damaged
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


def remove_consumed(dead: Sequence[tuple[TraceProcess, Trace]]) -> None:
    """Finish the buffers of dead processes, and remove the directories in which nothing is left to be read."""
    for process, _ in dead:
        process.seems_dead = True
    for cpu in each_cpu() if dead else ():
        for process, trace in dead:
            attempt(partial(process.finish, cpu, trace.buffers == native_trace.BUFFERS_PERPROCESS))
    for process, trace in dead:
        try:
            is_consumed = process.is_consumed(trace.mode == native.MODE_OVERWRITE)
            if is_consumed and not process.awaits_card and not _has_damage_to_record(process):
                native_trace.trace_remove_dead(process.directory)
        except OSError as error:
            # The directory is gone already, or another process has joined it.
            log.debug("%s: %s", process.directory, error)


def _has_damage_to_record(process: TraceProcess) -> bool:
    return process.has_recent_damage() and recorder_lock.holder(os.path.dirname(process.directory)) is not None


def sweep(directory: str) -> None:
    """Remove hidden directories older than STALE_S whose process is dead: it died while it made or removed them."""
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
    """Return a message for each directory that programs have removed because memory= of the trace was used up.

    Programs write these to .given-up (native/src/trace/memory.c); each one is returned once.
    """
    path, taken = os.path.join(directory, ".given-up"), os.path.join(directory, ".given-up-taken")
    try:
        # A program that has the file open still writes to it, so it is read at the next call.
        if not os.path.exists(taken):
            os.rename(path, taken)
            return []
        with open(taken, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
        os.unlink(taken)
    except OSError:
        return []
    return [
        f"{name} had ended, and was removed with {records} unread events, because memory= is used up"
        for name, _, records in (line.partition(" ") for line in lines)
    ]
