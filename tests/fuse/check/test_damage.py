"""relayctl check finds each kind of damage in a channel, and says which value of which file it is."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from checked import (
    PAGE,
    SUBBUF,
    CheckedStore,
    check,
    checked_store,
    claim,
    consume,
    control,
    entry,
    get,
    in_dead_process,
    output,
    put,
    reserve,
    ring_claim,
    take,
    write,
)
from relayfs_fuse._native import ffi, lib

from relayfs_fuse import native
from relayfs_fuse.native.ring import RingMemory

BIG = 1 << 63


@pytest.fixture
def store() -> Iterator[CheckedStore]:
    with checked_store() as made:
        yield made


@dataclass
class Damage:
    """What is done to a file, and what is said of it.

    at: the offset that is said; None: any
    """

    value: str
    allowed: str
    do: Callable[[Path], object]
    at: Callable[[Path], int] | None = None


def stored(value: str, allowed: str, at: Callable[[Path], int], form: str, number: int) -> Damage:
    """Damage by one value, of which the offset is said."""
    return Damage(value, allowed, lambda mem: put(mem, at(mem), form, number), at)


def in_control(offset: int) -> Callable[[Path], int]:
    return lambda mem: control(mem) + offset


def consumer(offset: int) -> Callable[[Path], int]:
    """In the copy of struct relay_consumer that is valid."""
    return lambda mem: control(mem) + 384 + 128 * (get(mem, control(mem) + 328, "I") & 1) + offset


def the(number: int) -> Callable[[Path], int]:
    return lambda _: number


# Four sub-buffers of 4096 bytes, lockless, no-overwrite: 10 records of 1000 bytes, 4 of them in each sub-buffer, of
# which 5000 bytes were read.
RELAY = {
    "magic": stored("relay_geometry.magic", str(0x31305346594C4552), in_control(0), "Q", 1),
    "version": stored("relay_geometry.version", "9, that of this relayctl", in_control(8), "I", 99),
    "cpu": stored("relay_geometry.cpu", "less than n_buffers, which is 1", in_control(12), "I", 7),
    "subbuf_size": stored("relay_geometry.subbuf_size", "1 to 4294967295", in_control(16), "Q", 0),
    "n_subbufs": stored(
        "relay_geometry.n_subbufs", "1 to 268435456, of this subbuf_size", in_control(24), "Q", 1 << 40
    ),
    "another n_subbufs": Damage(
        "relay_geometry.file_bytes",
        "by subbuf_size and n_subbufs",
        lambda mem: put(mem, control(mem) + 24, "Q", 8),
        in_control(32),
    ),
    "file_bytes": stored("relay_geometry.file_bytes", "by subbuf_size and n_subbufs", in_control(32), "Q", 4096),
    "n_claims": stored("relay_geometry.n_claims", "256", in_control(44), "I", 255),
    "mode": stored("relay_geometry.mode", "0 to 2", in_control(48), "I", 3),
    "no scheme": stored("relay_geometry.scheme", "1 to 3", in_control(52), "I", 0),
    "flush_interval": stored(
        "relay_geometry.flush_interval_ms", "milliseconds; 0: never", in_control(68), "I", 1 << 31
    ),
    "start_reserve": stored("relay_geometry.start_reserve", "less than subbuf_size, 4096", in_control(80), "I", 4096),
    "format": stored("relay_geometry.format", "0 with this timestamp", in_control(92), "I", 1),
    "times": stored("relay_geometry.timestamp", "the clock of times, 1", in_control(76), "I", 0),
    "flags": stored("relay_control.flags", "bits of 511", in_control(160), "I", 1 << 20),
    "n_claims_used": stored("relay_control.n_claims_used", "at most 256", in_control(164), "I", 1000),
    "head": stored(
        "relay_control.head.first", "a position in sub-buffers of so many bytes: 4096", in_control(128), "Q", SUBBUF + 1
    ),
    "lost bytes": Damage(
        "relay_control.lost_full.second",
        f"at most {BIG - 1}",
        lambda mem: put(mem, control(mem) + 200, "Q", BIG),
        in_control(192),
    ),
    "switch time": stored("relay_control.switch_time_ns", f"at most {BIG - 1}", in_control(168), "Q", BIG),
    "consumed": stored("relay_control.consumed", "as relay_consumer.position", in_control(320), "Q", 5),
    "consumer's position": stored("relay_consumer.position", "a position in sub-buffers", consumer(0), "Q", SUBBUF + 7),
    "consumer's records": stored("relay_consumer.records", "at least 4, by its position", consumer(8), "Q", 3),
    "consumer's bytes": stored("relay_consumer.bytes", "5000, by its position", consumer(16), "Q", 4998),
    "consumer's losses": Damage("", "", lambda mem: put(mem, consumer(24)(mem), "Q", 100)),
    "consumer's reads": stored("relay_consumer.reads", "at most 5000", consumer(56), "Q", 5001),
    "end": stored("relay_subbuf[1].end", "a position in sub-buffer 1", the(entry(1)), "Q", 3),
    "start_bytes": stored(
        "relay_subbuf[2].start_bytes", "8000, as sub-buffer 1 ends there", the(entry(2) + 16), "Q", 8001
    ),
    "start_records": stored("relay_subbuf[2].start_records", "4 to 10", the(entry(2) + 8), "Q", 3),
    "claim never taken": stored(
        "relay_claim[200].word", "0, as only claims below n_claims_used", the(claim(200)), "Q", 1 << 63
    ),
    "claim without a state": stored("relay_claim[0].word", "0, or a state", the(claim(0)), "Q", 77),
    "claim ahead": stored(
        "relay_claim[0].word", "a position, in its lower 62 bits, of at most", the(claim(0)), "Q", 2 << 62 | 1 << 40
    ),
    "claim's length": Damage(
        "relay_claim[0].length",
        "the rest of its sub-buffer",
        lambda mem: put(mem, claim(0), "QQ", 2 << 62 | 8192 + 8, 5000),
        the(claim(0) + 8),
    ),
    "claim's records": Damage(
        "relay_claim[0].bytes",
        "less than 200, as no record is empty",
        lambda mem: put(mem, claim(0), "QQQQ", 2 << 62 | 8192, 100, 8, 100 << 1),
        the(claim(0) + 24),
    ),
    "claim's use": stored("relay_claim[0].owner.in_use", "0 or 1", the(claim(0) + 56), "Q", 2),
    "a page cut off": Damage("relay_geometry.magic", "", lambda mem: os.truncate(mem, mem.stat().st_size - PAGE)),
    "a byte cut off": Damage(
        "the size of the file", "whole pages of 4096 bytes", lambda mem: os.truncate(mem, mem.stat().st_size - 1)
    ),
    "empty": Damage("the size of the file", "whole pages of 4096 bytes", lambda mem: os.truncate(mem, 0)),
    "freed pages": Damage("its memory", "at least", lambda mem: punch(mem, SUBBUF)),
    "mode of the file": Damage("its mode", "at most 0666", lambda mem: mem.chmod(0o777)),
    "a symbolic link": Damage("", "a regular file", lambda mem: replace(mem, lambda: mem.symlink_to("/etc/passwd"))),
    "a FIFO": Damage("", "a regular file", lambda mem: replace(mem, lambda: os.mkfifo(mem))),
    "a directory": Damage(
        "", "a regular file", lambda mem: replace(mem, lambda: (mem.mkdir(), (mem.parent / "mem1").touch()))
    ),
}


def punch(mem: Path, bytes_: int) -> None:
    """Free pages, as madvise(2) with MADV_REMOVE does."""
    subprocess.run(["fallocate", "-p", "-o", "0", "-l", str(bytes_), mem], check=True)


def replace(path: Path, make: Callable[[], object]) -> None:
    path.unlink()
    make()


def made_relay(store: CheckedStore, kind: str) -> Path:
    mem = store.relay("app/log", times=1, timestamp=1) if kind == "times" else store.relay("app/log")
    write(mem, [1000] * 10)
    consume(mem, 4000)
    consume(mem, 1000)
    return mem


def said_of(store: CheckedStore, mem: Path, damage: Damage) -> None:
    found = store.findings()
    of_it = [one for one in found if one["value"] == damage.value and damage.allowed in one["allowed"]]
    assert of_it, found
    first = of_it[0]
    assert first["level"] == "damaged"
    assert first["name"] == "app/log"
    assert first["file"].startswith(str(mem.parent))
    assert "relayctl remove app/log" in first["advice"] or "chmod" in first["advice"]
    if damage.at is not None:
        assert first["offset"] == damage.at(mem), first


@pytest.mark.parametrize("kind", RELAY)
def test_damage_of_a_relay_buffer(store: CheckedStore, kind: str) -> None:
    mem = made_relay(store, kind)
    assert store.findings() == []
    before = mem.parent.stat()
    RELAY[kind].do(mem)
    content = mem.read_bytes() if mem.is_file() and not mem.is_symlink() else b""
    said_of(store, mem, RELAY[kind])
    assert check("--store", store.path).status == 1
    assert mem.parent.stat() == before or kind in {"a symbolic link", "a FIFO", "a directory"}
    assert not content or mem.read_bytes() == content


def ring_counts(offset: int) -> Callable[[Path], int]:
    """In the copy of struct relay_ring_counts that is valid."""
    return lambda mem: 128 + 64 * (get(mem, 64, "I") & 1) + offset


def record(n: int) -> int:
    """Where the header of a record of 100 bytes is."""
    return 2 * PAGE + n * 112


# 4096 bytes, lockless, no-overwrite: 10 records of 100 bytes, of which 3 were taken. Each takes 112.
RINGS = {
    "magic": stored("relay_geometry.magic", "", in_control(0), "Q", 1),
    "version": stored("relay_ring_geometry.version", "4, that of this relayctl", in_control(8), "I", 1),
    "cpu": stored("relay_ring_geometry.cpu", "less than n_rings, which is 1", in_control(12), "I", 1),
    "size": stored("relay_ring_geometry.size", "a power of two, 4096 to", in_control(16), "Q", 5000),
    "file_bytes": stored("relay_ring_geometry.file_bytes", "by size", in_control(24), "Q", 1),
    "n_ready": stored("relay_ring_geometry.n_ready", "1024", in_control(40), "I", 1),
    "framing": stored("relay_ring_geometry.framing", "0 to 2", in_control(60), "I", 9),
    "consumer position": stored("relay_ring_consumer.position", "at least 336", the(0), "Q", 8),
    "consumer ahead": Damage(
        "the producer position",
        "less than a ring's size after the consumer position",
        lambda mem: put(mem, 0, "Q", 1 << 20),
        the(PAGE),
    ),
    "counted position": Damage(
        "relay_ring_counts.records", "at most 0", lambda mem: put(mem, ring_counts(0)(mem), "Q", 0), ring_counts(8)
    ),
    "counted records": Damage(
        "the count of records reserved",
        "11: 4 consumed, 0 skipped and 7 in the ring",
        lambda mem: put(mem, ring_counts(8)(mem), "Q", 4),
    ),
    "counted bytes": stored("relay_ring_counts.bytes", "at most 336", ring_counts(16), "Q", 337),
    "missed": stored("relay_ring_counts.missed", "at most 3", ring_counts(32), "Q", 4),
    "producer position": Damage(
        "the producer position", "a multiple of 8", lambda mem: put(mem, PAGE, "Q", 1121), the(PAGE)
    ),
    "length": stored("the length at position 448", "up to the producer position", the(record(4)), "I", 3000),
    "busy": stored("the length at position 448", "without the flag BUSY", the(record(4)), "I", 1 << 31 | 100),
    "page": stored("the page at position 448", "3, by its position", the(record(4) + 4), "I", 9),
    "a record hidden": Damage(
        "the count of records reserved",
        "9: 3 consumed, 0 skipped and 6 in the ring",
        lambda mem: put(mem, record(4), "I", 212),
    ),
    "flags": stored("relay_ring_producer.flags", "bits of", the(PAGE + 72), "I", 1 << 20),
    "n_claims_used": stored("relay_ring_producer.n_claims_used", "at most 256", the(PAGE + 76), "I", 257),
    "claim ahead": Damage(
        "relay_ring_claim[0].word", "before 1120", lambda mem: put(mem, ring_claim(mem, 0), "Q", 2 << 62 | 4096)
    ),
    "claim never taken": Damage(
        "relay_ring_claim[255].word",
        "0, as only claims below n_claims_used",
        lambda mem: put(mem, ring_claim(mem, 255), "Q", 2 << 62),
    ),
    "claim's use": Damage(
        "relay_ring_claim[0].owner.in_use", "0 or 1", lambda mem: put(mem, ring_claim(mem, 0) + 56, "Q", 3)
    ),
    "torn records": Damage(
        "the count of torn records", "at most 10", lambda mem: put(mem, ring_claim(mem, 0) + 8, "Q", 11)
    ),
    "freed pages": Damage("its memory", "at least", lambda mem: punch(mem, PAGE)),
}


@pytest.mark.parametrize("kind", RINGS)
def test_damage_of_a_ring(store: CheckedStore, kind: str) -> None:
    mem = store.ring("app/log")
    output(mem, [100] * 10)
    take(mem, 3)
    assert store.findings() == []
    RINGS[kind].do(mem)
    said_of(store, mem, RINGS[kind])


def test_damage_of_an_overwriting_ring_and_of_one_per_cpu(store: CheckedStore) -> None:
    mem = store.ring("app/over", mode=1)
    output(mem, [100] * 200)
    percpu = store.ring("app/log", scheme=1, buffers=0)
    output(percpu, [100] * 10) if os.sched_getaffinity(0) else None
    assert store.findings() == []
    put(mem, PAGE + 16, "Q", 1 << 30)  # relay_ring_producer.overwritten
    put(percpu, PAGE, "Q", 1 << 20)  # the producer position, which neither tail has
    values = {one["value"] for one in store.findings()}
    assert "the position of the oldest record" in values or "the count of records before the oldest one" in values
    assert values & {"relay_ring_producer.tail", "the producer position"}, values


def test_damage_of_a_record_with_its_time(store: CheckedStore) -> None:
    mem = store.relay("app/log", times=1, timestamp=1)
    write(mem, [1000] * 10)
    assert store.findings() == []
    put(mem, 1016, "H", 1)  # the head of the second record
    found = store.findings()
    assert [(one["value"], one["offset"]) for one in found] == [("relay_timed_head of a record", 1016)]
    assert "65535, and a length within sub-buffer 0" in found[0]["allowed"]
    put(mem, 1016, "H", 65535)
    put(mem, 12, "I", 1000 + 16 + 1000)  # the first record swallows the second
    (found,) = store.findings()
    assert (found["value"], found["offset"]) == ("relay_subbuf[].start_records", entry(1) + 8)
    assert "3, by the records in sub-buffer 0" in found["allowed"] or "2, by the records" in found["allowed"]


# --- channels whose files do not fit each other ---


def test_files_that_are_no_channel(store: CheckedStore) -> None:
    names = ("swapped", "missing", "stranger", "hidden", "options", "types")
    made = {name: store.relay(f"app/{name}", scheme=2, buffers=0).parent for name in names}
    assert native.n_possible_cpus() > 1
    assert store.findings() == []
    for name in ("mem0", "mem1"):
        (made["swapped"] / name).rename(made["swapped"] / f"x{name}")
    (made["swapped"] / "xmem0").rename(made["swapped"] / "mem1")
    (made["swapped"] / "xmem1").rename(made["swapped"] / "mem0")
    (made["missing"] / "mem0").unlink()
    (made["stranger"] / "notes.txt").touch()
    (made["hidden"] / ".notes").touch()
    put(made["options"] / "mem1", control(made["options"] / "mem1") + 64, "I", 1)
    ring = store.ring("app/ring", buffers=0)
    (ring.parent / "mem1").rename(made["types"] / "mem1")
    found = {}
    for one in store.findings():
        found.setdefault(one["name"], []).append(one)
    swapped = found["app/swapped"]
    assert [(one["value"], one["found"][:8]) for one in swapped] == [
        ("its place in the channel", "buffer 1"),
        ("its place in the channel", "buffer 0"),
    ]
    assert "mem0 missing" in found["app/missing"][0]["found"]
    assert "beside mem files" in found["app/stranger"][0]["found"]
    assert found["app/stranger"][0]["file"].endswith("notes.txt")
    assert [one["level"] for one in found["app/hidden"]] == ["warning"]
    assert [(one["value"], one["allowed"]) for one in found["app/options"]] == [("the option read", "0, as in mem0")]
    assert [(one["value"], one["found"]) for one in found["app/types"]] == [("its type", "ring")]
    assert found["app/ring"]
    damaged = made["options"] / "mem0"
    put(damaged, control(damaged) + 44, "I", 1)
    other = damaged.with_name(f"mem{native.n_possible_cpus()}")
    shutil.copy(damaged.with_name("mem1"), other)
    put(other, control(other) + 64, "I", 0)
    # The first sound file is not mem0.
    of_other = [one for one in store.findings("app/options") if Path(one["file"]) == other]
    assert {one["value"]: one["allowed"] for one in of_other}["the option read"] == "1, as in mem1"


def test_one_damaged_file_hides_no_other(store: CheckedStore) -> None:
    first, second = store.relay("a/log"), store.ring("b/log")
    third = store.relay("c/log", buffers=0)
    put(first, control(first), "Q", 0)
    put(second, control(second) + 8, "I", 77)
    for mem in (third, third.with_name("mem1")):
        put(mem, control(mem) + 44, "I", 1)
    said = check("--store", store.path)
    assert [(one["name"], Path(one["file"]).name) for one in said.damaged] == [
        ("a/log", "mem0"), ("b/log", "mem0"), ("c/log", "mem0"), ("c/log", "mem1"),
    ]  # fmt: skip
    assert said.summary["damaged"] == len({one["name"] for one in said.damaged}) == 3
    assert [one["name"] for one in store.findings("b/log")] == ["b/log"]
    assert {one["name"] for one in store.findings("c")} == {"c/log"}


# --- what dead processes leave: warnings ---


def warned(store: CheckedStore, value: str) -> dict:
    said = check("--store", store.path)
    assert said.status == 0, said.findings
    found = [one for one in said.findings if one["value"].startswith(value)]
    assert len(found) == 1, said.findings
    assert found[0]["level"] == "warning"
    return found[0]


def test_claim_of_a_dead_writer(store: CheckedStore) -> None:
    mem, ring = store.relay("app/log"), store.ring("app/ring")
    write(mem, [100] * 3)
    output(ring, [100] * 3)
    in_dead_process(lambda: reserve(ring, "relay_ring"))
    found = warned(store, "relay_ring_claim[")
    assert "which has died" in found["found"]
    assert "counts it as torn" in found["advice"]
    take(ring, 3)
    with_state = RingMemory(str(ring))
    with_state.state()  # a consumer reaps it
    with_state.close()
    assert store.findings() == []
    in_dead_process(lambda: reserve(mem, "relay_buf"))
    assert "the next reader that comes there counts it as torn" in warned(store, "relay_claim[")["advice"]
    consume(mem, 300)
    buffer = native.Buffer(str(mem))
    buffer.state()
    buffer.close()
    assert store.findings() == []


def test_lock_of_a_dead_reader_and_half_a_reset(store: CheckedStore) -> None:
    mem = store.relay("app/log")
    write(mem, [100] * 3)

    def begin() -> None:
        spans, total = ffi.new("struct relay_span[]", 4), ffi.new("size_t *")
        lib.relay_consume_begin(native.Buffer(str(mem)).pointer, 100, spans, 4, total)

    in_dead_process(begin)
    assert warned(store, "relay_control.reader_lock")["advice"] == "the next reader takes it"
    put(mem, control(mem) + 332, "I", 1)
    assert "until another reset is complete" in warned(store, "relay_control.resets")["advice"]
    put(mem, control(mem) + 336, "Q", 0)
    assert "until another reset is complete" in warned(store, "relay_control.resets")["advice"]


def test_what_half_made_directories_are_left(store: CheckedStore) -> None:
    store.relay("app/log")
    dead = 4_100_000  # no process has such a number
    (store.path / f".new-{dead}-1").mkdir()
    (store.path / f".removed-{os.getpid()}-1").mkdir()
    (store.path / f"app/.new-{dead}-7").mkdir()
    (store.path / "notes").touch()
    native.implicit_make(str(store.path / "empty"))
    said = check("--store", store.path)
    assert said.status == 0
    assert {Path(one["file"]).name: one["level"] for one in said.findings} == {
        f".new-{dead}-1": "warning", f".new-{dead}-7": "warning", "notes": "warning", "empty": "warning",
    }  # fmt: skip
    assert "next server deletes it" in said.findings[0]["advice"]


def test_permissions_that_let_others_write(store: CheckedStore) -> None:
    mem = store.relay("app/log")
    for path, mode in (
        (store.path, 0o777),
        (store.path / "app", 0o775),
        (mem.parent, 0o733),
        (store.path / ".root", 0o666),
    ):
        path.chmod(mode)
    found = check("--store", store.path).damaged
    assert {one["file"] for one in found} == {
        str(one) for one in (store.path, store.path / "app", mem.parent, store.path / ".root")
    }
    assert all(one["value"] == "its mode" and "other users may write" in one["found"] for one in found)
    assert "chmod 0755" in found[0]["advice"]
    if os.geteuid() == 0:
        store.path.chmod(0o700)
        os.chown(store.path / "app", 12345, -1)
        assert "its owner" in {one["value"] for one in store.findings()}
