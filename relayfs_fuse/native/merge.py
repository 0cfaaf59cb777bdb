"""Merging the events of many streams in the order of their times, and exporting them; see <relayfs/merge.h>."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.events import field_form, new_event
from relayfs_fuse.native.tables import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relayfs_fuse.native.buffer import Buffer
    from relayfs_fuse.native.ring import RingMemory

EVER = (1 << 64) - 1
FORMATS = {
    "text": lib.RELAY_EXPORT_TEXT, "json": lib.RELAY_EXPORT_JSON,
    "chrome": lib.RELAY_EXPORT_CHROME, "perfetto": lib.RELAY_EXPORT_PERFETTO,
    "records": lib.RELAY_EXPORT_RECORDS, "records.json": lib.RELAY_EXPORT_RECORDS_JSON,
    "records.text": lib.RELAY_EXPORT_RECORDS_TEXT,
    "pcapng": lib.RELAY_EXPORT_PCAPNG, "records.pcapng": lib.RELAY_EXPORT_RECORDS_PCAPNG,
}  # fmt: skip
TIMES = {
    "clock": lib.RELAY_EXPORT_CLOCK, "date": lib.RELAY_EXPORT_DATE,
    "relative": lib.RELAY_EXPORT_RELATIVE, "seconds": lib.RELAY_EXPORT_SECONDS,
}  # fmt: skip


UNKNOWN = EVER


class Knot(NamedTuple):
    """A time of a process's clock, and what it is for all machines; see struct relay_time_knot.

    time, mapped: ns since 1970
    error: how far mapped times may be off from here to the next knot, ns; UNKNOWN
    """

    time: int
    mapped: int
    error: int


class Stretch(NamedTuple):
    """A part of a clock's times in which it was not set back; see relay_merge_map_clock().

    knots: at least one, each later than the one before, and not mapped to an earlier time
    first, last: events before and after are left out, ns since 1970 by the process's clock
    """

    knots: Sequence[Knot]
    first: int = 0
    last: int = EVER


class EventKind(NamedTuple):
    """A declared event.

    name: PROVIDER:NAME
    fields: name and type of each, the types as for events.field_form()
    is_wanted: whether it is to be given out
    level: LTTng's number; None: it has none
    """

    id: int
    name: str
    fields: Sequence[tuple[str, str]]
    is_wanted: bool
    level: int | None


@dataclass(frozen=True)
class MergedProcess:
    """A process, or several that share buffers; see struct relay_merge_process.

    pid: 0: each event has it in its context
    identity: the same number for all parts of one process
    context: names of the numbers of 4 bytes between each event's header and its fields
    clock: ticks per second; the seconds and ticks between 1970 and the clock's zero
    live_clock: the Clock.number of its clock, which add_buffer() needs; 0: only files are added
    is_past: whether its clock is that of an earlier boot
    longest: how many bytes of memory an event of a buffer may take; 0: 16 MiB
    host: as Merge.add_host() returns it; 0: there is only one machine
    stretch: how its times are mapped; None: not at all
    """

    name: str
    pid: int
    identity: int
    context: Sequence[str]
    clock: tuple[int, int, int]
    kinds: Sequence[EventKind]
    live_clock: int = 0
    is_past: bool = False
    longest: int = 0
    host: int = 0
    stretch: Stretch | None = None


# The numbers of the causes of losses, by their words; 0: unknown.
CAUSES = {text_of(lib.relay_loss_cause_name(number)): number for number in range(1, lib.RELAY_N_LOSS_CAUSES)}
NO_CPU: int = lib.RELAY_NO_CPU


class Loss(NamedTuple):
    """So many events were lost for one cause between two times, ns since 1970; see struct relay_loss.

    cause: of CAUSES; an unknown one counts as 0
    """

    since: int
    until: int
    records: int
    cause: int
    cpu: int = NO_CPU


class MergeStats(NamedTuple):
    """Counts of what a merge has given out; see struct relay_merge_stats."""

    events: int
    lost: int
    late: int
    damaged: int
    time: int
    error: int
    n_at_time: int


class ProcessStats(NamedTuple):
    """The state of a process's streams; see struct relay_merge_process_stats."""

    n_open: int
    cpu: int
    n_damaged: int
    error: int


