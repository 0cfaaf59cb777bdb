"""Rings as files: made by commands, read with framing, by tools, found again after a restart."""

import contextlib
import errno
import os
import random
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forking
import pytest
from lines_out import printing
from mounts import DEADLINE_S, Mount, shell, wait_until
from traffic import append

from relayfs_fuse import Channel, Ring, native

pytestmark = pytest.mark.one_mount

N_CPUS = native.n_possible_cpus()


@pytest.fixture
def make(shared_mount: Mount) -> Iterator[Callable[..., Path]]:
    """Make rings, of one file each; they go with the test."""
    made = []

    def make(options: str = "") -> Path:
        made.append(f"app/ring{len(made)}")
        return shared_mount.create(made[-1], f"type=ring size=4K buffers=single {options}")

    yield make
    for path in made:
        shared_mount.command(f"remove {path}")


def contents(file: Path) -> bytes:
    return file.read_bytes()


def output(file: Path, *records: bytes) -> None:
    with Ring(file) as ring:
        for record in records:
            ring.output(record)


# --- commands ---


def test_reading_control_gives_commands_that_make_the_rings_again(mount: Mount) -> None:
    mount.create("a/r", "type=ring")
    mount.create(
        "b",
        "mode=overwrite buffers=percpu size=64K framing=length times=mono read=wait perm=0600 uid=12 gid=34 type=ring",
    )
    mount.create("c", "type=relay buffers=single")
    mount.create("d", "type=ring buffers=single framing=line scheme=lockless")
    text = mount.channels()
    assert text.splitlines()[:2] == [
        "create a/r type=ring size=1M mode=no-overwrite buffers=global scheme=lockless read=nowait framing=raw "
        "times=none perm=0640 uid=0 gid=0",
        "create b type=ring size=64K mode=overwrite buffers=percpu scheme=rseq read=wait framing=length "
        "times=mono perm=0600 uid=12 gid=34",
    ]
    for path in ("a/r", "b", "c", "d"):
        mount.command(f"remove {path}")
    mount.command(text)
    assert mount.channels() == text
    names = set(os.listdir(mount.path)) | {f"a/{name}" for name in os.listdir(mount.path / "a")}
    assert names >= {"a/r0", "c", "d", *(f"b{cpu}" for cpu in range(N_CPUS))}
    assert (mount.path / "b0").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("line", "code", "word", "hint"),
    [
        ("create x type=rings", errno.EINVAL, "type=rings", "relay or ring"),
        (
            "create x type=ring subbuf_size=4K",
            errno.EINVAL,
            "subbuf_size=4K",
            "subbuf_size= is not for type=ring; there",
        ),
        ("create x flush_interval=1 type=ring", errno.EINVAL, "flush_interval=1", "is not for type=ring"),
        ("create x size=4K", errno.EINVAL, "size=4K", "size= is not for type=relay; there are: type=, subbuf_size="),
        ("create x framing=raw", errno.EINVAL, "framing=raw", "framing= is not for type=relay"),
        ("create x type=ring type=ring", errno.EINVAL, "type=ring", "twice"),
        ("create x type=ring size=5000", errno.EINVAL, "size=5000", "a power of two, 4096 or more"),
        ("create x type=ring size=2K", errno.EINVAL, "size=2K", "a power of two, 4096 or more"),
        ("create x type=ring size=2048G", errno.EINVAL, "size=2048G", "a power of two"),
        ("create x type=ring size=1T", errno.EINVAL, "size=1T", "bytes, with an optional K, M or G: a power of two"),
        ("create x type=ring mode=callback", errno.EINVAL, "mode=callback", "no-overwrite or overwrite"),
        ("create x type=ring scheme=locking", errno.EINVAL, "scheme=locking", "any or rseq or lockless"),
        ("create x type=ring scheme=rseq", errno.EINVAL, "scheme=rseq", "needs buffers=percpu"),
        ("create x type=ring framing=lines", errno.EINVAL, "framing=lines", "raw or length or line"),
        ("create x type=ring size=1024G", errno.ENOSPC, "size=1024G", "left of the limit size="),
        ("create app/ring0 type=ring", errno.EEXIST, "app/ring0", "exists"),
        ("flush app/ring0", errno.EOPNOTSUPP, "app/ring0", "is a ring: a record can be read as soon as"),
        ("reset app/ring0", errno.EOPNOTSUPP, "app/ring0", "cannot be reset"),
        ("resume app/ring0", errno.EOPNOTSUPP, "app/ring0", "only a relay channel"),
        ("consumed app/ring0 0 1", errno.EOPNOTSUPP, "app/ring0", "consumer position"),
    ],
)
def test_a_refused_command_says_why(
    shared_mount: Mount, make: Callable[..., Path], line: str, code: int, word: str, hint: str
) -> None:
    make()
    (shared_mount.path / "error_log").write_bytes(b"")
    with pytest.raises(OSError) as refused:
        shared_mount.command(line)
    assert refused.value.errno == code
    head, command, mark = shared_mount.error_log.splitlines()
    assert hint in head
    assert command[mark.index("^") :].startswith(word)


