"""Read a channel: open() and what it returns."""

from __future__ import annotations

import errno
import os
import re
import select
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse import explain
from relayfs_fuse.errors import failure
from relayfs_fuse.native import ReaderHandle
from relayfs_fuse.native.clock import conversion, reader_of
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.ring import RING_SIZE, RingsHandle
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NS = 1_000_000_000
_FOREVER_NS = 1 << 64
# The longest sleep: a producer may be killed after it has written a record, and before it wakes readers.
_LOOK_AGAIN_S = 1.0
# How long to sleep if the descriptor is readable and there is no record: another reader holds it, or it was discarded.
_BUSY_S = 0.001
# After so many seconds without a wait, `async for` lets other tasks run.
_SLICE_S = 0.005
# The most by which a time may exceed this CPU's clock.
_AHEAD_NS = _NS
_MEM_FILE = re.compile(r"\.channels/(?P<channel>.+)/mem(?P<number>[0-9]+)")


class Record(NamedTuple):
    """A record of a channel.

    data: its bytes, a copy. In a channel of relay files without `times`, one or more whole records that lie one after
        the other, because there are no marks between records
    cpu: the number of its buffer or ring, which for one per CPU is the CPU
    time: when it was written, ns since 1970; None: the channel was made without `times`, or this user cannot map it
    """

    data: bytes
    cpu: int
    time: int | None


class _Rest(NamedTuple):
    """What to wait for before the next look: so many seconds, or less if the descriptor becomes readable."""

    seconds: float
    at_descriptor: bool


class _Part(ABC):
    """One buffer or ring.

    held: the next record, as long as an earlier one of another part may come
    ticks: its time, by the channel's clock
    clear_to: this part will have no record that is older, ns since 1970
    missed: how many records were overwritten before this reader came to them, as far as is known
    is_consumed: whether find() has consumed the record already, as in a ring of mode overwrite
    """

    is_consumed = False

    def __init__(self, cpu: int) -> None:
        self.cpu = cpu
        self.held: Record | None = None
        self.ticks = self.clear_to = self.missed = 0

    @property
    def is_over(self) -> bool:
        """Whether the channel was removed, and all was read."""
        return self.clear_to == _FOREVER_NS

    @abstractmethod
    def find(self) -> tuple[bytes, int] | None:
        """Return the next record and its ticks; None: there is none. BrokenPipeError: there will be none.

        Until let_go() or consume(), which the same thread must call, other readers cannot read.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Leave the record of find() unread."""

    @abstractmethod
    def consume(self) -> bool:
        """Consume the record of find(); False: it was overwritten meanwhile."""

    def find_again(self, record: Record) -> bool:
        """Find the record that was let go; False: it is not there, because of another reader or a producer."""
        if self.is_consumed:
            return True
        try:
            found = self.find()
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.EPIPE}:
                raise
            return False
        if found is not None and found != (record.data, self.ticks):
            self.let_go()
        return found == (record.data, self.ticks)


class _RelayPart(_Part):
    def __init__(self, relay_file: str, cpu: int) -> None:
        super().__init__(cpu)
        self._handle = ReaderHandle(relay_file)
        self.close = self._handle.close

    def find(self) -> tuple[bytes, int] | None:
        piece = self._handle.next(0)
        if piece is not None:
            return bytes(piece), self._handle.time()
        if self._handle.finished():
            raise failure(errno.EPIPE)
        return None

    def let_go(self) -> None:
        self._handle.abort()

    def consume(self) -> bool:
        try:
            self._handle.done()
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            return False
        return True


class _RingPart(_Part):
    def __init__(self, rings: RingsHandle, cpu: int) -> None:
        super().__init__(cpu)
        self._rings = rings
        self._size = rings.query(cpu, RING_SIZE)
        self.is_consumed = rings.overwrite

    def find(self) -> tuple[bytes, int] | None:
        if self.is_consumed:
            data, missed = self._rings.read(self.cpu, self._size)
            self.missed += missed
        else:
            view = self._rings.next(self.cpu)
            data = None if view is None else bytes(view)
        return None if data is None else (data, self._rings.time(self.cpu))

    def let_go(self) -> None:
        if not self.is_consumed:
            self._rings.abort(self.cpu)

    def consume(self) -> bool:
        if not self.is_consumed:
            self._rings.release(self.cpu)
        return True


def _relay_parts(stack: ExitStack, _channel: str, files: Mapping[int, str]) -> list[_Part]:
    parts: list[_Part] = []
    for cpu, relay_file in files.items():
        parts.append(part := _RelayPart(relay_file, cpu))
        stack.callback(part.close)
    return parts


def _ring_parts(stack: ExitStack, channel: str, files: Mapping[int, str]) -> list[_Part]:
    rings = RingsHandle(channel)
    stack.callback(rings.close)
    return [_RingPart(rings, cpu) for cpu in files]


