"""--delay, of commands that show events in the order of their times while they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Of traces and channels, and of directories: packets arrive there when they are full.
_DEFAULT_MS, _OF_DIRECTORIES_MS = 200, 2000
_LONGEST_MS = 60_000
_NS_IN_MS = 1_000_000


def delay_option(late: str) -> Callable[..., Any]:
    """Return the option; late: what happens to an event that arrives later."""
    return click.option(
        "--delay", metavar="MS", type=click.IntRange(1, _LONGEST_MS),
        help=f"How old an event is when it is shown, or of DIR how long it is there; one that arrives later {late}. "
        f"Default: {_DEFAULT_MS}, of DIR {_OF_DIRECTORIES_MS}.",
    )  # fmt: skip


def delay_of(given: int | None, *, is_directory: bool = False) -> int:
    """Return the delay in ns. given: the value of the option."""
    default = _OF_DIRECTORIES_MS if is_directory else _DEFAULT_MS
    return _NS_IN_MS * (default if given is None else given)
