"""Users take turns: whoever asks for much waits for himself, and not the others for him."""

from __future__ import annotations

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