def test_default_size_leaves_room_for_others(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("size=8M")
    mount.expect("reduced")
    mount.create("r", "type=ring")
    assert "size=128K" in mount.channels()
    assert "reduced to rings of 128K, from 1M" in mount.error_log
    with pytest.raises(OSError) as refused:
        mount.create("s", "type=ring size=4M")
    assert refused.value.errno == errno.ENOSPC


def test_a_disabled_ring_refuses_and_counts(shared_mount: Mount, make: Callable[..., Path]) -> None:
    file = make()
    shared_mount.command("disable app/ring0")
    for write in (output, append):
        with pytest.raises(OSError) as refused:
            write(file, b"lost")
        assert refused.value.errno == errno.ECANCELED
    assert shared_mount.shown("app/ring0", "disabled") == "1"
    assert shared_mount.shown("app/ring0", "lost_disabled") == "2"
    assert shared_mount.shown("app/ring0", "lost_disabled_bytes") == "8"
    shared_mount.command("enable app/ring0")
    output(file, b"taken")
    assert contents(file) == b"taken"


def test_stats_account_for_every_record(shared_mount: Mount, make: Callable[..., Path]) -> None:
    file = make()
    with Ring(file) as ring:
        for _ in range(100):
            ring.output(b"x" * 24)
        with pytest.raises(ZeroDivisionError), ring.reserve(8):
            raise ZeroDivisionError
        assert contents(file) == b"x" * 2400
        with ring.reserve(100) as record:
            stats = {name: shared_mount.shown("app/ring0", name) for name in ("producer_position", "unread_bytes")}
            record[:] = b"y" * 100
        with pytest.raises(BlockingIOError):
            ring.output(b"z" * 4090)
        with pytest.raises(BlockingIOError):
            ring.output(b"z" * 4060)
    assert stats == {"producer_position": str(3200 + 16 + 112), "unread_bytes": "112"}
    expected = {
        **{"type": "ring", "ring_size": "4096", "n_buffers": "1", "records": "102", "read_records": "100"},
        **{"read_bytes": "2400", "skipped": "1", "consumer_position": "3216", "lost": "2", "lost_full": "1"},
        **{"lost_full_bytes": "4060", "lost_too_large": "1", "lost_too_large_bytes": "4090", "lost_torn": "0"},
        **{"lost_overwritten": "0", "mode": "no-overwrite", "framing": "raw", "read": "nowait"},
    }
    assert {name: shared_mount.shown("app/ring0", name) for name in expected} == expected
    assert shared_mount.shown("app/ring0", "buffer0/records") == "102"
    assert file.stat().st_size == 112


def test_its_figures_are_among_the_mounts_counters(mount: Mount) -> None:
    file = mount.create("app/r", "type=ring size=4K buffers=single")
    output(file, b"one", b"two", b"three")
    with pytest.raises(BlockingIOError):
        output(file, b"x" * 4070)
    values = dict(line.split() for line in (mount.path / "counters.txt").read_text().splitlines())
    names = ("records", "unread_bytes", "lost_full", "lost_too_large", "lost_disabled", "lost_overwritten", "lost_torn")
    found = {name: values[f"relayfs/channels/app/r/{name}"] for name in names}
    assert found == {name: mount.shown("app/r", name) for name in names}
    assert (found["records"], found["lost_full"]) == ("3", "1")


# --- reading ---

RECORDS = [b"", b"one", b"a line\n", b"\n", bytes(range(256)), b"x" * 2000]
FRAMED = {
    "raw": b"".join(RECORDS),
    "length": b"".join(struct.pack("<I", len(record)) + record for record in RECORDS),
    "line": b"".join(record if record.endswith(b"\n") else record + b"\n" for record in RECORDS),
}
FRAMINGS = pytest.mark.parametrize("framing", FRAMED)


@FRAMINGS
def test_cat_shows_all_records_as_they_are_framed(make: Callable[..., Path], framing: str) -> None:
    file = make(f"framing={framing}")
    output(file, *RECORDS)
    assert subprocess.run(["cat", file], capture_output=True, check=True).stdout == FRAMED[framing]
    assert contents(file) == b""


@FRAMINGS
@pytest.mark.parametrize(
    "command", ["dd bs=1", "dd bs=7", "dd bs=100", "dd bs=1M", "tail -n +1", "busybox cat", "cat -u"]
)
def test_no_tool_loses_a_byte_however_little_it_reads_at_a_time(
    make: Callable[..., Path], framing: str, command: str
) -> None:
    file = make(f"framing={framing}")
    output(file, *RECORDS)
    done = subprocess.run(f"{command} <{file}", shell=True, capture_output=True, check=True)
    assert done.stdout == FRAMED[framing]


@FRAMINGS
def test_a_read_gives_whole_records_where_one_fits(make: Callable[..., Path], framing: str) -> None:
    file = make(f"framing={framing}")
    dice = random.Random(framing)
    got = b""
    descriptor = os.open(file, os.O_RDONLY)
    for _ in range(200):
        records = [dice.randbytes(dice.randrange(1, 100)).replace(b"\n", b" ") for _ in range(dice.randrange(1, 20))]
        output(file, *records)
        ends = {0}
        for record in records:
            ends.add(max(ends) + len(record) + {"raw": 0, "length": 4, "line": 1}[framing])
        at = 0
        while piece := os.read(descriptor, dice.randrange(104, 500)):
            at += len(piece)
            assert at in ends
            got += piece
        assert at == max(ends)
    os.close(descriptor)
    assert len(got) > 10000


def test_who_closes_in_the_middle_of_a_record_leaves_it_whole_to_the_next(make: Callable[..., Path]) -> None:
    file = make("framing=line")
    output(file, b"first", b"second", b"third")
    descriptor = os.open(file, os.O_RDONLY)
    assert os.read(descriptor, 3) == b"fir"
    other = os.open(file, os.O_RDONLY)
    assert os.read(other, 7) == b"second\n"
    os.close(descriptor)
    assert os.read(other, 100) == b"first\n"
    assert os.read(other, 100) == b"third\n"
    os.close(other)


def test_who_reads_a_part_of_a_record_takes_no_other(make: Callable[..., Path]) -> None:
    file = make("framing=line")
    output(file, b"ab", b"", b"cd")
    descriptor, other = (os.open(file, os.O_RDONLY) for _ in range(2))
    assert os.read(descriptor, 1) == b"a"
    assert os.read(other, 100) == b"\ncd\n"
    assert os.read(descriptor, 100) == b"b\n"
    os.close(descriptor)
    os.close(other)


def test_the_shell_reads_line_by_line(make: Callable[..., Path]) -> None:
    file = make("framing=line")
    output(file, b"first", b"second", b"third")
    done = shell(f"read a <{file.name}; (read b; read c; echo $a $c $b) <{file.name}", file.parent)
    assert (done.stdout, done.stderr) == ("first third second\n", "")


def test_tail_f_shows_what_comes(make: Callable[..., Path]) -> None:
    file = make("framing=line")
    output(file, b"first")
    with printing(["tail", "-s", "0.01", "-f", file]) as tail:
        assert tail.line() == b"first\n"
        for n in range(20):
            output(file, b"record %d" % n)
            assert tail.line() == b"record %d\n" % n


def test_two_readers_share_the_records(make: Callable[..., Path]) -> None:
    file = make("framing=line")
    descriptors = [os.open(file, os.O_RDONLY) for _ in range(2)]
    got = []
    for n in range(200):
        output(file, b"record %d" % n)
        got.append(os.read(descriptors[n * 7 % 2], 1000))
    assert got == [b"record %d\n" % n for n in range(200)]
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_record_longer_than_any_request_comes_in_parts(shared_mount: Mount) -> None:
    file = shared_mount.create("long", "type=ring buffers=single size=16M framing=length")
    record = random.Random(1).randbytes(9_000_000)
    output(file, b"before", record, b"after")
    got = subprocess.run(["cat", file], capture_output=True, check=True).stdout
    assert got == b"".join(struct.pack("<I", len(each)) + each for each in (b"before", record, b"after"))
    shared_mount.command("remove long")


def test_other_files_are_read_while_a_long_record_is(shared_mount: Mount) -> None:
    """Requests are answered in turn, so one that is sent later and answered earlier came between two parts."""
    other = shared_mount.path / ".channels/long/read_records"
    record = bytes(48 << 20)

    def is_answered_before() -> bool:
        file = shared_mount.create("long", "type=ring buffers=single size=64M")
        output(file, record)
        with file.open("rb", buffering=0) as opened, ThreadPoolExecutor(1) as pool:
            status = Path(f"/proc/self/task/{pool.submit(threading.get_native_id).result()}/syscall")
            reading = pool.submit(opened.read, 1)
            answered = False
            while not (reading.done() or answered):
                if f" {opened.fileno():#x} " in status.read_text():
                    answered = other.read_text() == "0\n" and f" {opened.fileno():#x} " in status.read_text()
            assert reading.result(DEADLINE_S) == b"\0"
        assert other.read_text() == "1\n"
        shared_mount.command("remove long")
        return answered

    assert any(is_answered_before() for _ in range(5))


def test_in_overwrite_mode_the_last_records_are_left(shared_mount: Mount, make: Callable[..., Path]) -> None:
    file = make("mode=overwrite framing=line")
    output(file, *(b"record %06d" % n for n in range(1000)))
    lines = contents(file).splitlines()
    assert 100 < len(lines) < 200
    assert lines == [b"record %06d" % n for n in range(1000 - len(lines), 1000)]
    assert shared_mount.shown("app/ring0", "lost_overwritten") == str(1000 - len(lines))
    assert shared_mount.shown("app/ring0", "lost") == str(1000 - len(lines))


# --- writing ---


def test_one_write_is_one_record(shared_mount: Mount, make: Callable[..., Path]) -> None:
    file = make("framing=length")
    subprocess.run(f"echo hi >{file}; printf %s there >>{file}", shell=True, check=True)
    assert contents(file) == b"\3\0\0\0hi\n\5\0\0\0there"


def test_a_full_ring_refuses_a_write(shared_mount: Mount, make: Callable[..., Path]) -> None:
    file = make()
    for length in (2000, 2000):
        append(file, b"x" * length)
    with pytest.raises(OSError) as full:
        append(file, b"x" * 100)
    assert full.value.errno == errno.ENOSPC
    descriptor = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        os.write(descriptor, b"x" * 100)
    os.close(descriptor)
    for length in (4081, 2 << 20):
        with pytest.raises(OSError) as large:
            append(file, b"x" * length)
        assert large.value.errno == errno.EMSGSIZE
    assert shared_mount.shown("app/ring0", "lost_full") == "2"
    assert shared_mount.shown("app/ring0", "lost_too_large") == "2"
    assert len(contents(file)) == 4000


# --- the store ---


@pytest.mark.one_mount(False)
def test_unread_records_and_counts_survive_the_server(mount: Mount) -> None:
    path = mount.create("app/r", "type=ring size=4K framing=line")
    relay = mount.create("app/cpu", "buffers=single")
    before = mount.channels()
    with Ring(path) as ring:
        ring.output(b"one")
        mount.kill()
        ring.output(b"two")
        mount.start()
        ring.output(b"three")
    append(relay, b"a relay channel beside it")
    assert mount.channels() == before
    assert contents(Path(f"{path}0")) == b"one\ntwo\nthree\n"
    assert contents(relay) == b"a relay channel beside it"
    assert mount.shown("app/r", "read_records") == "3"


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: os.truncate(path, 8192), "truncated, damaged or no relay buffer or ring"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "truncated, damaged or no relay buffer or ring"),
        (lambda path: path.rename(path.with_name("mem7")), "'mem7' is not one of mem0 to mem0"),
        (lambda path: path.with_name("mem1").write_bytes(path.read_bytes()), "ring0|buffer 0 of 1, not 0 of 2"),
    ],
)
@pytest.mark.one_mount(False)
def test_a_damaged_ring_is_left_out_and_said(mount: Mount, harm: Callable[[Path], None], message: str) -> None:
    mount.create("good", "type=ring size=4K")
    mount.create("bad", "type=ring size=4K")
    mount.stop()
    harm(mount.store / "bad/mem0")
    mount.expect("bad")
    mount.start()
    assert [line.split()[1] for line in mount.channels().splitlines()] == ["good"]
    assert message.rpartition("|")[2] in mount.error_log


