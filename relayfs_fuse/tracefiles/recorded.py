"""Recordings on disk, as `relayctl record` and `relayctl snapshot` write them.

A directory with a file `metadata` has the events of a process, or of several that share buffers: a stream for each CPU
in the files cpu0, cpu1 ..., continued by cpu0_1 and so on, and one of states in `state`. A recording has such
directories, with rotation in its numbered subdirectories. Compressed files have the suffix .zst, and `.threads` has
names of threads: see thread_names.py.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.tracefiles import ctf, thread_names
from relayfs_fuse.tracefiles.clock_pairs import TIME_MAX
from relayfs_fuse.tracefiles.ctf import Origin
from relayfs_fuse.tracefiles.losses import told
from relayfs_fuse.tracefiles.streams import COMPRESSED, METADATA, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from relayfs_fuse.native.merge import Stretch
    from relayfs_fuse.tracefiles.ctf import Declaration
    from relayfs_fuse.tracefiles.losses import Interval
    from relayfs_fuse.tracefiles.thread_names import Names
    from relayfs_fuse.tracefiles.time_line import HostClock

# How many bytes of a compressed file are unpacked at once, because they can become 32,000 times as many.
_PIECE_BYTES = 1 << 12
# No metadata is longer: the declarations have at most EVENTS_MAX bytes, the preamble before them at most 128 KiB.
_METADATA_MAX = ctf.EVENTS_MAX + (128 << 10)
# No file that a recorder compresses is longer: one of 256 MiB, or with one packet, of the longest sub-buffer.
UNPACKED_MAX = (4 << 30) + (256 << 20)
# What is unpacked leaves this share of the file system free, because others need it, too.
_FREE_SHARE = 16
_HEADING = b"/* CTF 1.8 */\n"
_CLOCK = re.compile(rb"\tfreq = (\d{1,19});\n\toffset_s = (\d{1,10});\n\toffset = (\d{1,19});\n\};\n")
_CONTEXT = re.compile(rb"\tevent\.context := struct \{\n((?:\t\tu?int32_t _\w{1,255};\n){1,16})\t\};\n")
_HOSTNAME = re.compile(rb'\thostname = "([^"\n]{1,255})";\n')
_NEEDED = "a DIR of `relayctl record` or `relayctl snapshot` is needed"


class NoTraceError(RelayError):
    """A directory has no part of a trace."""


@dataclass(frozen=True)
class Clock:
    """How the ticks of a process's clock are converted to times since 1970.

    freq: ticks per second
    offset_s, offset: the seconds and ticks between 1970 and the clock's zero
    """

    freq: int
    offset_s: int
    offset: int

    def time_at(self, ticks: int) -> int:
        """Return the time of a tick, ns since 1970."""
        return self.offset_s * ctf.NS + (self.offset + ticks) * ctf.NS // self.freq

    def ticks_at(self, time: int) -> int:
        """Return the last tick at or before a time, ns since 1970; 0, if it was before the clock's zero."""
        return max(0, (time - self.offset_s * ctf.NS) * self.freq // ctf.NS - self.offset)


@dataclass(frozen=True)
class Part:
    """One directory with metadata: the events of a process, or of several that share buffers.

    context: names of the numbers, of 4 bytes each, between each event's header and its fields
    changed_ns: when the metadata was written, in ns since 1970
    streams: by CPU, or STATE_CPU, the files of the stream in order
    threads: names of threads, as far as the recorder has seen them
    losses: when and why events were lost, by buffer or NO_BUFFER
    hostname: the name of the machine, as its kernel knows it
    host_clock: what is known of the machine's clock, and its name; None: it is the only machine
    stretches: how times are mapped to those of all machines; empty: not at all
    """

    path: str
    origin: Origin
    clock: Clock
    context: tuple[str, ...]
    declarations: tuple[Declaration, ...]
    changed_ns: int = 0
    streams: dict[int, list[str]] = field(default_factory=dict)
    threads: Names = field(default_factory=dict)
    losses: dict[str, list[Interval]] = field(default_factory=dict)
    hostname: str = ""
    host_clock: HostClock | None = None
    stretches: tuple[Stretch, ...] = ()

    @property
    def host(self) -> str:
        """The name of its machine; empty: it is the only one."""
        return self.host_clock.name if self.host_clock else ""


def _of_channel(directory: str) -> str:
    """Return what to do if the directory is the recording of a channel, which has nothing but files of records."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    if not names:
        return ""
    return (
        f"; if it is the recording of a channel, its files, such as {min(names)}, are the records: read them with cat"
    )


def read_metadata(path: str, text: bytes) -> Part:
    """Parse metadata; ValueError: relayfs has not written it.

    path: the directory that has it
    """
    try:
        origin = Origin.of(text.removeprefix(_HEADING))
    except ValueError as error:
        raise ValueError(f"it is no metadata of relayfs: {error}") from error
    clock = _CLOCK.search(text)
    if not clock or not int(clock[1]):
        raise ValueError("it tells of no clock")
    found = Clock(*map(int, clock.groups()))
    if max(origin.real, found.time_at(origin.mono if origin.clock == "mono" else origin.ticks)) >= TIME_MAX:
        raise ValueError("its clock shows a time that no clock has")
    context = _CONTEXT.search(text)
    names = re.findall(r" _(\w+);", context[1].decode("ascii")) if context else []
    declarations = tuple(ctf.declarations(text))
    hostname = _HOSTNAME.search(text)
    return Part(
        path, origin, found, tuple(names), declarations, losses=told(text),
        hostname=hostname[1].decode(errors="backslashreplace") if hostname else "",
    )  # fmt: skip


class PartReader:
    """Reads parts. Compressed files are unpacked to a temporary directory, which close() removes."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._unpacked: str | None = None

    def close(self) -> None:
        """Remove the unpacked files."""
        self._stack.close()

    def part(self, path: str, names: list[str]) -> Part | None:
        """Read the part in a directory, which has files of these names, see part_places(); None: it is of no trace.

        RelayError: it is damaged. OSError: something cannot be read.
        """
        metadata = os.path.join(path, next(name for name in names if plain_name(name) == METADATA))
        changed_ns = os.stat(metadata).st_mtime_ns
        with open_regular(self.plain(metadata)) as file:
            text = file.read(_METADATA_MAX)
        if not text.startswith(_HEADING):
            return None
        try:
            part = read_metadata(path, text)
        except ValueError as error:
            raise RelayError(f"{os.path.join(path, METADATA)}: {error}") from error
        threads = _threads(os.path.join(path, thread_names.FILE)) if thread_names.FILE in names else {}
        return replace(part, changed_ns=changed_ns, streams=self.streams(path, names), threads=threads)

    def streams(self, path: str, names: list[str]) -> dict[int, list[str]]:
        """Return the paths of the files of each stream among these names, in order; of compressed ones, of copies."""
        found: dict[int, list[str]] = defaultdict(list)
        for (cpu, _), name in sorted((stream, name) for name in names if (stream := stream_of(plain_name(name)))):
            found[cpu].append(self.plain(os.path.join(path, name)))
        return dict(found)

    def plain(self, path: str) -> str:
        """Return a file's path, or, if it is compressed, that of a copy which is not."""
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise RelayError(f"{path} is no regular file; {_NEEDED}")
        if not path.endswith(COMPRESSED):
            return path
        if self._unpacked is None:
            self._unpacked = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="relayctl-"))
        most = _METADATA_MAX if plain_name(os.path.basename(path)) == METADATA else UNPACKED_MAX
        with open_regular(path) as source:
            descriptor, copy = tempfile.mkstemp(dir=self._unpacked)
            try:
                with open(descriptor, "wb") as target:
                    unpack(source, target, most)
            except BaseException:
                os.unlink(copy)
                raise
        return copy


