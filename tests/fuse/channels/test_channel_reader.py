"""relayfs_fuse.open(): all records of a channel, for loops, selectors, asyncio and trio."""

import asyncio
import errno
import functools
import itertools
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from mounts import DEADLINE_S, Mount, wait_until

import relayfs_fuse
from relayfs_fuse import Channel, ChannelReader, Record, Ring, native
from relayfs_fuse.cli.channel import find_channel
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.reading.source import Source

pytestmark = pytest.mark.one_mount

N_CPUS = native.n_possible_cpus()
SIZES = "subbuf_size=64K n_subbufs=8"
KINDS = {
    "relay": SIZES,
    "relay-times": f"{SIZES} times=mono",
    "overwrite-times": f"{SIZES} times=mono mode=overwrite",
    "single": f"{SIZES} buffers=single",
    "ring": "type=ring size=1M",
    "ring-percpu": "type=ring size=1M buffers=percpu",
    "ring-times": "type=ring size=1M buffers=percpu times=mono",
    "ring-overwrite": "type=ring size=1M buffers=percpu times=mono mode=overwrite",
    **({"tsc": f"{SIZES} times=tsc"} if CLOCKS["tsc"].is_available else {}),
}
OF_KIND = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
TIMED = pytest.mark.parametrize("options", [one for one in KINDS.values() if "times" in one])


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def write_on_cpus(channel: Path, options: str, records: list[bytes], cpus: Iterable[int] = ()) -> None:
    """Write each record on the next CPU."""
    opened = Ring(channel) if "ring" in options else Channel(channel)
    write = opened.output if isinstance(opened, Ring) else opened.write
    with opened:
        for record, cpu in zip(records, itertools.cycle(cpus or sorted(os.sched_getaffinity(0))), strict=False):
            with on_cpu(cpu):
                write(record)


@pytest.fixture
def two_cpus() -> list[int]:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("there is one CPU, so one buffer that can be written")
    return cpus


def numbered(n: int) -> list[bytes]:
    return [b"record %d\n" % i for i in range(n)]


def lines_of(records: list[Record]) -> list[bytes]:
    return b"".join(record.data for record in records).splitlines(keepends=True)


# --- what is read ---


@OF_KIND
def test_all_records_of_all_cpus_are_read_once(mount: Mount, options: str) -> None:
    channel, records, before = mount.create("app/log", options), numbered(60), time.time_ns()
    write_on_cpus(channel, options, records)
    with relayfs_fuse.open(channel, timeout=0) as reader:
        found = list(reader)
        assert list(reader) == []
        assert sorted(lines_of(found)) == sorted(records)
        if "times" in options:
            assert [record.data for record in found] == records
            times = [record.time for record in found]
            assert times == sorted(times)
            assert before - 1e9 < times[0] <= times[-1] <= time.time_ns() + 1e9
        else:
            assert {record.time for record in found} == {None}
        if "single" not in options and options != KINDS["ring"]:
            assert {record.cpu for record in found} == set(os.sched_getaffinity(0))
        write_on_cpus(channel, options, [b"later\n"])
        assert lines_of(list(reader)) == [b"later\n"]
        assert reader.missed == 0
    # Nothing is left for others, and nothing is lost.
    assert mount.shown("app/log", "unread_bytes") == "0" or "overwrite" in options
    assert mount.shown("app/log", "lost") == "0"


def test_what_was_not_returned_stays(mount: Mount) -> None:
    for options in (KINDS["relay-times"], KINDS["ring-times"], KINDS["ring"]):
        channel = mount.create("app/log", options)
        write_on_cpus(channel, options, numbered(10))
        with relayfs_fuse.open(channel, timeout=0) as reader:
            first = next(reader)
        with relayfs_fuse.open(channel, timeout=0) as reader:
            assert lines_of([first, *reader]) == numbered(10)
        mount.command("remove app/log")


