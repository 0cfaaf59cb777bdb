"""Tell systemd, or whoever else started this process, how far it is: the protocol of sd_notify(3).

It also keeps the mount of a service whose server runs in a mount namespace of its own, where nobody would see what it
mounts (relayfs@.service). Three processes, one after the other:

    relayfs --service-mount      outside of that namespace: mounts, keep() gives the manager the descriptor of /dev/fuse
    relayfs -f                   inside: kept() is this descriptor, which the manager passes to it; it only serves
    relayfs --service-unmount    outside, when that has ended: let_go(), then the mount is dead, and is unmounted
"""

from __future__ import annotations

import logging
import os
import select
import socket

from relayfs_fuse.errors import OptionError

log = logging.getLogger(__name__)


# The name of the descriptor of /dev/fuse.
_KEPT = "fuse"
# How long the manager may take to handle a message.
_BARRIER_MS = 10_000
# The first descriptor that a manager passes (sd_listen_fds(3)).
_LISTEN_FDS_START = 3


def notify(state: str) -> None:
    """Send a state such as READY=1 to the socket that the environment names; if it names none, nobody wants to know.

    A socket that does not take it is only logged: the mount works.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        _send(address, state)
    except OSError as error:
        log.warning("NOTIFY_SOCKET=%s did not take %s: %s", address, state, error.strerror or error)


def keep(descriptor: int) -> None:
    """Give the manager a descriptor, and return when it has it; OptionError."""
    _send_and_wait(f"FDSTORE=1\nFDNAME={_KEPT}", descriptor)


def let_go() -> None:
    """Have the manager close the descriptor that it keeps, and return when it has; OptionError."""
    _send_and_wait(f"FDSTOREREMOVE=1\nFDNAME={_KEPT}")


def kept() -> int | None:
    """Return the descriptor of /dev/fuse that the manager has passed to this process, once; None: it has not."""
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()) or _KEPT not in names:
        return None
    descriptor = _LISTEN_FDS_START + names.index(_KEPT)
    os.set_inheritable(descriptor, False)
    return descriptor


def _send_and_wait(state: str, *descriptors: int) -> None:
    """Send a state, and wait until it was handled: of a process that has ended, the manager knows no unit."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        raise OptionError("no service manager asked for this: NOTIFY_SOCKET is not set")
    done, barrier = os.pipe()
    try:
        _send(address, state, *descriptors)
        _send(address, "BARRIER=1", barrier)
        os.close(barrier)
        poll = select.poll()
        poll.register(done, 0)
        if not poll.poll(_BARRIER_MS):
            raise OptionError(f"NOTIFY_SOCKET={address}: the service manager does not answer")
    except OSError as error:
        raise OptionError(f"NOTIFY_SOCKET={address} did not take {state!r}: {error.strerror or error}") from error
    finally:
        os.close(done)


def _send(address: str, state: str, *descriptors: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        # With @ for the null byte of a name that is in no file system.
        to.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        socket.send_fds(to, [state.encode()], descriptors)
