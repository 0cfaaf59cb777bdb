"""The watchdog of a supervisor: it finds a server that is stuck, and says where.

Each second the server's loop adds one to its heartbeat (fs/heartbeat.py), and the supervisor looks at it. If the
number has not changed, the time since the last look counts, but only

* as much of it as the server has computed, if one of its threads wants to compute: a busy machine, or a limit of CPU
  time, makes it slow, and not stuck;
* nothing, if it had to wait for its memory to be read from the disk, or if a debugger has stopped it;
* a second at most: if the supervisor itself was stopped, or the machine paused, the server was, too. The clock is
  CLOCK_MONOTONIC, which stands still while the machine is suspended.

So a server is found that sleeps in a system call, is stopped, or computes without end. It is stuck when the time that
counts has reached the limit, the mount option watchdog=.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relayfs_fuse.fs.heartbeat import BEAT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.fs.heartbeat import Heartbeat

# A server whose predecessor has died gets so much more time until it beats.
START_FACTOR = 6
# How long to wait for stacks, and how often to look.
STACKS_S, STACKS_LOOK_S = 1.0, 0.02
_LINES_MAX = 200
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Sample:
    """What a process has done so far, and its threads do.

    states: of the threads, as in proc(5)
    cpu_s: CPU time of the process
    n_faults: how often it has waited for memory to be read
    """

    states: frozenset[str]
    cpu_s: float
    n_faults: int


class Watchdog:
    """The watchdog.

    limit_s: when a server is stuck; 0: never
    """

    def __init__(self, heartbeat: Heartbeat, limit_s: float) -> None:
        self._heartbeat = heartbeat
        self._limit_s = limit_s
        self._server = 0
        self._turns, self._begins = 0, False
        self._stuck_s, self._looked_at = 0.0, 0.0
        self._before: _Sample | None = None

    def begin(self, server: int) -> None:
        """Watch another server, which has been started or has been running before."""
        self._server, self._begins = server, True
        self._turns, self._stuck_s, self._looked_at = self._heartbeat.turns, 0.0, time.monotonic()
        self._before = None

    def wait_s(self) -> float | None:
        """Return after how many seconds look() has something to do; None: never."""
        return max(0.0, self._looked_at + BEAT_S - time.monotonic()) if self._limit_s else None

    def look(self) -> list[str]:
        """Return what is to be said of the server if it is stuck; an empty list: it is not."""
        now = time.monotonic()
        if not self._limit_s or now < self._looked_at + BEAT_S:
            return []
        self._looked_at = now
        if self._heartbeat.turns != self._turns:
            self._turns, self._begins, self._stuck_s, self._before = self._heartbeat.turns, False, 0.0, None
            return []
        sample = _sample(self._server)
        if sample is not None and self._before is not None:
            self._stuck_s += _counted(self._before, sample)
        self._before = sample
        if self._stuck_s < self._limit_s * (START_FACTOR if self._begins else 1):
            return []
        what = f"process {self._server} is stuck: its loop has not turned for {self._stuck_s:.0f} s; it is killed"
        self._stuck_s = 0.0
        return [what, *(f"process {self._server}: {line}" for line in self._where())]

    def _where(self) -> list[str]:
        """Return the stacks of the server's threads, or of one that does not answer what the kernel says."""
        with suppress(ProcessLookupError):
            self._heartbeat.ask(self._server)
        end, text = time.monotonic() + STACKS_S, ""
        while time.monotonic() < end and not (text and text == self._heartbeat.stacks()):
            text = self._heartbeat.stacks()
            time.sleep(STACKS_LOOK_S)
        lines = text.splitlines() if text else list(_waits_of(self._server))
        return [line for line in lines if line][:_LINES_MAX]


def _counted(before: _Sample, now: _Sample) -> float:
    """Return how much of the second between two samples counts."""
    if "t" in now.states or now.n_faults != before.n_faults:
        return 0.0
    return min(BEAT_S, now.cpu_s - before.cpu_s) if "R" in now.states else BEAT_S


def _sample(process: int) -> _Sample | None:
    """Look at a process; None: it is gone."""
    try:
        states = {_fields(path / "stat")[0] for path in Path(f"/proc/{process}/task").iterdir()}
        fields = _fields(Path(f"/proc/{process}/stat"))
    except OSError:
        return None
    return _Sample(frozenset(states), _TICK_S * (int(fields[11]) + int(fields[12])), int(fields[9]))


def _fields(stat: Path) -> list[str]:
    """Return the fields of a file /proc/.../stat, from the state on."""
    return stat.read_text(errors="replace").rpartition(")")[2].split()


def _waits_of(process: int) -> Iterator[str]:
    """Say of each thread in what state it is, and where in the kernel."""
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{process}/task").iterdir()):
            found = [f"thread {task.name} is in state {_fields(task / 'stat')[0]}"]
            for name in ("wchan", "syscall", "stack"):
                with suppress(OSError):
                    found.append(f"{name} {' '.join((task / name).read_text().split()) or '-'}")
            yield "; ".join(found)
