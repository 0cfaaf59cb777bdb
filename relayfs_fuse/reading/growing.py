"""The events of recordings while a recorder or `relayctl receive` appends to them, in the order of their times.

Packets arrive late, and those of one machine or CPU later than those of another one. So an event is given out when a
later one has been there for a certain time, which does not depend on the clocks of the machines. What arrives after
events that are later is given out at once. Each event is given out once, as a stream is read only behind what was read.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from contextlib import closing, suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native.library import Closing, closed_on_error
from relayfs_fuse.native.merge import EVER, Merge, MergedProcess, Stretch
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.recordings import Followed, Recordings
from relayfs_fuse.tracefiles import clock_pairs
from relayfs_fuse.tracefiles.ctf import NS
from relayfs_fuse.tracefiles.hosts import Hosts, is_received, pairs_in, recordings_in
from relayfs_fuse.tracefiles.losses import NO_BUFFER
from relayfs_fuse.tracefiles.merged import add_host, add_part, kinds_of, losses_of, process_of, unbuffered_losses
from relayfs_fuse.tracefiles.recorded import NoTraceError, PartReader, beside_streams, clock_of, part_places, plain_name
from relayfs_fuse.tracefiles.streams import COMPRESSED, METADATA, stream_name, stream_of
from relayfs_fuse.tracefiles.time_line import HostClock, stretches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relayfs_fuse.reading.live import Wanted
    from relayfs_fuse.reading.recordings import FollowedRecording, Signature
    from relayfs_fuse.tracefiles.ctf import Declaration
    from relayfs_fuse.tracefiles.hosts import Place
    from relayfs_fuse.tracefiles.recorded import Part

# New directories and files are looked for so often, and what was appended to known files so often; but neither takes
# more than a _LOOK_SHAREth of the time.
_SCAN_S = 0.5
_LOOK_S = 0.05
_LOOK_SHARE = 20
# How long the last packets of a file are waited for when the next file is there, but nothing is written to this one. A
# receiver cannot tell whether the sender's network is cut, or the messages have expired and will never come.
REST_S = 600


def _signature_of(directory: str) -> Signature | None:
    """Return the signature of a part's metadata, which may be compressed."""
    path = os.path.join(directory, METADATA)
    return _signature(path) or _signature(path + COMPRESSED)


