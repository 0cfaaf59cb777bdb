"""Reading the figures of channels, traces and counters, for relayctl list, stat, top and serve.

Buffers are mapped in the store, and counters through one mapping, so that reading them makes no request to the server.
A user who may not open the store gets what .channels/ says of channels, and what the control file says of traces.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import TypeVar

from relayfs_fuse import native
from relayfs_fuse.cli.changes import Changes
from relayfs_fuse.cli.figures import Figures
from relayfs_fuse.cli.forwarders import figures_of, forwarders_in
from relayfs_fuse.cli.mapped import SHOWN, MappedChannel, MappedProcess, failed_process, lost, number_of, written
from relayfs_fuse.cli.names import CHANNEL, FORWARDERS, SERVER_COUNTERS, channels_of_store, damage_in, names_in
from relayfs_fuse.cli.traces import all_traces, processes_of
from relayfs_fuse.counters import Counters
from relayfs_fuse.errors import CommandError, MountError, StoreError
from relayfs_fuse.fs.commands.control import check_path
from relayfs_fuse.fs.kinds.channel import BadMemoryError
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.library import Closing
from relayfs_fuse.native.store import control_in_mount, control_in_store
from relayfs_fuse.native.tables import TYPES
from relayfs_fuse.native.trace import Trace, Traces
from relayfs_fuse.reading.source import find_mount, find_store
from relayfs_fuse.shown import Shown

_RING = TYPES[1]
# The state of what was not read, because there was no time left.
LATE = "late"
Mapped = TypeVar("Mapped", MappedChannel, MappedProcess)


def read_all(mount: str | None, store: str | None, is_wanted: Callable[[str], bool]) -> list[Figures]:
    """Read the figures of all channels, traces and counters whose names are wanted, in this order.

    mount, store: as for find_store()

    RelayError, OSError: there is no such mount or store, or it may not be read.
    """
    with Objects(mount, store, is_wanted) as objects:
        return [*objects.read(), *_counters(objects.place or objects.where, is_wanted)]


class Objects(Closing):
    """The channels and traces whose names are wanted; what was mapped stays mapped between readings.

    mount, store: as for find_store()
    where: the store
    place: the mount; None: only the store is known

    RelayError, OSError: there is no such mount or store, or it may not be read.
    """

    def __init__(self, mount: str | None, store: str | None, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
        self.where = find_store(mount, store)
        place = None if store is not None else find_mount(mount)
        # Where nothing is mounted, it is the store that programs use then.
        self.place = place if place is not None and os.path.exists(os.path.join(place, "control")) else None
        self._is_wanted = is_wanted
        self._mapped = None
        if os.access(self.where, os.R_OK | os.X_OK) or self.place is None:
            self._mapped = _Store(self.where, self.place, is_wanted)

    def close(self) -> None:
        """Unmap all."""
        if self._mapped is not None:
            self._mapped.close()

    def read(self, until: float = math.inf) -> list[Figures]:
        """Read the figures of all channels, then of all traces, in the order of their names; OSError.

        until: seconds of CLOCK_MONOTONIC; of a store, those whose turn has not come by then have the state LATE
        """
        if self._mapped is not None:
            return list(self._mapped.read(until))
        assert self.place is not None
        return list(_read_mount(self.place, self._is_wanted))


class _Store(Closing):
    """What is mapped of a store: by path the channels, by directory the processes, or None: it cannot be mapped now."""

    def __init__(self, where: str, place: str | None, is_wanted: Callable[[str], bool]) -> None:
        self._where = where
        self._place = place
        self._is_wanted = is_wanted
        self._channels: dict[str, MappedChannel | None] = {}
        self._processes: dict[str, MappedProcess | None] = {}
        self._names: dict[str, list[str]] = {}
        # The server may have found damage that has gone since. It is asked once, so each has the number of its channel:
        # another one of the same path, which was made later, is not damaged.
        damage = damage_in(place) if place is not None else {}
        self._damage = {path: (why, self._number(path)) for path, why in damage.items()}
        self._is_listed = False
        self._stack = ExitStack()
        self._changes = self._stack.enter_context(Changes())
        self._control: Traces | None = None

    def close(self) -> None:
        """Unmap all."""
        for mapped in (*self._channels.values(), *self._processes.values(), self._control):
            if mapped is not None:
                mapped.close()
        self._stack.close()

    def read(self, until: float) -> Iterator[Figures]:
        """Yield the figures of channels, then of traces; see Objects.read()."""
        if self._changes.are_there() or not self._is_listed:
            self._is_listed = False
            self._list()
            self._is_listed = True
        for path in self._channels:
            if time.monotonic() >= until:
                yield Figures(path, None, LATE)
            elif path in self._damage:
                yield Figures(path, None, f"damaged: {self._damage[path][0]}")
            elif (channel := self._read_channel(path)) is not None:
                yield channel
        if self._control is None:
            return
        lost_by_user = native_trace.lost_by_user(self._where)
        for trace in sorted(self._control.all().values(), key=lambda one: one.name):
            if self._is_wanted(trace.name) and time.monotonic() >= until:
                yield Figures(trace.name, "trace", LATE)
            elif self._is_wanted(trace.name):
                yield self._read_trace(trace, self._control.lost(trace), lost_by_user.get(trace.id, {}))

    # --- which there are ---

    def _list(self) -> None:
        """Find channels and processes; unmap those that have gone."""
        self._changes.watch(self._where)
        if self._control is not None:
            self._control.close()
            self._control = None
        with suppress(FileNotFoundError):  # of a store that no server has served yet
            self._control = Traces(control_in_store(self._where))
        traces = sorted(trace.name for trace in self._control.all().values()) if self._control is not None else []
        paths = filter(self._is_wanted, channels_of_store(self._where, traces, self._changes.watch))
        self._channels = _kept(self._channels, paths)
        self._damage = {path: one for path, one in self._damage.items() if self._number(path) == one[1]}
        self._names = {}
        for trace in traces:
            self._changes.watch(os.path.join(self._where, trace))
            self._names[trace] = processes_of(self._where, trace)
        self._processes = _kept(self._processes, (f"{trace}/{name}" for trace in traces for name in self._names[trace]))

    def _number(self, path: str) -> int | None:
        return number_of(os.path.join(self._where, path))

    # --- their figures ---

    def _read_channel(self, path: str) -> Figures | None:
        """Return the figures of a channel; None: it was removed."""
        try:
            channel = self._channels[path]
            if channel is None:
                channel = self._channels[path] = MappedChannel(self._where, path)
            return channel.read()
        except FileNotFoundError:
            return None
        except BadMemoryError as error:
            return Figures(path, None, f"damaged: {error.damage}")
        except StoreError as error:
            if self._place is None:
                return Figures(path, None, str(error))
        with suppress(OSError):
            return _shown_channel(self._place, path)
        return Figures(path, None, "the server does not answer")

    def _read_process(self, trace: str, name: str) -> Figures | None:
        """Return the figures of a process's directory in a trace; None: it was removed."""
        directory, shown = os.path.join(self._where, trace, name), f"{trace}/{name}"
        try:
            process = self._processes.get(shown)
            if process is None:
                process = self._processes[shown] = MappedProcess(directory, shown)
            return process.read()
        except (OSError, ValueError) as error:
            return failed_process(shown, error)

    def _read_trace(self, trace: Trace, lost_events: int, lost_by_user: dict[int, int]) -> Figures:
        """Return the figures of a trace.

        lost_events, lost_by_user: of programs that got no buffers: of the store's user and root, and of other users
        """
        figures = _trace_alone(trace)
        found = [self._read_process(trace.name, name) for name in self._names.get(trace.name, ())]
        processes = [one for one in found if one is not None]
        read = [one for one in processes if one.count is not None]
        figures.add_up(read)
        figures.buffers = sum(one.buffers or 0 for one in read)
        figures.writers = sum(one.state == "alive" for one in processes)
        figures.lost_by_cause["no_buffers"] = lost_events + sum(lost_by_user.values())
        figures.parts = [*processes, *(_user(trace, uid, n) for uid, n in lost_by_user.items())]
        return figures


