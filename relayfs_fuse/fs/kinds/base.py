"""The base of the types of channels: relay buffers (`type=relay`, relay.py) and rings (`type=ring`, ring.py).

A Kind describes such a type: how the files of a channel are made, mapped and sized, and what commands do to them. A
Stored is one mapped buffer of a channel: it tells size, time and readiness of its relay file, and opens it. The rest of
the server calls these two and does not ask which type a channel has.
"""

from __future__ import annotations

import errno
import math
import os
import select
import time
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once
from relayfs_fuse.fs.kinds.mapped import REST_S, mapped
from relayfs_fuse.fs.kinds.unmapper import unmapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from relayfs_fuse.fs.commands.control import Command
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.handles import MemHandle, RelayHandle
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.native.library import Fields

Memory = TypeVar("Memory", bound=native.ChannelMemory)

# Events of poll(2).
READABLE = select.POLLIN | select.POLLRDNORM
WRITABLE = select.POLLOUT | select.POLLWRNORM
GONE = select.POLLERR | select.POLLHUP

# st_blksize, in bytes, for programs that read: the most that one FUSE request carries, unless fs.fuse.max_pages_limit
# permits more (notes.AREA_BYTES). Programs such as cat read and write so much at a time. Writers get less, because a
# write must be shorter than a full request; see RECORD_MAX.
BLOCK_SIZE = 1 << 20
WRITE_BLOCK_MAX = BLOCK_SIZE // 2
# stdio writes st_blksize bytes at a time. If that is less than a line, the line silently becomes several records.
WRITE_BLOCK_MIN = 4096
# The kernel splits a write(2) into requests of at most 1 MiB, and of 256 pages or more but for the last. The first
# request of a long write has more than 255 pages, so a write of at most 255 pages is certainly complete. A longer one
# may be a part of a record.
RECORD_MAX = BLOCK_SIZE - 4096
# The largest st_size.
SIZE_MAX = 2**63 - 1
# How much of what is unread is copied at a time.
SEARCHED_BYTES = 8 << 20
# A time before all others, of which there is one object for all buffers.
NEVER_S = -math.inf
# A file up to so long is unmapped by the server's thread, a longer one by the unmapper's.
QUICK_BYTES = 1 << 20


class Plan(NamedTuple):
    """The sizes chosen for a new channel.

    fields: the fields of the spec (struct relay_spec or relay_ring_spec) that have the sizes
    what: the sizes in words, for the error message if there is no room for them
    keys: the options that determine the sizes; the error points at the first one that was given
    notice: the text for error_log if default sizes had to be reduced; None: they were not
    """

    fields: dict[str, int]
    what: str
    keys: tuple[str, ...]
    notice: str | None


