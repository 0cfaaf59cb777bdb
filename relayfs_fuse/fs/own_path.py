"""Checking that no other user could replace a directory or a symbolic link on the way to a path."""

from __future__ import annotations

import os
import stat

# The number of symbolic links that the kernel follows in one path.
_LINKS_MAX = 40


def stranger_above(path: str) -> str | None:
    """Return a message that says who could replace an absolute path; None: only root and this user could.

    The path itself need not exist; the directories above it must. OSError.
    """
    names = _names(path)
    here, n_links = "/", 0
    while names:
        above = os.stat(here, follow_symlinks=False)
        name = names.pop(0)
        below = os.path.join(here, name)
        try:
            status = os.lstat(below)
        except FileNotFoundError:
            if names:
                raise
            status = None
        reason = _replacer(here, above, below, status)
        if reason is not None:
            return reason
        if status is not None and stat.S_ISLNK(status.st_mode) and n_links < _LINKS_MAX:
            target = os.readlink(below)
            here, n_links = "/" if target.startswith("/") else here, n_links + 1
            names = [*target.split("/"), *names]
            if ".." in names:
                return stranger_above(os.path.normpath(os.path.join(os.path.realpath(here), *names)))
            names = [one for one in names if one not in ("", ".")]
        else:
            here = below
    return None


def stranger_writes(path: str) -> str | None:
    """Return a message that says who could change or replace a file; None: only root and this user. OSError."""
    stranger = stranger_above(path)
    if stranger is not None:
        return stranger
    status = os.stat(path)
    if not _is_ours(status.st_uid):
        return f"{path} belongs to user {status.st_uid}, who can change it"
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0):
        return f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others than its owner can change it"
    return None


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _replacer(here: str, above: os.stat_result, below: str, status: os.stat_result | None) -> str | None:
    if not _is_ours(above.st_uid):
        return f"{here} belongs to user {above.st_uid}, who can replace {below}"
    group_writes = above.st_mode & stat.S_IWGRP and above.st_gid != 0
    if not (group_writes or above.st_mode & stat.S_IWOTH):
        return None
    if not above.st_mode & stat.S_ISVTX:
        who = "everybody" if above.st_mode & stat.S_IWOTH else f"group {above.st_gid}"
        return f"{here} has mode {stat.S_IMODE(above.st_mode):04o}: {who} can replace {below}"
    if status is not None and not _is_ours(status.st_uid):
        return f"{below} belongs to user {status.st_uid}, who can replace it"
    return None


def _is_ours(uid: int) -> bool:
    return uid in (0, os.geteuid()) or (uid == _overflow_uid() and _in_user_namespace())


def _overflow_uid() -> int:
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        return int(file.read())


def _in_user_namespace() -> bool:
    """Whether this user namespace does not map all users of the machine; those not mapped all appear as one user."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", "4294967295"]
