"""What stat(2) shows of relay files is true at that moment, though the kernel may use it for some milliseconds."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, is_stopped, opened, stop_process, wait_until

from relayfs_fuse.native import Buffer

pytestmark = pytest.mark.one_mount

N_WRITES = 30
N_LOOKUPS = 300
N_LATE = 10
RECORD = b"ten bytes\n"

# Lists a directory as `ls -l` does, until its standard input ends.
LISTER = """
import os, select, sys
print("lists", flush=True)
while not select.select([0], [], [], 0)[0]:
    for entry in os.scandir(sys.argv[1]):
        os.lstat(entry.path)
"""

# Looks at a file when it is told to, and lets the server go on.
LOOKER = """
import os, signal, sys
os.sched_setaffinity(0, {int(sys.argv[3])})
print("waits", flush=True)
input()
os.stat(sys.argv[1])
os.kill(int(sys.argv[2]), signal.SIGCONT)
input()
"""
BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("computes", flush=True)
while True: pass
"""


@pytest.fixture
def listed(mount: Mount) -> Iterator[Path]:
    """A directory that another program lists all the time."""
    mount.create("listed/other")
    command = [sys.executable, "-c", LISTER, mount.path / "listed"]
    with forking.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lister:
        assert lister.stdin is not None
        assert lister.stdout is not None
        lister.stdout.readline()
        yield mount.path / "listed"
        lister.stdin.close()


def test_a_size_is_that_of_now(listed: Path, mount: Mount) -> None:
    """The buffer is written as by a program that the server does not know of."""
    file = mount.create("listed/one", "buffers=single")
    buffer = Buffer(str(mount.store / "listed/one/mem0"))
    for n in range(1, N_WRITES):
        buffer.write(RECORD)
        assert os.stat(file).st_size == n * len(RECORD)
    buffer.close()


def test_a_size_is_that_of_now_of_a_file_that_was_just_looked_up(listed: Path, mount: Mount) -> None:
    file = mount.create("listed/one", "buffers=single")
    buffer = Buffer(str(mount.store / "listed/one/mem0"))
    for n in range(N_WRITES):
        before = os.stat(file).st_size
        with opened(file) as descriptor:
            os.stat(file)
            buffer.write(RECORD)
            sizes = {os.fstat(descriptor).st_size, os.lseek(descriptor, 0, os.SEEK_END), os.stat(file).st_size}
            assert (before, sizes) == (n * len(RECORD), {before + len(RECORD)})
    buffer.close()


def test_a_file_in_overwrite_mode_has_no_end_also_if_it_was_just_looked_up(listed: Path, mount: Mount) -> None:
    file = mount.create("listed/one", "buffers=single mode=overwrite")
    for _ in range(N_WRITES):
        os.stat(file)
        with opened(file) as descriptor, pytest.raises(OSError) as caught:
            os.lseek(descriptor, 0, os.SEEK_END)
        assert caught.value.errno == errno.ESPIPE


def test_a_name_and_a_mode_are_those_of_now(listed: Path, mount: Mount) -> None:
    for n in range(N_WRITES):
        file = mount.create("listed/one", "buffers=single")
        mode = 0o600 | n % 8
        os.stat(file)
        os.chmod(mount.store / "listed/one/mem0", mode)
        assert os.stat(file).st_mode & 0o777 == mode
        mount.command("remove listed/one\n")
        assert not file.exists()


def calls_of(process: int) -> dict[str, str]:
    """Return in which system calls the threads of a process sleep: the numbers; "running" is one that does not."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {task.name: (task / "syscall").read_text().split()[0] for task in tasks}


@contextmanager
def computing(cpu: int) -> Iterator[None]:
    """Take a CPU from programs of less priority."""
    with forking.start([sys.executable, "-c", BUSY, str(cpu)], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            yield
        finally:
            busy.kill()


def look_late(mount: Mount, file: Path) -> int:
    """Change a file's mode when a program has been told it that does not run, and runs when another one has asked.

    Return what this one was told.
    """
    server, cpu, no_priority = mount.server, max(os.sched_getaffinity(0)), os.sched_param(0)
    command = [sys.executable, "-c", LOOKER, file, str(server), str(cpu)]
    with (
        ThreadPoolExecutor(1) as pool,
        forking.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as looker,
    ):
        assert looker.stdin is not None
        assert looker.stdout is not None
        looker.stdout.readline()

        def call() -> str:
            return calls_of(looker.pid)[str(looker.pid)]

        wait_until(lambda: call() != "running", "it waits")
        waits = call()
        stop_process(server)
        looker.stdin.write(b"\n")
        wait_until(lambda: call() not in (waits, "running"), "it looks")
        looks = call()
        with computing(cpu):
            os.sched_setscheduler(looker.pid, os.SCHED_IDLE, no_priority)
            os.kill(server, signal.SIGCONT)
            wait_until(lambda: call() != looks, "it is answered")
            os.kill(server, signal.SIGSTOP)
            wait_until(lambda: is_stopped(server) or call() == waits, "the server is stopped, or let go on already")
            os.chmod(mount.store / file.name / "mem0", 0o602)
            seen = pool.submit(os.stat, file)
            wait_until(lambda: looks in calls_of(os.getpid()).values() or seen.done(), "the other one looks")
        os.sched_setscheduler(looker.pid, os.SCHED_OTHER, no_priority)
        wait_until(lambda: call() != "running", "it has let the server go on, or waits for it again")
        os.kill(server, signal.SIGCONT)
        looker.stdin.write(b"\n")
        return seen.result(DEADLINE_S).st_mode & 0o777


def test_what_another_program_was_told_before_is_not_shown(make_mount: Callable[..., Mount]) -> None:
    """The kernel takes attributes over when the thread runs that has asked for them."""
    mount = make_mount("watchdog=3600")
    for n in range(N_LATE):
        file = mount.create(f"late{n}", "buffers=single")
        os.stat(file)
        assert look_late(mount, file) == 0o602


@pytest.mark.parametrize(
    ("name", "error"), [("security.selinux", errno.EOPNOTSUPP), ("system.posix_acl_access", errno.EOPNOTSUPP),
                        ("user.nothing", errno.ENODATA)]
)  # fmt: skip
def test_a_program_learns_which_attributes_no_file_has(mount: Mount, name: str, error: int) -> None:
    file = mount.create("labels", "buffers=single")
    with pytest.raises(OSError) as caught:
        os.getxattr(file, name)
    assert caught.value.errno == error


def requests_of(mount: Mount) -> int:
    """Return how many requests of the kernel the server has answered."""
    lines = (mount.path / "counters.txt").read_text().splitlines()
    return int(dict(line.rsplit(" ", 1) for line in lines)["relayfs/server/requests"])


def test_a_terminal_that_was_asked_for_does_not_make_lookups_slow(mount: Mount) -> None:
    """A lookup that the tap answers brings the attributes; after another one the kernel asks for them, too."""
    file = mount.create("listed/one", "buffers=single")
    os.stat(file)
    before = requests_of(mount)
    with (mount.path / "control").open("ab", buffering=0) as control:
        assert not control.isatty()
        for _ in range(N_LOOKUPS):
            os.stat(file)
    wait_until(lambda: requests_of(mount) >= before + N_LOOKUPS, "all lookups are counted")
    assert requests_of(mount) < before + 1.5 * N_LOOKUPS
