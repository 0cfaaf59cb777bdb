"""Opening the channel that a command of relayctl moves data to or from, by its path in a mount."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeVar

from relayfs_fuse import explain
from relayfs_fuse.cli.channel import channels_in
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native import ChannelHandle
from relayfs_fuse.native.ring import RingsHandle
from relayfs_fuse.reading.source import find_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")

# The errors with which the library says that there is no channel at a path.
_NONE_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)


def open_first(what: str, mount: str | None, open_it: Callable[[str, str], Result]) -> Result:
    """Return what a function opens at the channel PATH or MNT/PATH; RelayError: there is no such channel.

    mount: as for find_mount()
    open_it: is called with the mount and the channel's path in it; OSError
    """
    for root, path in _places(what, mount):
        try:
            return open_it(root, path)
        except OSError as error:
            if error.errno not in _NONE_THERE or not path:
                raise
    what_it_is = explain.what_it_is(os.path.join(root, path))
    if what_it_is is not None:
        raise RelayError(f"{path} in {root} is {what_it_is}")
    there_are = channels_in(root)
    raise RelayError(f"there is no channel {path} in {root}; {there_are or 'there is none at all'}")


def open_to_write(mount: str, path: str) -> ChannelHandle | RingsHandle:
    """Open a channel, of either type; OSError."""
    path = os.path.join(mount, path)
    try:
        return ChannelHandle(path)
    except OSError as error:
        if error.errno != errno.EMEDIUMTYPE:
            raise
    return RingsHandle(path)


def _places(what: str, mount: str | None) -> Iterator[tuple[str, str]]:
    """Yield where it may be: a mount, and the path in it."""
    if os.path.isabs(what):
        place = next(explain.mounts_of(what), None)
        if place is None:
            raise RelayError(f"{what} is in no mount of relayfs")
        yield place
        return
    if mount is None and "/" in what:
        yield from explain.mounts_of(what)
    root = find_mount(mount)
    if root is None:
        raise RelayError("no relayfs is mounted; --mount tells which one to use")
    yield root, what
