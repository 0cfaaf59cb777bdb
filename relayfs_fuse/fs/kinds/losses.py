"""When records were lost, and why: .channels/PATH/losses.

    FROM TO BUFFER CAUSE RECORDS BYTES

Writers only count what they lose, by cause. The server looks at the counts again and again, and notes how far each has
grown since the look before: an interval says that so many records were lost for that cause between these two times, and
nothing more exact is known. Intervals of a cause that follow each other without a pause are joined. If there are more
than KEPT_MAX, the oldest two of a cause become one, which begins with the former and ends with the latter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.fs.kinds.stats import value_of
from relayfs_fuse.native.tables import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.tables import Statistic

# The intervals that are kept of a buffer.
KEPT_MAX = 64
_PREFIX, _BYTES = "lost_", "_bytes"
_NOTHING: Mapping[str, tuple[int, int | None]] = MappingProxyType({})
# Of all: it is held for microseconds.
_lock = threading.Lock()


class Interval(NamedTuple):
    """What was lost for one cause.

    since_ns, until_ns: the looks between which it was, by CLOCK_REALTIME; since_ns 0: before the first look
    n_bytes: None: not counted
    """

    since_ns: int
    until_ns: int
    cause: str
    n_records: int
    n_bytes: int | None

    def with_later(self, later: Interval) -> Interval:
        """Return this and a later one as one."""
        n_bytes = None if self.n_bytes is None or later.n_bytes is None else self.n_bytes + later.n_bytes
        return Interval(self.since_ns, later.until_ns, self.cause, self.n_records + later.n_records, n_bytes)


class Intervals:
    """The intervals of one buffer, from its counts; the methods can be called in any thread.

    There is one for each buffer of the store, so that of a buffer which loses nothing is small.
    """

    __slots__ = ("_kept", "_looked_ns", "_seen")

    def __init__(self) -> None:
        self._looked_ns = 0
        # By cause, the counts at the last look, if one was not 0.
        self._seen: Mapping[str, tuple[int, int | None]] = _NOTHING
        self._kept: tuple[Interval, ...] = ()

    def look(self, counts: Mapping[str, tuple[int, int | None]], asked_ns: int, *, begins_anew: bool = True) -> None:
        """Compare counts of records and bytes, by cause, with those of the last look.

        asked_ns: a time before the counts were read: what is lost meanwhile may be missing in them
        begins_anew: whether a count that is lower than before has begun at 0 again, as after a reset; otherwise some
            records do not count there any more
        """
        now_ns = time.time_ns()
        with _lock:
            for cause, (n_records, n_bytes) in counts.items():
                before, before_bytes = self._seen.get(cause, (0, 0))
                if n_records < before and begins_anew:
                    before = before_bytes = 0
                if n_records > before:
                    more_bytes = None if n_bytes is None else max(0, n_bytes - (before_bytes or 0))
                    self._add(Interval(self._looked_ns, now_ns, cause, n_records - before, more_bytes))
            self._seen = dict(counts) if any(n_records for n_records, _ in counts.values()) else _NOTHING
            self._looked_ns = asked_ns

    def look_at_same(self, asked_ns: int) -> None:
        """Note that the counts were those of the last look; as look()."""
        with _lock:
            self._looked_ns = asked_ns

    def lines(self, buffer: str) -> list[str]:
        """Return the intervals as lines, in the order of their ends."""
        with _lock:
            kept = self._kept
        return [
            f"{one.since_ns or '-'} {one.until_ns} {buffer} {one.cause} {one.n_records} "
            f"{'-' if one.n_bytes is None else one.n_bytes}"
            for one in kept
        ]

    def _add(self, interval: Interval) -> None:
        kept = list(self._kept)
        last = next((at for at in reversed(range(len(kept))) if kept[at].cause == interval.cause), None)
        if last is not None and kept[last].until_ns >= interval.since_ns:
            interval = kept.pop(last).with_later(interval)
        kept.append(interval)
        if len(kept) > KEPT_MAX:
            _join_oldest(kept)
        self._kept = tuple(kept)


def _join_oldest(kept: list[Interval]) -> None:
    """Join the oldest two intervals of the cause whose second one is the oldest."""
    first: dict[str, int] = {}
    for at, one in enumerate(kept):
        if one.cause in first:
            kept[at] = kept[first[one.cause]].with_later(one)
            del kept[first[one.cause]]
            return
        first[one.cause] = at


def _causes(kind: str) -> list[tuple[str, Statistic, Statistic | None]]:
    by_name = {statistic.name: statistic for statistic in STATISTICS[kind]}
    names = [name for name in by_name if name.startswith(_PREFIX) and not name.endswith(_BYTES)]
    return [(name.removeprefix(_PREFIX), by_name[name], by_name.get(f"{name}{_BYTES}")) for name in names]


# By type of channel: each cause, and the statistics that count its records and bytes.
_CAUSES = {kind: _causes(kind) for kind in STATISTICS}


def counts_of(kind: str, stats: Fields) -> dict[str, tuple[int, int | None]]:
    """Return what a buffer has lost, by cause: records and bytes; a cause whose count is unknown is left out."""
    found = {}
    for cause, records, n_bytes in _CAUSES[kind]:
        number = value_of(records, stats)
        if number is not None:
            found[cause] = number, None if n_bytes is None else value_of(n_bytes, stats)
    return found


def of_channel(channel: StoredChannel) -> bytes:
    """Look at the buffers of a channel, and return the text of its file `losses`; OSError."""
    for stored in channel.buffers:
        asked_ns = time.time_ns()
        channel.losses[stored.index].look(counts_of(channel.kind.name, stored.stats()), asked_ns)
    return text(line for index, one in sorted(channel.losses.items()) for line in one.lines(str(index)))


def text(lines: Iterable[str]) -> bytes:
    """Return the text of a file `losses`, in the order in which intervals have ended."""
    found = sorted(lines, key=lambda line: int(line.split()[1]))
    return "".join(f"{line}\n" for line in found).encode()
