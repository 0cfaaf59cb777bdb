"""Reading recordings for a viewer in rounds, as rounds.py reads traces: those of several machines on one time line."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from relayfs_fuse.lttng_live.rounds import SLACK_NS, Round, ShownProcess
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import Knot, Packets, Stretch
from relayfs_fuse.tracefiles import ctf
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import identities_of, merge, unread
from relayfs_fuse.tracefiles.recorded import Clock

if TYPE_CHECKING:
    from relayfs_fuse.tracefiles.recorded import Part

# Of a recording that is not mapped to other machines' times: its own, as ns since 1970.
_AS_IT_IS = (Stretch([Knot(0, 0, 0)]),)
_NS_SINCE_1970 = Clock(ctf.NS, 0, 0)


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
        part = parts[0]
        declared = {one.id: one.text for other in parts for one in other.declarations}
        text = ctf.preamble_of_machine(part.origin, part.host or part.hostname, part.context)
        return ShownProcess(part.origin.process, part.origin, _NS_SINCE_1970), text + b"".join(declared.values())
