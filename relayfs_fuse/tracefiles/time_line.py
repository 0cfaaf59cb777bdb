"""The times of a machine's clock on a time line that several machines have in common: CLOCK_REALTIME.

The times of events are those of a clock that nobody sets, and of CLOCK_REALTIME when the trace was made. The pairs of
clocks that the recorder has noted (clock_pairs.py) say what CLOCK_REALTIME was later: a knot each, and between two of
them times go evenly. Where CLOCK_REALTIME was set forward, or the machine was suspended, mapped times jump; where it
was set back, another stretch begins. What the kernel has said of the clock's error is that of the times around a pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from relayfs_fuse.native.merge import EVER, UNKNOWN, Knot, Stretch
from relayfs_fuse.tracefiles.clock_pairs import TIME_MAX, Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.tracefiles.recorded import Part

# What NTP takes the rate of a clock to be off by, at most (RFC 5905, PHI): 15 us a second.
_RATE_ERROR = 15e-6
# After the last pair, a recorder has ended by then.
_AFTER_NS = 60_000_000_000
# A clock that was set back more often is taken to be unknown from then on: each stretch reads all streams once.
_STRETCHES_MAX = 32


@dataclass
class HostClock:
    """What is known of the clock of a machine.

    name: of the machine
    max_error, est_error: the largest that its kernel has said while the clock was synchronised, ns; the first one with
        what it may have become until the next pair. Neither is of times between two pairs if the clock was set there
    n_pairs, n_unknown: how many pairs there are; and how many of a clock that was not synchronised, or of a kernel that
        said nothing
    steps: when its clock was set, or the machine was suspended, as the clock showed after that, and by how much, ns
    """

    name: str
    max_error: int = 0
    est_error: int = 0
    n_pairs: int = 0
    n_unknown: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, part: Part, pairs: Sequence[Pair]) -> None:
        """Add the pairs of a recording; part: any of it."""
        self.n_pairs += len(pairs)
        self.n_unknown += sum(not pair.is_synchronised for pair in pairs)
        points = _points(part, pairs)
        for before, now in [*pairwise(points), (points[-1], points[-1])]:
            if now.is_set_since(before):
                self.steps.append((now.real, now.step_since(before)))
            elif (error := _error_between(before, now, 0)) != UNKNOWN:
                self.max_error = max(self.max_error, error)
                self.est_error = max(self.est_error, before.est_error or 0, now.est_error or 0)

    @property
    def is_known(self) -> bool:
        """Whether it is known all the time how far the clock was off."""
        return self.n_pairs > 0 and not self.n_unknown


def stretches_of(part: Part, pairs: Sequence[Pair]) -> list[Stretch]:
    """Return how the times of a part are mapped: a stretch, and one more for each time that the clock was set back."""
    points = _points(part, pairs)
    found: list[Stretch] = []
    first, knots = 0, [] if len(points) > 1 else [Knot(*_at(part, points[0]), UNKNOWN)]
    for before, now in pairwise(points):
        (time, mapped), (next_time, next_mapped) = _at(part, before), _at(part, now)
        step = now.step_since(before) if now.is_set_since(before) else 0
        knots.append(Knot(time, mapped, _error_between(before, now, step)))
        if step:
            # When it was set is not known; up to `now` times go on as before.
            knots.append(Knot(next_time - 1, mapped + next_time - 1 - time, knots[-1].error))
        if step and next_mapped <= knots[-1].mapped:
            found.append(Stretch(_in_order(knots), first, next_time - 1))
            first, knots = next_time, []
            if len(found) == _STRETCHES_MAX - 1:
                knots.append(Knot(next_time, next_mapped, UNKNOWN))
                break
    else:
        if len(points) > 1:
            knots.append(Knot(*_at(part, points[-1]), _error_between(points[-1], points[-1], 0)))
    found.append(Stretch(_in_order(knots), first, EVER))
    return found


def _points(part: Part, pairs: Sequence[Pair]) -> list[Pair]:
    """Return what the clocks showed when the trace was made, and then the pairs; the times of the part increase."""
    origin = part.origin
    made = Pair(origin.real, origin.mono, origin.ticks, 0)
    if pairs and not pairs[0].is_set_since(made):
        # The kernel's error was not noted then, and is not known to have been another.
        made = made._replace(
            **{name: getattr(pairs[0], name) for name in ("max_error", "est_error", "is_synchronised")}
        )
    points = [made]
    for pair in pairs:
        if _at(part, points[-1])[0] + 1 < _at(part, pair)[0] < TIME_MAX:
            points.append(pair)
    return points


def _at(part: Part, pair: Pair) -> tuple[int, int]:
    """Return the time of a pair by the part's clock, and CLOCK_REALTIME."""
    ticks = pair.mono if part.origin.clock == "mono" else pair.ticks
    return part.clock.time_at(ticks), pair.real


def _error_between(before: Pair, now: Pair, step: int) -> int:
    """Return how far times between two pairs are off at most, ns; UNKNOWN.

    step: by how much the clock was set between them
    """
    if not (before.is_synchronised and now.is_synchronised) or before.max_error is None or now.max_error is None:
        return UNKNOWN
    length = now.mono - before.mono or 2 * _AFTER_NS
    noted = max(before.max_error + before.width, now.max_error + now.width)
    return min(noted + round(length / 2 * _RATE_ERROR) + abs(step), UNKNOWN)


def _in_order(knots: Sequence[Knot]) -> list[Knot]:
    """Return knots of which each is later than the one before, and not mapped to an earlier time.

    Of two pairs that were read within a microsecond, the second may seem to be the earlier one.
    """
    found = [knots[0]]
    for knot in knots[1:]:
        if knot.time > found[-1].time:
            found.append(knot._replace(mapped=max(knot.mapped, found[-1].mapped)))
    return found