def test_what_was_read_of_an_overwriting_ring_and_not_returned_is_missed(mount: Mount) -> None:
    channel = mount.create("app/log", KINDS["ring-overwrite"])
    write_on_cpus(channel, "ring", numbered(10))
    with relayfs_fuse.open(channel, timeout=0) as reader:
        assert next(reader).data == b"record 0\n"
    with relayfs_fuse.open(channel, timeout=0) as rest:
        assert 1 + reader.missed + len(list(rest)) == 10
    assert (reader.missed > 0) == (len(os.sched_getaffinity(0)) > 1)


def test_paths_name_a_channel_or_one_of_its_buffers(mount: Mount) -> None:
    for name, options in [("app/log", KINDS["relay"]), ("app/ring", KINDS["ring-percpu"])]:
        channel = mount.create(name, options)
        cpus = sorted(os.sched_getaffinity(0))
        for path, number in [
            (channel, None), (str(channel), None), (mount.path / ".channels" / name, None),
            (f"{channel}{cpus[-1]}", cpus[-1]), (mount.path / ".channels" / name / f"mem{cpus[-1]}", cpus[-1]),
        ]:  # fmt: skip
            write_on_cpus(channel, options, numbered(len(cpus)))
            with relayfs_fuse.open(path, timeout=0) as reader:
                assert {record.cpu for record in reader} == (set(cpus) if number is None else {number})
            with relayfs_fuse.open(channel, timeout=0) as reader:
                assert (not list(reader)) == (number is None or len(cpus) == 1)
    single = mount.create("one", KINDS["single"])
    write_on_cpus(single, "", [b"text"])
    with relayfs_fuse.open(os.fsencode(single), timeout=0) as reader:  # type: ignore[arg-type]
        assert list(reader) == [Record(b"text", 0, None)]


def test_paths_of_anything_else_are_refused(mount: Mount, tmp_path: Path) -> None:
    mount.create("app/log")
    for path, code, said in [
        (mount.path / "app", errno.EISDIR, "a directory, and no channel"),
        (mount.path / "none", errno.ENOENT, "No such file"),
        (mount.path / "control", errno.ENOENT, "No such file"),
        (mount.path / f"app/log{N_CPUS + 9}", errno.ENOENT, "No such file"),
        (mount.path / f".channels/app/log/mem{N_CPUS + 9}", errno.ENOENT, "No such file"),
        (tmp_path, errno.ENOENT, "in no mount of relayfs"),
    ]:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match=said) as error:
            relayfs_fuse.open(path)
        assert error.value.errno == code
        assert os.listdir("/proc/self/fd") == before
    with pytest.raises(TypeError):
        relayfs_fuse.open(7)  # type: ignore[arg-type]


@TIMED
def test_records_wait_for_older_ones_only_as_long_as_these_may_come(mount: Mount, options: str) -> None:
    channel = mount.create("app/log", options)
    with relayfs_fuse.open(channel, delay=0.05) as reader:
        write_on_cpus(channel, options, [b"alone"])
        assert next(reader).data == b"alone"
    with relayfs_fuse.open(channel, delay=DEADLINE_S, timeout=0.01) as reader:
        write_on_cpus(channel, options, numbered(3))
        assert lines_of(list(reader)) == numbered(3)
    if N_CPUS == len(os.sched_getaffinity(0)) > 1:
        with relayfs_fuse.open(channel, delay=DEADLINE_S) as reader:
            write_on_cpus(channel, options, numbered(N_CPUS))
            # All CPUs have a record, so the first one is known; then the first CPU could still write an earlier one.
            assert next(reader).data == b"record 0\n"
            reader.timeout = 0.01
            assert [record.data for record in reader] == numbered(N_CPUS)[1:]


def test_a_record_waits_for_an_older_one_that_is_not_committed_yet(mount: Mount, two_cpus: list[int]) -> None:
    channel, found = mount.create("app/log", KINDS["ring-times"]), list[bytes]()
    with relayfs_fuse.open(channel, delay=DEADLINE_S) as reader, Ring(channel) as ring:
        with on_cpu(two_cpus[0]), ring.reserve(5) as older:
            older[:] = b"older"
            write_on_cpus(channel, "ring", [b"newer"], two_cpus[1:])
            thread = threading.Thread(target=lambda: found.append(next(reader).data))
            thread.start()
            wait_until(lambda: found or any(part.held for part in reader._parts), "the reader has found the newer one")
        thread.join(DEADLINE_S)
        reader.timeout = 0
        assert [*found, *(record.data for record in reader)] == [b"older", b"newer"]


