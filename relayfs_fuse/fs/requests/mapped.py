"""Who has buffers open so that he can map them: the channel's maker is told (native/src/channel/buf_mapped.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.requests.opener import process_of

if TYPE_CHECKING:
    from relayfs_fuse.fs.kinds.base import Stored


class Mapped:
    """Count opens and their ends in the buffers themselves, but not those of the maker."""

    def __init__(self) -> None:
        self._open: dict[int, Stored[Any]] = {}

    def opened(self, handle: int, stored: Stored[Any], thread: int) -> None:
        """Count an open file, unless it is the maker's."""
        maker = stored.channel.maker
        if maker and process_of(thread) == maker:
            return
        self._open[handle] = stored
        stored.count_mapped(True)

    def closed(self, handle: int) -> None:
        """Count its end, if it was counted."""
        stored = self._open.pop(handle, None)
        if stored is not None:
            stored.count_mapped(False)
