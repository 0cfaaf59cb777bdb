"""What a mount's control file says, in one request: names of channels, and which of them are damaged."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import explain
from relayfs_fuse.errors import MountError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANNEL = re.compile(r"create (\S+)|# (\S+) is damaged: ")
CHANNEL_WITH_TIMES = re.compile(r"create (\S+) .*\btimes=(?!none)")
# The group of counters that are statistics of the server and of channels.
SERVER_COUNTERS = "relayfs/"
# The longest line: a path of PATH_MAX bytes, with options or with what is damaged.
_LINE_BYTES = 16 << 10
# A hundred times what the largest mounts have.
_FILE_BYTES = 64 << 20
_DAMAGE = re.compile(r"# (\S+) is damaged: (.*)")


def names_in(mount: str, *patterns: re.Pattern[str]) -> Iterator[str]:
    """Yield the names in the lines that begin as one of the patterns says; OSError, MountError."""
    for match in _matches(mount, *patterns):
        yield next(filter(None, match.groups()))


def damage_in(mount: str) -> dict[str, str]:
    """Return what is wrong with damaged channels, by their paths; none if the file cannot be read."""
    with suppress(OSError, MountError):
        return {match[1]: match[2] for match in _matches(mount, _DAMAGE)}
    return {}


def _matches(mount: str, *patterns: re.Pattern[str]) -> Iterator[re.Match[str]]:
    path = os.path.join(mount, "control")
    with explain.regular_file(path) as file:
        left = _FILE_BYTES
        while line := file.readline(_LINE_BYTES + 1):
            left -= len(line)
            if len(line) > _LINE_BYTES or left < 0:
                what = f"a line longer than {_LINE_BYTES} bytes" if left >= 0 else f"more than {_FILE_BYTES >> 20} MiB"
                raise MountError(f"{path} has {what}, which a server of relayfs does not write")
            yield from filter(None, (pattern.match(os.fsdecode(line)) for pattern in patterns))
