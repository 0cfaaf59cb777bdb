"""The nodes of a channel's buffers, of any type: relay, memory, peek and merged files; and of damaged ones."""

from __future__ import annotations

import errno
import os
import re
import stat
import weakref
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import failure
from relayfs_fuse.fs import at_once
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.items import Blocks, JsonLines, Lines
from relayfs_fuse.fs.kinds.base import BLOCK_SIZE
from relayfs_fuse.fs.kinds.handles import TOKEN_BYTES, HoldHandle, MemHandle
from relayfs_fuse.fs.kinds.peek import PeekHandle
from relayfs_fuse.fs.merged import LONGEST_BYTES, Face, MergedFile, Subject
from relayfs_fuse.fs.nodes import Node, SubjectFile, TextFile, check_only_reads
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.reading.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.fs.kinds.base import Backing, Stored
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.kinds.damaged import DamagedChannel
    from relayfs_fuse.fs.kinds.handles import Handle
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.reading.records import Begin

MERGED_FACES = {
    "merged": Face("records", Lines),
    "merged.json": Face("records.json", JsonLines),
    "merged.raw": Face("records.pcapng", Blocks),
}

# The token of a MemHandle in hexadecimal, as it stands in the name of a HoldFile.
TOKEN = re.compile(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


class HoldFile(TextFile):
    """memN.TOKEN: as long as a program maps it, the server keeps the memory file open that the program has closed.

    native/src/buffer/open.h says why programs need that. Only the user who opened the memory file may open this one.

    held: a weak reference to the handle of the memory file
    """

    def __init__(self, name: str, held: MemHandle) -> None:
        super().__init__(name, bytes)
        self.held = weakref.ref(held)
        self._owner = 0o400, held.opener.uid, held.opener.gid

    def owner(self) -> tuple[int, int, int]:
        """Return permission bits, owner and group."""
        return self._owner

    def open(self, opening: Opening) -> HoldHandle:
        """Return a new handle; OSError: ESTALE if the memory file is closed."""
        return HoldHandle(self, opening)


class BufferFile(SubjectFile):
    """A relay file or memory file.

    The kernel may remember the inode long after the channel was removed. So a removed node has only a weak reference to
    the buffer, which is unmapped when its last open file is closed.
    """

    _open_somewhere: weakref.ref[Stored[Any]] | None = None

    def __init__(self, name: str, stored: Stored[Any]) -> None:
        super().__init__(name)
        self._stored: Stored[Any] | None = stored

    @property
    def stored(self) -> Stored[Any]:
        """The buffer; OSError: ESTALE if the channel was removed and no file of the buffer is open."""
        stored = self._stored
        if stored is None and self._open_somewhere is not None:
            stored = self._open_somewhere()
        if stored is None:
            raise failure(errno.ESTALE)
        return stored

    def let_go(self) -> None:
        """Keep only a weak reference to the buffer."""
        if self._stored is not None:
            self._open_somewhere, self._stored = weakref.ref(self._stored), None

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return mode, owner and st_ctime of the mem file, and size and st_mtime of the buffer."""
        stored = self.stored
        status = stored.status()
        size, mtime_ns = stored.measure(pid)
        return Attributes(
            inode=self.inode,
            mode=stat.S_IFREG | stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            size=size,
            mtime_ns=mtime_ns,
            ctime_ns=status.st_ctime_ns,
            nlink=0 if self.removed else 1,
            block_size=stored.block_size(pid),
        )

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Set mode, owner and group of all files of the channel; OSError: EBUSY if a mem file is immutable."""
        channel = self.stored.channel
        # The change lifts the file's protection for a moment. An owner who may do so again and again could use that.
        if caller not in (0, os.geteuid()) and channel.is_protected():
            raise failure(errno.EBUSY)
        store.change_owner(channel, mode & PERMS["BUFFER_MOST"], uid, gid)

    def mapped(self) -> Backing | None:
        """Return the mem file, which is mapped now, so that its descriptor can be registered with the kernel."""
        self.stored.map()
        return self.stored.backing


class RelayFile(BufferFile):
    """A relay file.

    known: by which the tap answers lookups of it, while nobody has it open; None: the server answers all
    """

    _lookups = 0

    def __init__(self, name: str, stored: Stored[Any]) -> None:
        self.known: at_once.KnownFile | None = None
        super().__init__(name, stored)
        self.identity = stored.channel.inode

    @property
    def family(self) -> tuple[str, int]:
        """The channel's name, and the buffer's place."""
        return os.path.basename(self.stored.channel.path), self.stored.index + 1

    @property
    def lookups(self) -> int:
        """As Node.lookups, with those that the tap has answered."""
        return self._lookups + (self.known.lookups if self.known else 0)

    @lookups.setter
    def lookups(self, lookups: int) -> None:
        if self.known:
            self.known.take_lookups()
        self._lookups = lookups

    def forget_known(self) -> None:
        """Have the server answer all lookups."""
        if self.known:
            self._lookups += self.known.take_lookups()
            self.known.forget()
            self.known = None

    def let_go(self) -> None:
        """Keep only a weak reference to the buffer."""
        self.forget_known()
        super().let_go()

    @property
    def has_end(self) -> bool:
        """Whether lseek(2) with SEEK_END works: not in mode overwrite.

        Programs such as tail seek to the end and then back. In mode overwrite the data there may be gone by then. After
        an error they read from the beginning, as they do with pipes.
        """
        return self.stored.channel.stats.mode == native.MODE_NO_OVERWRITE

    def truncate(self, size: int) -> None:
        """Do nothing: a shell can open it with `>`, and no data is lost."""

    def open(self, opening: Opening) -> Handle:
        """Return a new handle; OSError."""
        return self.stored.open(opening)


class MemFile(BufferFile):
    """A memory file: .channels/PATH/memN, which programs map."""

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows, with the size of the mem file."""
        attributes = super().attributes(store, pid)
        attributes.size, attributes.block_size = self.stored.channel.stats.file_bytes, BLOCK_SIZE
        return attributes

    @property
    def backing_path(self) -> str | None:
        """The path of the mem file; None if the channel was removed."""
        return None if self.removed else self.stored.path

    def hold(self, name: str, token: str, unlist: Callable[[], None]) -> HoldFile | None:
        """Return a new HoldFile for the open memory file with this token; None: there is none.

        Only the program that opened the memory file knows the token.

        name: of the HoldFile: memN.TOKEN
        token: in hexadecimal
        unlist: is called when the memory file is closed
        """
        held = self.stored.memories.get(int(token, 16)) if TOKEN.fullmatch(token) else None
        if held is None:
            return None
        held.unlist = unlist
        return HoldFile(name, held)

    def open(self, opening: Opening) -> MemHandle:
        """Return a new handle; OSError: EPERM with O_TRUNC."""
        if opening.truncates:
            raise failure(errno.EPERM)
        return MemHandle(self.stored, opening)


class PeekFile(BufferFile):
    """A file peekN: the unread data of a buffer, which reading it does not consume; see kinds/peek.py."""

    @property
    def has_end(self) -> bool:
        """Whether lseek(2) with SEEK_END works: if the size is exact."""
        return self.stored.has_exact_size and self.stored.channel.stats.mode == native.MODE_NO_OVERWRITE

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows of the relay file, without permission to write or execute."""
        attributes = super().attributes(store, pid)
        attributes.mode &= ~0o333
        return attributes

    def change_owner(self, store: Store, mode: int, uid: int, gid: int, caller: int) -> None:
        """Raise OSError: EPERM. Owner and permissions are those of the relay file."""
        raise failure(errno.EPERM)

    def mapped(self) -> None:
        """Return None: a mapping would show the memory itself."""

    def open(self, opening: Opening) -> PeekHandle:
        """Return a new handle; OSError: EACCES unless O_RDONLY is asked."""
        check_only_reads(opening)
        return PeekHandle(self.stored, opening)


def peeks_of(channel: StoredChannel) -> Iterator[PeekFile]:
    """Yield the files peekN of a channel."""
    for stored in channel.buffers:
        yield PeekFile(f"peek{stored.index}", stored)


@contextmanager
def _follow(stored: Sequence[Stored[Any]], times: int, say: Callable[[str], None], begin: Begin) -> Iterator[Records]:
    with ExitStack() as stack:
        memories: list[native.ChannelMemory] = []
        for one in stored:
            memories.append(one.map_again())
            stack.callback(memories[-1].close)
        records = Records(memories, times, say, begin, LONGEST_BYTES)
        stack.pop_all()
    with records:
        yield records


def merged_of(channel: StoredChannel) -> Iterator[MergedFile]:
    """Yield the files `merged`, `merged.json` and `merged.raw` of a channel, if its records have times."""
    if not channel.stats.times:
        return

    def owner() -> tuple[int, int, int]:
        status = stored[0].status()
        return stat.S_IMODE(status.st_mode) & 0o444, status.st_uid, status.st_gid

    stored = tuple(channel.buffers)
    for name, face in MERGED_FACES.items():
        follow = partial(_follow, stored, channel.stats.times)
        yield MergedFile(name, Subject(channel.path, face, follow, owner))


class DamagedFile(Node):
    """A relay file of a damaged channel, which cannot be opened.

    channel: the damaged channel
    mem_name: the name of its mem file
    """

    def __init__(self, name: str, channel: DamagedChannel, mem_name: str) -> None:
        super().__init__(name)
        self.channel = channel
        self.mem_name = mem_name

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return mode, owner and times of the mem file; its size is 0."""
        status = self.channel.status(self.mem_name)
        mode = stat.S_IFREG | stat.S_IMODE(status.st_mode)
        return Attributes(self.inode, mode, status.st_uid, status.st_gid, 0, status.st_mtime_ns, status.st_ctime_ns)

    def open(self, opening: Opening) -> Handle:
        """Raise OSError: EBADMSG."""
        raise failure(errno.EBADMSG)
