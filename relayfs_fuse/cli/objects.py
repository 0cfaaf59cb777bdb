"""Reading the figures of channels, traces and counters, for relayctl list and stat.

Buffers are mapped in the store, and counters through one mapping, so that reading them makes no request to the server.
A user who may not open the store gets what .channels/ says of channels, and what the control file says of traces.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.cli.channel import channels_of_store
from relayfs_fuse.cli.figures import CAUSES, Figures
from relayfs_fuse.cli.names import CHANNEL, SERVER_COUNTERS, damage_in, names_in
from relayfs_fuse.cli.traces import all_traces, processes_of
from relayfs_fuse.counters import Counters
from relayfs_fuse.errors import StoreError
from relayfs_fuse.fs.kinds import stats as statistics
from relayfs_fuse.fs.kinds.channel import BadMemoryError, map_files
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import STATISTICS, TYPES
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.source import find_mount, find_store

if TYPE_CHECKING:
    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.trace import Trace

_RELAY, _RING = TYPES
# The unit of st_blocks.
_BLOCK_BYTES = 512
_DAMAGED = (errno.EBADMSG, errno.EPROTO)


def read_all(mount: str | None, store: str | None, is_wanted: Callable[[str], bool]) -> list[Figures]:
    """Read the figures of all channels, traces and counters whose names are wanted, in this order.

    mount, store: as for find_store()

    RelayError, OSError: there is no such mount or store, or it may not be read.
    """
    where = find_store(mount, store)
    place = None if store is not None else find_mount(mount)
    if os.access(where, os.R_OK | os.X_OK) or place is None:
        return list(_read_store(where, place, is_wanted))
    return list(_read_mount(place, is_wanted))


def _read_store(where: str, place: str | None, is_wanted: Callable[[str], bool]) -> Iterator[Figures]:
    traces = all_traces(os.path.join(where, ".traces"))
    # The server may have found damage that has gone since.
    damage = damage_in(place) if place is not None else {}
    for path in filter(is_wanted, channels_of_store(where, [trace.name for trace in traces])):
        if path in damage:
            yield Figures(path, None, f"damaged: {damage[path]}")
        elif (channel := _channel(where, place, path)) is not None:
            yield channel
    lost_by_user = native_trace.lost_by_user(where)
    with closing(native_trace.Traces(os.path.join(where, ".traces"))) as control:
        for trace in traces:
            if is_wanted(trace.name):
                yield _trace(where, trace, control.lost(trace), lost_by_user.get(trace.id, {}))
    yield from _counters(place or where, is_wanted)


def _read_mount(place: str, is_wanted: Callable[[str], bool]) -> Iterator[Figures]:
    for path in filter(is_wanted, sorted(set(names_in(place, CHANNEL)))):
        if (channel := _shown_channel(place, path)) is not None:
            yield channel
    for trace in all_traces(os.path.join(place, ".traces", "control")):
        if is_wanted(trace.name):
            yield _trace_alone(trace)
    yield from _counters(place, is_wanted)


# --- channels ---


def _channel(where: str, place: str | None, path: str) -> Figures | None:
    """Return the figures of a channel in the store; None: it was removed."""
    try:
        kind, memories = map_files(os.path.join(where, path))
    except FileNotFoundError:
        return None
    except BadMemoryError as error:
        return Figures(path, None, f"damaged: {error.damage}")
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        return _shown_channel(place, path) if place is not None else Figures(path, None, str(error))
    with ExitStack() as stack:
        for memory in memories:
            stack.callback(memory.close)
        identity = os.fstat(memories[0].fileno()).st_ino
        stats = []
        for index, memory in enumerate(memories):
            try:
                stats.append(memory.stats())
            except OSError as error:
                return Figures(path, kind.name, f"damaged: mem{index}: {reason(error)}", len(memories))
    is_single = stats[0].buffers == native.BUFFERS_SINGLE
    parts = [_buffer(path if is_single else f"{path}{one.cpu}", kind.name, one) for one in stats]
    figures = Figures(path, kind.name, _state(kind.name, stats), len(parts), parts[0].size, identity=identity)
    figures.parts = parts
    figures.add_up(parts)
    return figures


def _state(kind: str, stats: Sequence[Fields]) -> str:
    if any(one.closed for one in stats):
        return "closed"
    if any(one.disabled for one in stats):
        return "disabled"
    return "suspended" if kind == _RELAY and any(one.suspended for one in stats) else "ok"


def _buffer(name: str, kind: str, stats: Fields) -> Figures:
    """Return the figures of a buffer of a channel of this kind, or of a process."""
    values = {one.name: statistics.value(one, [stats]) for one in STATISTICS[kind]}
    if kind == _RING:
        size, used = stats.ring_size, stats.unread_bytes
    else:
        size = stats.subbuf_size * stats.n_subbufs
        # A sub-buffer is free when all of it was read. In mode overwrite, readers can be behind by more than there is.
        finished = (stats.produced - stats.consumed) * stats.subbuf_size
        used = min(size, finished + stats.offset) if stats.unread_bytes else 0
    return Figures(
        name, "buffer", _state(kind, [stats]), 1, size, values["file_bytes"],
        count=values["records"], bytes=_written(kind, values), unread_bytes=values["unread_bytes"],
        fill=used / size, lost_by_cause=_lost(values),
    )  # fmt: skip


def _written(kind: str, values: dict[str, int | None]) -> int | None:
    """Return the bytes written, with the headers of a ring's records and what was discarded."""
    return values["bytes"] if kind == _RELAY else values["producer_position"]


