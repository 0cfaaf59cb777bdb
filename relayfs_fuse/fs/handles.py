"""Open files, apart from how the kernel asks for them."""

from __future__ import annotations

import errno
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relayfs_fuse.fs.store import StoredBuffer
    from relayfs_fuse.fs.tree import TextFile

REPLAY_MAX = 1 << 20
TOKEN_BYTES = 8


class TextHandle:
    """An open text: what it was when it was last read from the beginning."""

    def __init__(self, node: TextFile) -> None:
        self.node = node
        self._text: bytes | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of it."""
        if (offset == 0 or self._text is None) and not self.node.removed:
            self._text = self.node.text()
        if self._text is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self._text[offset : offset + size]


class StreamHandle:
    """An open relay file without a position."""

    def __init__(self, stored: StoredBuffer) -> None:
        self.stored = stored


class MappableHandle(StreamHandle):
    """An open relay file that can be mapped, and that the kernel therefore lets seek.

    Readers such as bash's `read` take more than they need and seek back. So that nothing is lost, what was given last
    is kept and given again.
    """

    def __init__(self, stored: StoredBuffer) -> None:
        super().__init__(stored)
        self._start = 0
        self._kept = b""

    def again(self, offset: int, size: int) -> bytes:
        """Return what was given at this offset before; nothing: it is time for new data."""
        if offset < self._start:
            # It was consumed, and is no longer kept.
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        return self._kept[offset - self._start : offset - self._start + size]

    def keep(self, offset: int, data: bytes) -> None:
        """Keep what is given now."""
        if offset != self._start + len(self._kept):
            self._start, self._kept = offset, b""
        kept = self._kept + data
        drop = max(0, len(kept) - REPLAY_MAX)
        self._start += drop
        self._kept = kept[drop:]


class MemHandle:
    """An open memory file.

    token: names it in the memory itself, so that what a producer had reserved is known when the producer dies
    """

    def __init__(self, stored: StoredBuffer) -> None:
        self.stored = stored
        self.token = secrets.randbits(63) | 1

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of the memory; the token to who asks at its very end for just that many bytes.

        Everybody else finds the end of the file there, so that memory can be copied like a file.
        """
        if offset == self.stored.channel.facts.file_bytes and size == TOKEN_BYTES:
            return self.token.to_bytes(TOKEN_BYTES, "little")
        return os.pread(self.stored.buffer.fileno(), size, offset)


Handle = TextHandle | StreamHandle | MemHandle
