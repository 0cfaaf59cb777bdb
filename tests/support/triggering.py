"""Triggers of a mount's trace `t`: what the file `triggered` says of them."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from mounts import Mount, wait_until
from traced import relayctl

LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9})\] (\S+) (\d+): (.*)")


class Line(NamedTuple):
    """A line of `triggered`."""

    time: str
    trigger: str
    number: int
    text: str


def lines_of(trace: Path, name: str | None = None) -> list[Line]:
    """Return the lines of a trace, or of one of its triggers."""
    found = []
    for line in (trace / "triggered").read_text().splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append(Line(match[1], match[2], int(match[3]), match[4]))
    return [line for line in found if name in (None, line.trigger)]


def wait_lines(trace: Path, name: str, n: int) -> list[Line]:
    """Wait until a trigger has written so many lines, and return them."""
    wait_until(lambda: len(lines_of(trace, name)) >= n, lambda: f"{n} lines of {name}: {lines_of(trace)}")
    found = lines_of(trace, name)
    assert len(found) == n, found
    return found


def listed(mount: Mount) -> dict[str, dict]:
    """Return what `relayctl trigger list` says, by the triggers' names."""
    done = relayctl(mount, "trigger", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {one["trigger"]: one for one in map(json.loads, done.stdout.splitlines())}


def wait_seen(mount: Mount, name: str, n: int) -> None:
    """Wait until so many events have met a trigger's condition."""
    wait_until(lambda: listed(mount)[name]["events"] >= n, lambda: f"{n} events are evaluated: {listed(mount)}")


def wait_evaluated(mount: Mount, trace: str) -> None:
    """Wait until all that has happened in a trace so far is evaluated, and a second more."""
    state = mount.store / trace / ".trigger-state"
    until = time.time_ns() + 10**9
    wait_until(lambda: json.loads(state.read_text())["reached"] > until, "triggers are evaluated")


def watcher_of(mount: Mount) -> int | None:
    """Return the process that evaluates the triggers of a mount; None: there is none."""
    done = subprocess.run(
        ["pgrep", "-P", str(mount.server), "-f", "relayfs_fuse.triggers.main"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return int(done.stdout) if done.stdout else None