def test_a_record_that_is_overwritten_while_it_waits_is_not_returned(mount: Mount, two_cpus: list[int]) -> None:
    channel = mount.create("app/log", "mode=overwrite subbuf_size=4K n_subbufs=2 times=mono")
    write_on_cpus(channel, "", [b"first", b"overwritten"], two_cpus)
    with relayfs_fuse.open(channel, timeout=0) as reader:
        assert next(reader).data == b"first"
        write_on_cpus(channel, "", [b"%03d" % i + bytes(500) for i in range(40)], two_cpus[1:])
        numbers = [int(record.data[:3]) for record in reader]
        assert numbers == list(range(40 - len(numbers), 40))
        assert int(mount.shown("app/log", "lost")) == 41 - len(numbers)


def test_what_is_overwritten_is_missed_and_not_returned_torn(mount: Mount) -> None:
    for options in ("mode=overwrite subbuf_size=4K n_subbufs=4 times=mono", "type=ring size=4K mode=overwrite"):
        channel = mount.create("app/log", f"{options} buffers=global".replace("size=4K buffers=global", "size=4K"))
        with relayfs_fuse.open(channel, timeout=0) as reader:
            for _ in range(3):
                write_on_cpus(channel, options, [b"%03d" % i + b"x" * 100 for i in range(200)])
                found = [int(record.data[:3]) for record in reader]
                assert found == list(range(200 - len(found), 200))
                assert 20 < len(found) < 200
        if "ring" in options:
            assert reader.missed == int(mount.shown("app/log", "lost")) > 0
        mount.command("remove app/log")


