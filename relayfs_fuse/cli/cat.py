"""relayctl cat: write what is unread in all buffers of a channel to the standard output.

In a store that has no server, --peek and --merge read the buffers as the server does for its files peekN and merged.
"""

from __future__ import annotations

import errno
import os
import select
import time
from abc import abstractmethod
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli import complete
from relayfs_fuse.cli.channel import Channel, map_channel
from relayfs_fuse.cli.common import check_stdout, mount_option
from relayfs_fuse.cli.lines import Lines, Stopped
from relayfs_fuse.cli.opened import open_first
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native import IS_CLOSED, IS_DAMAGED, ReaderHandle
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.ring import CONS_POS, PROD_POS, RingsHandle
from relayfs_fuse.native.tables import OPTIONS
from relayfs_fuse.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native import ChannelMemory
    from relayfs_fuse.reading.source import Root

# The first and the longest pause after a round that has found nothing.
_PAUSE_FIRST_S = 0.001
_PAUSE_LAST_S = 0.025
# How long to try if another reader is at work in a buffer.
_BUSY_S = 10.0
_BLOCK_BYTES = 256 << 10


class Source(Closing):
    """A buffer, or a file of the mount, that is read piece by piece.

    is_over: whether there will be no more
    """

    is_over = False

    @abstractmethod
    def pass_on(self, out: Lines) -> bool:
        """Write the next piece and consume it; False: there is none now. OSError: EBUSY, another reader is at work.

        RelayError: it could not be written as a whole, and is consumed all the same
        """


def _write_consumed(data: bytes, out: Lines) -> None:
    """Write data that is already consumed; RelayError: how much of it is lost, and why."""
    end = out.n_written + len(data)
    try:
        out.write(memoryview(data))
    except (OSError, Stopped) as error:
        why = error.strerror if isinstance(error, OSError) else "a signal came, and nobody reads the output"
        raise RelayError(
            f"{end - out.n_written} bytes are lost: they were consumed, and could not be written: {why}"
        ) from error


class BufferSource(Source):
    """A relay file, which is read without a copy.

    relay_file: its path
    copies: whether writers may overwrite a piece while it is written; then a copy that is intact is written
    n_bytes: after how many bytes to end, for writers that are faster; None: never
    """

    def __init__(self, relay_file: str, *, copies: bool, n_bytes: int | None) -> None:
        self._reader = ReaderHandle(relay_file)
        self._copies = copies
        self._left = n_bytes

    def close(self) -> None:
        """Close it; a piece that was not written as a whole stays unread."""
        self._reader.close()

    def pass_on(self, out: Lines) -> bool:
        """Write the next piece, and consume it."""
        piece = self._reader.next(0)
        if piece is None:
            self.is_over = self._reader.finished()
            return False
        if self._left is not None:
            self._left -= len(piece)
            self.is_over = self._left <= 0
        if not self._copies:
            out.write(piece)
            self._reader.done()
            return True
        copy = bytes(piece)
        try:
            self._reader.done()
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            return True  # it counts as overwritten
        _write_consumed(copy, out)
        return True


class RingSource(Source):
    """A ring.

    rings: all rings of the channel, which stay the caller's
    index: which of them
    follows: whether to go on with what is written later than now
    """

    def __init__(self, rings: RingsHandle, index: int, *, follows: bool) -> None:
        self._rings = rings
        self._index = index
        self._until = None if follows else rings.query(index, PROD_POS)
        self._size = _BLOCK_BYTES

    def close(self) -> None:
        """Do nothing."""

    def pass_on(self, out: Lines) -> bool:
        """Write the next records, and consume them; in overwrite mode they are consumed before."""
        try:
            records = self._rings.next_framed(self._index, self._size)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            self._size *= 2
            return True
        if self._rings.overwrite:
            _write_consumed(records or b"", out)
        else:
            try:
                out.write(memoryview(records or b""))
            except BaseException:
                self._rings.abort(self._index)
                raise
            self._rings.release(self._index)
        is_past = self._until is not None and self._rings.query(self._index, CONS_POS) >= self._until
        self.is_over = records is None or is_past
        return bool(records)


