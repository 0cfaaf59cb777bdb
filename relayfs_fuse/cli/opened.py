"""Finding and opening the channel that a command of relayctl is about: in a mount, or in a store that has no server."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from relayfs_fuse import explain, native
from relayfs_fuse.cli.names import CHANNEL, channels_of_store, names_in, traces_of
from relayfs_fuse.errors import RelayError
from relayfs_fuse.native import either
from relayfs_fuse.reading.source import Root, find_root, listed, other_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relayfs_fuse.native import ChannelHandle
    from relayfs_fuse.native.ring import RingsHandle

Result = TypeVar("Result")


class NoChannelError(RelayError):
    """There is nothing at the path of a channel."""


# The errors with which the library says that there is no channel at a path.
_NONE_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)


def open_first(what: str, mount: str | None, open_it: Callable[[Root, str], Result]) -> Result:
    """Return what a function opens at the channel PATH, MNT/PATH or STORE/PATH; RelayError: there is no such channel.

    mount: as for find_root()
    open_it: is called with the mount or store, and the channel's path in it; OSError
    """
    for root, path in _places(what, mount):
        try:
            return open_it(root, path)
        except OSError as error:
            if error.errno not in _NONE_THERE or not path:
                raise
    raise none_there(root, path, root.place if os.path.isabs(what) else mount)


def none_there(root: Root, path: str, mount: str | None) -> RelayError:
    """Return the error that says that there is no channel of this path, and what there is.

    mount: which the user has named; None: other mounts are named
    """
    what_it_is = explain.what_it_is(os.path.join(root.place, path))
    if what_it_is is not None:
        return RelayError(f"{path} in {root.place} is {what_it_is}")
    there_is = channels_in(root) or "there is none at all"
    return NoChannelError(f"there is no channel {path} in {root.place}; {there_is}{other_mounts(mount)}")


def open_to_write(root: Root, path: str) -> ChannelHandle | RingsHandle:
    """Open a channel, of either type; OSError."""
    return either.attach(os.path.join(root.place, path))


def absolute(what: str) -> tuple[Root, str]:
    """Return the mount or store in which an absolute path leads to a channel, and its path there; RelayError."""
    for place, path in explain.mounts_of(what):
        return Root(place, is_store=False), path
    store = native.default_store()
    # As the library finds it: below the place of a mount that is not there, programs use the store.
    for above in (os.environ.get("RELAYFS"), store):
        if above and what.startswith(os.path.join(above, "")):
            return Root(store, is_store=True), what[len(above) :].lstrip("/")
    missing = "" if os.path.lexists(what) else ", and there is no such file or directory"
    raise RelayError(f"{what} is in no mount of relayfs, nor in the store {store}{missing}")


def _places(what: str, mount: str | None) -> Iterator[tuple[Root, str]]:
    """Yield where it may be: a mount or a store, and the path in it."""
    if os.path.isabs(what):
        yield absolute(what)
        return
    if mount is None and "/" in what:
        for place, path in explain.mounts_of(what):
            yield Root(place, is_store=False), path
    yield find_root(mount), what


def channels_in(root: Root) -> str:
    """List the channels of a mount or store for an error message; "": there is none."""
    with suppress(OSError, RelayError):
        found = channels_of_store(root.place, traces_of(root.place)) if root.is_store else names_in(root.place, CHANNEL)
        return listed("channels", list(found))
    return ""
