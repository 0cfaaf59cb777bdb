"""Carrying out the commands of the control file.

Each command is a generator that runs in the server's thread, where the tree may be changed. It yields the jobs that may
block. Acts.command() (requests/acts.py) runs those in a worker thread, and sends back what they returned. Jobs map the
buffers again, because a mapping may be used by one thread at a time only. While a command runs, no other command may
add or remove names, except while one of its jobs is a LongJob, which other programs may hold up.

Several lines in one write(2) are carried out in order. If a line is refused, the write(2) fails with its errno,
error_log has the line, and the lines after it are not carried out. A write of too many lines is refused as a whole.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.channel_files import RelayFile
from relayfs_fuse.fs.commands import adoption, control, trace_control, trigger_control
from relayfs_fuse.fs.commands.jobs import Effect, LongEffect, LongJob, for_each
from relayfs_fuse.fs.kinds.channel import KINDS
from relayfs_fuse.fs.kinds.damaged import DamagedChannel
from relayfs_fuse.fs.nodes import Directory
from relayfs_fuse.native.tables import OPTIONS, RELAY_OPTIONS, missing_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayfs_fuse.fs.commands.jobs import Begun, LineWork, Work
    from relayfs_fuse.fs.errorlog import ErrorLog
    from relayfs_fuse.fs.kinds.base import Plan
    from relayfs_fuse.fs.kinds.channel import StoredChannel
    from relayfs_fuse.fs.opener import Opener
    from relayfs_fuse.fs.store import Store
    from relayfs_fuse.fs.traces.registry import Traces
    from relayfs_fuse.fs.traces.triggers import Triggers
    from relayfs_fuse.fs.tree import Tree

log = logging.getLogger(__name__)

# The path of the channel that relay_log() writes to.
LOG_CHANNEL = "log"


class Commands:
    """The commands on the channels of a store, and on the tree that shows them.

    removed: is called with a channel that is about to be removed
    traces: what carries out `trace ...` and `trigger ...`; None: the traces of this store cannot be used
    """

    def __init__(
        self,
        store: Store,
        tree: Tree,
        errors: ErrorLog,
        removed: Callable[[StoredChannel | DamagedChannel], None],
        traces: tuple[Traces, Triggers] | None = None,
    ) -> None:
        self._store = store
        self._traces = traces[0] if traces else None
        self._triggers = traces[1] if traces else None
        self._tree = tree
        self._errors = errors
        self._removed = removed

    def lines(self, text: bytes) -> list[str]:
        """Return the lines of a write(2); CommandError: there are too many."""
        try:
            return control.split_write(text)
        except CommandError as error:
            log.info("%s", self._errors.error(os.fsdecode(text[: control.WRITE_MAX].split(b"\n", 1)[0]), error))
            raise

    def run(self, line: str, opener: Opener, begun: Begun | None = None) -> LineWork:
        """Carry out a line; return the path of the channel that it has removed, or None; CommandError.

        begun: what a server has noted that died after it had begun the Effect of the line; None: none has
        """
        try:
            about_trace = trace_control.parse(line) or trigger_control.parse(line)
            command = None if about_trace else control.parse(line)
            if about_trace is not None:
                yield from self._run_trace(about_trace, opener, begun is not None)
            elif command is not None:
                return (yield from self._run(command, opener, begun))
        except CommandError as error:
            log.info("%s", self._errors.error(line, error))
            raise
        return None

    def _run(self, command: control.Command, opener: Opener, begun: Begun | None) -> LineWork:
        if begun is not None and self._is_done(command, opener, begun):
            return command.path if command.verb == "remove" else None
        if command.verb == "create":
            yield from self._create(command, opener)
            return None
        if command.verb == "adopt":
            yield from self._adopt(command, opener)
            return None
        channel = self._tree.damaged.get(command.path) or self._find(command)
        if opener.uid not in (0, channel.uid):
            raise command.refuse(errno.EPERM, f"only user {channel.uid}, who owns {channel.path}, or root may do this")
        if command.verb == "remove":
            yield from self._remove(command, channel)
            return channel.path
        if isinstance(channel, DamagedChannel):
            raise command.refuse(errno.EBADMSG, f"{channel.path} is damaged ({channel.damage}): it can only be removed")
        try:
            yield LongEffect(lambda: self._act(command, channel), _n_consumed(command, channel))
        except OSError as error:
            raise command.refuse(error.errno or errno.EIO, f"{command.verb} failed: {error.strerror}") from error
        return None

    def _is_done(self, command: control.Command, opener: Opener, begun: Begun) -> bool:
        """Whether the effect of a command that was begun has come; of those that may come twice, say no."""
        channel = self._tree.channels.get(command.path)
        if command.verb == "remove":
            return channel is None and command.path not in self._tree.damaged
        if channel is None:
            return False
        if command.verb in ("create", "adopt"):
            channel.maker = opener.pid
            return True
        return command.verb == "consumed" and _n_consumed(command, channel) != begun.before

    def _run_trace(
        self, command: trace_control.TraceCommand | trigger_control.TriggerCommand, opener: Opener, was_begun: bool
    ) -> Work:
        if self._traces is None or self._triggers is None:
            raise command.refuse(errno.EIO, "the traces of this store cannot be used: see the server's log")
        if isinstance(command, trigger_control.TriggerCommand):
            yield from self._triggers.run(command, opener.uid, was_begun)
        else:
            yield from self._traces.run(command, opener.uid, was_begun)

    def _note_log(self, path: str) -> None:
        if self._traces is not None and path == LOG_CHANNEL:
            self._traces.note_log()

    def _find(self, command: control.Command) -> StoredChannel:
        channel = self._tree.channels.get(command.path)
        if channel is not None:
            return channel
        node = self._tree.find(command.path)
        if isinstance(node, RelayFile):
            hint = f"; {command.path} is a relay file of channel {node.stored.channel.path}"
        elif isinstance(node, Directory):
            inside = [path for path in sorted(self._tree.channels) if path.startswith(f"{command.path}/")]
            hint = f"; {command.path} is a directory, " + (
                f"of the channels {', '.join(inside[:8])}" if inside else "which rmdir(1) removes"
            )
        else:
            known = sorted(self._tree.channels)[:8]
            hint = f"; there are: {', '.join(known)}" if known else "; there are none"
        raise command.refuse(errno.ENOENT, f"no channel {command.path}{hint}")

    def _act(self, command: control.Command, channel: StoredChannel) -> None:
        kind, buffers = channel.kind, channel.buffers
        if reason := kind.refused.get(command.verb):
            raise command.refuse(errno.EOPNOTSUPP, f"{command.path} is a {kind.name}: {reason}")
        if command.verb == "consumed":
            if command.cpu >= len(buffers):
                raise command.refuse(
                    errno.EINVAL, f"buffer {command.cpu}: {channel.path} has 0 to {len(buffers) - 1}", "cpu"
                )
            buffers = [buffers[command.cpu]]
        for_each(buffers, lambda memory: kind.acts[command.verb](memory, command))
        if command.verb == "reset":
            channel.forget_damage()

    def _remove(self, command: control.Command, channel: StoredChannel | DamagedChannel) -> Work:
        def take_away() -> None:
            try:
                channel.close()
            except OSError as error:
                # The server may not run on a CPU, where a write may still be in progress: it ends in memory that stays
                # mapped. Or a buffer is damaged, which must not keep the channel from being removed.
                log.info("remove %s: not all of it could be stopped: %s", channel.path, error.strerror)

        yield LongEffect(take_away)
        if channel.removed:
            raise command.refuse(errno.ENOENT, f"another command has removed {channel.path} meanwhile")
        channel.removed = True
        self._removed(channel)
        self._tree.remove_channel(channel)
        self._note_log(channel.path)
        yield lambda: self._store.remove(channel)
        self._tree.touch_above(channel.path)

    def _create(self, command: control.Command, opener: Opener) -> Work:
        try:
            spec, notice = self._plan(command, opener)
        except CommandError as error:
            if error.errno != errno.ENOSPC:
                raise
            # While make_room() runs, another command may take the names, so _plan() checks everything again.
            yield LongJob(self._store.make_room)
            spec, notice = self._plan(command, opener)
        with self._store.claim_room(KINDS[command.type].file_bytes(spec), opener.uid):
            yield from self._make(command, opener, lambda: self._store.create(command.path, command.type, spec))
        if notice:
            log.warning("%s", self._errors.notice(command.line, notice, command.column))

    def _adopt(self, command: control.Command, opener: Opener) -> Work:
        self._check_owner(command, opener)
        buffers = yield lambda: adoption.take(command, opener.pid, opener.uid, self._store.directory)
        try:
            stats = buffers[0].stats()
            need = stats.file_bytes * len(buffers)
            yield LongJob(lambda: self._ensure_room(command, need, opener))
            self._check_names(command, stats.buffers, len(buffers), opener)
            perm = command.options.get("perm", RELAY_OPTIONS["perm"].initial)
            uid = command.options.get("uid", opener.uid)
            gid = command.options.get("gid", opener.gid)
            # The caller keeps its descriptors, with which it could truncate the store's files. So the files of other
            # users are copied.
            take = self._store.adopt if opener.uid == os.geteuid() else self._store.copy
            with self._store.ledger.claim(need, opener.uid):
                yield from self._make(command, opener, lambda: take(command.path, buffers, perm, uid, gid))
        finally:
            for buffer in buffers:
                buffer.close()

    def _make(self, command: control.Command, opener: Opener, job: Callable[[], StoredChannel]) -> Work:
        """Make the missing directories above a channel; have `job` make the channel; show all that in the tree."""
        made = []
        try:
            for path in self._tree.missing_directories(command.path):
                self._store.make_implicit(path, opener.uid)
                self._tree.add_directory(path).is_tentative = True
                made.append(path)
            channel = yield Effect(job)
        except OSError as error:
            for path in reversed(made):
                self._tree.detach(self._tree.find(path) or self._tree.root)
                self._store.remove_directory(path)
            path = os.path.join(self._store.directory, command.path)
            raise command.refuse(error.errno or errno.EIO, _explain(path, error)) from error
        for path in made:
            directory = self._tree.find(path)
            assert isinstance(directory, Directory)
            directory.is_tentative = False
        channel.maker = opener.pid
        self._tree.add_channel(channel)
        self._note_log(channel.path)

    def _plan(self, command: control.Command, opener: Opener) -> tuple[dict[str, int], str | None]:
        """Check a `create`; return the fields of the spec, and the text for error_log if default sizes were reduced."""
        options = OPTIONS[command.type].values()
        spec = {option.field: command.options.get(option.key, option.initial) for option in options if option.field}
        spec["uid"], spec["gid"] = command.options.get("uid", opener.uid), command.options.get("gid", opener.gid)
        n_buffers = native.n_possible_cpus() if spec["buffers"] == native.BUFFERS_PERCPU else 1
        self._check_names(command, spec["buffers"], n_buffers, opener)
        self._check_machine(command, spec["buffers"])
        self._check_owner(command, opener)
        plan = KINDS[command.type].plan(command, n_buffers, self._store.free_bytes(opener.uid))
        spec |= plan.fields
        self._check_room(command, spec, plan, opener)
        return spec, plan.notice

    def _check_names(self, command: control.Command, buffers: int, n_buffers: int, opener: Opener) -> None:
        relay_paths = [
            command.path if buffers == native.BUFFERS_SINGLE else f"{command.path}{index}" for index in range(n_buffers)
        ]
        try:
            self._tree.check_free(command.path, relay_paths)
            n_directories = len(self._tree.missing_directories(command.path))
            self._store.ledger.check_files(n_directories + n_buffers, opener.uid)
        except CommandError as error:
            raise command.refuse(error.errno, error.message) from None

    def _check_room(self, command: control.Command, spec: dict[str, int], plan: Plan, opener: Opener) -> None:
        """Refuse a channel that there is no memory for."""
        try:
            self._store.check_room(KINDS[command.type].file_bytes(spec), opener.uid)
        except CommandError as error:
            key = next((key for key in plan.keys if key in command.options), None)
            raise command.refuse(error.errno, f"{plan.what}: {error.message}", key) from None

    def _ensure_room(self, command: control.Command, need: int, opener: Opener) -> None:
        """Refuse a channel that there is no memory for, even after Store.make_room(); may block."""
        try:
            self._store.ensure_room(need, opener.uid)
        except CommandError as error:
            raise command.refuse(error.errno, error.message) from None

    def _check_machine(self, command: control.Command, buffers: int) -> None:
        """Refuse options that this machine does not support."""
        if command.options.get("scheme") == native.SCHEME_RSEQ and (
            native.scheme_default(buffers) != native.SCHEME_RSEQ
        ):
            others = ", ".join(word for word in OPTIONS[command.type]["scheme"].words if word != "rseq")
            raise command.refuse(
                errno.EINVAL,
                f"scheme=rseq: needs buffers=percpu and a machine with restartable sequences; allowed: {others}",
                "scheme",
            )
        for key in ("timestamp", "times"):
            if missing := missing_clock(RELAY_OPTIONS[key], command.options.get(key, 0)):
                raise command.refuse(errno.EINVAL, missing, key)

    def _check_owner(self, command: control.Command, opener: Opener) -> None:
        if opener.uid != 0 and command.options.get("uid", opener.uid) != opener.uid:
            raise command.refuse(errno.EPERM, f"only root makes channels for others; your uid is {opener.uid}", "uid")
        gid = command.options.get("gid", opener.gid)
        if opener.uid != 0 and gid not in opener.groups:
            raise command.refuse(errno.EPERM, f"gid={gid}: you are not in this group", "gid")
        server = os.geteuid()
        if server not in (0, command.options.get("uid", opener.uid)):
            raise command.refuse(errno.EPERM, f"this mount belongs to user {server}, as all its channels do", "uid")


def _n_consumed(command: control.Command, channel: StoredChannel) -> int:
    """Return how many sub-buffers are consumed of the buffer that the command `consumed` is about; 0: it is another."""
    if command.verb != "consumed" or command.cpu >= len(channel.buffers):
        return 0
    return int(getattr(channel.buffers[command.cpu].stats(), "consumed", 0))


def _explain(path: str, error: OSError) -> str:
    if error.errno == errno.EEXIST:
        return f"there is something at {path} that cannot be shown; the server's log says why"
    if error.errno == errno.EXDEV:
        return "you are in another mount namespace than this mount's server, which works only with a server of root"
    return f"{path} could not be made: {error.strerror}; check the directory's permissions, and its space with df"
