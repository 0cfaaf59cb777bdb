"""How long what is not sent yet has waited."""

from __future__ import annotations

from collections import deque

# If the oldest has waited for long, it is noted less often what came later.
_SHARE = 16


class Waiting:
    """The bytes of a file that can be sent, and since when.

    Times are those of time.monotonic(), at which the bytes were seen first.
    """

    def __init__(self) -> None:
        # Up to where bytes could be sent, and since when those before the end of the one before.
        self._seen: deque[tuple[int, float]] = deque()

    def note(self, offset: int, end: int, now_s: float) -> None:
        """Note that all before `offset` is sent, and what there is up to `end` can be."""
        while self._seen and self._seen[0][0] <= offset:
            self._seen.popleft()
        last_end, last_s = self._seen[-1] if self._seen else (offset, -1.0)
        if end <= last_end:
            return
        if self._seen and now_s - last_s < (now_s - self._seen[0][1]) / _SHARE:
            self._seen[-1] = end, last_s
        else:
            self._seen.append((end, now_s))

    def since(self, offset: int) -> float | None:
        """Return since when the oldest byte has waited of those from `offset` on; None: there is none."""
        return next((seen_s for end, seen_s in self._seen if end > offset), None)
