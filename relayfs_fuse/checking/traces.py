"""Checking the traces of a store: the control file, and each process's directory, declarations and packets."""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

from relayfs_fuse.checking.finding import all_lasting, lasting, of_regular, rights
from relayfs_fuse.checking.memory import Memories
from relayfs_fuse.native import faults
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.events import field_form
from relayfs_fuse.native.packets import Layouts, copy_packets
from relayfs_fuse.native.tables import PERMS, TYPES
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.packet import HEAD_BYTES, unpack
from relayfs_fuse.reading.process import check_origin
from relayfs_fuse.tracefiles import ctf, recorder_lock
from relayfs_fuse.tracefiles.ctf import Origin
from relayfs_fuse.tracefiles.streams import OBJECTS_FILE, STATE_FILE
from relayfs_fuse.tracefiles.trigger_files import JOURNAL, STATE, TRIGGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relayfs_fuse.checking.account import Account
    from relayfs_fuse.checking.finding import Finding, Place
    from relayfs_fuse.native import Buffer
    from relayfs_fuse.native.trace import Trace

# By the word buffers= of .events: the permissions of a process's files.
_PERMS = {"perprocess": PERMS["PERPROCESS"], "peruser": PERMS["PERUSER"], "shared": PERMS["SHARED"]}
_EVENTS = ".events"
_BUFFERS = "cpu"
# Of a trace's directory.
_HIDDEN = {
    ".recorder", ".given-up", ".given-up-taken",
    *(name for file in (TRIGGERS, JOURNAL, STATE) for name in (file, f"{file}.new")),
}  # fmt: skip
# Of a process's directory, besides those that are checked.
_BESIDE = {STATE_FILE, OBJECTS_FILE, ".processes", ".decided"}
# Larger packets, unless the trace's own are as large, are not copied to be checked.
_PACKET_BYTES_MAX = 64 << 20
# The most wrong packets of a buffer that are listed.
_WRONG_MAX = 256
_HOLDER = re.compile(r"pid (?P<pid>[0-9]+) of ")
# Bytes of each number in an event's context.
_CONTEXT_BYTES = 4
# enum relay_format
_PACKETS = 1


def control(place: Place, uid: int) -> Iterator[Finding]:
    """Check the control file of traces, STORE/.traces; `uid` is the store's owner."""

    def check(descriptor: int, status: os.stat_result) -> Iterator[Finding]:
        yield from rights(place, status, PERMS["TRACES"], uid)
        try:
            seen = lasting(lambda: faults.of_traces(descriptor))
        except OSError as error:
            yield place.refused("it cannot be mapped", error)
        else:
            yield from (place.of_fault(fault) for fault in seen.found)

    with suppress(FileNotFoundError):
        yield from of_regular(place, check)


def all_traces(path: str) -> list[Trace]:
    """Return the traces that the control file names; none if it cannot be used, as control() says."""
    try:
        with closing(Traces(path)) as opened:
            return list(opened.all().values())
    except OSError:
        return []


def is_of_trace(directory: str) -> bool:
    """Return whether a directory has those of processes."""
    with suppress(OSError), os.scandir(directory) as entries:
        return any(os.path.lexists(os.path.join(entry.path, _EVENTS)) for entry in entries)
    return False


class TraceChecker:
    """Checks one trace.

    trace: None: the control file does not name it, as that of early events, whose trace does not exist yet
    place: of the trace's directory
    uid: the owner of the store
    accounts: receives those of processes, by TRACE/PROCESS
    """

    def __init__(self, trace: Trace | None, place: Place, uid: int, accounts: dict[str, Account]) -> None:
        self._trace = trace
        self._place = place
        self._uid = uid
        self._accounts = accounts

    def check(self) -> Iterator[Finding]:
        """Check the directory, but none of its processes."""
        yield from all_lasting(self._check_directory)

    def _check_directory(self) -> Iterator[Finding]:
        place = self._place
        try:
            status = os.lstat(place.file)
        except FileNotFoundError:
            yield place.damage("it does not exist", "the directory of the trace")
            return
        if not stat.S_ISDIR(status.st_mode):
            yield place.damage("it is no directory", "the directory of the trace")
            return
        yield from rights(place, status, PERMS["PLAIN"], self._uid)
        with os.scandir(place.file) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in found:
            below = place.below(name)
            if name.startswith(".") and is_directory:
                yield from self._left_over(below)
            elif not is_directory and name not in _HIDDEN:
                yield below.warning("a file that belongs to no process of the trace", f"remove it: {below.file}")
        yield from self._recorder()

    @staticmethod
    def _left_over(place: Place) -> Iterator[Finding]:
        if is_left_over(place.file) and not native_trace.trace_is_alive(place.file):
            advice = "the server of the store deletes it within a minute, or the next one does"
            yield place.warning("a directory whose process died while it made or removed it", advice)

    def _recorder(self) -> Iterator[Finding]:
        holder = recorder_lock.holder(self._place.file)
        named = _HOLDER.match(holder) if holder else None
        if named and not os.path.exists(f"/proc/{named['pid']}"):
            place = self._place.below(".recorder")
            advice = f"find who holds it with: lsof {place.file}; it inherited the lock, and no other can record"
            yield place.warning(f"locked, though the recorder, {holder}, has died", advice, "its lock")

    def processes(self) -> list[str]:
        """Return the names of the directories of processes."""
        with suppress(OSError), os.scandir(self._place.file) as entries:
            return sorted(
                one.name for one in entries if not one.name.startswith(".") and one.is_dir(follow_symlinks=False)
            )
        return []

    def process(self, place: Place) -> Iterator[Finding]:
        """Check the directory of one process; nothing is wrong if it is removed meanwhile."""
        try:
            number = os.stat(place.file).st_ino
            process = _Process(self._trace, place, self._uid)
            found = list(process.check())
            if not found or os.stat(place.file).st_ino == number:
                yield from found
            if process.account is not None:
                self._accounts[place.name] = process.account
        except FileNotFoundError:
            return


