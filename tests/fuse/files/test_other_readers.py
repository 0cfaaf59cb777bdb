"""A reader that reads for ever, stops, closes or dies: what others do goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import PLAIN, compile_c
from mounts import DEADLINE_S, Mount, opened, wait_until
from traffic import append, lines, wait_asleep

from relayfs_fuse import Channel

HERE = Path(__file__).parent
# Reads byte by byte for ever what it writes itself, which takes no request.
FOR_EVER = """
import os, sys
from relayfs_fuse import Channel
with Channel(sys.argv[1]) as channel:
    reader = os.open(sys.argv[1], os.O_RDONLY)
    print(flush=True)
    while True:
        channel.write(bytes(4096))
        for _ in range(4096):
            os.read(reader, 1)
"""
# Reads byte by byte from a descriptor that it has got.
GO_ON = "import os\nwhile os.read(0, 1): pass"


@contextmanager
def running(code: str, *words: str | Path, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    with forking.start([sys.executable, "-c", code, *words], stdin=stdin, stdout=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.kill()


def use(mount: Mount, n: int) -> None:
    """Do what other programs do, which sleep in read(2), too."""
    path = mount.create("others", "buffers=single read=wait")
    for number in range(n):
        with subprocess.Popen(["head", "-c", str(len(lines(1))), path], stdout=subprocess.PIPE) as head:
            wait_asleep(head, path)
            append(path, lines(1, number))
            assert head.communicate(timeout=DEADLINE_S)[0] == lines(1, number)
        assert "others" in os.listdir(mount.path)
        assert mount.shown("others", "unread_bytes") == "0"
    mount.command("remove others")


@pytest.mark.parametrize("n", [1, 2])
def test_others_do_not_wait_for_who_reads_for_ever(mount: Mount, n: int) -> None:
    """Each of the readers mostly has its next request there when its last one was answered."""
    paths = [mount.create(f"log{number}", "buffers=single subbuf_size=64K n_subbufs=4") for number in range(n)]
    programs = [running(FOR_EVER, path) for path in paths]
    with programs[0] as first:
        for program in programs[1:]:
            program.__enter__()
        try:
            assert first.stdout is not None
            assert first.stdout.readline()
            use(mount, 3)
            for path in paths:
                before = int(mount.shown(path.name, "read_bytes"))
                wait_until(lambda: int(mount.shown(path.name, "read_bytes")) > before + 8192, "it reads on")  # noqa: B023
        finally:
            for program in programs[1:]:
                program.__exit__(None, None, None)


def test_others_do_not_wait_for_a_reader_that_is_stopped(mount: Mount) -> None:
    """It is stopped at any step of a read(2), and gets each byte once when it goes on."""
    path = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=4")
    append(path, bytes(60_000))
    with opened(path) as descriptor, running(GO_ON, stdin=descriptor) as reader:
        for number in range(1, 20):
            wait_until(lambda: int(mount.shown("log", "read_bytes")) >= 1000 * number, "it reads")  # noqa: B023
            reader.send_signal(signal.SIGSTOP)
            use(mount, 1)
            reader.send_signal(signal.SIGCONT)
        assert reader.wait(DEADLINE_S) == 0
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 60_000
    assert mount.shown("log", "read_bytes") == "60000"


def test_others_do_not_wait_for_a_read_that_ended_before_the_server_had_it(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """It is killed when the server knows that there is a request, and has not read it. No other request comes."""
    hold = tmp_path / "hold"
    reached = tmp_path / "hold.reached"
    library = compile_c([HERE / "hold_read.c"], tmp_path / "hold_read.so", PLAIN, "-shared", "-fPIC")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("HOLD", str(hold))
        mount = make_mount(is_forked=False)
    waiting = mount.create("waiting", "buffers=single read=wait")
    path = mount.create("log", "buffers=single")
    append(path, bytes(100))
    with (
        Channel(waiting) as channel,
        opened(path) as descriptor,
        subprocess.Popen(["head", "-c", "1", waiting], stdout=subprocess.PIPE) as head,
    ):
        wait_asleep(head, waiting)
        os.stat(mount.path)  # the server has got the requests before this one
        hold.touch()
        with running(GO_ON, stdin=descriptor) as reader:
            wait_until(reached.exists, "the server is about to read the request")
            reader.kill()
            reader.wait(DEADLINE_S)
        reached.unlink()
        channel.write(b"x")
        try:
            assert head.communicate(timeout=DEADLINE_S)[0] == b"x"
        finally:
            head.kill()
