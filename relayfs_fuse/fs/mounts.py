"""The table of mounts, /proc/self/mountinfo."""

from __future__ import annotations

import ctypes
import os
import re
import select
import subprocess
from dataclasses import dataclass

# The type of a relayfs mount, as mount(8) shows it.
KIND = "fuse.relayfs"

# What a mount is without FUSE passthrough (fs/tap.py).
MAPS_NO_FILES = "this mount maps no files (Linux 6.9 and CAP_SYS_ADMIN do): programs map those of the store"

_MNT_DETACH = 2
_libc = ctypes.CDLL(None)
_TABLE = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """A line of the table.

    device: st_dev of the files in the mount
    place: the mountpoint
    root: the directory of the file system that is mounted there
    kind: the type of the file system
    options: the options of the file system
    """

    device: int
    place: str
    root: str
    kind: str
    options: str


def table() -> list[Mounted]:
    """Return all mounts; of several at one mountpoint, the last one is on top. OSError."""
    with open(_TABLE, "rb") as file:
        return [_parse(line) for line in file]


def places() -> list[str]:
    """Return the mountpoints of all relayfs, each once."""
    return list(dict.fromkeys(one.place for one in table() if one.kind == KIND))


def top_at(place: str) -> Mounted | None:
    """Return the mount on top at a mountpoint; None: the directory is no mountpoint."""
    return next((mounted for mounted in reversed(table()) if mounted.place == place), None)


def is_on_top(place: str, device: int) -> bool:
    """Whether the mount with this st_dev is the topmost one at a mountpoint."""
    top = top_at(place)
    return top is not None and top.device == device


def unmount(place: str) -> None:
    """Detach what is mounted on top at a mountpoint, as far as this user may."""
    if os.geteuid() == 0:
        _libc.umount2(os.fsencode(place), _MNT_DETACH)
    else:
        subprocess.run(["fusermount3", "-u", "-z", "-q", "--", place], check=False, stderr=subprocess.DEVNULL)


def wait_until_gone(device: int) -> None:
    """Return when no mount with this st_dev is left; sleeps until the kernel reports a change of the table."""
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
    """Replace the octal escapes by which the kernel writes blanks and backslashes."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
