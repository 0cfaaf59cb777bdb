"""The channel that a command of relayctl is to show; its buffers are read in the store, with or without a server."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from relayfs_fuse.cli.common import say
from relayfs_fuse.cli.names import CHANNEL, names_in
from relayfs_fuse.errors import CommandError, RelayError
from relayfs_fuse.explain import mounts_of
from relayfs_fuse.fs.commands.control import check_path
from relayfs_fuse.native.library import closed_on_error
from relayfs_fuse.native.trace import Traces
from relayfs_fuse.reading.source import find_store, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from relayfs_fuse.reading.records import Records

_FIRST_FILE = "mem0"


@dataclass(frozen=True)
class Channel:
    """A channel.

    path: as after `create`
    directory: its directory in the store
    """

    path: str
    directory: str

    def records(self, since: int, report: Callable[[str], None] = say) -> Records:
        """Follow its records from a time, ns since 1970; RelayError: it has no times, or cannot be used.

        report: called with a line for users when something goes wrong
        """
        from relayfs_fuse.fs.kinds.channel import map_files  # noqa: PLC0415  # views of traces need none of this
        from relayfs_fuse.reading.records import Records  # noqa: PLC0415

        _, memories = map_files(self.directory)
        with closed_on_error(*memories):
            times = memories[0].stats().times
            if not times:
                raise RelayError(
                    f"the records of {self.path} have no times, so they have no order; make the channel with "
                    f"`create {self.path} ... times=mono`, or read its relay files with cat"
                )
            return Records(memories, times, report, since)


def find_channel(what: str, mount: str | None, store: str | None) -> Channel | None:
    """Find the channel PATH or MNT/PATH.

    mount, store: as for find_store()

    None: this is the name of a trace. RelayError: it is the name of neither; the text lists what there is.
    """
    for where, path in _places(what, mount, store):
        with closing(Traces(os.path.join(where, ".traces"))) as control:
            traces = sorted(trace.name for trace in control.all().values())
        if path in traces:
            return None
        if path.split("/")[0] not in traces and _is_channel(where, path):
            return Channel(path, os.path.join(where, path))
    channels = list(channels_of_store(where, traces))
    lists = listed("traces", traces), listed("channels", channels)
    there_is = "; ".join(one for one in lists if one) or "there is none at all"
    raise RelayError(f"there is no trace {path} in {where}, and no such channel; {there_is}")


def refuse_options(channel: Channel, options: Mapping[str, object]) -> None:
    """Raise UsageError if one of the options is given, which are for events."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option} is for events; {channel.path} is a channel, which has records")


def _places(what: str, mount: str | None, store: str | None) -> Iterator[tuple[str, str]]:
    """Yield where it may be: the store, and the path in it."""
    is_named = False
    if mount is None and store is None and "/" in what:
        for root, path in mounts_of(what):
            is_named = os.path.isabs(what)
            yield find_store(root), path
    if not is_named:
        yield find_store(mount, store), what


def _is_channel(where: str, path: str) -> bool:
    with suppress(CommandError, FileNotFoundError, NotADirectoryError):
        check_path(path)
        return _FIRST_FILE in os.listdir(os.path.join(where, path))
    return False


def channels_of_store(where: str, traces: Sequence[str], note: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """Yield the paths of the channels in a store.

    traces: the names of its traces, whose directories are none of channels
    note: is called with each directory below the store, before it is listed
    """
    for directory, directories, files in os.walk(where):
        hidden = traces if directory == where else ()
        directories[:] = sorted(name for name in directories if not name.startswith(".") and name not in hidden)
        for name in directories:
            note(os.path.join(directory, name))
        if _FIRST_FILE in files:
            yield os.path.relpath(directory, where)


def channels_in(mount: str) -> str:
    """List the channels of a mount for an error message; "": there is none."""
    with suppress(OSError, RelayError):
        return listed("channels", list(names_in(mount, CHANNEL)))
    return ""
