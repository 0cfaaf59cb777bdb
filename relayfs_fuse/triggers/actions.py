"""What triggers do: snapshots, and commands, marks and programs, each sort in a thread of its own."""

from __future__ import annotations

import errno
import heapq
import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from relayfs_fuse.cli.control import command as control_command
from relayfs_fuse.errors import RelayError
from relayfs_fuse.fs.ours import why_not_ours
from relayfs_fuse.native.store import TRACES_NAME
from relayfs_fuse.reading.damage import reason
from relayfs_fuse.reading.snapshot import Snapshot
from relayfs_fuse.reading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.trigger_control import TriggerCommand
    from relayfs_fuse.trace import Event

# The most snapshots of a trace, and other actions, that wait; further ones are not carried out, which is said.
SNAPSHOTS_MAX, OTHERS_MAX = 16, 4096
# How long after the end of its window a snapshot is taken: programs may still be writing events of that time.
MARGIN_NS = 200_000_000
_NS = 1_000_000_000


class Action(NamedTuple):
    """What a firing does.

    since: of the trigger's Definition
    number, time: of the firing
    """

    due: int
    since: int
    number: int
    time: int
    command: TriggerCommand

    @property
    def is_repeatable(self) -> bool:
        """Whether it does no harm to carry it out twice."""
        return self.command.does in ("snapshot", "start", "stop")


class Done(NamedTuple):
    """That an action was carried out, or not, and what there is to say of it; "": nothing."""

    action: Action
    text: str


