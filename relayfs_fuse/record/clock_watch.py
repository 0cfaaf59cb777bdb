"""Notes what the machine's clocks show beside a recording: see tracefiles/clock_pairs.py."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from relayfs_fuse.native.trace import read_clocks
from relayfs_fuse.record.full import OutputFullError
from relayfs_fuse.tracefiles.clock_pairs import Pair, pack

if TYPE_CHECKING:
    from relayfs_fuse.reading.source import Source
    from relayfs_fuse.record.outputs import Output

_INTERVAL_S = 60.0
# The shortest of so many readings is noted, because the process may have to wait for a CPU in the middle of one.
_READINGS = 8
_NS_IN_US = 1000
_STA_UNSYNC = 0x40
_libc = ctypes.CDLL(None)


class _Timex(ctypes.Structure):
    """The beginning of struct timex, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def read_pair(clock: int) -> Pair:
    """Read the clocks, and what the kernel says of their error.

    clock: the trace's, as for read_clocks()
    """
    pair = min((_read_once(clock) for _ in range(_READINGS)), key=attrgetter("width"))
    state = _Timex()
    # It fails where a filter of system calls takes it for one that sets the clock.
    if _libc.adjtimex(ctypes.byref(state)) < 0:
        return pair
    return pair._replace(
        max_error=_NS_IN_US * state.maxerror,
        est_error=_NS_IN_US * state.esterror,
        is_synchronised=not state.status & _STA_UNSYNC,
    )


def _read_once(clock: int) -> Pair:
    before = time.monotonic_ns()
    clocks = read_clocks(clock)
    return Pair(clocks.real_ns, clocks.mono_ns, clocks.ticks, time.monotonic_ns() - before)


class ClockWatch:
    """Note the clocks once a minute; and, when they were set, what they showed at the looks before and after that."""

    def __init__(self, source: Source, output: Output) -> None:
        self._clock = source.trace.clock
        # The clocks of an earlier boot are gone.
        self._is_past = source.is_of_earlier_boot
        self._output = output
        self._seen: Pair | None = None
        self._noted: Pair | None = None

    def look(self, *, is_last: bool = False) -> None:
        """Read the clocks, and note them if it is time; is_last: in any case. While there is no room, it waits."""
        if self._is_past:
            return
        now, before = read_pair(self._clock), self._seen
        if before and now.is_set_since(before):
            pairs = [now] if before is self._noted else [before, now]
        elif is_last or not self._noted or now.mono - self._noted.mono >= _INTERVAL_S * 1e9:
            pairs = [now]
        else:
            self._seen = now
            return
        with suppress(OutputFullError):
            self._output.note_clocks(b"".join(map(pack, pairs)))
            self._seen = self._noted = now
