"""Background tasks: restarting those that fail, and waking them together.

A task of the server handles many channels, processes and descriptors, and catches the errors of each one separately. If
it fails with an exception all the same, that is a bug in the server. The exception is logged with a traceback and the
task is started again, because the end of the mount would make all programs fail that use it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

# The first and the longest pause before a failed task is started again: a lasting failure must not fill the log.
REST_FIRST_S = 0.5
REST_LAST_S = 30.0


async def keep(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Run a task until it returns or is cancelled, and start it again whenever it raises an exception.

    what: the task's name in the log
    """
    rest_s = REST_FIRST_S
    while True:
        begun = trio.current_time()
        try:
            return await work()
        except Exception:
            if trio.current_time() - begun > REST_LAST_S:
                rest_s = REST_FIRST_S
            log.exception("%s failed and starts again in %.1f s", what, rest_s)
        await trio.sleep(rest_s)
        rest_s = min(2 * rest_s, REST_LAST_S)


def next_tick(period_s: float) -> float:
    """Return when trio's clock is a multiple of `period_s` next.

    The server's loop turns once for all tasks that sleep until then. A turn takes as long as most of them do.
    """
    return (trio.current_time() // period_s + 1) * period_s


async def tick(period_s: float) -> None:
    """Sleep until next_tick()."""
    await trio.sleep_until(next_tick(period_s))
