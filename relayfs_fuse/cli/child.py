"""Child processes of a supervisor: each has a connection to it, and dies with it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time

# On each of these signals a server unmounts and ends.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.002
_libc = ctypes.CDLL(None)


def fork() -> tuple[int, socket.socket]:
    """Fork; return the child's process id, 0 in the child, and the end of the connection of the process that returns.

    In the child SIGNALS are blocked: until it has handlers, they wait.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    supervisor = os.getpid()
    child = os.fork()
    if child:
        its.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return child, ours
    die_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)
    ours.close()
    signal.set_wakeup_fd(-1)
    return 0, its


def wait(child: int, most_s: float) -> int | None:
    """Wait so long until a child has ended; return its status, as waitpid(2) does. None: it has not ended.

    A process that was killed goes on sleeping in a system call that waits for a disk or a file server.
    """
    deadline = time.monotonic() + most_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOOK_S)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
