"""Snapshots: write what the buffers of a trace hold now, without consuming it or stopping programs."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.merge import EVER
from relayfs_fuse.native.store import TRACES_NAME
from relayfs_fuse.native.trace import STATE_CPU
from relayfs_fuse.reading.copies import copies
from relayfs_fuse.reading.damage import DamagedError, errors_mean_damage, reason
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.states import read_states
from relayfs_fuse.reading.summary import Summary
from relayfs_fuse.reading.threads import lock_holders
from relayfs_fuse.reading.trust import owner
from relayfs_fuse.tracefiles import ctf, losses, thread_names
from relayfs_fuse.tracefiles.recorded import read_metadata
from relayfs_fuse.tracefiles.snapshots import PAGE_BYTES, pages
from relayfs_fuse.tracefiles.streams import METADATA, QUARANTINE, stream_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.native.packets import Consumer
    from relayfs_fuse.reading.copies import Copy
    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.reading.source import Source
    from relayfs_fuse.tracefiles.thread_names import Names


class Snapshot:
    """Write a directory for each process, as a recording does, but all at once.

    path: of the snapshot, which is empty or does not exist; RelayError: it is not empty
    say: called with a line for users when something goes wrong
    check: one of trust.CHECKS
    window: only packets with events between these times, ns since 1970, are written; None: all are
    mount: where a server shows when events were lost; None: that is not known
    """

    def __init__(  # noqa: PLR0913, PLR0917  # what it is of, and how it is taken
        self,
        source: Source,
        path: str,
        say: Callable[[str], None],
        check: str = "others",
        window: tuple[int, int] | None = None,
        mount: str | None = None,
    ) -> None:
        self.summary = Summary()
        self._source = source
        self._path = path
        self._warn = say
        self._check = check
        self._window = window
        self._mount = mount
        self._holders = lock_holders()
        self._take_room: Callable[[int], object] = abs
        self._sizes: dict[str, int] = {}  # of the files, by path
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise RelayError(f"{path} is not empty; -o needs a new or empty directory")

    def take(self, tick: Callable[[], None], take_room: Callable[[int], object] = abs) -> None:
        """Take the snapshot. OSError: it cannot be written.

        tick: called after each process
        take_room: called with the bytes of pages before a file or directory takes them; what it raises ends this
        """
        self._take_room = take_room
        looked_ns = time.time_ns()
        self._source.losses.begin_with(self._noted(TRACES_NAME).get(self._source.name, ()), looked_ns)
        self.summary.note_lost_without_buffers(*self._source.lost_without_buffers())
        for name in self._source.processes():
            try:
                self._take(name)
            except DamagedError as damage:
                self._mark_damaged(name, str(damage))
            tick()

    def _take(self, name: str) -> None:
        try:
            process = Process(os.path.join(self._source.directory, name), self._check, self._source.trace)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise DamagedError(str(error)) from error
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                raise DamagedError(reason(error)) from error
            self.summary.skipped[name] = reason(error)
            self._warn(f"{name}: {reason(error)}")
            return
        try:
            self.summary.processes += 1
            self.summary.buffers += len(process.buffers)
            self._write(process)
        finally:
            process.close()

    def _write(self, process: Process) -> None:
        """Write all streams to a hidden directory, renamed when it is complete, or as complete as the memory allows."""
        hidden = os.path.join(self._path, f".{process.name}")
        self._take_room(PAGE_BYTES)
        os.mkdir(hidden)
        names: Names = {}
        process.note_threads(names, self._holders)
        looked_ns = time.time_ns()
        noted = self._noted(os.path.join(".channels", self._source.name, process.name, "cpu"))
        process.begin_losses(noted, looked_ns if noted else 0)
        try:
            with errors_mean_damage():
                process.flush()
                process.check_size()
                process.lost()
            for cpu, why in process.unfinished.items():
                self._warn(f"{process.name}: the last events in cpu{cpu} are not in it: {why}")
            for cpu, consumer in process.buffers.items():
                self._write_stream(process, cpu, consumer, os.path.join(hidden, stream_name(cpu)))
            self._write_states(process, os.path.join(hidden, stream_name(STATE_CPU)))
        finally:
            if os.listdir(hidden):
                if names:
                    self._append(os.path.join(hidden, thread_names.FILE), thread_names.pack(names))
                metadata = ctf.with_uuid(self._metadata(process), ctf.new_uuid())
                self._append(os.path.join(hidden, METADATA), metadata)
                os.rename(hidden, os.path.join(self._path, process.name))
            else:
                os.rmdir(hidden)

    def _metadata(self, process: Process) -> bytes:
        with errors_mean_damage(".events"):
            return process.metadata(self._source.clocks(), self._source.unbuffered, self._source.losses)

    def _noted(self, path: str) -> dict[str, list[losses.Interval]]:
        """Return what the server has noted of losses in a directory of the mount, by buffer or trace."""
        if self._mount is None:
            return {}
        try:
            with open(os.path.join(self._mount, path, "losses"), encoding="utf-8") as file:
                return losses.parse(file.read().splitlines())
        except OSError:
            return {}  # no server answers, or the process is not shown there

    def _window_ticks(self, process: Process) -> tuple[int, int]:
        """Return the window by the process's clock."""
        if self._window is None:
            return 0, EVER
        with errors_mean_damage(".events"):
            clock = read_metadata(process.directory, self._metadata(process)).clock
        begin, end = map(clock.ticks_at, self._window)
        return begin, end

    def _write_stream(self, process: Process, cpu: int, consumer: Consumer, path: str) -> None:
        last: Head | None = None
        n_before = 0  # events that were lost before the window
        begin, end = self._window_ticks(process)
        for copy in copies(process, cpu, consumer, self._source.clocks):
            head = copy.packet.head
            if head.timestamp_end < begin or head.timestamp_begin > end:
                n_before = n_before if last else head.events_discarded
                continue
            if copy.fault:
                self._note_wrong(process, cpu, copy)
            head = head._replace(events_discarded=head.events_discarded - n_before)
            if last is None and head.is_empty and not head.events_discarded:
                continue
            self._append(path, b"" if last else head.before().pack(), head.pack(), copy.packet.body[0])
            self.summary.lost += head.events_discarded - (last.events_discarded if last else 0)
            self.summary.packets += 1
            self.summary.bytes += head.packet_bytes
            last = head

    def _write_states(self, process: Process, path: str) -> None:
        """Write the states, also those that were set before the window."""
        with errors_mean_damage(".events"):
            states = read_states(process, self._source.clocks())
        if states:
            self._append(path, states.head.before().pack(), states.head.pack(), *states.body)

    def _note_wrong(self, process: Process, cpu: int, copy: Copy) -> None:
        """Write a packet with an invalid event to .damaged."""
        head = copy.whole.head
        if process.name not in self.summary.damaged:
            self._mark_damaged(process.name, f"cpu{cpu}: packet {head.packet_seq_num}: {copy.fault}")
            self._quarantine(process.name, "events", process.raw_events())
        self._quarantine(process.name, f"cpu{cpu}", head.pack(), copy.whole.body[0])

    def _mark_damaged(self, name: str, why: str) -> None:
        self.summary.damaged[name] = why
        self._quarantine(name, "why", f"{why}\n".encode())
        try:
            whose = f" (uid {owner(os.path.join(self._source.directory, name))})"
        except OSError:
            whose = ""  # it is gone
        self._warn(f"{name}{whose} is damaged: {why}")

    def _quarantine(self, process: str, name: str, *data: Any) -> None:
        directory = os.path.join(self._path, QUARANTINE, process)
        if not os.path.isdir(directory):
            self._take_room(2 * PAGE_BYTES)
            os.makedirs(directory)
        self._append(os.path.join(directory, name), *data)

    def _append(self, path: str, *data: Any) -> None:
        """Append to a file, if there is room for that."""
        before = self._sizes.get(path, 0)
        after = before + sum(map(len, data))
        self._take_room(pages(after) - pages(before))
        with open(path, "ab") as file:
            file.writelines(data)
        self._sizes[path] = after
