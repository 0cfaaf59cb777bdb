"""What servers of different versions tell each other when one takes over the mount of the other.

supervisor                         server of another version
            <--- READY, about itself, as JSON; or REFUSED, why
    --- about the server before, as JSON --->

supervisor --- REPLACED ---> server before
"""

from __future__ import annotations

from typing import Any

from relayfs_fuse import native

# The version of all that one server leaves to another one: what this module says, handover.py, the notes, what
# native/fuse/handover.c and lane.c keep, what native/src/buffer/peek.c and ring/peek.c save, and how inode numbers are
# chosen (tree.py), but not of which names there are. A server cannot take over from one with another version of these.
HANDOVER_VERSION = 6

READY, REFUSED, REPLACED = b"ready ", b"refused ", b"replaced"
# The most bytes of a message.
MESSAGE_MAX = 8192


def versions() -> dict[str, Any]:
    """Return the versions that this server and another one compare."""
    return {"version": native.VERSION, "handover": HANDOVER_VERSION, "formats": native.FORMATS}
