"""When records were lost, and why: .channels/PATH/losses, and the metadata of recordings.

    FROM TO BUFFER CAUSE RECORDS BYTES              a line; - stands for what is not known
    loss_0 = "FROM TO BUFFER CAUSE RECORDS BYTES";  in the environment of a recording's metadata

Writers only count what they lose, by cause. The server looks at the counts again and again, and notes how far each has
grown since the look before: an interval says that so many records were lost for that cause between these two times, and
nothing more exact is known. Intervals of a cause that follow each other without a pause are joined. If there are more
than KEPT_MAX, the oldest two of a cause become one, which begins with the former and ends with the latter.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native.tables import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.tables import Statistic

# The intervals that are kept of a buffer, and those that metadata have at most: 20 kB.
KEPT_MAX = 64
TOLD_MAX = 256
# The BUFFER of what no buffer has counted.
NO_BUFFER = "-"
_NUMBER = r"(?:-|\d{1,19})"
_LINE = re.compile(rf"{_NUMBER} \d{{1,19}} [!-~]{{1,127}} [a-z_]{{1,20}} \d{{1,19}} {_NUMBER}")
_TOLD = re.compile(rb'\n\tloss_\d{1,4} = "([^"\n]{1,200})";')
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

    def line(self, buffer: str) -> str:
        """Return it as a line, without the end."""
        since = self.since_ns or "-"
        n_bytes = "-" if self.n_bytes is None else self.n_bytes
        return f"{since} {self.until_ns} {buffer} {self.cause} {self.n_records} {n_bytes}"

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
        return [one.line(buffer) for one in self.kept]

    def begin_with(self, kept: Iterable[Interval], looked_ns: int = 0) -> None:
        """Take over intervals that others have noted, before the first look, which then finds what was lost since.

        looked_ns: when they looked last; 0: it is not known
        """
        with _lock:
            self._kept = tuple(kept)
            # Later than the last one, which so does not seem to have gone on since.
            self._looked_ns = max([looked_ns, *(one.until_ns + 1 for one in self._kept)])
            records: Counter[str] = Counter()
            n_bytes: Counter[str] = Counter()
            for one in self._kept:
                records[one.cause] += one.n_records
                n_bytes[one.cause] += one.n_bytes or 0
            self._seen = {cause: (n, n_bytes[cause]) for cause, n in records.items()}

    @property
    def kept(self) -> tuple[Interval, ...]:
        """The intervals so far, in the order of their ends."""
        with _lock:
            return self._kept

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
        number = records.of(stats)
        if number is not None:
            found[cause] = number, None if n_bytes is None else n_bytes.of(stats)
    return found


def text(lines: Iterable[str]) -> bytes:
    """Return the text of a file `losses`, in the order in which intervals have ended."""
    found = sorted(lines, key=lambda line: int(line.split()[1]))
    return "".join(f"{line}\n" for line in found).encode()


def parse(lines: Iterable[str]) -> dict[str, list[Interval]]:
    """Return the intervals of lines, by buffer; what is no such line is left out."""
    found: dict[str, list[Interval]] = defaultdict(list)
    for line in filter(_LINE.fullmatch, lines):
        since, until, buffer, cause, n_records, n_bytes = line.split()
        known_bytes = None if n_bytes == "-" else int(n_bytes)
        begin = 0 if since == "-" else int(since)
        found[buffer].append(Interval(begin, int(until), cause, int(n_records), known_bytes))
    return found


def told(metadata: bytes) -> dict[str, list[Interval]]:
    """Return the intervals that metadata have, by buffer."""
    environment = metadata[: metadata.find(b"\nclock {")]
    return parse(match[1].decode("ascii", "replace") for match in _TOLD.finditer(environment))


def to_tell(by_buffer: Mapping[str, Iterable[Interval]]) -> list[str]:
    """Return lines for metadata, in the order in which the intervals have ended.

    If there are more than TOLD_MAX, the oldest of a cause become one, of the buffers that have the most; and if that is
    not enough, the oldest are left out.
    """
    found = {buffer: list(kept) for buffer, kept in by_buffer.items()}
    while sum(map(len, found.values())) > TOLD_MAX:
        longest = max(found.values(), key=len)
        n = len(longest)
        _join_oldest(longest)
        if len(longest) == n:
            break  # no cause has two
    lines = [(one.until_ns, one.line(buffer)) for buffer, kept in found.items() for one in kept]
    return [line for _, line in sorted(lines)[-TOLD_MAX:]]
