"""Checking the counters of a store."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.checking.finding import all_lasting, lasting, of_regular, rights
from relayfs_fuse.native import faults
from relayfs_fuse.native.tables import PERMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.checking.finding import Finding, Place

_MAIN, _NAMES, _LOCK = "counters", "names", "lock"
# The file of a domain.
_DOMAIN = re.compile(r"(?P<uid>[0-9]{1,10})-(?P<gid>[0-9]{1,10})-(?P<mode>[0-7]{4})")
_OF_MAIN = ("relay_perf_header", "the size of counters", "an update flag")
_READ_WRITE = 0o666


def counters(place: Place, uid: int) -> Iterator[Finding]:
    """Check STORE/.counters, whose place this is; `uid` is the store's owner."""
    try:
        yield from rights(place, os.lstat(place.file), PERMS["STORE_TRUSTED"], uid)
        yield from all_lasting(lambda: _files(place, uid))
        if not all(os.path.isfile(place.below(name).file) for name in (_MAIN, _NAMES)):
            if os.path.lexists(place.below(_MAIN).file) != os.path.lexists(place.below(_NAMES).file):
                yield place.damage("one of counters and names is missing", "both")
            return
        seen = lasting(lambda: faults.of_counters(place.file))
    except FileNotFoundError:
        return  # they are being removed
    except OSError as error:
        yield place.refused("they cannot be read", error)
        return
    if seen.is_unfinished and not seen.found:
        yield place.warning(
            "they could not be checked, because other processes keep changing them", "check again later"
        )
    for fault in seen.found:
        yield place.below(_MAIN if fault.name.startswith(_OF_MAIN) else _NAMES).of_fault(fault)
    if seen.n_more:
        yield place.damage(f"there are {seen.n_more} more faults")


def _files(place: Place, uid: int) -> Iterator[Finding]:
    for name in sorted(os.listdir(place.file)):
        with suppress(FileNotFoundError):
            below = place.below(name)
            yield from of_regular(below, lambda _, status, below=below: _file(below, status, uid))  # type: ignore[misc]


def _file(place: Place, status: os.stat_result, uid: int) -> Iterator[Finding]:
    name = os.path.basename(place.file)
    domain = _DOMAIN.fullmatch(name)
    if name in (_MAIN, _NAMES):
        yield from rights(place, status, PERMS["COUNTERS"], uid)
    elif name == _LOCK:
        yield from rights(place, status, PERMS["OWN"], uid)
    elif domain:
        yield from rights(place, status, int(domain["mode"], 8) & _READ_WRITE, int(domain["uid"]))
        yield from _domain_size(place, status)
    else:
        advice = "the next process that makes the same file replaces it" if name.endswith(".new") else "remove it"
        yield place.warning("a file that belongs to no counters", advice)


def _domain_size(place: Place, status: os.stat_result) -> Iterator[Finding]:
    main = os.lstat(os.path.join(os.path.dirname(place.file), _MAIN))
    if stat.S_ISREG(main.st_mode) and status.st_size < main.st_size:
        yield place.damage(f"{status.st_size} bytes", f"{main.st_size}, as counters has", "its size")
