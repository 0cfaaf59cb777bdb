"""Background tasks that outlive their failures.

A task of the server looks after many channels, processes and descriptors. It handles each by itself, so a failure
that concerns one of them stays there. What fails in spite of that is a mistake of ours: the task is logged with a
traceback and started again, because a mount that ends takes everybody's programs with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

# How long a task that failed rests, at first and at last: what makes it fail may last, and the log must not overflow.
REST_FIRST_S = 0.5
REST_LAST_S = 30.0


async def keep(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Run a task until it returns or is cancelled, and start it again whenever it fails.

    what: its name in the log
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
