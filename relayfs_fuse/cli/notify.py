"""Tell systemd, or whoever else started this process, how far it is: the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state such as READY=1 to the socket that the environment names; if it names none, nobody wants to know.

    A socket that does not take it is only logged: the mount works.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            # With @ for the null byte of a name that is in no file system.
            to.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET=%s did not take %s: %s", address, state, error.strerror or error)