class Merge(library.Handle):
    """Merge streams.

    since, until: events before and after are left out, ns since 1970
    condition: events that do not meet it are left out; as trace.pack_conditions() returns it; empty: there is none
    """

    def __init__(self, since: int = 0, until: int = EVER, condition: bytes = b"") -> None:
        pointer = lib.relay_merge_new(since, until)
        if pointer == ffi.NULL:
            raise MemoryError
        super().__init__(pointer)
        if condition:
            with library.closed_on_error(self):
                c_conditions = ffi.new("struct relay_conditions *")
                ffi.memmove(c_conditions, condition, ffi.sizeof(c_conditions[0]))
                library.check(lib.relay_merge_set_condition(self._open, c_conditions))

    def close(self) -> None:
        """Close the streams, and free the merge."""
        lib.relay_merge_free(self._disown())

    def add_host(self, name: str, max_error: int, est_error: int) -> int:
        """Add a machine; return its number. The errors of its clock: ns, or UNKNOWN."""
        c_name = ffi.new("char[]", os.fsencode(name))
        host = ffi.new("struct relay_merge_host *", (c_name, max_error, est_error))
        return library.check(lib.relay_merge_add_host(self._open, host), name)

    def add_process(self, process: MergedProcess) -> int:
        """Add a process; return its number."""
        name = ffi.new("char[]", os.fsencode(process.name))
        at = {word: 4 * place for place, word in enumerate(process.context)}
        c_process = ffi.new("struct relay_merge_process *")
        c_process.name, c_process.pid, c_process.identity = name, process.pid, process.identity
        c_process.vpid_at, c_process.vtid_at = at.get("vpid", -1), at.get("vtid", -1)
        c_process.freq, c_process.offset_s, c_process.offset = process.clock
        c_process.clock, c_process.is_past = process.live_clock, process.is_past
        c_process.longest, c_process.host = process.longest, process.host
        c_process.layouts = _layouts(4 * len(process.context), process.kinds)
        number = library.check(lib.relay_merge_add_process(self._open, c_process), process.name)
        if process.stretch:
            self.map_clock(number, process.stretch)
        return number

    def map_clock(self, process: int, stretch: Stretch) -> None:
        """Map the times of a process; of one that is mapped already, those of what is read from now on."""
        knots, first, last = stretch
        c_knots = ffi.new("struct relay_time_knot[]", [tuple(knot) for knot in knots])
        library.check(lib.relay_merge_map_clock(self._open, process, c_knots, len(knots), first, last))

    def name_thread(self, process: int, pid: int, tid: int, name: bytes) -> None:
        """Name a thread of a process; pid: as its events have it, or of the MergedProcess."""
        library.check(lib.relay_merge_name_thread(self._open, process, pid, tid, ffi.new("char[]", name)))

    def add_files(self, process: int, cpu: int, paths: Sequence[str], *, follows: bool = False) -> None:
        """Add the stream of a CPU, which is in these files, in order.

        follows: they may grow; files that are added for the same CPU continue them
        """
        names = [ffi.new("char[]", os.fsencode(path)) for path in paths]
        c_paths = ffi.new("const char *[]", names)
        add = lib.relay_merge_follow_files if follows else lib.relay_merge_add_files
        library.check(add(self._open, process, cpu, c_paths, len(names)), paths[0])

    def needs_file(self, process: int, cpu: int, path: str) -> bool:
        """Return whether a file that is followed may have events that were not read yet."""
        return bool(lib.relay_merge_needs_file(self._open, process, cpu, ffi.new("char[]", os.fsencode(path))))

    def move_file(self, process: int, cpu: int, path: str, to: str | None) -> None:
        """Read the rest of such a file from another one, which has the same bytes; None: it was removed."""
        c_path = ffi.new("char[]", os.fsencode(path))
        c_to = ffi.NULL if to is None else ffi.new("char[]", os.fsencode(to))
        library.check(lib.relay_merge_move_file(self._open, process, cpu, c_path, c_to), path)

    def unfinished(self, process: int, cpu: int) -> str | None:
        """Return the path of a file that was read, and whose last packets the next one of the CPU waits for, if any."""
        path = lib.relay_merge_unfinished(self._open, process, cpu)
        return None if path == ffi.NULL else os.fsdecode(ffi.string(path))

    def look_at_files(self) -> int:
        """Look what was appended to files that may grow.

        Return the end of the latest packet, ns since 1970; 0: there is none.
        """
        return int(lib.relay_merge_look_at_files(self._open))

    def latest(self, process: int) -> int:
        """Return the end of the latest packet of a process that look_at_files() has seen, ns since 1970; 0: none."""
        return int(lib.relay_merge_latest(self._open, process))

    def set_ahead(self, process: int, ahead: int) -> None:
        """Put the events of a process into the order as if its clock showed so many ns less."""
        library.check(lib.relay_merge_set_ahead(self._open, process, ahead))

    def explain(self, process: int, losses: Sequence[Loss]) -> None:
        """Tell why events were lost that are missing in the files of a process."""
        library.check(lib.relay_merge_explain(self._open, process, _losses(losses), len(losses)))

    def add_lost(self, process: int, losses: Sequence[Loss]) -> None:
        """Add losses that no file counts, in the order of their ends; the clock of the process is ns since 1970."""
        library.check(lib.relay_merge_add_lost(self._open, process, _losses(losses), len(losses)))

    def add_buffer(self, process: int, cpu: int, buffer: Buffer, *, is_new: bool) -> None:
        """Add a buffer, to which programs may write; keep it open until the process is removed, or the merge closed.

        is_new: whether nobody could read it before; then the events that it has lost by now are counted as lost, too
        """
        added = lib.relay_merge_add_buffer(self._open, process, cpu, buffer.pointer, is_new)
        library.check(added, buffer.path)

    def add_ring(self, process: int, cpu: int, ring: RingMemory) -> None:
        """Add a ring with `times`; it stays open as a buffer does."""
        library.check(lib.relay_merge_add_ring(self._open, process, cpu, ring.pointer), ring.path)

    def look(self, *, consumes: bool) -> int:
        """Read all buffers, so that their events can be given out; return the time just before, in ns since 1970.

        EVER: no process can write any more.

        consumes: consume what was given out, as far as programs need the room
        """
        return int(lib.relay_merge_look(self._open, consumes))

    def limit(self, time: int) -> None:
        """Give out no events that are later, in ns since 1970."""
        lib.relay_merge_limit(self._open, time)

    def skip(self, time: int, n: int) -> None:
        """Leave out the first events of a time: `time` and `n_at_time` of the MergeStats of a merge that had them."""
        lib.relay_merge_skip(self._open, time, n)

    @property
    def is_behind(self) -> bool:
        """Whether a look would find events now."""
        return bool(lib.relay_merge_is_behind(self._open))

    @property
    def is_behind_limit(self) -> bool:
        """Whether a look would find events that are perhaps not later than the limit."""
        return bool(lib.relay_merge_is_behind_limit(self._open))

    @property
    def reached(self) -> int:
        """The time up to which all events were given out, ns since 1970; valid when the merge has no event for now."""
        return int(lib.relay_merge_reached(self._open))

    def declare(self, process: int, kinds: Sequence[EventKind]) -> None:
        """Add events that a process has declared since it was added."""
        layouts = lib.relay_merge_layouts(self._open, process)
        for kind in kinds:
            library.check(_declare(layouts, kind), kind.name)

    def finish(self, process: int) -> None:
        """Note that nothing will be written to a process's buffers any more."""
        lib.relay_merge_finish(self._open, process)

    def process_stats(self, process: int) -> ProcessStats:
        """Return the state of a process's streams."""
        stats = ffi.new("struct relay_merge_process_stats *")
        library.check(lib.relay_merge_process_stats(self._open, process, stats))
        return ProcessStats(*(int(getattr(stats, name)) for name in ProcessStats._fields))

    def remove(self, process: int) -> None:
        """Forget a process; its number may be given to another one."""
        library.check(lib.relay_merge_remove(self._open, process))

    def stats(self) -> MergeStats:
        """Return the counts so far."""
        stats = ffi.new("struct relay_merge_stats *")
        lib.relay_merge_stats(self._open, stats)
        return MergeStats(*(int(getattr(stats, name)) for name in MergeStats._fields))


