"""The file `.clocks` of a recording: what the clocks of its machine showed, once a minute and when they were set.

A line each time; lines are appended, and what is written never changes:

    real=1764185000123456789 mono=123456789012 ticks=123456789012 width=900 maxerror=1500000 esterror=20000
    status=synchronised

which is one line. real, mono and ticks are CLOCK_REALTIME, CLOCK_MONOTONIC and the trace's clock at one moment, and
width is how long it took to read them. maxerror and esterror are how far CLOCK_REALTIME is off at most, and by the
kernel's estimate, as adjtimex(2) says; they mean nothing while the clock is not synchronised. All are in ns, but for
ticks. A line without the last three words is of a recorder that the kernel told nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FILE = ".clocks"
# More lines than that, one a minute, are of no recorder: two years.
PAIRS_MAX = 1 << 20
_SYNCHRONISED, _UNSYNCHRONISED = b"synchronised", b"unsynchronised"
_NUMBER = rb"(\d{1,19})"
# Its first bytes are looked for, and only then what is before them: a file may be of 256 MiB without a line.
_LINE = re.compile(
    rb"real=(?<![^\n\0]real=)%b mono=%b ticks=(\d{1,20}) width=%b(?: maxerror=%b esterror=%b status=(%b|%b))?\n"
    % (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _SYNCHRONISED, _UNSYNCHRONISED)
)
# No clock shows as much, ns.
TIME_MAX = 1 << 63
# No file is longer: no line that matches has more bytes.
FILE_BYTES = PAIRS_MAX * 256


class Pair(NamedTuple):
    """What the clocks showed at one moment.

    real, mono: ns; ticks: of the trace's clock
    width: ns that it took to read them
    max_error, est_error: ns; None: the kernel does not say
    is_synchronised: whether the kernel says that the clock is
    """

    real: int
    mono: int
    ticks: int
    width: int
    max_error: int | None = None
    est_error: int | None = None
    is_synchronised: bool = False

    def is_set_since(self, before: Pair) -> bool:
        """Return whether CLOCK_REALTIME was set between the two, or the machine was suspended.

        Otherwise both clocks go equally fast, also while the kernel corrects their rate.
        """
        return abs(self.step_since(before)) > self.width + before.width + _READING_NS

    def step_since(self, before: Pair) -> int:
        """Return by how much CLOCK_REALTIME has gone on more than CLOCK_MONOTONIC, ns."""
        return (self.real - self.mono) - (before.real - before.mono)


# What reading two clocks one after the other can make of two that go equally fast, beside the width.
_READING_NS = 1000


def pack(pair: Pair) -> bytes:
    """Return the line of a pair."""
    line = b"real=%d mono=%d ticks=%d width=%d" % pair[:4]
    if pair.max_error is not None and pair.est_error is not None:
        status = _SYNCHRONISED if pair.is_synchronised else _UNSYNCHRONISED
        line += b" maxerror=%d esterror=%d status=%b" % (pair.max_error, pair.est_error, status)
    return line + b"\n"


def unpack(data: bytes) -> list[Pair]:
    """Return the pairs in the contents of the file, in the order of CLOCK_MONOTONIC; what is no line is left out."""
    found: list[Pair] = []
    for line in _LINE.finditer(data):
        real, mono, ticks, width = map(int, line.groups()[:4])
        errors = (int(line[5]), int(line[6]), line[7] == _SYNCHRONISED) if line[5] else ()
        if max(real, mono, width) < TIME_MAX and (not found or mono > found[-1].mono) and len(found) < PAIRS_MAX:
            found.append(Pair(real, mono, ticks, width, *errors))
    return found
