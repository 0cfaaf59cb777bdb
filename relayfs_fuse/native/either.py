"""Channels of either type, relay buffers or rings, to write to."""

from __future__ import annotations

import errno

from relayfs_fuse.native.channel import ChannelHandle
from relayfs_fuse.native.ring import RingsHandle

_RING = "type=ring"


def attach(path: str) -> ChannelHandle | RingsHandle:
    """Attach to a channel; OSError.

    path: the path of its relay files without the number
    """
    try:
        return ChannelHandle(path)
    except OSError as error:
        if error.errno != errno.EMEDIUMTYPE:
            raise
    return RingsHandle(path)


def make(path: str, options: str) -> ChannelHandle | RingsHandle:
    """Make a channel, which remains after close(), and attach to it; OSError.

    options: what may follow `create PATH` in the control file
    """
    words = options.split()
    others = " ".join(word for word in words if word != _RING)
    return RingsHandle(path, others) if _RING in words else ChannelHandle(path, others)