class _Process:
    """Checks the directory of one process."""

    def __init__(self, trace: Trace | None, place: Place, uid: int) -> None:
        self._trace = trace
        self._place = place
        self._events = place.below(_EVENTS)
        self._uid = uid
        self._origin: Origin | None = None
        self.account: Account | None = None

    def check(self) -> Iterator[Finding]:
        place = self._place
        yield from rights(place, os.stat(place.file), PERMS["PLAIN"], self._uid)
        for name in sorted(set(os.listdir(place.file)) - {_EVENTS, _BUFFERS} - _BESIDE):
            below = place.below(name)
            yield below.warning("a file that belongs to no process of the trace", f"remove it: {below.file}")
        if not os.path.lexists(self._events.file):
            os.stat(place.file)  # FileNotFoundError: all of it is removed
            yield self._events.damage("it does not exist", "a regular file")
            return
        yield from of_regular(self._events, self._check_all)

    def _check_all(self, descriptor: int, status: os.stat_result) -> Iterator[Finding]:
        yield from self._check_events(descriptor, status)
        yield from self._check_buffers(descriptor)

    # --- declarations ---

    def _check_events(self, descriptor: int, status: os.stat_result) -> Iterator[Finding]:
        place = self._events
        try:
            origin = Origin.of(os.pread(descriptor, ctf.LINE_BYTES, 0))
            if self._trace is not None:
                check_origin(origin, self._trace)
        except ValueError as error:
            yield place.damage(str(error), "the line that the library writes", "its first line", 0)
            return
        self._origin = origin
        uid = status.st_uid if origin.buffers == "shared" else origin.uid
        yield from rights(place, status, _PERMS.get(origin.buffers, 0), uid)
        if status.st_size > ctf.EVENTS_MAX:
            yield place.damage(f"{status.st_size} bytes", f"at most {ctf.EVENTS_MAX}", "its size")
        yield from all_lasting(lambda: self._check_declarations(descriptor))

    def _check_declarations(self, descriptor: int) -> Iterator[Finding]:
        """Yield what stands where a declaration should, and was not written by the library."""
        place, text = self._events, os.pread(descriptor, ctf.EVENTS_MAX, 0)
        at = text.find(b"\n") + 1
        ids: set[int] = set()
        while at < len(text):
            end = _end_of(text, at)
            found, _ = ctf.declarations_from(text[at:end], 0)
            if not found or found[0].text != text[at:end]:
                is_cut = end == len(text) and not text.endswith(ctf.EVENT_END)
                if not is_cut:
                    yield place.damage(_shown(text[at:]), "the declaration of an event", "a declaration", at)
                elif not native_trace.trace_is_alive(self._place.file):
                    advice = "nothing: readers take the declarations before it, and no event of it was written"
                    yield place.warning("the last declaration is cut: its process has died in it", advice)
                return
            if found[0].id in ids:
                yield place.damage(str(found[0].id), "an id that no declaration before has", "the id of an event", at)
            ids.add(found[0].id)
            at = end

    # --- buffers ---

    def _check_buffers(self, descriptor: int) -> Iterator[Finding]:
        place = self._place.below(_BUFFERS)
        status = os.lstat(place.file) if os.path.lexists(place.file) else None
        if status is None or not stat.S_ISDIR(status.st_mode):
            os.stat(self._place.file)  # FileNotFoundError: all of it is removed
            yield place.damage("no directory is there", "the directory of the buffers")
            return
        yield from rights(place, status, PERMS["PLAIN"], self._uid)
        buffers = self._origin.buffers if self._origin else ""

        def inspect(place: Place, memory: Buffer) -> Iterator[Finding]:
            yield from self._check_buffer(place, memory)
            yield from self._check_packets(place, memory, descriptor)

        memories = Memories(place, _PERMS.get(buffers, PERMS["SHARED"]), TYPES[0], inspect)
        yield from memories.check()
        self.account = memories.account

    def _check_buffer(self, place: Place, memory: Buffer) -> Iterator[Finding]:
        """Compare a buffer's options with what the trace and `.events` say."""
        stats, origin = memory.stats(), self._origin
        if stats.format != _PACKETS:
            yield place.damage(str(stats.format), f"{_PACKETS}, as of traces", "relay_geometry.format")
        if origin is not None and origin.buffers == "perprocess" and stats.pid != origin.pid:
            yield place.damage(str(stats.pid), f"{origin.pid}, as in {_EVENTS}", "relay_geometry.pid")
        if self._trace is not None and stats.mode != self._trace.mode:
            yield place.damage(str(stats.mode), f"{self._trace.mode}, as of the trace", "relay_geometry.mode")

    def _check_packets(self, place: Place, memory: Buffer, descriptor: int) -> Iterator[Finding]:
        """Check each event of the finished packets against its declaration."""
        stats, origin = memory.stats(), self._origin
        if origin is None or stats.format != _PACKETS:
            return
        largest = max(_PACKET_BYTES_MAX, self._trace.subbuf_size if self._trace else 0)
        if stats.subbuf_size > largest:
            yield place.damage(str(stats.subbuf_size), f"at most {largest}", "relay_geometry.subbuf_size")
            return
        declared = _Declared(origin, descriptor)
        yield from all_lasting(lambda: islice(_wrong_packets(place, memory, declared), _WRONG_MAX))


