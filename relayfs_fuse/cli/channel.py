"""The channel that a command of relayctl is to show; its buffers are read in the store, with or without a server.

A process that does not see the store, as in a container that has only the mount, maps them through the mount.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from relayfs_fuse.cli.common import say
from relayfs_fuse.cli.names import CHANNEL, FIRST_FILE, channels_of_store, names_in, traces_of
from relayfs_fuse.cli.opened import absolute
from relayfs_fuse.errors import CommandError, RelayError, StoreError, failure
from relayfs_fuse.explain import mounts_of
from relayfs_fuse.fs.commands.control import check_path
from relayfs_fuse.fs.mounts import MAPS_NO_FILES
from relayfs_fuse.native.library import closed_on_error
from relayfs_fuse.reading.source import find_mount, find_store, listed, other_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from relayfs_fuse.fs.kinds.base import Kind
    from relayfs_fuse.native import ChannelMemory
    from relayfs_fuse.reading.records import Records


@dataclass(frozen=True)
class Channel:
    """A channel.

    path: as after `create`
    directory: its directory in the store, or in .channels of the mount
    n: how many buffers the mount says it has; None: the files in the directory tell it
    """

    path: str
    directory: str
    n: int | None = None

    def records(self, since: int, report: Callable[[str], None] = say) -> Records:
        """Follow its records from a time, ns since 1970; RelayError: it has no times, or cannot be used.

        report: called with a line for users when something goes wrong
        """
        from relayfs_fuse.fs.kinds.channel import map_files  # noqa: PLC0415  # views of traces need none of this
        from relayfs_fuse.reading.records import Begin, Records  # noqa: PLC0415

        try:
            _, memories = map_files(self.directory, self.n)
        except StoreError as error:
            if self.n is None or getattr(error.__cause__, "errno", None) != errno.ENODEV:
                raise
            merged = os.path.join(self.directory, "merged")
            raise RelayError(f"{MAPS_NO_FILES}, which this process does not see; cat {merged} shows them") from error
        with closed_on_error(*memories):
            times = memories[0].stats().times
            if not times:
                raise RelayError(
                    f"the records of {self.path} have no times, so they have no order; make the channel with "
                    f"`create {self.path} ... times=mono`; `relayctl cat --peek {self.path}` shows them"
                )
            return Records(memories, times, report, Begin(since))


def find_channel(what: str, mount: str | None, store: str | None) -> Channel | None:
    """Find the channel PATH or MNT/PATH.

    mount, store: as for find_store()

    None: this is the name of a trace. RelayError: it is the name of neither; the text lists what there is.
    """
    for where, place, path in _places(what, mount, store):
        traces = traces_of(where, place)
        if path in traces:
            if place is not None:
                raise RelayError(
                    f"the events of a trace are read in its store, {where}, which this process does not see; "
                    f"cat {os.path.join(place, path, 'merged')} shows them"
                )
            return None
        if path.split("/")[0] not in traces and (found := _channel_at(where, place, path)):
            return found
    channels = names_in(place, CHANNEL) if place is not None else channels_of_store(where, traces)
    lists = listed("traces", traces), listed("channels", list(channels))
    there_is = "; ".join(one for one in lists if one) or "there is none at all"
    others = other_mounts(mount or store or (what if os.path.isabs(what) else None))
    raise RelayError(f"there is no trace {path} in {place or where}, and no such channel; {there_is}{others}")


def refuse_options(channel: Channel, options: Mapping[str, object]) -> None:
    """Raise UsageError if one of the options is given, which are for events."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} is for events; {channel.path} is a channel, which has records")


def _places(what: str, mount: str | None, store: str | None) -> Iterator[tuple[str, str | None, str]]:
    """Yield where it may be: the store, the mount if this process does not see the store, and the path in it."""
    if mount is None and store is None and os.path.isabs(what):
        root, path = absolute(what)
        yield *((root.place, None) if root.is_store else _seen(root.place, find_store(root.place))), path
        return
    if mount is None and store is None and "/" in what:
        for place, path in mounts_of(what):
            yield *_seen(place, find_store(place)), path
    yield *_seen(find_mount(mount) if store is None else None, find_store(mount, store)), what


def _seen(place: str | None, where: str) -> tuple[str, str | None]:
    """Return a store, and its mount if this process does not see the store."""
    return where, None if place is None or os.path.isdir(where) else place


def _channel_at(where: str, place: str | None, path: str) -> Channel | None:
    with suppress(CommandError, FileNotFoundError, NotADirectoryError, ValueError):
        check_path(path)
        if place is None:
            directory = os.path.join(where, path)
            return Channel(path, directory) if FIRST_FILE in os.listdir(directory) else None
        directory = os.path.join(place, ".channels", path)
        with open(os.path.join(directory, "n_buffers"), encoding="ascii") as file:
            return Channel(path, directory, int(file.read()))
    return None


def map_channel(store: str, path: str) -> tuple[Kind[Any], list[ChannelMemory]]:
    """Map the buffers of a channel of a store; FileNotFoundError: there is none; StoreError: as map_files()."""
    from relayfs_fuse.fs.kinds.channel import map_files  # noqa: PLC0415  # as above

    found = _channel_at(store, None, path)
    if found is None:
        raise failure(errno.ENOENT, os.path.join(store, path))
    return map_files(found.directory)
