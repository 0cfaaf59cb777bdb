"""Reading figures again and again, with rates: what relayctl top shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from relayfs_fuse.cli.figures import Figures, add_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.cli.objects import Objects

_BELOW = ("process", "user")


class Sampler:
    """Takes figures, which from the second time on have rates.

    where: the store
    """

    def __init__(self, objects: Objects) -> None:
        self.where = objects.where
        self._objects = objects
        self._before: tuple[float, list[Figures]] | None = None

    def take(self) -> list[Figures]:
        """Return the figures of channels and traces, and behind those of each trace its processes; OSError."""
        since = time.monotonic()
        now = self._objects.read()
        if self._before is not None:
            add_rates(now, self._before[1], self._before[0])
        self._before = since, now
        return [one for whole in now for one in (whole, *_below(whole))]


def _below(whole: Figures) -> Sequence[Figures]:
    return [part for part in whole.parts if part.kind in _BELOW]
