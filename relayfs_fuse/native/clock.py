"""Converting the ticks of the clocks of `times=` and `clock=` to the time of day."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.native.trace import CLOCK_MONO, read_clocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native.trace import Clocks

_NS = 1_000_000_000
# A clock's ticks a second, and the seconds and ticks between 1970 and its zero.
Conversion: TypeAlias = tuple[int, int, int]
# A clock of unknown frequency is measured from when this module was loaded, over at least this time. Clocks that this
# machine does not have are measured, too, because the memory of a channel can name any clock.
_MEASURE_NS = 200_000_000
_FIRST = {clock.number: read_clocks(clock.number) for clock in CLOCKS.values() if not clock.freq}


# The conversions that were returned last. Two measurements differ by some nanoseconds, so one is returned again as long
# as it is right to _SAME_NS, by one of _TRIES readings of the clocks: on a busy machine one alone may be far off.
_LAST: dict[int, Conversion] = {}
_SAME_NS, _TRIES = 1000, 3


def conversion(number: int) -> Conversion:
    """Return the conversion of a clock; may sleep for a moment.

    It is the same at each call, so that a record has the same time whoever asks, as long as that is right.

    number: Clock.number
    """
    for _ in range(_TRIES):
        now = read_clocks(number)
        last = _LAST.get(number)
        if last is not None and abs(_time_of(last, now.ticks) - now.real_ns) <= _SAME_NS:
            return last
    _LAST[number] = found = _measured(number, now)
    return found


def _time_of(conversion: Conversion, ticks: int) -> int:
    freq, offset_s, offset = conversion
    return offset_s * _NS + (offset + ticks) * _NS // freq


def _measured(number: int, now: Clocks) -> Conversion:
    freq = next(clock.freq for clock in CLOCKS.values() if clock.number == number)
    if not freq:
        first = _FIRST[number]
        if now.mono_ns - first.mono_ns < _MEASURE_NS:
            time.sleep(_MEASURE_NS / _NS)
            now = read_clocks(number)
        freq = max(1, round((now.ticks - first.ticks) * _NS / (now.mono_ns - first.mono_ns)))
    return (freq, *offset_of(freq, now.real_ns, now.ticks))


def reader_of(number: int) -> Callable[[], int]:
    """Return a function that returns the ticks of a clock."""
    return time.monotonic_ns if number == CLOCK_MONO else lambda: read_clocks(number).ticks


def offset_of(freq: int, real_ns: int, ticks: int) -> tuple[int, int]:
    """Return seconds and ticks between 1970 and the zero of a clock that showed so many ticks at a time."""
    offset_s, rest = divmod(real_ns * freq - ticks * _NS, _NS * freq)
    return offset_s, rest // _NS


# Here, so that all servers have the same that a supervisor forks.
conversion(CLOCK_MONO)