class _Queue:
    """Actions that are carried out one after the other, when they are due.

    act: carries one out, and returns what there is to say; its exceptions are said
    """

    def __init__(self, name: str, most: int, actions: Actions) -> None:
        self._most = most
        self._actions = actions
        self._waiting: list[tuple[int, int, Action]] = []
        self._changed = threading.Condition()
        self._n = 0
        self._ends = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, action: Action) -> bool:
        """Add an action; False: too many wait."""
        with self._changed:
            if len(self._waiting) >= self._most:
                return False
            self._n += 1
            heapq.heappush(self._waiting, (action.due, self._n, action))
            self._changed.notify()
            return True

    def end(self) -> None:
        """Carry out no more actions."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def _next(self) -> Action | None:
        """Wait for an action that is due; None: there will be no more."""
        with self._changed:
            while not self._ends:
                wait_ns = self._waiting[0][0] - time.time_ns() if self._waiting else None
                if wait_ns is not None and wait_ns <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(None if wait_ns is None else wait_ns / _NS)
        return None

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                text = self._actions.carry_out(action)
            except (OSError, RelayError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else str(error)
                text = f"{action.command.does} failed: {why}"
            self._actions.done.append(Done(action, text))


class Actions:
    """Carry out what the triggers of a trace do.

    trace, number: its name and id
    done: what was carried out, or failed; the caller takes it out
    """

    def __init__(self, trace: str, number: int, store: str, mount: str, *, runs_programs: bool) -> None:
        self._trace = trace
        self._number = number
        self._store = store
        self._mount = mount
        self._runs_programs = runs_programs
        self._mark: Event | None = None
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self.done: deque[Done] = deque()
        self._snapshots = _Queue(f"snapshots of {trace}", SNAPSHOTS_MAX, self)
        self._others = _Queue(f"actions of {trace}", OTHERS_MAX, self)

    def close(self) -> None:
        """Carry out no more actions; one that is being carried out goes on."""
        self._snapshots.end()
        self._others.end()

    def put(self, action: Action) -> None:
        """Carry out an action when it is due, in another thread."""
        does = action.command.does
        queue = self._snapshots if does == "snapshot" else self._others
        if not queue.put(action):
            self.done.append(Done(action, f"no {does}: too many wait already"))

    def carry_out(self, action: Action) -> str:
        """Carry out an action, and return what there is to say; OSError, RelayError."""
        command = action.command
        if command.does == "snapshot":
            return self._snapshot(action)
        if command.does in ("start", "stop"):
            control_command(self._mount, f"trace {command.does} {command.argument}")
            return f"{command.does} {command.argument}"
        if command.does == "run":
            return self._run(action)
        if command.does == "mark":
            self._write_mark(action)
        return ""

    def _snapshot(self, action: Action) -> str:
        directory = action.command.argument
        if not directory:
            return self._snapshot_in_mount(action)
        if why := why_not_ours(directory, is_program=False):
            raise RelayError(why)
        stem = f"{action.command.name}-{_stamp(action.time)}"
        path, hidden = os.path.join(directory, stem), os.path.join(directory, f".{stem}")
        if os.path.lexists(path):
            _remove_older(action.command, directory)
            return f"snapshot {path}"  # the process before has taken it
        shutil.rmtree(hidden, ignore_errors=True)  # what it has left
        try:
            os.mkdir(hidden, 0o700)
            summary = self._take(action, hidden)
            os.rename(hidden, path)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        n_removed = _remove_older(action.command, directory)
        return f"snapshot {path}{', incomplete' if summary else ''}{_removed(n_removed)}"

    def _snapshot_in_mount(self, action: Action) -> str:
        """Have the server take a snapshot; if memory is short, remove older ones first of those that need not stay."""
        command = action.command
        name = f"{command.name}-{_stamp(action.time)}"
        above = os.path.join(self._mount, TRACES_NAME, self._trace, "snapshots")
        window = _window(action)
        times = f" since={window[0]} until={window[1]}" if window else ""
        n_removed = 0
        while True:
            try:
                control_command(self._mount, f"trace snapshot {self._trace} {name}{times}")
                break
            except RelayError as error:
                code = error.__cause__.errno if isinstance(error.__cause__, OSError) else 0
                if code == errno.EEXIST:
                    break  # the process before has taken it
                _, *older = _own(command, above) or [""]
                if code != errno.ENOSPC or not (older and (command.keep or command.keep_bytes)):
                    raise
                os.rmdir(os.path.join(above, older[-1]))
                n_removed += 1
        n_removed += _remove_older(command, above, os.rmdir)
        return f"snapshot {os.path.join(above, name)}{_removed(n_removed)}"

    def _take(self, action: Action, path: str) -> bool:
        """Take a snapshot, and return whether it is incomplete."""
        with closing(Source(self._trace, self._store, self._number)) as source:
            snapshot = Snapshot(source, path, lambda _: None, "others", _window(action), self._mount)
            snapshot.take(lambda: None)
        return snapshot.summary.is_incomplete

    def _run(self, action: Action) -> str:
        program, since = action.command.argument, action.since
        if not self._runs_programs:
            raise OSError(errno.EPERM, "this mount runs no programs; the mount option trigger_run lets it")
        if why := why_not_ours(program, is_program=True):
            raise RelayError(why)
        if since in self._programs and self._programs[since].poll() is None:
            return f"no run: {program} still runs as process {self._programs[since].pid}"
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "RELAYFS": self._mount,
            "RELAYFS_TRACE": self._trace,
            "RELAYFS_TRIGGER": action.command.name,
            "RELAYFS_FIRING": str(action.number),
            "RELAYFS_TIME": str(action.time),
        }
        self._programs[since] = subprocess.Popen(
            [program], cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return f"run {program} as process {self._programs[since].pid}"

    def reap(self) -> None:
        """Let the programs that have ended go."""
        for since, program in list(self._programs.items()):
            if program.poll() is not None:
                self._programs.pop(since, None)

    def _write_mark(self, action: Action) -> None:
        if self._mark is None:
            # The library looks there when the first event is declared.
            os.environ["RELAYFS"] = os.environ["RELAYFS_STORE"] = self._store
            from relayfs_fuse.trace import Event  # noqa: PLC0415  # the other actions trace nothing

            self._mark = Event("relayfs", "mark", {"trigger": "string", "number": "u64", "time": "u64"})
        self._mark(action.command.name, action.number, action.time)


def due_of(command: TriggerCommand, time: int) -> int:
    """Return when an action is to be carried out, ns since 1970."""
    return time + command.window[1] + MARGIN_NS if command.does == "snapshot" else 0


def _window(action: Action) -> tuple[int, int] | None:
    """Return the times that a snapshot is to have, as Snapshot has them."""
    before, after = action.command.window
    return (max(0, action.time - before), action.time + after) if before else None


def _own(command: TriggerCommand, directory: str) -> list[str]:
    """Return the names of a trigger's snapshots, the newest first."""
    pattern = re.compile(re.escape(command.name) + r"-\d{8}T\d{6}\.\d{9}Z")
    with os.scandir(directory) as entries:
        names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and pattern.fullmatch(one.name)]
    return sorted(names, reverse=True)  # their times are in order as texts


def _removed(n: int) -> str:
    return f", and removed {n} older" if n else ""


def _remove_older(command: TriggerCommand, directory: str, remove: Callable[[str], object] = shutil.rmtree) -> int:
    """Remove a trigger's oldest snapshots, but never its newest, until as many stay as it keeps; return how many.

    remove: removes one
    """
    if not command.keep and not command.keep_bytes:
        return 0
    names = _own(command, directory)
    n_kept, n_bytes = 0, 0
    for name in names:
        n_bytes += _bytes_in(os.path.join(directory, name)) if command.keep_bytes else 0
        is_within = n_kept < command.keep if command.keep else n_bytes <= command.keep_bytes
        if n_kept and not is_within:
            break
        n_kept += 1
    for name in names[n_kept:]:
        remove(os.path.join(directory, name))
    return len(names) - n_kept


def _bytes_in(directory: str) -> int:
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(directory) for name in names)


def _stamp(time_ns: int) -> str:
    """Return a time as a part of a file's name."""
    second = datetime.fromtimestamp(time_ns // _NS, UTC)
    return f"{second:%Y%m%dT%H%M%S}.{time_ns % _NS:09}Z"
