"""Snapshots that the mount keeps: what the buffers of a trace held at a moment, as a directory that nobody changes.

    MNT/.traces/TRACE/snapshots/NAME/    mkdir(2) takes a snapshot, rmdir(2) removes it
        PROCESS-PID/metadata cpuN ...        as `relayctl snapshot` writes them
    STORE/.snapshots/ID/NAME/            the same in the store; ID is the trace's, which no other has after it
    STORE/.snapshots/ID/.new-NAME        a snapshot that is being taken

They are copies: programs go on, and nothing is consumed. Their memory is the server's user's, and snapshot_memory= of
the trace bounds it. They are there until somebody removes them, or the trace.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.fs.card_files import CardDirectory
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.control import Word, format_size
from relayfs_fuse.fs.commands.jobs import LongEffect
from relayfs_fuse.fs.nodes import Directory
from relayfs_fuse.fs.protection import delete
from relayfs_fuse.fs.traces.cards import discard
from relayfs_fuse.native.tables import PERMS
from relayfs_fuse.reading.snapshot import Snapshot
from relayfs_fuse.reading.source import Source
from relayfs_fuse.tracefiles.snapshots import PAGE_BYTES, SNAPSHOTS_NAME, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from relayfs_fuse.fs.commands.trace_control import TraceCommand
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Trace

    Work = Generator[Callable[[], Any], Any, None]

log = logging.getLogger(__name__)

_NEW = ".new-"
# How many bytes are claimed in the ledger at once for a snapshot that is being taken.
_STEP_BYTES = 1 << 20
# How many of the messages about one snapshot error_log gets.
_SAID_MAX = 8


class SnapshotsDirectory(Directory):
    """The directory `snapshots` of a trace, in which mkdir(2) takes a snapshot.

    trace, number: its name and id
    """

    mode = 0o755

    def __init__(self, trace: str, number: int) -> None:
        super().__init__("snapshots")
        self.identity = number
        self._trace = trace

    def making(self, name: str) -> str:
        """Return the command for mkdir(2); CommandError: the name is not allowed."""
        trace_control.check_snapshot_name(Word(name, 0))
        return f"{trace_control.VERB} snapshot {self._trace} {name}"


class _Room:
    """The memory that one snapshot takes: before it does, this checks that the trace and the store have it.

    Called with the bytes that it is going to take; CommandError: ENOSPC.
    """

    def __init__(self, trace: Trace, store: Store, claims: ExitStack) -> None:
        self._trace = trace
        self._store = store
        self._claims = claims
        there = kept(store.directory, trace.id)
        self._n_others, self._others = len(there), sum(one.n_bytes for one in there)
        self._own = self._claimed = 0

    def __call__(self, n_bytes: int) -> None:
        self._own += n_bytes
        most = trace_control.snapshot_memory(self._trace)
        if most and self._others + self._own > most:
            raise CommandError(
                errno.ENOSPC,
                f"it takes more than {max(0, most - self._others)} bytes, which are left of "
                f"snapshot_memory={format_size(most)}: {self._n_others} snapshots of {self._trace.name} have "
                f"{self._others}; rmdir removes one, `trace set` changes the limit",
            )
        while self._claimed < self._own:
            self._store.ensure_room(_STEP_BYTES, os.geteuid())
            self._claims.enter_context(self._store.ledger.claim(_STEP_BYTES, os.geteuid()))
            self._claimed += _STEP_BYTES


class Snapshots:
    """The snapshots of all traces.

    store, tree, errors: the store, the tree that shows them, and error_log
    """

    def __init__(self, store: Store, tree: Tree, errors: ErrorLog) -> None:
        self._store = store
        self._tree = tree
        self._errors = errors
        self._lock = threading.Lock()
        self._above: dict[int, SnapshotsDirectory] = {}  # of the traces, by their ids

    def show_all(self, trace: Trace, instance: Directory) -> None:
        """Show the directory of a trace's snapshots, with those that are there, and delete what was half made.

        instance: the directory of the trace in .traces
        """
        above = self._above[trace.id] = SnapshotsDirectory(trace.name, trace.id)
        self._tree.attach(instance, above)
        directory = self._directory(trace.id)
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(directory)):
                if name.startswith("."):
                    delete(os.path.join(directory, name))
                else:
                    self._show(above, os.path.join(directory, name))

    def remove_others(self, numbers: Collection[int]) -> None:
        """Delete the snapshots of traces that a dead server has removed; may block.

        numbers: the ids of the traces that there are
        """
        with suppress(FileNotFoundError):
            for name in os.listdir(self._store.locate(SNAPSHOTS_NAME)):
                if name not in map(str, numbers):
                    delete(self._store.locate(f"{SNAPSHOTS_NAME}/{name}"))

    def remove_of(self, number: int) -> None:
        """Delete the snapshots of a removed trace; may block."""
        self._above.pop(number, None)
        with self._lock, suppress(FileNotFoundError):
            discard(self._store, self._directory(number))

    def take(self, command: TraceCommand, trace: Trace, was_begun: bool) -> Work:
        """Take a snapshot; commands/channel.py explains the jobs. CommandError.

        was_begun: whether a server has begun it that died, so that it may be there
        """
        name, above = command.snapshot, self._above[trace.id]
        if name in above.children:
            if was_begun:
                return
            raise command.refuse(errno.EEXIST, f"snapshot {name} of {trace.name} exists; rmdir removes it", "snapshot")
        said: list[str] = []
        try:
            path = yield LongEffect(partial(self._take, trace, command, said))
        except CommandError as error:
            raise command.refuse(error.errno, error.message, "snapshot") from error
        except OSError as error:
            message = f"it could not be written: {error.strerror}"
            raise command.refuse(error.errno or errno.EIO, message, "snapshot") from error
        if above.removed:
            raise command.refuse(errno.ENOENT, f"trace {trace.name} was removed meanwhile")
        self._show(above, path)
        if said:
            more = f"; and {len(said) - _SAID_MAX} more" if len(said) > _SAID_MAX else ""
            text = f"it is incomplete: {'; '.join(said[:_SAID_MAX])}{more}"
            log.warning("%s", self._errors.notice(command.line, text, command.columns["snapshot"]))

    def _directory(self, number: int) -> str:
        return self._store.locate(f"{SNAPSHOTS_NAME}/{number}")

    def _show(self, above: Directory, path: str) -> None:
        node = CardDirectory(os.path.basename(path), path, partial(discard, self._store, path))
        node.identity = self._store.identify(path)
        self._tree.attach(above, node)
        try:
            node.fill(self._tree)
        except OSError as error:
            log.info("snapshot %s: %s", path, error)
            self._tree.detach(node)

    def _take(self, trace: Trace, command: TraceCommand, said: list[str]) -> str:
        """Write a snapshot to the store and return its path; in a worker thread. CommandError, OSError.

        said: receives messages about what is missing in it
        """
        directory, name = self._directory(trace.id), command.snapshot
        path, hidden = os.path.join(directory, name), os.path.join(directory, f"{_NEW}{name}")
        with self._lock, ExitStack() as claims:
            if os.path.lexists(path):
                raise CommandError(errno.EEXIST, f"snapshot {name} of {trace.name} exists")
            for above in (os.path.dirname(directory), directory):
                with suppress(FileExistsError):
                    os.mkdir(above, PERMS["CARDS"])
            try:
                room = _Room(trace, self._store, claims)
                self._write(trace, hidden, command.window, said, room)
                os.rename(hidden, path)
            except BaseException:
                with suppress(OSError):
                    delete(hidden)
                raise
            self._store.charge(path)
        return path

    def _write(self, trace: Trace, hidden: str, window: tuple[int, int] | None, said: list[str], room: _Room) -> None:
        room(PAGE_BYTES)
        os.mkdir(hidden, PERMS["CARDS"])
        try:
            with closing(Source(trace.name, self._store.directory, trace.id)) as source:
                snapshot = Snapshot(source, hidden, said.append, "others", window)
                snapshot.take(lambda: None, room)
        except CommandError:
            raise
        except RelayError as error:
            raise CommandError(errno.ENOENT, str(error)) from error
        missing = snapshot.summary.lost_without_buffers
        missing += sum(snapshot.summary.lost_without_buffers_by_user.values())
        if missing:
            said.append(f"{missing} events of programs that got no buffers are not in it")
        for at, _, files in os.walk(hidden):
            os.chmod(at, PERMS["CARDS"])
            for file in files:
                os.chmod(os.path.join(at, file), PERMS["CARD"])
