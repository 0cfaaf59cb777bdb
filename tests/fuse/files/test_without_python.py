"""What the tap answers while no Python runs in the server: its interpreter's lock is held meanwhile."""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mounts import Mount, opened, serving, tmpfs_directory, wait_until
from traffic import append, lines

from relayfs_fuse import Channel

# relayfs in whose server a thread holds Python's lock from one byte in $HOLD to the next, and says so in $HELD.
HOLDING = f"""#!{sys.executable}
import ctypes, os, sys, threading
from relayfs_fuse.cli import mount
from relayfs_fuse.fs.server import Server

def hold(between, held):
    library, byte = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
    while os.read(between, 1):
        library.write(held, b"h", 1)
        library.read(between, byte, 1)

def run(self, really=Server.run):
    descriptors = [os.open(os.environ[name], os.O_RDWR) for name in ("HOLD", "HELD")]
    threading.Thread(target=hold, args=descriptors, daemon=True).start()
    really(self)

Server.run = run
sys.exit(mount.main())
"""
# An answer that needs Python does not come before the lock is free. Nor does another one if Python has just begun to
# run when the lock is taken, as it does each second: then another attempt follows.
PATIENCE_S = 0.5


class Holding:
    """A mount in whose server Python can be held up."""

    def __init__(self, mount: Mount, between: int, held: int) -> None:
        self.mount = mount
        self._between = between
        self._held = held

    def is_answered(self, ask: Callable[[], object]) -> bool:
        """Ask while no Python runs; return whether there was an answer."""
        answered = threading.Event()
        thread = threading.Thread(target=lambda: (ask(), answered.set()))
        os.write(self._between, b"b")
        os.read(self._held, 1)
        thread.start()
        was_answered = answered.wait(PATIENCE_S)
        os.write(self._between, b"e")
        thread.join()
        return was_answered


@pytest.fixture(scope="module")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holding]:
    directory = tmp_path_factory.mktemp("holding")
    program, between, held = (directory / name for name in ("relayfs", "between", "held"))
    program.write_text(HOLDING)
    program.chmod(0o755)
    os.mkfifo(between)
    os.mkfifo(held)
    with (
        tmpfs_directory() as above,
        serving(above / "store") as make,
        opened(between, os.O_RDWR) as begin,
        opened(held, os.O_RDWR) as begun,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HOLD", str(between))
        patch.setenv("HELD", str(held))
        mount = make("watchdog=0", start=False, is_forked=False)
        mount.program = program
        mount.start()
        yield Holding(mount, begin, begun)


@pytest.fixture
def path(holding: Holding) -> Iterator[Path]:
    yield holding.mount.create("log", "buffers=single")
    holding.mount.clear()


def test_a_program_that_polls_is_told_and_reads(holding: Holding, path: Path) -> None:
    with Channel(path) as channel, opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

        def hear() -> None:
            channel.write(lines(1))
            got = b""
            while got != lines(1):
                epoll.poll()
                with suppress(BlockingIOError):
                    got += os.read(descriptor, 4096)

        hear()  # a handler answers the first read, and the first FUSE_POLL
        wait_until(lambda: holding.is_answered(hear), "it is told without Python")


def test_a_program_reads_on(holding: Holding, path: Path) -> None:
    append(path, lines(100))
    with opened(path) as descriptor:
        assert os.read(descriptor, len(lines(1)))
        wait_until(lambda: holding.is_answered(lambda: os.read(descriptor, 1)), "bytes are read without Python")
