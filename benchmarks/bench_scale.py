"""Measure what requests, ticks and commands of the server cost with 10 and with 10,000 channels.

    ./dev bench scale [CHANNELS ...]

It takes three to four minutes, and says which part it has measured. One number is compared with 10. Each channel has
two buffers of 28 KiB, so 10,000 take 560 MB of /dev/shm. They are in directories of 100 below `load`, so that a
directory has as many names whatever the number of channels. Promises are ratios of the largest number to the smallest,
in the same run. The status is 1 if one is missed.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polling import AllPoller, Poller, add_wakes, percentile
from support import TMPFS, Limit, Mount, Samples, compiled, judge, server_of

COUNTS = (10, 10_000)
BUFFERS = 2
OPTIONS = "subbuf_size=4096 n_subbufs=1 delivery=packet"
IN_DIRECTORY = 100
# Lines of one write(2) to control.
LINES = 100
# How often a request is made, in so many turns.
TIMED, TURNS = 50, 10
LISTED = 400
# How often all files are listed.
LISTINGS = 3
IDLE_S = 5.0
# A server that adds counters does so each second.
SETTLES_S = 2.5
# A server unmaps what nobody has used for two to four seconds.
UNMAPPED_S = 5.0
# So long a server lives before it is killed: several that live shorter are given up.
LIFE_S = 0.2
PRODUCERS = 1_000
KILLED = "../tests/support/programs/killed_together.c"
# Of how many channels it is asked what was lost.
READ = 100
# For each buffer that programs have open a server needs one of its descriptors, and so many for all else.
OTHER_DESCRIPTORS = 200
# How often the server is killed, by turns while a program asks for a path, and while it reads an open file.
DEATHS = 6
# How many files are polled when it is measured what that costs while nothing comes.
POLLED = 300


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
        """Return the memory of the server without the store's files, in MB, with what it shares with its supervisor."""
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


def names(n: int) -> list[str]:
    """Return the paths of so many channels."""
    return [name(number) for number in range(n)]


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


def list_files(path: Path) -> None:
    """List a directory with all attributes, as `ls -la` does."""
    subprocess.run(["ls", "-la", path], check=True, stdout=subprocess.DEVNULL)


