"""What `relayctl view` and `export` say of the clocks of machines whose events they show together."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli.common import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from relayfs_fuse.tracefiles.time_line import HostClock

_NS = 1_000_000_000
# So many times at which a clock was set are said.
_STEPS_SHOWN = 3


def errors_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --errors to a command."""
    return click.option(
        "--errors", is_flag=True, help="Of several machines, say in each line how far its time may be off."
    )(command)


def say_clocks(clocks: Sequence[HostClock], *, is_first: bool = True) -> None:
    """Print how far the clocks of machines were off, to the standard error; nothing, if there is only one machine.

    is_first: whether others were not said before
    """
    if len(clocks) > 1 and is_first:
        say(
            f"events of {len(clocks)} machines, by their clocks: two events of different machines may be in the wrong "
            "order, if their times are no further apart than both clocks were off"
        )
    for clock in clocks:
        say(f"{clock.name}: {_error_of(clock)}{_steps_of(clock)}")


def _error_of(clock: HostClock) -> str:
    if not clock.n_pairs:
        return "its recording has no notes of its clock, so nobody knows how far that was off"
    unknown = "its clock was not synchronised, or its kernel does not say, so nobody knows how far it was off"
    if clock.n_unknown == clock.n_pairs:
        return unknown
    known = (
        f"its clock was off by at most {_seconds(clock.max_error)} (its kernel estimates {_seconds(clock.est_error)})"
    )
    if clock.is_known:
        return known
    return f"{known}; at {clock.n_unknown} of {clock.n_pairs} notes {unknown}"


def _steps_of(clock: HostClock) -> str:
    if not clock.steps:
        return ""
    shown = [
        f"{'forward' if step > 0 else 'back'} by {_seconds(abs(step))} at {_day_and_time(at)}"
        for at, step in clock.steps[:_STEPS_SHOWN]
    ]
    more = [f"{len(clock.steps) - _STEPS_SHOWN} more times"] if len(clock.steps) > _STEPS_SHOWN else []
    return f"; it was set, or the machine was suspended: {', '.join(shown + more)}"


def _day_and_time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // _NS, UTC):%F %T} UTC"


def _seconds(ns: int) -> str:
    """Return a time with three digits or more."""
    for unit, of_unit in (("s", _NS), ("ms", 1_000_000), ("us", 1000)):
        if ns >= of_unit:
            return f"{ns / of_unit:.3g} {unit}" if ns < 1000 * of_unit else f"{ns // of_unit} {unit}"
    return f"{ns} ns"
