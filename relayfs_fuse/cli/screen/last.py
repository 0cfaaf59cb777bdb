"""The last records of a channel or events of a trace, decoded, beside those who read them: nothing is consumed."""

from __future__ import annotations

import errno
import os
import struct
import time
from abc import abstractmethod
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from relayfs_fuse.cli.common import escaped
from relayfs_fuse.cli.lines import Tail
from relayfs_fuse.fs.kinds.channel import map_files
from relayfs_fuse.native.library import Closing, closed_on_error
from relayfs_fuse.native.merge import EVER, Export, Style
from relayfs_fuse.native.tables import OPTIONS, TYPES
from relayfs_fuse.reading.live import Live, Wanted
from relayfs_fuse.reading.records import Records
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayfs_fuse import native
    from relayfs_fuse.cli.figures import Figures

N_LAST = 200
# How old an event is when it is shown, as in relayctl view: threads that commit later have time to.
_DELAY_NS = 200_000_000
# How much is copied at once, and how long one call copies; the next call goes on.
_COPY_BYTES = 1 << 18
_COPY_S = 0.05
# How many bytes are shown of a buffer, or of a record.
_SHOWN_BYTES = 4096
_LENGTH = struct.Struct("<I")


class Last(Closing):
    """What was written last; OSError: it cannot be read."""

    @abstractmethod
    def text(self) -> str:
        """Return the last lines now."""


def last_of(one: Figures, where: str, say: Callable[[str], None]) -> Last:
    """Follow a channel, or the trace of a process.

    where: the store
    say: called with a line for users when something goes wrong

    RelayError, OSError: there is no such channel or trace, or it cannot be read.
    """
    with ExitStack() as stack:
        if one.kind not in TYPES:
            source = stack.enter_context(closing(Source(trace_of(one), where)))
            live = stack.enter_context(Live(source, Wanted(), say, consumes=False))
            return _Merged(live, "text", stack.pop_all())
        kind, memories = map_files(os.path.join(where, one.name))
        with closed_on_error(*memories):
            stats = memories[0].stats()
            if not stats.times:
                framing = OPTIONS[kind.name].get("framing")
                is_framed = framing is not None and framing.format(getattr(stats, framing.field)) == "length"
                return _Unread(memories, is_framed=is_framed)
            records = stack.enter_context(Records(memories, stats.times, say))
        return _Merged(records, "records.text", stack.pop_all())


class _Merged(Last):
    """Events, or records with times, in their order.

    stack: closes what was opened for this
    """

    def __init__(self, live: Live | Records, file_format: str, stack: ExitStack) -> None:
        self._live = live
        self._tail = Tail(N_LAST)
        self._stack = stack
        with closed_on_error(self):
            self._exporter = stack.enter_context(closing(Export(live.merged, Style(file_format))))

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    def text(self) -> str:
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


class _Unread(Last):
    """What is unread of a channel without times, so without an order between its buffers.

    memories: its buffers, which are closed with this
    is_framed: whether each record follows its length; otherwise lines are shown, as the data has no other marks
    """

    def __init__(self, memories: Sequence[native.ChannelMemory], *, is_framed: bool) -> None:
        self._memories = memories
        self._is_framed = is_framed
        self._size = _COPY_BYTES
        self._ends = [b""] * len(memories)
        self._records: list[deque[bytes]] = [deque(maxlen=N_LAST) for _ in memories]
        with ExitStack() as stack:
            self._peeks = [stack.enter_context(closing(memory.peek())) for memory in memories]
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()
        for memory in self._memories:
            memory.close()

    def text(self) -> str:
        """Return the last lines now."""
        lines: list[str] = []
        for cpu in range(len(self._peeks)):
            self._copy(cpu)
            found = self._records[cpu] if self._is_framed else self._ends[cpu].splitlines()
            lines += [f"mem{cpu}: {escaped(one.decode(errors='surrogateescape'))}" for one in list(found)[-N_LAST:]]
        return "\n".join(lines)

    def _copy(self, cpu: int) -> None:
        self._peeks[cpu].more()
        end = time.monotonic() + _COPY_S / len(self._peeks)
        while time.monotonic() < end:
            try:
                data = self._peeks[cpu].copy(self._size)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return
                if error.errno != errno.EMSGSIZE:
                    raise
                self._size *= 2
                continue
            if not data:
                return
            if self._is_framed:
                self._records[cpu].extend(_records_in(data))
            else:
                self._ends[cpu] = (self._ends[cpu] + data)[-_SHOWN_BYTES:]


def _records_in(data: bytes) -> list[bytes]:
    """Return the records, each of which follows its length; of a long one the beginning."""
    found, at = [], 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        found.append(data[at : at + min(length, _SHOWN_BYTES)])
        at += length
    return found


def trace_of(one: Figures) -> str:
    """Return the name of the trace that figures are of; of a process, that of its trace."""
    return one.name.split("/", maxsplit=1)[0]
