"""Commands about channels of a store without a server: relayctl carries them out itself."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from relayfs_fuse import native
from relayfs_fuse.cli.common import format_bytes, say
from relayfs_fuse.cli.opened import none_there
from relayfs_fuse.cli.size import room_in
from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.fs.commands import control
from relayfs_fuse.fs.commands.jobs import for_each
from relayfs_fuse.fs.kinds.channel import KINDS, StoredChannel
from relayfs_fuse.native import either
from relayfs_fuse.native.tables import OPTIONS
from relayfs_fuse.reading.source import MOUNT, Root

if TYPE_CHECKING:
    from relayfs_fuse.fs.commands.control import Command

_REASONS = {
    errno.EEXIST: "there is a channel, a relay file or a directory of this name, or of that of one of its relay files",
    errno.ENOTDIR: "a part of the path is a channel or a relay file",
    errno.EACCES: "only the store's owner may change it, and only while nobody else may write to its directory",
}


def command(store: str, line: str) -> None:
    """Carry out a line of the control file; RelayError: it is refused."""
    if line.startswith("trace "):
        raise RelayError(f"{line}: no relayfs is mounted, and a trace needs its server; mount one: {MOUNT}")
    try:
        parsed = control.parse(line)
        assert parsed is not None
        if parsed.verb == "create":
            _create(store, parsed)
        elif parsed.verb == "remove":
            _remove(store, parsed)
        else:
            _act(store, parsed)
    except CommandError as error:
        raise RelayError(f"{line}: {error.message}") from error
    except OSError as error:
        raise RelayError(f"{line}: {_REASONS.get(error.errno or 0) or error.strerror}") from error


def _create(store: str, parsed: Command) -> None:
    """Make a channel, of the sizes that a server would choose."""
    options = OPTIONS[parsed.type]
    percpu = parsed.options.get("buffers", options["buffers"].initial) == native.BUFFERS_PERCPU
    n_buffers = native.n_possible_cpus() if percpu else 1
    free = room_in(store)
    plan = KINDS[parsed.type].plan(parsed, n_buffers, free)
    file_bytes = KINDS[parsed.type].file_bytes(plan.fields)
    if file_bytes > free:
        raise parsed.refuse(
            errno.ENOSPC, f"{plan.what}: {format_bytes(file_bytes)} are needed, and {format_bytes(free)} are free"
        )
    sizes = [f"{key}={one.format(plan.fields[one.field])}" for key, one in options.items() if one.field in plan.fields]
    given = [word for word in parsed.line.split()[2:] if word.partition("=")[0] not in plan.keys]
    either.make(os.path.join(store, parsed.path), " ".join([*given, *sizes])).close()
    if plan.notice:
        say(f"{parsed.line}: {plan.notice}")
    if place := os.environ.get("RELAYFS"):
        say(f"{parsed.line}: nothing is mounted at {place}, which RELAYFS names; the channel is in the store {store}")


def _remove(store: str, parsed: Command) -> None:
    try:
        native.remove_channel(os.path.join(store, parsed.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise none_there(Root(store, is_store=True), parsed.path, store) from error


def _act(store: str, parsed: Command) -> None:
    """Carry out what changes the buffers of a channel."""
    directory = os.path.join(store, parsed.path)
    try:
        channel = StoredChannel(parsed.path, directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise none_there(Root(store, is_store=True), parsed.path, store) from error
    kind = channel.kind
    if why := kind.refused.get(parsed.verb):
        raise parsed.refuse(errno.EOPNOTSUPP, f"{parsed.path} is a {kind.name}: {why}")
    for_each(channel.buffers, lambda memory: kind.acts[parsed.verb](memory, parsed))
