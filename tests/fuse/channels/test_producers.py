"""Producers of all kinds: forked, without restartable sequences, in another PID namespace, killed in the middle."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, Mount, wait_until
from traffic import Stream, drain, lines, streaming

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

HERE = Path(__file__).parent
WITHOUT_RSEQ = {**os.environ, "GLIBC_TUNABLES": "glibc.pthread.rseq=0"}


def drain_all(channel: Path, mount: Mount, name: str) -> list[bytes]:
    """Read the lines of all buffers."""
    n_buffers = int(mount.shown(name, "n_buffers"))
    return b"".join(drain(Path(f"{channel}{cpu}")) for cpu in range(n_buffers)).splitlines()


@pytest.mark.parametrize("scheme", ["rseq", "lockless", "locking"])
def test_forked_children_go_on_writing(mount: Mount, scheme: str) -> None:
    channel = mount.create("app/cpu", f"scheme={scheme}")
    program = compile_c([HERE / "forker.c"])
    subprocess.run([program, channel, "4", "2000"], check=True)
    got = drain_all(channel, mount, "app/cpu")
    assert sorted(got) == sorted(b"%d %08d" % (who, i) for who in range(5) for i in range(2000))
    assert mount.shown("app/cpu", "lost") == "0"


def test_a_python_producer_goes_on_in_its_forked_child(mount: Mount) -> None:
    path = mount.create("log", "buffers=single")
    with Channel(path) as channel:
        channel.write(b"parent\n")
        pid = os.fork()
        if pid == 0:
            channel.write(b"child\n")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        channel.write(b"parent again\n")
    assert drain(path) == b"parent\nchild\nparent again\n"


# --- without restartable sequences ---


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    with streaming(mount, "scheme=rseq") as stream:
        yield stream


def test_a_program_without_rseq_writes_through_write_2_and_loses_nothing(stream: Stream, mount: Mount) -> None:
    with_rseq = Stream(mount, "app/cpu")
    with_rseq.write(100)
    stream.written = 100
    stream.start(burst=500, at_most=500, environment=WITHOUT_RSEQ)
    wait_until(lambda: stream.shown("records") == 600, "all is written")
    assert stream.rest() == lines(600)
    assert stream.shown("lost") == 0


def test_programs_with_and_without_rseq_write_to_one_buffer_at_once(mount: Mount) -> None:
    mount.create("app/cpu", "scheme=rseq")
    streams = [Stream(mount, "app/cpu", written=first) for first in (0, 10_000, 20_000)]
    environments = [None, WITHOUT_RSEQ, WITHOUT_RSEQ]
    try:
        for stream, environment in zip(streams, environments, strict=True):
            stream.start(burst=50, pause_ms=1, at_most=1000, environment=environment)
        wait_until(lambda: streams[0].shown("records") == 3000, "all is written")
        for stream in streams:
            stream.finish()
    finally:
        for stream in streams:
            stream.kill()
    got = drain(streams[0].file).splitlines(keepends=True)
    for first in (0, 10_000, 20_000):
        own = [line for line in got if first <= int(line.split()[1]) < first + 10_000]
        assert b"".join(own) == lines(1000, first)
    assert len(got) == 3000


def test_a_program_without_rseq_hears_of_a_full_buffer(mount: Mount) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "scheme=rseq subbuf_size=310 n_subbufs=2")
    stream.start(burst=50, environment=WITHOUT_RSEQ)
    assert stream.process is not None
    _, complaint = stream.process.communicate(timeout=DEADLINE_S)
    stream.process = None
    assert complaint == b"line 20: No space left on device\n"
    assert drain(stream.file) == lines(20)
    assert stream.shown("lost_full") == 1


def test_a_lockless_channel_needs_no_rseq(mount: Mount) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "scheme=lockless")
    stream.start(burst=3000, at_most=3000, environment=WITHOUT_RSEQ)
    wait_until(lambda: stream.shown("records") == 3000, "all is written")
    assert stream.process is not None
    assert "/mem0" in Path(f"/proc/{stream.process.pid}/maps").read_text()
    assert stream.rest() == lines(3000)


# --- killed in the middle of a record ---


def start_stuck(command: list[str | Path]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"stuck\n"
    return process


def namespace(command: list[str | Path]) -> list[str | Path]:
    """Run as the first process of a PID namespace with its own /proc; it dies with unshare."""
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@pytest.fixture(params=["here", "in another PID namespace"])
def stuck(request: pytest.FixtureRequest, mount: Mount) -> Iterator[subprocess.Popen[bytes]]:
    """A producer that stands in the middle of a record."""
    mount.create("log", "buffers=single scheme=lockless")
    command: list[str | Path] = [compile_c([PROGRAMS / "stuck_writer.c"]), mount.path / "log"]
    if request.param != "here":
        assert shutil.which("unshare")
        if subprocess.run(namespace(["true"]), capture_output=True, check=False).returncode:
            pytest.skip("this user may not make a PID namespace")
        command = namespace(command)
    process = start_stuck(command)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_record_in_the_making_holds_back_those_behind_it(mount: Mount, stuck: subprocess.Popen[bytes]) -> None:
    path = mount.path / "log"
    with Channel(path) as channel:
        channel.write(b"behind\n")
    assert drain(path) == b"before\n"
    assert mount.shown("log", "lost_torn") == "0"


def test_a_producer_killed_in_the_middle_of_a_record_costs_that_record_only(
    mount: Mount, stuck: subprocess.Popen[bytes]
) -> None:
    path = mount.path / "log"
    got = b""

    def complete() -> bool:
        nonlocal got
        got += drain(path)
        return got.endswith(b"after\n")

    with Channel(path) as channel:
        channel.write(b"behind\n")
        stuck.kill()
        stuck.wait()
        channel.write(b"after\n")
    wait_until(complete, "the dead one's record is given up")
    assert got == b"before\nbehind\nafter\n"
    assert (mount.shown("log", "lost_torn"), mount.shown("log", "lost_torn_bytes")) == ("1", "100")
    assert mount.shown("log", "lost") == "1"
