"""What relayctl prints about a recording while it runs, and at its end."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from relayfs_fuse.record.recording import Summary

_INTERVAL_S = 1.0


class Progress:
    """Show a progress line, updated in place on a terminal; elsewhere, if requested, a line per second.

    file: where to print it; None: do not print
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._bytes, self._time = 0, time.monotonic()
        self._width = 0

    def tick(self, summary: Summary, n_buffers: int | None = None) -> None:
        """Print progress, at most once a second."""
        now = time.monotonic()
        if not self._file or now - self._time < _INTERVAL_S:
            return
        rate = (summary.bytes - self._bytes) / (now - self._time)
        self._bytes, self._time = summary.bytes, now
        n_buffers = summary.buffers if n_buffers is None else n_buffers
        lost = summary.lost + summary.lost_without_buffers + sum(summary.lost_without_buffers_by_user.values())
        line = f"{size(rate)}/s, {size(summary.bytes)}, {lost} events lost, {n_buffers} buffers"
        if self._file.isatty():
            self._file.write(f"\r{line:{self._width}}")
            self._width = len(line)
        else:
            self._file.write(f"{line}\n")
        self._file.flush()

    def say(self, line: str) -> None:
        """Print a message on stderr."""
        self.end()
        print(f"relayctl: {line}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the progress line."""
        if self._file and self._width:
            self._file.write("\n")
            self._width = 0


def size(n: float) -> str:
    """Format a number of bytes for users."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.4g} GB"


def summarize(trace: str, where: str, summary: Summary) -> str:
    """Return a summary for users."""
    text = (
        f"{trace}: {size(summary.bytes)} in {summary.packets} packets of {summary.processes} processes to {where},"
        f" {summary.lost} events lost"
    )
    if summary.lost_without_buffers:
        text += f", and {summary.lost_without_buffers} of programs that could get no buffers"
    for uid, lost in summary.lost_without_buffers_by_user.items():
        text += f", and {lost} of programs of user {uid} that could get no buffers"
    if summary.unwritten:
        text += f", {summary.unwritten} events not written"
    if summary.damaged:
        text += f"; damaged: {', '.join(sorted(summary.damaged))}"
    if summary.skipped:
        text += f"; not recorded: {', '.join(sorted(summary.skipped))}"
    return text


def as_json(trace: str, where: str, summary: Summary) -> str:
    """Return the summary as JSON."""
    return json.dumps({"trace": trace, "output": where, **asdict(summary)})
