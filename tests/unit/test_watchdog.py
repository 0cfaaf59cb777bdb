"""When a watchdog takes a process for stuck whose heartbeat stands still: what counts, and what does not."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relayfs_fuse.cli.watchdog import Watchdog
from relayfs_fuse.fs.heartbeat import Heartbeat

COMPUTES = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
_PTRACE_TRACEME = 0
_libc = ctypes.CDLL(None)


def looks(process: int, n: int, limit_s: float = 1.0) -> list[str]:
    """Have a watchdog look n times at a process, or until it finds it stuck; return what it says."""
    heartbeat = Heartbeat()
    watchdog = Watchdog(heartbeat, limit_s)
    watchdog.begin(process)
    heartbeat.beat()
    for _ in range(n):
        time.sleep(watchdog.wait_s() or 0)
        found = watchdog.look()
        if found:
            return found
    return []


@contextmanager
def computing(*idle: str) -> Iterator[int]:
    """A process that computes on the first CPU; idle: a command that has it do so only while no other one wants to."""
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *idle, *COMPUTES]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_one_that_computes_is_found():
    with computing() as process:
        found = looks(process, 100)
    # 1 s of CPU time, which a busy machine does not give it within the first second.
    assert re.fullmatch(rf"process {process} is stuck: its loop has not turned for \d+ s; it is killed", found[0])


def test_one_that_gets_no_cpu_is_slow_and_not_stuck():
    with computing("chrt", "--idle", "0") as process, computing():
        assert looks(process, 5, limit_s=2.5) == []


@pytest.mark.parametrize("is_traced", [False, True], ids=["stopped", "stopped by a debugger"])
def test_one_that_is_stopped_is_found_unless_a_debugger_has_done_it(is_traced):
    def stop() -> None:
        if is_traced:
            _libc.ptrace(_PTRACE_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)

    process = os.fork()
    if not process:
        stop()
        os._exit(0)
    try:
        os.waitpid(process, os.WUNTRACED)
        found = looks(process, 4)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert bool(found) != is_traced
    if found:
        assert found[1].startswith(f"process {process}: thread {process} is in state T; wchan ")


def test_one_whose_heart_beats_is_not_stuck_and_a_limit_of_0_is_none():
    heartbeat = Heartbeat()
    watchdog = Watchdog(heartbeat, 0.5)
    watchdog.begin(os.getpid())
    for _ in range(3):
        heartbeat.beat()
        time.sleep(watchdog.wait_s() or 0)
        assert watchdog.look() == []
    assert Watchdog(heartbeat, 0).wait_s() is None
