"""What a mount's control file says, in one request: names of channels, and which of them are damaged."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANNEL = re.compile(r"create (\S+)|# (\S+) is damaged: ")
CHANNEL_WITH_TIMES = re.compile(r"create (\S+) .*\btimes=(?!none)")
# The group of counters that are statistics of the server and of channels.
SERVER_COUNTERS = "relayfs/"
_DAMAGE = re.compile(r"# (\S+) is damaged: (.*)")


def names_in(mount: str, *patterns: re.Pattern[str]) -> Iterator[str]:
    """Yield the names in the lines that begin as one of the patterns says; OSError."""
    for match in _matches(mount, *patterns):
        yield next(filter(None, match.groups()))


def damage_in(mount: str) -> dict[str, str]:
    """Return what is wrong with damaged channels, by their paths; none if the file cannot be read."""
    with suppress(OSError):
        return {match[1]: match[2] for match in _matches(mount, _DAMAGE)}
    return {}


def _matches(mount: str, *patterns: re.Pattern[str]) -> Iterator[re.Match[str]]:
    with open(os.path.join(mount, "control"), encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            yield from filter(None, (pattern.match(line) for pattern in patterns))
