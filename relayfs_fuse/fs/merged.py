"""The files `merged`, `merged.json` and `merged.raw`: lines, or blocks of pcapng, in the order of their times.

Those of a trace (traces/merged.py) have the events of all processes; those of a channel with `times`
(channel_files.py) have the records of all CPUs. Of what they consist is in items.py. Each open file reads the buffers
independently of all other readers, and consumes nothing: see reading/live.py and reading/records.py. An event or record
is given out when it is DELAY_NS old, because until then an earlier one may be written.

A program that reads to the end, as cat(1) does, gets what the buffers had at its first read(2); then a read(2) returns
0. Further reads return newer items, if there are any; tail(1) follows the file in this way. If a program polls the
file, it has no end: it is readable whenever there are items.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE
from relayfs_fuse.fs.kinds.handles import Handle
from relayfs_fuse.fs.nodes import SubjectFile, check_only_reads
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.merge import EVER, Export, Style

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.items import Items
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
# Of these, how many the next server gets, if this one dies, to find where it has to go on.
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
        users. May block
    owner: returns permission bits, owner and group; only who may read all of it may read this
    """

    about: str
    face: Face
    follow: Callable[[Callable[[str], None]], AbstractContextManager[Followed]]
    owner: Callable[[], tuple[int, int, int]]


class Events(Closing):
    """The events or records, as one open file gives them; all of this may block.

    has_caught_up: whether all that the buffers had when this was made was given out
    is_over: whether the trace or channel was removed, or is of an earlier boot, and all was given out
    """

    def __init__(self, subject: Subject) -> None:
        self.has_caught_up = self.is_over = False
        self._notice = subject.face.items().notice
        self._about = subject.about
        self._said: list[str] = []
        self._looked = self._limit = 0
        self._first = EVER
        self._end: int | None = None
        self._n_quiet = 0
        with ExitStack() as stack:
            self._live = stack.enter_context(subject.follow(self._say))
            style = Style(subject.face.file_format, marks_late=True)
            self._export = stack.enter_context(closing(Export(self._live.merged, style)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Let go of all buffers."""
        self._stack.close()

    def step(self) -> bytes:
        """Return the next whole items, a bounded number; b"": there are none now, or has_caught_up has become True."""
        items = bytes(self._export.piece())
        if not items and not self._is_at_end():
            self._look()
            items = bytes(self._export.piece())
        # Behind the others, because blocks have to begin with that of their section.
        items += b"".join(map(self._notice, self._said))
        self._said.clear()
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

    begin: makes its Events; may block
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
        self.begin = partial(Events, node.subject)
        self.thread, self.uid = opening.request.pid, opening.request.uid
        self.n_given = 0
        self.ready = bytearray()
        self.changed_ns = time.time_ns()
        self.has_caught_up = self.is_over = self.is_polled = False
        self._items = node.subject.face.items()
        self._skip = 0  # bytes to come that a program has got from a server that died
        self._passed = b""  # the last of these
        self._end: int | None = None  # a read at this offset returns nothing
        self._kept = bytearray()  # the last bytes that were read
        self._handles = node.handles
        self._handles[self.number] = self

    def state(self) -> Any:
        """Return how much was read, and its end."""
        return [self.n_given, self._kept[-TAIL_BYTES:].hex(), self._items.left, self.is_polled]

    def restore(self, state: Any, acts: Acts) -> None:  # noqa: ARG002  # the events come from the buffers
        """Begin to merge anew, and go on behind what was read, if it comes again."""
        self.n_given, tail, self._items.left, self.is_polled = state
        self._skip, self._kept = self.n_given, bytearray.fromhex(tail)

    @property
    def kept_bytes(self) -> int:
        """The length of the items, and of those that were read last."""
        return len(self.ready) + len(self._kept)

    def drop_kept(self) -> None:
        """Free the items that were read."""
        self._kept.clear()

    def put(self, items: bytes, has_caught_up: bool) -> None:
        """Add items; has_caught_up: whether the end of the file is now after them.

        OSError: ESTALE, some are missing that another server has given, so it is not known where to go on
        """
        if self._skip:
            passed, items = items[: self._skip], items[self._skip :]
            self._skip -= len(passed)
            self._passed = (self._passed + passed)[-TAIL_BYTES:]
            if (has_caught_up and self._skip) or (not self._skip and self._passed != self._kept):
                raise failure(errno.ESTALE)
        if items:
            self.ready += items
            self.changed_ns = time.time_ns()
        if has_caught_up and not self.has_caught_up:
            self._end = self.n_given + len(self.ready)
        self.has_caught_up = has_caught_up

    def take(self, offset: int, size: int) -> bytes | None:
        """Return the next whole items, or a part of one longer than `size`; b"": the end; None: there are none now.

        offset: where the last read ended, or before, as head(1) seeks back; OSError: EINVAL if those bytes are not kept
        """
        back = self.n_given - offset
        if back:
            if not 0 < back <= len(self._kept):
                raise failure(errno.EINVAL)
            return bytes(self._kept[-back:][:size])
        end = None if self.is_polled else self._end
        length = min(size, len(self.ready) if end is None else end - self.n_given)
        if not length:
            self._end = None
            return b"" if end is not None or self.is_over else None
        length = self._items.cut(self.ready, length)
        taken = bytes(self.ready[:length])
        del self.ready[:length]
        self._kept += taken
        del self._kept[:-KEPT_BYTES]
        self.n_given += length
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
