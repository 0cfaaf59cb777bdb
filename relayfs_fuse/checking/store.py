"""Checking a store, object by object.

    store       the directory, and the files in it that are of no object
    counters    STORE/.counters
    traces      STORE/.traces and STORE/.traces-lost*
    TRACE       the directory of a trace; TRACE/PROCESS that of a process in it
    PATH        a channel, or a directory that leads to channels

Nothing is changed, and no lock is taken. What another process removes meanwhile is not checked.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.checking import traces
from relayfs_fuse.checking.counters import counters
from relayfs_fuse.checking.finding import Place, all_lasting, of_regular, rights
from relayfs_fuse.checking.memory import Memories
from relayfs_fuse.checking.traces import TraceChecker, is_left_over
from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.fs.commands.control import check_path
from relayfs_fuse.fs.early import EARLY_NAME
from relayfs_fuse.fs.store import COUNTERS_NAME, CRASHED_NAME, LOST_NAME, ROOT_NAME
from relayfs_fuse.fs.store_lock import LOCK_NAME, SOCKET_NAME
from relayfs_fuse.native.store import TRACES_NAME, control_in_store
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.tracefiles.snapshots import SNAPSHOTS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relayfs_fuse.checking.account import Account
    from relayfs_fuse.checking.finding import Finding
    from relayfs_fuse.native.trace import Trace

_LOST_OF_USER = re.compile(re.escape(LOST_NAME) + r"-[0-9]{1,10}")
_PAGE_BYTES = 4096
# What a directory has if it is a store.
_MARKS = (ROOT_NAME, TRACES_NAME, COUNTERS_NAME, LOCK_NAME)
_AGAIN = "umount, remove it, and mount again"


def is_store(directory: str) -> bool:
    """Return whether a server has made a store of a directory, or a program has made its counters."""
    return any(os.path.lexists(os.path.join(directory, name)) for name in _MARKS)


class Checker:
    """Checks a store.

    store: its path
    mount: its mount; None: unknown
    wanted: the channels' paths and names of traces to check, with what is below them; empty: all

    n_objects: of those that check() has finished
    accounts: of the records of channels, by path, and of processes in traces, by TRACE/PROCESS
    """

    def __init__(self, store: str, mount: str | None = None, wanted: Sequence[str] = ()) -> None:
        self._store = os.path.abspath(store)
        self._mount = mount
        self._wanted = tuple(path.strip("/") for path in wanted)
        self.n_objects = 0
        self.accounts: dict[str, Account] = {}
        self.n_found = dict.fromkeys(self._wanted, 0)
        status = os.stat(self._store)
        if not stat.S_ISDIR(status.st_mode):
            raise RelayError(f"{store} is no directory, and so no store")
        self._uid = status.st_uid

    def check(self) -> Iterator[Finding]:
        """Yield what is wrong; OSError: the store's directory cannot be read."""
        names = sorted(os.listdir(self._store))
        if not self._wanted:
            yield from self._of_store(names)
            yield from self._of_counters()
            yield from self._of_control(names)
        yield from self._of_traces()
        yield from self._of_early(names)
        yield from self._of_directories()

    # --- which objects there are ---

    def _is_wanted(self, path: str) -> bool:
        """Return whether to check an object."""
        found = [one for one in self._wanted if path == one or path.startswith(f"{one}/")]
        for one in found:
            self.n_found[one] += 1
        return not self._wanted or bool(found)

    def _leads_to_wanted(self, path: str) -> bool:
        return not self._wanted or any(
            f"{one}/".startswith(f"{path}/") or f"{path}/".startswith(f"{one}/") for one in self._wanted
        )

    def _place(self, name: str, path: str, advice: str) -> Place:
        return Place(name, os.path.join(self._store, path) if path else self._store, advice)

    def _remove(self, path: str, what: str = "") -> str:
        """Return the advice to remove a channel or a trace."""
        if self._mount is None:
            return f"mount the store, and relayctl {what}remove {shlex.quote(path)}: what is unread in it is lost"
        mount = f"-m {shlex.quote(self._mount)} "
        return f"relayctl {what}remove {mount}{shlex.quote(path)}: what is unread in it is lost"

    # --- the store, counters, the control file ---

    def _of_store(self, names: Sequence[str]) -> Iterator[Finding]:
        place = self._place("store", "", "see which files other users could replace")
        yield from rights(place, os.stat(self._store), PERMS["STORE_TRUSTED"], self._uid)
        for name in names:
            yield from self._top_file(place.below(name), name)
        self.n_objects += 1

    def _top_file(self, place: Place, name: str) -> Iterator[Finding]:
        is_lost = name == LOST_NAME or bool(_LOST_OF_USER.fullmatch(name))
        ours = (COUNTERS_NAME, CRASHED_NAME, SNAPSHOTS_NAME, TRACES_NAME, EARLY_NAME)
        if not name.startswith(".") or name in ours or is_lost:
            return
        if name == SOCKET_NAME:
            with suppress(FileNotFoundError):
                yield from rights(place, os.lstat(place.file), PERMS["OWN"], self._uid)
            return
        if name not in (LOCK_NAME, ROOT_NAME):
            yield from all_lasting(lambda: self._left_over(place))
            return
        most = PERMS["OWN"] if name == LOCK_NAME else PERMS["PLAIN"] | 0o7000
        with suppress(FileNotFoundError):
            yield from of_regular(
                place._replace(advice=_AGAIN), lambda _, status: rights(place, status, most, self._uid)
            )

    @staticmethod
    def _left_over(place: Place) -> Iterator[Finding]:
        if is_left_over(place.file):
            what = "left by a process that died while it made or removed something, or no file that relayfs makes"
            yield place.warning(what, "the next server deletes it when it starts")

    def _of_counters(self) -> Iterator[Finding]:
        advice = f"umount, remove {COUNTERS_NAME}, and mount again: all counters begin at 0"
        place = self._place("counters", COUNTERS_NAME, advice)
        if os.path.lexists(place.file):
            yield from counters(place, self._uid)
            self.n_objects += 1

    def _of_control(self, names: Sequence[str]) -> Iterator[Finding]:
        advice = "save what is in the traces with relayctl record; then umount, remove .traces, and mount again"
        place = self._place("traces", TRACES_NAME, advice)
        if os.path.lexists(place.file):
            yield from traces.control(place, self._uid)
            self.n_objects += 1
        for name in names:
            if name == LOST_NAME or _LOST_OF_USER.fullmatch(name):
                yield from self._lost(self._place("traces", name, _AGAIN), name)

    def _lost(self, place: Place, name: str) -> Iterator[Finding]:
        owners = {self._uid, int(name.rpartition("-")[2])} if name != LOST_NAME else {self._uid}

        def check(_: int, status: os.stat_result) -> Iterator[Finding]:
            yield from rights(place, status, PERMS["OWN"], status.st_uid if status.st_uid in owners else self._uid)
            if status.st_size < _PAGE_BYTES:
                yield place.damage(f"{status.st_size} bytes", f"at least {_PAGE_BYTES}", "its size")

        with suppress(FileNotFoundError):
            yield from of_regular(place, check)

    # --- traces ---

    def _of_traces(self) -> Iterator[Finding]:
        self._traces = self._named()
        for name, trace in sorted(self._traces.items()):
            checker = TraceChecker(
                trace, self._place(name, name, self._remove(name, "trace ")), self._uid, self.accounts
            )
            yield from self._of_trace(name, checker)

    def _named(self) -> dict[str, Trace]:
        """Return the traces of the control file."""
        return {one.name: one for one in traces.all_traces(control_in_store(self._store))}

    def _unnamed(self, name: str) -> Iterator[Finding]:
        """Check the directory of a trace that the control file did not name."""
        if name in self._named():
            return  # it has been made just now
        place = self._place(name, name, f"rm -r {shlex.quote(os.path.join(self._store, name))}")
        found = place.warning("the directory of a trace that .traces does not name", place.advice)
        yield from all_lasting(lambda: [found] if os.path.lexists(place.file) and name not in self._named() else [])
        yield from self._of_trace(name, TraceChecker(None, place, self._uid, self.accounts))

    def _of_early(self, names: Sequence[str]) -> Iterator[Finding]:
        """Check early events: directories of processes whose trace does not exist yet."""
        if EARLY_NAME not in names or not os.path.isdir(os.path.join(self._store, EARLY_NAME)):
            return
        for name in sorted(os.listdir(os.path.join(self._store, EARLY_NAME))):
            path = f"{EARLY_NAME}/{name}"
            advice = f"rm -r {shlex.quote(os.path.join(self._store, path))}"
            yield from self._of_trace(
                path, TraceChecker(None, self._place(path, path, advice), self._uid, self.accounts)
            )

    def _of_trace(self, name: str, checker: TraceChecker) -> Iterator[Finding]:
        if self._is_wanted(name):
            yield from checker.check()
            self.n_objects += 1
        for process in checker.processes() if self._leads_to_wanted(name) else ():
            path = f"{name}/{process}"
            if self._is_wanted(path):
                advice = f"relayctl record saves what is sound; {self._remove(name, 'trace ')}"
                yield from checker.process(self._place(path, path, advice))
                self.n_objects += 1

    # --- channels ---

    def _of_directories(self) -> Iterator[Finding]:
        """Check channels and the directories that lead to them, depth first."""
        left = [""]
        while left:
            path = left.pop()
            try:
                yield from self._of_directory(path, left)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it was removed meanwhile
            except OSError as error:
                place = self._place(path, path, "see who has made it")
                yield place.refused("it cannot be read", error)

    def _of_directory(self, path: str, left: list[str]) -> Iterator[Finding]:
        with os.scandir(os.path.join(self._store, path)) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        if path and any(not is_directory and not name.startswith(".") for name, is_directory in found):
            if self._is_wanted(path):
                yield from self._of_channel(path)
            return
        if path and self._is_wanted(path):
            yield from self._plain(path)
            self.n_objects += 1
        # The last one is the next.
        for name, is_directory in reversed(found):
            below = f"{path}/{name}" if path else name
            if (name.startswith(".") or below in self._traces) and not path:
                continue
            place = self._place(below, below, f"remove it: {shlex.quote(os.path.join(self._store, below))}")
            if name.startswith("."):
                yield from all_lasting(lambda place=place: self._left_over(place))  # type: ignore[misc]
            elif not is_directory:
                if self._is_wanted(below):
                    yield place.warning("a file that belongs to no channel", place.advice)
            elif self._leads_to_wanted(below):
                if not path and traces.is_of_trace(place.file):
                    yield from self._unnamed(below)
                else:
                    yield from self._descend(place, below, left)

    def _descend(self, place: Place, below: str, left: list[str]) -> Iterator[Finding]:
        try:
            check_path(below)
        except CommandError as error:
            yield place.damage(f"no server shows it: {error.message}")
        else:
            left.append(below)

    def _plain(self, path: str) -> Iterator[Finding]:
        """Check a directory that leads to channels."""
        place = self._place(path, path, "see who has made it")
        try:
            yield from rights(place, os.lstat(place.file), PERMS["PLAIN"] | native.IMPLICIT_MARK, self._uid)
        except FileNotFoundError:
            return
        yield from all_lasting(lambda: self._without_channel(place))

    @staticmethod
    def _without_channel(place: Place) -> Iterator[Finding]:
        try:
            if os.lstat(place.file).st_mode & native.IMPLICIT_MARK and not os.listdir(place.file):
                yield place.warning("a directory for a channel that is not there", "the next server removes it")
        except FileNotFoundError:
            return

    def _of_channel(self, path: str) -> Iterator[Finding]:
        place = self._place(path, path, self._remove(path))
        yield from rights(place, os.stat(place.file), PERMS["PLAIN"], self._uid)
        memories = Memories(place)
        yield from memories.check()
        if memories.account is not None:
            self.accounts[path] = memories.account
        self.n_objects += 1
