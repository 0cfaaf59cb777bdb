"""A channel whose mem files cannot be used: the mount shows it, and it can be removed, but no file of it opened."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.fs.kinds.channel import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.fs.kinds.base import Stored


class DamagedChannel:
    """A damaged channel; it has the attributes of StoredChannel that do not need the memory.

    path: its path in the mount
    directory: its directory in the store
    names: of its mem files
    damage: which file is damaged, and how
    buffers: always empty
    """

    buffers: Sequence[Stored[Any]] = ()

    def __init__(self, path: str, directory: str, names: list[str], damage: str) -> None:
        self.path = path
        self.directory = directory
        self.names = sorted(names)
        self.damage = damage
        self.removed = False

    @property
    def uid(self) -> int:
        """The user who owns the channel."""
        return self.status(self.names[0]).st_uid

    @property
    def relay_paths(self) -> dict[str, str]:
        """The paths of the relay files in the mount, and the name of the mem file behind each.

        Whether the channel was made with buffers=single, whose relay file has no number, cannot be known: all get one.
        """
        return {self.path + name.removeprefix("mem"): name for name in self.names}

    def status(self, name: str) -> os.stat_result:
        """Return the stat(2) of a mem file; OSError."""
        return os.lstat(os.path.join(self.directory, name))

    def state(self) -> str:
        """Return the text of .channels/PATH/state."""
        return f"damaged: {self.damage}"

    def close(self) -> None:
        """Mark the buffers that are not damaged as closed, which stops the programs that write to them."""
        for name in self.names:
            for kind in KINDS.values():
                with suppress(OSError), closing(kind.memory(os.path.join(self.directory, name))) as memory:
                    memory.stop(native.CLOSED, True)