def _signature(path: str) -> Signature | None:
    """Return what changes with a file; None: there is none that can be read."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


class _New(NamedTuple):
    place: Place
    recording: FollowedRecording
    part: Part
    metadata: Signature | None
    names: list[str]


class Growing(Closing):
    """Follow recordings.

    directories: as for Hosts; one that `relayctl receive` writes to may have no recording yet
    delay_ns: for how long an event waits for earlier ones of other streams, ns
    say: called with a line for users when something goes wrong
    default: the stretches of parts whose times are not mapped to those of other machines
    merged: the merge that gives out the events
    followed: the parts, by their directories
    pause_s: how long to wait until the next look()

    RelayError, OSError: there is nothing to follow
    """

    def __init__(
        self,
        directories: Sequence[str],
        wanted: Wanted,
        delay_ns: int,
        say: Callable[[str], None],
        default: tuple[Stretch, ...] = (),
    ) -> None:
        self.pause_s = _LOOK_S
        self.followed: dict[str, Followed] = {}
        self._directories, self._patterns, self._delay_ns = directories, wanted.patterns, delay_ns
        self._say, self._default = say, default
        self._said: set[str] = set()
        self._has_hosts = _has_hosts(directories)
        self._hosts: dict[str, tuple[HostClock, int]] = {}
        self._recordings = Recordings()
        self._identities: dict[tuple[str, str], int] = {}
        self._late_names: set[str] = set()
        self._unbuffered: dict[tuple[str, str], int] = {}
        self._reader = PartReader()
        # The times up to which there were packets, each with when it was seen.
        self._latest: deque[tuple[float, int]] = deque()
        # Files whose last packets are missing, as they are, with when that was seen.
        self._unfinished: dict[tuple[str, Signature | None], float] = {}
        self._began_s = time.monotonic()
        self._limit = time.time_ns() - delay_ns
        self._scan_at_s = 0.0
        self.merged = Merge(wanted.since, condition=wanted.condition)
        with closed_on_error(self):
            self._scan_if_due()
            self.merged.limit(self._limit)

    def close(self) -> None:
        """Let go of all files."""
        self.merged.close()
        self._reader.close()
        self._recordings.close()

    @property
    def has_shown_all(self) -> bool:
        """Whether what was there at the beginning was given out by the look before."""
        return time.monotonic() - self._began_s > self._delay_ns / NS

    @property
    def clocks(self) -> list[HostClock]:
        """Those of the machines, in the order in which they were found; empty: there is one, and it has no name."""
        return [clock for clock, _ in self._hosts.values()]

    @property
    def declarations(self) -> list[Declaration]:
        """What the parts have declared so far."""
        return [one for followed in self.followed.values() for one in followed.part.declarations]

    def look(self) -> None:
        """Have the merge give out what has arrived, as far as it has waited for so long."""
        began_s = time.monotonic()
        self._note(began_s, self._bounded(self.merged.look_at_files()))
        self._scan_if_due()
        for path, followed in self.followed.items():
            self._learn(path, followed)
        self.merged.limit(self._limit)
        self.pause_s = max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - began_s))

    def finish(self) -> None:
        """Have the merge give out all that is there, also the last packets of recorders that were killed."""
        self.merged.look_at_files()
        for _ in range(2):  # for what _in_order() leaves to the next scan
            self._scan()
        for path, followed in self.followed.items():
            self._learn(path, followed)
            for number in followed.numbers:
                self.merged.finish(number)
        self.merged.limit(EVER)

    def check(self) -> None:
        """Say which streams cannot be read."""
        for path, followed in self.followed.items():
            for number in followed.numbers:
                stats = self.merged.process_stats(number)
                if stats.error:
                    file = os.path.join(path, stream_name(stats.cpu))
                    self._say_once(file, f"{file} cannot be read: {os.strerror(-stats.error)}")

    def _note(self, now_s: float, latest: int) -> None:
        """Note up to which time there are packets now; what was there for long enough raises the limit."""
        if latest > (self._latest[-1][1] if self._latest else self._limit):
            self._latest.append((now_s, latest))
        while self._latest and self._latest[0][0] <= now_s - self._delay_ns / NS:
            self._limit = max(self._limit, self._latest.popleft()[1])

    def _bounded(self, latest: int) -> int:
        """Return up to which time there are packets, and not more than this machine's clock shows.

        If the clock of a machine, or of a recording, is ahead, its events would have those of all others shown at once.
        If it is more than the delay, they are put into the order as if it had shown what this machine's did when they
        arrived; otherwise they wait until this machine's clock shows their times.
        """
        now = time.time_ns()
        for name, recordings in self._groups().items() if latest > now + self._delay_ns else ():
            known = max(one.ahead for one in recordings)
            ahead = max(self.merged.latest(number) for one in recordings for number in one.numbers) - now
            if ahead > known + self._delay_ns:
                known = ahead
                self._say_once(
                    f"the clock of {name}",
                    f"{name}: its clock is {ahead / NS:.0f} s ahead of this machine's, so "
                    "its events are shown among those that others have written when they arrive",
                )
            for one in recordings:
                if one.ahead != known:
                    one.ahead = known
                    for number in one.numbers:
                        self.merged.set_ahead(number, known)
        return min(latest, now)

    def _groups(self) -> dict[str, list[FollowedRecording]]:
        """Return the recordings that have events of one clock, by the name of the machine, or of the recording."""
        groups = defaultdict(list)
        for one in self._recordings.all():
            host = next((followed.part.host for followed in one.parts.values()), "")
            if one.parts:
                groups[host or one.path].append(one)
        return groups

    # --- directories ---

    def _scan_if_due(self) -> None:
        began_s = time.monotonic()
        if began_s >= self._scan_at_s:
            self._scan()
            now_s = time.monotonic()
            self._scan_at_s = now_s + max(_SCAN_S, _LOOK_SHARE * (now_s - began_s))

    def _scan(self) -> None:
        """Find new recordings, parts and files, and what was removed."""
        new: list[_New] = []
        there: set[str] = set()
        unread: list[str] = []

        def fail(error: OSError) -> None:
            """Go on with other directories; what is in this one was not removed."""
            path = os.path.abspath(error.filename)
            # Others may remove a directory meanwhile, but not what the user has named.
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)) or path in tops:
                unread.append(os.path.join(path, ""))
                self._say_about(path, error)

        tops = set(map(os.path.abspath, self._directories))
        places = [place for directory in self._directories for place in recordings_in(directory, fail)]
        found = self._recordings.find(places)
        self._go_on_with_renamed(found)
        for place, recording in found:
            there.update(self._scan_recording(place, recording, new, fail))
        for path, followed in self.followed.items():
            is_unread = os.path.join(os.path.abspath(path), "").startswith(tuple(unread))
            followed.has_left = path not in there and followed.is_missing and not is_unread
            followed.is_missing = path not in there and not is_unread
        for one in sorted(new, key=lambda one: one.part.changed_ns, reverse=True):
            one.recording.clocks.setdefault(clock_of(one.part.origin), one.part.clock)
        for one in new:
            self._follow(one)
        self._leave_unfinished()
        self._forget_removed()

    def _go_on_with_renamed(self, found: Sequence[tuple[Place, FollowedRecording]]) -> None:
        """Go on with the files of recordings that were renamed; two may have exchanged their names."""
        moved: dict[str, Followed] = {}
        for place, recording in found:
            old, recording.path = recording.path, place.path
            for path, followed in list(recording.parts.items()) if old != place.path else ():
                del self.followed[path], recording.parts[path]
                new = os.path.join(place.path, os.path.relpath(path, old)) if path != old else place.path
                recording.parts[new] = moved[new] = followed
                self._move_part(followed, new)
        self.followed.update(moved)

    def _scan_recording(
        self, place: Place, recording: FollowedRecording, new: list[_New], fail: Callable[[OSError], None]
    ) -> Iterator[str]:
        """Yield the directories of its parts; those that are not followed yet are added to `new`."""
        for path, names in part_places(place.path, fail):
            yield path
            followed = self.followed.get(path)
            if followed:
                self._add_files(recording, followed, names)
                continue
            metadata = _signature_of(path)
            try:
                part = self._reader.part(path, beside_streams(names))
            except (RelayError, OSError) as error:
                self._say_about(path, error)
                continue
            if part:
                new.append(_New(place, recording, part, metadata, names))
        clocks = _signature(os.path.join(place.path, clock_pairs.FILE))
        if clocks != recording.signature:
            recording.signature = clocks
            try:
                recording.pairs = pairs_in(place.path)
            except (RelayError, OSError) as error:
                self._say_about(os.path.join(place.path, clock_pairs.FILE), error)
            self._map_clocks(recording)

    def _follow(self, new: _New) -> None:
        recording, clock = new.recording, new.recording.clocks[clock_of(new.part.origin)]
        part = replace(new.part, clock=clock, stretches=self._default, streams={})
        host = 0
        if self._has_hosts:
            host_clock, host = self._host(new)
            part = replace(part, host_clock=host_clock, stretches=tuple(stretches_of(part, recording.pairs)))
        identity = self._identities.setdefault((part.host, part.origin.line), len(self._identities))
        process = replace(process_of(part, identity, self._patterns), host=host)
        numbers = add_part(self.merged, part, process, losses_of(part.losses))
        followed = Followed(part, numbers, identity, new.metadata, len(part.declarations))
        self.followed[part.path] = recording.parts[part.path] = followed
        for number in numbers:
            self.merged.set_ahead(number, recording.ahead)
        self._add_files(recording, followed, new.names)
        self._add_unbuffered(followed, host)

    def _host(self, new: _New) -> tuple[HostClock, int]:
        """Return the machine of a part, and its number in the merge."""
        name = new.place.host or new.part.hostname
        if name not in self._hosts:
            clock = HostClock(name)
            clock.add(new.part, new.recording.pairs)
            self._hosts[name] = clock, add_host(self.merged, clock)
        return self._hosts[name]

    def _add_files(self, recording: FollowedRecording, followed: Followed, names: Sequence[str]) -> None:
        """Add files that have appeared since the part was found, and find those that were removed or compressed."""
        path = followed.part.path
        there = {plain_name(name): name for name in names if stream_of(plain_name(name))}
        for name in self._in_order(path, followed, [name for name in there if name not in followed.paths]):
            with suppress(FileNotFoundError):  # it was removed, or is being compressed: the next scan sees
                readable = self._readable(os.path.join(path, there[name]))
                followed.paths[name] = readable or os.path.join(path, there[name])
                if readable:
                    for number in followed.numbers:
                        self.merged.add_files(number, _cpu_of(name), [readable], follows=True)
        for name, known in list(followed.paths.items()):
            # A listing may miss a file that is being replaced.
            if there.get(name) != name and known == os.path.join(path, name) and not os.path.exists(known):
                self._replace_file(recording, followed, name)

    def _in_order(self, path: str, followed: Followed, new: Sequence[str]) -> Iterator[str]:
        """Yield those of the new files behind which none of an earlier number may appear; the caller adds them.

        A receiver may get the first packet of cpu0_1 before that of cpu0. So a file that continues one which is not
        there is added when the next scan finds it, too.
        """
        for (cpu, number), name in sorted((stream_of(name) or (0, 0), name) for name in new):
            before, full = stream_name(cpu, number - 1), os.path.join(path, name)
            if not number or before in followed.paths or full in self._late_names:
                yield name
            else:
                self._late_names.add(full)

    def _replace_file(self, recording: FollowedRecording, followed: Followed, name: str) -> None:
        """Have the merge read the rest of a file that is gone from the compressed one, or do without it."""
        compressed = followed.paths[name] + COMPRESSED
        readable = found = None
        with suppress(FileNotFoundError):
            os.stat(compressed)
            readable = self._readable(compressed) if self._needing(followed, name) else None
            found = readable or compressed
        if not recording.is_there:
            return  # it was renamed meanwhile, so the next scan finds the file where it is now
        self._move_file(followed, name, readable)
        del followed.paths[name]
        if found:
            followed.paths[name] = found

    def _move_part(self, followed: Followed, path: str) -> None:
        """Have the merge read the rest of the files of a part that was renamed."""
        for name, known in followed.paths.items():
            file = os.path.basename(known)
            if known == os.path.join(followed.part.path, file):  # the others are copies
                self._move_file(followed, name, os.path.join(path, file))
                followed.paths[name] = os.path.join(path, file)
        followed.part = replace(followed.part, path=path)

    def _move_file(self, followed: Followed, name: str, to: str | None) -> None:
        """Have the merge read the rest of a file from another path; None: do without it."""
        for number in self._needing(followed, name):
            self.merged.move_file(number, _cpu_of(name), followed.paths[name], to)

    def _needing(self, followed: Followed, name: str) -> list[int]:
        """Return those of a part's numbers in the merge that have not read all of a file."""
        path, cpu = followed.paths[name], _cpu_of(name)
        return [number for number in followed.numbers if self.merged.needs_file(number, cpu, path)]

    def _leave_unfinished(self) -> None:
        """Go on behind files that have waited for their last packets for so long."""
        before, self._unfinished = self._unfinished, {}
        now_s = time.monotonic()
        for followed in self.followed.values():
            streams = (stream_of(name) or (0, 0) for name in followed.paths)
            continued = {cpu for cpu, number in streams if number}
            for number, cpu in product(followed.numbers, continued):
                if path := self.merged.unfinished(number, cpu):
                    key = path, _signature(path)
                    self._unfinished[key] = before.get(key, now_s)
                    if now_s - self._unfinished[key] >= REST_S:
                        self.merged.move_file(number, cpu, path, None)
                        self._say_once(path, f"{path}: its last packets have not arrived; it is shown without them")

    def _readable(self, path: str) -> str | None:
        """Return a file's path, or that of a copy which is not compressed; None: it cannot be read, which is said."""
        try:
            return self._reader.plain(path)
        except FileNotFoundError:
            raise
        except (RelayError, OSError) as error:
            self._say_about(path, error)
            return None

    def _forget_removed(self) -> None:
        """Forget parts whose directories were removed, when all that was mapped of them was given out."""
        for path, followed in list(self.followed.items()):
            if not followed.has_left:
                continue
            for number in followed.numbers:
                self.merged.finish(number)
            if not any(self.merged.process_stats(number).n_open for number in followed.numbers):
                for number in followed.numbers:
                    self.merged.remove(number)
                del self.followed[path]
                for recording in self._recordings.all():
                    recording.parts.pop(path, None)

    # --- what was appended ---

    def _map_clocks(self, recording: FollowedRecording) -> None:
        """Map times by later notes of the clocks.

        Only what is read from now on is mapped anew: after the clock was set, also what was written shortly before.
        """
        for followed in recording.parts.values() if self._has_hosts else ():
            part = followed.part
            last = stretches_of(part, recording.pairs)[-1]
            self.merged.map_clock(followed.numbers[-1], Stretch(last.knots, part.stretches[-1].first))

    def _learn(self, path: str, followed: Followed) -> None:
        """Add what the metadata of a part say by now."""
        metadata = _signature_of(path)
        if metadata is None or metadata == followed.metadata:
            return
        is_plain = os.path.exists(os.path.join(path, METADATA))
        try:
            part = self._reader.part(path, [METADATA if is_plain else METADATA + COMPRESSED])
        except (RelayError, OSError) as error:
            self._say_about(os.path.join(path, METADATA), error)
            return
        # A receiver that was killed may get earlier metadata again before the latest.
        if part is None or len(part.declarations) < followed.n_declared:
            return
        new, known = part.declarations[followed.n_declared :], followed.until_ns
        losses = {
            buffer: [one for one in intervals if one.since_ns >= known.get(buffer, 0)]
            for buffer, intervals in part.losses.items()
        }
        for number in followed.numbers:
            self.merged.declare(number, kinds_of(new, self._patterns))
            self.merged.explain(number, losses_of(losses))
        followed.metadata, followed.n_declared = metadata, len(part.declarations)
        followed.part = replace(followed.part, declarations=part.declarations, losses=part.losses)
        host = followed.part.host
        self._add_unbuffered(followed, self._hosts[host][1] if host else 0)

    def _add_unbuffered(self, followed: Followed, host: int) -> None:
        """Add what programs have lost because they got no buffers, and what no part has told before."""
        part = followed.part
        told = self._unbuffered.get((part.host, part.origin.trace), 0)
        new = [one for one in part.losses.get(NO_BUFFER, []) if one.until_ns > told]
        if not new:
            return
        self._unbuffered[part.host, part.origin.trace] = max(one.until_ns for one in new)
        identity = self._identities.setdefault(
            (part.host, f"{part.origin.trace} without buffers"), len(self._identities)
        )
        process = MergedProcess(part.origin.trace, 0, identity, (), (NS, 0, 0), (), host=host)
        self.merged.add_lost(self.merged.add_process(process), unbuffered_losses(part.origin.real, new))

    def _say_about(self, path: str, error: RelayError | OSError) -> None:
        """Say that something is not shown, unless it was removed meanwhile."""
        if not isinstance(error, FileNotFoundError):
            why = f"{path}: {reason(error)}" if isinstance(error, OSError) else error
            self._say_once(path, f"{why}; it is not shown")

    def _say_once(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._say(line)


def _cpu_of(name: str) -> int:
    """Return the CPU of a stream's file, as stream_of() does."""
    stream = stream_of(name)
    assert stream is not None
    return stream[0]


def _has_hosts(directories: Sequence[str]) -> bool:
    """Return whether events are shown with the names of their machines, as Hosts does."""
    try:
        with closing(Hosts(directories, has_streams=False)) as hosts:
            return bool(hosts.clocks)
    except NoTraceError:
        if not any(map(is_received, directories)):
            raise
        return True
