"""Who sleeps for records of a ring: in read(2), poll(2), epoll(7), in the library; what wakes them, and what not."""

import errno
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import PLAIN, ROOT, compile_c, run_command
from kernel_ring import KernelRing
from lines_out import Printer, printing
from mounts import DEADLINE_S, Mount, opened, wait_until
from traffic import append, wait_asleep

from relayfs_fuse import Ring

pytestmark = pytest.mark.one_mount

# For what would come at once.
NOTHING_S = 0.3

# Reserves a record and says so; what then becomes of it is the test's to decide.
HOLDER = """
import sys
from relayfs_fuse import Ring
ring = Ring(sys.argv[1])
with ring.reserve(8) as record:
    record[:] = b"reserved"
    print("reserved", flush=True)
    sys.stdin.read()
"""


# Closes its ring while a record is reserved, and lives on.
CLOSER = """
import sys
from relayfs_fuse import Ring
ring = Ring(sys.argv[1])
reservation = ring.reserve(8)
reservation.__enter__()
ring.close()
print("closed", flush=True)
sys.stdin.read()
try:
    reservation.__exit__(None, None, None)
except OSError as error:
    sys.exit(error.errno != 22)
"""


@pytest.fixture
def file(mount: Mount) -> Path:
    return mount.create("r", "type=ring size=64K buffers=single read=wait framing=line")


@pytest.fixture
def ring(file: Path) -> Iterator[Ring]:
    with Ring(file) as ring:
        yield ring


@pytest.fixture
def mem(mount: Mount, file: Path) -> Path:
    return mount.path / ".channels/r/mem0"


@contextmanager
def cat(file: Path) -> Iterator[Printer]:
    with printing(["cat", file]) as printer:
        wait_asleep(printer.process, file)
        yield printer


# --- read(2) ---


def test_a_sleeping_cat_shows_each_record_as_it_comes(file: Path, ring: Ring) -> None:
    with cat(file) as printer:
        for n in range(100):
            ring.output(b"record %d" % n)
            assert printer.line() == b"record %d\n" % n
        append(file, b"by write(2)\n")
        assert printer.line() == b"by write(2)\n"
        with ring.reserve(4) as record:
            record[:] = b"long"
            ring.output(b"behind it")
        assert [printer.line() for _ in range(2)] == [b"long\n", b"behind it\n"]


def test_a_signal_ends_a_sleeping_cat_and_the_next_reader_gets_what_comes(file: Path, ring: Ring) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with cat(file) as printer:
            printer.process.send_signal(signum)
            assert printer.process.communicate(timeout=DEADLINE_S)[0] == b""
    with cat(file) as printer:
        ring.output(b"for the next")
        assert printer.line() == b"for the next\n"


def test_each_record_goes_to_exactly_one_of_several_sleeping_readers(mount: Mount, file: Path, ring: Ring) -> None:
    cats = [subprocess.Popen(["cat", file], stdout=subprocess.PIPE) for _ in range(4)]
    for cat in cats:
        wait_asleep(cat, file)
    for n in range(1000):
        while True:
            try:
                ring.output(b"record %03d" % n)
                break
            except BlockingIOError:
                continue
    wait_until(lambda: mount.shown("r", "unread_bytes") == "0", "all is read")
    mount.command("remove r")
    got = b"".join(cat.communicate(timeout=DEADLINE_S)[0] for cat in cats)
    assert sorted(got.splitlines()) == [b"record %03d" % n for n in range(1000)]


def test_without_blocking_an_empty_ring_says_so(file: Path, ring: Ring) -> None:
    with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 100)
        ring.output(b"now")
        assert os.read(descriptor, 100) == b"now\n"


def test_where_readers_do_not_wait_an_empty_ring_is_at_its_end(mount: Mount) -> None:
    with opened(mount.create("n", "type=ring size=4K buffers=single"), os.O_RDWR) as descriptor:
        assert os.read(descriptor, 100) == b""
        os.write(descriptor, b"now")
        assert os.read(descriptor, 100) == b"now"


# --- producers that die ---


