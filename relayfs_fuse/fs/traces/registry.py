"""The registry of a mount's traces: it carries out `trace` commands, and shows the directories of traced processes.

    STORE/.traces        the control file, which every traced program maps: which traces there are, and what they record
    STORE/TRACE/         a trace; the directory alone, without an entry in the control file, is none
    STORE/TRACE/.new-*   a directory that a process is making; .removed-*: one that is being removed
    STORE/TRACE/.given-up    which directories programs removed because memory= was used up (native/src/trace/memory.c)
    STORE/TRACE/.recorder    the recorder's lock (tracefiles/recorder_lock.py)
    STORE/TRACE/PROCESS/     a traced process (fs/traces/process.py), or several, which .processes in it lists

The directories in a trace are made by the processes themselves, or by join() for those that may not write to the store.
They are removed when the process is dead and all that it wrote is consumed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import trace_control
from relayfs_fuse.fs.commands.jobs import Effect, LongJob
from relayfs_fuse.fs.early import take
from relayfs_fuse.fs.kinds.base import Backing
from relayfs_fuse.fs.nodes import JoinFile, MappedFile, Node, TextFile, TraceDirectory
from relayfs_fuse.fs.traces import jobs
from relayfs_fuse.fs.traces.declared import notice_nothing_taken
from relayfs_fuse.fs.traces.instances import InstancesDirectory, show_instance
from relayfs_fuse.fs.traces.lost import Losses, LostFile
from relayfs_fuse.fs.traces.merged import directory_of
from relayfs_fuse.fs.traces.plan import changed, default_memory, plan
from relayfs_fuse.fs.traces.process import TraceProcess
from relayfs_fuse.fs.traces.sessions import Session, Sessions
from relayfs_fuse.fs.traces.snapshots import Snapshots
from relayfs_fuse.inotify import MOVED_FROM, MOVED_TO, ONLY_DIRECTORIES, QUEUE_OVERFLOW, Inotify
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.store import TRACES_NAME
from relayfs_fuse.native.tables import CLOCKS, PERMS
from relayfs_fuse.native.trace import Clocks, Process, Trace
from relayfs_fuse.tracefiles import ctf, recorder_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from relayfs_fuse.fs.commands.trace_control import TraceCommand
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.deaths import Deaths
    from relayfs_fuse.fs.traces.process import TraceChannel
    from relayfs_fuse.fs.tree import Tree

    Work = Generator[Callable[[], Any], Any, None]

log = logging.getLogger(__name__)

# How long the control file says that a trace was removed, for programs to unmap its buffers at their next event.
LINGER_S = 5.0
# The line by which a copy of the library identifies itself in `join`: see native/src/trace/join.c.
_IMAGE = re.compile("image [0-9a-f]{1,16}")
# How often a trace is flushed again after `trace stop`, for processes that were in the middle of an event.
N_FLUSHES = 3


class Traces:
    """The traces of a store; OSError if the control file cannot be used.

    store, tree, errors: the store, the tree that shows the traces, and error_log
    unregister: is called with a channel that is about to be removed
    losses: events that programs have lost because they got no buffers
    deaths: is told of each directory that is shown or hidden; None: no crash cards are made
    """

    deaths: Deaths | None = None

    def __init__(self, store: Store, tree: Tree, errors: ErrorLog, unregister: Callable[[StoredChannel], None]) -> None:
        self._store = store
        self._tree = tree
        self._errors = errors
        self._unregister = unregister
        self._control = native_trace.Traces(store.directory, serves=True)
        # Only to read: mappings of it cannot be made writable.
        self._descriptor = os.open(store.locate(TRACES_NAME), os.O_RDONLY | os.O_CLOEXEC)
        self._boot = native_trace.boot_id()
        self._slots: dict[str, int] = {}
        self._processes: dict[str, dict[str, TraceProcess]] = {}
        self._to_flush: dict[str, int] = {}
        self._settled_at: float | None = time.monotonic() + LINGER_S
        self.sessions = Sessions()
        # Messages for error_log about directories whose last events are lost: the trace's name, and the text.
        self._given_up: deque[tuple[str, str]] = deque()
        self.losses = Losses(store.directory, self._control, errors)
        self._looks = jobs.Looks()
        self.inotify = Inotify()
        self._watches: dict[int, str] = {}
        self._directory = InstancesDirectory(TRACES_NAME)
        self._snapshots = Snapshots(store, tree, errors)
        self._attach_files()

    def close(self) -> None:
        """Close all files; the traces stay as they are."""
        self.sessions.close_all()
        self.inotify.close()
        os.close(self._descriptor)
        self.losses.close()
        self._control.close()
        if self.deaths is not None:
            self.deaths.close()

    def _attach_files(self) -> None:
        directory = self._directory
        self._tree.attach(self._tree.root, directory)
        length = os.fstat(self._descriptor).st_size
        text = partial(os.pread, self._descriptor, length, 0)
        backing = Backing(self._descriptor, self._store.locate(TRACES_NAME))
        self._tree.attach(directory, MappedFile("control", text, backing, lambda: length))
        self._tree.attach(directory, JoinFile("join"))
        self._tree.attach(directory, LostFile("lost", self.losses.file))
        self._tree.attach(directory, TextFile("losses", self.losses.text))

    # ---------------------------------------------------------------- traces

    @property
    def names(self) -> set[str]:
        """The names of all traces."""
        return set(self._slots)

    def find(self, name: str) -> Trace | None:
        """Return what the control file says of a trace; None: there is no such trace."""
        slot = self._slots.get(name)
        return None if slot is None else self._control.get(slot)

    def lines(self) -> list[str]:
        """Return the commands that would make all traces again."""
        traces = [trace for name in sorted(self._slots) if (trace := self.find(name)) is not None]
        return [
            line for trace in traces for line in trace_control.format_trace(trace, default_memory(trace, self._store))
        ]

    def load(self) -> None:
        """Take over the traces of the server before, without showing them; remove entries that have no directory."""
        there = self._control.all()
        for slot in range(native_trace.N_TRACES):
            trace = there.get(slot)
            if trace is None or not os.path.isdir(self._store.locate(trace.name)) or trace.name in self._slots:
                self._control.set(slot, None)
                continue
            if trace.boot != self._boot and trace.is_started:
                self._control.set(slot, replace(trace, is_started=False))
            self._slots[trace.name] = slot
            self._show_instance(trace)
            take(self._store.directory, trace)
            for directory in self._present(trace.name):
                self.sessions.inherit(os.path.join(self._store.locate(trace.name), directory))
        self._snapshots.remove_others([trace.id for name in self._slots if (trace := self.find(name))])

    def _show_instance(self, trace: Trace) -> None:
        instance = show_instance(trace.name, trace.id, self.find, self._tree, self._directory)
        self._snapshots.show_all(trace, instance)

    def show_all(self) -> None:
        """Show all traces in the tree, and what is in them."""
        for name in sorted(self._slots):
            self._add(name)
            self.show_trace(name)
            for directory in self.changes(name)[0]:
                self.show(name, directory)

    def _add(self, name: str) -> None:
        """Watch the directory of a trace by inotify(7)."""
        self._processes[name] = {}
        watch = self.inotify.add(self._store.locate(name), MOVED_TO | MOVED_FROM | ONLY_DIRECTORIES)
        self._watches[watch] = name

    def hidden(self) -> set[str]:
        """Return the names of traces that are not shown yet."""
        return {name for name in self._slots if self._tree.find(name) is None}

    def show_trace(self, name: str) -> Node | None:
        """Show an empty directory for a trace; None: it is shown already, or the trace was removed."""
        trace = self.find(name)
        return directory_of(trace, self._store, self._tree) if trace and name in self.hidden() else None

    # ---------------------------------------------------------------- directories

    def touched(self) -> set[str]:
        """Return the names of traces in whose directories inotify(7) has seen names added or removed."""
        events = self.inotify.events()
        if any(mask & QUEUE_OVERFLOW for _, mask, _ in events):
            return self.names
        return {name for watch, _, _ in events if (name := self._watches.get(watch)) is not None}

    def changes(self, name: str) -> tuple[list[str], list[str]]:
        """Compare a trace's directory with the tree; return the names to show, and the names to hide."""
        present = set(self._present(name)) if name in self._slots else set()
        shown = self._processes.get(name, {}).keys()
        return sorted(present - shown), sorted(shown - present)

    def _present(self, name: str) -> Iterable[str]:
        try:
            with os.scandir(self._store.locate(name)) as entries:
                yield from (
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                )
        except OSError as error:
            log.info("trace %s: %s", name, error)

    def show(self, name: str, directory: str) -> Node | None:
        """Show a process's directory; None: it is shown already, or the trace was removed."""
        parent = self._tree.find(name)
        if not isinstance(parent, TraceDirectory) or directory in self._processes.get(name, {}):
            return None
        trace = self.find(name)
        process = TraceProcess(
            name,
            directory,
            os.path.join(self._store.locate(name), directory),
            lambda events: ctf.metadata(events, self._clocks(name, events), self.losses.of(self.find(name))),
            trace.flush_interval_ms if trace else 0,
        )
        self._processes[name][directory] = process
        if self.deaths is not None:
            self.deaths.note(process)
        return process.show(self._tree, parent, self._tree.stats_directory(name))

    def being_read(self) -> list[TraceChannel]:
        """Return the buffers of all processes that somebody has open for reading."""
        processes = (process for of_trace in self._processes.values() for process in of_trace.values())
        return [process.channel for process in processes if process.channel and process.channel.is_being_read]

    def hide(self, name: str, directory: str) -> None:
        """Remove a process's directory from the tree."""
        process = self._processes.get(name, {}).pop(directory, None)
        if process is not None:
            if self.deaths is not None:
                self.deaths.forget(process)
            process.hide(self._tree, self._unregister)
            self._tree.prune_stats(name)

    def forget(self, name: str) -> None:
        """Remove the directory of a removed trace from the tree, once all directories in it are hidden."""
        node = self._tree.find(name)
        if name in self._slots or not isinstance(node, TraceDirectory):
            return
        self._processes.pop(name, None)
        self._tree.detach(node)

    def removed(self) -> set[str]:
        """Return the names of removed traces that are still shown."""
        return self._processes.keys() - self._slots.keys()

    def _clocks(self, name: str, events: bytes) -> Clocks:
        """Return the clocks now; of a trace from before the last boot, as note_clocks() noted them last."""
        trace = self.find(name)
        if trace is not None and trace.boot != self._boot:
            return trace.latest
        return native_trace.read_clocks(CLOCKS[ctf.Origin.of(events).clock].number)

    def join(self, line: str, opener: Opener) -> tuple[str, Callable[[], Session]]:
        """Parse what a process wrote to `join`: "TRACE PROGRAM", and perhaps a line "image HEX"; CommandError.

        Returns the trace's name, and the function that makes the session, which may block.

        opener: the process; pid 0: it is not visible to the server
        """
        request, _, image = line.removesuffix("\n").partition("\n")
        name, _, program = request.partition(" ")
        trace = self.find(name)
        if trace is None or not trace.is_started:
            raise CommandError(errno.ENOENT, f"no trace {name} is started")
        if not opener.pid:
            raise CommandError(errno.ESRCH, "the process cannot be seen from the server's PID namespace")
        if os.geteuid() not in (0, opener.uid):
            raise CommandError(errno.EPERM, "this server makes files for its own user only")
        if image and not _IMAGE.fullmatch(image):
            raise CommandError(errno.EINVAL, f"{image[:40]!r}: the second line may be `image` and 1 to 16 hex digits")
        process = Process(program, opener.pid, opener.vpid, opener.uid, opener.gid)
        own = [known for known in self._processes[name].values() if f"-{opener.pid}" in known.name]
        return name, lambda: self._take_part(trace, process, own, image)

    def _take_part(self, trace: Trace, process: Process, known: Iterable[TraceProcess], image: str) -> Session:
        own = [place for place in known if not self.sessions.has_other_image(place.directory, process.pid, image)]
        # A process that asks again gets the same directory; otherwise it could fill the store.
        place = next((place.name for place in own if place.belongs_to(process)), None)
        place = place or self._make_place(trace, process)
        directory = os.path.join(self._store.locate(trace.name), place)
        return self.sessions.open(directory, process.uid, process.pid, image)

    def _make_place(self, trace: Trace, process: Process) -> str:
        """Make a directory for a process, and charge its memory to the process's user; return the directory's name."""
        need = native.buf_file_bytes(trace.subbuf_size, trace.n_subbufs) * native.n_possible_cpus()
        self._store.ensure_room(need, process.uid)
        with self._store.ledger.claim(need, process.uid):
            name = native_trace.trace_make(self._store.directory, trace, process)[0]
            self._store.charge(os.path.join(self._store.locate(trace.name), name))
        return name

    def allocate(self, session: Session, request: str) -> Callable[[], None]:
        """Parse "allocate CPU"; return the function that allocates the memory of that buffer, which may block.

        The memory was charged when the process joined, as a process can also allocate it by storing into its mapping.
        """
        number = request.removeprefix("allocate ").rstrip("\n")
        n_cpus = native.n_possible_cpus()
        if not (number.isascii() and number.isdigit() and len(number) <= len(str(n_cpus)) and int(number) < n_cpus):
            raise CommandError(errno.EINVAL, f"allocate: {number[:20]!r} is no CPU: 0 .. {n_cpus - 1}")
        trace = self.find(os.path.basename(os.path.dirname(session.directory)))
        if trace is None:
            raise CommandError(errno.ENOENT, "the trace was removed")
        return partial(session.allocate, int(number), trace)

    # ---------------------------------------------------------------- periodic work

    def note_clocks(self) -> None:
        """Write the current clocks to the control file, for programs that read the traces after a reboot."""
        for name, slot in self._slots.items():
            trace = self.find(name)
            if trace is not None and trace.boot == self._boot:
                self._control.set(slot, replace(trace, latest=native_trace.read_clocks(trace.clock)))

    def settle(self) -> None:
        """Let the control file forget traces that were removed LINGER_S ago."""
        if self._settled_at is not None and time.monotonic() >= self._settled_at:
            self._settled_at = None
            self._control.settle()

    def note_log(self) -> None:
        """Write to the control file which channel relay_log() writes to: the inode of its file, 31 bits; 0: none."""
        channel = self._tree.channels.get("log")
        if channel is None or not channel.kind.takes_log:
            self._control.set_log(0)
        else:
            self._control.set_log(channel.buffers[0].inode & 0x7FFFFFFF or 1)

    def tidy(self) -> Callable[[], None]:
        """Write the findings of the last job to error_log; return the next job, which flushes and removes buffers."""
        traces = {name: trace for name in self._slots if (trace := self.find(name)) is not None}
        processes = [(process, trace) for name, trace in traces.items() for process in self._processes[name].values()]
        to_flush = [process for name in self._to_flush for process in self._processes.get(name, {}).values()]
        self._to_flush = {name: left - 1 for name, left in self._to_flush.items() if left > 1}
        directories = [self._store.locate(name) for name in traces]
        store = self._store.directory
        while self._given_up:
            trace_name, message = self._given_up.popleft()
            log.warning("%s", self._errors.notice(f"trace create {trace_name}", message))
        for trace in traces.values():
            self.losses.look(trace)
            self.losses.report(trace)

        def job() -> None:
            jobs.attempt(self.sessions.sweep)
            jobs.attempt(self.losses.count)
            for trace in traces.values():
                jobs.attempt(partial(take, store, trace))
            jobs.attempt(lambda: jobs.flush(to_flush))
            jobs.attempt(lambda: self._looks([process for process, _ in processes]))
            dead = [(process, trace) for process, trace in processes if not process.is_alive()]
            jobs.attempt(lambda: jobs.remove_consumed(dead))
            self._given_up.extend((trace.name, message) for process, trace in dead if (message := process.unfinished()))
            for directory in directories:
                jobs.attempt(partial(jobs.sweep, directory))
                self._given_up.extend((os.path.basename(directory), text) for text in jobs.read_given_up(directory))

        return job

    # ---------------------------------------------------------------- commands

    def run(self, command: TraceCommand, uid: int, was_begun: bool = False) -> Work:
        """Carry out a command, which a server that died may have begun; commands/channel.py explains the jobs."""
        if uid not in (0, os.geteuid()):
            raise command.refuse(errno.EPERM, f"traces are for root and user {os.geteuid()}, whose mount this is")
        if was_begun and (command.name in self._slots) == (command.action == "create"):
            return
        if command.action == "create":
            yield from self._create(command)
            return
        trace = self.find(command.name)
        if trace is None:
            hint = f"there are: {', '.join(sorted(self._slots))}" if self._slots else "there are none"
            raise command.refuse(errno.ENOENT, f"no trace {command.name}; {hint}")
        if command.action == "remove":
            yield from self._remove(command, trace)
        elif command.action == "start":
            self._start(command, trace)
        elif command.action == "stop":
            yield from self._stop(trace)
        elif command.action == "set":
            self._change(command, trace)
        elif command.action == "snapshot":
            yield from self._snapshots.take(command, trace, was_begun)
        else:
            self._set(trace_control.add_rule(trace, command))
            processes = (one for of_trace in self._processes.values() for one in of_trace.values())
            yield from notice_nothing_taken(command, trace, processes, self._errors)

    def _set(self, trace: Trace) -> None:
        self._control.set(self._slots[trace.name], trace)

    def _create(self, command: TraceCommand) -> Work:
        slot = self._free_slot(command)
        self._check_name(command)
        trace, notice = plan(command, self._store, self._control.new_id, self._boot)
        yield Effect(bool)
        # Before the directory is made, because a directory without an entry is taken for a plain one.
        self._control.set(slot, trace)
        try:
            yield lambda: self._make_directory(trace)
        except OSError as error:
            self._control.set(slot, None)
            message = f"its directory could not be made: {error.strerror}; check permissions and space of the store"
            raise command.refuse(error.errno or errno.EIO, message) from error
        self._slots[command.name] = slot
        self._show_instance(trace)
        self._add(command.name)
        if notice:
            log.warning("%s", self._errors.notice(command.line, notice, command.column))

    def _change(self, command: TraceCommand, trace: Trace) -> None:
        new, notice = changed(command, trace, self._store, self._boot, any(self._present(trace.name)))
        self._set(new)
        if notice:
            log.warning("%s", self._errors.notice(command.line, notice, command.column))

    def _make_directory(self, trace: Trace) -> None:
        self._store.make_directory(trace.name, PERMS["INNER"])
        take(self._store.directory, trace)

    def _free_slot(self, command: TraceCommand) -> int:
        if command.name in self._slots:
            raise command.refuse(errno.EEXIST, f"trace {command.name} exists; remove it, or choose another name")
        free = set(range(native_trace.N_TRACES)) - set(self._slots.values())
        if not free:
            raise command.refuse(
                errno.ENOSPC,
                f"there are {native_trace.N_TRACES} traces, which is the limit; `trace remove` frees one: "
                + ", ".join(sorted(self._slots)),
            )
        return min(free)

    def _check_name(self, command: TraceCommand) -> None:
        if command.name in self._tree.channels or self._tree.find(command.name) is not None:
            raise command.refuse(errno.EEXIST, f"{command.name} exists: the trace's directory would have its name")

    def _start(self, command: TraceCommand, trace: Trace) -> None:
        if trace.boot != self._boot:
            raise command.refuse(
                errno.ESTALE, f"{trace.name} was made before the last reboot: it can only be read and removed"
            )
        self._to_flush.pop(trace.name, None)
        self._set(replace(trace, is_started=True))

    def _stop(self, trace: Trace) -> Work:
        self._set(replace(trace, is_started=False))
        self._to_flush[trace.name] = N_FLUSHES
        for directory in self.changes(trace.name)[0]:
            self.show(trace.name, directory)
        processes = list(self._processes[trace.name].values())
        yield lambda: jobs.call_with_timeout(lambda: jobs.flush(processes), f"trace stop {trace.name}")

    def _remove(self, command: TraceCommand, trace: Trace) -> Work:
        """Hide the trace's directory, change the control file, wait for the recorder, and delete the directory."""
        name = trace.name
        try:
            hidden: str = yield Effect(lambda: self._store.hide(name))
        except OSError as error:
            message = f"{os.path.join(self._store.directory, name)} could not be renamed: {error.strerror}"
            raise command.refuse(error.errno or errno.EIO, message) from error
        self._control.set(self._slots.pop(name), None)
        if (instance := self._directory.children.get(name)) is not None:
            self._tree.detach(instance)
        self._settled_at = time.monotonic() + LINGER_S
        self._to_flush.pop(name, None)
        self.losses.forget(trace.id)
        self._unwatch(name)
        # The recorder has the directory open, and sees by the changed name that the trace is removed.
        recorder = yield lambda: recorder_lock.holder(hidden)
        has_ended = recorder is None or (yield LongJob(lambda: jobs.await_recorder(hidden)))
        unread: dict[str, int] = {}
        yield lambda: jobs.call_with_timeout(lambda: jobs.delete_trace(hidden, unread), f"trace remove {name}")
        yield lambda: self._snapshots.remove_of(trace.id)
        if recorder is not None and (unread or not has_ended):
            message = jobs.not_recorded(unread, "" if has_ended else recorder)
            log.warning("%s", self._errors.notice(command.line, message, command.column))

    def _unwatch(self, name: str) -> None:
        for watch in [watch for watch, watched in self._watches.items() if watched == name]:
            del self._watches[watch]
            self.inotify.remove(watch)