def _kept(mapped: dict[str, Mapped | None], names: Iterable[str]) -> dict[str, Mapped | None]:
    """Return what is still mapped and in place of these names; unmap the rest."""
    kept: dict[str, Mapped | None] = {}
    for name in names:
        one = mapped.get(name)
        kept[name] = one if one is not None and one.is_in_place() else None
    for name, one in mapped.items():
        if one is not None and kept.get(name) is not one:
            one.close()
    return kept


def _trace_alone(trace: Trace) -> Figures:
    """Return what the control file says of a trace."""
    state = "started" if trace.is_started else "stopped"
    return Figures(trace.name, "trace", state, size=trace.subbuf_size * trace.n_subbufs, identity=trace.id)


def _user(trace: Trace, uid: int, n: int) -> Figures:
    """Return the figures of a user whose programs got no buffers."""
    return Figures(f"{trace.name}/user-{uid}", "user", "no-buffers", lost_by_cause=lost({"lost_no_buffers": n}))


# --- what the mount shows ---


def _read_mount(place: str, is_wanted: Callable[[str], bool]) -> Iterator[Figures]:
    for path in filter(is_wanted, sorted(set(names_in(place, CHANNEL)))):
        try:
            channel = _shown_channel(place, path)
        except OSError as error:
            channel = Figures(path, None, f"{error.filename}: {error.strerror}")
        if channel is not None:
            yield channel
    for trace in all_traces(control_in_mount(place)):
        if is_wanted(trace.name):
            yield _trace_alone(trace)