def _losses(losses: Sequence[Loss]) -> Any:
    c_losses = ffi.new("struct relay_loss[]", len(losses))
    for c_loss, loss in zip(c_losses, losses, strict=True):
        c_loss.since, c_loss.until, c_loss.records, c_loss.cause, c_loss.cpu = loss
    return c_losses


def _layouts(context_bytes: int, kinds: Sequence[EventKind]) -> Any:
    layouts = lib.relay_layouts_new(context_bytes)
    if layouts == ffi.NULL:
        raise MemoryError
    try:
        for kind in kinds:
            library.check(_declare(layouts, kind), kind.name)
    except BaseException:
        lib.relay_layouts_free(layouts)
        raise
    return layouts


def _declare(layouts: Any, kind: EventKind) -> int:
    fields = [(field, field_form(word)) for field, word in kind.fields]
    if not kind.is_wanted:
        return int(lib.relay_layouts_add(layouts, kind.id, [form.number for _, form in fields], len(fields)))
    provider, _, name = kind.name.partition(":")
    event, kept = new_event(provider, name, fields)
    event.level = 0 if kind.level is None else kind.level + 1
    result = int(lib.relay_layouts_declare(layouts, kind.id, event))
    del kept  # the library has copied it
    return result


@dataclass(frozen=True)
class Style:
    """How events are written; see struct relay_export_options.

    file_format, times: of FORMATS and TIMES
    mono_offset: CLOCK_REALTIME less CLOCK_MONOTONIC, ns; of several machines, what chrome's times are since
    shows_errors: whether each line says how far its time may be off
    """

    file_format: str = "text"
    times: str = "clock"
    mono_offset: int = 0
    has_colours: bool = False
    is_brief: bool = False
    marks_late: bool = False
    shows_errors: bool = False


