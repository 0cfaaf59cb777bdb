"""How often events are written to traces, counted by following these: nothing is consumed."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import Counts
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse.reading.process import Process
    from relayfs_fuse.tracefiles.ctf import Declaration

# The pause after a look at all buffers that has read everything.
_LOOK_S = 0.025
# Threads may be preempted between reading the clock and writing their events.
_DELAY_S = 0.2
_NS_IN_S = 1_000_000_000


def count_events(  # noqa: PLR0913  # what to count, how long, and two functions
    store: str,
    traces: Sequence[str],
    patterns: Sequence[str],
    seconds: int,
    *,
    say: Callable[[str], None],
    is_told_to_end: Callable[[], bool],
) -> dict[str, list[tuple[Declaration, int]]]:
    """Follow traces for so long, or until they are told to end; return by trace how often each event was written.

    An event that several processes have declared comes several times.

    patterns: as for Wanted
    say: called with a line for users when something goes wrong
    """
    with ExitStack() as stack:
        countings: dict[str, _Counting] = {}
        for name in traces:
            try:
                source = stack.enter_context(closing(Source(name, store)))
            except RelayError as error:  # it has just been removed
                say(str(error))
                continue
            counting = _Counting(source, Wanted(patterns, source.now(), share=len(traces)), seconds, say)
            countings[name] = stack.enter_context(counting)
        _step(list(countings.values()), seconds, is_told_to_end)
        for counting in countings.values():
            counting.stop()
        _step(list(countings.values()), _DELAY_S, lambda: False)
        return {name: counting.finish() for name, counting in countings.items()}


def _step(countings: Sequence[_Counting], seconds: float, is_told_to_end: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0 and not is_told_to_end():
        have_more = [counting.step() for counting in countings]
        if not any(have_more):
            time.sleep(min(_LOOK_S, left_s))


class _Counting(Closing):
    """Count the events of a trace, from `wanted.since` on, for so many seconds."""

    def __init__(self, source: Source, wanted: Wanted, seconds: int, say: Callable[[str], None]) -> None:
        self._source = source
        self._say = say
        self._end = wanted.since + seconds * _NS_IN_S
        self._is_there = True
        self._processes: dict[int, Process] = {}
        with ExitStack() as stack:
            self._live = stack.enter_context(Live(source, wanted, self._say_of_trace, consumes=False))
            self._live.merged.limit(self._end)
            self._counts = stack.enter_context(closing(Counts(self._live.merged)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    def step(self) -> bool:
        """Read the buffers; return whether there is more to read at once."""
        if self._is_there:
            self._live.look()
            # tick() forgets a process that has ended, whose declarations finish() needs.
            self._processes |= {one.identity: one.process for one in self._live.followed}
            self._counts.gather()
            self._is_there = self._live.tick()
        return self._is_there and self._live.merged.is_behind_limit

    def stop(self) -> None:
        """Do not count what is written from now on."""
        self._live.merged.limit(min(self._end, self._source.now()))

    def finish(self) -> list[tuple[Declaration, int]]:
        """Read the rest; return how often each event was written."""
        while self.step():
            pass
        counts = self._counts.all()
        self._say_losses()
        declared = {
            (identity, one.id): one for identity, process in self._processes.items() for one in process.declarations
        }
        return [(declared[which], n) for which, n in counts.items()]

    def _say_losses(self) -> None:
        merged = self._live.merged
        # Losses are given out at most once a second, and when a process ends.
        for followed in self._live.followed:
            merged.finish(followed.number)
        # A loss that a look finds has a later time than the look, so that the second limit lets it pass.
        for _ in range(2 if self._is_there else 0):
            merged.limit(self._live.look())
            self._counts.gather()
        self._live.check()
        lost = merged.stats().lost
        if lost:
            self._say_of_trace(f"{lost} events were lost meanwhile, so that counts may be too low")

    def _say_of_trace(self, line: str) -> None:
        self._say(f"{self._source.name}: {line}")
