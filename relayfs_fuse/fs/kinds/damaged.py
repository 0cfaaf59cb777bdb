"""A channel of the store whose memory cannot be used: it is shown, and can be removed, but not opened."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import StoreError
from relayfs_fuse.native import ring as native_ring

if TYPE_CHECKING:
    from collections.abc import Callable

MEM_FILE = re.compile(r"mem[0-9]+")


class BadMemoryError(StoreError):
    """Say why a mem file cannot be used.

    path: of the file
    reason: what is wrong with it
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.damage = f"{os.path.basename(path)}: {reason}"


class DamagedChannel:
    """Stand for it.

    path: its path in the mount
    directory: where it lies
    names: of its files
    damage: which file is damaged, and how
    """

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
            for kind in (native.Buffer, native_ring.RingMemory):
                with contextlib.suppress(OSError):
                    _close(kind, os.path.join(self.directory, name))


def _close(kind: Callable[[str], native.Buffer | native_ring.RingMemory], path: str) -> None:
    memory = kind(path)
    try:
        memory.stop(native.CLOSED, True)
    finally:
        memory.close()