class _Consumer(library.Handle):
    """Takes the events that a merge gives out; the caller closes the merge after this."""

    def __init__(self, merge: Merge, pointer: Any) -> None:
        if pointer == ffi.NULL:
            raise MemoryError
        super().__init__(pointer)
        self._merge = merge  # it is used until this is closed


class Export(_Consumer):
    """Format the events that a merge gives out."""

    def __init__(self, merge: Merge, style: Style) -> None:
        options = ffi.new("struct relay_export_options *")
        options.format, options.times = FORMATS[style.file_format], TIMES[style.times]
        options.mono_offset = style.mono_offset
        options.has_colours, options.is_brief, options.marks_late = style.has_colours, style.is_brief, style.marks_late
        options.shows_errors = style.shows_errors
        super().__init__(merge, library.not_null(lib.relay_export_new(merge.pointer, options), style.file_format))

    def close(self) -> None:
        """Free the memory of the last piece."""
        lib.relay_export_free(self._disown())

    def piece(self) -> memoryview:
        """Return the next piece of the output, valid until the next call; empty: the merge has no event for now."""
        data = ffi.new("const char **")
        length = library.check(lib.relay_export_next(self._open, data))
        return memoryview(ffi.buffer(data[0], length) if length else b"")

    def pieces(self) -> Iterator[memoryview]:
        """Yield pieces until the merge has no event for now."""
        while piece := self.piece():
            yield piece


class StreamPacket(NamedTuple):
    """A packet of events that the merge gave out of one stream; see struct relay_merge_packet.

    begin, end: ticks of the process's clock; ns since 1970, if it has a stretch
    events: a copy
    """

    identity: int
    cpu: int
    begin: int
    end: int
    lost: int
    n_events: int
    events: bytes


class Packets(_Consumer):
    """Make packets of the events that a merge gives out."""

    def __init__(self, merge: Merge) -> None:
        super().__init__(merge, lib.relay_packets_new(merge.pointer))

    def close(self) -> None:
        """Free the packets."""
        lib.relay_packets_free(self._disown())

    def gather(self, floor: int) -> tuple[list[StreamPacket], bool]:
        """Return packets of the events that the merge gives out now, and whether these are all; otherwise call again.

        floor: events that are older get this time, ns since 1970
        """
        is_all = bool(library.check(lib.relay_packets_gather(self._open, floor)))
        packet = ffi.new("struct relay_merge_packet *")
        found = []
        while lib.relay_packets_next(self._open, packet):
            events = bytes(ffi.buffer(packet.events, packet.length)) if packet.length else b""
            numbers = (packet.identity, packet.cpu, packet.begin, packet.end, packet.lost, packet.n_events)
            identity, cpu, begin, end, lost, n_events = map(int, numbers)
            found.append(StreamPacket(identity, cpu, begin, end, lost, n_events, events))
        return found, is_all


class Counts(_Consumer):
    """Count the events that a merge gives out."""

    def __init__(self, merge: Merge) -> None:
        super().__init__(merge, lib.relay_counts_new(merge.pointer))

    def close(self) -> None:
        """Free the counts."""
        lib.relay_counts_free(self._disown())

    def gather(self) -> None:
        """Count the events that the merge gives out now."""
        library.check(lib.relay_counts_gather(self._open))

    def all(self) -> dict[tuple[int, int], int]:
        """Return how many were counted so far, by the MergedProcess.identity and the event's id."""
        count = ffi.new("struct relay_merge_count *")
        found = {}
        while lib.relay_counts_next(self._open, count):
            found[int(count.identity), int(count.id)] = int(count.n)
        return found
