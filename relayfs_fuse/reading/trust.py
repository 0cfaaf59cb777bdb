"""Decide which processes' packets are checked before they are recorded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relayfs_fuse.native.tables import PERMS

if TYPE_CHECKING:
    from relayfs_fuse.tracefiles.ctf import Origin

# Whose packets are checked: those of all users, those of users other than the recorder's and root, or those of no user.
CHECKS = ("all", "others", "none")


def needs_check(directory: str, origin: Origin, check: str) -> bool:
    """Return whether a process's packets are to be checked.

    directory: the process's directory in the store; OSError if its files cannot be read
    check: one of CHECKS
    """
    if check != "others":
        return check == "all"
    channel = os.path.join(directory, "cpu")
    paths = [directory, channel, *(os.path.join(channel, name) for name in os.listdir(channel))]
    return origin.buffers == "shared" or origin.uid not in _trusted() or not all(map(_is_trusted, paths))


def owner(directory: str) -> int:
    """Return the owner of the files in a process's directory; OSError."""
    return os.stat(os.path.join(directory, ".events"), follow_symlinks=False).st_uid


def _trusted() -> set[int]:
    return {0, os.geteuid()}


def _is_trusted(path: str) -> bool:
    """Return whether only trusted users can write to a file."""
    status = os.stat(path, follow_symlinks=False)
    return status.st_uid in _trusted() and not status.st_mode & PERMS["STRANGERS"]