@pytest.mark.parametrize("through", ["mount", "store"])
def test_a_producer_that_dies_lets_the_ring_go_on(mount: Mount, file: Path, ring: Ring, through: str) -> None:
    """Seen at the end of its open file, or, where it has none in the mount, by its process."""
    path = str(file) if through == "mount" else "/nowhere/r"
    environment = {**os.environ, "RELAYFS": "/nowhere", "RELAYFS_STORE": str(mount.store)}
    with printing([sys.executable, "-c", HOLDER, path], environment) as holder, cat(file) as printer:
        assert holder.line() == b"reserved\n"
        ring.output(b"behind it")
        with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor, pytest.raises(BlockingIOError):
            os.read(descriptor, 100)
        holder.process.kill()
        assert printer.line() == b"behind it\n"
    assert mount.shown("r", "lost_torn") == "1"
    assert mount.shown("r", "skipped") == "1"


def test_what_is_reserved_when_a_ring_is_closed_is_discarded(mount: Mount, file: Path, ring: Ring) -> None:
    """Its program lives on: only the open file tells."""
    with printing([sys.executable, "-c", CLOSER, file]) as closer, cat(file) as printer:
        assert closer.line() == b"closed\n"
        ring.output(b"behind it")
        assert printer.line() == b"behind it\n"
        closer.process.communicate()
        assert closer.process.returncode == 0
    assert mount.shown("r", "lost_torn") == "1"


def test_a_poller_is_told_when_a_dead_producer_held_it_up(mount: Mount, file: Path, ring: Ring) -> None:
    with printing([sys.executable, "-c", HOLDER, file]) as holder:
        assert holder.line() == b"reserved\n"
        ring.output(b"behind it")
        with opened(file) as descriptor, select.epoll() as epoll:
            epoll.register(descriptor, select.EPOLLIN)
            assert epoll.poll(0) == []
            holder.process.kill()
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert os.read(descriptor, 100) == b"behind it\n"


# --- poll(2), epoll(7) ---


def test_poll_says_what_can_be_done(mount: Mount) -> None:
    file = mount.create("s", "type=ring size=4K buffers=single")
    both = select.POLLIN | select.POLLOUT
    with opened(file, os.O_RDWR) as descriptor, Ring(file) as ring:
        poll = select.poll()
        poll.register(descriptor, both)
        assert poll.poll(0) == [(descriptor, select.POLLOUT)]
        ring.output(b"x" * 4072)
        assert poll.poll(0) == [(descriptor, select.POLLIN)]
        assert os.read(descriptor, 1) == b"x"
        assert poll.poll(0) == [(descriptor, both)]
        assert len(os.read(descriptor, 5000)) == 4071
        assert poll.poll(0) == [(descriptor, select.POLLOUT)]
        mount.command("remove s")
        assert poll.poll(0)[0][1] & (select.POLLHUP | select.POLLERR)


@pytest.mark.parametrize("by_mem", [False, True])
def test_edges_come_when_the_consumer_has_caught_up(file: Path, mem: Path, ring: Ring, by_mem: bool) -> None:
    """As with the kernel's ring (ringbuf-observed.txt, 7), through the relay file and the memory file."""
    with opened(mem if by_mem else file, os.O_RDWR) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        assert epoll.poll(0) == []
        ring.output(b"first")
        assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
        ring.output(b"second, and nothing was consumed")
        assert epoll.poll(NOTHING_S) == []
        assert len(list(ring.records(timeout=0))) == 2
        ring.output(b"third")
        assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]


@pytest.mark.parametrize("by_mem", [False, True])
def test_wake_ups_are_as_the_producer_wants_them(mount: Mount, file: Path, mem: Path, ring: Ring, by_mem: bool) -> None:
    with opened(mem if by_mem else file, os.O_RDWR) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        assert epoll.poll(0) == []
        # The server looks on its own every second, so epoll cannot tell.
        ring.output(b"quiet", wakeup=False)
        assert mount.shown("r", "wakeups") == "0"
        ring.output(b"loud", wakeup=True)
        assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
        assert len(list(ring.records(timeout=0))) == 2


def test_an_edge_comes_for_a_record_that_has_woken_nobody(mount: Mount, file: Path, ring: Ring) -> None:
    """As if its producer had been killed, or had come before the server had armed the ring again."""
    with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        for n in range(3):
            ring.output(b"loud %d" % n)
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert os.read(descriptor, 100) == b"loud %d\n" % n
            wakeups = mount.shown("r", "wakeups")
            ring.output(b"quiet %d" % n, wakeup=False)
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert os.read(descriptor, 100) == b"quiet %d\n" % n
            assert mount.shown("r", "wakeups") == wakeups


