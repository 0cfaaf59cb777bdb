"""Programs and their rings: by path, without a mount, one ring for each CPU, several rings for many keys."""

import ctypes
import errno
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from lines_out import printing
from mounts import DEADLINE_S, Mount, User, wait_until

import relayfs_fuse
from relayfs_fuse import Ring, native, ring_hash

pytestmark = pytest.mark.one_mount

N_CPUS = native.n_possible_cpus()

# Numbers its records, and waits while the ring is full.
PRODUCER = """
import sys, time
from relayfs_fuse import Ring, ring_hash
key, n, paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
with Ring(paths[ring_hash(key, len(paths))]) as ring:
    for i in range(n):
        while True:
            try:
                if i % 3:
                    ring.output(b"%d %d " % (key, i) + b"x" * (i * 7 % 300))
                else:
                    text = b"%d %d " % (key, i) + b"y" * (i * 11 % 300)
                    with ring.reserve(len(text)) as record:
                        record[:] = text
                break
            except BlockingIOError:
                time.sleep(0.001)  # until the consumer has made room
"""

# Reserves more than it commits, until it is killed.
VICTIM = """
import sys
from relayfs_fuse import Ring
ring = Ring(sys.argv[1])
print("ready", flush=True)
while True:
    try:
        with ring.reserve(100), ring.reserve(50):
            ring.output(b"whole")
    except BlockingIOError:
        pass
"""


