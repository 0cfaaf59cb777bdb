"""Start relayfs, relayctl and other scripts as forks of a process that has imported all: imports cost most of a start.

    test ---- arguments, environment, descriptors ----> importer ---- fork ----> program
        <---- the program's process id, and later its wait status ----'

The importer (importer.py) does nothing but import the two commands, fork, and wait. A program so started runs its
script, or the code after -c: it has the arguments, environment, user, working directory, CPUs and descriptors 0 to 2
that it would have if it were executed. Only /proc/PID/cmdline is the importer's, its memory is at first a copy of the
importer's, and more is imported than it needs.

>>> run([RELAYCTL, "list"], capture_output=True, text=True).stdout
"""

import atexit
import functools
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

RELAYFS, RELAYCTL = (Path(sys.executable).with_name(name) for name in ("relayfs", "relayctl"))

# What the loader, the C library and Python read of the environment when a program is executed, and never again.
READ_AT_START = re.compile(r"LD_|GLIBC_|MALLOC_|LC_|LANG|TZ|PYTHON")
# As it is before a test changes it.
ENVIRONMENT = dict(os.environ)
# Those of subprocess.Popen that a fork can have.
OPTIONS = {
    *("stdin", "stdout", "stderr", "text", "encoding", "errors", "bufsize", "cwd", "env", "start_new_session"),
    *("user", "group", "extra_groups"),
}


class Forked(subprocess.Popen):
    """A program that is started by the importer; n_files: with so many open files at most."""

    def __init__(self, command: Sequence[str | Path], *, n_files: int | None = None, **options: object) -> None:
        self._n_files = n_files
        super().__init__(command, **options)

    def _execute_child(self, *given: object) -> None:
        """Have it forked. The parameters are those of subprocess.Popen._execute_child, of which a few are used."""
        arguments, cwd, environment, own_session = given[0], given[5], given[6], given[21]
        standard, pipes = (given[10], given[13], given[15]), given[10:16]
        request = {
            "arguments": list(map(os.fsdecode, arguments)),
            "cwd": os.fsdecode(cwd or os.getcwd()),
            "environment": {**(os.environ if environment is None else environment)},
            "cpus": sorted(os.sched_getaffinity(0)),
            "own_session": own_session,
            **dict(zip(("group", "groups", "user"), given[17:20], strict=True)),
            "n_files": self._n_files,
        }
        reading, writing = os.pipe()
        self._status = os.fdopen(reading, "rb", buffering=0)
        try:
            descriptors = [number if given == -1 else given for number, given in enumerate(standard)]
            socket.send_fds(_importer(), [json.dumps(request).encode()], [*descriptors, writing])
        finally:
            os.close(writing)
        self.pid = int(self._status.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Do as os.waitpid() does for a child."""
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            return self.pid, int(self._status.readline())

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        return super()._internal_poll(_deadstate, lambda _, wait_flags: self._try_wait(wait_flags))


@functools.cache
def _importer() -> socket.socket:
    """Start the process that imports; return what it takes requests from."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, Path(__file__).with_name("importer.py"), str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], cwd="/", env=ENVIRONMENT)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


def _is_python(command: Sequence[str | Path]) -> bool:
    """Whether it is `python -c`, or a script for this Python, as the commands are."""
    program = Path(command[0])
    if program == Path(sys.executable):
        return "-c" in command[1:2]
    if not program.is_absolute() or not program.is_file():
        return False
    with program.open("rb") as file:
        return file.readline() == f"#!{sys.executable}\n".encode()


def start(command: Sequence[str | Path], *, n_files: int | None = None, **options: object) -> subprocess.Popen:
    """Do as subprocess.Popen() does, with a fork if Python is started so that it makes no difference.

    n_files: with so many open files at most
    """
    if (
        _is_python(command)
        and OPTIONS.issuperset(options)
        and _read_at_start(options.get("env") or os.environ) == _read_at_start(ENVIRONMENT)
    ):
        return Forked(command, n_files=n_files, **options)
    limit = [] if n_files is None else ["prlimit", f"--nofile={n_files}:{n_files}"]
    return subprocess.Popen([*limit, *command], **options)


def run(
    command: Sequence[str | Path], *, timeout: float | None = None, capture_output: bool = False,
    input: str | bytes | None = None, check: bool = False, **options: object,  # noqa: A002  # as there
) -> subprocess.CompletedProcess:  # fmt: skip
    """Do as subprocess.run() does, with start()."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(command, **options) as process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done
