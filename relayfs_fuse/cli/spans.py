"""Ages on the command line: digits and a unit, as in 7d."""

from __future__ import annotations

import re

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_S = 10**9


def is_age(text: str) -> bool:
    """Return whether a text is an age; sizes have other letters."""
    return text[-1:] in _SECONDS


class Age(click.ParamType):  # type: ignore[type-arg]  # before click 8.2 it has no parameter
    """A number of seconds, minutes, hours or days, as 90s, 30m, 12h, 7d; the value is in seconds."""

    name = "age"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the value."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,10})([smhd])", value, re.ASCII)
        seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
        if not 0 < seconds <= _MAX_S:
            self.fail(f"{value!r}: an age is digits and s, m, h or d, such as 12h or 7d", param, ctx)
        return seconds


def format_age(seconds: float) -> str:
    """Format an age for people: a whole number of the largest unit of which it has at least one."""
    for unit, length in reversed(_SECONDS.items()):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s"
