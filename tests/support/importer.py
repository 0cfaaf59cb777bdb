"""Import relayfs and relayctl once, and fork for each request: forking.py tells why and starts this program.

importer.py DESCRIPTOR      of a socket. A request is a JSON object, with four descriptors: the program's standard ones,
                            and the pipe for its process id and its wait status, a line each
"""

import atexit
import ctypes
import gc
import json
import os
import resource
import select
import socket
import sys
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from relayfs_fuse.cli import mount, relayctl
from relayfs_fuse.tracefiles import ctf

# Reading the first one has the patterns of all declarations compiled.
EVENT = b'event {\n\tname = "a:b";\n\tid = 0;\n\tstream_id = 0;\n\tfields := struct {\n\t\tuint32_t _c;\n\t};\n};\n'


C_LIBRARY = ctypes.CDLL(None)
PR_SET_DUMPABLE = 4


def become(request: dict, standard: list[int]) -> None:
    """Take what the program is given."""
    if request["own_session"]:
        os.setsid()
    for number, given in enumerate(standard):
        os.dup2(given, number)
    os.closerange(3, 1 << 10)
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cpus"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["n_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["n_files"],) * 2)
    take_user(request["user"], request["group"], request["groups"])
    # The importer's were opened for other files. Encodings depend on the environment alone, and ours is the same.
    for number, name, mode, buffering in ((0, "stdin", "r", -1), (1, "stdout", "w", -1), (2, "stderr", "w", 1)):
        ours = getattr(sys, name)
        setattr(sys, name, os.fdopen(number, mode, buffering, ours.encoding, ours.errors, closefd=False))


def take_user(user: int | None, group: int | None, groups: list[int] | None) -> None:
    """Be somebody else, who has the process's files in /proc, as after an exec."""
    if groups is not None:
        os.setgroups(groups)
    if group is not None:
        os.setregid(group, group)
    if user is not None:
        os.setreuid(user, user)
    C_LIBRARY.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def program_of(arguments: list[str]) -> Callable[[], None]:
    """Return what runs a script, or the code after -c."""
    main = types.ModuleType("__main__")
    if "-c" in arguments[1:2]:
        name, code, sys.argv = "<string>", arguments[2], [*arguments[1:2], *arguments[3:]]
    else:
        name, code, sys.argv = arguments[0], Path(arguments[0]).read_text(), arguments
        main.__file__ = name
    sys.modules["__main__"] = main
    return partial(exec, compile(code, name, "exec"), main.__dict__)


def tell(status: int, number: int) -> None:
    """Write a line to the test, which may have ended."""
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % number)


def serve(requests: socket.socket) -> Callable[[], None] | None:
    """Fork until the socket is closed; in a program, return what runs it."""
    running: dict[int, tuple[int, int]] = {}  # by a descriptor of the process: its id, and where its status goes
    while True:
        ready = select.select([requests.fileno(), *running], [], [])[0]
        for process in running.keys() & ready:
            pid, status = running.pop(process)
            tell(status, os.waitpid(pid, 0)[1])
            os.close(status)
            os.close(process)
        if requests.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return None
        *standard, status = descriptors
        pid = os.fork()
        if pid == 0:
            requests.detach()
            request = json.loads(message)
            become(request, standard)
            return program_of(request["arguments"])
        tell(status, pid)
        running[os.pidfd_open(pid)] = pid, status
        for descriptor in standard:
            os.close(descriptor)


def run(program: Callable[[], None]) -> None:
    """Run a program, and do what Python does at its end, but for freeing all objects, which would copy them first."""
    status = 0
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    main = sys.modules["__main__"].__dict__
    if main is not globals():
        main.clear()  # what the code after -c has left open is closed
    # Python itself says what cannot be written.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main() -> None:
    """Import, and serve requests."""
    mount.import_server()
    # What a server imports when it begins to serve.
    for module in ("cli.supervisor", "cli.upgrades", "fs.handover"):
        import_module(f"relayfs_fuse.{module}")
    for module, _ in relayctl.COMMANDS.values():
        import_module(f"relayfs_fuse.cli.{module}")
    ctf.declarations_from(EVENT, 0)
    gc.freeze()  # otherwise each program's first collection would look at, and so copy, all that is imported
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        run(program)


if __name__ == "__main__":
    main()
