"""What the file server does with channels of <relayfs/classic.h> whose clients are slow or dead, or refuse to go on."""

import errno
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build import compile_c
from making import Maker, environment_of, making
from mounts import DEADLINE_S, Mount, wait_until
from traffic import append

pytestmark = pytest.mark.one_mount

SOURCE = Path(__file__).with_name("classic_client.c")
CHANNEL = "xlog/9"
LOCKLESS, LOCKING = 1, 2
BULK, PACKET = 16, 32
RECORD = b"x" * 40  # one of them fills a sub-buffer of 64 bytes
FIRST = b"HEADCHANNEL" + RECORD  # the first sub-buffer, without its footer
OTHER = b"HEAD" + RECORD
Client = Callable[..., Maker]


@pytest.fixture
def client(mount: Mount) -> Iterator[Client]:
    """Have a program make the channel: sub-buffers begin with HEAD and end with FOOT."""
    with making(environment_of(mount), command=[compile_c([SOURCE])]) as program:

        def start(scheme: int = LOCKLESS, n_subbufs: int = 4, delivery: int = BULK) -> Maker:
            program.ask("texts HEAD FOOT CHANNEL")
            program.ask("full 1")
            program.ask(f"open /{CHANNEL} 64 {n_subbufs} {scheme | delivery}")
            return program

        yield start
        program.process.send_signal(signal.SIGCONT)


def refusal(path: Path) -> int:
    with pytest.raises(OSError) as refused:
        append(path, RECORD)
    return refused.value.errno or 0


def append_at_last(path: Path) -> None:
    """Write until nobody is in the way."""
    while True:
        try:
            return append(path, RECORD)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise


def fill(path: Path, n: int) -> None:
    """Write until the channel is suspended."""
    for _ in range(n):
        append(path, RECORD)
    assert refusal(path) == errno.ENOSPC


@pytest.mark.parametrize("scheme", [LOCKLESS, LOCKING])
def test_a_write_waits_for_a_client_that_is_slow_to_answer(mount: Mount, client: Client, scheme: int) -> None:
    program = client(scheme, 2)
    path = mount.path / CHANNEL
    append(path, RECORD)
    program.process.send_signal(signal.SIGSTOP)
    assert refusal(path) == errno.EBUSY  # after a second
    program.process.send_signal(signal.SIGCONT)
    append(path, RECORD)
    assert [mount.shown(CHANNEL, name) for name in ("records", "lost")] == ["2", "0"]
    assert os.read(os.open(path, os.O_RDONLY), 1000) == FIRST + b"FOOT" + OTHER


def test_while_a_write_waits_for_a_client_others_are_served(mount: Mount, client: Client) -> None:
    program = client()
    path = mount.path / CHANNEL
    append(path, RECORD)
    program.process.send_signal(signal.SIGSTOP)
    writer = threading.Thread(target=append_at_last, args=(path,))
    writer.start()
    assert "xlog/9" in mount.channels()
    assert os.read(os.open(path, os.O_RDONLY), 1000) == FIRST
    program.process.send_signal(signal.SIGCONT)
    writer.join(DEADLINE_S)
    assert [mount.shown(CHANNEL, name) for name in ("records", "lost")] == ["2", "0"]


def test_writes_that_a_dead_client_does_not_answer_are_lost(mount: Mount, client: Client) -> None:
    program = client()
    path = mount.path / CHANNEL
    append(path, RECORD)
    program.kill()
    for n in ("1", "2"):
        assert refusal(path) == errno.ENOSPC
        assert mount.shown(CHANNEL, "lost_full") == n
    mount.command(f"remove {CHANNEL}")
    assert not (mount.path / "xlog/9").exists()


def test_poll_tells_of_a_suspended_channel_what_can_be_done_with_it(mount: Mount, client: Client) -> None:
    client()
    path = mount.path / CHANNEL
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLOUT)
    assert poll.poll(0) == [(descriptor, select.POLLOUT)]
    fill(path, 4)
    assert poll.poll(0) == [(descriptor, select.POLLIN)]
    with pytest.raises(BlockingIOError):
        os.write(descriptor, RECORD)
    assert os.read(descriptor, 1000) == FIRST + b"FOOT" + (OTHER + b"FOOT") * 3
    assert poll.poll(0) == []
    threading.Thread(target=mount.command, args=(f"resume {CHANNEL}",)).start()
    assert poll.poll(DEADLINE_S * 1000) == [(descriptor, select.POLLOUT)]
    os.write(descriptor, b"more")
    assert os.read(descriptor, 1000) == b"HEADmore"
    os.close(descriptor)


