"""How the times of a machine's clock are mapped to those of several machines."""

import random
from itertools import pairwise

import pytest

from relayfs_fuse.native.merge import EVER, UNKNOWN, Knot
from relayfs_fuse.tracefiles.clock_pairs import Pair
from relayfs_fuse.tracefiles.ctf import Origin
from relayfs_fuse.tracefiles.recorded import Clock, Part
from relayfs_fuse.tracefiles.time_line import HostClock, stretches_of

S = 10**9
REAL = 1_764_185_000 * S
MADE = 1000 * S
BOOT = "00000000-0000-4000-8000-000000000000"
ORIGIN = Origin("", "t", 1, "app", 1, 1, 0, "perprocess", "mono", MADE, MADE, REAL, BOOT, MADE)
PART = Part("", ORIGIN, Clock(S, (REAL - MADE) // S, 0), (), ())
# A counter of 2 GHz, which is measured as going 50 ppm too fast.
TSC_HZ = 2_000_100_000
TSC_ORIGIN = Origin(**{**vars(ORIGIN), "clock": "tsc", "ticks": 2 * MADE})
TSC = Part("", TSC_ORIGIN, Clock(TSC_HZ, *divmod((REAL * TSC_HZ - 2 * MADE * S) // S, TSC_HZ)), (), ())


def pair(at_s: float, step: int = 0, error: int | None = 1_000_000) -> Pair:
    """What the clocks show so long after the trace was made, after the clock was set by `step`."""
    ns = round(at_s * S)
    errors = (error, 50_000, True) if error is not None else (16 * S, 16 * S, False)
    return Pair(REAL + ns + step, MADE + ns, 2 * (MADE + ns), 100, *errors)


def test_without_pairs_times_are_those_of_the_trace():
    ((knots, first, last),) = stretches_of(PART, [])
    assert (knots, first, last) == ([Knot(REAL, REAL, UNKNOWN)], 0, EVER)


def test_each_pair_is_a_knot_with_the_error_until_the_next_one():
    ((knots, first, last),) = stretches_of(PART, [pair(10), pair(70, error=3_000_000), pair(130)])
    assert (first, last) == (0, EVER)
    assert [(knot.time, knot.mapped) for knot in knots] == [(REAL + s * S,) * 2 for s in (0, 10, 70, 130)]
    # Of both pairs the larger one, 15 us for each second to the nearer pair, and what it took to read them.
    assert [knot.error for knot in knots] == [1_075_100, 3_450_100, 3_450_100, 1_900_100]


def test_a_clock_of_another_rate_is_mapped_at_each_pair():
    ((knots, *_),) = stretches_of(TSC, [pair(10), pair(70)])
    assert [knot.mapped - REAL for knot in knots] == [0, 10 * S, 70 * S]
    # By its own measure the counter has gone 50 ppm less.
    assert [round((knot.time - knots[0].time) / S, 4) for knot in knots] == [0, 9.9995, 69.9965]


@pytest.mark.parametrize("error", [None, 1_000_000])
def test_times_jump_where_the_clock_was_set_forward(error):
    """What lies between the looks may have either time."""
    ((knots, *_),) = stretches_of(PART, [pair(10), pair(10.5, 3600 * S, error), pair(70, 3600 * S)])
    assert [knot.mapped - knot.time for knot in knots] == [0, 0, 0, 3600 * S, 3600 * S]
    assert knots[2].time == knots[3].time - 1
    between = UNKNOWN if error is None else 3600 * S + 1_003_850
    assert [knot.error for knot in knots[1:3]] == [between, between]
    assert knots[0].error == 1_075_100


def test_a_clock_that_was_set_back_begins_another_stretch():
    one, two = stretches_of(PART, [pair(10), pair(10.5, -S), pair(70, -S)])
    assert (one.first, one.last) == (0, REAL + round(10.5 * S) - 1)
    assert (two.first, two.last) == (one.last + 1, EVER)
    assert [knot.mapped - knot.time for knot in one.knots] == [0, 0, 0]
    assert [knot.mapped - knot.time for knot in two.knots] == [-S, -S]


def test_it_may_have_been_set_before_the_recorder_began():
    (one,) = stretches_of(PART, [pair(10, 5 * S)])
    assert [knot.mapped - knot.time for knot in one.knots] == [0, 0, 5 * S]
    assert [knot.error for knot in one.knots] == [UNKNOWN, UNKNOWN, 1_900_100]


def test_a_clock_that_is_set_back_again_and_again_is_unknown_in_the_end():
    """Each stretch has all streams read once more, and the file may be anybody's."""
    found = stretches_of(PART, [pair(10 + n, -n * S) for n in range(10_000)])
    assert len(found) == 32
    assert found[-1].last == EVER
    assert found[-1].knots[-1].error == UNKNOWN
    for before, after in pairwise(found):
        assert after.first == before.last + 1


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_pairs_are_knots_are_in_order(seed):
    chance = random.Random(seed)
    pairs, mono = [], MADE
    for _ in range(300):
        mono += chance.choice((1, 2, 1000, S, 60 * S))
        pairs.append(
            Pair(max(0, REAL + chance.randrange(-(2 * REAL), 4 * REAL)), mono, mono, chance.choice((0, 10**12)))
        )
    for part in (PART, TSC):
        for knots, first, last in stretches_of(part, pairs):
            assert first <= last
            assert knots
            for before, after in pairwise(knots):
                assert after.time > before.time
                assert 0 <= before.mapped <= after.mapped < 1 << 64


def test_what_is_said_of_a_machine_is_the_worst_that_is_known():
    clock = HostClock("web")
    clock.add(PART, [pair(10), pair(70, error=None), pair(130, error=3_000_000), pair(131, 2 * S, error=3_000_000)])
    assert (clock.n_pairs, clock.n_unknown, clock.is_known) == (4, 1, False)
    assert (clock.max_error, clock.est_error) == (3_900_100, 50_000)
    assert clock.steps == [(REAL + 133 * S, 2 * S)]
    known = HostClock("db")
    known.add(PART, [pair(10)])
    assert known.is_known
    assert not HostClock("none").is_known
