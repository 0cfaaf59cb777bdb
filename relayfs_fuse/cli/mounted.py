"""What is wrong with mounts of relayfs: servers that have ended or do not answer, other versions, damage, errors."""

from __future__ import annotations

import mmap
import os
import re
import shlex
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.cli.machine import NOTE, OK, PROBLEM, Finding
from relayfs_fuse.cli.version import SERVER_XATTR
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs import mounts
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.source import find_store

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWNER = re.compile(r"\buser_id=([0-9]+)")
# How long a server may take to answer all that is asked of one mount.
ANSWER_S = 10.0
# The most damaged channels that are named.
_NAMED_MAX = 10


def mounts_found(only: str | None) -> list[str]:
    """Return the mountpoints of all relayfs, or that one.

    RelayError: it is none.
    """
    places = mounts.places()
    if only is None:
        return places
    # The mount may be dead, so that nothing can be asked of it.
    above, name = os.path.split(os.path.abspath(only))
    place = os.path.join(os.path.realpath(above), name)
    if place not in places:
        raise RelayError(f"{only} is no mount of relayfs; there are: {', '.join(places) or 'none'}")
    return [place]


def mounted(place: str) -> list[Finding]:
    """Check a mount; at most ANSWER_S.

    One of another user than root and this one is not touched: its server may be any program of that user.
    """
    top = mounts.top_at(place)
    user = _OWNER.search(top.options if top else "")
    if user and int(user[1]) not in {0, os.geteuid()}:
        return [Finding(OK, place, f"a mount of user {user[1]}, which this user's programs do not use")]
    found: list[Finding] = []
    # A server that is stopped answers nothing, and the thread waits for it as long as this process lives.
    thread = threading.Thread(target=_check_into, args=(found, place), daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if thread.is_alive():
        return [
            Finding(
                PROBLEM, place, f"the server does not answer within {ANSWER_S:g} s: programs that use files of the "
                "mount hang", "wait: a server that is stuck or stopped for 10 s (-o watchdog=SECONDS) is replaced, and "
                "open files go on; if it is not, umount and mount again: channels and their data stay",
            )
        ]  # fmt: skip
    return found


def _check_into(found: list[Finding], place: str) -> None:
    try:
        found.extend(_check(place))
    except OSError as error:
        found[:] = [
            Finding(
                PROBLEM, place, f"the server has ended, and left its mount behind ({error.strerror})",
                f"umount {place}, and mount again: channels and their data stay",
            )
        ]  # fmt: skip


def _check(place: str) -> Iterator[Finding]:
    os.stat(place)
    yield _version(place)
    yield _mapping(place)
    yield from _traces(place)
    yield from _damaged(place)
    yield _errors(place)


def _version(place: str) -> Finding:
    try:
        version, _ = os.getxattr(place, SERVER_XATTR).decode(errors="replace").split()
    except (OSError, ValueError):
        version = "an older version"
    if version == native.VERSION:
        return Finding(OK, place, f"the server answers; its version is {version}, as that of this relayctl")
    return Finding(
        NOTE, place, f"the server is of {version}, this relayctl of {native.VERSION}: commands that read the store may "
        "be refused", f"relayctl upgrade {shlex.quote(place)} has a server of this version take over; open files go on",
    )  # fmt: skip


def _mapping(place: str) -> Finding:
    try:
        descriptor = os.open(os.path.join(place, "counters"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ).close()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return Finding(
            PROBLEM, place, "it has no counters: those of the store are damaged, or of another version",
            f"relayctl check {shlex.quote(place)} tells which value is wrong",
        )  # fmt: skip
    except OSError:
        top = mounts.top_at(place)
        others = "; other users' programs write and read through the server"
        is_for_others = top is not None and "allow_other" in top.options.split(",")
        return Finding(
            NOTE, place, mounts.MAPS_NO_FILES + others * is_for_others,
            "have root of the machine mount, with Linux 6.9 or later",
        )  # fmt: skip
    return Finding(OK, place, "programs of all users map its files")


def _traces(place: str) -> Iterator[Finding]:
    try:
        with closing(Traces(control_in_store(find_store(place)))):
            pass
    except PermissionError:
        return  # only the store's owner and root may open it
    except (OSError, RelayError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield Finding(
            PROBLEM, place, f"the traces cannot be read: {reason}",
            f"relayctl check {shlex.quote(place)} tells which value is wrong",
        )  # fmt: skip


def _damaged(place: str) -> Iterator[Finding]:
    with open(os.path.join(place, "control"), encoding="utf-8", errors="replace") as file:
        damaged = [line for line in file if line.startswith("# ") and " is damaged: " in line]
    for line in damaged[:_NAMED_MAX]:
        path = line.split()[1]
        where = f"-m {shlex.quote(place)} {shlex.quote(path)}"
        yield Finding(PROBLEM, place, line[2:].strip(), f"relayctl check {where} tells more; relayctl remove {where}")
    if len(damaged) > _NAMED_MAX:
        yield Finding(
            PROBLEM,
            place,
            f"{len(damaged) - _NAMED_MAX} more channels are damaged",
            f"cat {shlex.quote(place)}/control",
        )


def _errors(place: str) -> Finding:
    with open(os.path.join(place, "error_log"), encoding="utf-8", errors="replace") as file:
        entries = [line.strip() for line in file if line.startswith("[")]
    if not entries:
        return Finding(OK, place, "error_log is empty")
    return Finding(
        NOTE, place, f"error_log has {len(entries)} entries; the last: {entries[-1]}", f"cat {place}/error_log"
    )