def _lost(values: dict[str, int | None]) -> dict[str, int | None]:
    return {cause: values.get(f"lost_{cause}", 0) for cause in CAUSES}


def _shown_channel(place: str, path: str) -> Figures | None:
    """Return the figures of a channel that the mount's files show; None: it was removed."""

    def text(name: str) -> str:
        with open(os.path.join(place, ".channels", path, name), encoding="utf-8") as file:
            return file.read().rstrip("\n")

    def number(name: str) -> int | None:
        found = text(name)
        return None if found == statistics.UNKNOWN else int(found)

    try:
        state = text("state")
        if state.startswith("damaged"):
            return Figures(path, None, state)
        kind = text("type")
        names = [one.name for one in STATISTICS[kind]]
        counted = ("records", "bytes", "producer_position", "unread_bytes", "file_bytes", "suspended")
        values = {name: number(name) for name in names if name in counted or name.removeprefix("lost_") in CAUSES}
        size = int(text("ring_size")) if kind == _RING else int(text("subbuf_size")) * int(text("n_subbufs"))
        buffers = int(text("n_buffers"))
    except FileNotFoundError:
        return None
    if state == "ok" and values.get("suspended"):
        state = "suspended"
    return Figures(
        path, kind, state, buffers, size, values["file_bytes"],
        count=values["records"], bytes=_written(kind, values), unread_bytes=values["unread_bytes"],
        lost_by_cause=_lost(values),
    )  # fmt: skip


# --- traces ---


def _trace_alone(trace: Trace) -> Figures:
    """Return what the control file says of a trace."""
    state = "started" if trace.is_started else "stopped"
    return Figures(trace.name, "trace", state, size=trace.subbuf_size * trace.n_subbufs, identity=trace.id)


def _trace(where: str, trace: Trace, lost: int, lost_by_user: dict[int, int]) -> Figures:
    """Return the figures of a trace.

    lost, lost_by_user: events of programs that got no buffers: of the store's user and root, and of other users
    """
    figures = _trace_alone(trace)
    names = processes_of(where, trace.name)
    found = [_process(os.path.join(where, trace.name, name), f"{trace.name}/{name}") for name in names]
    processes = [one for one in found if one is not None]
    read = [one for one in processes if one.count is not None]
    figures.add_up(read)
    figures.buffers = sum(one.buffers or 0 for one in read)
    figures.writers = sum(one.state == "alive" for one in processes)
    figures.lost_by_cause["no_buffers"] = lost + sum(lost_by_user.values())
    figures.parts = [*processes, *(_user(trace, uid, n) for uid, n in lost_by_user.items())]
    return figures


def _process(directory: str, name: str) -> Figures | None:
    """Return the figures of a process's directory in a trace; None: it was removed."""
    try:
        process = Process(directory)
    except FileNotFoundError:
        return None
    except ValueError:
        return Figures(name, "process", "damaged")
    except OSError as error:
        return Figures(name, "process", "damaged" if error.errno in _DAMAGED else reason(error))
    try:
        process.lost()  # ValueError: a number is impossible
        buffers = [_buffer(name, _RELAY, consumer.buffer.stats()) for consumer in process.buffers.values()]
        is_alive = process.is_alive()
        # Memory is allocated when a CPU first writes.
        files = (os.path.join(directory, "cpu", f"mem{cpu}") for cpu in process.buffers)
        memory = sum(os.stat(file).st_blocks * _BLOCK_BYTES for file in files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return Figures(name, "process", "damaged")
    finally:
        process.close()
    figures = Figures(name, "process", "alive" if is_alive else "dead", len(buffers), identity=process.number)
    figures.add_up(buffers)
    figures.size, figures.writers, figures.memory = buffers[0].size, int(is_alive), memory
    return figures


def _user(trace: Trace, uid: int, lost: int) -> Figures:
    """Return the figures of a user whose programs got no buffers."""
    return Figures(f"{trace.name}/user-{uid}", "user", "no-buffers", lost_by_cause=_lost({"lost_no_buffers": lost}))


# --- counters ---


def _counters(place: str, is_wanted: Callable[[str], bool]) -> Iterator[Figures]:
    try:
        opened = Counters(place)
    except FileNotFoundError:
        return  # a store in which nobody has counted
    with opened:
        for name, info in sorted(opened.infos().items()):
            if not name.startswith(SERVER_COUNTERS) and is_wanted(name):
                yield Figures(name, native.KINDS[info.kind], count=opened.sum(info.instance), identity=info.instance)
