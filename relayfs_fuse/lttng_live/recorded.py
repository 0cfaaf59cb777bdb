"""Reading recordings for a viewer in rounds, as rounds.py reads traces: those of several machines on one time line.

An event that arrives after later ones were given out gets the time of the latest of these, as viewers need it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from relayfs_fuse.lttng_live.rounds import SLACK_NS, Round, ShownProcess
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import Knot, Packets, Stretch
from relayfs_fuse.reading.growing import Growing
from relayfs_fuse.reading.live import Wanted
from relayfs_fuse.tracefiles import ctf
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import identities_of, merge, unread
from relayfs_fuse.tracefiles.recorded import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.tracefiles.recorded import Part

# Of a recording that is not mapped to other machines' times: its own, as ns since 1970.
_AS_IT_IS = (Stretch([Knot(0, 0, 0)]),)
_NS_SINCE_1970 = Clock(ctf.NS, 0, 0)
# When nothing more is there, viewers show the last event if they know that no other one is as early; see viewer.py.
_BEYOND_NS = 100_000


class RecordedRounds(Closing):
    """The rounds of recordings; all of this may block.

    directories: as for Hosts

    OSError, RelayError: they cannot be read
    """

    def __init__(self, directories: tuple[str, ...]) -> None:
        self.has_more = True
        self._told: set[int] = set()
        with ExitStack() as stack:
            self._recordings = stack.enter_context(closing(Hosts(directories)))
            self._recordings.parts = [
                part if part.stretches else replace(part, stretches=_AS_IT_IS) for part in self._recordings.parts
            ]
            self._of_process: dict[int, list[Part]] = defaultdict(list)
            for part, identity in zip(self._recordings.parts, identities_of(self._recordings.parts), strict=True):
                self._of_process[identity].append(part)
            self._merged = stack.enter_context(closing(merge(self._recordings.parts)))
            self._packets = stack.enter_context(closing(Packets(self._merged)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all files."""
        self._stack.close()

    def step(self) -> Round | None:
        """Return the next round. OSError: one of the files could not be read to its end."""
        packets, is_all = self._packets.gather(0)
        # Of programs that got no buffers, there are only losses.
        packets = [packet for packet in packets if packet.identity in self._of_process]
        self.has_more = not is_all
        if is_all and (why := unread(self._merged, self._recordings)):
            raise OSError(0, why)
        found = Round(max(0, self._merged.stats().time - SLACK_NS), packets, {}, is_over=is_all)
        for identity in {packet.identity for packet in packets}:
            found.processes[identity], text = self._describe(identity)
            if identity not in self._told:
                found.metadata[identity] = text
                self._told.add(identity)
        return found

    def _describe(self, identity: int) -> tuple[ShownProcess, bytes]:
        """Return what viewers see of a process, and its metadata."""
        parts = self._of_process[identity]
        declared = {one.id: one.text for other in parts for one in other.declarations}
        return _shown(parts[0]), _preamble(parts[0]) + b"".join(declared.values())


class GrowingRounds(Closing):
    """The rounds of recordings that grow; they end when the viewer leaves. All of this may block.

    directories, delay_ns, say: as for Growing

    OSError, RelayError: they cannot be read
    """

    def __init__(self, directories: tuple[str, ...], delay_ns: int, say: Callable[[str], None]) -> None:
        self.has_more = True
        # Up to when events were given out, and the least time of later ones.
        self._latest = self._floor = 0
        self._due_s = 0.0
        # By identity, the ids of the events that were told.
        self._told: dict[int, set[int]] = {}
        with ExitStack() as stack:
            self._growing = stack.enter_context(Growing(directories, Wanted(), delay_ns, say, default=_AS_IT_IS))
            self._packets = stack.enter_context(closing(Packets(self._growing.merged)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all files."""
        self._stack.close()

    def step(self) -> Round | None:
        """Return the next round if something has arrived."""
        if not self.has_more:
            if time.monotonic() < self._due_s:
                return None
            self._growing.look()
        packets, is_all = self._packets.gather(self._floor)
        self.has_more = not is_all
        self._due_s = time.monotonic() + self._growing.pause_s
        # What came late has got the time of the floor.
        self._latest = max(self._growing.merged.stats().time, self._floor if packets else self._latest)
        before, self._floor = self._floor, max(self._floor, self._latest + _BEYOND_NS * is_all if self._latest else 0)
        groups: dict[int, list[Part]] = defaultdict(list)
        for followed in self._growing.followed.values():
            groups[followed.identity].append(followed.part)
        # As above.
        packets = [packet for packet in packets if packet.identity in groups]
        ended = self._told.keys() - groups.keys()
        if not packets and self._floor == before and not ended:
            return None
        found = Round(max(0, self._floor - SLACK_NS), packets, {}, ended=ended)
        for identity in {packet.identity for packet in packets}:
            self._describe(found, identity, groups[identity])
        for identity in ended:
            del self._told[identity]
        return found

    def _describe(self, found: Round, identity: int, parts: list[Part]) -> None:
        """Add a process to a round, and what its metadata have that was not told."""
        found.processes[identity] = _shown(parts[0])
        text = b"" if identity in self._told else _preamble(parts[0])
        told = self._told.setdefault(identity, set())
        for one in (one for part in parts for one in part.declarations):
            if one.id not in told:
                told.add(one.id)
                text += one.text
        if text:
            found.metadata[identity] = text


def _shown(part: Part) -> ShownProcess:
    return ShownProcess(part.origin.process, part.origin, _NS_SINCE_1970)


def _preamble(part: Part) -> bytes:
    return ctf.preamble_of_machine(part.origin, part.host or part.hostname, part.context)