class _Declared:
    """The layouts of a process's events, by what is declared in `.events` now."""

    def __init__(self, origin: Origin, descriptor: int) -> None:
        self._descriptor = descriptor
        self._layouts = Layouts(_CONTEXT_BYTES * len(origin.context))
        self._bytes = self._at = 0

    def now(self) -> Layouts:
        """Return them. Only what was appended since the last call is parsed."""
        size = os.fstat(self._descriptor).st_size
        if size > self._bytes:
            self._bytes = size
            text = os.pread(self._descriptor, max(ctf.EVENTS_MAX - self._at, 0), self._at)
            found, n_bytes = ctf.declarations_from(text, 0)
            self._at += n_bytes
            for one in found:
                with suppress(OSError):  # of ids that were declared before, the first is valid
                    self._layouts.add(one.id, [field_form(word).number for word in one.types])
        return self._layouts


def _wrong_packets(place: Place, memory: Buffer, declared: _Declared) -> Iterator[Finding]:
    stats = memory.stats()
    try:
        # Programs may finish packets faster than they are checked.
        for packet, n_records in islice(copy_packets(memory, stats.subbuf_size), stats.n_subbufs):
            head = unpack(packet)
            where = stats.subbuf_size * ((head.packet_seq_num if head else 0) % stats.n_subbufs)
            if head is None or head.content_bytes > len(packet):
                yield place.damage("it is no packet", offset=where)
                continue
            # The declarations are read after the packet, since a program declares an event before it writes one.
            events = packet[HEAD_BYTES : head.content_bytes]
            checked = declared.now().check(events, head.timestamp_begin, head.timestamp_end)
            at = where + HEAD_BYTES + checked.n_bytes
            if checked.fault:
                yield place.damage(checked.fault, "events as they are declared", "an event", at)
            elif checked.n_events != n_records:
                allowed = f"{n_records}, by relay_subbuf"
                yield place.damage(str(checked.n_events), allowed, "the number of events", where)
    except OSError as error:
        yield place.damage(error.strerror or "its packets cannot be read")


def _end_of(text: bytes, at: int) -> int:
    """Return where the declaration at `at` ends."""
    end = text.find(ctf.EVENT_END, at)
    return len(text) if end < 0 else end + len(ctf.EVENT_END)


def _shown(text: bytes) -> str:
    """Return the beginning of a text for a message."""
    return ascii(text[:40].decode(errors="replace"))


def is_left_over(path: str) -> bool:
    """Return whether a hidden directory is there whose process, which was making or removing it, has died."""
    named = re.fullmatch(r"\.(?:new|removed)-(?P<pid>[0-9]+)-[0-9]+", os.path.basename(path))
    return not (named and os.path.exists(f"/proc/{named['pid']}")) and os.path.lexists(path)
