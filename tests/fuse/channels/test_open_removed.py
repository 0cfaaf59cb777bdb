"""A file is removed while somebody opens it: he has it, or is told that it has gone."""

import errno
import os
import subprocess
import sys

import pytest
from mounts import DEADLINE_S, Mount

# Without care, one in eight failed with EIO.
N_TRIES = 30

# By a path that asks the server for nothing but to open it.
OPENER = """
import os, sys

os.nice(19)
path = f"/proc/self/fd/{os.open(sys.argv[1], os.O_PATH)}"
try:
    while True:
        os.close(os.open(path, os.O_RDWR))
        print("open", flush=True)
except OSError as error:
    os._exit(error.errno)  # Python's own end takes long, as the CPU is busy
"""

BUSY = "print(flush=True)\nwhile True: pass"


def start_on(cpu: int, script: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a Python program, which needs no library, on a CPU and wait for its first line."""
    process = subprocess.Popen([sys.executable, "-S", "-c", script, *map(str, arguments)], stdout=subprocess.PIPE)
    os.sched_setaffinity(process.pid, {cpu})
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.usefixtures("mapped_through")
def test_what_is_removed_before_its_opener_runs_again_is_open_or_gone(mount: Mount) -> None:
    # On a busy CPU the opener sees what the server has answered some time later: what it opens is removed by then.
    cpu = max(os.sched_getaffinity(0))
    busy = start_on(cpu, BUSY)
    try:
        for number in range(N_TRIES):
            mount.create(f"c{number}", "buffers=single")
            opener = start_on(cpu, OPENER, mount.path / f".channels/c{number}/mem0")
            mount.command(f"remove c{number}")
            opener.communicate(timeout=DEADLINE_S)
            assert opener.returncode in (errno.ENOENT, errno.ESTALE), os.strerror(opener.returncode)
    finally:
        busy.kill()
        busy.communicate()
