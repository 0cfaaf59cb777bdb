"""What a check has found, and looking again, since programs write while it looks."""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.native import faults
from relayfs_fuse.native.tables import PERMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from relayfs_fuse.native.faults import Fault, Faults

DAMAGED = "damaged"
WARNING = "warning"

# The pauses before looking again at what was wrong, in seconds. A value that is wrong each time is damage; one of
# which a part was loaded before and a part after a change is not.
_PAUSES_S = tuple(0.001 * 2**n for n in range(8))
# What is the same after a pause of this length is not being changed: a reset, or making a directory, takes less.
_SETTLED_S = 0.008
# What this process or the machine is short of says nothing about a file.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_TYPES = {
    stat.S_ISDIR: "a directory",
    stat.S_ISLNK: "a symbolic link",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISREG: "a regular file",
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    level: DAMAGED or WARNING
    name: the object: a channel's path, TRACE/PROCESS, "counters", ...
    file: the path of the file
    offset: in the file, of the value; None: the file as a whole
    value: the name of the value; empty: the file as a whole
    found: what it is
    allowed: what is allowed; empty: `found` says it
    advice: what to do
    """

    level: str
    name: str
    file: str
    offset: int | None
    value: str
    found: str
    allowed: str
    advice: str

    def line(self) -> str:
        """Return it as a line for people."""
        where = self.file if self.offset is None else f"{self.file} at {self.offset}"
        is_what = f"{self.value} is {self.found}" if self.value else self.found
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"{self.level}  {self.name}: {where}: {is_what}{allowed} -> {self.advice}"


class Place(NamedTuple):
    """The object and the file of findings.

    name, file: as in Finding
    advice: what to do if it is damaged
    """

    name: str
    file: str
    advice: str

    def below(self, *names: str) -> Place:
        """Return the place of a file below."""
        return self._replace(file=os.path.join(self.file, *names))

    def damage(self, found: str, allowed: str = "", value: str = "", offset: int | None = None) -> Finding:
        """Return a finding of damage."""
        return Finding(DAMAGED, self.name, self.file, offset, value, found, allowed, self.advice)

    def refused(self, found: str, error: OSError) -> Finding:
        """Return a finding of damage: the file cannot be used; OSError: this process is short of something."""
        raise_shortage(error)
        return self.damage(f"{found}: {error.strerror}")

    def warning(self, found: str, advice: str, value: str = "") -> Finding:
        """Return a warning."""
        return Finding(WARNING, self.name, self.file, None, value, found, "", advice)

    def of_fault(self, fault: Fault) -> Finding:
        """Return the finding that a fault in this file is."""
        found = fault.text if fault.value is None else str(fault.value)
        allowed = "" if fault.value is None else fault.text
        if fault.kind == faults.DEAD:
            found = f"left by thread {fault.value}, which has died"
            if not fault.name.endswith(("thread", "lock")):
                found = str(fault.value)
            return Finding(WARNING, self.name, self.file, fault.at, fault.name, found, "", fault.text)
        advice = self.advice
        if fault.kind == faults.VERSION:
            allowed = f"{allowed}, that of this relayctl"
            advice = f"use the relayctl of the version that made it; or {advice}"
        return Finding(DAMAGED, self.name, self.file, fault.at, fault.name, found, allowed, advice)


def raise_shortage(error: OSError) -> None:
    """Raise an error that says nothing about a file."""
    if error.errno in _SHORTAGES:
        raise error


def type_of(mode: int) -> str:
    """Return what a file is by st_mode."""
    return next((text for is_it, text in _TYPES.items() if is_it(mode)), "an unknown file")


def lasting(look: Callable[[], Faults]) -> Faults:
    """Call look() until it finds no fault, or the same faults again; return those.

    look: OSError as it raises
    """
    seen, is_sure = look(), False
    for pause_s in _PAUSES_S:
        if not seen.found and not seen.is_unfinished:
            return seen
        time.sleep(pause_s)
        before, seen = seen, look()
        # Compare only two complete checks, or two incomplete ones.
        is_sure = before.is_unfinished == seen.is_unfinished
        if before == seen and (pause_s >= _SETTLED_S or not seen.is_unfinished):
            return seen  # nobody changes it
        if is_sure:
            again = {(fault.at, fault.name) for fault in before.found}
            kept = [fault for fault in seen.found if (fault.at, fault.name) in again]
            seen = seen._replace(found=kept, n_more=min(before.n_more, seen.n_more))
    return seen if is_sure else seen._replace(found=[], n_more=0)


def all_lasting(look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings that look() returns each time."""
    seen = list(look())
    for pause_s in _PAUSES_S:
        if not seen:
            break
        time.sleep(pause_s)
        again = {(one.file, one.offset, one.value) for one in look()}
        kept = [one for one in seen if (one.file, one.offset, one.value) in again]
        is_same, seen = len(kept) == len(seen), kept
        if is_same and pause_s >= _SETTLED_S:
            break
    yield from seen


def of_regular(place: Place, check: Callable[[int, os.stat_result], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a function finds in a regular file; or that it is something else, or that this user may not read it.

    check: is called with a descriptor, for reading, and its status

    FileNotFoundError: the file has been removed
    """
    yield from (wrong := _of_type(place, os.lstat(place.file).st_mode))
    if wrong:
        return
    try:
        descriptor = os.open(place.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise_shortage(error)
        advice = "check as root, or as the user whose store it is"
        yield place.warning(f"it cannot be opened: {error.strerror}", advice)
        return
    try:
        status = os.fstat(descriptor)
        yield from _of_type(place, status.st_mode) or check(descriptor, status)
    finally:
        os.close(descriptor)


def _of_type(place: Place, mode: int) -> list[Finding]:
    return [] if stat.S_ISREG(mode) else [place.damage(f"it is {type_of(mode)}", "a regular file")]


def rights(place: Place, status: os.stat_result, most: int, uid: int) -> Iterator[Finding]:
    """Yield what is wrong with the permissions and the owner of a file or directory.

    most: the permissions that it may have
    uid: the user to whom it should belong
    """
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~most:
        advice = f"chmod {mode & most:04o} {place.file}"
        who = "other users may write to it" if mode & ~most & PERMS["STRANGERS"] else "it has more than is needed"
        yield place._replace(advice=advice).damage(f"{mode:04o}, so {who}", f"at most {most:04o}", "its mode")
    if status.st_uid != uid:
        advice = f"see who has made it; chown {uid} {place.file}"
        yield place._replace(advice=advice).damage(f"user {status.st_uid}", f"user {uid}", "its owner")
