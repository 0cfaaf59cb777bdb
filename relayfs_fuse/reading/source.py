"""Where channels and traces are: a mount, or a store that has no server; and a trace to read, with its processes."""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relayfs_fuse import inotify, native
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs import mounts
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.store import control_in_store
from relayfs_fuse.tracefiles.losses import Intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native.trace import Clocks
    from relayfs_fuse.tracefiles.ctf import Unbuffered

# What mounts a relayfs, for messages.
MOUNT = "relayfs DIR"
NO_TRACES = "no server has made traces there, or this process does not see that store"
# How many names a message lists.
_LISTED = 10


@dataclass(frozen=True)
class Root:
    """Where channels are: a directory that their paths are relative to.

    place: a mount, or a store
    is_store: whether it is a store, which is used without a server
    """

    place: str
    is_store: bool


def find_root(mount: str | None = None, *, makes: bool = False) -> Root:
    """Find where programs find channels: in a mount, and where none is, in the store that they use then.

    mount: the mount to use; None: $RELAYFS, or the first mount that belongs to root or this user
    makes: whether the store will be made if it does not exist

    RelayError: there is neither; or the mount that is named is none. OSError: the mount does not answer.
    """
    place = find_mount(mount)
    if place is not None and _is_mount(place):
        return Root(place, is_store=False)
    others = mounts.places()
    what = "no relayfs is mounted" if place is None else f"{place} is no mount of relayfs"
    if mount is None and place is not None:
        what = f"RELAYFS={what}"
    # A variable that names the store says more than one that names a place where nothing is mounted yet.
    if mount is not None or (others and place is not None and not os.environ.get("RELAYFS_STORE")):
        raise RelayError(f"{what}; there are: {', '.join(others) or 'none'}")
    store = native.default_store()
    if not makes and not os.path.isdir(store):
        raise RelayError(
            f"{what}, and there is no store {store}, which programs use without a mount; mount one: {MOUNT}; "
            "or let RELAYFS_STORE name the store"
        )
    return Root(store, is_store=True)