# By the type of the channel: opens the parts, by their numbers and relay files, and has the stack close them.
_PARTS = {"relay": _relay_parts, "ring": _ring_parts}


class ChannelReader(Closing):
    """Iterate over the records of a channel, of all its CPUs; open() makes one.

    path: as it was given
    timeout: how many seconds a step waits for a record before the iteration ends; it may be changed at any time

    Both `for` and, with asyncio or trio, `async for` wait until there is a record; they end when the channel was
    removed and all was read. `async for` needs anyio, which `pip install 'relayfs[async]'` installs. After the end by
    `timeout` a further loop goes on. A record is consumed when it is returned: each goes to one reader, also if several
    read the channel at once. OSError: EBADMSG, damaged memory.

    With `times`, records come in the order of their times; one that was committed more than `delay` seconds after
    its time, or found after `timeout` has ended the wait for earlier ones, may come late. Without, those of one
    buffer or ring come in order.

    One thread at a time may use a reader.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float | None = None, delay: float = 0.2) -> None:
        self.path = os.fsdecode(path)
        self.timeout = timeout
        self._delay_ns = round(delay * 1e9)
        self._began_slice = time.monotonic()
        self._was_woken = False
        self._turn = 0
        root, channel, number = _find(self.path)
        shown = Shown(root, channel)
        kind = shown.type()
        clock = CLOCKS.get(shown.option(kind, "times"))
        self._conversion = conversion(clock.number) if clock else None
        self._ticks = reader_of(clock.number) if clock else int
        is_single = shown.option(kind, "buffers") == "single"
        with ExitStack() as stack:
            self._epoll = select.epoll()
            stack.callback(self._epoll.close)
            numbers = range(shown.n_buffers()) if number is None else (number,)
            files = {}
            for cpu in numbers:
                files[cpu] = relay_file = os.path.join(root, channel if is_single else f"{channel}{cpu}")
                descriptor = os.open(relay_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                self._epoll.register(descriptor, select.EPOLLIN)
            self._parts = _PARTS[kind](stack, os.path.join(root, channel), files)
            self._stack = stack.pop_all()
        self._is_ordered = self._conversion is not None and len(self._parts) > 1

    @property
    def missed(self) -> int:
        """How many records of rings in mode overwrite were overwritten unread, or not returned before close().

        The channel's count of lost records, MNT/.channels/PATH/lost, has those of relay buffers, too.
        """
        return sum(part.missed for part in self._parts)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be a record, for selectors, poll(2) and event loops.

        When it is readable, iterate with timeout=0 to the end.
        """
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the channel; records that were not returned stay for the next reader."""
        for part in self._parts:
            # What find() has copied from a ring in mode overwrite is in no ring any more.
            part.missed += part.is_consumed and part.held is not None
            part.held = None
        self._stack.close()

    def __iter__(self) -> ChannelReader:
        return self

    def __next__(self) -> Record:
        end = self._end()
        while not isinstance(step := self._step(end), Record):
            if step is None:
                raise StopIteration
            if step.at_descriptor:
                self._was_woken = bool(self._epoll.poll(step.seconds))
            else:
                time.sleep(step.seconds)
        return step

    def __aiter__(self) -> ChannelReader:
        return self

    async def __anext__(self) -> Record:
        try:
            import anyio  # noqa: PLC0415  # programs without an event loop need none of it
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("`async for` needs anyio; `pip install 'relayfs[async]'` installs it") from error

        end = self._end()
        if time.monotonic() - self._began_slice >= _SLICE_S:
            # Before a record is consumed: it would be lost if the task was cancelled here.
            await anyio.lowlevel.checkpoint()
            self._began_slice = time.monotonic()
        while not isinstance(step := self._step(end), Record):
            if step is None:
                raise StopAsyncIteration
            if step.at_descriptor:
                with anyio.move_on_after(step.seconds):
                    await anyio.wait_readable(self.fileno())
                    self._was_woken = True
            else:
                await anyio.sleep(step.seconds)
            self._began_slice = time.monotonic()
        return step

    def _end(self) -> float | None:
        return None if self.timeout is None else time.monotonic() + self.timeout

    def _step(self, end: float | None) -> Record | _Rest | None:
        """Return the next record, or what to wait for; None: the iteration ends."""
        if self._epoll.closed:
            raise ValueError("ChannelReader is closed")
        left = _LOOK_AGAIN_S if end is None else max(0.0, end - time.monotonic())
        while (part := self._next_part(hurries=not left)) is not None:
            record, part.held = part.held, None
            assert record is not None
            self._turn = part.cpu + 1
            self._was_woken = False
            if self._is_let_go(record) and not part.find_again(record):
                continue
            if part.consume():
                return record
        if not left or all(part.is_over for part in self._parts):
            return None
        times = [part.held.time for part in self._parts if part.held and part.held.time is not None]
        if times:
            # Its own descriptor is readable already.
            age = (min(times) + self._delay_ns - self._moment(self._ticks())) / _NS
            return _Rest(min(left, max(age, _BUSY_S)), at_descriptor=False)
        if self._was_woken:
            self._was_woken = False
            return _Rest(min(left, _BUSY_S), at_descriptor=False)
        return _Rest(min(left, _LOOK_AGAIN_S), at_descriptor=True)

    def _next_part(self, *, hurries: bool) -> _Part | None:
        """Return the part whose held record is to be returned; None: there is none, or an earlier one may come.

        hurries: do not wait for earlier ones
        """
        if not self._is_ordered:
            n = len(self._parts)
            turns = (self._parts[(self._turn + step) % n] for step in range(n))
            return next((part for part in turns if part.held or self._look(part)), None)
        first = self._oldest()
        for part in self._parts:
            is_wanted = part.held is None and (first is None or part.clear_to < first[0])
            if is_wanted and self._look(part) and part.held and part.held.time is None:
                return part
        first = self._oldest()
        if first is None:
            return None
        is_first = hurries or all(part.held or part.clear_to >= first[0] for part in self._parts)
        return self._parts[first[1]] if is_first else None

    def _oldest(self) -> tuple[int, int] | None:
        """Return the smallest time of a held record, and the index of its part."""
        held = ((part.held.time or 0, index) for index, part in enumerate(self._parts) if part.held)
        return min(held, default=None)

    def _look(self, part: _Part) -> bool:
        """Hold the next record of a part; return whether there is one."""
        if part.is_over:
            return False
        # By the same clock as the records' times, since CLOCK_REALTIME may be set while this reads.
        now = self._moment(self._ticks()) if self._conversion else 0
        try:
            found = part.find()
        except BrokenPipeError:
            part.clear_to = _FOREVER_NS
            return False
        except OSError as error:
            if error.errno != errno.EBUSY:  # another reader holds the next record
                raise
            return False
        if found is None:
            part.clear_to = max(part.clear_to, now - self._delay_ns)
            return False
        data, part.ticks = found
        # Programs that write to the channel can store any time.
        part.held = Record(data, part.cpu, min(self._moment(part.ticks), now + _AHEAD_NS) if part.ticks else None)
        if self._is_let_go(part.held):
            part.let_go()
        return True

    def _is_let_go(self, record: Record) -> bool:
        """Whether a record is left in its buffer until its turn comes: then other readers, too, may go on."""
        return self._is_ordered and record.time is not None

    def _moment(self, ticks: int) -> int:
        """Convert a time of the channel's clock to ns since 1970."""
        assert self._conversion is not None
        freq, offset_s, offset = self._conversion
        return offset_s * _NS + (offset + ticks) * _NS // freq

    def __repr__(self) -> str:
        return f"<ChannelReader {self.path}>"


