"""The server dies again and again at random moments, while programs of all kinds work: none of them notices.

./dev stress kills it a thousand times.
"""

import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, wait_until
from stress import is_long
from traffic import Stream, lines, streaming

N_KILLS = 1000 if is_long() else 20
DIED = "WARNING: the server before, process .* has died"
# Writes lines by write(2), one each, until its standard input ends; then it prints how many.
WRITER = """
import os, select, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY)
n = 0
while not select.select([0], [], [], 0.002)[0]:
    os.write(descriptor, b"line %08d ................\\n" % n)
    n += 1
print(n)
"""


@contextmanager
def working(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have a thread do something again and again; it must not fail."""
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:  # the test fails with it
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@contextmanager
def piped(path: Path, out: Path) -> Iterator[None]:
    """Have one program write to a relay file, and cat(1) read it; each line must come once."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with (
        out.open("wb") as file,
        subprocess.Popen(["cat", path], stdout=file) as cat,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer,
    ):
        yield
        written = int(writer.communicate(timeout=DEADLINE_S)[0])
        assert written > 0
        wait_until(lambda: out.stat().st_size >= len(lines(written)), "cat has it all")
        assert cat.poll() is None
        cat.kill()
    assert out.read_bytes() == lines(written)


def poll(path: Path, got: list[bytes]) -> Callable[[threading.Event], None]:
    """Read what comes, whenever epoll says so, edge-triggered."""

    def work(stop: threading.Event) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with select.epoll() as epoll:
            epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            while not stop.is_set():
                epoll.poll(0.05)
                try:
                    while piece := os.read(descriptor, 4096):
                        got.append(piece)
                except BlockingIOError:
                    pass
        os.close(descriptor)

    return work


def command(mount: Mount) -> Callable[[threading.Event], None]:
    """Make and remove channels and directories; none is there before or after that."""

    def work(stop: threading.Event) -> None:
        n = 0
        while not stop.is_set():
            mount.command(f"create made/{n} buffers=single subbuf_size=4K n_subbufs=2\n")
            assert (mount.path / f"made/{n}").read_bytes() == b""
            mount.command(f"remove made/{n}\n")
            os.mkdir(mount.path / f"directory{n}")
            os.rmdir(mount.path / f"directory{n}")
            n += 1
        assert n > 0

    return work


def look(mount: Mount) -> Callable[[threading.Event], None]:
    """Look at names and numbers, which stay."""

    def work(stop: threading.Event) -> None:
        before = (mount.path / ".channels/bytes/buffer0/records").stat().st_ino
        while not stop.is_set():
            assert (mount.path / ".channels/bytes/buffer0/records").stat().st_ino == before
            assert {"bytes", "records", "control"} <= set(os.listdir(mount.path))

    return work


@pytest.mark.stress
def test_nobody_notices(mount: Mount, tmp_path: Path) -> None:
    mount.expect(DIED)
    chance = random.Random(os.urandom(8))
    mount.create("bytes", "buffers=single read=wait")
    mount.create("records", "buffers=single type=ring size=256K read=wait")
    mount.create("polled", "buffers=single read=wait")
    got: list[bytes] = []
    with ExitStack() as stack:
        stream: Stream = stack.enter_context(streaming(mount, "subbuf_size=64K n_subbufs=64"))
        stream.start(burst=5, pause_ms=2)
        stack.enter_context(piped(mount.path / "bytes", tmp_path / "bytes"))
        stack.enter_context(piped(mount.path / "records", tmp_path / "records"))
        stack.enter_context(working(poll(mount.path / "polled", got)))
        stack.enter_context(working(command(mount)))
        stack.enter_context(working(look(mount)))
        read = b""
        with stream.file.open("rb", buffering=0) as file, (mount.path / "polled").open("wb", buffering=0) as polled:
            for n in range(N_KILLS):
                polled.write(lines(1, n))
                time.sleep(chance.uniform(0.1, 0.3))
                mount.kill_server()
                read += file.read(1 << 20)
            written = stream.finish()
            while piece := file.read(1 << 20):
                read += piece
            wait_until(lambda: len(b"".join(got)) >= len(lines(N_KILLS)), "all is read that was polled for")
    assert read == lines(written)
    assert b"".join(got) == lines(N_KILLS)
    assert mount.error_log == ""


@pytest.mark.stress
def test_a_mount_can_be_read_by_many_while_the_server_dies(mount: Mount, tmp_path: Path) -> None:
    """All of them sleep, and what is written wakes one of them."""
    mount.expect(DIED)
    path = mount.create("log", "buffers=single read=wait")
    outs = [tmp_path / f"out{n}" for n in range(8)]
    with ExitStack() as stack:
        cats = [stack.enter_context(subprocess.Popen(["cat", path], stdout=out.open("wb"))) for out in outs]
        for n in range(8):
            time.sleep(0.11)
            mount.kill_server()
            path.write_bytes(lines(1, n))
        wait_until(lambda: sum(out.stat().st_size for out in outs) >= len(lines(8)), "all is read")
        for cat in cats:
            assert cat.poll() is None
            cat.kill()
    assert sorted(b"".join(out.read_bytes() for out in outs).splitlines()) == lines(8).splitlines()
