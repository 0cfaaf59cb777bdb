"""Fairness between users: Turns carries out one request of each user at a time, Share bounds the time of a task.

A user who makes many requests waits for his own, and does not delay those of other users.
"""

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
        """Wait until no other request of a user is being carried out; first come, first served."""
        lock = self._locks.setdefault(uid, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            # If a task was waiting for the lock, the lock is locked again by now.
            if not lock.locked():
                self._locks.pop(uid, None)


class Share:
    """A limit on the time that a task takes, averaged over some seconds.

    share: the part of each second that it may take
    saved_s: how many seconds of unused time it can save, and then take at once
    """

    def __init__(self, share: float, saved_s: float) -> None:
        self._share = share
        self._saved_s = saved_s
        self._paid_at = -math.inf

    def spend(self, seconds: float) -> None:
        """Note that the task has taken so much time."""
        self._paid_at = max(self._paid_at, trio.current_time()) + seconds / self._share

    async def ready(self) -> None:
        """Wait until the task may go on."""
        pause_s = self._paid_at - trio.current_time() - self._saved_s / self._share
        if pause_s > 0:
            await trio.sleep(pause_s)
