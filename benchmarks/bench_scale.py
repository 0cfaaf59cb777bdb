"""Measure what requests, ticks and commands of the server cost with 10, 1,000 and 10,000 channels.

    ./dev bench scale [CHANNELS ...]

Each channel has two buffers of 28 KiB, so 10,000 take 560 MB of /dev/shm. They are in directories of 100 below `load`,
so that a directory has as many names whatever the number of channels. Promises are ratios of the largest number to the
smallest, in the same run. The status is 1 if one is missed.
"""

import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support import TMPFS, Limit, Mount, Samples, compiled, judge, server_of

from relayfs_fuse import Channel
from relayfs_fuse.native import Buffer

COUNTS = (10, 1_000, 10_000)
BUFFERS = 2
OPTIONS = "subbuf_size=4096 n_subbufs=1 delivery=packet"
IN_DIRECTORY = 100
# Lines of one write(2) to control.
LINES = 100
TIMED = 50
WAKES = 500
LISTED = 400
IDLE_S = 5.0
PRODUCERS = 1_000
# Of how many channels it is counted what was lost.
READ = 100
# How many files are polled when it is measured what that costs while nothing comes, and to how many of all it comes.
POLLED = 300
WRITTEN = 20


@dataclass(frozen=True)
class Server:
    """A server that was started for a store, and its mount."""

    mount: Mount
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time that all threads of the server have taken, in seconds."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def resident_mb(self) -> float:
        """Return the memory that is the server's own, without the store's files, in MB."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) / 1024

    def n_descriptors(self) -> int:
        """Return how many descriptors the server has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def end(self) -> None:
        """Unmount, and wait for the server's end."""
        subprocess.run(["fusermount3", "-u", "-z", self.mount.path], check=True)
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)


def start(mount: Mount) -> Server:
    """Start a server for a store."""
    relayfs = Path(sys.executable).with_name("relayfs")
    subprocess.run([relayfs, mount.path, "-o", f"store={mount.store}"], check=True)
    return Server(mount, server_of(mount))


def name(number: int) -> str:
    """Return the path of a channel."""
    return f"load/{number // IN_DIRECTORY:03}/c{number % IN_DIRECTORY:02}"


def fill(mount: Mount, n_channels: int) -> None:
    """Make channels."""
    for first in range(0, n_channels, LINES):
        numbers = range(first, min(first + LINES, n_channels))
        mount.command("\n".join(f"create {name(number)} {OPTIONS}" for number in numbers))


def times(act: Callable[[], object], n: int = TIMED) -> list[float]:
    """Return how long each of `n` calls takes, in ms."""
    took = []
    for _ in range(n):
        begun = time.perf_counter()
        act()
        took.append(1000 * (time.perf_counter() - begun))
    return sorted(took)


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, len(values) * percent // 100)]


def wakes(mount: Mount) -> list[float]:
    """Return how long after a record poll(2) returns, in ms, of many records."""
    mount.command("create extra/wake buffers=single delivery=packet")
    file = mount.path / "extra/wake"
    took = []
    with Channel(file) as channel, file.open("rb", buffering=0) as reader:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        written = 0.0

        def write() -> None:
            nonlocal written
            time.sleep(0.004)
            written = time.perf_counter()
            channel.write(b"x")

        for _ in range(WAKES):
            thread = threading.Thread(target=write)
            thread.start()
            if not poll.poll(10_000):
                raise TimeoutError("poll(2) was not woken")
            took.append(1000 * (time.perf_counter() - written))
            thread.join()
            reader.read(4096)
    mount.command("remove extra/wake")
    return sorted(took)


def list_files(path: Path) -> None:
    """List a directory with all attributes, as `ls -la` does."""
    subprocess.run(["ls", "-la", path], check=True, stdout=subprocess.DEVNULL)


def add_requests(samples: Samples, server: Server, n: int) -> None:
    """Measure single requests."""
    mount = server.mount

    def create_and_note() -> list[float]:
        numbers = iter(range(TIMED))
        return times(lambda: mount.command(f"create extra/c{next(numbers)} {OPTIONS}"))

    samples.add(f"create {n}", percentile(create_and_note(), 50))
    numbers = iter(range(TIMED))
    samples.add(f"remove {n}", percentile(times(lambda: mount.command(f"remove extra/c{next(numbers)}")), 50))
    samples.add(f"stat control {n}", percentile(times(lambda: os.stat(mount.path / "control")), 50))
    samples.add(f"cat control {n}", percentile(times((mount.path / "control").read_bytes, 5), 50))
    samples.add(f"ls MNT {n}", percentile(times(lambda: os.listdir(mount.path)), 50))
    woken = wakes(mount)
    samples.add(f"poll wake {n}", percentile(woken, 50))
    samples.add(f"poll wake p99 {n}", percentile(woken, 99))


