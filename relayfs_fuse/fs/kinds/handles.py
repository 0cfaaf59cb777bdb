"""Open files, apart from how the kernel asks for them."""

from __future__ import annotations

import errno
import os
import secrets
import struct
from typing import TYPE_CHECKING, Any

from relayfs_fuse.fs.kinds.ring import RingHandle

if TYPE_CHECKING:
    from relayfs_fuse.fs.channel_files import HoldFile
    from relayfs_fuse.fs.counter_files import CounterFile
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.kinds.relay import StoredBuffer
    from relayfs_fuse.fs.nodes import TextFile
    from relayfs_fuse.fs.requests.opener import Opener
    from relayfs_fuse.fs.traces.sessions import Session
    from relayfs_fuse.native.library import Fields

TOKEN_BYTES = 8

# How much of what was given last can be given again. Of large blocks only the end: a copy takes time.
KEPT_MAX = 1 << 20
LARGE_BYTES = 128 << 10
KEPT_OF_LARGE = 16 << 10


class TextHandle:
    """An open text: what it was when it was last read from the beginning.

    opener: who opened it, and decides what a write may do
    """

    def __init__(self, node: TextFile, opener: Opener) -> None:
        self.node = node
        self.opener = opener
        self._text: bytes | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of it."""
        if (offset == 0 or self._text is None) and not self.node.removed:
            self._text = self.node.text()
        if self._text is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self._text[offset : offset + size]

    @property
    def kept_bytes(self) -> int:
        """How much of the server's memory it takes."""
        return len(self._text or b"")

    def drop_kept(self) -> None:
        """Take none of it."""
        self._text = None


