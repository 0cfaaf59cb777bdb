"""The files `merged`, `merged.json` and `merged.raw`: lines, or blocks of pcapng, in the order of their times.

Those of a trace (traces/merged.py) have the events of all processes; those of a channel with `times`
(channel_files.py) have the records of all CPUs. Of what they consist is in items.py. Each open file reads the buffers
independently of all other readers, and consumes nothing: see reading/live.py and reading/records.py. An event or record
is given out when it is DELAY_NS old, because until then an earlier one may be written.

A program that reads to the end, as cat(1) does, gets what the buffers had at its first read(2); then a read(2) returns
0. Further reads return newer items, if there are any; tail(1) follows the file in this way. If a program polls the
file, it has no end: it is readable whenever there are items.

If the server dies, the next one begins anew, and goes on behind what was read. If that has left the buffers meanwhile,
or comes in another order, the bytes that were read last, KEPT_BYTES, tell which items were given; what is earlier than
these is left out.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections import Counter, deque
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE
from relayfs_fuse.fs.kinds.handles import Handle
from relayfs_fuse.fs.kinds.kept import Kept
from relayfs_fuse.fs.nodes import SubjectFile, check_only_reads
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER, Export, Style
from relayfs_fuse.reading.records import BEGIN, Begin

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.items import Items
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.native.merge import Merge

log = logging.getLogger(__name__)

# How many of these files can be read at once. Each needs descriptors and mappings for all processes of its trace.
READERS_MAX = 16
# Of these, how many one user can read, and how many all users together, other than root and the server's user.
USER_READERS_MAX, ALL_USERS_READERS_MAX = 4, 8
# How many of the bytes read last can be read again.
KEPT_BYTES = BLOCK_SIZE
# So many of these must be the same if the next server begins anew, or it does not go on behind them.
TAIL_BYTES = 1024
# The longest record of a channel; in merged.json it takes up to six times as many bytes, and the server has many
# copies at once. Any record that write(2) has written is shorter.
LONGEST_BYTES = BLOCK_SIZE
# As `relayctl view --delay`.
DELAY_NS = 200_000_000
# The end of the file is fixed after so many looks that left nothing unread: the first finds events, the second the
# losses after them, and the third finds nothing.
_QUIET_LOOKS = 3


class Followed(Protocol):
    """What is followed: Live or Records.

    merged: where the events are
    """

    merged: Merge

    @property
    def conversion(self) -> tuple[int, int, int]:
        """By what the ticks of its clocks become times."""

    def look(self) -> int:
        """Have the merge look at all buffers; return the time just before, ns since 1970, or EVER."""

    def tick(self) -> bool:
        """Check now and then for changes that nothing reports; False: all is over, and all was read."""


class Face(NamedTuple):
    """How a file `merged` shows it.

    file_format: of native.merge.FORMATS
    items: makes the items of an open file
    """

    file_format: str
    items: Callable[[], Items]


class Subject(NamedTuple):
    """The trace or channel that a file `merged` shows.

    about: the trace or channel, as the log names it
    face: how
    follow: begins to follow it, and lets go of it at the end; it is given a function that is called with lines for
        users, and where to begin. May block
    owner: returns permission bits, owner and group; only who may read all of it may read this
    """

    about: str
    face: Face
    follow: Callable[[Callable[[str], None], Begin], AbstractContextManager[Followed]]
    owner: Callable[[], tuple[int, int, int]]


class Events(Closing):
    """The events or records, as one open file gives them; all of this may block.

    has_caught_up: whether all that the buffers had when this was made was given out
    is_over: whether the trace or channel was removed, or is of an earlier boot, and all was given out
    conversion: as Followed.conversion
    time: of the latest event that was given out, ns since 1970
    """

    def __init__(self, subject: Subject, begin: Begin) -> None:
        self.has_caught_up = self.is_over = False
        self._notice = subject.face.items().notice
        self._about = subject.about
        self._said: list[str] = []
        self._looked = self._limit = 0
        self._first = EVER
        self._end: int | None = None
        self._n_quiet = 0
        with ExitStack() as stack:
            self._live = stack.enter_context(subject.follow(self._say, begin))
            style = Style(subject.face.file_format, marks_late=True)
            self._export = stack.enter_context(closing(Export(self._live.merged, style)))
            self._stack = stack.pop_all()
        self.conversion, self.time = self._live.conversion, 0

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()
        del self._live, self._export  # what is followed refers to this object, by `_say`

    def step(self) -> bytes:
        """Return the next whole items, a bounded number; b"": there are none now, or has_caught_up has become True."""
        items = bytes(self._export.piece())
        if not items and not self._is_at_end():
            self._look()
            items = bytes(self._export.piece())
        # Behind the others, because blocks have to begin with that of their section.
        items += b"".join(map(self._notice, self._said))
        self._said.clear()
        self.time = self._live.merged.stats().time
        return items

    def _look(self) -> None:
        self._looked = self._live.look()
        self._limit = self._looked if self._looked == EVER else self._looked - DELAY_NS
        self._first = min(self._first, self._looked)
        self._live.merged.limit(self._limit)
        self.is_over = not self._live.tick()

    def _is_at_end(self) -> bool:
        """Set has_caught_up; return whether it became True. Called when all events up to the limit were given out."""
        merged = self._live.merged
        if self.has_caught_up or not self._looked:
            return False
        self._n_quiet += not merged.is_behind
        # If a program goes on writing, losses are given out with its next events. The end does not wait for these.
        if self._end is None and (self._n_quiet == _QUIET_LOOKS or self._first <= self._limit < EVER):
            self._end = 0 if self._looked == EVER else self._looked
        self.has_caught_up = self._end is not None and self._limit >= self._end and not merged.is_behind_limit
        return self.has_caught_up

    def _say(self, line: str) -> None:
        self._said.append("".join(char if char.isprintable() else "?" for char in line))
        log.info("%s: %s", self._about, self._said[-1])


class MergedHandle(Handle):
    """An open file `merged`.

    thread: the thread that opened it
    uid: the user who opened it
    n_given: how many bytes were read from it
    ready: whole items that can be read; of the first one, a part may have been read
    changed_ns: when items were added last, in ns since 1970
    has_caught_up, is_over: see Events
    is_polled: whether a program has polled the file
    """

    def __init__(self, node: MergedFile, opening: Opening) -> None:
        super().__init__(opening)
        self._subject, self._begin = node.subject, BEGIN
        self.thread, self.uid = opening.request.pid, opening.request.uid
        self.n_given = 0
        self.ready = bytearray()
        self.changed_ns = time.time_ns()
        self.has_caught_up = self.is_over = self.is_polled = False
        self._items = node.subject.face.items()
        self._skip = 0  # bytes to come that a program has got from a server that died
        self._passed = b""  # the last of these
        self._given: Counter[bytes | None] = Counter()  # what else it has got, if that is not told by their number
        self._end: int | None = None  # a read at this offset returns nothing
        self._kept = Kept(self.number)  # the last bytes that were read
        # Where pieces of the merge end, from `_kept` on; and Events.time then.
        self._pieces = deque([(0, -1)])
        self._handles = node.handles
        self._handles[self.number] = self

    def state(self) -> Any:
        """Return how much was read and is kept, how times were made, and where the first piece ends that is kept."""
        conversion, piece = self._begin.conversion, self._first_piece()
        return [
            self.n_given, len(self._kept), self._items.left, self.is_polled, conversion and list(conversion),
            piece and list(piece),
        ]  # fmt: skip

    def restore(self, state: Any, acts: Acts) -> None:
        """Begin to merge anew, and go on behind what was read."""
        self.n_given, n_kept, self._items.left, self.is_polled, conversion, piece = state
        self._skip, self._begin = self.n_given, Begin(conversion=conversion and tuple(conversion))
        self._kept.restore(acts.notes, n_kept, self.n_given)
        self._pieces = deque([tuple(piece)] if piece else [])

    def _first_piece(self) -> tuple[int, int] | None:
        """Return the first of the pieces whose end is among the bytes that are kept; None: there is none."""
        n_dropped = self.n_given - len(self._kept)
        return next((piece for piece in self._pieces if n_dropped <= piece[0] <= self.n_given), None)

    def begin(self) -> Events:
        """Begin to merge; may block."""
        return Events(self._subject, self._begin)

    def go_behind(self) -> None:
        """When put() has returned False: have begin() give what is new, and perhaps what is kept, which put() skips.

        OSError: ESTALE, what was read last is not kept, or ends within an item
        """
        piece = self._first_piece()
        since_piece = self._kept.part(self.n_given - piece[0], KEPT_BYTES) if piece else b""
        items = self._items.split(since_piece)
        if piece is None or sum(map(len, items)) != len(since_piece):
            raise failure(errno.ESTALE)
        self._skip, self._given = 0, Counter(map(self._items.key, items))
        self._begin = self._begin._replace(since=piece[1] + 1)

    @property
    def kept_bytes(self) -> int:
        """The length of the items, and of those that were read last."""
        return len(self.ready) + len(self._kept)

    def drop_kept(self) -> None:
        """Free the items that were read."""
        self._kept.clear()

    def put(self, items: bytes, events: Events) -> bool:
        """Add items of a step of `events`; False: others are before them than another server has given."""
        self._begin = self._begin._replace(conversion=events.conversion)
        if self._skip:
            passed, items = items[: self._skip], items[self._skip :]
            self._skip -= len(passed)
            self._passed = (self._passed + passed)[-TAIL_BYTES:]
            if (events.has_caught_up and self._skip) or (not self._skip and self._passed != self._tail()):
                return False
        if self._given:
            items = b"".join(item for item in self._items.split(items) if self._is_new(item))
        if items:
            self.ready += items
            self.changed_ns = time.time_ns()
            self._pieces.append((self.n_given + len(self.ready), events.time))
        if events.has_caught_up and not self.has_caught_up:
            self._end = self.n_given + len(self.ready)
            self._given.clear()
        self.has_caught_up = events.has_caught_up
        return True

    def _tail(self) -> bytes:
        length = min(TAIL_BYTES, len(self._kept))
        return self._kept.part(length, length)

    def _is_new(self, item: bytes) -> bool:
        """Whether an item is none of those in `_given`, from which it is taken."""
        key = self._items.key(item)
        if key is None or not self._given[key]:
            return True
        self._given[key] -= 1
        return False

    def take(self, offset: int, size: int, notes: Notes) -> bytes | None:
        """Return the next whole items, or a part of one longer than `size`; b"": the end; None: there are none now.

        offset: where the last read ended, or before, as head(1) seeks back; OSError: EINVAL if those bytes are not kept
        """
        back = self.n_given - offset
        if back:
            if not 0 < back <= len(self._kept):
                raise failure(errno.EINVAL)
            return self._kept.part(back, size)
        end = None if self.is_polled else self._end
        length = min(size, len(self.ready) if end is None else end - self.n_given)
        if not length:
            self._end = None
            return b"" if end is not None or self.is_over else None
        length = self._items.cut(self.ready, length)
        taken = bytes(self.ready[:length])
        del self.ready[:length]
        self.n_given += length
        self._kept.add(notes, taken, self.n_given, KEPT_BYTES)
        while self._pieces and self._pieces[0][0] < self.n_given - len(self._kept):
            self._pieces.popleft()
        return taken

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return the next items, or nothing at the end; OSError: EINTR if the request is interrupted."""
        return await acts.streams.interruptible(partial(acts.merging.read, self, offset, size, request), request)

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return whether there are items, and show no end from now on."""
        self.is_polled = True
        return acts.merging.poll(self, notify)

    async def close(self, acts: Acts) -> None:
        """Let go of the buffers."""
        del self._handles[self.number]
        acts.merging.forget(self)


class MergedFile(SubjectFile):
    """A file `merged`, `merged.json` or `merged.raw`.

    subject: what it shows
    handles: its open files, by number
    """

    def __init__(self, name: str, subject: Subject) -> None:
        super().__init__(name)
        self._subject: Subject | None = subject
        self.handles: dict[int, MergedHandle] = {}

    @property
    def subject(self) -> Subject:
        """What it shows; OSError: ESTALE after the trace or channel was removed."""
        if self._subject is None:
            raise failure(errno.ESTALE)
        return self._subject

    def let_go(self) -> None:
        """Drop what refers to the buffers."""
        self._subject = None

    @property
    def has_end(self) -> bool:
        """False: lseek(2) to the end fails, because tail(1) would read backwards from there."""
        return False

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows.

        For a thread that has opened it, the size is the bytes that it has read and can read now, which `tail -f` needs.
        """
        own = [handle for handle in self.handles.values() if handle.thread == pid]
        size, changed_ns = (own[-1].n_given + len(own[-1].ready), own[-1].changed_ns) if own else (0, time.time_ns())
        size = max(1, size)  # sendfile(2), by which busybox cat reads, finds the end of an empty file
        mode, uid, gid = self.subject.owner() if self._subject else (0, os.geteuid(), os.getegid())
        return Attributes(self.inode, stat.S_IFREG | mode, uid, gid, size, changed_ns, store.began_ns)

    def open(self, opening: Opening) -> MergedHandle:
        """Return a new handle; OSError: EACCES unless O_RDONLY is asked."""
        check_only_reads(opening)
        return MergedHandle(self, opening)