def _shown_channel(place: str, path: str) -> Figures | None:
    """Return the figures of a channel that the mount's files show; None: it was removed."""
    try:
        check_path(path)
    except CommandError as error:  # it may be a path out of .channels
        return Figures(path, None, f"{os.path.join(place, 'control')}: {error.message}")

    shown = Shown(place, path)
    try:
        state = shown.state()
        if state.startswith("damaged: "):
            return Figures(path, None, state)
        kind = shown.type()
        values = {one.name: shown.statistic(one.name) for one in SHOWN[kind]}
        size = shown.number("ring_size") if kind == _RING else shown.number("subbuf_size") * shown.number("n_subbufs")
        buffers = shown.n_buffers()
    except FileNotFoundError:
        return None
    except MountError as error:
        return Figures(path, None, str(error))
    if state == "ok" and values.get("suspended"):
        state = "suspended"
    return Figures(
        path, kind, state, buffers, size, values["file_bytes"],
        count=values["records"], bytes=written(kind, values), unread_bytes=values["unread_bytes"],
        lost_by_cause=lost(values),
    )  # fmt: skip


# --- counters ---


def _counters(place: str, is_wanted: Callable[[str], bool]) -> Iterator[Figures]:
    try:
        opened = Counters(place)
    except FileNotFoundError:
        return  # a store in which nobody has counted
    with opened:
        infos = opened.infos()
        told = {name: opened.sum(info.instance) for name, info in infos.items() if name.startswith(FORWARDERS)}
        forwarders = forwarders_in(told)
        numbers = {name: info.instance for name, info in infos.items()}
        yield from (one for one in figures_of(forwarders, numbers) if is_wanted(one.name))
        for name, info in sorted(infos.items()):
            is_shown = not name.startswith(SERVER_COUNTERS) and name.rpartition("/")[0] not in forwarders
            if is_shown and is_wanted(name):
                yield Figures(name, native.KINDS[info.kind], count=opened.sum(info.instance), identity=info.instance)
