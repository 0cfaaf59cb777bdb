"""Times as users write them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

from relayfs_fuse.native.merge import EVER

_NS = 1_000_000_000
_TIME = re.compile(
    r"(?:(?P<seconds>[0-9]{1,10})|(?:(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ])?"
    r"(?P<clock>[0-9]{2}:[0-9]{2}(?::[0-9]{2})?))(?:\.(?P<ns>[0-9]{1,9}))?"
)

_AGE = re.compile(r"-(?P<number>[0-9]{1,10}(?:\.[0-9]{1,9})?)(?P<unit>ms|s|m|h)")
_UNITS_NS = {"ms": _NS // 1000, "s": _NS, "m": 60 * _NS, "h": 3600 * _NS}


def moment(text: str | None, day_ns: int, default: int) -> int:
    """Return ns since 1970.

    day_ns: any moment of the day to which a time without a date belongs
    """
    if text is None:
        return default
    if age := _AGE.fullmatch(text):
        return max(0, time.time_ns() - int(float(age["number"]) * _UNITS_NS[age["unit"]]))
    day = datetime.fromtimestamp(day_ns // _NS).astimezone().date()
    found = _TIME.fullmatch(text)
    if found and found["seconds"]:
        seconds = int(found["seconds"])
    else:
        try:
            if not found:
                raise ValueError
            seconds = int(datetime.fromisoformat(f"{found['date'] or day}T{found['clock']}").timestamp())
        except (ValueError, OverflowError):
            raise click.UsageError(
                f"{text} is no time: seconds since 1970, HH:MM, HH:MM:SS or YYYY-MM-DDTHH:MM:SS, with decimals; "
                "or before now, as -10s, with ms, s, m or h"
            ) from None
    return max(0, min(seconds * _NS + int((found["ns"] or "").ljust(9, "0")), EVER))