def test_wake_ups_of_batches_are_as_the_producer_wants_them(mount: Mount, file: Path, ring: Ring) -> None:
    with opened(file, os.O_RDWR) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        for batch in ({"records": [b"one"]}, {"records": b"one", "length": 3}, {"records": b"one", "separator": b"e"}):
            assert epoll.poll(0) == []
            before = mount.shown("r", "wakeups")
            assert ring.output_many(**batch, wakeup=False) == 1
            assert mount.shown("r", "wakeups") == before
            assert ring.output_many(**batch, wakeup=True) == 1
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert len(list(ring.records(timeout=0))) == 2


def test_no_edge_is_missed(file: Path, ring: Ring) -> None:
    n = 3000
    dice = random.Random(3)
    got = b""

    def produce() -> None:
        for i in range(n):
            while True:
                try:
                    ring.output(b"record %04d" % i)
                    break
                except BlockingIOError:
                    pass
            if dice.random() < 0.1:
                wait_until(lambda: ring.query("avail_data") == 0, "the consumer has caught up")

    with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        producer = threading.Thread(target=produce)
        producer.start()
        while len(got) < 12 * n:
            assert epoll.poll(DEADLINE_S), f"an edge was missed after {len(got) // 12} records"
            try:
                while piece := os.read(descriptor, 1 << 20):
                    got += piece
            except BlockingIOError:
                pass
        producer.join()
    assert got == b"".join(b"record %04d\n" % i for i in range(n))


# --- records that are discarded ---

N_RECORDS = 30000
INTERESTING = [b"interesting %d" % n for n in range(10)]


