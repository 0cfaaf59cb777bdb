"""The socket in a store on which `relayctl upgrade` asks the supervisor of its server."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from relayfs_fuse.fs.store_lock import SOCKET_NAME

if TYPE_CHECKING:
    from collections.abc import Callable


def connect(store: str) -> socket.socket:
    """Connect to the supervisor of the server of a store; OSError."""
    return _at_socket(store, socket.socket.connect)


def listen(store: str) -> socket.socket:
    """Return the socket on which the supervisor of the server of a store is asked.

    Its mode lets only the server's user and root connect. OSError.
    """

    def bind(listener: socket.socket, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        mask = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(mask)
        listener.listen()

    return _at_socket(store, bind)


def _at_socket(store: str, act: Callable[[socket.socket, str], object]) -> socket.socket:
    """Make a socket, and do something with it and its path, which may be longer than a socket's address."""
    directory = os.open(store, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        act(made, f"/proc/self/fd/{directory}/{SOCKET_NAME}")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made