@pytest.mark.one_mount(False)
def test_rings_and_buffers_do_not_mix_in_one_channel(mount: Mount) -> None:
    mount.create("r", f"type=ring size=4K buffers={'percpu' if N_CPUS > 1 else 'global'}")
    mount.create("b", "subbuf_size=4K n_subbufs=2")
    mount.stop()
    (mount.store / "r" / f"mem{N_CPUS - 1}").write_bytes((mount.store / f"b/mem{N_CPUS - 1}").read_bytes())
    mount.expect("different types" if N_CPUS > 1 else "r")
    mount.start()
    assert "create r " not in mount.channels() or N_CPUS == 1


@pytest.mark.one_mount(False)
def test_a_ring_that_contradicts_itself_is_reported_with_the_place(mount: Mount) -> None:
    file = mount.create("r", "type=ring size=4K buffers=single")
    output(file, b"good", b"bad")
    with (mount.store / "r/mem0").open("r+b") as memory:
        memory.seek(8192 + 16)
        memory.write(struct.pack("<I", 100_000))
    mount.expect("is damaged: mem0: .* position .16. is 100000")
    assert contents_or_errno(file) == b"good"
    assert contents_or_errno(file) == errno.EBADMSG
    assert "the length at position [16] is 100000" in mount.shown("r", "state")
    mount.command("remove r")
    assert not file.exists()