@dataclass(frozen=True, eq=False)
class Kind(Generic[Memory]):
    """A type of channels.

    name: NAME in `create PATH type=NAME`
    memory: the class that maps a mem file; it is called with the file's path
    stored: makes the Stored of a mem file, from the channel, the file's index in it, and the mapped memory
    create: makes a channel's directory and all its mem files, from the directory's path and the spec; may block
    file_bytes: returns the size of all files together that a spec asks for, in bytes
    plan: chooses sizes for a `create` command, a number of buffers, and a number of free bytes in the store
    acts: for each verb of control, the function that is applied to each buffer; it runs in a worker thread
    refused: the verbs that this type does not have, and the reason for the error message
    takes_log: whether relay_log() can write to such a channel
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


@dataclass(slots=True)
class Backing:
    """A file of the store that programs map through the mount.

    descriptor: the server's descriptor of the file; of a buffer -1 while it is not mapped
    path: the file's path in the store when it was opened
    is_writable: whether programs may map it for writing
    number: the backing id that FUSE passthrough gave the file; None: this server has not asked for it; 0: the kernel
        refused
    inode: the file's inode number
    """

    descriptor: int
    path: str
    is_writable: bool = False
    number: int | None = None
    inode: int = field(init=False)

    def __post_init__(self) -> None:
        self.inode = os.fstat(self.descriptor).st_ino


class Stored(ABC, Generic[Memory]):
    """One buffer of a channel: a mem file, which is mapped while it is in use (mapped.py).

    channel: the channel it belongs to
    index: its number in the channel: the N of memN
    path: the path of the mem file
    inode: its inode number
    backing: the mem file as programs map it through the mount
    n_users: how many open files and threads use the memory, which is not unmapped then
    was_used: whether the memory was used since Mapped.rest() was called last
    is_watched: whether stats() is called again and again; so that it need not map the file each time, the file stays
        mapped, but without a descriptor
    readers: the open relay files (of relay buffers, only those open for reading)
    memories: the open memory files of the mount (.channels/PATH/memN), by token
    written_field: the statistic that changes whenever a record is written
    closed: functions that the unmapper's thread calls after it has unmapped the memory and closed the file
    has_exact_size: whether st_size of the relay file is exact, and not only as much as reads will return at most
    counts_holes: whether discarded records that are unread are part of st_size
    wakes_for_records: whether poll(2) reports each record, and not only finished sub-buffers
    rests_until: the time, by trio's clock, before which the buffer is not armed again to be woken for the next record;
        None: it can be armed at any time
    """

    written_field: ClassVar[str]
    closed: tuple[Callable[[], object], ...] = ()
    has_exact_size = True
    counts_holes = False
    wakes_for_records = False

    def __init__(self, channel: StoredChannel, index: int, buffer: Memory) -> None:
        self.channel = channel
        self.index = index
        self.path = buffer.path
        self.backing = Backing(buffer.fileno(), buffer.path, is_writable=True)
        self.inode = self.backing.inode
        self.n_users = 0
        self.was_used = True
        self.is_watched = False
        self._memory: Memory | None = buffer
        # Mapped, too, but without a descriptor, if it is watched; only for the server's thread.
        self._bare: Memory | None = None
        self.readers: list[Any] = []
        self.memories: dict[int, MemHandle] = {}
        # All attributes are set here, because an object that gets others later takes a dictionary of its own.
        self.rests_until: float | None = None
        self._is_told: at_once.Flag | None = None
        self._shown_s = NEVER_S
        written = self._written_by(buffer.stats())
        self._written, self._mtime_ns = buffer.mtime()
        if not 0 < self._mtime_ns <= time.time_ns():  # none is stored yet, or it was overwritten with nonsense
            self._keep(written, time.time_ns())
        self._mtime(written)
        mapped.add(self)  # last, because another thread than this one may unmap it from now on

    # ---------------------------------------------------------------- the memory

    @property
    def buffer(self) -> Memory:
        """The mapped memory, only for the server's thread, and only until its next await; OSError as of map()."""
        self.was_used = True
        return self.map() if self._memory is None else self._memory

    @property
    def descriptor(self) -> int:
        """The descriptor of the mem file, as long as `buffer`; OSError as of map()."""
        return self.buffer.fileno()

    def map_again(self) -> Memory:
        """Return a mapping of its own, for any thread; OSError as of map()."""
        with mapped.lock:
            return type(self.buffer).of_descriptor(self.descriptor)

    def status(self) -> os.stat_result:
        """Return the stat(2) of the mem file, which need not be mapped for that; OSError."""
        with mapped.lock:
            memory = self._memory
            return os.stat(self.path, follow_symlinks=False) if memory is None else os.fstat(memory.fileno())

    def map(self) -> Memory:
        """Map the mem file, if it is not mapped, and return the memory.

        OSError: EBADMSG; ESTALE, it was removed or replaced; as of open(2).
        """
        with mapped.lock:
            if self._memory is not None:
                return self._memory
            memory = self._map()
            self._memory, self.backing.descriptor = memory, memory.fileno()
            mapped.add(self)
            return memory

    def _map(self) -> Memory:
        """Return a new mapping; OSError as of map()."""
        if self.channel.removed:
            raise failure(errno.ESTALE)
        memory: Memory = self.channel.kind.memory(self.path)
        # Another channel may have got the path.
        if os.fstat(memory.fileno()).st_ino != self.inode:
            memory.close()
            raise failure(errno.ESTALE)
        return memory

    def unmap(self) -> bool:
        """Unmap the memory, which the next use maps again; return False if it stays, because the file is immutable."""
        memory = self._memory
        if memory is None:
            return True
        if native.file_is_protected(memory.fileno()):
            return False
        self._memory, self.backing.descriptor = None, -1
        self._is_told = None
        if self.rests_until is not None:
            self.rests_until = NEVER_S
        if self.is_watched and self._bare is None:
            memory.close_descriptor()
            self._bare = memory
        else:
            self._close(memory)
        return True

    def _close(self, memory: Memory) -> None:
        if self.channel.stats.file_bytes > QUICK_BYTES:
            unmapper.put(memory.close)
        else:
            memory.close()

    def _to_look_at(self) -> Memory:
        """Return the memory for what needs no descriptor, as `buffer`."""
        if self._memory is not None or not (self.is_watched or self._bare):
            return self.buffer
        if self._bare is None:
            self._bare = self._map()
            self._bare.close_descriptor()
        return self._bare

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the memory mapped in the body of the `with` statement."""
        self.n_users += 1
        try:
            yield
        finally:
            self.n_users -= 1

    # ---------------------------------------------------------------- size, time and readiness

    def stats(self) -> Fields:
        """Read the statistics; OSError: EBADMSG if the memory is damaged, and the channel is marked so."""
        try:
            return self._to_look_at().stats()
        except OSError as error:
            self.note(error)
            raise

    def measure(self, pid: int) -> tuple[int, int]:
        """Return the relay file's st_size and st_mtime (ns); size 0 if damaged, so that its directory can be listed.

        pid: the thread that asks; if it has the relay file open, the size is that which its own descriptor sees
        """
        try:
            stats = self.stats()
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            return 0, self._mtime_ns
        return min(max(self._size(stats, pid), 0), SIZE_MAX), self._mtime(self._written_by(stats))

    def shown(self) -> tuple[native.Shown, int, int] | None:
        """Return what a listing shows of the relay file, st_size and st_mtime (ns); the file need not be mapped.

        None: somebody has it open, something was written, it is looked at again and again, so that it is to be mapped,
        or an error; measure() has to tell.
        """
        memory = self._bare if self._memory is None else self._memory
        if self.n_users or self.channel.removed or (memory is None and self._is_looked_at_again()):
            return None
        try:
            shown = self.channel.kind.memory.show(memory, self.path)
        except OSError:
            return None
        is_known = shown.inode == self.inode and shown.written == self._written
        return (shown, self._shown_size(shown), self._mtime_ns) if is_known else None

    @property
    def is_as_seen(self) -> bool:
        """Whether nobody has it open, so that what a listing shows depends on the mem file alone, and on `seen`."""
        return not self.n_users and not self.channel.removed

    @property
    def seen(self) -> tuple[int, int]:
        """As ChannelMemory.mtime(): what was written when that was seen to change last, and when (ns)."""
        return self._written, self._mtime_ns

    def _is_looked_at_again(self) -> bool:
        """Whether the last call was so short a time ago that a file that was mapped then would be still, if few are."""
        before_s, self._shown_s = self._shown_s, time.monotonic()
        return self._shown_s - before_s < REST_S and mapped.has_room

    def _shown_size(self, shown: native.Shown) -> int:
        """Return the bytes of the relay file while nobody has it open, as _size()."""
        return shown.unread - (0 if self.counts_holes else shown.holes)

    @property
    def is_in_memory(self) -> bool:
        """Whether all that is unread is in the mem file."""
        return True

    @abstractmethod
    def _size(self, stats: Fields, pid: int) -> int:
        """Return the bytes of the relay file, as the thread `pid` sees it."""

    def n_written(self) -> int:
        """Return the statistic that grows with each record; OSError as of stats().

        If a wake-up came and this number has not changed, the wake-up did not come from a producer.
        """
        return self._written_by(self.stats())

    def n_consumed(self) -> int:
        """Return the position of the consumer, in the unit of struct relay_taken; OSError as of stats()."""
        return int(self.stats().consumed_bytes)

    def written_since(self, before: int) -> bytes:
        """Return what is unread and was written since n_written() was `before`; it may be more."""
        length = self.n_written() - before
        if length <= 0:
            return b""
        with closing(self.buffer.peek()) as peek:
            return b"".join(iter(lambda: peek.copy(SEARCHED_BYTES), b""))[-length:]

    def _written_by(self, stats: Fields) -> int:
        return int(getattr(stats, self.written_field))

    def block_size(self, pid: int) -> int:
        """Return st_blksize: BLOCK_SIZE for a thread that has the relay file open to read, else what fits a record."""
        if any(reader.pid == pid and reader.reads for reader in self.readers):
            return BLOCK_SIZE
        return self.write_block

    @property
    def write_block(self) -> int:
        """st_blksize for those who do not read."""
        # The kernel rounds st_blksize to a power of two.
        fits = 1 << self.channel.stats.largest_record.bit_length() - 1
        return max(WRITE_BLOCK_MIN, min(fits, WRITE_BLOCK_MAX))

    @abstractmethod
    def readiness(self, by_mem: bool = False) -> tuple[int, int]:
        """Return the events of poll(2) that hold now, and a number that changes whenever more becomes readable.

        by_mem: for a descriptor of the memory file; consumers of a ring that use it skip discarded records themselves
        """

    def address_to_poll(self) -> int | None:
        """Return the address of the relay buffer that tells all of readiness(); None: it does not."""
        return None

    def may_have_data(self) -> bool:
        """Whether a sleeping reader should try again: there may be data, or the buffer is closed or damaged."""
        return self.buffer.state() != 0

    def needs_polling(self) -> bool:
        """Whether to check again soon without a wake-up: more must be skipped first, or another reader has the lock."""
        return bool(self.buffer.state() & (native.LOOK_AGAIN | native.IS_HELD))

    def is_settled(self) -> bool:
        """Whether nothing is between the consumer and the data: what is to come changes a word that tells of it.

        Otherwise there may be a reservation whose owner has died, or another reader may let go of the buffer.
        """
        held = native.HAS_DATA | native.IS_HELD
        return self.buffer.state() & held == native.HAS_DATA or self.stats().unread_bytes == 0

    def skip_discarded(self) -> bool:
        """Skip discarded records at the consumer's position; return whether there were any.

        A reader that polls does not call read(2) while there is no data, so producers would never get their room back.
        """
        return False

    # ---------------------------------------------------------------- open files

    @property
    def is_told(self) -> at_once.Flag:
        """Whether a program polls the buffer to write, which is told when a read makes room."""
        if self._is_told is None:
            self._is_told = at_once.Flag()
        return self._is_told

    def tell(self, *, on: bool) -> None:
        """Set `is_told`."""
        if on or self._is_told is not None:
            self.is_told.set(on=on)

    def prepare(self, opening: Opening, backing: Callable[[], int]) -> float:
        """Decide whether the relay file is opened as a stream or to be mapped; return the seconds to wait before.

        backing: returns the backing id for mapping the file; 0: it cannot be mapped
        """
        return 0.0

    def abandon(self, opening: Opening) -> None:
        """Undo prepare(), because the open has failed."""

    @abstractmethod
    def open(self, opening: Opening) -> RelayHandle:
        """Open the relay file."""

    def count_mapped(self, opened: bool) -> None:
        """Count a mappable file that was opened or closed, in the memory that the channel's maker looks at."""

    def forget_mapped(self) -> None:
        """Reset the count of count_mapped(), when a server starts: the files were open in the server before it."""

    def let_go(self, notes: Notes) -> None:
        """If the channel was removed and no relay file is open, drop what was for the next reader."""

    # ---------------------------------------------------------------- damage, and the time of the last record

    def note(self, error: OSError) -> None:
        """Mark the channel as damaged if this error is EBADMSG."""
        if error.errno == errno.EBADMSG:
            memory = self._memory or self._bare
            damage = "" if memory is None else memory.damage()
            self.channel.note_damage(f"mem{self.index}: {damage or error.strerror}")

    def note_state(self, state: int) -> None:
        """Mark the channel as damaged if the buffer's state (the bits of state()) says so."""
        if state & native.IS_DAMAGED:
            self.note(failure(errno.EBADMSG))

    def _mtime(self, written: int) -> int:
        """Return the time of the last record, in ns: that at which this function first saw the statistic `written`."""
        if written != self._written:
            self._keep(written, max(time.time_ns(), self._mtime_ns + 1))
        return self._mtime_ns

    def _keep(self, written: int, mtime_ns: int) -> None:
        """Remember the time that belongs to `written`, and store it in the memory for the next server."""
        self._written, self._mtime_ns = written, mtime_ns
        self._to_look_at().keep_mtime(written, mtime_ns)

    def __del__(self) -> None:
        mapped.forget(self)
        memories = getattr(self, "_memory", None), getattr(self, "_bare", None)  # None, too, if __init__() has failed
        unmapper.put(*(memory.close for memory in memories if memory is not None), *self.closed)
