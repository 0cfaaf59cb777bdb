"""What a channel may be made of: a kind of memory, of which relay.py and ring.py have one each."""

from __future__ import annotations

import errno
import os
import select
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from relayfs_fuse import native
from relayfs_fuse.fs.kinds.unmapper import unmapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.handles import MemHandle, RelayHandle
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.native.library import Fields

Memory = TypeVar("Memory", bound=native.ChannelMemory)

# Events of poll(2).
READABLE = select.POLLIN | select.POLLRDNORM
WRITABLE = select.POLLOUT | select.POLLWRNORM
GONE = select.POLLERR | select.POLLHUP

# Programs that obey st_blksize, as cat does, read as much at a time as one request carries. One that writes as much
# would be refused: of a write(2) that fills a request it is not known whether it is all of a record.
BLOCK_SIZE = 1 << 20
WRITE_BLOCK_MAX = BLOCK_SIZE // 2
# Of stdio, shells among its users, less would make several records of a line that is too long, and nobody were told.
WRITE_BLOCK_MIN = 4096
# The kernel cuts a write(2) into requests of at most 256 pages. A request that is not shorter than what the first 256
# pages of a longer write hold could be a piece of one, and a piece is not a record. A read(2) is cut in the same way.
RECORD_MAX = BLOCK_SIZE - 4096
# What st_size can say.
SIZE_MAX = 2**63 - 1


class Plan(NamedTuple):
    """How large the memory of a new channel is to be.

    fields: of the spec
    what: says it, to who does not get so much
    keys: of the options that say how much
    notice: what must be said of sizes that had to be reduced; None: nothing
    """

    fields: dict[str, int]
    what: str
    keys: tuple[str, ...]
    notice: str | None


@dataclass(frozen=True, eq=False)
class Kind(Generic[Memory]):
    """One kind of memory.

    name: its word in `create PATH type=NAME`
    memory: maps a mem file of it
    stored: stands for a mem file of a channel: its index and its memory are given, too
    create: makes a channel's directory with all mem files; what is in the spec, the plan says and the options
    file_bytes: counts the bytes of all files that a spec asks for
    plan: chooses sizes for a command, a number of buffers, and so many free bytes
    acts: what the verbs of control do to each buffer, in a worker thread
    refused: the verbs that it does not have, and why
    takes_log: whether relay_log() can write to it
    """

    name: str
    memory: type[Memory]
    stored: Callable[[StoredChannel, int, Memory], Stored[Memory]]
    create: Callable[[str, Mapping[str, int]], None]
    file_bytes: Callable[[Mapping[str, int]], int]
    plan: Callable[[Command, int, int], Plan]
    acts: Mapping[str, Callable[[Memory, Command], None]]
    refused: Mapping[str, str]
    takes_log: bool


@dataclass
class Backing:
    """A file of the store that programs map through the mount.

    descriptor: it
    path: where it lay when it was opened
    is_writable: whether they may write to it
    number: the kernel's for it; None: not asked for yet; 0: cannot be had
    """

    descriptor: int
    path: str
    is_writable: bool = False
    number: int | None = None