def add_by_turns(samples: Samples, what: str, acts: Mapping[int, Callable[[], object]]) -> None:
    """Measure requests by turns, as a machine is not as busy from one moment to the next, by number of channels."""
    took: dict[int, list[float]] = {n: [] for n in acts}
    for _ in range(TURNS):
        for n, act in acts.items():
            took[n] += times(act, TIMED // TURNS)
    for n, all_took in took.items():
        samples.add(f"{what} {n}", percentile(sorted(all_took), 50))


def add_requests(samples: Samples, server: Server, n: int, few: int) -> None:
    """Measure single requests and listings, next to those in another mount, of `few` channels."""
    if n == few:
        return
    with other_mount(few) as other:
        wait_until_idle(other.mount)
        mounts = {few: other.mount, n: server.mount}

        def command(line: str, mount: Mount) -> Callable[[], None]:
            numbers = iter(range(TIMED))
            return lambda: mount.command(line.format(next(numbers)))

        for what, line in (("create", f"create extra/c{{}} {OPTIONS}"), ("remove", "remove extra/c{}")):
            add_by_turns(samples, what, {one: command(line, mount) for one, mount in mounts.items()})
        acts = {"stat control": lambda path: os.stat(path / "control"), "ls MNT": os.listdir}
        for what, act in acts.items():
            add_by_turns(samples, what, {one: partial(act, mount.path) for one, mount in mounts.items()})
        for one, mount in mounts.items():
            samples.add(f"cat control {one}", percentile(times((mount.path / "control").read_bytes, 5), 50))
        add_listing(samples, {few: other, n: server})


def add_listing(samples: Samples, servers: Mapping[int, Server]) -> None:
    """Measure `ls -la` of a directory of LISTED relay files, by turns, by number of channels."""
    took: dict[int, list[float]] = {n: [] for n in servers}
    used_s = dict.fromkeys(servers, 0.0)
    for server in servers.values():
        server.mount.command("\n".join(f"create listed/c{number} {OPTIONS}" for number in range(LISTED // BUFFERS)))
    for _ in range(TURNS):
        for n, server in servers.items():
            before_s = server.cpu_s()
            took[n] += times(partial(list_files, server.mount.path / "listed"), 1)
            used_s[n] += server.cpu_s() - before_s
    for n, server in servers.items():
        samples.add(f"ls -la {LISTED} files {n}", min(took[n]))
        samples.add(f"ls -la server us/file {n}", used_s[n] / TURNS / LISTED * 1e6)
        server.mount.command("\n".join(f"remove listed/c{number}" for number in range(LISTED // BUFFERS)))


def cpu_of_children_s() -> float:
    """Return the processor time that programs which have ended have taken, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def on_one_cpu(*processes: int) -> Iterator[None]:
    """Let other processes, and this one and what it starts, run on one CPU, for as long as the `with` statement."""
    cpus = os.sched_getaffinity(0)

    def pin(cpus: set[int]) -> None:
        for process in (*processes, os.getpid()):
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), cpus)

    pin({min(cpus)})
    try:
        yield
    finally:
        pin(cpus)


def add_tree(samples: Samples, server: Server, listing: Path, n: int) -> None:
    """Measure `ls -lR` of all relay files, of a tmpfs tree with as many, and of the least FUSE server with as many.

    Where ls and its server run on two CPUs, most of the time goes into waking the other one, unless the server moves to
    that of ls. So they are also measured on one.

    listing: that server; see bench_scale_listing.c
    """
    n_directories = max(1, n // IN_DIRECTORY)
    with tempfile.TemporaryDirectory(dir=TMPFS) as plain, tempfile.TemporaryDirectory() as bare:
        for number in range(n):
            directory = Path(plain) / Path(name(number)).parent
            directory.mkdir(parents=True, exist_ok=True)
            for buffer in range(BUFFERS):
                (directory / f"{Path(name(number)).name}{buffer}").touch()

        def list_tree(what: str, path: Path | str, served_by: Server | None = None) -> None:
            def cpu_s() -> float:
                return (served_by.cpu_s() if served_by else 0.0) + cpu_of_children_s()

            before_s = cpu_s()
            took = times(lambda: subprocess.run(["ls", "-lR", path], check=True, stdout=subprocess.DEVNULL), 1)[0]
            samples.add(f"ls -lR {what} us/file {n}", took / n / BUFFERS * 1000)
            samples.add(f"ls -lR {what} CPU us/file {n}", (cpu_s() - before_s) / n / BUFFERS * 1e6)

        command = [listing, bare, str(n_directories), str(n // n_directories * BUFFERS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as least:
            assert least.stdout is not None
            least.stdout.readline()
            least_server = Server(server.mount, least.pid)
            for _ in range(LISTINGS):
                list_tree("tmpfs", plain)
                list_tree("relayfs", server.mount.path / "load", server)
                list_tree("least FUSE", bare, least_server)
                with on_one_cpu(server.pid, least.pid):
                    list_tree("relayfs, one CPU,", server.mount.path / "load", server)
                    list_tree("least FUSE, one CPU,", bare, least_server)
            subprocess.run(["fusermount3", "-u", bare], check=True)


def add_idle(samples: Samples, server: Server, n: int, what: str = "") -> None:
    """Measure what the server takes while nobody asks for anything.

    what: what programs do meanwhile, after add_idle() without that
    """
    if what:
        time.sleep(SETTLES_S)
    else:
        wait_until_idle(server.mount)
    before_s = server.cpu_s()
    time.sleep(IDLE_S)
    samples.add(f"idle CPU %{what} {n}", (server.cpu_s() - before_s) / IDLE_S * 100)
    if not what:
        samples.add(f"memory MB {n}", server.resident_mb())
        samples.add(f"descriptors {n}", server.n_descriptors())


def add_polled(samples: Samples, server: Server, n: int, few: int) -> None:
    """Measure what it takes that a program polls a file of each channel, and how soon programs are told of a record.

    few: with how many channels this is compared, in another mount
    """
    # The pollers are closed first: the other server ends when nobody has a file of it open.
    with other_mount(few) as other, ExitStack() as stack:
        many = stack.enter_context(closing(AllPoller(server.mount, names(n), server.cpu_s)))
        many.poll(0, POLLED)
        add_idle(samples, server, n, f" {POLLED} polled")
        many.poll(POLLED, n)
        add_idle(samples, server, n, " all polled")
        samples.add(f"memory, polled MB {n}", server.resident_mb())
        if n == few:
            return
        one_of_few, one_of_many = (stack.enter_context(closing(Poller(one.mount))) for one in (other, server))
        add_wakes(samples, "poll wake", {few: one_of_few, n: one_of_many})
        all_few = stack.enter_context(closing(AllPoller(other.mount, names(few), other.cpu_s)))
        all_few.poll(0, few)
        add_wakes(samples, "epoll wake", {few: all_few, n: many})
        for count, poller in ((few, all_few), (n, many)):
            samples.add(f"epoll wake server us {count}", sum(poller.server_us) / len(poller.server_us))


def wait_until_loaded(mount: Mount) -> None:
    """Return when the server has loaded all channels: then it carries out commands."""
    mount.command("# nothing")


def wait_until_idle(mount: Mount) -> None:
    """Return when the server has loaded all channels, and added counters for as many as there is room for."""
    wait_until_loaded(mount)
    before = b""
    while before != (now := (mount.path / "counters.names").read_bytes()):
        before = now
        time.sleep(SETTLES_S)


def add_pause(samples: Samples, mount: Mount, n: int) -> Server:
    """Measure how long a request takes that begins when the server dies; return the last successor.

    That is a stat(2) of a relay file, or a read(2) of one that is open, by turns.
    """
    file = mount.path / f"{name(n - 1)}0"
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    took = []
    for number in range(DEATHS):
        wait_until_loaded(mount)
        time.sleep(LIFE_S)
        os.kill(server_of(mount), signal.SIGKILL)
        begun = time.perf_counter()
        if number % 2:
            with suppress(BlockingIOError):
                os.read(descriptor, 1)
        else:
            os.stat(file)
        took.append(1000 * (time.perf_counter() - begun))
        samples.add(f"pause {n}", took[-1])
    samples.add(f"pause, longest {n}", max(took))
    os.close(descriptor)
    wait_until_loaded(mount)
    return Server(mount, server_of(mount))


def allow_descriptors(n: int) -> None:
    """Let this process, and the servers that it starts, have descriptors for the files of n channels that are open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n * BUFFERS + OTHER_DESCRIPTORS
    # Only root may have more than `most`.
    with suppress(ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(most, wanted)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def add_killed(samples: Samples, server: Server, program: Path, n: int) -> None:
    """Measure what it takes to read all channels, and so count as lost what producers had reserved that were killed.

    The server shows it without being asked before; of READ channels it is asked. The producers have as many of the
    channels open as the server may have descriptors for.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = min(n, (most - OTHER_DESCRIPTORS) // BUFFERS)
    command = [program, str(min(PRODUCERS, used)), server.mount.path, server.mount.store]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producers:
        assert producers.stdin is not None
        assert producers.stdout is not None
        producers.stdin.write("".join(f"{one}\n" for one in names(used)) + "\n")
        producers.stdin.flush()
        if producers.stdout.readline() != "reserved\n":
            raise RuntimeError("the producers could not reserve")
        producers.stdin.close()
        producers.stdout.readline()
        torn, took_ms, cpu_ms = producers.stdout.readline().split()
    samples.add(f"killed producers, channels {n}", used)
    samples.add(f"account for killed producers {n}", float(took_ms))
    samples.add(f"account for killed producers CPU us/channel {n}", float(cpu_ms) / used * 1000)
    begun = time.perf_counter()
    read = range(0, used, max(1, used // READ))
    shown = sum(server.mount.statistic(name(number), "lost_torn") for number in read)
    samples.add(f"show what was lost us/channel {n}", (time.perf_counter() - begun) / len(read) * 1e6)
    if (int(torn), shown) != (used, len(read)):
        raise RuntimeError(
            f"{torn} of {used} reservations of killed producers are counted as lost; {shown} of {len(read)} shown"
        )


@contextmanager
def new_mount() -> Iterator[Mount]:
    """Make places for a store and a mount."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir=TMPFS) as store:
        yield Mount(Path(directory), Path(store) / "store")


@contextmanager
def other_mount(n: int) -> Iterator[Server]:
    """Mount another store, with so many channels."""
    with new_mount() as mount:
        server = start(mount)
        try:
            fill(mount, n)
            yield server
        finally:
            server.end()


def measure_one(samples: Samples, program: Path, listing: Path, n: int, few: int) -> None:
    """Measure everything with a number of channels; few: the least number."""
    began_s = time.monotonic()

    def say(part: str) -> None:
        print(f"{n:,} channels, {time.monotonic() - began_s:.0f} s: {part}", file=sys.stderr, flush=True)

    with new_mount() as mount:
        server = start(mount)
        try:
            begun = time.perf_counter()
            fill(mount, n)
            samples.add(f"create in batches {n}", 1000 * (time.perf_counter() - begun) / n)
            server.end()
            say("made")
            begun = time.perf_counter()
            server = start(mount)
            samples.add(f"start {n}", 1000 * (time.perf_counter() - begun))
            add_idle(samples, server, n)
            say("started, and idle")
            add_requests(samples, server, n, few)
            say("requests")
            add_tree(samples, server, listing, n)
            samples.add(f"memory, listed MB {n}", server.resident_mb())
            say("listed")
            add_polled(samples, server, n, few)
            time.sleep(UNMAPPED_S)
            samples.add(f"memory, polled before MB {n}", server.resident_mb())
            say("polled")
            server = add_pause(samples, mount, n)
            say("killed, and gone on")
            add_killed(samples, server, program, n)
            say("producers killed")
        finally:
            server.end()


def measure(counts: list[int]) -> Samples:
    """Measure everything with each number of channels."""
    samples = Samples()
    allow_descriptors(max(counts))
    with compiled(KILLED) as program, compiled("bench_scale_listing.c", "fuse3") as listing:
        for n in counts:
            measure_one(samples, program, listing, n, min(counts))
    return samples


def main() -> int:
    """Measure, and judge."""
    counts = [int(count) for count in sys.argv[1:]] or list(COUNTS)
    if len(counts) == 1:
        counts.insert(0, COUNTS[0])
    few, many = counts[0], counts[-1]
    limits = [
        Limit(f"{what}: {many:,} channels, times {few:,}", f"{what} {many}", f"{what} {few}", most=2.0)
        for what in (
            "create",
            "remove",
            "stat control",
            "ls MNT",
            "poll wake p50",
            "poll wake p99",
            "epoll wake p50",
            "epoll wake p99",
        )
    ]
    limits += [
        Limit(
            f"ls -la: {many:,} channels, times {few:,}",
            f"ls -la {LISTED} files {many}",
            f"ls -la {LISTED} files {few}",
            most=2.0,
        ),
        *(
            Limit(
                f"{one} of {many:,} channels, times tmpfs",
                f"{one} CPU us/file {many}",
                f"ls -lR tmpfs CPU us/file {many}",
                most=most,
            )
            for one, most in (
                ("ls -lR relayfs", 10.0),
                ("ls -lR relayfs, one CPU,", 10.0),
                ("ls -lR least FUSE", None),
                ("ls -lR least FUSE, one CPU,", None),
            )
        ),
        Limit(f"idle with {many:,} channels, % of a CPU", f"idle CPU % {many}", most=1.0),
        Limit(f"idle while {POLLED} files are polled, % of a CPU", f"idle CPU % {POLLED} polled {many}", most=1.0),
        Limit(f"idle while {many:,} files are polled, % of a CPU", f"idle CPU % all polled {many}", most=1.0),
        Limit(f"memory with {many:,} channels, MB", f"memory MB {many}", most=100.0),
        Limit("when all files were listed, MB", f"memory, listed MB {many}", most=100.0),
        Limit("while a file of each is polled, MB", f"memory, polled MB {many}"),
        Limit("after that, MB", f"memory, polled before MB {many}"),
        Limit(f"descriptors: {many:,} channels, times {few:,}", f"descriptors {many}", f"descriptors {few}", most=1.5),
        Limit(f"start with {many:,} channels, ms", f"start {many}", most=1000.0),
        Limit(f"pause at a death with {many:,} channels, ms", f"pause {many}", most=500.0),
        Limit(f"the longest of {DEATHS}", f"pause, longest {many}"),
        Limit("channels whose producers are killed together", f"killed producers, channels {many}"),
        Limit("account for all of them, ms", f"account for killed producers {many}", most=1000.0),
    ]
    status = judge(lambda: measure(counts), limits, "ms, if not said otherwise")
    if not status:
        print("\nall promises kept")
    return status


if __name__ == "__main__":
    sys.exit(main())
