"""Users take turns: whoever asks for much waits for himself, and not the others for him."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Turns:
    """Let one request of each user go on at a time."""

    def __init__(self) -> None:
        self._locks: dict[int, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        """Wait until no other request of a user is at work; first come, first served."""
        lock = self._locks.setdefault(uid, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            # A lock that somebody waits for is locked again already.
            if not lock.locked():
                self._locks.pop(uid, None)


class Share:
    """What takes no more than a share of the server's time, over any longer while.

    share: of each second
    saved_s: how much of its time it can save up, to take it at once
    """

    def __init__(self, share: float, saved_s: float) -> None:
        self._share = share
        self._saved_s = saved_s
        self._paid_at = -math.inf

    def spend(self, seconds: float) -> None:
        """Note how much time it took."""
        self._paid_at = max(self._paid_at, trio.current_time()) + seconds / self._share

    async def ready(self) -> None:
        """Wait until it may go on."""
        pause_s = self._paid_at - trio.current_time() - self._saved_s / self._share
        if pause_s > 0:
            await trio.sleep(pause_s)
