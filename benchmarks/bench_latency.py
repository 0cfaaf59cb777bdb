"""Measure how soon a sleeping process hears of data, and how soon a signal ends it.

    ./dev bench latency [ROUNDS]

Each line is one way to sleep on a relay file; times are from the act to the process being awake or gone, in
milliseconds. Then, on two CPUs: in microseconds, how soon another process is awake that sleeps on a futex, in
relay_reader_next(), and in poll(2) of a relay file and of the file of a FUSE server that does nothing else
(bench_latency_bare.c). The status is 1 if a median is above what is promised, or a promised ratio is missed twice.
"""

import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import TMPFS, Limit, Mount, Samples, asked, compiled, judge, mounted

from relayfs_fuse import Channel

END_MS = 100.0
WAKE_MS = 50.0
FOLLOW_MS = 2000.0
ROUNDS = 50
FOLLOW_ROUNDS = 5
RECORD = bytes(64)
WAKES = 100  # of each way in a round of wakes()
WAKE_ROUNDS = 5
LIMITS = [
    Limit("asleep in relay_reader_next(): times a futex", "library", "futex", most=1.5),
    Limit("poll(2) of a relay file: times a bare FUSE server", "poll-mount", "poll-bare", most=2.0),
]


def when_asleep(pid: int, thread: int) -> None:
    """Wait until a thread stands in the same system call twice in a row."""
    path = Path(f"/proc/{pid}/task/{thread}/syscall")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        seen = path.read_text()
        time.sleep(0.002)
        if seen != "running\n" and seen == path.read_text():
            return
    raise TimeoutError(f"{pid} does not sleep")


# --- signals ---


def end_by_signal(file: Path, signum: int) -> float:
    """Let `cat` fall asleep, send it a signal, and wait for its end."""
    cat = subprocess.Popen(["cat", file])
    wait_for_read(cat.pid, file)
    started = time.perf_counter()
    cat.send_signal(signum)
    cat.wait(10)
    return time.perf_counter() - started


def wait_for_read(pid: int, file: Path) -> None:
    """Wait until a process sleeps in a system call on a file."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        link = Path(f"/proc/{pid}/fd/{int(words[1], 16)}") if len(words) > 1 and len(words[1]) < 6 else None
        if link and link.is_symlink() and os.readlink(link) == str(file):
            return
    raise TimeoutError(f"{pid} does not read {file}")


# --- waking ---


def by_poll(descriptor: int) -> object:
    """Sleep in poll(2)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll(10_000)


def by_select(descriptor: int) -> object:
    """Sleep in select(2)."""
    return select.select([descriptor], [], [], 10)[0]


def by_epoll(descriptor: int, flags: int = 0) -> object:
    """Sleep in epoll_wait(2)."""
    with select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | flags)
        return epoll.poll(10)


def by_edge(descriptor: int) -> object:
    """Sleep in epoll_wait(2), edge-triggered."""
    return by_epoll(descriptor, select.EPOLLET)


def by_read(descriptor: int) -> object:
    """Sleep in read(2)."""
    return os.read(descriptor, 1000)


def wake(file: Path, way: Callable[[int], object], channel: Channel, before: bytes = b"") -> float:
    """Sleep in one thread, write in another.

    before: a record that is there already, whose sub-buffer the one that is written finishes
    """
    descriptor = os.open(file, os.O_RDONLY)
    if before:
        channel.write(before)
    written = 0.0
    sleeper = threading.get_native_id()

    def write() -> None:
        nonlocal written
        when_asleep(os.getpid(), sleeper)
        written = time.perf_counter()
        channel.write(RECORD)

    writer = threading.Thread(target=write)
    writer.start()
    woken_by = way(descriptor)
    woken = time.perf_counter()
    writer.join()
    os.close(descriptor)
    channel.flush()
    drain(file)
    if not woken_by:
        raise TimeoutError(f"{way.__name__} was not woken")
    return woken - written


