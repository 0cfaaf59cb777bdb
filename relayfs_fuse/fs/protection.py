"""Deleting files of the store, and making them immutable: other users who map them for writing cannot free their pages.

native/src/base/immutable.c explains the attribute. It is set before the first other user can open the file through the
mount. It stays until the file is deleted or the server ends, because programs keep their mappings.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relayfs_fuse.fs.kinds.base import Stored

log = logging.getLogger(__name__)

# What the hidden names of removed channels begin with.
REMOVED = ".removed-"

# The errors if the kernel or the server's privileges do not suffice; relayfs(5) says what that means for users.
_REFUSALS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EINVAL)


class Protection:
    """The protection of a store's files.

    is_wanted: False if other users may open the store's files themselves: an immutable file cannot be opened to write
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def add(self, descriptor: int) -> None:
        """Make a file immutable if other users may write to it; OSError.

        descriptor: of the file, open for writing
        """
        if not self._is_wanted:
            return
        try:
            native.file_protect(descriptor)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            log.debug("the store's files cannot be made immutable: %s", error.strerror)
            self._is_wanted = False

    @staticmethod
    def lift_all(store: str) -> None:
        """Make all files of a store mutable, also those that a killed server has left immutable."""
        for path in _files_of(store):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    native.file_unprotect(descriptor)
                finally:
                    os.close(descriptor)


def delete(path: str) -> None:
    """Delete a file, or a directory with all that is in it, immutable files too; OSError."""
    if os.path.islink(path) or not os.path.isdir(path):
        native.file_unlink(path)
        return
    for directory, names, files in os.walk(path, topdown=False):
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in (*files, *links):
            with suppress(FileNotFoundError):
                native.file_unlink(os.path.join(directory, name))
        with suppress(FileNotFoundError):
            os.rmdir(directory)


def removed_in(store: str) -> list[str]:
    """Return the directories of removed channels in a store that are not deleted yet."""
    return glob.glob(f"{glob.escape(store)}/{REMOVED}*")


def delete_removed(store: str) -> None:
    """Delete these directories."""
    for directory in removed_in(store):
        delete(directory)


def delete_when_closed(directory: str, buffers: Sequence[Stored[Any]]) -> None:
    """Delete the directory of a removed channel when no file of it is open; blocks."""
    if not any(stored.n_users for stored in buffers):
        delete(directory)
        return
    left = len(buffers)

    def closed() -> None:
        nonlocal left
        left -= 1
        if not left:
            delete(directory)

    for stored in buffers:
        stored.closed += (closed,)


def _files_of(store: str) -> Iterator[str]:
    for directory, _, files in os.walk(store):
        yield from (os.path.join(directory, name) for name in files)
