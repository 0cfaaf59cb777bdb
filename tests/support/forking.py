"""Start servers as forks of a process that has imported them: Python's imports are most of what a start costs.

    test ---- arguments, environment ----> importer ---- fork ----> keeper ---- fork ----> server
        <------------------- the server's process id, and later its exit status ----'

The importer (importer.py) does nothing but import the command relayfs, and fork. A server so started goes on with
that command's main(): it has the arguments, environment, working directory, CPUs and descriptors 0 to 2 that it would
have as a program. Only /proc/PID/cmdline is the importer's.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

RELAYFS = Path(sys.executable).with_name("relayfs")


class ForkedServer:
    """A server, with those parts of subprocess.Popen that tests use."""

    def __init__(self, status: BinaryIO) -> None:
        self._status = status
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. subprocess.TimeoutExpired: it runs on."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(RELAYFS), timeout or 0.0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal to the server, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _importer() -> socket.socket:
    """Start the process that imports; return what it takes requests from."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, Path(__file__).with_name("importer.py"), str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], cwd="/")

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def start_server(arguments: list[str], log: BinaryIO, own_session: bool) -> ForkedServer:
    """Run the command relayfs.

    arguments: behind the command's name
    log: its standard output and standard error
    own_session: whether it leads a session
    """
    request = {
        "arguments": [str(RELAYFS), *arguments],
        "environment": dict(os.environ),
        "cpus": sorted(os.sched_getaffinity(0)),
        "own_session": own_session,
    }
    reading, writing = os.pipe()
    try:
        socket.send_fds(_importer(), [json.dumps(request).encode()], [log.fileno(), writing])
    finally:
        os.close(writing)
    return ForkedServer(open(reading, "rb", buffering=0))
