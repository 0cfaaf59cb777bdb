"""Open files peekN: what was unread in a buffer when the file was opened. Reading them consumes nothing.

They have the bytes that the relay file would return. A read at the end returns nothing once; the reads behind it go on
with what was written since. After poll(2) has said POLLHUP, the reads go on up to the last record of the channel. A
program may read them at any offset: a read before the last bytes, which are kept, copies the data again from the
beginning. Data that was overwritten or consumed before it was copied is not there, and offsets count what was read. So
a read fails with ESPIPE if data before its offset cannot be copied again.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE, GONE, READABLE
from relayfs_fuse.fs.kinds.handles import Handle

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.native.memory import Peek

# How many of the bytes before the next one are kept.
KEPT_BYTES = 64 << 10
# The longest record that can be read. It is copied whole, because it may be overwritten meanwhile; until then the
# server answers no other request.
LONGEST_BYTES = 8 << 20


class PeekHandle(Handle):
    """An open file; OSError: EBADMSG.

    stored: the buffer
    """

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(opening)
        self._stored = stored
        self._peek: Peek = stored.buffer.peek()
        stored.n_users += 1
        self._begun = stored.n_consumed()
        self._is_lost = False
        self._end = 0  # the offset of the next byte to copy
        self._has_ended = False  # the last read has found the end
        self._was_told_gone = False  # poll has told the program that no more will be written
        self._kept = bytearray()  # the bytes before it, which include the rest of a record that was read in part

    def state(self) -> Any:
        """Return where it begins and how much was copied."""
        return [self._begun, self._end, self._has_ended]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on behind what was copied, unless it was consumed meanwhile."""
        begun, end, has_ended = state
        self._is_lost = self._begun != begun and end > 0
        while not self._is_lost and self._end < end:
            data = self._copy(min(BLOCK_SIZE, end - self._end))
            self._is_lost = not data
            self._end += len(data)
            self._kept = (self._kept + data)[-KEPT_BYTES:]
        self._has_ended = has_ended

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that are kept."""
        return len(self._kept)

    def drop_kept(self) -> None:
        """Free them; if they are read again, they are copied again."""
        self._kept.clear()

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return data at an offset; b"": it is at the end or after it. OSError: ESPIPE, EFBIG, EINTR, EBADMSG."""
        return await acts.streams.interruptible(partial(self._read, acts.streams, offset, size, request), request)

    async def _read(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        async with streams.peeks.of(self.number):
            return await self._read_in_turn(streams, offset, size, not request.nonblocking)

    async def _read_in_turn(self, streams: Streams, offset: int, size: int, may_sleep: bool) -> bytes:
        if self._is_lost:
            raise failure(errno.ESPIPE)
        if offset < self._end - len(self._kept):
            self._peek.rewind()
            self._end = 0
            self._kept.clear()
        if (self._has_ended or self._was_told_gone) and offset == self._end:
            self._peek.more()
        self._has_ended = False
        # Programs take a read that returns less for the last one.
        while self._end < offset + size:
            data = await streams.when_free(lambda: self._copy(size), may_sleep)
            if offset > self._end and self._peek.has_skipped:
                raise failure(errno.ESPIPE)
            if not data:
                break
            self._end += len(data)
            self._kept += data
            del self._kept[: -max(KEPT_BYTES, self._end - offset)]
            await streams.let_others_run()
        if offset >= self._end:
            self._has_ended = True
            return b""
        begin = len(self._kept) - (self._end - offset)
        return bytes(self._kept[begin : begin + size])

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return the events that hold now: a read never waits; after the channel was removed, all is read."""
        self._was_told_gone |= bool(self._stored.buffer.state() & native.IS_CLOSED)
        return READABLE | (GONE if self._was_told_gone else 0)

    def _copy(self, size: int) -> bytes:
        """Return the next data: at most `size` bytes, unless a record is longer; OSError: EFBIG, it is too long."""
        while True:
            try:
                return self._peek.copy(size)
            except OSError as error:
                # Damage is not noted: whoever consumes the data may get along with it.
                if error.errno != errno.EMSGSIZE:
                    raise
            if size >= LONGEST_BYTES:
                raise failure(errno.EFBIG)
            size = min(max(2 * size, BLOCK_SIZE), LONGEST_BYTES)

    async def close(self, acts: Acts) -> None:
        """Free the peek."""
        self._peek.close()
        self._stored.n_users -= 1
