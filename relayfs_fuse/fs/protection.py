"""Store files whose pages nobody can free (native/src/base/immutable.c): those that other users may map for writing.

The flag is set before the first of them gets a descriptor, and stays until the file goes or the server ends: programs
keep what they have mapped.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

# An older kernel, or a server that lacks the right: what then holds is in relayfs(5).
_REFUSALS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EINVAL)


class Protection:
    """Protect files of a store.

    is_wanted: not if other users open the store's files themselves, which a protected file would refuse
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted

    def add(self, descriptor: int) -> None:
        """Protect a file, which is open for writing, if other users may write to it."""
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
        """Make the files of a store as others are, also those that a server which was killed has protected."""
        for path in _files_of(store):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    native.file_unprotect(descriptor)
                finally:
                    os.close(descriptor)


def delete(path: str) -> None:
    """Delete a file, or a directory with all that is in it; some of it may have gone meanwhile."""
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


def _files_of(store: str) -> Iterator[str]:
    for directory, _, files in os.walk(store):
        yield from (os.path.join(directory, name) for name in files)