class FileSource(Source):
    """A file of the mount: peekN, merged, or the relay file of a ring that cannot be mapped.

    path: its path
    follows: whether to go on at its end, until the channel is removed
    consumes: whether what is read of it is consumed
    """

    def __init__(self, path: str, *, follows: bool, consumes: bool = False) -> None:
        self._write = _write_consumed if consumes else lambda data, out: out.write(memoryview(data))
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if follows or consumes else 0))
        self._poll = select.poll() if follows else None
        if self._poll is not None:
            self._poll.register(self._descriptor, select.POLLIN)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def pass_on(self, out: Lines) -> bool:
        """Write what is there."""
        # A file `merged` that was polled shows no end. After the removal there is what was written before.
        events = 0 if self._poll is None else sum(bits for _, bits in self._poll.poll(0))
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _BLOCK_BYTES)
        self.is_over = not data and (self._poll is None or bool(events & (select.POLLHUP | select.POLLERR)))
        self._write(data, out)
        return bool(data)


class PeekSource(Source):
    """A mem file of a store, of which a copy is read, and nothing consumed.

    memory: the mapped file, which stays the caller's
    follows: whether to go on with what is written later, until the channel is removed
    """

    def __init__(self, memory: ChannelMemory, *, follows: bool) -> None:
        self._memory = memory
        self._peek = memory.peek()
        self._follows = follows
        self._size = _BLOCK_BYTES

    def close(self) -> None:
        """Free the copy."""
        self._peek.close()

    def pass_on(self, out: Lines) -> bool:
        """Write what is there."""
        is_closed = bool(self._memory.state() & (IS_CLOSED | IS_DAMAGED))
        try:
            data = self._peek.copy(self._size)
            if not data and self._follows:
                self._peek.more()
                data = self._peek.copy(self._size)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            self._size *= 2
            return True
        self.is_over = not data and (is_closed or not self._follows)
        out.write(memoryview(data))
        return bool(data)


def _buffers(stack: ExitStack, place: Place, follows: bool) -> list[Source]:
    copies = place.option("mode") != "no-overwrite"
    return [
        stack.enter_context(BufferSource(file, copies=copies, n_bytes=None if follows else place.unread_bytes(number)))
        for number, file in zip(place.numbers, place.relay_files, strict=True)
    ]


def _rings(stack: ExitStack, place: Place, follows: bool) -> list[Source]:
    rings = RingsHandle(place.channel)
    stack.callback(rings.close)
    if rings.is_mapped:
        return [RingSource(rings, number, follows=follows) for number in range(rings.n)]
    return [stack.enter_context(FileSource(file, follows=follows, consumes=True)) for file in place.relay_files]


def _peeks(stack: ExitStack, place: Place, follows: bool) -> list[Source]:
    if isinstance(place, StoredPlace):
        return [stack.enter_context(PeekSource(memory, follows=follows)) for memory in place.memories]
    names = (f"peek{number}" for number in place.numbers)
    return [stack.enter_context(FileSource(os.path.join(place.stats, name), follows=follows)) for name in names]


def _merged(stack: ExitStack, place: Place, follows: bool) -> list[Source]:
    if place.option("times") == "none":
        raise RelayError(
            f"the records of {place.path} have no times, so they have no order; make the channel with times=mono"
        )
    return [stack.enter_context(FileSource(os.path.join(place.stats, "merged"), follows=follows))]


# By the type of the channel, or by the option: opens the buffers of the channel, which the stack closes.
_OPEN = {"relay": _buffers, "ring": _rings, "--peek": _peeks, "--merge": _merged}


