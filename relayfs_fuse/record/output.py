"""Recording to a directory, with one for each process of the trace, each of which is a separate CTF trace.

DIR/.relayfs                which trace this is
DIR/.clocks                 what the machine's clocks showed: see tracefiles/clock_pairs.py
DIR/PROCESS-PID/metadata    cpu0, cpu1 ...; cpu0_1 follows when cpu0 is full, or new events are declared
DIR/PROCESS-PID/state       the states that the process had set when its directory was begun: see reading/states.py
DIR/PROCESS-PID/.threads    names of threads: see tracefiles/thread_names.py
DIR/0001/PROCESS-PID/...    the same, with rotation
DIR/.ends                   with rotation, where the streams have ended in the directories before: see ends.py
DIR/.damaged/PROCESS-PID/   why events of the process are not recorded, and its packets that viewers could not read
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.trace import STATE_CPU
from relayfs_fuse.reading.damage import DamagedError
from relayfs_fuse.reading.packet import Packet
from relayfs_fuse.record.atomic import NEW, write_atomically
from relayfs_fuse.record.ends import Ends
from relayfs_fuse.record.full import BLOCK_BYTES, OutputFullError, temporary_errors_mean_full, touched
from relayfs_fuse.record.left import find_left
from relayfs_fuse.record.stream import OpenFiles, StreamFile, beginning_after, without_lost
from relayfs_fuse.record.writing import Writer, bytes_with
from relayfs_fuse.tracefiles import clock_pairs, ctf, thread_names
from relayfs_fuse.tracefiles.recorded import PartReader
from relayfs_fuse.tracefiles.streams import COMPRESSED, MARK, METADATA, QUARANTINE, stream_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.reading.packet import Head
    from relayfs_fuse.record.compress import Compressor
    from relayfs_fuse.record.full import Limit
    from relayfs_fuse.record.left import Left
    from relayfs_fuse.record.outputs import ProcessOutput
    from relayfs_fuse.tracefiles.ctf import Origin

_NUMBER = re.compile(r"\d{4,}", re.ASCII)
# In a process's directory, with rotation: number of events of a stream that were lost before this directory.
_LOST = ".lost_before_cpu"


class DirectoryOutput:
    """Record to a directory.

    path: created if it does not exist; if it holds a recording of this trace, that is continued
    rotates: whether to use numbered directories in it
    compressor: compresses complete directories
    limit: of the bytes that are written
    """

    def __init__(
        self,
        path: str,
        origin: str,
        *,
        rotates: bool = False,
        compressor: Compressor | None = None,
        limit: Limit | None = None,
    ) -> None:
        self.path = path
        self.compressor = compressor
        self.limit = limit
        self._kept: int | None = None
        self.files = OpenFiles()
        self.writer = Writer()
        self._processes: list[_Process] = []
        self._check_or_mark(origin)
        self.number = max(self._numbers(), default=1) if rotates else 0
        self.ends = Ends(path) if rotates else None
        if compressor and rotates:
            for number in range(1, self.number):
                compressor.add_all(os.path.join(path, f"{number:04}"))

    @property
    def current(self) -> str:
        """The directory of the processes' directories now."""
        return os.path.join(self.path, f"{self.number:04}") if self.number else self.path

    def directories(self) -> list[str]:
        """Return the current directory of the processes' directories, and those before, the latest first."""
        before = sorted(filter(lambda number: number < self.number, self._numbers()), reverse=True)
        return [self.current, *(os.path.join(self.path, f"{number:04}") for number in before)]

    def _check_or_mark(self, origin: str) -> None:
        os.makedirs(self.path, exist_ok=True)
        mark = os.path.join(self.path, MARK)
        try:
            with open(mark, encoding="utf-8") as file:
                there = file.read().strip()
        except FileNotFoundError:
            if any(not name.startswith(NEW) for name in os.listdir(self.path)):
                why = "is not empty, and no recording of relayctl; -o needs a new or empty directory"
                raise RelayError(f"{self.path} {why}") from None
            write_atomically(mark, f"{origin}\n".encode())
            return
        if there != origin:
            raise RelayError(f"{self.path} holds another trace ({there}), not {origin}; choose another DIR")

    def _numbers(self) -> list[int]:
        return [int(name) for name in os.listdir(self.path) if _NUMBER.fullmatch(name)]

    def process(self, name: str, origin: Origin) -> ProcessOutput:
        """Begin or continue the recording of a process."""
        with temporary_errors_mean_full(os.path.join(self.current, name)):
            process = _Process(self, name, origin)
        self._processes.append(process)
        return process

    @property
    def kept(self) -> int:
        """How many bytes are to be left to begin the next directory."""
        if self._kept is None:
            self._kept = sum(process.begin_bytes for process in self._processes) if self.number else 0
        return min(self._kept, self.limit.most // 2) if self.limit else 0

    def take(self, n: int, path: str) -> None:
        """Count n bytes that are to be written, as Limit.take()."""
        if self.limit:
            self.limit.take(n, path, self.kept)

    def keep_ends(self) -> None:
        """Keep room for where all streams will have ended, one more than there are."""
        if self.ends:
            n = self.ends.missing(1 + sum(len(process.ends) for process in self._processes))
            if n:
                self.take(n, self.ends.path)
                self.ends.grow(n)

    def note_change(self) -> None:
        """Note that a directory may begin with something else."""
        self._kept = None

    def quarantine(self, process: str, name: str, data: bytes) -> None:
        """Append to a file below DIR/.damaged, where viewers find no trace."""
        directory = os.path.join(self.path, QUARANTINE, process)
        path = os.path.join(directory, name)
        self.take(len(data), path)
        with temporary_errors_mean_full(path):
            os.makedirs(directory, exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)

    def note_clocks(self, lines: bytes) -> None:
        """Append to DIR/.clocks, on a line of its own: the last one may not be whole."""
        path = os.path.join(self.path, clock_pairs.FILE)
        self.take(len(lines) + 1, path)
        with temporary_errors_mean_full(path), open(path, "a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            is_torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
            if file.write(data := b"\n" * is_torn + lines) < len(data):
                raise OutputFullError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def rotate(self) -> None:
        """Continue in the directory of the next number."""
        if self.ends:
            with temporary_errors_mean_full(self.ends.path):
                self.ends.write({process.key: process.ends for process in self._processes})
        for process in self._processes:
            process.end_files({})
        done = self.current
        self.number += 1
        if self.limit:
            # Who makes room by removing complete directories sees by this one that the others are.
            with suppress(OSError):
                os.mkdir(self.current)
            with suppress(OSError):  # if nothing has had room in it
                os.rmdir(done)
            for process in self._processes:
                process.begin()
        if self.compressor:
            self.compressor.add_all(done)

    def write_rest(self) -> None:
        """Do nothing: data without room is not accepted."""

    def process_ended(self, process: _Process) -> None:
        """Note that a process has ended; its directory is complete."""
        self._processes.remove(process)
        self.note_change()
        if self.compressor and not self.number and process.path:
            self.compressor.add(process.path)

    def close(self) -> None:
        """End the recording; compress the remaining directories."""
        for process in list(self._processes):
            process.close({})
        if self.ends:
            self.ends.close()
        if self.compressor and self.number:
            self.compressor.add_all(self.current)


class _Process:
    """One process's directory, or with rotation, its latest.

    path: None before it is made
    """

    def __init__(self, output: DirectoryOutput, name: str, origin: Origin) -> None:
        self.path: str | None = None
        self._output = output
        self._name = name
        self._line = origin.line
        self._metadata = b""
        self._is_written = True
        self._threads = b""
        self._are_threads_written = True
        # The directory that was made last. After a rotation it gets names that are seen before further packets come.
        self._last_path: str | None = None
        self._uuid = ctf.new_uuid()
        self._files: dict[int, StreamFile] = {}
        self._lost_before: dict[int, int] = {}
        self._last: dict[int, Head] = {}
        self._n_files: dict[int, int] = {}
        # By CPU: number of declarations of events when the stream's file was begun.
        self._declared: dict[int, int] = {}
        self._open()

    @property
    def _n_declared(self) -> int:
        return self._metadata.count(b"\nevent {\n")

    def _open(self) -> None:
        """Continue in the directory that an earlier recorder has left, or behind it, if it belongs to this process."""
        with closing(PartReader()) as reader:
            found = (find_left(self._paths(parent), self._line, reader) for parent in self._output.directories())
            left = next(filter(None, found), None)
            is_latest = left is not None and os.path.dirname(left.path) == self._output.current
            if left:
                with suppress(FileNotFoundError):  # somebody may remove a complete directory meanwhile
                    self._read(left, reader)
                if left.is_compressed or not is_latest:
                    self.end_files({})
        if self._output.ends and not is_latest:
            self._last |= self._output.ends.of(self.key)

    @property
    def key(self) -> str:
        """What identifies the process in DIR/.ends."""
        return f"{self._name}\n{self._line}"

    @property
    def ends(self) -> list[Head]:
        """The last headers of the streams of events."""
        return [head for cpu, head in self._last.items() if cpu != STATE_CPU]

    def _read(self, left: Left, reader: PartReader) -> None:
        path = self.path = self._last_path = left.path
        self._metadata, self._uuid = left.metadata, ctf.uuid_of(left.metadata)
        with suppress(FileNotFoundError), open(os.path.join(path, thread_names.FILE), "rb") as file:
            self._threads = file.read()
        for name in left.names:
            if name.startswith(_LOST):
                with open(os.path.join(path, name), encoding="ascii") as text:
                    self._lost_before[int(name.removeprefix(_LOST))] = int(text.read())
            elif name.startswith(".") and name != thread_names.FILE and not name.endswith(COMPRESSED):
                os.unlink(os.path.join(path, name))
        for cpu, number, name in left.streams():
            self._n_files[cpu] = number + 1
            try:
                last, stream = StreamFile.reopen(reader.plain(os.path.join(path, name)), self._output.files)
            except RelayError:
                continue  # it is spoiled: viewers cannot read either what was lost before its end, so that counts again
            if last:
                lost = last.events_discarded + self._lost_before.get(cpu, 0)
                self._last[cpu] = last._replace(events_discarded=lost)
            if stream:
                self._files[cpu] = stream
                self._declared[cpu] = self._n_declared

    def _paths(self, parent: str) -> Iterator[str]:
        """Yield the paths that directories of the process may have in a directory: PIDs are reused."""
        yield os.path.join(parent, self._name)
        for number in count(2):
            yield os.path.join(parent, f"{self._name}-{number}")

    def _free_path(self, parent: str) -> str:
        """Return the first path that is free, or has a directory which was not begun to its end."""
        return next(
            path
            for path in self._paths(parent)
            if not os.path.isdir(path) or all(name.startswith(".") for name in os.listdir(path))
        )

    def last(self, cpu: int) -> Head | None:
        """Return the header of the last packet of a stream."""
        return self._last.get(cpu)

    def has_events(self) -> bool:
        """Return whether the present directory has streams besides that of states."""
        return any(cpu != STATE_CPU for cpu in self._n_files)

    def metadata(self) -> bytes:
        """Return the metadata written so far, also by an earlier recorder."""
        return self._metadata

    def set_metadata(self, data: bytes) -> None:
        """Replace the metadata; if there is a directory, write it there."""
        self._metadata, self._is_written = data, False
        self._output.note_change()
        if self.path:
            self._write_metadata(self.path)

    def _write_metadata(self, directory: str) -> None:
        path = os.path.join(directory, METADATA)
        self._take_metadata(path)
        with temporary_errors_mean_full(path):
            write_atomically(path, ctf.with_uuid(self._metadata, self._uuid))
        self._is_written = True

    def _take_metadata(self, path: str, more: int = 0) -> None:
        self._check_size(len(self._metadata), path)
        self._output.take(len(self._metadata) + more, path)

    def threads(self) -> bytes:
        """Return the names of threads written so far, also by an earlier recorder."""
        return self._threads

    def set_threads(self, data: bytes) -> None:
        """Replace the names of threads; if there is a directory, write them to the last one."""
        if data != self._threads:
            self._threads, self._are_threads_written = data, False
        self._write_threads()

    def _write_threads(self) -> None:
        # Behind the metadata: what has none is no directory of a process.
        if self._are_threads_written or not self._last_path or not self._is_written:
            return
        path = os.path.join(self._last_path, thread_names.FILE)
        # Somebody may have moved a complete directory away.
        with suppress(OutputFullError, FileNotFoundError), temporary_errors_mean_full(path):
            self._output.take(len(self._threads), path)
            write_atomically(path, self._threads)
            self._are_threads_written = True

    def n_with_room(self, cpu: int, packets: Sequence[Packet]) -> int:
        """Return how many packets have room now: with each of them, a file may begin."""
        limit = self._output.limit
        if limit is None:
            return len(packets)
        path = os.path.join(self.path or self._output.current, stream_name(cpu))
        self._check_size(bytes_with(packets[0]), path)
        return limit.n_fitting(list(map(bytes_with, packets)), path, self._output.kept)

    def _check_size(self, n: int, path: str) -> None:
        """Raise DamagedError if a process has what never has room, which is to hold up no others."""
        limit = self._output.limit
        if limit and n > limit.largest:
            raise DamagedError(f"{path}: {n} bytes never have room: --max {limit.most} permits {limit.largest} at once")

    def append(
        self, cpu: int, packets: Sequence[Packet], is_valid: Callable[[], bool], *, is_urgent: bool = False
    ) -> bool:
        """Append packets to a stream file; if they do not all fit, to several."""
        if not self.path:
            self._take_metadata(self._output.current, BLOCK_BYTES * len(self._last))
        directory = self.path or self._make_directory()
        if not self._is_written:
            self._write_metadata(directory)
        self._write_threads()
        path = os.path.join(directory, stream_name(cpu))
        # All of them or none: who goes on in another directory would write those again that are not consumed.
        self._output.take(sum(map(bytes_with, packets)), path)
        rest = list(packets)
        write = partial(self._output.writer.write, is_urgent=is_urgent)
        while rest:
            with temporary_errors_mean_full(path):
                file = self._file(directory, cpu, rest[0])
            if file.is_hidden and self._n_files[cpu] > 1 and (before := self._last.get(cpu)):
                rest[0] = beginning_after(before, rest[0])
            some = file.fitting(rest)
            with temporary_errors_mean_full(file.path):
                if not file.append(without_lost(some, self._lost_before.get(cpu, 0)), is_valid, write):
                    return False
            self._last[cpu] = some[-1].head
            rest = rest[len(some) :]
        return True

    @property
    def begin_bytes(self) -> int:
        """How many bytes of the disk begin() takes at most."""
        return touched(len(self._metadata)) + touched(len(self._threads)) + touched(0) * len(self._last)

    def begin(self) -> None:
        """Make the directory for further packets, for which room was kept."""
        if self._last:
            if self._output.limit:
                self._output.limit.count(self.begin_bytes)
            with suppress(OutputFullError):
                self._make_directory()

    def _make_directory(self) -> str:
        """Make a directory with what is lost so far, which is counted in those before, and then with the metadata.

        Without metadata it has not begun, and a recorder that goes on finds the counts in those before.
        """
        now = {cpu: last.events_discarded for cpu, last in self._last.items() if last.events_discarded}
        lost = self._lost_before | now
        uuid = ctf.new_uuid()
        with temporary_errors_mean_full(os.path.join(self._output.current, self._name)), ExitStack() as undo:
            path = self._free_path(self._output.current)
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
            undo.callback(shutil.rmtree, path, ignore_errors=True)
            for cpu, discarded in lost.items():
                write_atomically(os.path.join(path, f"{_LOST}{cpu}"), f"{discarded}\n".encode("ascii"))
            write_atomically(os.path.join(path, METADATA), ctf.with_uuid(self._metadata, uuid))
            undo.pop_all()
        self.path = self._last_path = path
        self._uuid, self._lost_before = uuid, lost
        self._is_written, self._are_threads_written = True, not self._threads
        return path

    def quarantine(self, name: str, data: bytes) -> None:
        """Append to a file of this process in .damaged."""
        self._output.quarantine(self._name, name, data)

    def _file(self, directory: str, cpu: int, packet: Packet) -> StreamFile:
        """Return the file for the next packet.

        A reader of the last file may have read the metadata before, so events declared since then go into another file.
        """
        file = self._files.get(cpu)
        if file and file.fitting([packet]) and self._declared[cpu] == self._n_declared:
            return file
        if file:
            del self._files[cpu]
            file.close()
        if cpu not in self._last:
            self._output.keep_ends()
        number = self._n_files.get(cpu, 0)
        path = os.path.join(directory, stream_name(cpu, number))
        file = StreamFile.create(path, packet, self._output.files, goes_on=number > 0)
        self._files[cpu] = file
        self._declared[cpu] = self._n_declared
        self._n_files[cpu] = number + 1
        self._output.note_change()
        return file

    def end_files(self, discarded: dict[int, int]) -> None:
        """Complete the files; further packets go to a new directory."""
        self._write_threads()
        files, self._files = self._files, {}
        self._n_files = {}
        self._last.pop(STATE_CPU, None)
        self.path = None
        with ExitStack() as stack:
            for cpu, file in files.items():
                stack.callback(file.close)
                stack.callback(file.end_with, discarded.get(cpu, 0) - self._lost_before.get(cpu, 0))

    def _tell_lost(self, cpu: int, discarded: int) -> None:
        """Tell what a stream has lost whose file was completed by a rotation, in an empty packet of the next one."""
        last = self._last.get(cpu)
        if last and cpu not in self._files and discarded > last.events_discarded:
            end = last.timestamp_end
            # It has the number of the last one: the next packet has the number behind that.
            head = last.empty(timestamp_begin=end, timestamp_end=end, events_discarded=discarded)
            self.append(cpu, [Packet(head, [])], lambda: True)

    def close(self, discarded: dict[int, int]) -> None:
        """Complete the files, and tell what streams have lost since their last packets."""
        with suppress(OutputFullError):
            for cpu, lost in discarded.items():
                self._tell_lost(cpu, lost)
        path = self.path
        self.end_files(discarded)
        self.path = path
        if self._output.ends and discarded:
            self._output.ends.forget(self.key)
        self._output.process_ended(self)