def drain(file: Path) -> None:
    """Read what there is."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while os.read(descriptor, 1 << 20):
            pass
    except BlockingIOError:
        pass
    os.close(descriptor)


# --- following ---


def follow(file: Path, channel: Channel) -> list[float]:
    """Let `tail -f` follow a file, and time how long each line takes to appear."""
    times = []
    with subprocess.Popen(["tail", "-n", "+1", "-f", file], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        for _ in range(FOLLOW_ROUNDS):
            started = time.perf_counter()
            channel.write(b"a line\n")
            tail.stdout.readline()
            times.append(time.perf_counter() - started)
        tail.terminate()
    return times


# --- another process ---


@contextmanager
def bare(words: Path) -> Iterator[Path]:
    """Serve the file of bench_latency_bare.c, which is readable when the words in another file say so."""
    with (
        compiled("bench_latency_bare.c", "fuse3") as program,
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen([program, directory, words]) as server,
    ):
        file = Path(directory) / "file"
        end = time.monotonic() + 30
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.01)
        try:
            yield file
        finally:
            subprocess.run(["fusermount3", "-u", "-z", directory], check=True)
            server.wait(30)


def wakes(mount: Mount) -> int:
    """Judge how soon another process is awake."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("one CPU only: nobody sleeps on another one")
        return 0
    channel = mount.create("wakes", "buffers=single")
    with tempfile.NamedTemporaryFile(dir=TMPFS) as words:
        words.write(bytes(4096))
        words.flush()
        with compiled("bench_latency.c") as program, bare(Path(words.name)) as file:
            command = [program, str(WAKES), *map(str, cpus), channel, file, words.name]

            def measure() -> Samples:
                samples = Samples()
                for _ in range(WAKE_ROUNDS):
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    for name, us in map(str.split, done.stdout.splitlines()):
                        samples.add(name, float(us))
                return samples

            return judge(measure, LIMITS, "us")


# --- report ---


def report(name: str, times: list[float], limit_ms: float) -> bool:
    """Print a line; return whether the promise is kept."""
    ms = sorted(1000 * each for each in times)
    median = statistics.median(ms)
    print(f"{name:34} {median:9.2f} {ms[len(ms) * 9 // 10]:9.2f} {ms[-1]:9.2f} {limit_ms:9.0f}", flush=True)
    return median <= limit_ms


def main() -> int:
    """Measure everything and return the status."""
    rounds = asked(ROUNDS)
    good = True
    print(f"{'ms':34} {'median':>9} {'9 of 10':>9} {'most':>9} {'promised':>9}")
    with mounted() as mount:
        wait = mount.create("wait", "buffers=single read=wait")
        any_data = mount.create("any", "buffers=single")
        full = mount.create("full", "buffers=single subbuf_size=64 n_subbufs=8 delivery=bulk")
        tail = mount.create("tail", "buffers=single")
        for signum in (signal.SIGINT, signal.SIGKILL):
            times = [end_by_signal(wait, signum) for _ in range(rounds)]
            good &= report(f"cat asleep, {signum.name}", times, END_MS)
        with Channel(wait) as channel:
            times = [wake(wait, by_read, channel) for _ in range(rounds)]
            good &= report("read, a record", times, WAKE_MS)
        ways = {"poll": by_poll, "select": by_select, "epoll, level": by_epoll, "epoll, edge": by_edge}
        with Channel(any_data) as channel:
            for name, way in ways.items():
                times = [wake(any_data, way, channel) for _ in range(rounds)]
                good &= report(f"{name}, a record", times, WAKE_MS)
        with Channel(full) as channel:
            for name, way in ways.items():
                times = [wake(full, way, channel, before=RECORD) for _ in range(rounds)]
                good &= report(f"{name}, a full sub-buffer", times, WAKE_MS)
        with Channel(tail) as channel:
            good &= report("tail -f, a line", follow(tail, channel), FOLLOW_MS)
        print()
        return wakes(mount) or (0 if good else 1)


if __name__ == "__main__":
    sys.exit(main())
