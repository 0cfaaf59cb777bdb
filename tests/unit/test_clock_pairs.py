"""The file of a recording with what its machine's clocks have shown."""

import pytest

from relayfs_fuse.tracefiles.clock_pairs import Pair, pack, unpack

ONE = Pair(10**18, 10**9, 3 * 10**9, 900, 1_500_000, 20_000, True)
LATER = Pair(10**18 + 60 * 10**9, 61 * 10**9, 183 * 10**9, 700)
BETWEEN = LATER._replace(mono=LATER.mono - 1)
UNSYNCHRONISED = LATER._replace(mono=62 * 10**9, max_error=16 * 10**9, est_error=16 * 10**9)


def test_lines_are_what_they_were_made_of():
    pairs = [ONE, LATER, UNSYNCHRONISED]
    data = b"".join(map(pack, pairs))
    assert unpack(data) == pairs
    assert data.startswith(b"real=1000000000000000000 mono=1000000000 ticks=3000000000 width=900 maxerror=1500000 ")


@pytest.mark.parametrize(
    "data",
    [
        bytes(300) + pack(ONE) + pack(LATER),  # a hole: what was before is sent, or is missing
        pack(ONE) + pack(LATER)[:30] + b"\n" + pack(LATER),  # a recorder without room
        pack(ONE) + pack(LATER) + pack(ONE),  # times that go back
        pack(ONE) + b"sur" + pack(BETWEEN) + pack(LATER),
        pack(ONE) + b"real=-1 mono=x\n\xff\n" + pack(LATER) + pack(UNSYNCHRONISED)[:-1],
        pack(ONE) + b"real=9999999999999999999 mono=2000000000 ticks=1 width=1\n" + pack(LATER),
    ],
)
def test_what_is_no_line_is_left_out(data):
    assert unpack(data) == [ONE, LATER]


def test_a_clock_that_was_set_is_told_from_one_whose_rate_is_corrected():
    assert not LATER.is_set_since(ONE)
    assert not LATER._replace(real=LATER.real + 2000).is_set_since(ONE)
    ahead = LATER._replace(real=LATER.real + 5000)
    assert ahead.is_set_since(ONE)
    assert ahead.step_since(ONE) == 5000
    assert LATER._replace(real=LATER.real - 5000).step_since(ONE) == -5000
