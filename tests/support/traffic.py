"""Numbered lines for relay files: those who write them, and what must come out.

    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel)
    stream.start()
    got = run_some_tool(stream.file)
    assert got + stream.rest() == lines(stream.written)

The producer is a C or a Python program, pinned to the CPU whose relay file it is.
"""

import glob
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import forking
from build import compile_c, run_command
from mounts import DEADLINE_S, wait_until

from relayfs_fuse import Channel, Ring

LINE_BYTES = 31
READ_BYTES = 1 << 20
PRELOADED = 400  # lines that are there when a test begins

# As line_producer.c, with the Python API.
PYTHON_PRODUCER = """
import os, select, sys
from relayfs_fuse import Channel

path, (cpu, first, burst, pause_ms) = sys.argv[1], map(int, sys.argv[2:6])
most = int(sys.argv[6]) if len(sys.argv) > 6 else -1
if cpu >= 0:
    os.sched_setaffinity(0, {cpu})
n = 0
with Channel(path) as channel:
    while True:
        for _ in range(burst if most < 0 else min(burst, most - n)):
            channel.write(b"line %08d ................\\n" % (first + n))
            n += 1
        readable, _, _ = select.select([0], [], [], None if n == most else pause_ms / 1000)
        if readable and not os.read(0, 1):
            break
print(n)
"""


def lines(n: int, first: int = 0) -> bytes:
    """Return n lines, as producers write them."""
    return b"".join(b"line %08d ................\n" % number for number in range(first, first + n))


def append(path: Path, data: bytes) -> None:
    """One write(2), one record."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


@contextmanager
def writing(channel: Path) -> Iterator[Callable[[bytes], object]]:
    """Give the function that writes a record into a channel of a directory `app`, of either type."""
    if Path(f"{channel.parents[1]}/.channels/app/{channel.name}/ring_size").exists():
        with Ring(channel) as ring:
            yield ring.output
    else:
        with Channel(channel) as opened:
            yield opened.write


def write_in_turn(channel: Path, *records: bytes) -> None:
    """Write records into a channel of a directory `app` in turn on the first and the last CPU."""
    cpus = os.sched_getaffinity(0)
    with writing(channel) as write:
        for i, record in enumerate(records):
            os.sched_setaffinity(0, {max(cpus) if i % 2 else min(cpus)})
            write(record)
    os.sched_setaffinity(0, cpus)


def short_lines(n: int, first: int = 0) -> bytes:
    """Return n lines of 12 bytes."""
    return b"".join(b"line %06d\n" % number for number in range(first, first + n))


class Mounted(Protocol):
    """What is needed here of mounts.Mount."""

    path: Path

    def shown(self, path: str, name: str) -> str: ...


def some_cpu() -> int:
    """Return a CPU that this process may use."""
    return min(os.sched_getaffinity(0))


def drain(file: Path) -> bytes:
    """Read what there is."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        got = b""
        while piece := os.read(descriptor, READ_BYTES):
            got += piece
            assert len(got) <= os.fstat(descriptor).st_size, "more than was ever written: it is given again and again"
        return got
    finally:
        os.close(descriptor)


def n_asleep(pid: int, file: Path) -> int:
    """Count the threads that sleep in a system call whose first argument is a descriptor of the file."""
    n = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            words = (task / "syscall").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if len(words) > 1 and Path(f"/proc/{pid}/fd/{int(words[1], 16) & 0xFFFFFFFF}").is_symlink():
            n += os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}") == str(file)
    return n


def is_open(file: Path) -> bool:
    """Whether anybody has it open."""
    for descriptor in glob.glob("/proc/[0-9]*/fd/*"):  # which goes on when a process has ended
        try:
            if os.readlink(descriptor) == str(file):
                return True
        except OSError:
            continue
    return False


def wait_open(file: Path) -> None:
    """Wait until somebody has it open."""
    wait_until(lambda: is_open(file), f"{file} is opened")


def wait_asleep(process: subprocess.Popen[bytes], file: Path, n: int = 1) -> None:
    """Wait until n threads of a process do."""
    wait_until(lambda: n_asleep(process.pid, file) == n, f"{process.args!r} sleeps in read(2)")


def producer_command(kind: str, channel: Path, cpu: int, *numbers: int) -> list[str]:
    """Return the command line of a producer; numbers: first line, lines at a time, pause in ms, at most."""
    if kind == "python":
        return [sys.executable, "-c", PYTHON_PRODUCER, str(channel), str(cpu), *map(str, numbers)]
    program = compile_c([Path(__file__).parent / "programs/line_producer.c"])
    return run_command(program, channel, cpu, *numbers)


@dataclass
class Stream:
    """One relay file, and somebody who adds lines to it on its CPU."""

    mount: Mounted
    channel: str
    kind: str = "c"
    cpu: int = field(default_factory=some_cpu)
    written: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Its path below the mountpoint."""
        return f"{self.channel}{self.cpu}"

    @property
    def file(self) -> Path:
        return self.mount.path / self.name

    def start(
        self,
        burst: int = 20,
        pause_ms: int = 10,
        at_most: int | None = None,
        user: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Let a producer add `burst` lines, pause, and again, until it has added at_most or is told to end."""
        numbers = [self.written, burst, pause_ms, *([] if at_most is None else [at_most])]
        self.process = forking.start(
            producer_command(self.kind, self.mount.path / self.channel, self.cpu, *numbers),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, user=user, group=user,
            extra_groups=None if user is None else [], env=environment,
        )  # fmt: skip

    def write(self, n: int) -> None:
        """Add exactly n lines now."""
        self.start(burst=n, at_most=n)
        assert self.finish() >= n

    def finish(self) -> int:
        """Let the producer end; return how many lines have been written so far."""
        if self.process is not None:
            out, err = self.process.communicate(timeout=DEADLINE_S)
            assert self.process.returncode == 0, err.decode()
            self.process = None
            self.written += int(out)
        return self.written

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def rest(self) -> bytes:
        """End the producer and read what is left."""
        self.finish()
        return drain(self.file)

    def shown(self, name: str) -> int:
        """Return a counter of this relay file."""
        return int(self.mount.shown(self.channel, f"buffer{self.cpu}/{name}"))


@contextmanager
def streaming(mount: Mounted, options: str = "", kind: str = "c") -> Iterator[Stream]:
    """Make the channel app/cpu; its producer, if one is started, does not outlive the context."""
    stream = Stream(mount, "app/cpu", kind)
    mount.create(stream.channel, options)
    yield stream
    stream.kill()


def at_once(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call a function with each of these, each time in another thread; return what it returned."""
    given = list(arguments)
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(function, given))


def open_at_once(file: Path, ways: Sequence[int], times: int) -> None:
    """Open a file so many times in each way, as flags of open(2), from three threads a way; all must succeed."""

    def hammer(flags: int) -> None:
        for _ in range(times):
            os.close(os.open(file, flags))

    at_once(hammer, [*ways] * 3)
