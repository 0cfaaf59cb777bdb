"""What programs do with a mount all the time, while something happens to its server: none of them may notice.

with working(command(mount)), piped(mount.path / "bytes", tmp_path / "bytes"):
    mount.kill_server()
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
from mounts import DEADLINE_S, Mount, wait_until
from traffic import lines

# Writes lines by write(2), one each, until its standard input ends; then it prints how many.
WRITER = """
import os, select, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY)
n = 0
while not select.select([0], [], [], float(sys.argv[2]))[0]:
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
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@contextmanager
def piped(path: Path, out: Path, pause_s: float = 0.002) -> Iterator[None]:
    """Have one program write to a relay file, with pauses, and cat(1) read it; each line must come once."""
    command = [sys.executable, "-c", WRITER, str(path), str(pause_s)]
    with (
        out.open("wb") as file,
        subprocess.Popen(["cat", path], stdout=file) as cat,
        forking.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer,
    ):
        try:
            yield
            written = int(writer.communicate(timeout=DEADLINE_S)[0])
            assert written > 0
            wait_until(lambda: out.stat().st_size >= len(lines(written)), "cat has it all")
            assert cat.poll() is None
        finally:
            writer.kill()
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


def command(mount: Mount, pause_s: float = 0) -> Callable[[threading.Event], None]:
    """Make and remove channels and directories; none is there before or after that."""

    def work(stop: threading.Event) -> None:
        n = 0
        while not stop.wait(pause_s):
            mount.command(f"create made/{n} buffers=single subbuf_size=4K n_subbufs=2\n")
            assert (mount.path / f"made/{n}").read_bytes() == b""
            mount.command(f"remove made/{n}\n")
            os.mkdir(mount.path / f"directory{n}")
            os.rmdir(mount.path / f"directory{n}")
            n += 1
        assert n > 0

    return work


def look(mount: Mount, pause_s: float = 0) -> Callable[[threading.Event], None]:
    """Look at names and numbers, which stay."""

    def work(stop: threading.Event) -> None:
        before = (mount.path / ".channels/bytes/buffer0/records").stat().st_ino
        while not stop.wait(pause_s):
            assert (mount.path / ".channels/bytes/buffer0/records").stat().st_ino == before
            assert {"bytes", "records", "control"} <= set(os.listdir(mount.path))

    return work
