"""The last records of a channel or events of a trace, decoded, beside those who read them: nothing is consumed."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from relayfs_fuse.cli.channel import Channel
from relayfs_fuse.cli.lines import Tail
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER, Export, Style
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.cli.figures import Figures
    from relayfs_fuse.reading.records import Records

N_LAST = 200
# How old an event is when it is shown, as in relayctl view: threads that commit later have time to.
_DELAY_NS = 200_000_000


class Last(Closing):
    """Follow the records of a channel or trace.

    say: called with a line for users when something goes wrong

    RelayError: there is no such trace, or the records have no times. OSError: it cannot be read.
    """

    def __init__(self, where: str, one: Figures, say: Callable[[str], None]) -> None:
        self._tail = Tail(N_LAST)
        self._live: Live | Records
        with ExitStack() as stack:
            if one.kind in ("relay", "ring"):
                file_format = "records.text"
                self._live = stack.enter_context(Channel(one.name, os.path.join(where, one.name)).records(0, say))
            else:
                file_format = "text"
                source = stack.enter_context(closing(Source(trace_of(one), where)))
                self._live = stack.enter_context(Live(source, Wanted(), say, consumes=False))
            self._exporter = stack.enter_context(closing(Export(self._live.merged, Style(file_format))))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    def lines(self) -> str:
        """Return the last lines now."""
        looked = self._live.look()
        self._live.merged.limit(looked if looked == EVER else looked - _DELAY_NS)
        self._take()
        while self._live.merged.is_behind_limit:
            self._live.look()
            self._take()
        self._live.tick()
        return self._tail.lines().decode(errors="backslashreplace")

    def _take(self) -> None:
        for piece in self._exporter.pieces():
            self._tail.add(bytes(piece))


def trace_of(one: Figures) -> str:
    """Return the name of the trace that figures are of; of a process, that of its trace."""
    return one.name.split("/", maxsplit=1)[0]
