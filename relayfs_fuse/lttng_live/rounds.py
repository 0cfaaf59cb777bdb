"""Reading a trace for a viewer in rounds: each round has the events of all streams up to some time.

The buffers are read as `relayctl view` reads them: see reading/live.py. An event is given out when it is delay_ns old,
because until then an earlier one may be written. A viewer fails if it gets an event that is older than the time up to
which it has been sent all events. So an event that comes late gets this time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER, Packets
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.source import Source
from relayfs_fuse.tracefiles import ctf

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native.merge import StreamPacket
    from relayfs_fuse.reading.live import Followed
    from relayfs_fuse.tracefiles.ctf import Origin
    from relayfs_fuse.tracefiles.recorded import Clock

# How many viewers can read traces at once; each needs descriptors and mappings for all processes of its trace. The
# share of one more viewer is left for connections.
VIEWERS_MAX = 8
# The time between two rounds. Buffers are read more often, so that programs find room in them.
ROUND_S = 0.1
# Viewers round times of different clocks to ns differently.
SLACK_NS = 100


@dataclass(frozen=True)
class ShownProcess:
    """What viewers see of a process.

    clock: how its timestamps are converted
    """

    name: str
    origin: Origin
    clock: Clock


@dataclass
class Round:
    """The new packets of all streams. Processes are named by MergedProcess.identity.

    limit: no event older than this will come, ns since 1970
    packets: of each stream, in order
    processes: by identity, those of the packets
    metadata: by identity, the text to add to the metadata of these processes
    ended: the identities of processes that will have no further packets
    is_over: whether this is the last round, because the trace was removed or is of an earlier boot
    """

    limit: int
    packets: list[StreamPacket]
    processes: dict[int, ShownProcess]
    metadata: dict[int, bytes] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    is_over: bool = False


class AnyRounds(Protocol):
    """What a viewer is shown, in rounds; see rounds.py."""

    @property
    def has_more(self) -> bool:
        """Whether step() would find something at once."""

    def step(self) -> Round | None:
        """Return a round if one is due, else None."""

    def close(self) -> None:
        """Let go of all files."""


class Shown(Protocol):
    """A session of the protocol."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def name(self) -> str:
        """Its name."""


class Rounds(Closing):
    """The rounds of a trace; all of this may block.

    delay_ns: how old an event is when it is given out, so that earlier ones have been written
    is_whole: whether to begin with the events in the buffers; otherwise only those written from now on are read
    say: called with a line for users when something goes wrong

    OSError, RelayError: the trace cannot be read
    """

    def __init__(self, store: str, trace: Shown, delay_ns: int, *, is_whole: bool, say: Callable[[str], None]) -> None:
        self._delay_ns = delay_ns
        self._floor = 0
        self._gathered = 0.0
        self._n_declared: dict[int, int] = {}
        with ExitStack() as stack:
            source = stack.enter_context(closing(Source(trace.name, store, trace.id)))
            since = 0 if is_whole else source.now()
            self._live = stack.enter_context(
                Live(source, Wanted(since=since, share=VIEWERS_MAX + 1), say, consumes=True)
            )
            self._packets = stack.enter_context(closing(Packets(self._live.merged)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    @property
    def has_more(self) -> bool:
        """Whether step() would find something at once."""
        return self._live.merged.is_behind

    def step(self) -> Round | None:
        """Read the buffers; return a round if one is due, else None."""
        looked = self._live.look()
        self._live.merged.limit(looked if looked == EVER else looked - self._delay_ns)
        found = None
        if self.has_more or time.monotonic() - self._gathered >= ROUND_S:
            self._gathered = time.monotonic()
            found = self._gather()
        is_over = not self._live.tick()
        ended = self._n_declared.keys() - {one.identity for one in self._live.followed}
        if found is None and (ended or is_over):
            found = Round(self._limit, [], {})
        if found is not None:
            found.ended, found.is_over = ended, is_over
            for identity in ended:
                del self._n_declared[identity]
        return found

    @property
    def _limit(self) -> int:
        return max(0, self._floor - SLACK_NS)

    def _gather(self) -> Round:
        merged = self._live.merged
        packets, is_all = self._packets.gather(self._floor)
        given = merged.stats().time
        reached = merged.reached if is_all else given
        # If no process can write any more, `reached` is EVER, which would make all events of a new process late.
        self._floor = max(self._floor, given if reached == EVER else reached)
        named = {packet.identity for packet in packets}
        found = Round(self._limit, packets, {})
        for followed in self._live.followed:
            if followed.identity in named:
                process = followed.process
                found.processes[followed.identity] = ShownProcess(process.name, process.origin, followed.clock)
                if text := self._new_metadata(followed):
                    found.metadata[followed.identity] = text
        return found

    def _new_metadata(self, followed: Followed) -> bytes:
        declared = followed.process.declarations
        told = self._n_declared.get(followed.identity)
        self._n_declared[followed.identity] = len(declared)
        text = b"".join(one.text for one in declared[told or 0 :])
        if told is not None:
            return text
        # The clocks of Live, so that the timestamps of all processes, also of later ones, are converted alike.
        return ctf.preamble(followed.process.origin, self._live.clocks, (0, 0)) + text
