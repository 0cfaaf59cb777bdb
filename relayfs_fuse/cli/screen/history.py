"""The rates of the last minute, and lines of blocks that draw them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from relayfs_fuse.cli.figures import Figures

HISTORY_S = 60.0
# A minute has at most so many rates: a line is not longer.
_RATES_MAX = 600
_BLOCKS = "▁▂▃▄▅▆▇█"
_PARTS_OF_A_BLOCK = " ▏▎▍▌▋▊▉"

# What tells an object from all others, also from an earlier one of the same name.
Key: TypeAlias = "tuple[str | None, str, Hashable]"


def key_of(one: Figures) -> Key:
    """Return what tells it from all others."""
    return one.kind, one.name, one.identity


class Histories:
    """The rates of the last HISTORY_S of all objects.

    interval: between two rates, in seconds
    """

    def __init__(self, interval: float) -> None:
        self.length = max(1, min(_RATES_MAX, round(HISTORY_S / interval)))
        self._interval = max(interval, HISTORY_S / _RATES_MAX)
        self._rates: dict[Key, deque[float | None]] = {}
        self._noted: float | None = None

    def note(self, found: Iterable[Figures]) -> None:
        """Add the rates of all objects, and forget those that have gone; unknown rates stand for missed intervals."""
        now = time.monotonic()
        passed = round((now - self._noted) / self._interval) if self._noted is not None else 1
        if not passed:
            return
        self._noted = now
        missed = [None] * min(passed - 1, self.length)
        rates: dict[Key, deque[float | None]] = {}
        for one in found:
            key = key_of(one)
            rates[key] = history = self._rates.get(key) or deque(maxlen=self.length)
            history.extend(missed)
            history.append(one.rate)
        self._rates = rates

    def of(self, one: Figures) -> Sequence[float | None]:
        """Return its rates, the newest last; None: unknown."""
        return self._rates.get(key_of(one), ())


def sparkline(rates: Sequence[float | None], length: int, width: int) -> str:
    """Draw rates, the newest on the right, as blocks as high as the rate is compared with the largest.

    length: how many rates the whole line stands for
    """
    width = min(width, length)
    cells: list[list[float]] = [[] for _ in range(width)]
    for age, rate in enumerate(reversed(rates)):
        if rate is not None:
            cells[width - 1 - age * width // length].append(abs(rate))
    means = [sum(cell) / len(cell) if cell else None for cell in cells]
    most = max((mean for mean in means if mean), default=1.0)
    return "".join(" " if mean is None else _BLOCKS[round(mean / most * (len(_BLOCKS) - 1))] for mean in means)


def bar(part: float, width: int) -> str:
    """Draw a bar that fills a part, 0 to 1, of the width."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    if part > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _PARTS_OF_A_BLOCK[rest])[:width].ljust(width)
