"""The triggers of a mount's traces: commands about them, and the process that evaluates them.

A process of its own (triggers/main.py) evaluates them, because events of a hostile program must not keep the server
from serving. It runs while there are triggers. The server writes a line to its standard input when triggers have
changed, and closes that when it ends. The process writes lines, too:

    told TRACE      there is something new in the file `triggered` of the trace
    log TEXT        for the server's log
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands.condition import compile_conditions
from relayfs_fuse.fs.commands.jobs import Effect, LongJob
from relayfs_fuse.fs.commands.trigger_control import parse
from relayfs_fuse.fs.ours import why_not_ours
from relayfs_fuse.fs.traces.triggered import TriggeredFile
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.triggers import TRIGGERS_MAX
from relayfs_fuse.tracefiles.trigger_files import (
    Definition,
    lives,
    processes_in,
    read_definitions,
    write_definitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from relayfs_fuse.fs.commands.trigger_control import TriggerCommand
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.registry import Traces
    from relayfs_fuse.fs.tree import Tree
    from relayfs_fuse.native.trace import Trace

    Work = Generator[Callable[[], Any], Any, None]

log = logging.getLogger(__name__)

# How long the process may take to end after its standard input was closed.
END_S = 5.0
# The pause before it is started again.
RESTART_S = 1.0
# What starts it: isolated from the user's environment and working directory, from which Python would import.
_MAIN = "import sys; sys.path.append(sys.argv.pop(1)); from relayfs_fuse.triggers.main import main; main()"
_LINE_BYTES = 1 << 16


class Triggers:
    """The triggers of all traces.

    store, tree, traces: the store, the tree that shows the traces, and the registry
    mountpoint: of the mount, to whose control file triggers write
    runs_programs: whether `do run` is allowed
    """

    def __init__(self, store: Store, tree: Tree, traces: Traces, mountpoint: str, *, runs_programs: bool) -> None:
        self._store = store
        self._tree = tree
        self._traces = traces
        self._mountpoint = mountpoint
        self._runs_programs = runs_programs
        self._changed = trio.Event()
        self._by_trace: dict[int, list[Definition]] = {}  # by the trace's id

    def load(self) -> None:
        """Take over the triggers of the server before."""
        for name in self._traces.names:
            trace = self._traces.find(name)
            try:
                if trace is not None:
                    self._by_trace[trace.id] = read_definitions(self._store.locate(name))
            except OSError as error:
                log.info("the triggers of trace %s cannot be read: %s", name, error.strerror)

    def lines(self) -> list[str]:
        """Return the commands that would add all triggers again."""
        return [one.line for name in sorted(self._traces.names) for one in self._of(name)]

    # ---------------------------------------------------------------- commands

    def run(self, command: TriggerCommand, uid: int, was_begun: bool) -> Work:
        """Carry out a command for a user; commands/channel.py explains the jobs that it yields. CommandError.

        was_begun: whether a server has begun it that died, so that it may be done
        """
        if uid not in (0, os.geteuid()):
            raise command.refuse(errno.EPERM, f"triggers are for root and user {os.geteuid()}, whose mount this is")
        if was_begun and self._is_done(command):
            return
        if command.action == "remove":
            yield from self._remove(command)
            return
        yield from self._check_argument(command, uid)
        trace = self._check_trace(command)
        self._check_names(command)
        definitions = self._of(trace.name)
        # The clock of traces: CLOCK_REALTIME may have been set since the trace was made.
        now = trace.made.real_ns + native_trace.read_clocks(trace.clock).mono_ns - trace.made.mono_ns
        since = max(now, *(one.since + 1 for one in definitions), 0)
        living = (yield partial(_living, self._store.locate(trace.name))) if command.when == "death" else {}
        new = Definition(since, command.line.strip(" \t"), living)
        yield from self._write(command, trace, [*definitions, new])

    def _of(self, name: str) -> list[Definition]:
        trace = self._traces.find(name)
        return [] if trace is None else self._by_trace.get(trace.id, [])

    def _is_done(self, command: TriggerCommand) -> bool:
        there = [one for name in self._traces.names for one in self._of(name)]
        if command.action == "remove":
            return command.name not in {_name(one) for one in there}
        return command.line.strip(" \t") in {one.line for one in there}

    def _remove(self, command: TriggerCommand) -> Work:
        owners = {_name(one): trace for trace in self._traces.names for one in self._of(trace)}
        trace = self._traces.find(owners.get(command.name, ""))
        if trace is None:
            hint = f"there are: {', '.join(sorted(owners))}" if owners else "there are none"
            raise command.refuse(errno.ENOENT, f"no trigger {command.name}; {hint}")
        left = [one for one in self._of(trace.name) if _name(one) != command.name]
        yield from self._write(command, trace, left)

    def _write(self, command: TriggerCommand, trace: Trace, definitions: list[Definition]) -> Work:
        directory = self._store.locate(trace.name)
        try:
            yield Effect(lambda: write_definitions(directory, definitions))
        except OSError as error:
            message = f"{directory} could not be written to: {error.strerror}"
            raise command.refuse(error.errno or errno.EIO, message) from error
        there = {one.id for name in self._traces.names if (one := self._traces.find(name)) is not None}
        self._by_trace = {number: one for number, one in self._by_trace.items() if number in there}
        self._by_trace[trace.id] = definitions
        self._changed.set()

    def _check_trace(self, command: TriggerCommand) -> Trace:
        for key, name in (("trace", command.trace), ("argument", command.argument)):
            if (key == "trace" or command.does in ("start", "stop")) and self._traces.find(name) is None:
                there = ", ".join(sorted(self._traces.names))
                hint = f"there are: {there}" if there else "there are none"
                raise command.refuse(errno.ENOENT, f"no trace {name}; {hint}", key)
        trace = self._traces.find(command.trace)
        assert trace is not None
        if command.when in ("death", "crash") and trace.buffers != native_trace.BUFFERS_PERPROCESS:
            raise command.refuse(
                errno.EINVAL,
                f"{command.when}: {trace.name} has buffers that processes share; buffers=perprocess is needed",
                "trace",
            )
        if command.when == "crash" and not (self._traces.deaths and self._traces.deaths.makes_cards):
            raise command.refuse(errno.EINVAL, "crash: this mount makes no cards; the option crashed= says how many")
        if command.when == "fill" and trace.mode == native.MODE_OVERWRITE:
            raise command.refuse(
                errno.EINVAL, f"fill: {trace.name} has mode=overwrite, so its buffers are always full", "trace"
            )
        return trace

    def _check_names(self, command: TriggerCommand) -> None:
        if command.name in {_name(one) for trace in self._traces.names for one in self._of(trace)}:
            raise command.refuse(errno.EEXIST, f"trigger {command.name} exists; remove it, or choose another name")
        if len(self._of(command.trace)) >= TRIGGERS_MAX:
            raise command.refuse(errno.ENOSPC, f"{command.trace} has {TRIGGERS_MAX} triggers, which is the limit")
        if command.condition:
            try:
                compile_conditions([command.condition])
            except CommandError as error:
                raise command.refuse(error.errno, error.message, "condition") from error

    def _check_argument(self, command: TriggerCommand, uid: int) -> Work:
        """Check the directory or program that the trigger is about; what it is can change until the trigger fires."""
        if command.does == "run":
            if not self._runs_programs:
                raise command.refuse(
                    errno.EPERM, "this mount runs no programs; the mount option trigger_run lets it", "do"
                )
            if uid != os.geteuid():
                raise command.refuse(
                    errno.EPERM, f"a program runs as user {os.geteuid()}, who alone may say which", "do"
                )
        if command.does not in ("run", "snapshot") or not command.argument:
            return
        # These may be on a file system that does not answer.
        try:
            why = yield LongJob(lambda: why_not_ours(command.argument, is_program=command.does == "run"))
        except OSError as error:
            what = f"{command.argument}: {error.strerror}"
            if command.does == "snapshot" and error.errno == errno.ENOENT:
                what += "; make the directory first"
            raise command.refuse(error.errno or errno.EIO, what, "argument") from error
        if why is not None:
            raise command.refuse(errno.EPERM, why, "argument")

    # ---------------------------------------------------------------- the process

    async def run_process(self) -> None:
        """Have a process evaluate the triggers while there are some, until cancelled."""
        while True:
            while not self._has_work():
                self._changed = trio.Event()
                await self._changed.wait()
            await self._run_once()
            await trio.sleep(RESTART_S)

    def _has_work(self) -> bool:
        """Return whether a trace has triggers to which programs may still write."""
        traces = [self._traces.find(name) for name in self._traces.names if self._of(name)]
        return any(trace is not None and trace.boot == native_trace.boot_id() for trace in traces)

    async def _run_once(self) -> None:
        """Have a process evaluate the triggers until it ends."""
        root = os.path.dirname(os.path.dirname(os.path.abspath(native.__path__[0])))
        command = [sys.executable, "-I", "-c", _MAIN, root, self._store.directory, self._mountpoint]
        command += ["run"] * self._runs_programs
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        log.info("process %d evaluates triggers", process.pid)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_changes, process, nursery.cancel_scope)
                nursery.start_soon(self._log_errors, process)
                await self._read_lines(process)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end(process)

    async def _end(self, process: trio.Process) -> None:
        """Close the standard input of the process, which ends then, and wait for that.

        One that is killed may go on sleeping in a system call that waits for a disk or a file server, and is left then.
        """
        assert process.stdin is not None
        await process.stdin.aclose()
        with trio.move_on_after(END_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(END_S):
                await process.wait()
        if process.returncode:
            log.info("the process that evaluates triggers has ended with status %d", process.returncode)

    async def _tell_changes(self, process: trio.Process, scope: trio.CancelScope) -> None:
        assert process.stdin is not None
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if not self._has_work():
                scope.cancel()
                return
            try:
                await process.stdin.send_all(b"\n")
            except trio.BrokenResourceError:
                return  # it has ended

    async def _log_errors(self, process: trio.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.receive_some(_LINE_BYTES):
            for line in data.decode(errors="replace").splitlines():
                log.info("triggers: %s", line)

    async def _read_lines(self, process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.receive_some(_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take_line(os.fsdecode(line))

    def _take_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        node = self._tree.find(f"{rest}/triggered") if word == "told" else None
        if isinstance(node, TriggeredFile):
            node.tell()
        elif word == "log":
            log.info("triggers: %s", rest)


def _living(directory: str) -> dict[str, int]:
    """Return the living processes of a trace, as Definition has them; none if they cannot be listed."""
    try:
        return {name: inode for name, inode in processes_in(directory).items() if lives(directory, name)}
    except OSError:
        return {}


def _name(definition: Definition) -> str:
    """Return the name of a trigger."""
    command = parse(definition.line)
    return command.name if command else ""
