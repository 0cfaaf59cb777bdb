"""Explain why a channel could not be made or opened: the entry in error_log, and what is at the path."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from relayfs_fuse.errors import MountError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_ENTRY = re.compile(r"\[[^]]*\] create: error: (?P<why>.*) \[[A-Z0-9]+\]\n  Command: create (?P<path>\S+)(?: .*)?\n")
_REFUSED = re.compile(r"\[[^]]*\] \S+: error: (?P<why>.*) \[[A-Z0-9]+\]\n  Command: (?P<line>.*)\n")
_NOTICE = re.compile(r"\[(?P<time>[^]]*)\] \S+: notice: (?P<what>.*)\n  Command: (?P<line>.*)\n")
_HOLDER = re.compile(r"process [0-9]+, mounted at (?P<place>.*)\n", re.DOTALL)
_TEXT_BYTES = 64 << 10
_KINDS = {
    "relay": "a channel of relay files, for Channel and relay_attach()",
    "ring": "a channel of record rings, for Ring and relay_rings_attach()",
    "relay file": "a relay file, for Reader and relay_reader_open(); its channel is {channel}",
    "ring file": "a file of a record ring; its channel is {channel}, for Ring and relay_rings_attach()",
    "directory": "a directory, and no channel",
}


def refusal(path: str) -> str | None:
    """Return why the last `create` of a path was refused; None: error_log has no such entry."""
    for root, below in mounts_of(path):
        entries = _ENTRY.finditer(_text(os.path.join(root, "error_log")))
        return next((entry["why"] for entry in reversed(list(entries)) if entry["path"] == below), None)
    return None


def refused_command(mount: str, line: str) -> str | None:
    """Return why a command was last refused; None: error_log has no such entry."""
    entries = _REFUSED.finditer(_text(os.path.join(mount, "error_log")))
    return next((entry["why"] for entry in reversed(list(entries)) if entry["line"] == line), None)


def notices(mount: str, line: str) -> set[tuple[str, str]]:
    """Return the notices in error_log about a command that was carried out, each with its time."""
    entries = _NOTICE.finditer(_text(os.path.join(mount, "error_log")))
    return {(entry["time"], entry["what"]) for entry in entries if entry["line"] == line}


def busy(store: str) -> str:
    """Return why the channels of a store cannot be changed: its lock, .lock, is held by a process that it names."""
    holder = _HOLDER.fullmatch(_text(os.path.join(store, ".lock")))
    if holder is None:
        return f"another process changes the store {store}"
    return (
        f"a server, mounted at {holder['place']}, has the store {store}, and this process does not see that mount: "
        "make and remove channels where it is seen; what is there can be written and read here, too"
    )


def what_it_is(path: str) -> str | None:
    """Describe what is at a path of a mount; None: nothing is there, or it is in no mount."""
    for root, below in mounts_of(path):
        kind, channel = kind_at(root, below)
        return _KINDS[kind].format(channel=os.path.join(root, channel)) if kind else None
    return None


def mounts_of(path: str) -> Iterator[tuple[str, str]]:
    """Find the mount that contains a path: its root, and the path below it."""
    root, below = os.path.split(os.path.abspath(path))
    while below and root != os.path.dirname(root):
        if os.path.isdir(os.path.join(root, ".channels")) and os.path.exists(os.path.join(root, "error_log")):
            yield root, below
            return
        root, name = os.path.split(root)
        below = f"{name}/{below}"


def kind_at(root: str, below: str) -> tuple[str, str]:
    """Return what is at a path of a mount, a key of _KINDS or "", and the channel of that."""
    stats = os.path.join(root, ".channels")
    is_file = os.path.isfile(os.path.join(root, below))
    for digits in range(7 if is_file else 1):
        channel = below[: len(below) - digits]
        if digits and not below[-digits:].isdigit():
            break
        if os.path.exists(os.path.join(stats, channel, "mem0")):
            kind = "ring" if _text(os.path.join(stats, channel, "type")) == "ring\n" else "relay"
            return (f"{kind} file" if is_file else kind), channel
    return ("directory" if os.path.isdir(os.path.join(root, below)) else ""), below


def regular_file(path: str) -> BinaryIO:
    """Open a file of a mount for reading; OSError. MountError: it is not regular.

    A mount of another user can have a FIFO in place of a file, for which open(2) waits, or a file without end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = open(descriptor, "rb")  # noqa: SIM115  # it is the caller's
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return file
    file.close()
    raise MountError(f"{path}: it is not a regular file, as it is in a mount of relayfs")


def start_of(path: str, most: int) -> bytes:
    """Return the first bytes of a regular file, `most` of them if there are as many; OSError, MountError."""
    with regular_file(path) as file:
        return file.read(most)


def _text(path: str) -> str:
    try:
        return start_of(path, _TEXT_BYTES).decode(errors="replace")
    except (OSError, MountError):
        return ""