def test_a_channel_stays_suspended_and_served_by_its_client_when_the_server_dies(mount: Mount, client: Client) -> None:
    program = client()
    path = mount.path / CHANNEL
    fill(path, 4)
    before = mount.channels(), path.stat().st_size
    mount.kill()
    assert program("write lost") == "ENOSPC"
    mount.start()
    assert (mount.channels(), path.stat().st_size) == before
    assert [mount.shown(CHANNEL, name) for name in ("suspended", "lost_full")] == ["1", "2"]
    assert refusal(path) == errno.ENOSPC
    mount.command(f"resume {CHANNEL}")
    assert mount.shown(CHANNEL, "suspended") == "0"
    append(path, RECORD)
    program.ask("write more")
    data = os.read(os.open(path, os.O_RDONLY), 1000)
    # What was over the oldest is gone.
    assert data == (OTHER + b"FOOT") * 3 + OTHER + b"more"
    assert mount.shown(CHANNEL, "lost_overwritten") == "1"


def test_a_reset_begins_anew_with_the_clients_headers(mount: Mount, client: Client) -> None:
    client()
    path = mount.path / CHANNEL
    fill(path, 4)
    mount.command(f"reset {CHANNEL}")
    assert [mount.shown(CHANNEL, name) for name in ("suspended", "records", "lost")] == ["0", "0", "0"]
    append(path, b"new")
    assert os.read(os.open(path, os.O_RDONLY), 1000) == b"HEADCHANNELnew"


def test_resume_leaves_a_channel_alone_that_is_not_suspended(mount: Mount, client: Client) -> None:
    client(n_subbufs=2)
    path = mount.path / CHANNEL
    append(path, RECORD)
    mount.command(f"resume {CHANNEL}")
    fill(path, 1)
    assert mount.shown(CHANNEL, "unread_bytes") == str(len(FIRST + OTHER + b"FOOTFOOT"))


def test_readers_find_the_end_of_a_channel_that_its_client_closes(mount: Mount, client: Client) -> None:
    program = client()
    path = mount.path / CHANNEL
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    append(path, RECORD)
    assert poll.poll(0) == []
    program.ask("close")
    wait_until(lambda: poll.poll(0) == [(descriptor, select.POLLIN | select.POLLERR | select.POLLHUP)], "the end")
    assert os.read(descriptor, 1000) == FIRST + b"FOOT"
    assert os.read(descriptor, 1000) == b""
    os.close(descriptor)


# --- packet delivery ---


@pytest.mark.parametrize("scheme", [LOCKLESS, LOCKING])
def test_each_write_is_delivered_to_the_maker(mount: Mount, client: Client, scheme: int) -> None:
    program = client(scheme, 2, PACKET)
    path = mount.path / CHANNEL
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    expected: list[str] = []

    def delivered() -> list[str]:
        return [line for line in program.told if line.startswith("deliver ")]

    for n in range(100):
        append(path, b"record %d" % n)
        expected.append(f"deliver record {n}")
        # So that none is overwritten before it is told.
        wait_until(lambda: delivered() == expected, lambda: f"{delivered()} becomes {expected}")
        os.read(descriptor, 1000)
    os.close(descriptor)
    program.start("write own")
    assert program.answer() == "0"
    expected.append("deliver own")
    wait_until(lambda: delivered() == expected, "its own record is delivered")


def n_until_busy(path: Path) -> int:
    """Write until nobody makes room; return how many were written."""
    for n in range(100):
        try:
            append(path, b"x")
        except OSError as error:
            assert error.errno == errno.EBUSY
            return n
    pytest.fail("nothing is in the way")


def test_writes_wait_for_a_maker_that_is_to_be_told_and_is_stopped(mount: Mount, client: Client) -> None:
    program = client(LOCKLESS, 4, PACKET)
    path = mount.path / CHANNEL
    program.process.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{program.process.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    n = n_until_busy(path)
    assert n > 0
    program.process.send_signal(signal.SIGCONT)
    wait_until(lambda: program.told.count("deliver x") == n, f"all {n} records are delivered")
    append_at_last(path)
    program.kill()
    append(path, b"y")
