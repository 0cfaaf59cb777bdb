"""How much of the server's own memory the open files of users may keep.

An open file keeps what it gave last, so that it can give that again: texts as they were at the beginning, and the end
of what was read from a relay file. Each is bounded, but a user can have as many open files as he starts processes.
"""

from __future__ import annotations

import errno
import os
from collections import Counter

# What an open file takes, be there anything kept or not; and a name in the list that an open directory keeps.
HANDLE_BYTES = 2048
NAME_BYTES = 64
USER_BYTES = 64 << 20
ALL_USERS_BYTES = 4 * USER_BYTES


class Budget:
    """Account for what open files keep; those of root and of the server's user are not counted."""

    def __init__(self) -> None:
        self._privileged = {0, os.geteuid()}
        self._kept: dict[int, tuple[int, int]] = {}
        self._used: Counter[int] = Counter()
        self._used_by_all = 0

    def hold(self, handle: int, n_bytes: int, uid: int | None = None) -> None:
        """Say how much an open file keeps by now, besides itself; OSError: ENOMEM, it is too much.

        uid: who opens it; None: it was opened before
        """
        owner, before = (uid, 0) if uid is not None else self._kept.get(handle, (0, 0))
        if owner in self._privileged:
            return
        more = HANDLE_BYTES + n_bytes - before
        if more > 0 and (self._used[owner] + more > USER_BYTES or self._used_by_all + more > ALL_USERS_BYTES):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self._used[owner] += more
        self._used_by_all += more
        self._kept[handle] = owner, HANDLE_BYTES + n_bytes

    def release(self, handle: int) -> None:
        """Forget an open file."""
        owner, n_bytes = self._kept.pop(handle, (0, 0))
        self._used[owner] -= n_bytes
        self._used_by_all -= n_bytes
        if not self._used[owner]:
            del self._used[owner]