class Recording(PartReader):
    """The parts of a recording in `directory`, in the order of their names.

    has_streams: whether the parts have their streams, of which compressed ones are unpacked

    RelayError: there is no trace. OSError: something cannot be read.
    """

    def __init__(self, directory: str, *, has_streams: bool = True) -> None:
        super().__init__()
        self.directory = directory
        try:
            places = [(path, names if has_streams else beside_streams(names)) for path, names in part_places(directory)]
            parts = [part for path, names in places if (part := self.part(path, names))]
        except BaseException:
            self.close()
            raise
        if not parts:
            self.close()
            raise NoTraceError(f"{directory}: there is no trace of relayfs in it; {_NEEDED}{_of_channel(directory)}")
        self.parts = [replace(part, clock=clock) for part, clock in zip(parts, _best_clocks(parts), strict=True)]


def regular_descriptor(path: str, flags: int) -> int:
    """Return a descriptor of a file. RelayError: as open_regular(); with O_NOFOLLOW also if it is a symbolic link."""
    checked = os.open(path, os.O_PATH | os.O_CLOEXEC | flags & os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(checked).st_mode):
            raise RelayError(f"{path} is no regular file; {_NEEDED}")
        return os.open(f"/proc/self/fd/{checked}", flags & ~os.O_NOFOLLOW)
    finally:
        os.close(checked)


