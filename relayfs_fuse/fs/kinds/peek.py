"""Open files peekN: what was unread in a buffer when the file was opened. Reading them consumes nothing.

They have the bytes that the relay file would return. A read at the end returns nothing once; the reads behind it go on
with what was written since. After poll(2) has said POLLHUP, the reads go on up to the last record of the channel. A
program may read them at any offset: a read before the last bytes, which are kept, copies the data again from the
beginning. Data that was overwritten or consumed before it was copied is not there, and offsets count what was read. So
a read fails with ESPIPE if data before its offset cannot be copied again. A read that fails changes nothing.

If the server dies, the next one goes on with the same bytes, also if what was read has been consumed meanwhile.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE, GONE, READABLE
from relayfs_fuse.fs.kinds.handles import Handle
from relayfs_fuse.fs.kinds.kept import Kept

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
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
        self._end = 0  # the offset of the next byte to copy
        self._has_ended = False  # the last read has found the end
        self._was_told_gone = False  # poll has told the program that no more will be written
        self._kept = Kept(self.number)  # the bytes before it, which include the rest of a record that was read in part
        self._n_added = 0  # to them, so far

    def state(self) -> Any:
        """Return how far it has copied, and what is kept."""
        told = self._has_ended, self._was_told_gone
        return [self._peek.save().hex(), self._end, *told, len(self._kept), self._n_added]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on behind what was copied."""
        saved, self._end, self._has_ended, self._was_told_gone, n_kept, self._n_added = state
        self._peek.restore(bytes.fromhex(saved))
        self._kept.restore(acts.notes, n_kept, self._n_added)

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that are kept."""
        return len(self._kept)

    def drop_kept(self) -> None:
        """Free them; if they are read again, they are copied again."""
        self._kept.clear()

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return data at an offset; b"": it is at the end or after it. OSError: ESPIPE, EFBIG, EINTR, EBADMSG."""
        return await acts.streams.interruptible(partial(self._read, acts, offset, size, request), request)

    async def _read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        async with acts.streams.peeks.of(self.number):
            saved = self._peek.save()
            try:
                return await self._read_in_turn(acts, offset, size, not request.nonblocking)
            except BaseException:  # also if it is interrupted
                self._peek.restore(saved)
                raise

    async def _read_in_turn(self, acts: Acts, offset: int, size: int, may_sleep: bool) -> bytes:
        """Do as read(); if it fails, only the peek has changed."""
        begins_again, end, copied = offset < self._end - len(self._kept), self._end, bytearray()
        if begins_again:
            self._peek.rewind()
            end = 0
        if (self._has_ended or self._was_told_gone) and offset == end:
            self._peek.more()
        # Programs take a read that returns less for the last one.
        while end < offset + size:
            length = max(size, min(offset - end, BLOCK_SIZE))
            data = await acts.streams.when_free(partial(self._copy, length), may_sleep)
            if offset > end and self._peek.has_skipped:
                raise failure(errno.ESPIPE)
            if not data:
                break
            end += len(data)
            copied += data
            del copied[: -max(KEPT_BYTES, end - offset)]
            await acts.streams.let_others_run()
        back = self._end - offset
        given = self._kept.part(back, size) if back > 0 and not begins_again else b""
        given += copied[max(0, offset - (end - len(copied))) :][: size - len(given)]
        self._has_ended, self._end = offset >= end, end
        most = max(KEPT_BYTES, end - offset - size)
        kept = bytes(copied[-most:])
        self._n_added += len(kept)
        self._kept.add(acts.notes, kept, self._n_added, len(kept) if begins_again else most)
        return given

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
