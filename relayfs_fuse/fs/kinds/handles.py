"""Open files, apart from how the kernel asks for them.

Those of relay files are in relay.py and ring.py. What takes time they ask of `acts` (requests/acts.py).
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.channel_files import HoldFile
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.nodes import JoinFile, TextFile
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.traces.sessions import Session

TOKEN_BYTES = 8


class Handle:
    """An open file.

    number: the kernel's for it
    stored: the memory that it may wait for; None: it is always ready
    is_stream: whether it has no position, and cannot be mapped
    by_mem: whether it is open on the memory itself
    skips: whether discarded records are skipped for who polls it
    needs_kept: whether nothing can be read of it without what it keeps
    """

    stored: Stored[Any] | None = None
    is_stream = False
    by_mem = False
    skips = False
    needs_kept = False

    def __init__(self, opening: Opening) -> None:
        self.number = opening.number

    @property
    def is_inside(self) -> bool:
        """Whether a part of a record was given, and the rest comes next."""
        return False

    @property
    def kept_bytes(self) -> int:
        """How much of the server's memory it takes, at its opener's charge, to give the same again."""
        return 0

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is at an offset, or next."""
        raise NotImplementedError

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Take what is written; by default, refuse."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def ended(self) -> Iterable[Handle]:
        """Return the open files that end, now that the kernel has closed this one."""
        return (self,)

    async def close(self, acts: Acts) -> None:
        """Let go of what it has."""

    def drop_kept(self) -> None:
        """Take none of the server's memory."""

    def note_terminal(self) -> None:
        """Note that somebody has asked whether it is a terminal."""


# ---------------------------------------------------------------- texts


class TextHandle(Handle):
    """An open text: what it was when it was last read from the beginning.

    opener: who opened it, and decides what a write may do
    """

    needs_kept = True

    def __init__(self, node: TextFile, opening: Opening) -> None:
        super().__init__(opening)
        self.node = node
        self.opener = opening.opener
        self._text: bytes | None = None

    def part(self, offset: int, size: int) -> bytes:
        """Return a part of it."""
        if self.node.read is not None:
            return self.node.read(offset, size)
        if (offset == 0 or self._text is None) and not self.node.removed:
            self._text = self.node.text()
        if self._text is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self._text[offset : offset + size]

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return a part of it; others are served while a text is made that takes long."""
        if self.node.is_slow:
            return await acts.in_turn(self.opener, lambda: self.part(offset, size))
        return self.part(offset, size)

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Do what the file is for."""
        await self.node.write(acts, data, self.opener)

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
    is_closed: the kernel has closed it
    """

    # Where the token is to be read: behind the end of every answer.
    TOKEN_AT = 1 << 20
    # Where the id of the event is to be read that was declared last.
    DECLARED_AT = 2 << 20

    def __init__(self, node: JoinFile, opening: Opening) -> None:
        super().__init__(node, opening)
        self.session: Session | None = None
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.is_busy = False
        self.is_closed = False
        self._begin = 0
        self._open = node.open_by_token
        self._open[self.token] = self

    def part(self, offset: int, size: int) -> bytes:
        """Return a part of the directory's name, the token, or an event's id."""
        if offset == self.TOKEN_AT:
            return self.token[:size]
        if offset == self.DECLARED_AT:
            return struct.pack("<Q", self.session.declared_id)[:size] if self.session else b""
        if offset < self._begin:
            self._begin = 0  # by pread(2): for that reader the answer begins at 0
        answer = os.fsencode(f"{self.session.name}\n") if self.session else b""
        return answer[offset - self._begin :][:size]

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Carry out a request; who writes and reads at the descriptor's position finds the answer behind it."""
        await acts.ask(self, data)
        self._begin = offset + len(data)

    async def close(self, acts: Acts) -> None:
        """Take part no longer."""
        self.is_closed = True
        del self._open[self.token]
        await acts.leave(self)


# ---------------------------------------------------------------- memory


class StoredHandle(Handle):
    """An open file of a buffer."""

    stored: Stored[Any]
    _is_told = False

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(opening)
        self.stored = stored

    def tell_maker(self, opening: Opening) -> None:
        """Tell the channel's maker that somebody else can map it, and later of its end."""
        maker = self.stored.channel.maker
        self._is_told = not (maker and opening.opener.pid == maker)
        if self._is_told:
            self.stored.count_mapped(True)

    async def close(self, acts: Acts) -> None:
        """Let nobody wait for it any more."""
        if self._is_told:
            self.stored.count_mapped(False)
        acts.streams.waiting.forget(self.stored, self.number)


class RelayHandle(StoredHandle):
    """An open relay file.

    pid: the thread that opened it
    reads: whether it is open for reading
    """

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(stored, opening)
        self.pid = opening.request.pid
        self.reads = opening.reads

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return what is next, or leave it to the tap to put it into the reply."""
        return await acts.streams.read(self, offset, size, request)

    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Do so; is cancelled if the read(2) is interrupted."""
        raise NotImplementedError

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Write a record."""
        await acts.streams.write(self.stored, data, request)


def is_patient(offset: int, request: tap.Request) -> bool:
    """Whether a read(2) of a stream may sleep.

    A stream has no position: an offset means that this is the rest of a long read(2), part of which was served.
    """
    return offset == 0 and not request.nonblocking


class MemHandle(StoredHandle):
    """An open memory file.

    opener: who opened it
    token: names it in the memory itself, so that what a producer had reserved is known when the producer dies
    n_open: how many open files keep it open: itself, and those of class HoldHandle
    unlist: is called when it ends, if somebody has looked for the HoldFile that stands for it
    """

    by_mem = True

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(stored, opening)
        self.opener = opening.opener
        self.token = secrets.randbits(63) | 1
        self.n_open = 1
        self.unlist: Callable[[], None] | None = None
        self.tell_maker(opening)
        stored.memories[self.token] = self

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return a part of the memory; the token to who asks at its very end for just that many bytes.

        Everybody else finds the end of the file there, so that memory can be copied like a file.
        """
        if offset == self.stored.channel.stats.file_bytes and size == TOKEN_BYTES:
            return self.token.to_bytes(TOKEN_BYTES, "little")
        return os.pread(self.stored.descriptor, size, offset)

    def ended(self) -> Iterable[Handle]:
        """Return it, if nothing else keeps it open."""
        self.n_open -= 1
        return () if self.n_open else (self,)

    async def close(self, acts: Acts) -> None:
        """End what was reserved through it."""
        del self.stored.memories[self.token]
        if self.unlist is not None:
            self.unlist()
        await super().close(acts)
        self.stored.buffer.resolve(self.token)
        acts.streams.waiting.tell(self.stored)


class HoldHandle(TextHandle):
    """An open file that keeps a memory file open."""

    def __init__(self, node: HoldFile, opening: Opening) -> None:
        super().__init__(node, opening)
        held = node.held()
        if held is None or not held.n_open:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        held.n_open += 1
        self._held = held

    def ended(self) -> Iterable[Handle]:
        """Return it, and the memory file, if nothing else keeps that open."""
        return self, *self._held.ended()