def open_regular(path: str) -> BinaryIO:
    """Open a file to read it. RelayError: it is a FIFO, which would block, a device or a directory."""
    return open(path, "rb", opener=regular_descriptor)


def _threads(path: str) -> Names:
    with open_regular(path) as file:
        return thread_names.unpack(file.read(thread_names.FILE_BYTES))


def unpack(source: BinaryIO, target: BinaryIO, most: int = UNPACKED_MAX) -> None:
    """Unpack a file that is compressed with zstd.

    most: how many bytes it may become, because a few can become any number of them

    RelayError: it is damaged, or becomes longer, or there is no room for it.
    """
    decompressor = zstandard.ZstdDecompressor()
    unpacker = decompressor.decompressobj()
    n_bytes = 0
    try:
        while data := source.read(_PIECE_BYTES):
            while data:
                if unpacker.eof:  # another frame follows
                    unpacker = decompressor.decompressobj()
                piece = unpacker.decompress(data)
                n_bytes += len(piece)
                if n_bytes > most:
                    raise RelayError(
                        f"{source.name} becomes longer than {most} bytes when it is unpacked, "
                        "which no file of a recorder does; `zstd -d` unpacks it"
                    )
                _check_room(source.name, target, len(piece))
                target.write(piece)
                data = unpacker.unused_data
    except zstandard.ZstdError as error:
        raise RelayError(f"{source.name} cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise RelayError(f"{source.name} cannot be unpacked: its end is missing")


def _check_room(what: str, target: BinaryIO, n_bytes: int) -> None:
    """Check that a file system has room for more bytes of a file. RelayError: it would be full for others."""
    room = os.fstatvfs(target.fileno())
    is_told = room.f_blocks > 0  # a ramfs does not tell it
    if is_told and room.f_bavail * room.f_frsize - n_bytes < room.f_blocks * room.f_frsize // _FREE_SHARE:
        raise RelayError(
            f"{what} cannot be unpacked: the directory of temporary files, {tempfile.gettempdir()}, is nearly full; "
            "TMPDIR names another one"
        )


def fail_at_once(error: OSError) -> None:
    """Raise the error, for walk()."""
    raise error


def walk(directory: str, fail: Callable[[OSError], None] = fail_at_once) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through the directories that are not hidden, as os.walk() does.

    fail: called for each directory that cannot be read, which is left out unless it raises
    """
    for path, directories, names in os.walk(directory, onerror=fail):
        directories[:] = sorted((name for name in directories if not name.startswith(".")), key=_natural)
        yield path, directories, names


def part_places(directory: str, fail: Callable[[OSError], None] = fail_at_once) -> Iterator[tuple[str, list[str]]]:
    """Find the directories that have metadata, and the names of their files; fail: as for walk()."""
    for path, _, names in walk(directory, fail):
        plain = {plain_name(name) for name in names}
        if METADATA in plain:
            yield path, whole_names(names)


def whole_names(names: Sequence[str]) -> list[str]:
    """Return the names of the files to read: while a file is being compressed, both can exist, and the plain one is."""
    return [name for name in names if name == plain_name(name) or plain_name(name) not in names]


def beside_streams(names: Iterable[str]) -> list[str]:
    """Return the names of files that are none of a stream."""
    return [name for name in names if not stream_of(plain_name(name))]


def plain_name(name: str) -> str:
    """Return the name that a file has when it is not compressed."""
    return name.removesuffix(COMPRESSED)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that sorts 9 before 10."""
    return [(int(word), "") if word.isdecimal() else (0, word) for word in re.split(r"(\d+)", name)]


def _best_clocks(parts: list[Part]) -> Iterator[Clock]:
    """Return the clock of each part: one for all of a trace, so that their ticks keep their order.

    The metadata that was written last knows best how fast the time stamp counter goes.
    """
    newest: dict[tuple[str, str, int, str], Part] = {}
    for part in sorted(parts, key=lambda part: part.changed_ns):
        newest[clock_of(part.origin)] = part
    for part in parts:
        yield newest[clock_of(part.origin)].clock


def clock_of(origin: Origin) -> tuple[str, str, int, str]:
    """Return what parts have in common that have one clock."""
    return origin.boot, origin.trace, origin.id, origin.clock