def open(  # noqa: A001  # relayfs_fuse.open is to the package what tarfile.open is to tarfile
    path: str | os.PathLike[str], *, timeout: float | None = None, delay: float = 0.2
) -> ChannelReader:
    r"""Open a channel for reading: all its records, or those of one buffer.

        with relayfs_fuse.open("/mnt/relay/app/cpu") as reader:
            for record in reader:                   # or `async for`, with asyncio or trio
                print(record.time, record.cpu, record.data)

    path: in a mount, a channel of relay files or record rings, MNT/app/cpu or MNT/.channels/app/cpu; or one of its
        buffers, MNT/app/cpu0 or MNT/.channels/app/cpu/mem0
    timeout: how many seconds a step waits for a record before the iteration ends; None: for ever; 0: the records that
        are there, and those that are written meanwhile
    delay: with `times`, how many seconds a record waits at most for earlier ones of other CPUs

    OSError: ENOENT, there is nothing at the path, or it is in no mount; EISDIR, a directory; EACCES, this user may not
    read and write the channel's files; EPROTO, its memory has another layout version; EBADMSG, it is damaged.
    errors.MountError, a RelayError: the mount is one of another program, whose files say what is impossible.
    """
    return ChannelReader(path, timeout=timeout, delay=delay)


def _find(path: str) -> tuple[str, str, int | None]:
    """Return the root of the mount, the channel's path in it, and the number of the buffer; None: all buffers."""
    for root, below in explain.mounts_of(path):
        named = _MEM_FILE.fullmatch(below)
        at = named["channel"] if named else below.removeprefix(".channels/")
        kind, channel = explain.kind_at(root, at)
        if not kind:
            raise failure(errno.ENOENT, path)
        if kind == "directory":
            raise IsADirectoryError(errno.EISDIR, f"it is {explain.what_it_is(path)}", path)
        number = named["number"] if named else at[len(channel) :]
        return root, channel, int(number) if number else None
    raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}: it is in no mount of relayfs", path)
