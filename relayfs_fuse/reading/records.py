"""The records of a channel with `times` while programs write them, of all CPUs, in the order of their times.

The buffers are read beside their readers, and nothing is consumed: see native/src/merge/live.c. If the memory of one is
damaged, only its own records end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse import native
from relayfs_fuse.native.clock import Conversion, conversion
from relayfs_fuse.native.library import Closing, closed_on_error
from relayfs_fuse.native.merge import EventKind, Merge, MergedProcess
from relayfs_fuse.reading.damage import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# How often the state of the buffers is checked.
_TICK_S = 0.5
# How a record with its time is declared: native/include/relayfs/layout.h, struct relay_timed_head.
_RECORD = EventKind(0, "relay:record", (("record", "bytes"),), True, None)


class Begin(NamedTuple):
    """Where one begins to follow.

    since: what is earlier is left out, ns since 1970
    conversion: that of another one that has followed the same, so that times are the same; None: it is found anew
    """

    since: int = 0
    conversion: Conversion | None = None


BEGIN = Begin()


class Records(Closing):
    """Follow the buffers of a channel, by their numbers.

    memories: which are closed with this; if the constructor raises, they stay the caller's
    times: the number of their clock
    say: called with a line for users when something goes wrong
    begin: where to begin
    longest: how many bytes of memory a record may take, a power of two; longer ones count as lost; 0: 16 MiB
    merged: where the records are
    conversion: the conversion of the clock
    """

    def __init__(
        self,
        memories: Sequence[native.ChannelMemory],
        times: int,
        say: Callable[[str], None],
        begin: Begin = BEGIN,
        longest: int = 0,
    ) -> None:
        self.conversion = begin.conversion or conversion(times)
        self.merged = Merge(begin.since)
        self._memories = memories
        self._say = say
        self._n_damaged = [0] * len(memories)
        self._finished = [False] * len(memories)
        self._ticked = time.monotonic()
        # Each buffer is a process of its own for the merge, from which it can be removed.
        self._numbers: dict[int, int] = {}
        with closed_on_error(self.merged):
            for cpu, memory in enumerate(memories):
                process = MergedProcess("", 0, cpu, (), self.conversion, (_RECORD,), live_clock=times, longest=longest)
                self._numbers[cpu] = self.merged.add_process(process)
                try:
                    memory.add_to(self.merged, self._numbers[cpu], cpu)
                except OSError as error:
                    self._drop(cpu, reason(error))

    def close(self) -> None:
        """Let go of all buffers."""
        self.merged.close()
        for memory in self._memories:
            memory.close()

    def look(self) -> int:
        """Have the merge look at all buffers; return the time just before, ns since 1970."""
        return self.merged.look(consumes=False)

    def tick(self) -> bool:
        """Check the buffers now and then; False: the channel was removed, and all is read."""
        if time.monotonic() - self._ticked >= _TICK_S:
            self._ticked = time.monotonic()
            self.check()
        return bool(self._numbers)

    def check(self) -> None:
        """Report what the last look() has found to be wrong, and let go of buffers that have ended."""
        for cpu in list(self._numbers):
            self._check(cpu)

    def _check(self, cpu: int) -> None:
        number, memory = self._numbers[cpu], self._memories[cpu]
        stats = self.merged.process_stats(number)
        if stats.n_damaged > self._n_damaged[cpu]:
            if not self._n_damaged[cpu]:
                self._say(
                    f"cpu {cpu}: times or lengths of records were overwritten, or a record is too long; what cannot be "
                    "shown counts as lost"
                )
            self._n_damaged[cpu] = stats.n_damaged
        if stats.error:
            self._drop(cpu, memory.damage())
        elif not stats.n_open:
            self.merged.remove(self._numbers.pop(cpu))
        elif not self._finished[cpu] and memory.state() & native.IS_CLOSED:
            self.merged.finish(number)
            self._finished[cpu] = True

    def _drop(self, cpu: int, why: str) -> None:
        self.merged.remove(self._numbers.pop(cpu))
        self._say(f"cpu {cpu}: its memory is damaged: {why}; it is not shown any further")
