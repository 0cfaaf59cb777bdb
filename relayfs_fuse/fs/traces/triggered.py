"""The file `triggered` of a trace: what its triggers have done, a line each; see tracefiles/trigger_files.py.

A program that polls the file finds it readable when there is more than it has read.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.attributes import Attributes
from relayfs_fuse.fs.kinds.base import GONE, READABLE
from relayfs_fuse.fs.kinds.handles import Handle
from relayfs_fuse.fs.nodes import SubjectFile, check_only_reads
from relayfs_fuse.tracefiles.trigger_files import JOURNAL

if TYPE_CHECKING:
    import pyfuse3

    from relayfs_fuse.fs import tap
    from relayfs_fuse.fs.opener import Opening
    from relayfs_fuse.fs.requests.acts import Acts
    from relayfs_fuse.fs.store import Store


class TriggeredHandle(Handle):
    """An open file `triggered`.

    polled: notifies the kernel; None: no program polls the file
    """

    def __init__(self, node: TriggeredFile, opening: Opening) -> None:
        super().__init__(opening)
        self._node = node
        self._position = 0
        self.polled: pyfuse3.PollHandle | None = None
        node.handles.add(self)

    async def read(self, acts: Acts, offset: int, size: int, request: tap.Request) -> bytes:
        """Return a part of the lines."""
        data = self._node.part(offset, size)
        self._position = offset + len(data)
        return data

    def state(self) -> int:
        """Return up to where the lines were read."""
        return self._position

    def restore(self, state: Any, acts: Acts) -> None:
        """Go on there."""
        self._position = int(state or 0)

    def poll(self, acts: Acts, notify: pyfuse3.PollHandle | None) -> int:
        """Return whether there is something behind what was read last, or the file was shortened."""
        self.polled = notify or self.polled
        if self._node.removed:
            return READABLE | GONE
        size = self._node.size()
        self._position = min(self._position, size)
        return READABLE if size > self._position else 0

    async def close(self, acts: Acts) -> None:
        """Forget the handle."""
        self._node.handles.discard(self)


class TriggeredFile(SubjectFile):
    """The file `triggered` of a trace.

    directory: of the trace in the store
    handles: its open files
    """

    def __init__(self, name: str, directory: str) -> None:
        super().__init__(name)
        self._path = os.path.join(directory, JOURNAL)
        self.handles: set[TriggeredHandle] = set()

    def let_go(self) -> None:
        """Wake those who poll the file of a removed trace."""
        self.tell()

    def tell(self) -> None:
        """Notify those who poll the file."""
        for handle in self.handles:
            if handle.polled is not None:
                with suppress(OSError):  # it is being closed
                    handle.polled.notify()

    def size(self) -> int:
        """Return the length of the lines."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_size
        except OSError:
            return 0  # no trigger has fired so far

    def part(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from `offset`; OSError: ESTALE after the trace was removed."""
        if self.removed:
            raise failure(errno.ESTALE)
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def attributes(self, store: Store, pid: int) -> Attributes:
        """Return what stat(2) shows; as the files `merged`, it is for those who may read all of the trace."""
        now = time.time_ns()
        return Attributes(
            self.inode, stat.S_IFREG | 0o400, os.geteuid(), os.getegid(), self.size(), now, store.began_ns
        )

    def open(self, opening: Opening) -> TriggeredHandle:
        """Return a new handle; OSError: EACCES unless O_RDONLY is asked."""
        check_only_reads(opening)
        return TriggeredHandle(self, opening)
