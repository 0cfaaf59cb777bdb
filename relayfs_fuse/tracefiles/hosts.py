"""Recordings of several machines, as `relayctl receive` writes them to DIR/HOST/RECORDING, on one time line."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayfs_fuse.errors import RelayError
from relayfs_fuse.tracefiles import clock_pairs
from relayfs_fuse.tracefiles.recorded import NoTraceError, Recording, fail_at_once, open_regular, walk
from relayfs_fuse.tracefiles.streams import MARK, RECEIVED
from relayfs_fuse.tracefiles.time_line import HostClock, stretches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.tracefiles.recorded import Part


@dataclass(frozen=True)
class Place:
    """Where a recording is.

    host: the name of its machine, by the directory that it is in; "": the recording says it
    """

    path: str
    host: str


class Hosts:
    """The parts of all recordings in some directories.

    directories: of machines, of recordings, or of both
    has_streams: as for Recording
    parts: with the host and the stretches of each, if there are several machines, or the directory is of received ones
    clocks: of the machines, in the order of their names; empty: there is only one, and its recording is what is shown
    unread: why some of the recordings cannot be read, if there are several; they are left out

    RelayError: there is no trace. OSError: something cannot be read.
    """

    def __init__(self, directories: Sequence[str], *, has_streams: bool = True) -> None:
        self.directory = (
            directories[0] if len(directories) == 1 else os.path.commonpath(map(os.path.abspath, directories))
        )
        self.parts: list[Part] = []
        self.clocks: list[HostClock] = []
        self.unread: list[str] = []
        self._stack = ExitStack()
        try:
            self._read(directories, has_streams=has_streams)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove unpacked files."""
        self._stack.close()

    def _read(self, directories: Sequence[str], *, has_streams: bool) -> None:
        found: list[tuple[str, Recording, list[clock_pairs.Pair]]] = []
        places = [place for directory in directories for place in recordings_in(directory)]
        for place in places:
            try:
                recording = Recording(place.path, has_streams=has_streams)
                self._stack.callback(recording.close)
                pairs = pairs_in(recording.directory)
            except NoTraceError:
                # One that has just begun, or of a channel; a directory without a mark is none of a recording.
                if len(places) == 1 or not os.path.exists(os.path.join(place.path, MARK)):
                    raise
            except (RelayError, OSError) as error:
                if len(places) == 1:
                    raise
                why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
                self.unread.append(f"{why}; {place.path} is not shown")
            else:
                found.append((place.host or recording.parts[0].hostname, recording, pairs))
        if not found and self.unread:
            raise RelayError(self.unread[0])
        if not places:
            raise NoTraceError(
                f"{directories[0]}: no directory in it has the file {MARK}, by which received recordings are known; "
                "the DIR of one recording is shown without it"
            )
        if not found:
            raise NoTraceError(f"{directories[0]}: there is no trace of relayfs in any of its {len(places)} recordings")
        names = sorted({host for host, _, _ in found})
        is_one = len(places) == 1 and places[0].path == directories[0]
        if is_one or (len(names) == 1 and not any(place.host for place in places)):
            self.parts = [part for _, recording, _ in found for part in recording.parts]
            return
        clocks = {name: HostClock(name) for name in names}
        self.clocks = list(clocks.values())
        for host, recording, pairs in found:
            clock = clocks[host]
            clock.add(recording.parts[0], pairs)
            for part in recording.parts:
                self.parts.append(replace(part, host_clock=clock, stretches=tuple(stretches_of(part, pairs))))

    @property
    def begin(self) -> int:
        """The first time that any part knows of, ns since 1970."""
        times = [part.origin.real for part in self.parts]
        return min([*times, *(knot.mapped for part in self.parts for one in part.stretches for knot in one.knots)])


def is_received(directory: str) -> bool:
    """Return whether `relayctl receive` writes to a directory."""
    return os.path.isdir(os.path.join(directory, RECEIVED))


def pairs_in(directory: str) -> list[clock_pairs.Pair]:
    """Return what the clocks of a recording's machine showed."""
    with suppress(FileNotFoundError), open_regular(os.path.join(directory, clock_pairs.FILE)) as file:
        return clock_pairs.unpack(file.read(clock_pairs.FILE_BYTES))
    return []


def recordings_in(directory: str, fail: Callable[[OSError], None] = fail_at_once) -> Iterator[Place]:
    """Find recordings in a directory; if none has a mark, as a snapshot, it is the directory itself.

    A directory of received recordings is none: a mark may arrive after other files of its recording.

    fail: as for walk()
    """
    n = 0
    top = os.path.abspath(directory)
    for path, directories, names in walk(top, fail):
        if MARK in names:
            n += 1
            directories[:] = []
            above = os.path.dirname(path)
            has_host = is_received(os.path.dirname(above))
            is_below = path.startswith(os.path.join(top, "")) and above != top
            inside = os.path.join(directory, os.path.relpath(path, top)) if path != top else directory
            yield Place(inside, os.path.basename(above) if has_host or is_below else "")
    if not n and not is_received(directory):
        yield Place(directory, "")
