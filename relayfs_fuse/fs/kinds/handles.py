"""Handles: the open files of the mount, and what read(2), write(2) and close(2) do to them.

A node (nodes.py) makes a handle in its open(); requests/files.py calls the handle's methods. Handles of relay files are
in relay.py and ring.py. A handle passes work that may block to `acts` (requests/acts.py).
"""

from __future__ import annotations

import errno
import os
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import failure
from relayfs_fuse.fs import tap
from relayfs_fuse.fs.kinds.base import GONE, READABLE, WRITABLE
from relayfs_fuse.fs.notes import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyfuse3

    from relayfs_fuse.fs.channel_files import HoldFile
    from relayfs_fuse.fs.kinds.base import Stored
    from relayfs_fuse.fs.nodes import JoinFile, TextFile
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.requests.streams import Streams
    from relayfs_fuse.fs.traces.sessions import Session

TOKEN_BYTES = 8


class Handle(ABC):
    """An open file.

    number: the file handle that the kernel uses in requests (fuse_open_out.fh)
    is_stream: whether the file has no position (FOPEN_STREAM) and cannot be mapped
    needs_kept: whether a read fails if the data that the handle keeps does not fit the user's budget
    """

    is_stream = False
    needs_kept = False

    def __init__(self, opening: Opening) -> None:
        self.number = opening.number

    def state(self) -> Any:
        """Return what another server has to know to go on with it, as JSON can have it."""
        return None

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on where another server has died: `state` is what state() returned there."""

    @property
    def kept_bytes(self) -> int:
        """The bytes of data that it keeps so that the same can be read again; they count for its opener's budget."""
        return 0

    @abstractmethod
    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return at most `size` bytes, from `offset` or, if it is a stream, the next ones; OSError."""

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Carry out a request to write; by default, OSError: EINVAL."""
        raise failure(errno.EINVAL)

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return the events that hold now; by default, the file is always ready.

        notify: notifies the kernel when they change; None: the program does not wait for that
        """
        return READABLE | WRITABLE

    def ended(self) -> Iterable[Handle]:
        """Return the handles to close, after the kernel has released this one."""
        return (self,)

    async def close(self, acts: Acts) -> None:
        """Release what the handle holds; no other method is called after this one."""

    def drop_kept(self) -> None:
        """Free the data that `kept_bytes` counts."""

    def note_terminal(self) -> None:
        """Note that a program has called isatty(3) for this file."""


class GoneHandle(Handle):
    """An open file that a dead server had open, and of which nothing is left: its channel or trace was removed."""

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Raise OSError: ESTALE."""
        raise failure(errno.ESTALE)

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Raise OSError: ESTALE."""
        raise failure(errno.ESTALE)

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return GONE."""
        return GONE


# ---------------------------------------------------------------- texts


