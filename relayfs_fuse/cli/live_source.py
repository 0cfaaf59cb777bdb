"""The trace, channel or counters that `relayctl forward` sends: a process records them to the spool."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, cast

from relayfs_fuse import native
from relayfs_fuse.cli.channel import find_channel
from relayfs_fuse.cli.child import die_with_parent
from relayfs_fuse.cli.opened import absolute
from relayfs_fuse.cli.record_counters import COUNTERS
from relayfs_fuse.errors import RelayError
from relayfs_fuse.explain import mounts_of
from relayfs_fuse.native.tables import RING_OPTIONS, TYPES
from relayfs_fuse.native.trace import boot_id
from relayfs_fuse.reading.made import made_as
from relayfs_fuse.reading.source import Source, find_root, find_store
from relayfs_fuse.record.atomic import write_atomically
from relayfs_fuse.record.full import touched
from relayfs_fuse.record.rings import form_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.cli.channel import Channel
    from relayfs_fuse.native.ring import RingStats

# Isolated from the user's environment and working directory, from which Python would import.
_MAIN = "import sys; sys.path.append(sys.argv.pop(1)); from relayfs_fuse.cli.relayctl import main; main()"
# Of the spool, so much is in directories that are not complete, at least until the spool is full.
_SHARE = 8
_END_S = 30.0
_RING = TYPES[1]
_NOTED = re.compile(r"lost=(\d+) before=(-?\d+)")


class LiveSource:
    """A trace, a channel, or the counters.

    what: its name or path, or MNT/PATH
    mount, store: as for find_store()
    sampling: of counters, options of their recorder
    """

    def __init__(self, what: str, mount: str | None, store: str | None) -> None:
        self.sampling: Sequence[str] = ()
        self._what, self._mount, self._store = what, mount, store
        if mount is None and store is None and "/" in what:
            for place, path in mounts_of(what):
                self._what, self._mount = path, place
            if os.path.isabs(what) and self._mount is None:
                root, self._what = absolute(what)
                self._store = root.place

    @property
    def name(self) -> str:
        """Its name, as that of a directory."""
        return self._what.strip("/").replace("/", "-")

    @property
    def place(self) -> str:
        """The mount or store in which it is. RelayError: there is none."""
        return self._store or find_root(self._mount).place

    @property
    def is_counters(self) -> bool:
        """Whether these are the counters."""
        return self._what == COUNTERS

    def channel(self) -> Channel | None:
        """Return the channel; None: it is a trace, or counters. RelayError: there is nothing."""
        return None if self.is_counters else find_channel(self._what, self._mount, self._store)

    def origin(self) -> str:
        """Return a text that no other source has, now or later. RelayError: there is no such trace or channel."""
        if self.is_counters:
            return f"counters={find_store(self._mount, self._store)} boot={boot_id()}"
        if channel := self.channel():
            return f"channel={channel.path} id={made_as(channel.directory)} boot={boot_id()}"
        with closing(Source(self._what, find_store(self._mount, self._store))) as source:
            return source.identity

    def is_there(self, origin: str) -> bool:
        """Return whether there is a source still of which origin() has returned this."""
        try:
            return self.origin() == origin
        except (RelayError, OSError):
            return False

    def record(self, output: str, spool: str, most: int, *, follows: bool) -> Recorder:
        """Start to record it.

        output: a directory of the spool
        most: bytes that the spool may take
        follows: until it is removed; otherwise what it has now
        """
        # The forwarder replaces small files there, too.
        words = ["record", self._what, "-o", output, "--max", str(max(1, most - touched(0))), "--max-of", spool]
        if self.is_counters:
            words += self.sampling
        elif self.channel() is None:
            words += ["--rotate-size", str(max(1, most // _SHARE))]
        if not follows:
            words += ["--duration", "0"] + ["--wait"] * (not self.is_counters)
        for option, value in (("--mount", self._mount), ("--store", self._store)):
            words += [option, value] if value is not None else []
        return Recorder(words)


class Recorder:
    """The process that records; the kernel kills it if this one is killed, and another one goes on where it was."""

    def __init__(self, words: Sequence[str]) -> None:
        root = os.path.dirname(os.path.dirname(os.path.abspath(native.__path__[0])))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _MAIN, root, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # this process has one thread
        )  # fmt: skip

    def has_ended(self) -> bool:
        """Return whether it has."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Have it write what it has read, and end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                # It waits for a disk or a network; what it has not consumed comes again.
                self._process.kill()
                self._process.wait()

    def check(self, name: str) -> None:
        """Raise RelayError if it has ended with an error, after it has said which one."""
        if self._process.returncode:
            raise RelayError(f"the recorder of {name} has ended with status {self._process.returncode}")


class Losses:
    """How many records a channel has lost since a recording of it was begun, in a file of the recording.

    RelayError: its buffers cannot be used
    """

    def __init__(self, channel: Channel, path: str) -> None:
        from relayfs_fuse.fs.kinds.channel import map_files  # noqa: PLC0415  # traces need none of this

        self._path = path
        self._kind, self._memories = map_files(channel.directory, channel.n)
        # What the channel had counted when the recording was begun, and at the last look.
        self._before = self._seen = self._count()
        # Also none is noted: what is lost while nobody forwards counts from there.
        self._noted = ""
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            if found := _NOTED.match(file.read()):
                lost, self._before = map(int, found.groups())
                self._seen = lost + self._before

    @property
    def framing(self) -> str:
        """How the file of a ring tells where records end, see forwarding/framing.py; "": it is of relay buffers."""
        if self._kind.name != _RING:
            return ""
        stats = cast("RingStats", self._memories[0].stats())
        return form_of(stats)[1] or RING_OPTIONS["framing"].format(stats.framing)

    @property
    def kept_bytes(self) -> int:
        """How much of a file its recorder compares with the channel when it goes on: a sub-buffer."""
        return int(getattr(self._memories[0].stats(), "subbuf_size", 0))

    def _count(self) -> int:
        from relayfs_fuse.tracefiles.losses import counts_of  # noqa: PLC0415  # as above

        found = (counts_of(self._kind.name, memory.stats()) for memory in self._memories)
        return sum(records for causes in found for records, _ in causes.values())

    def note(self) -> None:
        """Write the number, if it has changed. While there is no room, it waits."""
        with suppress(OSError):
            now = self._count()
            if now < self._seen:
                self._before -= self._seen  # the channel was reset, and counts from 0 on
            self._seen = now
            text = f"lost={now - self._before} before={self._before}\n"
            if text != self._noted:
                write_atomically(self._path, text.encode())
                self._noted = text

    def close(self) -> None:
        """Write the number for the last time."""
        self.note()
        for memory in self._memories:
            memory.close()
