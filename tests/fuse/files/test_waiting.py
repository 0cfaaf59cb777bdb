"""Processes that sleep for data: what wakes them, what ends them, and that nothing is lost over it."""

import os
import pty
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, wait_until, wait_until_quick
from stress import is_long
from traffic import LINE_BYTES, Stream, lines, n_asleep, streaming, wait_asleep

from relayfs_fuse import Channel
from relayfs_fuse.native import Buffer

pytestmark = pytest.mark.one_mount

# What is promised (100 ms, 50 ms) benchmarks/bench_latency.py measures; here a noisy machine must not fail.
# The server looks again every second on its own: who hears of data only then was not woken.
WAKE_MEDIAN_S = 0.3

# Reads on through signals, as Python does, and shows all it gets.
STUBBORN_READER = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
file = os.open(sys.argv[1], os.O_RDONLY)
print("ready", file=sys.stderr, flush=True)
while data := os.read(file, 1 << 20):
    os.write(1, data)
"""

THREADED_READER = """
import os, sys, threading
for _ in range(20):
    threading.Thread(target=lambda: os.read(os.open(sys.argv[1], os.O_RDONLY), 1)).start()
"""


def start_cat(file: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["cat", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_asleep(process, file)
    return process


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    """A relay file whose readers sleep."""
    with streaming(mount, "read=wait") as stream:
        yield stream


# --- read(2) ---


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_sleeping_cat_at_once_and_the_next_reader_gets_what_comes(
    stream: Stream, signum: signal.Signals
) -> None:
    for _ in range(10):
        cat = start_cat(stream.file)
        cat.send_signal(signum)
        assert cat.communicate(timeout=DEADLINE_S) == (b"", b"")
        assert cat.returncode == -signum
    stream.write(10)
    cat = start_cat(stream.file)
    stream.write(10)
    stream.mount.command(f"remove {stream.channel}")
    assert cat.communicate(timeout=DEADLINE_S)[0] == lines(20)


def test_control_c_at_a_terminal_ends_a_sleeping_cat_at_once(stream: Stream) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execlp("cat", "cat", str(stream.file))
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "cat\n" and n_asleep(pid, stream.file), "cat sleeps")
    os.write(terminal, b"\x03")
    status: list[int] = []
    waiter = threading.Thread(target=lambda: status.append(os.waitpid(pid, 0)[1]))
    waiter.start()
    waiter.join(DEADLINE_S)
    os.close(terminal)
    assert [os.waitstatus_to_exitcode(each) for each in status] == [-signal.SIGINT]


def test_a_kill_ends_all_sleeping_threads_of_a_process_at_once(stream: Stream) -> None:
    reader = forking.start([sys.executable, "-c", THREADED_READER, stream.file])
    wait_asleep(reader, stream.file, 20)
    reader.kill()
    reader.wait(DEADLINE_S)
    stream.write(3)
    assert os.read(os.open(stream.file, os.O_RDONLY), 1000) == lines(3)


def test_a_stopped_reader_goes_on_where_it_was(stream: Stream) -> None:
    cat = start_cat(stream.file)
    for _ in range(5):
        cat.send_signal(signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{cat.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stops")
        cat.send_signal(signal.SIGCONT)
        wait_asleep(cat, stream.file)
    stream.write(10)
    stream.mount.command(f"remove {stream.channel}")
    assert cat.communicate(timeout=DEADLINE_S) == (lines(10), b"")


def test_signals_while_data_arrives_lose_nothing(stream: Stream) -> None:
    reader = forking.start(
        [sys.executable, "-c", STUBBORN_READER, stream.file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reader.stderr is not None
    reader.stderr.readline()
    output: list[bytes] = []
    collector = threading.Thread(target=lambda: output.append(reader.communicate()[0]))
    collector.start()
    stream.start(burst=1, pause_ms=1)
    dice = random.Random(1)
    n_signals = 0

    def disturb() -> bool:
        nonlocal n_signals
        time.sleep(dice.random() / 500)  # any moment will do for a signal
        reader.send_signal(signal.SIGUSR1)
        n_signals += 1
        return stream.shown("records") >= 1500 and n_signals >= 200

    wait_until(disturb, "records are written")
    n_lines = stream.finish()
    stream.mount.command(f"remove {stream.channel}")
    collector.join(DEADLINE_S)
    assert output == [lines(n_lines)]


def test_each_byte_goes_to_exactly_one_of_several_sleeping_readers(stream: Stream) -> None:
    readers = [start_cat(stream.file) for _ in range(5)]
    outputs: list[bytes] = []
    collectors = [threading.Thread(target=lambda cat=cat: outputs.append(cat.communicate()[0])) for cat in readers]
    for collector in collectors:
        collector.start()
    stream.start(burst=2, pause_ms=1, at_most=2000)
    wait_until(lambda: stream.shown("records") == 2000, "all is written")
    stream.finish()
    stream.mount.command(f"remove {stream.channel}")
    for collector in collectors:
        collector.join(DEADLINE_S)
    got = [output[at : at + LINE_BYTES] for output in outputs for at in range(0, len(output), LINE_BYTES)]
    assert b"".join(sorted(got)) == lines(2000)
    for output in outputs:
        own = output.splitlines()
        assert own == sorted(own)


def test_all_sleeping_readers_end_when_the_channel_is_removed_and_drained(stream: Stream) -> None:
    readers = [start_cat(stream.file) for _ in range(5)]
    stream.mount.command(f"remove {stream.channel}")
    for reader in readers:
        assert reader.communicate(timeout=DEADLINE_S) == (b"", b"")
        assert reader.returncode == 0


def test_a_reader_sleeps_through_a_reset_and_gets_what_comes(stream: Stream) -> None:
    cat = start_cat(stream.file)
    stream.mount.command(f"reset {stream.channel}")
    stream.write(5)
    stream.mount.command(f"remove {stream.channel}")
    assert cat.communicate(timeout=DEADLINE_S)[0] == lines(5)


# --- poll(2), select(2), epoll(7) ---


@pytest.fixture
def small(mount: Mount) -> Path:
    """A relay file, read=nowait and delivery=bulk, of 16 sub-buffers of 64 bytes."""
    return mount.create("small", "buffers=single subbuf_size=64 n_subbufs=16 delivery=bulk")


def by_poll(descriptor: int, timeout_s: float) -> int:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return dict(poll.poll(timeout_s * 1000)).get(descriptor, 0)


def by_select(descriptor: int, timeout_s: float) -> int:
    return select.POLLIN if select.select([descriptor], [], [], timeout_s)[0] else 0


def by_epoll(descriptor: int, timeout_s: float, flags: int = select.EPOLLIN) -> int:
    with select.epoll() as epoll:
        epoll.register(descriptor, flags)
        return dict(epoll.poll(timeout_s)).get(descriptor, 0)


def by_edge(descriptor: int, timeout_s: float) -> int:
    return by_epoll(descriptor, timeout_s, select.EPOLLIN | select.EPOLLET)


WAYS = pytest.mark.parametrize("way", [by_poll, by_select, by_epoll, by_edge])
Way = Callable[[int, float], int]


def when_asleep(act: Callable[[], object]) -> threading.Thread:
    """Do something once the calling thread sleeps."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/syscall")

    def run() -> None:
        # Python's own lock makes a thread sleep, too, with a user's address as the first argument, as poll does: so
        # see it twice in the same call.
        wait_until(lambda: (seen := status.read_text()) != "running\n" and seen == status.read_text(), "it sleeps")
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def delay_of(way: Way, descriptor: int, act: Callable[[], object]) -> float:
    """Sleep until what is done meanwhile makes the descriptor readable; return how long after it that was."""
    acted = []

    def timed() -> None:
        acted.append(time.monotonic())
        act()

    thread = when_asleep(timed)
    assert way(descriptor, DEADLINE_S) & select.POLLIN
    woken = time.monotonic()
    thread.join()
    return woken - acted[0]


