"""What a mount's server has noted for the next one."""

import mmap
import os
from pathlib import Path

from mounts import Mount

from relayfs_fuse.fs.notes import MEMORY_BYTES, OPEN_FILE, PLACE, Notes


def _memory(mount: Mount) -> Path:
    """Return the memory file, which the supervisor has open."""
    assert mount.process is not None
    opened = Path(f"/proc/{mount.process.pid}/fd").iterdir()
    return next(one for one in opened if "memfd:relayfs-notes" in os.readlink(one))


def notes_kb(mount: Mount) -> int:
    """Return how much memory the notes take."""
    return _memory(mount).stat().st_blocks // 2


def noted(mount: Mount) -> dict[int, int]:
    """Return how many notes there are of each kind."""
    # A private mapping: to read notes may remove some that a dead server has replaced.
    with _memory(mount).open("r+b") as file:
        notes = Notes(mmap.mmap(file.fileno(), MEMORY_BYTES, mmap.MAP_PRIVATE))
    return {kind: len(list(notes.all(kind))) for kind in range(OPEN_FILE, PLACE + 1)}