class Place:
    """A channel in a mount; OSError: ENOENT, there is none; MountError: its files are none of a server.

    path: its path in the mount
    channel: the path of its relay files without the number
    stats: the directory of its statistics
    type: relay or ring
    option: returns the word with which an option was given, by its key
    numbers: those of its buffers. There need not be as many files, if the mount is another user's
    relay_files: their paths
    """

    def __init__(self, mount: str, path: str) -> None:
        self._shown = shown = Shown(mount, path)
        self.stats = shown.directory
        kind = shown.type()
        self._describe(mount, path, kind, shown.n_buffers(), lambda key: shown.option(kind, key))

    def _describe(self, root: str, path: str, kind: str, n: int, option: Callable[[str], str]) -> None:
        self.path, self.type, self.option = path, kind, option
        self.channel = os.path.join(root, path)
        self._is_single = option("buffers") == "single"
        self.numbers = range(1 if self._is_single else n)

    def close(self) -> None:
        """Do nothing."""

    def unread_bytes(self, number: int) -> int | None:
        """Return how many bytes are unread in a buffer of a relay channel; None: it cannot be known."""
        return self._shown.statistic(f"buffer{number}/unread_bytes")

    @property
    def relay_files(self) -> Iterator[str]:  # noqa: D102
        return (self.channel if self._is_single else f"{self.channel}{number}" for number in self.numbers)


class StoredPlace(Place):
    """A channel in a store that has no server; FileNotFoundError: there is none; StoreError: it cannot be used.

    memories: its mapped mem files
    """

    def __init__(self, store: str, path: str) -> None:
        kind, self.memories = map_channel(store, path)
        stats, options = self.memories[0].stats(), OPTIONS[kind.name]
        self._describe(
            store,
            path,
            kind.name,
            len(self.memories),
            lambda key: options[key].format(getattr(stats, options[key].field)),
        )

    def unread_bytes(self, number: int) -> int | None:  # noqa: D102
        return int(self.memories[number].stats().unread_bytes)

    def close(self) -> None:
        """Unmap the mem files."""
        for memory in self.memories:
            memory.close()


def _open_place(root: Root, path: str) -> Place:
    return StoredPlace(root.place, path) if root.is_store else Place(root.place, path)


def _pass_on(source: Source, out: Lines) -> bool:
    """Pass on a piece; if another reader is at work, try again for a while."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            return source.pass_on(out)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        if out.is_told_to_end:
            return False
        time.sleep(_PAUSE_FIRST_S)


def _drain(sources: list[Source], out: Lines) -> None:
    for source in sources:
        while not (source.is_over or out.is_told_to_end) and _pass_on(source, out):
            pass


def _follow(sources: list[Source], out: Lines) -> None:
    pause_s = _PAUSE_FIRST_S
    while sources and not out.is_told_to_end:
        if sum(_pass_on(source, out) for source in sources):
            pause_s = _PAUSE_FIRST_S
        else:
            out.wait(pause_s, None)
            pause_s = min(2 * pause_s, _PAUSE_LAST_S)
        sources = [source for source in sources if not source.is_over]


def _show_merged(place: StoredPlace, out: Lines, follows: bool) -> None:
    from relayfs_fuse.cli.delay import delay_of  # noqa: PLC0415  # most need none of it
    from relayfs_fuse.cli.view import show_records  # noqa: PLC0415  # most need none of it
    from relayfs_fuse.native.merge import Style  # noqa: PLC0415

    style = Style("records", marks_late=True)
    show_records(Channel(place.path, place.channel), 0, style, out, delay_of(None) if follows else None)


@click.command()
@click.argument("channel", shell_complete=complete.channels)
@mount_option
@click.option("-f", "--follow", is_flag=True, help="Then go on, until ^C or the channel is removed.")
@click.option("--merge", is_flag=True, help="Write the records in the order of their times, and consume nothing.")
@click.option("--peek", is_flag=True, help="Consume nothing.")
def cat(channel: str, mount: str | None, follow: bool, merge: bool, peek: bool) -> None:
    """Write what is unread in all buffers of CHANNEL to the standard output, and consume it.

    CHANNEL is PATH or MNT/PATH. --merge is for channels that were made with the option times.
    """
    check_stdout()
    way = "--merge" if merge else "--peek" if peek else ""
    # A signal, or a reader that closes the pipe, ends the command without an error.
    with ExitStack() as stack, Lines(None, handles_signals=True) as out, suppress(Stopped, BrokenPipeError):
        place = stack.enter_context(closing(open_first(channel, mount, _open_place)))
        if way == "--merge" and isinstance(place, StoredPlace):
            _show_merged(place, out, follow)
            return
        sources = _OPEN[way or place.type](stack, place, follow)
        with out.showing():
            (_follow if follow else _drain)(sources, out)
