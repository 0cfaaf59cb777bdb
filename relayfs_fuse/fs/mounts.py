"""What is mounted where: /proc/self/mountinfo."""

from __future__ import annotations

import os
import re
import select
from dataclasses import dataclass

# As mount(8) shows it.
KIND = "fuse.relayfs"

_TABLE = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """A line of the table.

    device: st_dev of what is in it
    place: where it is
    root: what of the file system is seen there
    kind: of file system
    options: of the file system
    """

    device: int
    place: str
    root: str
    kind: str
    options: str


def table() -> list[Mounted]:
    """Read the table; of several mounts at one place, the last is on top."""
    with open(_TABLE, "rb") as file:
        return [_parse(line) for line in file]


def top_at(place: str) -> Mounted | None:
    """Tell which mount is seen at a directory; None: there is none just there."""
    return next((mounted for mounted in reversed(table()) if mounted.place == place), None)


def wait_until_gone(device: int) -> None:
    """Return when a file system is mounted nowhere any more; the kernel tells of each change of the table."""
    descriptor = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        changes = select.poll()
        changes.register(descriptor, select.POLLPRI)
        while any(mounted.device == device for mounted in table()):
            changes.poll()
    finally:
        os.close(descriptor)


def _parse(line: bytes) -> Mounted:
    fields = [_unescape(field) for field in line.rstrip().split(b" ")]
    major, minor = fields[2].split(":")
    kind, _, options = fields[fields.index("-", 6) + 1 :][:3]
    return Mounted(os.makedev(int(major), int(minor)), fields[4], fields[3], kind, options)


def _unescape(field: bytes) -> str:
    """Undo what the kernel does to blanks and backslashes."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
