"""Whether directories of a store, which are channels and traces, have come or gone."""

from __future__ import annotations

import errno
from contextlib import ExitStack

from relayfs_fuse import inotify
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.store import TRACES_NAME

_MASK = (
    inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.DELETE_SELF | inotify.MOVE_SELF
    | inotify.ONLY_DIRECTORIES
)  # fmt: skip
_GONE = (errno.ENOENT, errno.ENOTDIR)


class Changes(Closing):
    """Watch directories, which may disappear at any time."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._is_blind = False
        try:
            self._inotify = inotify.Inotify()
            self._stack.callback(self._inotify.close)
        except OSError:
            self._is_blind = True  # too many inotify instances of this user

    def close(self) -> None:
        """Close the descriptor."""
        self._stack.close()

    def watch(self, directory: str) -> None:
        """Watch a directory, before its names are listed; again is no harm."""
        if self._is_blind:
            return
        try:
            self._inotify.add(directory, _MASK)
        except OSError as error:
            # There may be too many watches of this user.
            self._is_blind = error.errno not in _GONE

    def are_there(self) -> bool:
        """Return whether names may have changed since the last call; always, if a directory cannot be watched."""
        if self._is_blind:
            return True
        found = False
        while events := self._inotify.events():
            found |= any(_is_change(mask, name) for _, mask, name in events)
        return found


def _is_change(mask: int, name: str) -> bool:
    """Return whether an event is of a name that is shown; IGNORED only says that a watch has ended."""
    # Names with a dot are the server's own; but other traces are in another file of this name.
    return mask & ~inotify.IGNORED != 0 and (not name.startswith(".") or name == TRACES_NAME)