class JoinHandle(TextHandle):
    """An open `join`: a process takes part in a trace as long as it is.

    session: where; None: nowhere yet
    token: names this handle in requests that are no write(2)
    is_busy: a request of it is being carried out
    """

    # Where the token is to be read: behind the end of every answer.
    TOKEN_AT = 1 << 20
    # Where the id of the event is to be read that was declared last.
    DECLARED_AT = 2 << 20

    def __init__(self, node: TextFile, opener: Opener) -> None:
        super().__init__(node, opener)
        self.session: Session | None = None
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.is_busy = False
        self._begin = 0

    def asked(self, end: int) -> None:
        """Note where a request ended: who writes and reads at the descriptor's position finds the answer behind it."""
        self._begin = end

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of the directory's name, the token, or an event's id."""
        if offset == self.TOKEN_AT:
            return self.token[:size]
        if offset == self.DECLARED_AT:
            return struct.pack("<Q", self.session.declared_id)[:size] if self.session else b""
        if offset < self._begin:
            self._begin = 0  # by pread(2): for that reader the answer begins at 0
        answer = os.fsencode(f"{self.session.name}\n") if self.session else b""
        return answer[offset - self._begin :][:size]


class CounterFileHandle(TextHandle):
    """An open file of the counters' directory."""

    def __init__(self, node: CounterFile, opener: Opener) -> None:
        super().__init__(node, opener)
        self._file = node

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of it."""
        return self._file.read(offset, size)


class RelayHandle:
    """An open relay file.

    stored: its buffer
    start: how many bytes had passed at the open: to whoever opened it, the file begins there
    pid: the thread that opened it
    """

    def __init__(self, stored: StoredBuffer, stats: Fields, pid: int) -> None:
        self.stored = stored
        self.start = stats.passed_bytes
        self.pid = pid

    def start_for_size(self, stats: Fields) -> int:
        """Tell where the file begins; a reset begins a new one."""
        return self.start if self.start <= stats.passed_bytes else 0


class StreamHandle(RelayHandle):
    """One without a position: its readers wait for data, as with a pipe."""


class SeekableHandle(RelayHandle):
    """An open relay file that can be sought, though it is a stream.

                      end: the next unread byte
          0            v
          |... given ..|.... looked at ....|          the descriptor's offsets
            '-- kept --'

    Reading on from `end` consumes. A read further on looks at data that stays unread, so that `tail` finds the end of
    a file and `head -n -5` may return to its beginning; whoever then reads on where it has looked, or closes, has read
    all up to there. Programs that took more than they need and go back, as shells do, get what is kept again.

    end: offset of what is given next
    looked: offset up to which it has looked last, and the stream position there; None: never
    seen: stream position up to which it has looked at most
    written: offset to which a write has moved the descriptor; None: it was moved otherwise since
    by_line: the next short read gets a line at most, as from a terminal
    """

    def __init__(self, stored: StoredBuffer, stats: Fields, pid: int) -> None:
        super().__init__(stored, stats, pid)
        self.end = 0
        self.looked: tuple[int, int] | None = None
        self.seen = 0
        self.written: int | None = None
        self.by_line = False
        self._consumed = stats.consumed_bytes  # up to here in the stream, at least
        self._kept = bytearray()
        self._goes_back = False

    def start_for_size(self, stats: Fields) -> int:
        """Tell where the file begins."""
        return 0 if self.was_reset(stats) else self.start

    def was_reset(self, stats: Fields) -> bool:
        """Tell whether the stream began anew: less of it is consumed than was when something was given here."""
        return stats.consumed_bytes < self._consumed

    def begin_anew(self, offset: int) -> None:
        """Let what is next in a new stream be that at an offset; what was kept is of no use then."""
        self.start = self._consumed = self.seen = 0
        self.end, self.looked = offset, None
        self._kept.clear()

    def follow_write(self, offset: int) -> None:
        """Let reading go on, at an offset, where it was, if it is a write that has moved the descriptor there."""
        if offset == self.written:
            if self.looked:
                self.looked = self.looked[0] + offset - self.end, self.looked[1]
            self.end = offset
        self.written = None

    def again(self, offset: int, size: int) -> bytes:
        """Return what was given at this offset before."""
        back = self.end - offset
        if back > len(self._kept):
            # It was consumed, and is no longer kept.
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        self._goes_back = True
        first = len(self._kept) - back
        return bytes(self._kept[first : first + size])

    def keeps_of(self, length: int) -> int:
        """Tell how many of the bytes that are given now are worth a copy.

        All, unless somebody reads large blocks one after the other, and has never gone back.
        """
        if length < LARGE_BYTES or self._goes_back or not self._kept:
            return length
        return KEPT_OF_LARGE

    def give(self, offset: int, length: int, behind: int, kept: bytes) -> None:
        """Note what is given now.

        behind: the stream position behind it
        kept: its last bytes, or all
        """
        if behind - length < self._consumed:
            self.begin_anew(offset)
        self.skip(offset + length, kept)
        self._consumed = behind

    def skip(self, offset: int, kept: bytes) -> None:
        """Note that what was looked at is read, up to an offset.

        kept: its last bytes, or all
        """
        if len(kept) < offset - self.end:
            self._kept.clear()
        self._kept += kept
        del self._kept[:-KEPT_MAX]
        self.end = offset

    @property
    def kept_bytes(self) -> int:
        """How much of the server's memory it takes."""
        return len(self._kept)

    def drop_kept(self) -> None:
        """Take none of it: what was given cannot be given again."""
        self._kept = bytearray()

    def look(self, offset: int, length: int, behind: int) -> None:
        """Note what is looked at now."""
        self.looked = offset + length, behind
        if length:
            self.seen = max(self.seen, behind)


class MemHandle:
    """An open memory file.

    number: the kernel's for it
    opener: who opened it
    token: names it in the memory itself, so that what a producer had reserved is known when the producer dies
    n_open: how many open files keep it open: itself, and those of class HoldHandle
    hold: directory and name of the HoldFile that stands for it; None: nobody has looked for that
    """

    def __init__(self, stored: Stored[Any], number: int, opener: Opener) -> None:
        self.stored = stored
        self.number = number
        self.opener = opener
        self.token = secrets.randbits(63) | 1
        self.n_open = 1
        self.hold: tuple[str, str] | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return a part of the memory; the token to who asks at its very end for just that many bytes.

        Everybody else finds the end of the file there, so that memory can be copied like a file.
        """
        if offset == self.stored.channel.stats.file_bytes and size == TOKEN_BYTES:
            return self.token.to_bytes(TOKEN_BYTES, "little")
        return os.pread(self.stored.descriptor, size, offset)


class HoldHandle(TextHandle):
    """An open file that keeps a memory file open.

    held: that one
    """

    def __init__(self, node: HoldFile, opener: Opener) -> None:
        super().__init__(node, opener)
        held = node.held()
        if held is None or not held.n_open:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        held.n_open += 1
        self.held = held


Handle = TextHandle | RelayHandle | RingHandle | MemHandle
