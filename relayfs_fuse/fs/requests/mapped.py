"""Who has buffers open so that he can map them: the channel's maker is told (native/src/channel/buf_mapped.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayfs_fuse.fs.kinds.ring import StoredRing
from relayfs_fuse.fs.requests.opener import process_of

if TYPE_CHECKING:
    from relayfs_fuse import native
    from relayfs_fuse.fs.store import StoredBuffer, StoredChannel


class Mapped:
    """Count opens and their ends in the buffers themselves, but not those of the maker."""

    def __init__(self) -> None:
        self._open: dict[int, StoredBuffer] = {}

    def opened(self, handle: int, stored: StoredBuffer | StoredRing, thread: int) -> None:
        """Count an open file, unless it is the maker's; nobody asks for rings."""
        maker = stored.channel.maker
        if isinstance(stored, StoredRing) or (maker and process_of(thread) == maker):
            return
        self._open[handle] = stored
        stored.buffer.count_mapped(_first(stored), True)

    def closed(self, handle: int) -> None:
        """Count its end, if it was counted."""
        stored = self._open.pop(handle, None)
        if stored is not None:
            stored.buffer.count_mapped(_first(stored), False)


def forget(channel: StoredChannel) -> None:
    """Take all opens for ended: they were another server's."""
    for stored in channel.buffers:
        if not isinstance(stored, StoredRing):
            stored.buffer.forget_mapped(_first(stored))


def _first(stored: StoredBuffer) -> native.Buffer:
    """Return the buffer whose maker sleeps on it; of a channel that was removed, nobody does."""
    buffers = stored.channel.buffers
    first = buffers[0] if buffers else stored
    assert not isinstance(first, StoredRing)
    return first.buffer
