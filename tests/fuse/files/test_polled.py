"""Programs that poll relay files beside others: each is told what it can do, whoever else waits for the same file."""

import os
import select
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, opened, wait_until
from traffic import lines, n_asleep, streaming, wait_open

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

N_POLLING = 40
N_RECORDS = 20
N_OVERWRITING = 10_000
GONE = select.EPOLLERR | select.EPOLLHUP

# Polls a file until it is gone, and reads all that it is told of.
READER = """
import os, select, sys
file, poll = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK), select.poll()
poll.register(file, select.POLLIN)
is_gone = False
while not is_gone:
    is_gone = bool(poll.poll()[0][1] & select.POLLHUP)
    try:
        while data := os.read(file, 1 << 20):
            os.write(1, data)
    except BlockingIOError:
        pass
"""


@pytest.mark.parametrize("options", ["read=wait", "read=nowait delivery=bulk", "mode=overwrite", "times=mono"])
def test_all_who_poll_a_file_are_told_of_each_record(mount: Mount, options: str) -> None:
    path = mount.create("log", f"buffers=single n_subbufs=64 {options}")
    told = [threading.Semaphore(0) for _ in range(N_POLLING)]
    with ExitStack() as stack, Channel(path) as channel:

        def listen(one: int) -> None:
            with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
                epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
                events = epoll.poll(0)
                told[one].release()
                while not events or not events[0][1] & GONE:
                    if events:
                        told[one].release()
                    events = epoll.poll(DEADLINE_S)
                    if not events:
                        return  # it is deaf, which the main thread finds, too

        listeners = [threading.Thread(target=listen, args=(one,)) for one in range(N_POLLING)]
        for listener in listeners:
            listener.start()
            stack.callback(listener.join)
        stack.callback(mount.command, "remove log")
        for one in told:
            assert one.acquire(timeout=DEADLINE_S)
        for n in range(N_RECORDS):
            channel.write(lines(1, n))
            if "bulk" in options:
                channel.flush()
            for one in told:
                assert one.acquire(timeout=DEADLINE_S), f"deaf after {n} records"


def test_who_polls_and_who_sleeps_in_read_are_woken_by_the_same_record(mount: Mount) -> None:
    path = mount.create("log", "buffers=single read=wait")
    with Channel(path) as channel, opened(path, os.O_RDONLY | os.O_NONBLOCK) as polled, select.epoll() as epoll:
        epoll.register(polled, select.EPOLLIN | select.EPOLLET)
        assert not epoll.poll(0)
        for n in range(N_RECORDS):
            cat = subprocess.Popen(["head", "-n", "1", path], stdout=subprocess.PIPE)
            wait_until(lambda: n_asleep(cat.pid, path) == 1, "it sleeps")  # noqa: B023
            channel.write(lines(1, n))
            assert cat.communicate(timeout=DEADLINE_S)[0] == lines(1, n)
            # Whoever is first gets it. The other one may find nothing, and sleeps until the next record.
            epoll.poll(0)
        channel.write(b"last")
        assert epoll.poll(DEADLINE_S) == [(polled, select.EPOLLIN)]
        assert os.read(polled, 4096) == b"last"


def test_who_polls_a_file_is_told_that_it_is_removed_after_its_last_record(mount: Mount) -> None:
    path = mount.create("log", "buffers=single read=wait")
    reader = forking.start([sys.executable, "-c", READER, path], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    try:
        wait_open(path)
        with Channel(path) as channel:
            for n in range(N_RECORDS):
                channel.write(lines(1, n))
                assert reader.stdout.readline() == lines(1, n)
            channel.write(lines(1, N_RECORDS))
            mount.command("remove log")
        assert reader.communicate(timeout=DEADLINE_S)[0] == lines(1, N_RECORDS)
        assert reader.returncode == 0
    finally:
        reader.kill()
        reader.wait()


@pytest.mark.parametrize("size", ["subbuf_size=4096 n_subbufs=4", "subbuf_size=64K n_subbufs=16"])
def test_a_program_that_polls_gets_or_misses_each_record_of_producers_that_overwrite(
    mount: Mount, tmp_path: Path, size: str
) -> None:
    with streaming(mount, f"mode=overwrite {size}") as stream, (tmp_path / "got").open("w+b") as file:
        reader = forking.start([sys.executable, "-c", READER, stream.file], stdout=file)
        try:
            wait_open(stream.file)
            stream.start(burst=50, pause_ms=1)
            wait_until(lambda: stream.shown("records") > N_OVERWRITING, "many records are written")
            n = stream.finish()
            wait_until(lambda: stream.shown("unread_bytes") == 0, "all is read")
            lost = stream.shown("lost_overwritten")
            mount.command(f"remove {stream.channel}")
            assert reader.wait(DEADLINE_S) == 0
        finally:
            reader.kill()
            reader.wait()
        got = (tmp_path / "got").read_bytes().splitlines(keepends=True)
    assert set(got) <= set(lines(n).splitlines(keepends=True))
    assert got == sorted(got)
    assert len(got) + lost == n


def test_a_descriptor_that_two_processes_poll_tells_both(mount: Mount) -> None:
    """It is one file of the kernel's, with one handle by which it is notified."""
    path = mount.create("log", "buffers=single")
    script = "import select, sys; p = select.poll(); p.register(0, 1); print(p.poll(), flush=True)"
    with opened(path) as descriptor, Channel(path) as channel, ExitStack() as stack:
        for n in range(N_RECORDS):
            programs = [
                forking.start([sys.executable, "-c", script], stdin=descriptor, stdout=subprocess.PIPE)
                for _ in range(2)
            ]
            stack.callback(lambda: [program.kill() for program in programs])  # noqa: B023
            channel.write(lines(1, n))
            for program in programs:
                assert b"(0, 1)" in program.communicate(timeout=DEADLINE_S)[0]
            assert os.read(descriptor, 4096) == lines(1, n)
