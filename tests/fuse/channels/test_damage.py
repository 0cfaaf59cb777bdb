"""A channel whose memory somebody has damaged: it fails those who use it, and neither the server nor a neighbour."""

import errno
import json
import os
import select
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mounts import DEADLINE_S, NOBODY, Mount, User, truncate, wait_until
from tracing import RELAYCTL

from relayfs_fuse import Ring
from relayfs_fuse.counters import Counters

DAMAGED = "is damaged"
CPUS = os.sched_getaffinity(0)


def errno_of(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or 0
    return 0


@contextmanager
def polled(path: Path) -> Iterator[select.epoll]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN)
        epoll.poll(0)
        yield epoll
    os.close(descriptor)


def still_serves(mount: Mount) -> None:
    """The server lives, and another channel works."""
    path = mount.create("neighbour", "buffers=single")
    path.write_bytes(b"fine\n")
    assert path.read_bytes() == b"fine\n"
    mount.command("remove neighbour")
    assert mount.process is not None
    assert mount.process.poll() is None


JOIN = """
import os, sys
join = os.open(sys.argv[1], os.O_RDWR)
os.write(join, b"t hostile")
print(os.pread(join, 4096, 0).decode().strip(), flush=True)
sys.stdin.read()
"""


def test_a_polled_buffer_of_a_traced_program_is_truncated(mount: Mount, unprivileged) -> None:
    mount.expect(DAMAGED)
    mount.command("trace create t subbuf_size=4K n_subbufs=4\ntrace start t\n")
    python = "import sys; sys.argv = ['', *sys.argv[1:]]\n" + JOIN
    with subprocess.Popen(
        ["python3", "-c", python, mount.path / ".traces/join"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
    ) as hostile:  # fmt: skip
        assert hostile.stdout is not None
        assert hostile.stdin is not None
        place = hostile.stdout.readline().strip()
        file = mount.path / "t" / place / "cpu0"
        wait_until(file.exists, "the process's directory")
        with polled(file) as epoll:
            truncate(mount.store / "t" / place / "cpu/mem0", 0)
            wait_until(lambda: epoll.poll(0.1), "the poller is told")
        hostile.stdin.close()
    still_serves(mount)


@pytest.mark.parametrize("reads", ["read=nowait", "read=wait"])
def test_who_waits_for_a_buffer_that_is_truncated_is_told(mount: Mount, reads: str) -> None:
    mount.expect(DAMAGED)
    path = mount.create("bad", f"buffers=single subbuf_size=4K n_subbufs=4 {reads}")
    with polled(path) as epoll:
        reader = subprocess.Popen(["cat", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        os.truncate(mount.store / "bad/mem0", 0)
        wait_until(lambda: epoll.poll(0.1), "the poller is told")
        if reads == "read=wait":
            assert "Bad message" in reader.communicate(timeout=DEADLINE_S)[1]
        else:
            reader.communicate(timeout=DEADLINE_S)
    assert mount.shown("bad", "state").startswith("damaged: mem0: ")
    wait_until(lambda: DAMAGED in mount._log_text(), "the log tells of it")
    still_serves(mount)
    assert mount._log_text().count(DAMAGED) == 1


def overwrite(path: Path, offset: int, value: int) -> bytes:
    """Put a word into a file; return what was there."""
    with path.open("r+b", buffering=0) as file:
        before = os.pread(file.fileno(), 8, offset)
        os.pwrite(file.fileno(), struct.pack("<Q", value), offset)
    return before


@pytest.mark.parametrize("options", ["buffers=single subbuf_size=4K n_subbufs=4", "type=ring size=4K buffers=single"])
@pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1, 0xFF])
def test_no_word_of_a_channel_ends_the_server_or_keeps_it_from_starting(mount: Mount, options: str, value: int) -> None:
    """Each word, in turn, of the two control pages at the file's ends."""
    mount.expect(f"{DAMAGED}|cannot be used")
    path = mount.create("bad", options)
    sound_path = mount.create("sound", "buffers=single")
    path.write_bytes(b"record\n")
    memory = mount.store / "bad/mem0"
    sound = memory.read_bytes()
    places = [place for place in (*range(0, 4096, 8), *range(len(sound) - 4096, len(sound) - 3072, 8)) if place >= 0]
    for place in places[:: max(1, len(places) // 60)]:
        overwrite(memory, place, value)
        os.listdir(mount.path)
        for file in (path, mount.path / ".channels/bad/unread_bytes", mount.path / "counters.txt"):
            errno_of(file.stat)
        assert mount.process is not None
        assert mount.process.poll() is None
        with memory.open("r+b") as file:
            file.write(sound)
    overwrite(memory, len(sound) - 4096, value)
    for start in (160, 4096 + 160, len(sound) - 3968):
        overwrite(memory, start, value)
    # When the figures of another channel have been shown twice, those of the damaged one have been looked at.
    with Counters(mount.path) as counters:
        for n in (1, 2):
            sound_path.write_bytes(b"record\n")
            wait_until(lambda n=n: counters.value("relayfs/channels/sound/records") == n, "the figures are shown")
    mount.kill()
    mount.start()
    still_serves(mount)


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "none"


def test_a_damaged_channel_is_listed_named_and_removed_and_its_neighbours_work(mount: Mount) -> None:
    mount.expect(DAMAGED)
    bad = mount.create("dir/bad", "buffers=single subbuf_size=4K n_subbufs=4")
    good = mount.create("dir/good", "buffers=single subbuf_size=4K n_subbufs=4")
    good.write_bytes(b"fine\n")
    assert mount.shown("dir/bad", "state") == "ok"
    os.truncate(mount.store / "dir/bad/mem0", 0)
    assert sorted(path.name for path in (mount.path / "dir").iterdir() if path.stat().st_size >= 0) == ["bad", "good"]
    assert bad.stat().st_size == 0
    assert error_of(bad.read_bytes) == "EBADMSG"
    assert mount.shown("dir/bad", "state").startswith("damaged: mem0: ")
    assert mount.shown("dir/good", "state") == "ok"
    assert "\n# dir/bad is damaged: mem0: " in mount.control.read_text()
    assert good.read_bytes() == b"fine\n"
    mount.command("remove dir/bad")
    assert not bad.exists()
    assert "dir/bad" not in mount.control.read_text()


@pytest.mark.parametrize("buffers", ["single", "percpu"])
def test_a_damaged_ring_takes_no_more_records_and_counts_them(mount: Mount, buffers: str) -> None:
    mount.expect(DAMAGED)
    mount.create("bad", f"type=ring size=4K buffers={buffers}")
    cpu = min(CPUS)
    name, number = ("bad", 0) if buffers == "single" else (f"bad{cpu}", cpu)
    data_at, too_long = 8192, (3 << 32) | 5000
    with Ring(mount.path / "bad") as ring:
        os.sched_setaffinity(0, {cpu})
        try:
            ring.output(b"record")
            overwrite(mount.store / f"bad/mem{number}", data_at, too_long)
            assert error_of((mount.path / name).read_bytes) == "EBADMSG"
            for _ in range(3):
                assert error_of(lambda: ring.output(b"more")) == "ECANCELED"
                assert error_of(lambda: ring.reserve(4).__enter__()) == "ECANCELED"
        finally:
            os.sched_setaffinity(0, CPUS)
    assert mount.shown("bad", "state").startswith(f"damaged: mem{number}: ")
    assert (mount.shown("bad", "records"), mount.shown("bad", "lost_disabled")) == ("1", "6")
    still_serves(mount)


def test_a_channel_is_still_damaged_after_a_restart_and_can_be_removed(mount: Mount) -> None:
    mount.create("dir/bad", "buffers=percpu subbuf_size=4K n_subbufs=4")
    good = mount.create("dir/good", "buffers=single subbuf_size=4K n_subbufs=4")
    good.write_bytes(b"fine\n")
    mount.kill()
    os.truncate(mount.store / "dir/bad/mem0", 4096)
    mount.expect("dir/bad/mem0 cannot be used")
    mount.start()
    bad = mount.path / "dir/bad0"
    assert bad.stat().st_size == 0
    assert sorted(os.listdir(mount.path / "dir"))[0] == "bad0"
    assert error_of(bad.read_bytes) == error_of(lambda: bad.write_bytes(b"lost\n")) == "EBADMSG"
    assert mount.shown("dir/bad", "state").startswith("damaged: mem0: ")
    assert "# dir/bad is damaged: mem0: " in mount.control.read_text()
    assert error_of(lambda: mount.command("flush dir/bad")) == "EBADMSG"
    assert error_of(lambda: mount.command("create dir/bad")) == "EEXIST"
    assert good.read_bytes() == b"fine\n"
    mount.command("remove dir/bad")
    assert os.listdir(mount.path / "dir") == ["good"]
    assert os.listdir(mount.store / "dir") == ["good"]
    mount.create("dir/bad")


@pytest.mark.parametrize(
    ("options", "magic"),
    [("buffers=global subbuf_size=4K n_subbufs=4", b"RLYRING1"), ("type=ring size=4K buffers=global", b"RELYFS01")],
)
def test_memory_that_says_it_is_of_the_other_kind_is_damaged(mount: Mount, options: str, magic: bytes) -> None:
    mount.expect("bad/mem0 cannot be used")
    mount.create("bad", options)
    mount.kill()
    memory = mount.store / "bad/mem0"
    overwrite(memory, memory.stat().st_size - 4096, int.from_bytes(magic, "little"))
    mount.start()
    assert error_of((mount.path / "bad0").read_bytes) == "EBADMSG"
    assert mount.shown("bad", "state").startswith("damaged: mem0: ")
    mount.command("remove bad")
    still_serves(mount)


def test_only_its_owner_or_root_removes_a_damaged_channel(make_mount, unprivileged: User) -> None:
    mount: Mount = make_mount("control_mode=0666")
    mount.create("roots", "buffers=single")
    mount.create("theirs", f"buffers=single uid={unprivileged.uid}")
    mount.kill()
    for name in ("roots", "theirs"):
        os.truncate(mount.store / name / "mem0", 4096)
    mount.expect("cannot be used")
    mount.start()
    remove = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY), b'remove ' + sys.argv[2].encode())"
    assert "PermissionError" in unprivileged.python(remove, mount.control, "roots").stderr
    assert unprivileged.python(remove, mount.control, "theirs").stderr == ""
    assert mount.shown("roots", "state").startswith("damaged")
    assert not (mount.path / ".channels/theirs").exists()


def test_relayctl_lists_damaged_channels(mount: Mount) -> None:
    mount.expect(f"{DAMAGED}|cannot be used")
    path = mount.create("dir/bad", "buffers=single subbuf_size=4K n_subbufs=4")
    mount.create("dir/good", "buffers=single subbuf_size=4K n_subbufs=4")
    command = [RELAYCTL, "list", "--mount", mount.path]
    os.truncate(mount.store / "dir/bad/mem0", 4096)
    for _ in range(2):
        path.parent.joinpath("bad").exists()
        listed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
        bad, good = map(json.loads, listed.splitlines())
        assert (bad["name"], good["name"], good["state"]) == ("dir/bad", "dir/good", "ok")
        assert bad["state"] == mount.shown("dir/bad", "state")
        assert bad["state"].startswith("damaged: mem0: ")
        mount.kill()
        mount.start()


@pytest.mark.parametrize("scheme", ["lockless", "locking"])
@pytest.mark.parametrize("what", ["start_bytes", "produced", "claims"])
def test_one_store_of_eight_bytes_harms_its_channel_only(mount: Mount, scheme: str, what: str) -> None:
    """The figures of the counters, once a second, are what died of it."""
    mount.expect(f"{DAMAGED}|cannot be used")
    path = mount.create("bad", f"buffers=single subbuf_size=4K n_subbufs=4 scheme={scheme}")
    path.write_bytes(b"record\n")
    memory = mount.store / "bad/mem0"
    # relay_subbuf[0] begins where the data ends, its start_bytes is one of its first words; see <relayfs/layout.h>.
    ledgers = 4 * 4096
    first = {"start_bytes": ledgers, "produced": memory.stat().st_size - 4096, "claims": ledgers + 4 * 64}[what]
    for offset in range(first, first + 64, 8):
        before = overwrite(memory, offset, 1 << 63)
        for file in (path, mount.path / ".channels/bad/bytes", mount.path / ".channels/bad/state"):
            error_of(file.read_bytes)
        assert "bad" in os.listdir(mount.path)
        counted = (mount.path / "counters.txt").read_text()
        assert "relayfs/channels/bad/" in counted
        overwrite(memory, offset, struct.unpack("<Q", before)[0])
    if what != "claims":  # those that make no sense are nobody's
        assert mount.shown("bad", "state").startswith("damaged: mem0: ")
    overwrite(memory, first, 1 << 63)
    overwrite(memory, first + 8, (1 << 64) - 1)
    mount.kill()
    mount.start()
    still_serves(mount)