@WAYS
def test_a_finished_sub_buffer_wakes_a_sleeper(small: Path, way: Way) -> None:
    descriptor = os.open(small, os.O_RDONLY)
    with Channel(small) as channel:

        def delay_s() -> float:
            channel.write(bytes(60))
            assert not way(descriptor, 0), "a sub-buffer that is not finished is no event"
            delay = delay_of(way, descriptor, lambda: channel.write(bytes(60)))
            channel.flush()
            assert len(os.read(descriptor, 1000)) == 120
            return delay

        wait_until_quick(delay_s, 20, WAKE_MEDIAN_S)
    os.close(descriptor)


@WAYS
def test_a_flush_wakes_a_sleeper(small: Path, mount: Mount, way: Way) -> None:
    descriptor = os.open(small, os.O_RDONLY)
    with Channel(small) as channel:
        channel.write(b"x")
    thread = when_asleep(lambda: mount.command("flush small"))
    assert way(descriptor, DEADLINE_S) & select.POLLIN
    thread.join()
    os.close(descriptor)


@WAYS
def test_any_record_wakes_a_sleeper_with_packets(mount: Mount, way: Way) -> None:
    path = mount.create("packets", "buffers=single delivery=packet")
    descriptor = os.open(path, os.O_RDONLY)
    with Channel(path) as channel:

        def delay_s() -> float:
            delay = delay_of(way, descriptor, lambda: channel.write(b"x"))
            assert os.read(descriptor, 10) == b"x"
            return delay

        wait_until_quick(delay_s, 20, WAKE_MEDIAN_S)
    os.close(descriptor)


