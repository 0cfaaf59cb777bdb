"""Checking a directory of mem files, which are the buffers of a channel, or of a process in a trace."""

from __future__ import annotations

import errno
import os
import re
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayfs_fuse.checking.account import Account
from relayfs_fuse.checking.finding import lasting, of_regular, raise_shortage, rights
from relayfs_fuse.native import faults
from relayfs_fuse.native.faults import Faults
from relayfs_fuse.native.tables import OPTIONS, PERMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.checking.finding import Finding, Place
    from relayfs_fuse.native.library import Fields

_MEM_FILE = re.compile(r"mem(?:0|[1-9][0-9]{0,8})")
# The most names of other files, and numbers of missing ones, that are listed of one directory.
_NAMED_MAX = 8


@dataclass(frozen=True)
class Sound:
    """A mem file without faults: its name, its type, and its statistics."""

    name: str
    kind: str
    stats: Fields


class Memories:
    """The mem files of a directory, whose place this is.

    most: the permissions that they may have
    wanted: the type that they must have; None: any
    inspect: called with the view of each sound file of type `wanted`; yields further findings
    account: of the records of all sound files; None: one could not be made
    """

    def __init__(
        self,
        place: Place,
        most: int = PERMS["BUFFER_MOST"],
        wanted: str | None = None,
        inspect: Callable[[Place, Any], Iterator[Finding]] = lambda *_: iter(()),
    ) -> None:
        self._place = place
        self._most = most
        self._wanted = wanted
        self._inspect = inspect
        self.first: Sound | None = None
        self.account: Account | None = Account()
        self._owner: int | None = None

    def check(self) -> Iterator[Finding]:
        """Yield what is wrong; nothing if the directory is removed or replaced meanwhile."""
        try:
            directory = os.stat(self._place.file).st_ino
            self.account = Account()
            found = list(self._check())
            if not found or os.stat(self._place.file).st_ino == directory:
                yield from found
        except FileNotFoundError:
            return

    def _check(self) -> Iterator[Finding]:
        names = os.listdir(self._place.file)
        memories = sorted((name for name in names if _MEM_FILE.fullmatch(name)), key=lambda name: (len(name), name))
        others = sorted(set(names) - set(memories))
        for name in others[:_NAMED_MAX]:
            place = self._place.below(name)
            advice = f"remove it: {place.file}"
            if name.startswith("."):
                yield place.warning("a file that belongs to no channel", advice)
            else:
                yield place._replace(advice=advice).damage(
                    "a file beside mem files, so that no server shows the channel", "mem0, mem1 ... alone"
                )
        missing = [n for n in range(len(memories)) if f"mem{n}" not in memories]
        if missing or len(others) > _NAMED_MAX:
            lacking = ", ".join(f"mem{n}" for n in missing[:_NAMED_MAX]) or "none"
            yield self._place.damage(
                f"{len(memories)} mem files, {lacking} missing, {len(others)} others", "mem0, mem1 ..."
            )
        for name in memories:
            yield from self._check_file(self._place.below(name), int(name.removeprefix("mem")), len(memories))

    def _check_file(self, place: Place, index: int, n_files: int) -> Iterator[Finding]:
        def check(descriptor: int, status: os.stat_result) -> Iterator[Finding]:
            self._owner = status.st_uid if self._owner is None else self._owner
            yield from rights(place, status, self._most, self._owner)
            yield from self._check_memory(place, descriptor, index, n_files)

        with suppress(FileNotFoundError):  # the directory is being removed
            yield from of_regular(place, check)

    def _check_memory(self, place: Place, descriptor: int, index: int, n_files: int) -> Iterator[Finding]:
        kinds: list[str] = []
        try:
            seen = lasting(lambda: _look(descriptor, kinds))
        except OSError as error:
            yield place.refused("it cannot be mapped", error)
            return
        yield from (place.of_fault(fault) for fault in seen.found)
        if seen.n_more:
            yield place.damage(f"it has {seen.n_more} more faults")
        if not seen.found and seen.is_unfinished:
            yield place.warning(
                "it could not be checked to its end, because it was being reset, or so many records were discarded",
                "check again later",
            )
        if kinds and not seen.found:
            yield from self._compare(place, descriptor, kinds[-1], (index, n_files))

    def _compare(self, place: Place, descriptor: int, kind: str, wanted: tuple[int, int]) -> Iterator[Finding]:
        """Compare a mem file with what is known of the channel."""
        try:
            memory = faults.view(kind, descriptor)
        except OSError as error:
            raise_shortage(error)
            return  # it was truncated since; the next check says so
        with closing(memory):
            try:
                stats = memory.stats()
            except OSError:
                return  # as above
            if (stats.cpu, stats.n_buffers) != wanted:
                is_now = f"buffer {stats.cpu} of {stats.n_buffers}"
                yield place.damage(is_now, f"{wanted[0]} of {wanted[1]}", "its place in the channel")
            yield from self._compare_first(place, kind, stats)
            yield from self._add_up(place, kind, stats)
            if self._wanted in {None, kind}:
                yield from self._inspect(place, memory)
            else:
                yield place.damage(kind, self._wanted, "its type")

    def _add_up(self, place: Place, kind: str, stats: Fields) -> Iterator[Finding]:
        account = Account.of(kind, stats)
        if account is not None and account.fault:
            yield place.damage(account.fault, "at most as many", "the account of records")
        if self.account is not None and account is not None and not account.fault:
            self.account.add(account)
        else:
            self.account = None

    def _compare_first(self, place: Place, kind: str, stats: Fields) -> Iterator[Finding]:
        if self.first is None:
            self.first = Sound(os.path.basename(place.file), kind, stats)
        elif self.first.kind != kind:
            yield place.damage(kind, f"{self.first.kind}, as {self.first.name}", "its type")
        else:
            for option in OPTIONS[kind].values():
                if not (option.field and option.file):
                    continue
                here, there = getattr(stats, option.field), getattr(self.first.stats, option.field)
                if here != there:
                    yield place.damage(str(here), f"{there}, as in {self.first.name}", f"the option {option.key}")


def _look(descriptor: int, kinds: list[str]) -> Faults:
    """Look once at a mem file; append its type to `kinds`, if it can be told."""
    kind, seen = faults.geometry(descriptor)
    if kind is None or seen.found:
        return seen
    try:
        memory = faults.view(kind, descriptor)
    except OSError as error:
        if error.errno in (errno.EBADMSG, errno.EPROTO):  # it has changed since
            return Faults(-errno.EAGAIN, [])
        raise
    kinds.append(kind)
    with closing(memory):
        return faults.of_view(kind, memory)
