"""How much of the server's own memory the open files of users may take.

An open file keeps data that may be read again: a text as it was at the read from offset 0, and the last bytes read from
a relay file. For each file that is bounded, but the number of a user's open files is not.
"""

from __future__ import annotations

import errno
import os
from collections import Counter

from relayfs_fuse.errors import failure

# Bytes that an open file takes besides the data it keeps; and a name in the list that an open directory keeps.
HANDLE_BYTES = 2048
NAME_BYTES = 64
USER_BYTES = 64 << 20
ALL_USERS_BYTES = 4 * USER_BYTES


class Budget:
    """The sums of what open files keep, by user; files opened by root and by the server's user are not counted."""

    def __init__(self) -> None:
        self._privileged = {0, os.geteuid()}
        self._kept: dict[int, tuple[int, int]] = {}
        self._used: Counter[int] = Counter()
        self._used_by_all = 0

    def hold(self, handle: int, n_bytes: int, uid: int | None = None) -> None:
        """Set how many bytes of data an open file keeps; OSError: ENOMEM, the user or all users would keep too much.

        uid: the user who opens the file; None: an earlier call for this handle had it
        """
        owner, before = (uid, 0) if uid is not None else self._kept.get(handle, (0, 0))
        if owner in self._privileged:
            return
        more = HANDLE_BYTES + n_bytes - before
        if more > 0 and (self._used[owner] + more > USER_BYTES or self._used_by_all + more > ALL_USERS_BYTES):
            raise failure(errno.ENOMEM)
        self._used[owner] += more
        self._used_by_all += more
        self._kept[handle] = owner, HANDLE_BYTES + n_bytes

    def release(self, handle: int) -> None:
        """Subtract what an open file keeps: it is being closed."""
        owner, n_bytes = self._kept.pop(handle, (0, 0))
        self._used[owner] -= n_bytes
        self._used_by_all -= n_bytes
        if not self._used[owner]:
            del self._used[owner]
