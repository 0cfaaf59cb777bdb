"""Programs that wait for relay files in event loops: whoever waits is told of every new piece, and told in time."""

import asyncio
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import compile_c, run_command
from mounts import DEADLINE_S, Mount
from traffic import Stream, lines, streaming, wait_open

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

READ_BYTES = 1 << 20
N_LINES = 1000
N_SWITCHES = 1_000_000


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_what_there_is(descriptor: int) -> bytes:
    """Read until there is no more: 0 bytes, or EAGAIN where readers wait."""
    got = b""
    try:
        while piece := os.read(descriptor, READ_BYTES):
            got += piece
    except BlockingIOError:
        pass
    return got


@pytest.fixture(params=["", "read=nowait", "delivery=packet read=wait"])
def packets(request: pytest.FixtureRequest, mount: Mount) -> Iterator[Stream]:
    with streaming(mount, request.param) as stream:
        yield stream


def test_a_non_blocking_edge_triggered_reader_gets_every_line(packets: Stream) -> None:
    """As the runtime of Go does: every descriptor is O_NONBLOCK, and asked for once and for all."""
    got = b""
    with opened(packets.file, os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
        packets.start(burst=7, pause_ms=1, at_most=N_LINES)
        while len(got) < len(lines(N_LINES)):
            assert epoll.poll(DEADLINE_S), "an edge was missed"
            got += read_what_there_is(descriptor)
    assert got == lines(packets.finish())


def test_asyncio_gets_every_line(packets: Stream) -> None:
    async def read_all(descriptor: int) -> bytes:
        loop = asyncio.get_running_loop()
        got = b""
        done = asyncio.Event()

        def readable() -> None:
            nonlocal got
            got += os.read(descriptor, 100)
            if len(got) == len(lines(N_LINES)):
                done.set()

        loop.add_reader(descriptor, readable)
        await asyncio.wait_for(done.wait(), DEADLINE_S)
        return got

    with opened(packets.file, os.O_NONBLOCK) as descriptor:
        packets.start(burst=7, pause_ms=1, at_most=N_LINES)
        assert asyncio.run(read_all(descriptor)) == lines(packets.finish())


def test_several_event_loops_share_what_there_is(packets: Stream) -> None:
    got: list[bytes] = []
    ended = threading.Event()

    def read() -> None:
        with opened(packets.file, os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
            epoll.register(descriptor, select.EPOLLIN)
            while not ended.is_set():
                for _ in epoll.poll(0.2):
                    try:
                        got.append(os.read(descriptor, 31 * 5))
                    except BlockingIOError:
                        continue  # another loop was faster
                    if sum(map(len, got)) == len(lines(N_LINES)):
                        ended.set()

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    packets.start(burst=7, pause_ms=1, at_most=N_LINES)
    ended.wait(DEADLINE_S)
    ended.set()
    for reader in readers:
        reader.join()
    assert sorted(b"".join(got).splitlines()) == lines(packets.finish()).splitlines()


def test_no_edge_is_missed_in_a_million_switches(mount: Mount) -> None:
    path = mount.create("tiny", "buffers=single subbuf_size=16 n_subbufs=65536 delivery=bulk")
    program = compile_c([Path(__file__).with_name("switcher.c")])
    received = 0
    with opened(path) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        writer = subprocess.Popen(run_command(program, path, N_SWITCHES))
        while received < N_SWITCHES:
            assert epoll.poll(DEADLINE_S), f"an edge was missed after {received} records"
            got = read_what_there_is(descriptor)
            wanted = b"".join(b"%015d\n" % n for n in range(received, received + len(got) // 16))
            assert got == wanted
            received += len(got) // 16
        assert writer.wait(DEADLINE_S) == 0
    assert mount.shown("tiny", "produced") == str(N_SWITCHES)


UNTIL_REMOVED = [
    'pv -q "$F"',
    'pv -q "$F" | cat',
    'pv -q -C "$F" | cat',
    'pv -q < "$F"',
    'socat -u "OPEN:$F" -',
    'socat -u "OPEN:$F,nonblock" - | cat',
    'busybox sh -c \'while read -r line; do echo "$line"; done\' < "$F"',
]


@pytest.mark.parametrize("script", UNTIL_REMOVED)
def test_programs_that_wait_show_every_line_and_end_when_the_channel_is_removed(mount: Mount, script: str) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "subbuf_size=1K n_subbufs=1024 delivery=bulk")
    reader = subprocess.Popen(
        ["bash", "-c", script], cwd=mount.path, env={**os.environ, "F": stream.name}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_open(stream.file)
    # Some sub-buffers. A shell reads byte by byte, and polls before each.
    n_lines = N_LINES // 6 if "sh -c" in script else N_LINES
    stream.write(n_lines)
    # What stands in the last sub-buffer, which is not finished, is theirs, too.
    mount.command(f"remove {stream.channel}")
    out, complaints = reader.communicate(timeout=DEADLINE_S)
    assert (out, complaints) == (lines(n_lines), b"")


def test_a_busybox_shell_gets_what_is_flushed_regularly(mount: Mount) -> None:
    """It polls before it reads, and so waits for the end of a sub-buffer with delivery=bulk."""
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "delivery=bulk flush_interval=50")
    script = 'while read -r line; do echo "$line"; [ "$line" != "line 00000099 ................" ] || exit; done'
    with stream.file.open("rb") as file:
        reader = subprocess.Popen(["busybox", "sh", "-c", script], stdin=file, stdout=subprocess.PIPE)
    stream.write(100)
    assert reader.communicate(timeout=DEADLINE_S)[0] == lines(100)


AS_THEY_COME = [
    'socat -u "OPEN:$F,nonblock" - | cat',
    'busybox sh -c \'while read -r line; do echo "$line"; done\' <"$F"',
]


@pytest.mark.parametrize("script", AS_THEY_COME)
def test_programs_that_poll_show_each_line_of_a_default_channel_when_it_comes(mount: Mount, script: str) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel)
    with subprocess.Popen(
        ["bash", "-c", script], cwd=mount.path, env={**os.environ, "F": stream.name}, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        wait_open(stream.file)
        try:
            for n in range(5):
                stream.write(1)
                assert select.select([reader.stdout], [], [], DEADLINE_S)[0], f"line {n} is not shown"
                assert os.read(reader.stdout.fileno(), 100) == lines(1, n)
        finally:
            mount.command(f"remove {stream.channel}")  # which ends the readers


def test_a_channel_made_from_python_is_readable_with_its_first_record_unless_it_has_bulk_delivery(mount: Mount) -> None:
    for delivery in (None, "packet", "bulk"):
        path = mount.path / f"of_{delivery}"
        with Channel.create(path, buffers="single", **({"delivery": delivery} if delivery else {})) as channel:
            channel.write(b"x")
            with opened(path) as descriptor:
                assert bool(select.select([descriptor], [], [], 0)[0]) == (delivery != "bulk")


SELECTORS = """
import os, selectors, sys
file = open(sys.argv[1], "rb", buffering=0)
with getattr(selectors, sys.argv[2])() as selector:
    selector.register(file, selectors.EVENT_READ)
    while selector.select():
        if piece := file.read(1000):
            sys.stdout.buffer.write(piece)
        elif not os.path.exists(sys.argv[1]):
            break
"""


@pytest.mark.parametrize("selector", ["EpollSelector", "PollSelector", "SelectSelector"])
def test_python_selectors_show_every_line_and_the_end(mount: Mount, selector: str) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "subbuf_size=1K n_subbufs=1024 delivery=bulk")
    reader = forking.start([sys.executable, "-c", SELECTORS, stream.file, selector], stdout=subprocess.PIPE)
    wait_open(stream.file)
    stream.write(N_LINES)
    mount.command(f"remove {stream.channel}")
    assert reader.communicate(timeout=DEADLINE_S)[0] == lines(N_LINES)
