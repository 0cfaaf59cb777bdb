"""Whether what is at a path is this user's and root's alone: where the server writes, and which programs it runs."""

from __future__ import annotations

import errno
import os
import stat

from relayfs_fuse.errors import failure
from relayfs_fuse.fs.own_path import stranger_above


def why_not_ours(path: str, *, is_program: bool) -> str | None:
    """Return who else than this user and root could change what is at a path; None: nobody. May block.

    OSError: it is no directory or, is_program, no program.
    """
    status = os.stat(path)
    if is_program and not (stat.S_ISREG(status.st_mode) and os.access(path, os.X_OK)):
        raise OSError(errno.EACCES, "it is no program that this user can execute")
    if not is_program and not stat.S_ISDIR(status.st_mode):
        raise failure(errno.ENOTDIR)
    others_write = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0)
    if status.st_uid not in (0, os.geteuid()) or others_write:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"{path} belongs to user {status.st_uid} and has mode {mode}: others can change it"
    if not is_program and not os.access(path, os.W_OK | os.X_OK):
        raise failure(errno.EACCES)
    return stranger_above(path)