def python(code: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    return forking.start([sys.executable, "-c", code, *map(str, arguments)], **options)


# --- by path ---


def test_python_makes_and_uses_a_ring(mount: Mount) -> None:
    with Ring.create(mount.path / "app/r", size="4K", framing="length", perm="0600") as ring:
        ring.output(b"one")
        with ring.reserve(3) as record:
            record[:] = b"two"
        ring.output(memoryview(b"three"))
        ring.output(b"")
        assert ring.query("avail_data") == ring.query("prod_pos") == 56
        assert (ring.query("ring_size"), ring.query("cons_pos")) == (4096, 0)
        assert [bytes(record) for record in ring.records(timeout=0)] == [b"one", b"two", b"three", b""]
        assert ring.query("cons_pos") == 56
    assert mount.channels().startswith("create app/r type=ring size=4K ")
    with pytest.raises(FileExistsError):
        Ring.create(mount.path / "app/r")
    with pytest.raises(FileNotFoundError):
        Ring(mount.path / "app/s")
    with pytest.raises(ValueError, match="closed"):
        ring.output(b"too late")


def test_a_record_that_is_not_taken_stays_for_the_next_consumer(mount: Mount) -> None:
    with Ring.create(mount.path / "r", size="4K") as ring:
        for n in range(5):
            ring.output(b"%d" % n)
        for record in ring:
            if bytes(record) == b"2":
                break
        assert [bytes(record) for record in ring.records(timeout=0)] == [b"2", b"3", b"4"]


def test_views_are_the_memory_itself_and_end_with_the_step(mount: Mount) -> None:
    with Ring.create(mount.path / "r", size="4K") as ring:
        ring.output(b"first")
        ring.output(b"second")
        records = ring.records(timeout=0)
        first = next(records)
        assert first.readonly
        next(records)
        with pytest.raises(ValueError, match="released"):
            bytes(first)
        records.close()


def test_python_is_told_how_many_records_it_missed(mount: Mount) -> None:
    with Ring.create(mount.path / "r", size="4K", mode="overwrite") as ring:
        for n in range(1000):
            ring.output(b"record %06d" % n)
        got = [bytes(record) for record in ring.records(timeout=0)]
        assert got == [b"record %06d" % n for n in range(1000 - len(got), 1000)]
        assert ring.missed == 1000 - len(got)
        ring.output(b"x" * 4000)
        assert [len(record) for record in ring.records(timeout=0)] == [4000]


def test_a_ring_made_without_a_mount_is_shown_by_the_next(
    make_mount: Callable[..., Mount], scratch_store: Path
) -> None:
    code = """
import errno, sys
from relayfs_fuse import Channel, Ring
with Ring.create("/nowhere/app/r", size="8K", framing="line", mode="no-overwrite", type="ring") as ring:
    ring.output(b"before there was a mount")
with Ring("/nowhere/app/r") as ring:
    ring.output(b"by one who found it")
for path, options, code in (
    ("/nowhere/app/r", {}, errno.EEXIST), ("/nowhere/app/r0/s", {}, errno.ENOTDIR), ("/nowhere/s", {"size": 5000}, 22),
    ("/nowhere/s", {"subbuf_size": "4K"}, 22), ("/nowhere/s", {"mode": "callback"}, 22),
    ("/nowhere/s", {"type": "relay"}, 22),
    ("/nowhere/s", {"scheme": "locking"}, 22), ("/nowhere/s", {"framing": "no"}, 22),
):
    try:
        Ring.create(path, **options)
    except OSError as error:
        assert error.errno == code, (path, options, error)
    else:
        raise AssertionError(path, options)
"""
    environment = {**os.environ, "RELAYFS": "/nowhere", "RELAYFS_STORE": str(scratch_store)}
    forking.run([sys.executable, "-c", code], env=environment, check=True)
    mount = make_mount()
    assert "create app/r type=ring size=8K mode=no-overwrite buffers=global " in mount.channels()
    assert (mount.path / "app/r0").read_bytes() == b"before there was a mount\nby one who found it\n"


def test_a_ring_that_is_removed_without_a_mount_refuses_records(
    scratch_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAYFS", "/nowhere")
    monkeypatch.setenv("RELAYFS_STORE", str(scratch_store))
    library = ctypes.CDLL(str(Path(relayfs_fuse.__file__).with_name("lib") / "librelayfs.so"))
    with Ring.create("/nowhere/app/r", size="4K", buffers="percpu") as ring:
        ring.output(b"before")
        assert library.relay_remove_file(b"/nowhere/app/r0") == 0
        assert not (scratch_store / "app").exists()
        with pytest.raises(BrokenPipeError):
            ring.output(b"after")
        assert [bytes(record) for record in ring.records()] == [b"before"]  # it ends: no wait for more


def test_users_have_rings_in_mounts_of_their_own(
    make_mount: Callable[..., Mount], unprivileged: User, open_fuse_device: None
) -> None:
    """There nothing can be mapped through the mount: the library maps the store's file."""
    mount = make_mount(user=unprivileged.uid)
    code = """
import sys
from relayfs_fuse import Ring
with Ring.create(sys.argv[1], size="4K") as ring:
    ring.output(b"mine")
    print(open(sys.argv[1] + "0", "rb").read())
"""
    done = unprivileged.python(code, mount.path / "r")
    assert (done.stdout, done.stderr) == ("b'mine'\n", "")


def test_modes_say_who_may_use_a_ring(mount_for_all: Mount, unprivileged: User) -> None:
    mount = mount_for_all
    for perm, expected in (("0600", "Permission denied"), ("0666", "")):
        path = mount.create(f"r{perm}", f"type=ring size=4K perm={perm}")
        done = unprivileged.python("import sys; from relayfs_fuse import Ring; Ring(sys.argv[1]).output(b'x')", path)
        assert expected in done.stderr
        assert (done.returncode == 0) == (not expected)


@pytest.fixture
def mount_for_all(make_mount: Callable[..., Mount], unprivileged: User) -> Mount:
    mount: Mount = make_mount("allow_other")
    return mount


# --- one ring for each CPU ---


def test_each_cpu_has_its_ring(mount: Mount) -> None:
    path = mount.create("r", "type=ring buffers=percpu size=64K framing=line")
    allowed = os.sched_getaffinity(0)
    with Ring(path) as ring:
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            for n in range(100):
                ring.output(b"%d of %d" % (n, cpu))
        os.sched_setaffinity(0, allowed)
        for cpu in range(N_CPUS):
            expected = [b"%d of %d" % (n, cpu) for n in range(100)] if cpu in allowed else []
            assert Path(f"{path}{cpu}").read_bytes().splitlines() == expected
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            with ring.reserve(1) as record:
                record[:] = b"%d" % (cpu % 10)
        os.sched_setaffinity(0, allowed)
        got = sorted(bytes(record) for record in ring.records(timeout=0))
        assert got == sorted(b"%d" % (cpu % 10) for cpu in allowed)


# --- several rings, chosen by a key ---


def test_a_hash_of_rings_keeps_the_order_of_each_key(mount: Mount) -> None:
    n_keys, n_records = 6, 400
    paths = [mount.create(f"app/r{index}", "type=ring size=16K") for index in range(4)]
    assert len({ring_hash(key, 4) for key in range(n_keys)}) > 1
    producers = [python(PRODUCER, key, n_records, *paths) for key in range(n_keys)]
    got: dict[int, list[int]] = defaultdict(list)
    places: dict[int, set[Path]] = defaultdict(set)

    def take_all() -> bool:
        for path, ring in zip(paths, rings, strict=True):
            for record in ring.records(timeout=0):
                key, number, filling = bytes(record).split(b" ")
                assert not filling.strip(b"x" if int(number) % 3 else b"y")
                got[int(key)].append(int(number))
                places[int(key)].add(path)
        return sum(map(len, got.values())) == n_keys * n_records

    rings = [Ring(path) for path in paths]
    wait_until(take_all, "all records came", 60)
    for producer in producers:
        assert producer.wait(DEADLINE_S) == 0
    for ring in rings:
        ring.close()
    assert got == {key: list(range(n_records)) for key in range(n_keys)}
    assert places == {key: {paths[ring_hash(key, 4)]} for key in range(n_keys)}


def test_a_hash_spreads_keys_over_its_rings() -> None:
    for n in (1, 2, 3, 8, 100):
        counts = Counter(ring_hash(random.Random(seed).getrandbits(64), n) for seed in range(100 * n))
        assert set(counts) == set(range(n))
        assert max(counts.values()) < 200 or n == 1


# --- producers that are killed ---


@pytest.mark.parametrize("options", ["buffers=global", "buffers=percpu", "mode=overwrite"])
def test_killed_producers_leave_whole_records_and_an_exact_account(mount: Mount, options: str) -> None:
    path = mount.create("r", f"type=ring size=8K read=nowait {options}")
    with Ring(path) as ring:
        for seed in range(6):
            more = random.Random(seed).randrange(200)

            def has_gone_on(least: int) -> bool:
                for record in ring.records(timeout=0):
                    assert len(record) in (100, 50) or bytes(record) == b"whole"
                return int(mount.shown("r", "records")) > least

            with printing([sys.executable, "-c", VICTIM, path]) as victim:
                assert victim.line() == b"ready\n"
                at_least = int(mount.shown("r", "records")) + more
                wait_until(lambda least=at_least: has_gone_on(least), "it produces")
            wait_until(lambda: has_gone_on(0) and mount.shown("r", "unread_bytes") == "0", "its ring goes on")
    stats = {name: int(mount.shown("r", name)) for name in ("records", "read_records", "skipped", "lost_overwritten")}
    assert stats["records"] >= stats["read_records"] + stats["skipped"]
    if "overwrite" not in options:
        assert stats["records"] == stats["read_records"] + stats["skipped"]
    assert int(mount.shown("r", "lost_torn")) <= 6 * 2


def test_a_ring_that_nobody_consumes_refuses_without_blocking(mount: Mount) -> None:
    with Ring.create(mount.path / "r", size="4K") as ring:
        for _ in range(63):  # ringbuf-observed.txt, 5
            ring.output(b"x" * 56)
        with pytest.raises(BlockingIOError) as full:
            ring.output(b"x" * 56)
        assert full.value.errno == errno.EAGAIN


def test_a_record_that_will_be_tried_again_is_not_lost(mount: Mount) -> None:
    with Ring.create(mount.path / "r", buffers="single", size="4K") as ring:
        while True:
            try:
                ring.output(bytes(100), will_retry=True)
            except BlockingIOError:
                break
        with pytest.raises(BlockingIOError), ring.reserve(100, will_retry=True):
            pass
        assert mount.shown("r", "lost") == "0"
        with pytest.raises(BlockingIOError):
            ring.output(bytes(100))
        assert mount.shown("r", "lost") == "1"
        next(ring.records(timeout=0))
        list(ring.records(timeout=0))
        ring.output(bytes(100), will_retry=True)
