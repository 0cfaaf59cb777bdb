"""What is not one call on one file: waking, removal, reset, several readers, limits; as a kernel was observed.

At the end stand the lines of relay-observed.txt that no test answers for, each with its reason.
"""

import errno
import os
import re
import select
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance import test_observed, test_observed_mapping, test_observed_states
from conformance.calls import events, name_of, write
from conformance.observations import COVERED, observations, observed
from mounts import DEADLINE_S, Mount, User, opened, wait_until

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

DEADLINE_MS = int(DEADLINE_S * 1000)
SIZES = "buffers=single subbuf_size=1000 n_subbufs=9 delivery=bulk"
READ = select.POLLIN | select.POLLRDNORM
GONE = select.POLLERR | select.POLLHUP


class Poller(threading.Thread):
    """Sleep in poll(2), with a descriptor of its own."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.events = 0
        self.start()
        # Asleep: the kernel shows what a thread waits in.
        wchan = Path(f"/proc/self/task/{self.native_id}/stat")
        wait_until(lambda: wchan.read_text().rpartition(")")[2].split()[0] == "S", "the thread sleeps")

    def run(self) -> None:
        self.events = events(self.descriptor, READ, DEADLINE_MS)

    def wake_up(self) -> int:
        self.join()
        return self.events


@pytest.fixture
def path(mount: Mount) -> Path:
    return mount.create("life", SIZES)


# --- reading ---


@observed("1", "open O_RDONLY as uid 65534")
def test_a_mode_keeps_others_out(mount: Mount, unprivileged: User) -> None:
    path = mount.create("private", f"{SIZES} perm=0400")
    done = unprivileged.python("import os, sys; os.open(sys.argv[1], os.O_RDONLY)", path)
    assert "Permission denied" in done.stderr


@observed("4", "poll", "st_size", "fdinfo pos", "read(10)", "read(4096) via OTHER open fd", "read again")
@observed("4", "fdinfo pos rfd/nfd")
def test_descriptors_share_what_there_is(path: Path) -> None:
    write(path, bytes(56))
    with opened(path) as one, opened(path, os.O_RDONLY | os.O_NONBLOCK) as other:
        assert events(one, READ) == 0
        assert os.fstat(one).st_size == 56, "the unfinished sub-buffer counts, or tail would see a truncated file"
        assert [len(os.read(descriptor, size)) for descriptor, size in ((one, 10), (other, 4096), (one, 1))] == [
            10,
            46,
            0,
        ]
        for descriptor, position in ((one, 10), (other, 46)):
            info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
            assert re.search(rf"pos:\s*{position}\n", info), "each counts what it was given"


@observed("B", "2 concurrent reader fds: sum of bytes + drops*60 == written")
def test_two_readers_get_each_byte_once(mount: Mount, path: Path) -> None:
    got: list[list[bytes]] = [[], []]
    written = threading.Event()

    def read(into: list[bytes]) -> None:
        with opened(path) as descriptor:
            last = False
            while not last:
                last = written.is_set()
                while piece := os.read(descriptor, 700):
                    into.append(piece)

    readers = [threading.Thread(target=read, args=(into,)) for into in got]
    for reader in readers:
        reader.start()
    refused = 0
    with opened(path, os.O_WRONLY) as descriptor:
        for number in range(1000):
            try:
                os.write(descriptor, b"%059d\n" % number)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                refused += 1
    written.set()
    for reader in readers:
        reader.join()
    assert sum(map(len, got[0] + got[1])) + refused * 60 == 60_000
    assert int(mount.shown("life", "lost_full")) == refused


@observed("B", *[f"[10B][empty][empty][empty][10B cur]: read #{number}" for number in range(5)])
def test_empty_sub_buffers_are_passed_and_nothing_old_is_given(mount: Mount) -> None:
    path = mount.create("empty", "buffers=single subbuf_size=256 n_subbufs=8 delivery=bulk")
    for letter in b"ABCDEFGH" * 2:  # whatever lies in the memory must not come out again
        write(path, bytes([letter]) * 256)
        path.read_bytes()
    mount.command("reset empty")
    write(path, b"A" * 10)
    for _ in range(4):
        mount.command("flush empty")
    write(path, b"B" * 10)
    with opened(path) as descriptor:
        assert os.read(descriptor, 4096) == b"A" * 10 + b"B" * 10
        assert os.read(descriptor, 4096) == b""
    assert [mount.shown("empty", name) for name in ("produced", "consumed")] == ["4", "4"]


def spliced(descriptor: int, target: int) -> int:
    """Move data through a pipe."""
    read_end, write_end = os.pipe()
    try:
        n = os.splice(descriptor, write_end, 4096)
        return os.splice(read_end, target, n) if n else 0
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.usefixtures("mapped_through")
@pytest.mark.parametrize(
    ("flags", "move"),
    [
        (os.O_RDWR | os.O_DIRECT, lambda descriptor, target: os.sendfile(target, descriptor, None, 4096)),
        (os.O_RDONLY | os.O_DIRECT, spliced),
    ],
    ids=["sendfile", "splice"],
)
def test_sendfile_and_splice_give_all_but_the_padding(
    path: Path, tmp_path: Path, flags: int, move: Callable[[int, int], int]
) -> None:
    for letter in (b"a", b"b"):
        write(path, letter * 600)  # the second does not fit behind the first
    with opened(path, flags) as descriptor, opened(tmp_path / "out", os.O_CREAT | os.O_WRONLY) as target:
        while move(descriptor, target):
            pass
    assert (tmp_path / "out").read_bytes() == b"a" * 600 + b"b" * 600
    assert path.read_bytes() == b"", "and it is consumed"


@observed("E", "cpu 1 consumed")
def test_consumed_concerns_one_buffer(mount: Mount) -> None:
    mount.create("cpu")
    mount.command("flush cpu")
    mount.command("consumed cpu 0 1")
    n_buffers = int(mount.shown("cpu", "n_buffers"))
    counts = [mount.shown("cpu", f"buffer{cpu}/consumed") for cpu in range(n_buffers)]
    assert counts == ["1"] + ["0"] * (n_buffers - 1)


# --- waking ---


@observed("11", "poll(1500) while 1 partial record written", "poll readable after partial-only write")
@observed("11", "poll(1500) while sub-buffer boundary crossed", "3 concurrent pollers woken by one switch")
def test_a_switch_wakes_all_pollers_and_a_record_none(path: Path) -> None:
    with opened(path) as one, opened(path) as two, opened(path) as three:
        pollers = [Poller(descriptor) for descriptor in (one, two, three)]
        write(path, bytes(600))
        assert events(one, READ, 100) == 0
        assert all(poller.is_alive() for poller in pollers)
        write(path, bytes(600))
        assert [poller.wake_up() for poller in pollers] == [READ] * 3


@observed("11", "poll(1500) and STOP (flush)")
def test_a_flush_wakes_pollers(mount: Mount, path: Path) -> None:
    with opened(path) as descriptor:
        poller = Poller(descriptor)
        mount.command("flush life")
        assert poller.wake_up() == READ


@observed("11", "ET initial", "ET after switch", "ET again (unread)", "ET after 2nd switch (still unread)")
def test_edge_triggered_epoll_hears_each_switch_once(mount: Mount, path: Path) -> None:
    with opened(path) as descriptor, select.epoll() as poll:
        poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        assert poll.poll(0) == []
        for _ in range(2):
            mount.command("flush life")
            assert poll.poll(DEADLINE_MS / 1000) == [(descriptor, select.EPOLLIN)]
            assert poll.poll(0) == []


# --- removal and reset ---


@observed("B", "poll(1200) blocked while relay_close()", "poll after close", "read after close (3x200 unread in cur)")
@observed("B", "poll(1200) blocked across relay_close, NO switch (unsafe file)", "read again", "fstat after close")
@observed("B", "path gone", "new channel same name coexists; old fd read")
@observed("C", "poll/read")
@observed("12", "poll(1500) blocked across TEARDOWN", "poll now", "read now", "fstat", "path exists", "lseek")
@observed("12", "unread st_size", "unread data after teardown: poll/read", "re-SETUP with old fd still open")
@observed("12", "STOPped+drained: poll(1500) across TEARDOWN (no flush, no s", "epoll_ctl ADD after removal")
@observed("12", "epoll_wait(0)")
def test_a_removed_file_is_read_on_to_the_end(mount: Mount, path: Path) -> None:
    for _ in range(3):
        write(path, b"u" * 200)
    with opened(path) as descriptor, opened(path) as polled:
        poller = Poller(polled)
        mount.command("remove life")
        assert poller.wake_up() == READ | GONE, "woken at once, by the removal itself"
        assert events(descriptor, READ) == READ | GONE
        assert not path.exists()
        assert (os.fstat(descriptor).st_nlink, os.fstat(descriptor).st_size) == (0, 600)
        again = mount.create("life", SIZES)
        write(again, b"new")
        assert os.lseek(descriptor, 0, os.SEEK_END) == 600
        assert os.lseek(descriptor, 0, os.SEEK_SET) == 0
        assert os.read(descriptor, 4096) == b"u" * 600
        assert os.read(descriptor, 4096) == b""
        with select.epoll() as poll:
            poll.register(descriptor, select.EPOLLIN)
            assert poll.poll(0) == [(descriptor, select.EPOLLERR | select.EPOLLHUP)]
    assert again.read_bytes() == b"new"


@observed("B", "poll(1200) blocked across relay_reset")
@observed("B", "st_size after reset+990+20 (not reset to 0)")
def test_reset_begins_anew_and_leaves_pollers_asleep(mount: Mount, path: Path) -> None:
    write(path, bytes(1000))
    with opened(path) as descriptor:
        poller = Poller(descriptor)
        mount.command("reset life")
        assert os.fstat(descriptor).st_size == 0, "sizes count since the reset, as all counters do"
        write(path, bytes(990))
        assert poller.is_alive()
        write(path, bytes(20))
        assert poller.wake_up() == READ
        assert os.fstat(descriptor).st_size == 1010


# --- buffers and limits ---


@observed("K", "files", "write from cpu0+cpu1, read cpu0")
def test_a_global_buffer_takes_records_of_all_cpus(mount: Mount) -> None:
    path = mount.create("global", "buffers=global")
    allowed = os.sched_getaffinity(0)
    try:
        for cpu in sorted(allowed):
            os.sched_setaffinity(0, {cpu})
            write(Path(f"{path}0"), b"%d" % (cpu % 10) * 10)
    finally:
        os.sched_setaffinity(0, allowed)
    assert [name for name in os.listdir(mount.path) if name.startswith("global")] == ["global0"]
    assert Path(f"{path}0").read_bytes() == b"".join(b"%d" % (cpu % 10) * 10 for cpu in sorted(allowed))


@observed("L", "open with cpu1 offline: files", "after cpu1 online", "flush touches offline cpu buffer")
@observed("L", "cpu1 offlined again: file still there, data readable")
def test_files_and_data_of_cpus_that_cannot_be_run_on_stay(mount: Mount) -> None:
    """Taking a CPU away needs a machine that can; to a producer it is as if it may not run there any more."""
    allowed = os.sched_getaffinity(0)
    stays, goes = min(allowed), max(allowed)
    try:
        os.sched_setaffinity(0, {stays})
        path = mount.create("cpus/cpu")
        n_buffers = int(mount.shown("cpus/cpu", "n_buffers"))
        assert sorted(os.listdir(path.parent)) == sorted(f"cpu{cpu}" for cpu in range(n_buffers)), "from the beginning"
        os.sched_setaffinity(0, {goes})
        with Channel(path) as channel:
            channel.write(b"A" * 30)
            os.sched_setaffinity(0, {stays})
            channel.flush()
    finally:
        os.sched_setaffinity(0, allowed)
    assert mount.shown("cpus/cpu", f"buffer{goes}/produced") == "1"
    assert Path(f"{path}{goes}").read_bytes() == b"A" * 30


# Geometry; the kernel's answers through relay_open() and through blktrace; ours; why.
TOO_LARGE = "the store has no memory for it; otherwise up to 2^40 bytes a buffer"
LIMITS = [
    (0, 1, "EIO", None, "EINVAL", "the argument is wrong, not the device"),
    (1, 0, "EIO", None, "EINVAL", "the argument is wrong, not the device"),
    (1 << 32, 1, "EIO", None, "EINVAL", "sub-buffers are shorter than 4 GiB"),
    (65536, 65536, "EIO", "EIO", "ENOSPC", TOO_LARGE),
    (1 << 31, 2, "EIO", "EIO", "ENOSPC", TOO_LARGE),
    (1, 524288, "ok", "ok", "ok", ""),
    (1, 524289, "EIO", "EIO", "ok", "the number is limited by memory only"),
    (33554432, 2, "ok", None, "ok", ""),
    (0, 4, None, "EINVAL", "EINVAL", ""),
    (4096, 0, None, "EINVAL", "EINVAL", ""),
    (1, 1, None, "ok", "ok", ""),
    (7, 3, None, "ok", "ok", ""),
]
for size, n, by_open, by_setup, *_ in LIMITS:
    COVERED.update([("M", f"open S={size} n={n}")] if by_open else [])
    COVERED.update([("13", f"setup S={size} n={n}")] if by_setup else [])


@pytest.mark.parametrize(("size", "n", "by_open", "by_setup", "ours", "why"), LIMITS)
def test_geometries_are_limited(
    make_mount: Callable[..., Mount], size: int, n: int, by_open: str | None, by_setup: str | None, ours: str, why: str
) -> None:
    seen = {(line.section, line.label): line.result for line in observations()}
    assert seen.get(("M", f"open S={size} n={n}")) == by_open
    assert seen.get(("13", f"setup S={size} n={n}")) == by_setup
    mount = make_mount("size=256M")
    got = "ok"
    try:
        mount.create("limits", f"buffers=single subbuf_size={size} n_subbufs={n}")
    except OSError as error:
        got = name_of(error)
    assert got == ours, why


@observed("15", "second SETUP same dev")
def test_a_name_is_used_once(mount: Mount, path: Path) -> None:
    with pytest.raises(FileExistsError):
        mount.create("life", SIZES)


# --- what is not tested here ---

LEFT_OUT = {
    "A": "splice/sendfile on unsafe file: as in section 4, and as files opened with O_DIRECT",
    "C": "the mmap line repeats section 5",
    "N": "times of an emulator",
}


def test_every_line_is_answered_for_or_left_out_with_a_reason() -> None:
    assert test_observed.CASES
    assert test_observed_states.RUNS
    assert test_observed_mapping.MAPPINGS
    lines = {(line.section, line.label) for line in observations() if line.label}
    assert lines >= COVERED, sorted(COVERED - lines)
    missing = sorted(lines - COVERED)
    assert {name for name, _ in missing} == set(LEFT_OUT), missing