def add_listing(samples: Samples, server: Server, n: int) -> None:
    """Measure `ls -la` of a directory of LISTED relay files."""
    mount = server.mount
    mount.command("\n".join(f"create listed/c{number} {OPTIONS}" for number in range(LISTED // BUFFERS)))
    before_s = server.cpu_s()
    took = times(lambda: list_files(mount.path / "listed"), 3)
    samples.add(f"ls -la {LISTED} files {n}", took[0])
    samples.add(f"ls -la server us/file {n}", (server.cpu_s() - before_s) / 3 / LISTED * 1e6)
    mount.command("\n".join(f"remove listed/c{number}" for number in range(LISTED // BUFFERS)))


def cpu_of_children_s() -> float:
    """Return the processor time that programs which have ended have taken, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def add_tree(samples: Samples, server: Server, listing: Path, n: int) -> None:
    """Measure `ls -lR` of all relay files, of a tmpfs tree with as many, and of the least FUSE server with as many.

    listing: that server; see bench_scale_listing.c
    """
    n_directories = max(1, n // IN_DIRECTORY)
    with tempfile.TemporaryDirectory(dir=TMPFS) as plain, tempfile.TemporaryDirectory() as bare:
        for number in range(n):
            directory = Path(plain) / Path(name(number)).parent
            directory.mkdir(parents=True, exist_ok=True)
            for buffer in range(BUFFERS):
                (directory / f"{Path(name(number)).name}{buffer}").touch()

        def list_tree(what: str, path: Path | str, cpu_s: Callable[[], float]) -> None:
            before_s = cpu_s() + cpu_of_children_s()
            took = times(lambda: subprocess.run(["ls", "-lR", path], check=True, stdout=subprocess.DEVNULL), 1)[0]
            samples.add(f"ls -lR {what} us/file {n}", took / n / BUFFERS * 1000)
            cpu_us = (cpu_s() + cpu_of_children_s() - before_s) / n / BUFFERS * 1e6
            samples.add(f"ls -lR {what} CPU us/file {n}", cpu_us)

        command = [listing, bare, str(n_directories), str(n // n_directories * BUFFERS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as least:
            assert least.stdout is not None
            least.stdout.readline()
            list_tree("relayfs", server.mount.path / "load", server.cpu_s)
            list_tree("tmpfs", plain, float)
            list_tree("least FUSE", bare, Server(server.mount, least.pid).cpu_s)
            subprocess.run(["fusermount3", "-u", bare], check=True)


def add_idle(samples: Samples, server: Server, n: int, what: str = "") -> None:
    """Measure what the server takes while nobody asks for anything.

    what: what programs do meanwhile
    """
    server.mount.command("# answered when all channels are loaded\n")
    time.sleep(2)
    before_s = server.cpu_s()
    time.sleep(IDLE_S)
    samples.add(f"idle CPU %{what} {n}", (server.cpu_s() - before_s) / IDLE_S * 100)
    if not what:
        samples.add(f"memory MB {n}", server.resident_mb())
        samples.add(f"descriptors {n}", server.n_descriptors())


def add_polled(samples: Samples, server: Server, n: int) -> None:
    """Measure what it takes that a program polls a file of each channel, and how soon it is told of a record."""
    files = [server.mount.path / f"{name(number)}0" for number in range(n)]
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    with select.epoll() as epoll:
        for count, descriptor in enumerate(descriptors, 1):
            epoll.register(descriptor, select.EPOLLIN)
            if count == min(POLLED, n):
                add_idle(samples, server, n, f" {POLLED} polled")
        add_idle(samples, server, n, " all polled")
        buffers = {number: Buffer(f"{server.mount.store}/{name(number)}/mem0") for number in range(min(WRITTEN, n))}
        took = []
        before_s = server.cpu_s()
        for number in random.Random(1).choices(sorted(buffers), k=WAKES):
            time.sleep(0.004)
            written = time.perf_counter()
            buffers[number].write(b"x")
            if epoll.poll(10) != [(descriptors[number], select.EPOLLIN)]:
                raise TimeoutError("epoll_wait(2) was not woken for this file alone")
            took.append(1000 * (time.perf_counter() - written))
            os.read(descriptors[number], 4096)
        samples.add(f"epoll wake p99 {n}", percentile(sorted(took), 99))
        samples.add(f"epoll wake server us {n}", (server.cpu_s() - before_s) / WAKES * 1e6)
        for buffer in buffers.values():
            buffer.close()
    for descriptor in descriptors:
        os.close(descriptor)


def add_pause(samples: Samples, server: Server, n: int) -> Server:
    """Measure how long a stat(2) of a relay file takes that begins when the server dies; return its successor."""
    mount = server.mount
    os.kill(server.pid, signal.SIGKILL)
    begun = time.perf_counter()
    os.stat(mount.path / f"{name(n - 1)}0")
    samples.add(f"pause {n}", 1000 * (time.perf_counter() - begun))
    return Server(mount, server_of(mount))


def add_killed(samples: Samples, server: Server, program: Path, n: int) -> None:
    """Measure how soon it is counted as lost what producers had reserved when all of them were killed."""
    n_producers = min(PRODUCERS, n)
    paths = [server.mount.path / name(number) for number in range(n)]
    command = [program, str(n_producers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producers:
        assert producers.stdin is not None
        assert producers.stdout is not None
        producers.stdin.write("".join(f"{path}\n" for path in paths) + "\n")
        producers.stdin.flush()
        if producers.stdout.readline() != "reserved\n":
            raise RuntimeError("the producers could not reserve")
        producers.stdin.close()
        producers.stdout.readline()
    begun = time.perf_counter()
    read = range(0, n, max(1, n // READ))
    torn = sum(count_torn(server.mount, number) for number in read)
    samples.add(f"count what was lost us/channel {n}", (time.perf_counter() - begun) / len(read) * 1e6)
    if torn != len(read):
        raise RuntimeError(f"{torn} of {len(read)} reservations of killed producers are counted as lost")


def count_torn(mount: Mount, number: int) -> int:
    """Read all of a channel, and return how many records their producers never completed."""
    for buffer in range(BUFFERS):
        (mount.path / f"{name(number)}{buffer}").read_bytes()
    return mount.statistic(name(number), "lost_torn")


def measure_one(samples: Samples, program: Path, listing: Path, n: int) -> None:
    """Measure everything with a number of channels."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir=TMPFS) as store:
        mount = Mount(Path(directory), Path(store) / "store")
        server = start(mount)
        try:
            begun = time.perf_counter()
            fill(mount, n)
            samples.add(f"create in batches {n}", 1000 * (time.perf_counter() - begun) / n)
            add_requests(samples, server, n)
            add_listing(samples, server, n)
            add_idle(samples, server, n)
            server.end()
            begun = time.perf_counter()
            server = start(mount)
            samples.add(f"start {n}", 1000 * (time.perf_counter() - begun))
            add_idle(samples, server, n)
            add_polled(samples, server, n)
            server = add_pause(samples, server, n)
            add_tree(samples, server, listing, n)
            add_killed(samples, server, program, n)
        finally:
            server.end()


def measure(counts: list[int]) -> Samples:
    """Measure everything with each number of channels."""
    samples = Samples()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with compiled("bench_scale.c") as program, compiled("bench_scale_listing.c", "fuse3") as listing:
        for n in counts:
            measure_one(samples, program, listing, n)
    return samples


def main() -> int:
    """Measure, and judge."""
    counts = [int(count) for count in sys.argv[1:]] or list(COUNTS)
    few, many = counts[0], counts[-1]
    limits = [
        Limit(f"{what}: {many:,} channels, times {few:,}", f"{what} {many}", f"{what} {few}", most=2.0)
        for what in ("create", "remove", "stat control", "ls MNT", "poll wake p99", "epoll wake p99")
    ]
    limits += [
        Limit(
            f"ls -la: {many:,} channels, times {few:,}",
            f"ls -la {LISTED} files {many}",
            f"ls -la {LISTED} files {few}",
            most=2.0,
        ),
        Limit(
            f"ls -lR of {many:,} channels, times tmpfs",
            f"ls -lR relayfs us/file {many}",
            f"ls -lR tmpfs us/file {many}",
            most=10.0,
        ),
        Limit(
            f"ls -lR of {many:,} channels, times the least FUSE",
            f"ls -lR relayfs us/file {many}",
            f"ls -lR least FUSE us/file {many}",
        ),
        Limit(
            f"ls -lR of {many:,} channels, CPU, times tmpfs",
            f"ls -lR relayfs CPU us/file {many}",
            f"ls -lR tmpfs CPU us/file {many}",
        ),
        Limit(f"idle with {many:,} channels, % of a CPU", f"idle CPU % {many}", most=1.0),
        Limit(f"idle while {POLLED} files are polled, % of a CPU", f"idle CPU % {POLLED} polled {many}", most=1.0),
        Limit(f"idle while {many:,} files are polled, % of a CPU", f"idle CPU % all polled {many}", most=1.0),
        Limit(f"memory with {many:,} channels, MB", f"memory MB {many}", most=100.0),
        Limit(f"descriptors: {many:,} channels, times {few:,}", f"descriptors {many}", f"descriptors {few}", most=1.5),
        Limit(f"start with {many:,} channels, ms", f"start {many}", most=1000.0),
        Limit(f"pause after the server's death with {many:,} channels, ms", f"pause {many}", most=500.0),
    ]
    return judge(lambda: measure(counts), limits, "ms, if not said otherwise")


if __name__ == "__main__":
    sys.exit(main())
