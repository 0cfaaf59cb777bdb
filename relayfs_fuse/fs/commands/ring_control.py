"""What the control language says of rings, beyond their keys, which control.py knows."""

from __future__ import annotations

from relayfs_fuse.fs.commands.control import Command, format_size
from relayfs_fuse.native import ring as native_ring
from relayfs_fuse.native.tables import RING_OPTIONS

DEFAULT_RING_SIZE = RING_OPTIONS["size"].initial
# What the default is reduced to at most.
LEAST_RING_SIZE = 64 << 10

# Commands that rings do not have, and why.
REFUSED = {
    "flush": "a record can be read as soon as it is committed: there is nothing to flush",
    "reset": "a ring cannot be reset: remove it and create it anew, or read it empty",
    "resume": "only a relay channel can be suspended",
    "consumed": "who maps a ring consumes by moving the consumer position",
}


def choose_ring_size(command: Command, n_rings: int, free_bytes: int) -> tuple[int, str | None]:
    """Choose a size: what was asked for, else a default that leaves room for others.

    n_rings: how many rings it will have
    free_bytes: how much of the store is free

    Returns the size, and what must be said when the default had to be reduced.
    """
    if "size" in command.options:
        return command.options["size"], None
    size = DEFAULT_RING_SIZE
    while size > LEAST_RING_SIZE and native_ring.ring_file_bytes(size) * n_rings > free_bytes // 16:
        size //= 2
    if size == DEFAULT_RING_SIZE:
        return size, None
    return (
        size,
        f"reduced to rings of {format_size(size)}, from {format_size(DEFAULT_RING_SIZE)}: a channel takes by default "
        f"at most a sixteenth of the {free_bytes} bytes that are free; give size= to have others",
    )
