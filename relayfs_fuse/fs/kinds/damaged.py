"""A channel of the store whose memory cannot be used: it is shown, and can be removed, but not opened."""

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
    """Stand for it.

    path: its path in the mount
    directory: where it lies
    names: of its files
    damage: which file is damaged, and how
    buffers: none that could be used
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
        """Its owner."""
        return self.status(self.names[0]).st_uid

    @property
    def relay_paths(self) -> dict[str, str]:
        """Name the relay files, and the mem file behind each: whether they had numbers cannot be known."""
        return {self.path + name.removeprefix("mem"): name for name in self.names}

    def status(self, name: str) -> os.stat_result:
        """Say what stat(2) says of one of its files."""
        return os.lstat(os.path.join(self.directory, name))

    def state(self) -> str:
        """Say what is wrong, as StoredChannel.state() does."""
        return f"damaged: {self.damage}"

    def close(self) -> None:
        """Tell the programs that write to those of its buffers that are sound."""
        for name in self.names:
            for kind in KINDS.values():
                with suppress(OSError), closing(kind.memory(os.path.join(self.directory, name))) as memory:
                    memory.stop(native.CLOSED, True)