def filter_records(ring: Ring) -> None:
    """Reserve many records, of which ten are interesting; wait for room as long as it takes."""
    for n in range(1, N_RECORDS + 1):
        which, rest = divmod(n, N_RECORDS // len(INTERESTING))
        interesting = rest == 0
        data = INTERESTING[which - 1] if interesting else b"of no interest"
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                with ring.reserve(len(data)) as record:
                    if not interesting:
                        raise InterruptedError
                    record[:] = data
                break
            except InterruptedError:
                break
            except BlockingIOError:
                assert time.monotonic() < end, f"nobody makes room for record {n}"
                time.sleep(0.001)  # between two looks for room


def libbpf_consumer(mount: Mount, _: Path) -> list[str | Path]:
    source = Path(__file__).with_name("libbpf_consumer.c")
    program = compile_c([source], None, PLAIN, "-Xlinker", "--no-as-needed", "-lbpf")
    return [*run_command(program), mount.path / ".channels/r/mem0", str(64 << 10), str(len(INTERESTING))]


def c_example(_: Mount, file: Path) -> list[str | Path]:
    return [*run_command(compile_c([ROOT / "examples/ring_consumer.c"])), file]


CONSUMERS: dict[str, Callable[[Mount, Path], list[str | Path]]] = {
    "cat": lambda _, file: ["cat", file],
    "libbpf": libbpf_consumer,
    "ring_consumer.c": c_example,
    "ring_consumer.py": lambda _, file: [sys.executable, ROOT / "examples/ring_consumer.py", file],
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_filter_that_discards_nearly_all_delivers_the_rest(
    mount: Mount, file: Path, ring: Ring, consumer: str, mapped_through: None
) -> None:
    """The ring holds some 2,700 of these records."""
    command = CONSUMERS[consumer](mount, file)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        filter_records(ring)
        wait_until(lambda: mount.shown("r", "unread_bytes") == "0", "all is consumed")
        mount.command("remove r")
        out = process.communicate(timeout=DEADLINE_S)[0]
        assert process.returncode == 0
    separator = b"\n" if consumer in ("cat", "libbpf") else b""
    assert out == b"".join(record + separator for record in INTERESTING)


def discard(ring: Ring) -> None:
    with pytest.raises(ZeroDivisionError), ring.reserve(1000):
        raise ZeroDivisionError


def test_a_poller_of_the_memory_is_told_of_discards_as_by_the_kernel(file: Path, mem: Path, ring: Ring) -> None:
    """Readable between the positions, but not at a reservation; no consumer looks there for nothing."""
    with opened(mem, os.O_RDWR) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        assert epoll.poll(0) == []
        discard(ring)
        assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
        assert list(ring.records(timeout=0)) == []
        with ring.reserve(8):
            discard(ring)
            assert select.select([descriptor], [], [], 0)[0] == []
        assert select.select([descriptor], [], [], DEADLINE_S)[0] == [descriptor]


def test_a_reader_that_polls_is_not_told_to_read_discards_but_makes_room(mount: Mount, file: Path, ring: Ring) -> None:
    with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN)
        # More than the ring holds.
        for _ in range(100):
            wait_until(lambda: ring.query("avail_data") < 60 << 10, "the server makes room")
            discard(ring)
        assert epoll.poll(0) == []
        wait_until(lambda: mount.shown("r", "skipped") == "100", "all is skipped")
        ring.output(b"record")
        assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
        assert os.read(descriptor, 100) == b"record\n"


# --- consumers that know only the kernel's format ---


def test_a_consumer_of_the_kernels_format_sleeps_in_epoll_and_misses_nothing(
    mount: Mount, mem: Path, ring: Ring, mapped_through: None
) -> None:
    records = [random.Random(n).randbytes(n * 37 % 3000) for n in range(300)]

    def produce() -> None:
        for record in records:
            while True:
                try:
                    with ring.reserve(len(record)) as view:
                        view[:] = record
                    break
                except BlockingIOError:
                    pass
            if not record:
                with pytest.raises(ZeroDivisionError), ring.reserve(100):
                    raise ZeroDivisionError

    consumer = KernelRing(mem, 64 << 10)
    got: list[bytes] = []
    with select.epoll() as epoll:
        epoll.register(consumer.descriptor, select.EPOLLIN)
        producer = threading.Thread(target=produce)
        producer.start()
        while len(got) < len(records):
            assert epoll.poll(DEADLINE_S), f"not woken after {len(got)} records"
            got += consumer.records()
        producer.join()
    assert got == records
    assert mount.shown("r", "consumer_position") == mount.shown("r", "producer_position")
    for place in (".", "buffer0"):
        known = [
            mount.shown("r", f"{place}/{name}") for name in ("records", "read_records", "read_bytes", "skipped", "lost")
        ]
        assert known[1:4] == ["unknown"] * 3
        assert known[0].isdigit()
        assert known[4].isdigit()
    consumer.close()


def test_the_data_of_a_mapped_ring_is_read_only_to_whom_the_file_is(
    mount: Mount, mem: Path, ring: Ring, mapped_through: None
) -> None:
    ring.output(b"by nobody")
    with opened(mem) as descriptor:
        assert os.pread(descriptor, 17, 8192) == b"\x09\0\0\0\3\0\0\0by nobody"
        assert os.fstat(descriptor).st_size == int(mount.shown("r", "file_bytes"))


# --- the library and the file together ---


def test_a_reader_waits_while_another_consumer_holds_a_record(file: Path, ring: Ring) -> None:
    ring.output(b"held")
    ring.output(b"next")
    records = ring.records(timeout=0)
    assert bytes(next(records)) == b"held"
    got: list[bytes] = []
    with opened(file) as descriptor:
        reader = threading.Thread(target=lambda: got.append(os.read(descriptor, 100)))
        reader.start()
        with opened(file, os.O_RDONLY | os.O_NONBLOCK) as other, pytest.raises(OSError) as busy:
            os.read(other, 100)
        assert busy.value.errno == errno.EAGAIN
        records.close()
        reader.join(DEADLINE_S)
    assert got == [b"held\nnext\n"]


def test_the_library_waits_as_long_as_it_is_told(mount: Mount, ring: Ring) -> None:
    assert not ring.wait(0)
    assert not ring.wait(0.05)
    assert list(ring.records(timeout=0.05)) == []
    got: list[bytes] = []
    consumer = threading.Thread(target=lambda: got.extend(map(bytes, ring)))
    consumer.start()
    with Ring(ring.path) as producer:
        for n in range(50):
            producer.output(b"%d" % n)
    wait_until(lambda: len(got) == 50, "all is consumed")
    mount.command("remove r")
    consumer.join(DEADLINE_S)
    assert not consumer.is_alive()
    assert got == [b"%d" % n for n in range(50)]
