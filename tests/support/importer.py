"""Import the command relayfs once, and fork a server for each request: forking.py tells why and starts this program.

importer.py DESCRIPTOR      of a socket. A request is a JSON object, with two descriptors: the server's standard
                            output, and the pipe for its process id and exit status, a line each
"""

import json
import os
import socket
import sys
from contextlib import suppress

from relayfs_fuse.cli import mount


def keep(status: int) -> None:
    """Return in a new process, the server; here, tell its process id and how it ends."""
    server = os.fork()
    if server == 0:
        os.close(status)
        return
    try:
        os.write(status, b"%d\n" % server)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]))
    finally:  # also if the test has ended, and nobody reads
        os._exit(0)


def become(request: dict[str, list[str]], log: int) -> None:
    """Take what the server is given."""
    if request["own_session"]:
        os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, given in enumerate((null, log, log)):
        os.dup2(given, descriptor)
    os.close(null)
    os.close(log)
    os.sched_setaffinity(0, map(int, request["cpus"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]


def main() -> None:
    """Serve requests until the socket is closed; in a server, run it."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            return
        log, status = descriptors
        if os.fork() == 0:
            requests.close()
            keep(status)
            become(json.loads(message), log)
            mount.main()
            return
        os.close(log)
        os.close(status)
        with suppress(ChildProcessError):  # there is none any more
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass


if __name__ == "__main__":
    main()
