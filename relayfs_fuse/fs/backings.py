"""The ids by which the kernel knows the files of the store that programs map through the mount (FUSE passthrough).

As long as an inode is open, the kernel takes no other id for it, whichever server has answered the first open(2). So
each id has a note for the next server, which goes when the kernel has forgotten the id.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs import tap
from relayfs_fuse.fs.notes import BACKING
from relayfs_fuse.fs.store import COUNTERS_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.kinds.base import Backing
    from relayfs_fuse.fs.notes import Notes
    from relayfs_fuse.fs.protection import Protection
    from relayfs_fuse.fs.store import Store

log = logging.getLogger(__name__)


class Backings:
    """The backing ids, for the server's thread.

    notes: of the mount
    protection: makes files immutable that programs may write to
    """

    def __init__(self, notes: Notes, protection: Protection) -> None:
        self._notes = notes
        self._protection = protection
        # The inode numbers of files that the kernel has forgotten; any thread adds them.
        self._closed: deque[int] = deque()

    def number_of(self, backing: Backing) -> int:
        """Return the backing id of a file, which the kernel gives once; 0: it refuses. OSError: ENOMEM."""
        self._drop_closed()
        number = self._known(backing)
        if number is None:
            number = self._register(backing)
            self._notes.put(BACKING, backing.inode, str(number).encode())
        backing.number = number
        return number

    def closing(self, backing: Backing) -> Callable[[], None]:
        """Return a function, for any thread, that has the kernel forget a file, which is not opened any more."""
        number = self._known(backing)

        def close() -> None:
            if number:
                tap.backing_close(number)
            self._closed.append(backing.inode)

        return close

    def close(self, backing: Backing) -> None:
        """Have the kernel forget a file; programs keep their mappings of it."""
        self.closing(backing)()
        backing.number = None
        self._drop_closed()

    def forget_removed(self, store: Store) -> None:
        """Have the kernel forget files that a server before has registered, and that are not there any more."""
        there = {stored.inode for channel in store.channels.values() for stored in channel.buffers}
        for directory in (store.directory, store.locate(COUNTERS_NAME)):
            with suppress(OSError), os.scandir(directory) as entries:
                there.update(entry.inode() for entry in entries)
        for inode, number in list(self._notes.all(BACKING)):
            if inode not in there:
                tap.backing_close(int(number))
                self._notes.drop(BACKING, inode)

    def _known(self, backing: Backing) -> int | None:
        if backing.number is not None:
            return backing.number
        noted = self._notes.get(BACKING, backing.inode)
        return None if noted is None else int(noted)

    def _register(self, backing: Backing) -> int:
        try:
            if backing.is_writable:
                self._protection.add(backing.descriptor)
            return tap.backing_open(backing.descriptor)
        except OSError as error:
            log.warning("%s cannot be mapped through the mount: %s", backing.path, error.strerror)
        return 0

    def _drop_closed(self) -> None:
        while self._closed:
            self._notes.drop(BACKING, self._closed.popleft())