@pytest.mark.parametrize("kind", ["ring-percpu", "ring-times", "relay-times", "ring-overwrite"])
def test_two_readers_share_the_records(mount: Mount, kind: str) -> None:
    channel = mount.create("app/log", KINDS[kind])
    found: list[bytes] = []

    def read(reader: ChannelReader) -> None:
        with reader:
            found.extend(record.data for record in reader)

    threads = [threading.Thread(target=read, args=(relayfs_fuse.open(channel, delay=0.01),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    write_on_cpus(channel, kind, numbered(500))
    wait_until(lambda: mount.shown("app/log", "unread_bytes") == "0", "all is read")
    mount.command("remove app/log")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(found) == sorted(numbered(500))


# --- waiting ---


async def gather(reader: ChannelReader, found: list[Record]) -> None:
    async for record in reader:
        found.append(record)


def in_loop(reader: ChannelReader, found: list[Record]) -> None:
    found.extend(reader)


def in_selector(reader: ChannelReader, found: list[Record]) -> None:
    reader.timeout = 0
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while b"last" not in lines_of(found):
            assert selector.select(DEADLINE_S)
            found.extend(reader)


def in_asyncio(reader: ChannelReader, found: list[Record]) -> None:
    asyncio.run(gather(reader, found))


def in_trio(reader: ChannelReader, found: list[Record]) -> None:
    anyio.run(functools.partial(gather, reader, found), backend="trio")


@pytest.mark.parametrize("way", [in_loop, in_selector, in_asyncio, in_trio])
@pytest.mark.parametrize("kind", ["relay", "relay-times", "ring-overwrite", "ring"])
def test_a_waiting_reader_gets_what_is_written_and_ends_with_the_channel(
    mount: Mount, kind: str, way: Callable[[ChannelReader, list[Record]], None]
) -> None:
    options, found = KINDS[kind], list[Record]()
    channel = mount.create("app/log", options)
    with relayfs_fuse.open(channel, delay=0.01) as reader:
        thread = threading.Thread(target=way, args=(reader, found))
        thread.start()
        for n in range(1, 4):
            write_on_cpus(channel, options, [b"%d\n" % n])
            wait_until(lambda n=n: len(found) == n, lambda: f"{found}")
        write_on_cpus(channel, options, [b"last"])
        if way is not in_selector:
            mount.command("remove app/log")
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert lines_of(found) == [b"1\n", b"2\n", b"3\n", b"last"]


def test_a_waiting_reader_uses_little_cpu_time(mount: Mount) -> None:
    channel = mount.create("app/log", KINDS["relay-times"])
    with relayfs_fuse.open(channel, timeout=1.0) as reader:
        before = time.thread_time()
        assert list(reader) == []
        assert time.thread_time() - before < 0.2


def both_backends(test: Callable[[], Awaitable[None]]) -> None:
    for backend in ("asyncio", "trio"):
        anyio.run(test, backend=backend)


def test_other_tasks_run_while_there_are_records_and_a_cancelled_task_loses_none(mount: Mount) -> None:
    channel = mount.create("app/log", KINDS["ring"])

    async def read_some() -> None:
        n, n_ticks, found = 5000, 0, list[Record]()

        async def tick() -> None:
            nonlocal n_ticks
            while True:
                await anyio.sleep(0)
                n_ticks += 1

        with Ring(channel) as ring, relayfs_fuse.open(channel, timeout=0) as reader:
            for i in range(n):
                ring.output(b"%d" % i)
            async with anyio.create_task_group() as group:
                group.start_soon(tick)
                await gather(reader, found)
                group.cancel_scope.cancel()
            assert n_ticks >= 2
            reader.timeout = None
            with anyio.move_on_after(0.05) as scope:
                await gather(reader, found)
            assert scope.cancelled_caught
            reader.timeout = 0.01
            with anyio.fail_after(DEADLINE_S):
                await gather(reader, found)
            reader.timeout = None
            ring.output(b"%d" % n)
            assert (await anext(reader)).data == b"%d" % n
        assert [int(record.data) for record in found] == list(range(n))

    both_backends(read_some)


# --- resources ---


def test_nothing_leaks(mount: Mount) -> None:
    channel = mount.create("app/log", KINDS["relay-times"])

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("app/log")

    before = held()
    reader = relayfs_fuse.open(channel)
    assert held() != before
    reader.close()
    reader.close()
    assert held() == before
    for use in (lambda: next(reader), reader.fileno, lambda: both_backends(reader.__anext__)):
        with pytest.raises(ValueError, match="closed"):
            use()
    with pytest.raises(TypeError):
        relayfs_fuse.open(channel, delay="soon")  # type: ignore[arg-type]
    assert held() == before


def test_a_constructor_that_fails_keeps_nothing_open(mount: Mount) -> None:
    mount.create("app/log", KINDS["relay-times"])
    mount.command("trace create web\n")
    found = find_channel("app/log", None, str(mount.store))
    assert found is not None

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(str(mount.store))

    before = held()
    with pytest.raises(TypeError):
        found.records("now")  # type: ignore[arg-type]
    assert held() == before
    (mount.store / "web").rename(mount.store / "away")
    with pytest.raises(FileNotFoundError):
        Source("web", str(mount.store))
    (mount.store / "away").rename(mount.store / "web")
    mount.command("trace remove web\n")
    assert held() == before


def test_a_program_with_types_passes_mypy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import asyncio
import logging

import relayfs_fuse
from relayfs_fuse import Channel, ChannelReader, Record, RelayHandler, Ring


def lengths(path: str) -> list[int]:
    with relayfs_fuse.open(path, timeout=0) as reader:
        return [len(record.data) for record in reader]


async def last(reader: ChannelReader) -> int | None:
    time: int | None = None
    async for record in reader:
        time = record.time
    return time


handler: logging.Handler = RelayHandler("/mnt/relay/app/log", logging.INFO, create="mode=overwrite")
with Channel("/mnt/relay/app/cpu") as channel, Ring("/mnt/relay/app/ring") as ring:
    channel.write(b"bytes")
    ring.output(bytearray(3))
    channel.write("text")  # type: ignore[arg-type]
first: Record = next(relayfs_fuse.open("/mnt/relay/app/cpu"))
asyncio.run(last(relayfs_fuse.open("/mnt/relay/app/cpu")))
""")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
