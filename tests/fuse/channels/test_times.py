"""Records with their times: what relay files give of them, and what their channels' files `merged` do."""

import base64
import errno
import itertools
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import forking
import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from pcapng import parse
from tracing import relayctl

from relayfs_fuse import Channel, Reader, Ring, native
from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.native.ring import RingMemory
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.reading.records import Records

pytestmark = pytest.mark.one_mount

N_CPUS = native.n_possible_cpus()
PERCPU = "subbuf_size=64K n_subbufs=8 times=mono"
RELAY = {
    "rseq": f"{PERCPU} scheme=rseq",
    "lockless": f"{PERCPU} scheme=lockless",
    "locking": "subbuf_size=64K n_subbufs=32 times=mono scheme=locking buffers=global",
}
RINGS = {
    "ring-rseq": "type=ring size=1M framing=line times=mono buffers=percpu",
    "ring": "type=ring size=1M framing=line times=mono",
}


def cat(path: Path) -> bytes:
    done = subprocess.run(["cat", path], capture_output=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def objects(text: bytes) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def ticket_of(line: str) -> int:
    """Check a record of record_tickets.c; return its ticket."""
    ticket, _, rest = line.split(" ")
    assert rest == "x" * (int(ticket) * 7 % 700)
    return int(ticket)


def check_order(found: list[dict]) -> list[int]:
    """Return the tickets: those of different times are in order, and so are those of one CPU."""
    tickets = [ticket_of(one["record"].removesuffix("\n")) for one in found]
    on_time = [(one["ns"], ticket) for one, ticket in zip(found, tickets, strict=True) if "late" not in one]
    assert not [(a, b) for a, b in itertools.pairwise(on_time) if a[0] > b[0] or (a[1] > b[1] and a[0] != b[0])]
    for cpu in range(N_CPUS):
        of_cpu = [ticket for one, ticket in zip(found, tickets, strict=True) if one["cpu"] == cpu]
        assert of_cpu == sorted(of_cpu)
    return tickets


def take_tickets(channel: Path, way: str, n: int, shared: Path, n_processes: int = 2) -> subprocess.Popen[bytes]:
    program = compile_c([PROGRAMS / "record_tickets.c"])
    command = [program, channel, way, str(n_processes), str(n), shared]
    return subprocess.Popen(command, start_new_session=True)


@contextmanager
def following(path: Path, out: Path) -> Iterator[Path]:
    """Have tail(1) follow a file into another one."""
    with out.open("wb") as file, subprocess.Popen(["tail", "-n", "+1", "-s", "0.05", "-f", path], stdout=file) as tail:
        try:
            yield out
        finally:
            tail.kill()


def merged(mount: Mount, name: str = "app/cpu", file: str = "merged") -> Path:
    return mount.path / ".channels" / name / file


# --- order ---


@pytest.mark.parametrize(
    ("options", "ways"),
    [(RELAY["rseq"], ("write", "reserve")), (RELAY["lockless"], ("try", "many")),
     (RELAY["locking"], ("write", "reserve")), (RINGS["ring-rseq"], ("output", "submit")),
     (RINGS["ring"], ("submit", "output"))],
    ids=[*RELAY, *RINGS],
)  # fmt: skip
def test_records_of_all_cpus_are_in_order_and_stay_for_those_who_consume(
    mount: Mount, tmp_path: Path, options: str, ways: tuple[str, str]
) -> None:
    channel, n = mount.create("app/cpu", options), 500
    with following(merged(mount, file="merged.json"), tmp_path / "followed") as followed:
        for way in ways:
            assert take_tickets(channel, way, n, tmp_path / "tickets").wait(DEADLINE_S) == 0
        found = objects(cat(merged(mount, file="merged.json")))
        assert sorted(check_order(found)) == list(range(4 * n))
        lines = cat(merged(mount)).decode().splitlines()
        assert lines == [one["record"].removesuffix("\n") for one in found]
        wait_until(lambda: followed.read_bytes().count(b"\n") == 4 * n, followed.read_bytes().decode)
        assert check_order(objects(followed.read_bytes())) == [ticket_of(line) for line in lines]
    # The relay files give the records without their times, each CPU's in order.
    consumed = b"".join(cat(path) for path in sorted(channel.parent.iterdir()))
    assert sorted(consumed.splitlines()) == sorted(line.encode() for line in lines)
    assert mount.shown("app/cpu", "lost_torn" if "ring" not in options else "lost") == "0"


@pytest.mark.parametrize(
    ("options", "ways"),
    [(RELAY["rseq"], ("write", "reserve")), (RELAY["locking"], ("reserve", "try")),
     (RINGS["ring-rseq"], ("output", "submit"))],
    ids=["rseq", "locking", "ring-rseq"],
)  # fmt: skip
def test_writers_may_be_killed(mount: Mount, tmp_path: Path, options: str, ways: tuple[str, str]) -> None:
    channel, out = mount.create("app/cpu", options), tmp_path / "out"

    def n_lines() -> int:
        return out.read_bytes().count(b"\n")

    with following(merged(mount, file="merged.json"), out):
        for way in ways:
            writers, enough = take_tickets(channel, way, 1 << 30, tmp_path / "tickets"), n_lines() + 20
            wait_until(lambda enough=enough: n_lines() > enough, "some records")
            os.killpg(writers.pid, signal.SIGKILL)
            writers.wait()
            for path in channel.parent.iterdir():
                cat(path)  # makes room
        min(channel.parent.iterdir()).write_bytes(b"the last\n")
        wait_until(lambda: b"the last" in out.read_bytes(), "the last record")
    found = [one for one in objects(out.read_bytes()) if "lost" not in one and one["record"] != "the last\n"]
    tickets = check_order(found)
    assert len(set(tickets)) == len(tickets)


# --- ways to write and to read ---


def test_each_way_to_write_gives_a_record_its_time(mount: Mount) -> None:
    channel = mount.create("app/cpu", "times=mono buffers=single")
    began = time.time_ns()
    with Channel(channel) as chan:
        chan.write(b"one\n")
        assert chan.write_many([b"two", b"three\n"]) == 2
        chan.write(b"")
    subprocess.run(["sh", "-c", f"echo four >{channel}"], check=True)
    with channel.open("wb", buffering=0) as file:
        file.write(b"\xff\0")
    found = objects(cat(merged(mount, file="merged.json")))
    records = [one["record"].encode() if "record" in one else base64.b64decode(one["base64"]) for one in found]
    assert records == [b"one\n", b"two", b"three\n", b"four\n", b"\xff\0"]
    assert began - 10**9 < found[0]["ns"] <= found[-1]["ns"] < time.time_ns() + 10**9
    assert cat(merged(mount)) == b"one\ntwo\nthree\nfour\n\xff\0\n"
    assert cat(channel) == b"one\ntwothree\nfour\n\xff\0"
    assert cat(channel) == b""


def test_the_library_reads_records_without_their_times(mount: Mount) -> None:
    channel = mount.create("app/cpu", "times=tsc buffers=single")
    with Channel(channel) as chan, Reader(channel) as reader:
        chan.write_many([b"one", b"x" * 3000, b"three"])
        assert [bytes(piece) for piece in itertools.islice(reader, 3)] == [b"one", b"x" * 3000, b"three"]
    ring = mount.create("app/ring", "type=ring times=tsc")
    with Ring(ring) as rings:
        rings.output(b"one")
        with rings.reserve(4) as record:
            record[:] = b"four"
        with pytest.raises(ZeroDivisionError), rings.reserve(8):
            raise ZeroDivisionError  # discarded
        assert [one["record"] for one in objects(cat(merged(mount, "app/ring", "merged.json")))] == ["one", "four"]
        assert [bytes(record) for record in rings.records(timeout=0)] == [b"one", b"four"]


@pytest.mark.parametrize("options", [PERCPU, "type=ring times=mono size=64K buffers=percpu"], ids=["relay", "ring"])
def test_merged_raw_has_records_as_they_were_written(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    records = [b"one\n", b"two", b"\xff\0", b"n" * 5, b"x" * 3001]
    for i, record in enumerate(records):
        with Path(f"{channel}{i % N_CPUS}").open("wb", buffering=0) as file:
            file.write(record)
    found, told = parse(cat(merged(mount, file="merged.raw"))), objects(cat(merged(mount, file="merged.json")))
    assert [one.data for one in found.packets] == records
    assert [one.ns for one in found.packets] == [one["ns"] for one in told]
    assert [one.interface.description for one in found.packets] == [{"cpu": i % N_CPUS} for i in range(len(records))]
    assert [one.name for one in found.interfaces] == [f"cpu{i}" for i in range(min(N_CPUS, len(records)))]
    assert not found.losses
    assert not found.notices


@pytest.mark.parametrize("options", ["n_subbufs=4 subbuf_size=256K buffers=single", "type=ring framing=raw"])
def test_long_records_are_read_in_parts_and_merged_as_a_whole(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", f"{options} times=mono")
    path = min(channel.parent.iterdir())
    long = b"".join(b"%d " % i for i in range(30_000))
    for record in (b"first\n", long, b"last\n"):
        path.write_bytes(record)
    assert cat(merged(mount)) == b"first\n" + long + b"\nlast\n"
    with path.open("rb", buffering=0) as file:
        assert [file.read(4096), file.read(10)] == [b"first\n", long[:10]]
    # Who closes a file in the middle of a record leaves all of it.
    assert cat(path) == long + b"last\n"


@pytest.mark.parametrize("options", ["n_subbufs=4 subbuf_size=2M buffers=single", "type=ring size=8M framing=line"])
def test_a_record_that_takes_much_of_the_servers_memory_is_left_to_view(mount: Mount, options: str) -> None:
    mount.expect("app/cpu: cpu 0: ")
    channel = mount.create("app/cpu", f"{options} times=mono")
    records = (b"first\n", b"x" * (1 << 20) + b"\n", b"last\n")
    if "ring" in options:
        with Ring(channel) as ring:
            for record in records:
                ring.output(record)
    else:
        with Channel(channel) as chan:
            assert chan.write_many(records[:2]) == 2
            mount.command("flush app/cpu")
            chan.write(records[2])
    lines = cat(merged(mount)).splitlines()
    assert [line for line in lines if not line.startswith(b"# cpu 0: times or lengths")] == [
        b"first", b"# cpu 0: 1 record is lost: damaged", b"last",
    ]  # fmt: skip
    assert "x" * (1 << 20) in relayctl("view", "app/cpu", "--mount", mount.path).stdout


def test_a_program_that_polls_is_told_of_records(mount: Mount) -> None:
    channel = mount.create("app/cpu", PERCPU)
    with merged(mount).open("rb", buffering=0) as file, Channel(channel) as chan:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        assert not poll.poll(0)
        for text in (b"one\n", b"two\n"):
            chan.write(text)
            assert poll.poll(int(DEADLINE_S * 1000)) == [(file.fileno(), select.POLLIN)]
            assert file.read(100) == text
        mount.command("remove app/cpu")
        wait_until(lambda: poll.poll(0) and file.read(100) == b"", "the end")
    with pytest.raises(FileNotFoundError):
        merged(mount).open("rb")


def test_a_reservation_has_the_time_at_which_it_was_made(mount: Mount) -> None:
    ring = mount.create("app/cpu", RINGS["ring"])
    with merged(mount, file="merged.json").open("rb", buffering=0) as file, Ring(ring) as rings, Ring(ring) as other:
        with rings.reserve(6) as record:
            other.output(b"behind")
            # Longer than the delay of what is given out: all that is behind the reservation comes late, and says so.
            assert file.read(1000) == b""
            record[:] = b"before"
        wait_until(lambda: rings.query("avail_data"), "records")
        text = b""
        deadline = time.monotonic() + DEADLINE_S
        while text.count(b"\n") < 2 and time.monotonic() < deadline:
            text += file.read(1000)
        found = objects(text)
    assert [one["record"] for one in found] == ["before", "behind"]
    assert found[0]["ns"] <= found[1]["ns"]


# --- losses ---


@pytest.mark.parametrize(
    "options",
    ["mode=overwrite", "mode=no-overwrite", "type=ring size=4K mode=overwrite", "type=ring size=4K"],
)
def test_what_is_lost_is_said(mount: Mount, options: str) -> None:
    sizes = "" if "ring" in options else "subbuf_size=4K n_subbufs=2 buffers=single"
    channel, n = mount.create("app/cpu", f"{options} {sizes} times=mono"), 5000
    opened = Ring(channel) if "ring" in options else Channel(channel)
    write = opened.output if isinstance(opened, Ring) else opened.write
    with (
        opened,
        merged(mount, file="merged.json").open("rb", buffering=0) as file,
        merged(mount, file="merged.raw").open("rb", buffering=0) as raw_file,
    ):
        assert file.read(1000) == b""
        blocks = [raw_file.read(1000)]  # the header of the section
        assert raw_file.read(1000) == b""
        for i in range(n):
            try:
                write(b"%d" % i)
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.EAGAIN)
        found: list[dict] = []

        def read_all() -> bool:
            found.extend(objects(file.read(1 << 20)))
            return sum(one.get("lost", 1) for one in found) >= n

        wait_until(read_all, lambda: f"{n}: {found[-3:]}")

        def read_raw() -> bool:
            blocks.append(raw_file.read(1 << 20))
            raw = parse(b"".join(blocks))
            return len(raw.packets) + sum(loss.n for loss in raw.losses) >= n

        wait_until(read_raw, lambda: f"{n} are read or lost")
    assert sum(one.get("lost", 1) for one in found) == n
    assert any("lost" in one for one in found)
    numbers = [int(one["record"]) for one in found if "record" in one]
    assert numbers == sorted(set(numbers))
    assert "late" not in json.dumps(found)
    raw = parse(b"".join(blocks))
    assert [int(one.data) for one in raw.packets] == sorted({int(one.data) for one in raw.packets})
    assert raw.losses
    assert len(raw.interfaces) == 1


def test_lines_tell_losses_too(mount: Mount) -> None:
    channel = mount.create("app/cpu", "subbuf_size=4K n_subbufs=2 buffers=single times=mono")
    with merged(mount).open("rb", buffering=0) as file, Channel(channel) as chan:
        assert file.read(1000) == b""
        n = chan.write_many([b"x" * 100] * 1000)
        assert 0 < n < 1000
        text = b""

        def has(end: bytes, n_lines: int) -> bool:
            nonlocal text
            text += file.read(1 << 20)
            return text.endswith(end) and text.count(b"\n") >= n_lines

        wait_until(lambda: has(b"x\n", n), "records")
        mount.command("consumed app/cpu 0 2")
        chan.write(b"room again\n")
        wait_until(lambda: has(b"room again\n", n), "another record")
    # It is told before the records of the sub-buffer at whose end it was.
    before, loss, behind = text.partition(b"# cpu 0: 1 record is lost: full\n")
    assert loss
    assert before + behind == (b"x" * 100 + b"\n") * n + b"room again\n"


def test_a_ring_is_followed_beside_a_consumer(mount: Mount) -> None:
    channel, n = mount.create("app/cpu", "type=ring size=64K framing=line times=mono"), 1000
    with merged(mount).open("rb", buffering=0) as file, Ring(channel) as ring:
        assert file.read(1000) == b""
        for i in range(n):
            ring.output(b"%d\n" % i)
            assert [bytes(record) for record in ring.records(timeout=0)] == [b"%d\n" % i]
        found: list[bytes] = []
        wait_until(lambda: found.append(file.read(1 << 20)) or b"%d\n" % (n - 1) in found[-1], "the last record")
    assert b"".join(found) == b"".join(b"%d\n" % i for i in range(n))


# --- enemies ---


@pytest.mark.parametrize("options", [RELAY["rseq"], RINGS["ring-rseq"]], ids=["relay", "ring"])
def test_what_an_enemy_stores_over_heads_harms_nobody_else(mount: Mount, tmp_path: Path, options: str) -> None:
    if N_CPUS < 2:
        pytest.skip("one buffer for the enemy, and one for others")
    channel, chance = mount.create("app/cpu", options), random.Random(7)
    memory = mount.store / "app/cpu/mem1"
    mount.expect("cpu 1: ")
    mount.expect("app/cpu")
    with (
        following(merged(mount, file="merged.json"), tmp_path / "out") as out,
        memory.open("r+b") as file,
        mmap.mmap(file.fileno(), 256 << 10) as data,
    ):
        begin = 0 if "ring" not in options else 8192
        for step in range(30):
            for cpu in (0, 1):
                subprocess.run(
                    ["sh", "-c", f"for i in 1 2 3 4; do echo {step} $i >{channel}{cpu}; done"], check=False,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            for _ in range(20):
                at = begin + chance.randrange(0, 4096) // 4 * 4
                data[at : at + 4] = chance.choice(
                    [b"\xff\xff\xff\xff", b"\0\0\0\0", chance.randbytes(4), b"\xff\xff\0\0", b"\xf0\xff\xff\x3f"]
                )

        def of_cpu_0() -> list[str]:
            text = out.read_bytes()
            found = objects(text[: text.rfind(b"\n") + 1])
            return [one["record"] for one in found if one.get("cpu") == 0 and "record" in one]

        expected = [f"{step} {i}\n" for step in range(30) for i in (1, 2, 3, 4)]
        wait_until(lambda: len(of_cpu_0()) == len(expected), lambda: str(of_cpu_0()[-3:]))
        assert of_cpu_0() == expected
        for _ in range(3):  # reading it returns something, or says that it is damaged
            subprocess.run(["cat", f"{channel}1"], capture_output=True, timeout=DEADLINE_S, check=False)
    assert cat(Path(f"{channel}0")) == "".join(expected).encode()


@pytest.mark.parametrize("length", [100, 100_000, 1_500_000], ids=["short", "long", "too long"])
def test_a_record_of_a_ring_from_the_future_is_damaged_once(mount: Mount, length: int) -> None:
    """A long one is copied again and again, into more and more memory, before it is given out, or left out."""
    channel = mount.create("app/cpu", "type=ring size=4M times=mono")
    path = mount.store / "app/cpu/mem0"
    with Ring(channel) as ring, path.open("r+b") as file, mmap.mmap(file.fileno(), 16384) as memory:
        ring.output(b"x" * length)
        memory[8200:8208] = (1 << 62).to_bytes(8, "little")
        ring.output(b"behind")
        opened = RingMemory.of_descriptor(file.fileno())
        with (
            Records([opened], CLOCKS["mono"].number, print, longest=1 << 20) as records,
            closing(Export(records.merged, Style("records"))) as export,
        ):
            text = b""
            while not text.endswith(b"behind\n"):
                records.look()
                text += b"".join(map(bytes, export.pieces()))
            assert records.merged.process_stats(0).n_damaged == 1
    assert text.count(b"x") == (0 if length > 1 << 20 else length)


def test_only_readers_of_the_channel_read_what_is_merged(mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("becomes another user")
    mount.create("app/cpu", f"{PERCPU} perm=0640")
    mount.create("app/open", f"{PERCPU} perm=0644")
    user = User(NOBODY, NOBODY)
    mount.path.parent.chmod(0o755)
    assert "Permission denied" in user.run("cat", merged(mount)).stderr
    assert user.run("cat", merged(mount, "app/open")).returncode == 0
    assert "Permission denied" in user.run("cat", merged(mount, file="merged.raw")).stderr
    with pytest.raises(PermissionError):
        merged(mount, "app/open").open("wb")


READ_MANY = """
import os, sys
n = 0
for _ in range(17):
    try:
        os.read(os.open(sys.argv[1], os.O_RDONLY), 1)
        n += 1
    except OSError as error:
        if n == 0:
            sys.exit(error.strerror)
print(n, flush=True)
sys.stdin.read()
"""


def test_users_leave_root_files_to_read(mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("becomes other users")
    mount.create("app/cpu", f"{PERCPU} perm=0644 uid={NOBODY}")
    mount.path.parent.chmod(0o755)
    with ExitStack() as stack:
        for uid, expected in ((NOBODY, b"4\n"), (NOBODY - 1, b"4\n"), (NOBODY - 2, b"")):
            process = forking.start(
                [sys.executable, "-c", READ_MANY, merged(mount)], user=uid, group=uid, extra_groups=[], cwd="/",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.communicate)
            assert process.stdout.readline() == expected
        assert os.strerror(errno.ENFILE) in process.stderr.readline().decode()
        assert [cat(merged(mount)) for _ in range(2)] == [b"", b""]


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("times=mono mode=callback", "mode=callback: not with times=mono"),
        ("times=mono reserve=visible", "reserve=visible: not with times=mono"),
        ("times=mono timestamp=tsc", "timestamp=tsc: not with times=mono"),
        ("times=mono subbuf_size=16 n_subbufs=2", "times: a record has 16 bytes before it"),
        ("times=utc", "times=utc: not allowed; allowed: none or mono or tsc"),
        ("type=ring times=utc", "times=utc: not allowed; allowed: none or mono or tsc"),
    ],
)
def test_options_that_contradict_are_refused(mount: Mount, options: str, word: str) -> None:
    mount.expect("app/cpu")
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        mount.create("app/cpu", options)
    assert word in mount.error_log
    assert not (mount.path / ".channels/app").exists()


def test_channels_without_times_have_nothing_merged(mount: Mount) -> None:
    channel = mount.create("app/cpu", "timestamp=mono times=mono")
    mount.create("app/plain")
    line = mount.channels().splitlines()[0]
    assert " timestamp=mono times=mono " in line
    assert not merged(mount, "app/plain").exists()
    with Channel(channel) as chan:
        largest = 256 * 1024 - 16
        chan.write(bytes(largest))
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            chan.write(bytes(largest + 1))
