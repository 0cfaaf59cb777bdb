"""Intervals in which a buffer has lost records, from what the server sees of its counts."""

import itertools
import random
from dataclasses import dataclass

import pytest

from relayfs_fuse.tracefiles import losses
from relayfs_fuse.tracefiles.losses import KEPT_MAX, Intervals


@dataclass
class Clock:
    now: int = 1000

    def time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(losses, "time", found)
    return found


def lines(intervals: Intervals) -> list[list[str]]:
    return [line.split() for line in intervals.lines("0")]


def test_an_interval_is_between_the_looks_that_have_seen_the_count_grow(clock: Clock) -> None:
    intervals = Intervals()
    intervals.look({"full": (0, 0)}, clock.now)
    clock.now = 2000
    intervals.look_at_same(clock.now)
    clock.now = 3000
    intervals.look({"full": (5, 50)}, clock.now)
    assert lines(intervals) == [["2000", "3000", "0", "full", "5", "50"]]


def test_what_goes_on_from_look_to_look_is_one_interval_and_a_pause_begins_another(clock: Clock) -> None:
    intervals = Intervals()
    for now, n in ((1000, 0), (2000, 1), (3000, 3), (4000, 3), (5000, 4)):
        clock.now = now
        intervals.look({"full": (n, 10 * n)}, clock.now)
    assert lines(intervals) == [["1000", "3000", "0", "full", "3", "30"], ["4000", "5000", "0", "full", "1", "10"]]


def test_what_is_lost_while_the_counts_are_read_is_within_the_next_interval(clock: Clock) -> None:
    intervals = Intervals()
    clock.now = 2000
    intervals.look({"full": (0, 0)}, 1000)
    clock.now = 4000
    intervals.look({"full": (1, 10)}, 3000)
    assert lines(intervals) == [["1000", "4000", "0", "full", "1", "10"]]


def test_what_was_lost_before_the_first_look_has_no_beginning(clock: Clock) -> None:
    intervals = Intervals()
    intervals.look({"torn": (2, None)}, clock.now)
    assert lines(intervals) == [["-", str(clock.now), "0", "torn", "2", "-"]]


def test_after_a_reset_counts_begin_at_nothing(clock: Clock) -> None:
    intervals = Intervals()
    for now, n in ((1000, 0), (2000, 9), (3000, 0), (4000, 2)):
        clock.now = now
        intervals.look({"full": (n, n)}, clock.now)
    assert [line[4] for line in lines(intervals)] == ["9", "2"]
    intervals.look({"full": (1, 1)}, clock.now, begins_anew=False)
    assert [line[4] for line in lines(intervals)] == ["9", "2"]


def test_many_intervals_are_joined_and_nothing_is_left_out(clock: Clock) -> None:
    chance = random.Random(1)
    causes = ["full", "too_large", "disabled", "overwritten", "torn"]
    counts = dict.fromkeys(causes, (0, 0))
    intervals = Intervals()
    for _ in range(2000):
        clock.now += 1000
        intervals.look(counts, clock.now)
        for cause in chance.sample(causes, chance.randrange(3)):
            n_records, n_bytes = counts[cause]
            counts[cause] = n_records + chance.randrange(1, 9), n_bytes + 100
    clock.now += 1000
    intervals.look(counts, clock.now)
    found = lines(intervals)
    assert len(found) <= KEPT_MAX
    for cause in causes:
        own = [[int(line[at]) for at in (0, 1, 4, 5)] for line in found if line[3] == cause]
        assert (sum(one[2] for one in own), sum(one[3] for one in own)) == counts[cause]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(own))
        # The latest are as they were seen.
        assert own[-1][1] - own[-1][0] <= 20_000
