"""What relayctl prints about a recording while it runs, and at its end."""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from relayfs_fuse.reading.summary import Summary

_STDERR = 2
_INTERVAL_S = 1.0
_NAMES_SHOWN = 20
_MISSING = "relayctl: {} messages are missing here: stderr was full\n"


class Progress:
    """Write messages to stderr, and show a progress line, updated in place on a terminal; elsewhere a line per second.

    A message that stderr does not take at once is dropped, because the buffers of the traced programs would fill while
    the recorder waits. The next message is preceded by one that says how many are missing.

    shows_always: show the progress line even if stderr is no terminal
    what: what the progress line calls those that were lost
    """

    def __init__(self, *, shows_always: bool, what: str = "events") -> None:
        self._what = what
        self._is_terminal = os.isatty(_STDERR)
        self._shows = shows_always or self._is_terminal
        self._bytes, self._time = 0, time.monotonic()
        self._width = 0
        self._missing = 0

    def tick(self, summary: Summary, n_buffers: int | None = None) -> None:
        """Print the progress of a recording, at most once a second."""

        def line(rate: str) -> str:
            n = summary.buffers if n_buffers is None else n_buffers
            lost = summary.lost + summary.lost_without_buffers + sum(summary.lost_without_buffers_by_user.values())
            return f"{rate}, {size(summary.bytes)}, {lost} {self._what} lost, {n} buffers"

        self.show(summary.bytes, line)

    def show(self, n_bytes: int, line: Callable[[str], str]) -> None:
        """Print a line of progress, at most once a second.

        n_bytes: how many there are by now
        line: returns the text; it is given the bytes a second, as text
        """
        now = time.monotonic()
        if not self._shows or now - self._time < _INTERVAL_S:
            return
        text = line(f"{size((n_bytes - self._bytes) / (now - self._time))}/s")
        self._bytes, self._time = n_bytes, now
        if not self._is_terminal:
            _write(f"{text}\n")
        elif _write(f"\r{text:{self._width}}"):
            self._width = len(text)

    def say(self, line: str) -> None:
        """Write a message to stderr."""
        self._end_line()
        if self._missing and _write(_MISSING.format(self._missing)):
            self._missing = 0
        if self._missing or not _write(f"relayctl: {line}\n"):
            self._missing += 1

    def _end_line(self) -> None:
        """End the progress line."""
        if self._width and _write("\n"):
            self._width = 0

    def close(self) -> None:
        """End the progress line, and write how many messages are missing; wait until stderr takes that or fails."""
        self._end_line()
        if self._missing:
            with suppress(OSError):
                click.echo(_MISSING.format(self._missing), err=True, nl=False)
            self._missing = 0


def _write(text: str) -> bool:
    """Write text to stderr, at most PIPE_BUF bytes; return whether stderr has taken it."""
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    # A pipe that polls as writable takes PIPE_BUF bytes.
    if not poll.poll(0):
        return False
    data = text.encode(errors="surrogateescape")
    try:
        os.write(_STDERR, data if len(data) <= select.PIPE_BUF else data[: select.PIPE_BUF - 1] + b"\n")
    except OSError:
        return False
    return True


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
        text += f"; damaged: {_names(summary.damaged)}"
    if summary.skipped:
        text += f"; not recorded: {_names(summary.skipped)}"
    return text


def _names(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def as_json(trace: str, where: str, summary: Summary) -> str:
    """Return the summary as JSON."""
    return json.dumps({"trace": trace, "output": where, **asdict(summary)})