WAITERS = [(by_edge, ""), (by_poll, ""), (None, "read=wait")]


@pytest.mark.parametrize(("way", "options"), WAITERS, ids=["epoll", "poll", "read"])
def test_a_writer_wakes_a_reader_that_keeps_up_at_most_once_a_millisecond(
    mount: Mount, way: Way | None, options: str
) -> None:
    """A wake-up is a system call of the writer; the buffer counts them."""
    path = mount.create("rested", f"buffers=single {options}")
    ended, got = threading.Event(), bytearray()

    def read() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        with select.epoll() as epoll:
            epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            while not got.endswith(b"E"):
                assert way is None or (epoll.poll(DEADLINE_S) if way is by_edge else way(descriptor, DEADLINE_S))
                got.extend(os.read(descriptor, 1 << 16))
        os.close(descriptor)
        ended.set()

    reader = threading.Thread(target=read)
    with Channel(path) as channel, closing(Buffer(str(mount.store / "rested/mem0"))) as memory:
        reader.start()
        started, before, n = time.monotonic(), memory.wake_seq(), 0
        while time.monotonic() - started < 1.0:
            channel.write(b"x")
            n += 1
            time.sleep(0.0001)  # a writer that a reader keeps up with
        passed_ms, wakes = (time.monotonic() - started) * 1000, memory.wake_seq() - before
        channel.write(b"E")
        assert ended.wait(DEADLINE_S)
    reader.join()
    assert got == b"x" * n + b"E"
    assert wakes <= passed_ms + 2


@WAYS
def test_removal_wakes_a_sleeper_and_reads_end_after_what_is_left(small: Path, mount: Mount, way: Way) -> None:
    descriptor = os.open(small, os.O_RDONLY)
    with Channel(small) as channel:
        channel.write(b"left")
    thread = when_asleep(lambda: mount.command("remove small"))
    events = way(descriptor, DEADLINE_S)
    thread.join()
    assert events
    assert by_poll(descriptor, 0) & (select.POLLERR | select.POLLHUP) == select.POLLERR | select.POLLHUP
    assert os.read(descriptor, 100) == b"left"
    assert os.read(descriptor, 100) == b""
    assert by_poll(descriptor, 0) & (select.POLLERR | select.POLLHUP) == select.POLLERR | select.POLLHUP
    os.close(descriptor)


def test_flush_interval_wakes_a_sleeper_for_a_partial_sub_buffer(mount: Mount) -> None:
    path = mount.create("timed", "buffers=single flush_interval=100 delivery=bulk")
    descriptor = os.open(path, os.O_RDONLY)
    with Channel(path) as channel:
        thread = when_asleep(lambda: channel.write(b"x"))
        assert by_poll(descriptor, 0.1 + DEADLINE_S) & select.POLLIN
        thread.join()
    assert os.read(descriptor, 10) == b"x"
    os.close(descriptor)


@pytest.mark.stress
@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not reading"])
def test_an_edge_triggered_epoll_hears_each_of_many_switches(mount: Mount, reads: bool) -> None:
    n_switches = 10_000 if is_long() else 2000  # a reader is woken at most once a millisecond
    path = mount.create("edge", "buffers=single mode=overwrite subbuf_size=32 n_subbufs=4 delivery=bulk")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with Channel(path) as channel, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        channel.write(bytes(32))
        for n in range(n_switches):
            channel.write(bytes(32))  # the switch comes with the write after the one that filled
            assert epoll.poll(DEADLINE_S), f"deaf after {n} switches"
            if reads:
                os.read(descriptor, 1000)
    os.close(descriptor)
    assert int(mount.shown("edge", "produced")) == n_switches


def test_an_edge_triggered_epoll_that_drains_misses_nothing_of_a_running_producer(mount: Mount) -> None:
    stream = Stream(mount, "edge")
    mount.create(stream.channel, f"subbuf_size={2 * LINE_BYTES} n_subbufs=12000 delivery=bulk")
    descriptor = os.open(stream.file, os.O_RDONLY | os.O_NONBLOCK)
    stream.start(burst=20, pause_ms=1, at_most=20_002)
    got = b""
    with select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        while len(got) < 20_000 * LINE_BYTES:
            assert epoll.poll(DEADLINE_S), f"deaf after {len(got) // LINE_BYTES} lines"
            while piece := os.read(descriptor, 1 << 20):
                got += piece
    wait_until(lambda: stream.shown("records") == 20_002, "the last two lines are written")
    os.close(descriptor)
    assert got + stream.rest() == lines(20_002)
    assert stream.shown("produced") == 10_000
