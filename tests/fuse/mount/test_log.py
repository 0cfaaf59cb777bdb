"""The server's log keeps nobody waiting, and says what it lacks."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, RELAYFS, wait_until

from relayfs_fuse.fs.log_writer import LINES_MAX

# What the pipe holds, which is less than a log of so many lines.
PIPE_BYTES = 4096
N_REFUSED = LINES_MAX + 500

REFUSED = """
import errno, os, sys

control = os.open(sys.argv[1], os.O_WRONLY)
for n in range(int(sys.argv[2])):
    try:
        os.write(control, b"nonsense-%d\\n" % n)
    except OSError as error:
        assert error.errno == errno.EINVAL
    else:
        raise AssertionError(n)
"""


@dataclass
class Server:
    """One whose log goes to a pipe that nobody reads yet."""

    process: subprocess.Popen[bytes]
    control: Path
    reader: int

    def flood(self) -> None:
        """Have more commands refused, each of which is logged, than the log has room for."""
        child = forking.start([sys.executable, "-c", REFUSED, self.control, str(N_REFUSED)])
        try:
            assert child.wait(DEADLINE_S) == 0
        finally:
            child.kill()  # where the server does not answer, it ends with the server

    def read_on(self) -> threading.Thread:
        """Read the log from now on, to its end."""
        self.log = b""

        def read() -> None:
            while piece := os.read(self.reader, 65536):
                self.log += piece

        thread = threading.Thread(target=read)
        thread.start()
        return thread


@pytest.fixture
def server(tmp_path: Path, scratch_store: Path) -> Iterator[Server]:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    process = subprocess.Popen([RELAYFS, "-f", mountpoint, "-o", f"store={scratch_store}"], stderr=writer, cwd="/")
    os.close(writer)
    try:
        wait_until((mountpoint / "control").exists, "it is mounted")
        yield Server(process, mountpoint / "control", reader)
    finally:
        process.kill()
        process.wait()
        subprocess.run(["fusermount3", "-u", "-z", "-q", mountpoint], check=False, capture_output=True)
        os.close(reader)


def test_what_a_log_lacks_that_nobody_read_for_a_while_is_counted_in_its_place(server: Server) -> None:
    server.flood()
    thread = server.read_on()
    wait_until(lambda: b"missing" in server.log, "the log tells what it lacks")
    server.flood()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    thread.join(DEADLINE_S)
    next_one = n_missing = 0
    for line in server.log.decode().splitlines():
        if missing := re.search(r"WARNING: (\d+) lines of the log are missing here", line):
            n_missing += int(missing[1])
            next_one += int(missing[1])
        elif refused := re.search(r"nonsense-(\d+)", line):
            assert int(refused[1]) == next_one % N_REFUSED, line
            next_one += 1
    assert n_missing > 0
    assert next_one == 2 * N_REFUSED


def test_a_server_ends_whose_log_nobody_reads(server: Server) -> None:
    server.flood()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    assert not server.control.exists()