@pytest.mark.one_mount(False)
def test_a_damaged_ring_that_cannot_be_opened_is_let_go_of(mount: Mount) -> None:
    file = mount.create("r", "type=ring size=4K buffers=single")
    output(file, b"a record")
    mount.expect("is damaged: mem0: ")
    with (mount.store / "r/mem0").open("r+b") as memory:
        memory.seek(4096)
        memory.write(struct.pack("<Q", 1 << 63))  # the producer position
    before = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("mem0")
    with pytest.raises(OSError, match=os.strerror(errno.EBADMSG)):
        Ring(file)
    assert (len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("mem0")) == before


LOOK = "import sys; from relayfs_fuse import Ring; ring = Ring(sys.argv[1]); input(); list(ring.records(timeout=0.1))"


@pytest.mark.one_mount(False)
def test_who_reads_a_ring_that_is_spoilt_meanwhile_hears_of_it(mount: Mount) -> None:
    mount.create("r", "type=ring size=4K buffers=single")
    mount.expect("is damaged: mem0: relay_ring_geometry.magic")
    with forking.start(
        [sys.executable, "-c", LOOK, mount.path / "r"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        try:
            maps = Path(f"/proc/{reader.pid}/maps")
            wait_until(lambda: "mem0" in maps.read_text(), "the ring is mapped")
            with (mount.store / "r/mem0").open("r+b") as memory:
                memory.seek(-4096, os.SEEK_END)
                memory.write(bytes(8))
            _, said = reader.communicate("\n", DEADLINE_S)
        finally:
            reader.kill()
    assert os.strerror(errno.EBADMSG) in said


@pytest.mark.parametrize("what", ["consumer", "producer", "header", "state"])
@pytest.mark.one_mount(False)
def test_no_value_in_a_rings_memory_hurts_the_server(mount: Mount, what: str) -> None:
    file = mount.create("r", "type=ring size=4K buffers=single read=wait")
    places = {
        "consumer": [0, 8, 16, 64, 72, 128],
        "producer": range(4096, 4096 + 64, 8),
        "header": [8192],
        "state": range(45056 - 4096, 45056 - 4096 + 256, 8),
    }
    values = [0, 1, 8, 4095, 4096, 1 << 30, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]
    dice = random.Random(what)
    mount.expect("is damaged: mem0: ")
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with (mount.store / "r/mem0").open("r+b", buffering=0) as memory, Ring(file) as ring, select.epoll() as epoll:
        sound = memory.read()
        epoll.register(descriptor, select.EPOLLIN)
        for place in places[what]:
            for value in [*values, dice.getrandbits(64)]:
                memory.seek(0)
                memory.write(sound)
                with contextlib.suppress(OSError):
                    ring.output(b"a record")
                os.pwrite(memory.fileno(), struct.pack("<Q", value), place)
                epoll.poll(0)
                with contextlib.suppress(OSError):
                    os.read(descriptor, 10)
                for path in (file, mount.path / ".channels/r/unread_bytes", mount.path / ".channels/r/lost"):
                    with contextlib.suppress(OSError):
                        path.stat()
        memory.seek(0)
        memory.write(sound)
        ring.output(b"it is sound again")
        assert os.read(descriptor, 100) == b"it is sound again"
    os.close(descriptor)


def contents_or_errno(file: Path) -> bytes | int | None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 20)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)


def test_a_removed_ring_ends_for_all(mount: Mount) -> None:
    file = mount.create("r", "type=ring size=4K buffers=single read=wait framing=line")
    ring = Ring(file)
    ring.output(b"left")
    cat = subprocess.Popen(["cat", file], stdout=subprocess.PIPE)
    wait_until(lambda: mount.shown("r", "read_records") == "1", "cat has read")
    mount.command("remove r")
    assert cat.communicate(timeout=DEADLINE_S)[0] == b"left\n"
    with pytest.raises(BrokenPipeError):
        ring.output(b"too late")
    ring.close()
    assert not (mount.path / ".channels/r").exists()


def test_a_program_takes_no_ring_for_a_relay_channel_nor_the_other_way_round(shared_mount: Mount) -> None:
    for path, kind, options in (("k", Channel, "type=ring size=4K"), ("l", Ring, "buffers=single")):
        with pytest.raises(OSError) as strange:
            kind(shared_mount.create(path, options))
        assert strange.value.errno == errno.EMEDIUMTYPE
        shared_mount.command(f"remove {path}")