def _is_mount(place: str) -> bool:
    """Return whether a relayfs is mounted there; OSError: it does not answer."""
    try:
        # Any directory may have a file `control`.
        os.stat(os.path.join(place, ".channels", "..", "control"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        error.filename = os.path.join(place, "control")
        raise
    return True


def find_store(mount: str | None = None, store: str | None = None) -> str:
    """Find the store to work on.

    mount: its mount, or the store itself; None: as for find_root()
    store: the store itself, which needs no server

    RelayError, OSError: as find_root()
    """
    if store is not None:
        return store
    named = find_mount(mount)
    if named is not None and os.path.isfile(control_in_store(named)):
        return named
    root = find_root(mount)
    if root.is_store:
        return root.place
    try:
        return native.find_store(root.place)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        raise RelayError(f"{root.place}: this mount does not tell where its store is; give --store STORE") from error


def mount_of(mount: str | None, store: str | None) -> str | None:
    """Return the mount of the store that find_store() finds; None: there is none, or the store was named. OSError."""
    if store is not None:
        return None
    try:
        root = find_root(mount)
    except RelayError:
        return None
    return None if root.is_store else root.place


def find_mount(mount: str | None = None) -> str | None:
    """Find the mount to work on; see find_root(). Nothing need be mounted there."""
    return mount or native.find_mount()


def other_mounts(mount: str | None) -> str:
    """Return what is added to a message that something is not there, if the user has not said which mount is meant.

    mount: which the user has named; None: none
    """
    if mount is not None or os.environ.get("RELAYFS"):
        return ""
    others = [one for one in mounts.places() if one != find_mount()]
    return f"; {listed('other mounts, for -m', others)}" if others else ""


def listed(sort: str, names: Sequence[str]) -> str:
    """Return the first of the names after a word that says what they are; without names: an empty text."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{sort}: {', '.join(names[:_LISTED])}{more}" if names else ""


class Source:
    """A trace in a store.

    name: the name of the trace
    store: the directory of the store
    number: the id that the trace must have; None: any
    directory: a path of the trace's directory, which stays valid after a server has renamed the directory to remove it
    is_being_removed: whether the server has renamed it
    unbuffered, losses: the last result of lost_without_buffers(), and what it has found so far, for the metadata

    RelayError: there is no such trace. The inotify descriptor is readable when there may be new directories.
    """

    def __init__(self, name: str, store: str, number: int | None = None) -> None:
        self.name = name
        self.store = store
        self.is_being_removed = False
        self.unbuffered: Unbuffered = (0, 0)
        self.losses = Intervals()
        with ExitStack() as stack:
            try:
                self._traces = native_trace.Traces(control_in_store(store))
            except FileNotFoundError as error:
                raise RelayError(f"there is no trace {name} in {store}: {NO_TRACES}") from error
            stack.callback(self._traces.close)
            trace = self._traces.find(name)
            if trace is None or trace.id != (number or trace.id):
                there_is = listed("traces", sorted(one.name for one in self._traces.all().values()))
                raise RelayError(f"there is no trace {name} in {store}; {there_is or 'there is none at all'}")
            self.trace = trace
            descriptor = os.open(os.path.join(store, name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            # With the dot it is a directory also for calls that do not follow symbolic links.
            self.directory = f"/proc/self/fd/{descriptor}/."
            self.inotify = inotify.Inotify()
            stack.callback(self.inotify.close)
            self.inotify.add(
                self.directory, inotify.MOVED_TO | inotify.CREATE | inotify.MOVE_SELF | inotify.ONLY_DIRECTORIES
            )
            if not self.refresh():
                raise RelayError(f"{name} in {store} has just been removed")
            self._stack = stack.pop_all()

    @property
    def identity(self) -> str:
        """A text that no other trace has."""
        return f"trace={self.trace.name} id={self.trace.id} boot={self.trace.boot}"

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether the trace was made before the last reboot: no process writes to it any more."""
        return self.trace.boot != native_trace.boot_id()

    def refresh(self) -> bool:
        """Update `trace` from the control file; False: it was removed, or is being removed."""
        if self.is_being_removed:
            return False
        trace = self._traces.find(self.name)
        if trace is None or trace.id != self.trace.id:
            return False
        self.trace = trace
        return True

    def lost_without_buffers(self) -> tuple[int, dict[int, int]]:
        """Return how many events trusted programs lost without buffers; and, by user, how many other programs did."""
        asked_ns = time.time_ns()
        own, by_user = self._traces.lost(self.trace), native_trace.lost_by_user(self.store).get(self.trace.id, {})
        self.unbuffered = own, sum(by_user.values())
        # Programs that get buffers in the end count there what they have lost before.
        self.losses.look({"no_buffers": (sum(self.unbuffered), None)}, asked_ns, begins_anew=False)
        return own, by_user

    def clocks(self) -> Clocks:
        """Return the latest known clocks of the boot in which the trace was made."""
        if self.trace.boot == native_trace.boot_id():
            return native_trace.read_clocks(self.trace.clock)
        return self.trace.latest if self.trace.latest.mono_ns else self.trace.made

    def now(self) -> int:
        """Return the present time, ns since 1970, by the trace's clocks: CLOCK_REALTIME may have been set since."""
        if self.is_of_earlier_boot:
            return time.time_ns()
        made = self.trace.made
        return made.real_ns + self.clocks().mono_ns - made.mono_ns

    def processes(self) -> list[str]:
        """Return the names of the directories of processes that the trace has now."""
        self.is_being_removed |= any(mask & inotify.MOVE_SELF for _, mask, _ in self.inotify.events())
        try:
            return sorted(name for name in os.listdir(self.directory) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Close all descriptors."""
        self._stack.close()