class Stored(ABC, Generic[Memory]):
    """One mem file of a channel; it stays mapped as long as anybody refers to it.

    channel: the channel it belongs to
    index: which of the channel's
    buffer: its memory
    descriptor: its file
    backing: the same, for who maps it
    readers: open relay files of it; of relay buffers those that read
    memories: open memory files of it, by their tokens
    moved_field: of its counters, the one that changes when data moves
    closed: are called, in another thread, once nobody refers to it, the memory is unmapped and its file closed
    wakes_for_records: whether poll(2) tells of each record, and not of finished sub-buffers only
    rests_until: when those who wait for its next record may arm it again, by trio's clock; None: at any time
    """

    moved_field: ClassVar[str]
    closed: tuple[Callable[[], object], ...] = ()
    wakes_for_records = False
    rests_until: float | None = None

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory) -> None:
        self.channel = channel
        self.index = index
        self.buffer: Memory = buffer
        self.descriptor = buffer.fileno()
        self.backing = Backing(self.descriptor, buffer.path, is_writable=True)
        self.readers: list[Any] = []
        self.memories: dict[int, MemHandle] = {}
        moved = self._moved_by(buffer.stats())
        self._moved, self._mtime_ns = buffer.mtime()
        if not 0 < self._mtime_ns <= time.time_ns():  # nobody has kept one, or somebody nonsense
            self._keep(moved, time.time_ns())
        self._mtime(moved)

    # ---------------------------------------------------------------- what it says of itself

    def stats(self) -> Fields:
        """Read its counters; what is wrong with them is noted."""
        try:
            return self.buffer.stats()
        except OSError as error:
            self.note(error)
            raise

    def measure(self, pid: int) -> tuple[int, int]:
        """Return the relay file's size and time; a damaged one is empty, so that its directory can be listed.

        pid: the thread that asks, for it may be a reader itself
        """
        try:
            stats = self.stats()
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            return 0, self._mtime_ns
        return min(max(self._size(stats, pid), 0), SIZE_MAX), self._mtime(self._moved_by(stats))

    @abstractmethod
    def _size(self, stats: Fields, pid: int) -> int:
        """Count the bytes of the relay file."""

    def n_moved(self) -> int:
        """Count what its writers have moved: each honest wake-up tells of some."""
        return self._moved_by(self.stats())

    def _moved_by(self, stats: Fields) -> int:
        return int(getattr(stats, self.moved_field))

    def block_size(self, pid: int) -> int:
        """Tell how much to read or write at a time.

        To a thread that reads it is what one request carries, to others what fits a record.
        """
        if any(reader.pid == pid and reader.reads for reader in self.readers):
            return BLOCK_SIZE
        # A power of two, as the kernel rounds it to one.
        fits = 1 << self.channel.stats.largest_record.bit_length() - 1
        return max(WRITE_BLOCK_MIN, min(fits, WRITE_BLOCK_MAX))

    @abstractmethod
    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2) that hold now, and a number that grows when more becomes readable.

        by_mem: through the memory file, where consumers of a ring skip discarded records themselves
        """

    def has_news(self) -> bool:
        """Whether somebody who sleeps should look again."""
        return self.buffer.state() != 0

    def is_held_up(self) -> bool:
        """Whether to look again soon: a reservation that is not ended, or another reader, keeps readers waiting."""
        return bool(self.buffer.state() & (native.LOOK_AGAIN | native.IS_HELD))

    def skip_discarded(self) -> bool:
        """Pass discarded records for a reader that polls, as read(2) gives nothing of them; tell whether any were."""
        return False

    # ---------------------------------------------------------------- open files of it

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Decide how its relay file is opened; return how many seconds to wait before.

        backing: returns the kernel's number for mapping it; 0: it cannot be mapped
        """
        return 0.0

    def abandon(self, opening: Opening) -> None:
        """Undo prepare(), because the open fails."""

    @abstractmethod
    def open(self, opening: Opening) -> RelayHandle:
        """Open its relay file."""

    def count_mapped(self, opened: bool) -> None:
        """Tell the channel's maker of an open file that can be mapped, or of its end."""

    def forget_mapped(self) -> None:
        """Take all open files for ended: they were another server's."""

    # ---------------------------------------------------------------- what is noted

    def note(self, error: OSError) -> None:
        """Mark the channel as damaged if this error says so."""
        if error.errno == errno.EBADMSG:
            self.channel.note_damage(f"mem{self.index}: {self.buffer.damage() or error.strerror}")

    def note_state(self, state: int) -> None:
        """Mark the channel as damaged if a buffer's state says so."""
        if state & native.IS_DAMAGED:
            self.note(OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)))

    def _mtime(self, moved: int) -> int:
        """Tell when data last moved: at the latest when it was first seen to have moved."""
        if moved != self._moved:
            self._keep(moved, max(time.time_ns(), self._mtime_ns + 1))
        return self._mtime_ns

    def _keep(self, moved: int, mtime_ns: int) -> None:
        """Remember it, and let the next server know."""
        self._moved, self._mtime_ns = moved, mtime_ns
        self.buffer.keep_mtime(moved, mtime_ns)

    def __del__(self) -> None:
        unmapper.put(self.buffer.close, *self.closed)