class TextHandle(Handle):
    """An open text file, whose contents are made at each read from offset 0, and kept for the reads that follow.

    opener: the credentials of open(2), which decide what a write may do
    """

    needs_kept = True

    def __init__(self, node: TextFile, opening: Opening) -> None:
        super().__init__(opening)
        self.node = node
        self.opener = opening.opener
        self._text: bytes | None = None
        self._noted: bytes | None = None

    def restore(self, state: Any, acts: Acts) -> None:
        """Keep the text that the program has begun to read."""
        self._text = self._noted = acts.notes.get(TEXT, self.number)

    def part(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes of the contents from `offset`; OSError: ENODEV if the node was removed before."""
        if self.node.read is not None:
            return self.node.read(offset, size)
        if (offset == 0 or self._text is None) and not self.node.removed:
            self._text = self.node.text()
        if self._text is None:
            raise failure(errno.ENODEV)
        return self._text[offset : offset + size]

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return part(); a text that takes long is made in a worker thread."""
        if self.node.is_of_all:
            await acts.loaded.wait()
        if self.node.is_slow:
            data = await acts.in_turn(self.opener, lambda: self.part(offset, size))
        else:
            data = self.part(offset, size)
        if self._text is not self._noted and self._text is not None:
            with suppress(OSError):  # there is no room: another server would make it again
                acts.notes.put(TEXT, self.number, self._text)
            self._noted = self._text
        return data

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Have the node carry out the write."""
        await self.node.write(acts, data, self.opener, request.number)

    @property
    def kept_bytes(self) -> int:
        """The length of the text that is kept."""
        return len(self._text or b"")

    def drop_kept(self) -> None:
        """Free the text."""
        self._text = None


class JoinHandle(TextHandle):
    """An open `.traces/join`; its process takes part in a trace while it is open.

    The process writes requests (traces/registry.py) and reads the answer, the name of its directory.

    session: the process's part in a trace; None: it has not joined one
    token: the bytes by which setxattr(2) names this handle
    is_busy: whether a request is being carried out
    is_closed: whether the kernel has released the handle
    """

    # The file offset at which the token can be read; no answer is so long.
    TOKEN_AT = 1 << 20
    # The file offset at which the id of the event declared last can be read.
    DECLARED_AT = 2 << 20

    def __init__(self, node: JoinFile, opening: Opening) -> None:
        super().__init__(node, opening)
        self.session: Session | None = None
        self.token = os.urandom(TOKEN_BYTES)
        self.is_busy = False
        self.is_closed = False
        self._begin = 0
        self._open = node.open_by_token
        self._open[self.token] = self

    def state(self) -> Any:
        """Return the token, where the answer begins, and which session it is."""
        session = self.session
        named = session and [session.directory, *session.image, session.declared_id]
        return [self.token.hex(), self._begin, named]

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on with the session, which this server has inherited."""
        del self._open[self.token]
        token, self._begin, named = state
        self.token = bytes.fromhex(token)
        self._open[self.token] = self
        if named is not None:
            directory, *image, declared_id = named
            self.session = acts.tracing.reclaim(directory, image)
            if self.session is not None:
                self.session.declared_id = declared_id

    def part(self, offset: int, size: int) -> bytes:
        """Return a part of the answer, of the token, or of an event's id (uint64_t, little endian)."""
        if offset == self.TOKEN_AT:
            return self.token[:size]
        if offset == self.DECLARED_AT:
            return struct.pack("<Q", self.session.declared_id)[:size] if self.session else b""
        if offset < self._begin:
            self._begin = 0  # the process uses pread(2), which finds the answer at offset 0
        answer = os.fsencode(f"{self.session.name}\n") if self.session else b""
        return answer[offset - self._begin :][:size]

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Carry out a request; the answer begins at the offset behind it, where a following read(2) looks."""
        await acts.ask(self, data)
        self._begin = offset + len(data)

    async def close(self, acts: Acts) -> None:
        """End the process's part in its trace."""
        self.is_closed = True
        del self._open[self.token]
        await acts.leave(self)


# ---------------------------------------------------------------- memory


class StoredHandle(Handle):
    """An open file of a buffer: a relay file or a memory file.

    by_mem: whether it is a memory file
    skips: whether discarded records of `stored` are skipped while a program polls the file
    """

    by_mem = False
    skips = False
    _has_told_maker = False

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(opening)
        self.stored = stored
        stored.n_users += 1

    @property
    def is_inside(self) -> bool:
        """Whether a part of a record was returned by the last read, and the next read returns more of it."""
        return False

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return the events that hold now, as Handle.poll()."""
        waiting = acts.streams.waiting
        events = waiting.poll(self.stored, self.number, tap.poll_handle(), self.by_mem, self.skips)
        return events | (READABLE if self.is_inside else 0)

    def tell_maker(self, opening: Opening) -> None:
        """Tell the process that made the channel that another process can map the file, until the file is closed."""
        maker = self.stored.channel.maker
        self._has_told_maker = not (maker and opening.opener.pid == maker)
        if self._has_told_maker and not opening.is_again:
            self.stored.count_mapped(True)

    async def close(self, acts: Acts) -> None:
        """Take back tell_maker(), and end poll(2) of the file."""
        if self._has_told_maker:
            self.stored.count_mapped(False)
        acts.streams.waiting.forget(self.stored, self.number)
        self.stored.n_users -= 1


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
        """Return what take() returns; OSError: EINTR if the request is interrupted."""
        try:
            return await acts.streams.interruptible(partial(self.take, acts.streams, offset, size, request), request)
        except OSError as error:
            self.stored.note(error)
            raise

    @abstractmethod
    async def take(self, streams: Streams, offset: int, size: int, request: tap.Request) -> bytes:
        """Consume and return the next data, or return b"" if tap.read() puts the data into the reply.

        It is cancelled if the read(2) is interrupted.
        """

    async def write(self, acts: Acts, offset: int, data: bytes, request: tap.Request) -> None:
        """Write one record."""
        await acts.streams.write(self.stored, data, request)


def read_may_sleep(offset: int, request: tap.Request) -> bool:
    """Whether a request to read a stream may wait for data.

    A stream has no position, so only the rest of a long read(2), of which a part was served already, has an offset.
    """
    return offset == 0 and not request.nonblocking


class MemHandle(StoredHandle):
    """An open memory file.

    opener: the credentials of open(2)
    token: a random number that producers which use this open file write into their claims; when the file is closed,
        the server resolves the claims that have it
    n_open: how many open files keep this one open: itself, and each HoldHandle of it
    is_released: whether the program has closed it, and a HoldHandle keeps it open
    unlist: a function to call at close(), if a program has looked up the HoldFile of this open file
    """

    by_mem = True

    def __init__(self, stored: Stored[Any], opening: Opening) -> None:
        super().__init__(stored, opening)
        self.opener = opening.opener
        self.token = int.from_bytes(os.urandom(8), "little") >> 1 | 1
        self.n_open = 1
        self.is_released = False
        self.unlist: Callable[[], None] | None = None
        self.tell_maker(opening)
        stored.memories[self.token] = self

    def state(self) -> Any:
        """Return the token, and whether only a HoldHandle keeps it open."""
        return [self.token, self.is_released]

    def restore(self, state: Any, acts: Acts) -> None:
        """Take the token that producers know."""
        del self.stored.memories[self.token]
        self.token, self.is_released = state
        self.n_open = 0 if self.is_released else 1  # HoldHandles are opened later
        self.stored.memories[self.token] = self

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return a part of the memory; a read of TOKEN_BYTES at the end of the file returns the token, little endian.

        Any other read there returns b"", so that programs can copy the file.
        """
        if offset == self.stored.channel.stats.file_bytes and size == TOKEN_BYTES:
            return self.token.to_bytes(TOKEN_BYTES, "little")
        return os.pread(self.stored.descriptor, size, offset)

    def ended(self) -> Iterable[Handle]:
        """Return this handle, unless a HoldHandle keeps it open."""
        self.n_open -= 1
        self.is_released = True
        return () if self.n_open else (self,)

    async def close(self, acts: Acts) -> None:
        """Resolve the claims of producers that used this open file, and wake readers."""
        del self.stored.memories[self.token]
        if self.unlist is not None:
            self.unlist()
        with self.stored.held():
            await super().close(acts)
            self.stored.buffer.resolve(self.token)
        acts.streams.waiting.tell(self.stored)


class HoldHandle(TextHandle):
    """An open HoldFile, which keeps an open memory file open; OSError: ESTALE if that is closed already."""

    def __init__(self, node: HoldFile, opening: Opening) -> None:
        super().__init__(node, opening)
        held = node.held()
        if held is None or not (held.n_open or opening.is_again):
            raise failure(errno.ESTALE)
        held.n_open += 1
        self._held = held

    def ended(self) -> Iterable[Handle]:
        """Return this handle and, if nothing else keeps it open, the memory file's."""
        return self, *self._held.ended()
