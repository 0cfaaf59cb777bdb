"""Channels of 2003 on a mount: what files show of them, and what other programs do to them."""

import errno
import mmap
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, builds, compile_c, run_environment
from making import Maker, environment_of, making
from mapping import Mapper
from mounts import DEADLINE_S, Mount, shell, used, wait_until
from traffic import append, wait_asleep

from relayfs_fuse import Channel

SOURCE = Path(__file__).with_name("classic_client.c")
LOCKLESS, LOCKING, ANY = 1, 2, 3
SMP, GLOBAL, BULK, PACKET, TSC = 4, 8, 16, 32, 64
USUAL = ANY | GLOBAL | BULK
FILE = "xlog/9"
Start = Callable[..., Maker]


def run_client(stack: ExitStack, mount: Mount, sanitize: str = PLAIN) -> Maker:
    environment = {**run_environment(sanitize), **environment_of(mount)}
    return stack.enter_context(making(environment, command=[compile_c([SOURCE], None, sanitize)]))


@pytest.fixture
def start(shared_mount: Mount) -> Iterator[Start]:
    """Start clients and have each open /xlog/9 (or another path); in the end they and their channels are gone."""
    clients: list[tuple[Maker, str]] = []

    with ExitStack() as stack:

        def open_one(
            size: int = 64, n: int = 2, flags: int = USUAL, *, texts: str = "- - -", full: int = 0, path: str = FILE
        ) -> Maker:
            one = run_client(stack, shared_mount)
            one.ask(f"texts {texts}")
            one.ask(f"full {full}")
            one.ask(f"open /{path} {size} {n} {flags}")
            clients.append((one, path))
            return one

        yield open_one
        for client, path in clients:
            if client.process.poll() is None:
                assert client("close") in ("0", "EBADF")
            elif (shared_mount.path / path).exists():
                shared_mount.command(f"remove {path}")
    assert not (shared_mount.path / FILE).exists()


@pytest.fixture
def file(shared_mount: Mount) -> Path:
    return shared_mount.path / FILE


def info(client: Maker) -> dict[str, str]:
    return dict(word.split("=") for word in client("info").split())


def told_soon(client: Maker, last: str) -> list[str]:
    """What callbacks were told up to this, in a thread or in the command before."""
    wait_until(lambda: last in client.told, lambda: f"{last!r}, not {client.told}")
    return list(client.told)


def read(file: Path, max_bytes: int = 65536) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


# --- what is there ---


@pytest.mark.parametrize("flags", [LOCKLESS | SMP | BULK, LOCKING | GLOBAL | PACKET | TSC, ANY | PACKET])
def test_an_opened_channel_appears_with_its_directory(
    shared_mount: Mount, file: Path, start: Start, flags: int
) -> None:
    start(4096, 2, flags, texts="head foot channel")
    assert os.listdir(file.parent) == ["9"]
    assert file.is_file()
    expected = {
        "buffers": "single", "scheme": "locking" if flags & ANY == LOCKING else "lockless",
        "delivery": "packet" if flags & PACKET else "bulk", "read": "wait", "mode": "callback", "subbuf_size": "4096",
        "n_subbufs": "2", "start_reserve": "4", "end_reserve": "4", "channel_start_reserve": "7", "suspended": "0",
    }  # fmt: skip
    assert {name: shared_mount.shown(FILE, name) for name in expected} == expected
    assert shared_mount.shown(FILE, "timestamp") == ("tsc" if flags & TSC and has_tsc() else "mono")
    (line,) = [line for line in shared_mount.channels().splitlines() if line.startswith(f"create {FILE} ")]
    assert {f"{name}={value}" for name, value in expected.items() if name.endswith("reserve")} < set(line.split())


def has_tsc() -> bool:
    return "constant_tsc" in Path("/proc/cpuinfo").read_text() or os.uname().machine == "aarch64"


def test_close_takes_the_file_away(file: Path, start: Start) -> None:
    client = start()
    client.ask("close")
    assert not file.exists()
    assert client("write x") == "EBADF"


def test_a_path_that_is_open_is_refused(shared_mount: Mount, file: Path, start: Start) -> None:
    first, second = start(), start(path="xlog/10")
    assert second(f"open /{FILE} 64 2 {USUAL}") == "EEXIST"
    assert second(f"open /xlog 64 2 {USUAL}") == "EEXIST"
    with pytest.raises(FileExistsError):
        shared_mount.create(FILE, "buffers=single")
    first.ask("write here")
    second.ask("write there")
    assert read(file) == b"here"


def test_only_existing_channels_can_be_opened(file: Path, start: Start) -> None:
    start()
    for path in (file.parent / "10", file.parent.parent / "none"):
        with pytest.raises(FileNotFoundError):
            os.open(path, os.O_RDONLY)
        with pytest.raises(OSError, match=os.strerror(errno.EACCES)):
            os.open(path, os.O_RDWR | os.O_CREAT)


# --- read(2) ---


def test_readers_sleep_until_a_sub_buffer_is_finished(file: Path, start: Start) -> None:
    client = start(64, 2)
    with subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        wait_asleep(cat, file)
        client.ask(f"write {'a' * 64}")
        wait_asleep(cat, file)
        client.ask(f"write {'b' * 10}")
        assert cat.stdout.read(64) == b"a" * 64
        client.ask("close")
        assert cat.stdout.read() == b"b" * 10
    assert cat.returncode == 0


def test_with_packets_readers_sleep_until_there_is_a_record(file: Path, start: Start) -> None:
    client = start(64, 2, ANY | PACKET)
    with subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        for number in range(10):
            wait_asleep(cat, file)
            client.ask(f"write {number:020}")
            assert cat.stdout.read(20) == b"%020d" % number
        client.ask("close")
        assert cat.stdout.read() == b""


def test_reading_only_goes_forward(file: Path, start: Start) -> None:
    start().ask("write abcdefgh")
    descriptor = os.open(file, os.O_RDONLY)
    try:
        assert os.read(descriptor, 3) == b"abc"
        with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
            os.lseek(descriptor, 0, os.SEEK_SET)
        assert os.read(descriptor, 100) == b"defgh"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("scheme", [LOCKLESS, LOCKING])
def test_readers_get_headers_records_and_footers_and_nothing_unused(file: Path, start: Start, scheme: int) -> None:
    client = start(64, 2, scheme | BULK, texts="<head> <foot> <channel>", full=1)
    assert [client(f"write {letter * 30}") for letter in "abc"] == ["0", "0", "ENOSPC"]
    assert read(file).decode() == f"<head><channel>{'a' * 30}<foot><head>{'b' * 30}<foot>"
    wait_until(lambda: info(client)["bufs_consumed"] == "2", "what was read is consumed")


def test_dd_copies_a_channel(file: Path, start: Start, tmp_path: Path) -> None:
    client = start(4096, 2, texts="head foot -")
    client.ask("fill 1000")
    done = shell(f"dd if={file} of={tmp_path}/out bs=1M count=1 status=none", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"head" + b"x" * 1000


# --- write(2) ---


def by_relay_write(client: Maker, file: Path, length: int) -> str:
    return client(f"fill {length}")


def by_write(client: Maker, file: Path, length: int) -> str:
    try:
        append(file, b"x" * length)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "0"


@pytest.mark.parametrize("scheme", [LOCKLESS, LOCKING])
@pytest.mark.parametrize("full", [0, 1])
def test_write_does_what_relay_write_does(file: Path, start: Start, scheme: int, full: int) -> None:
    seen = []
    for write in (by_relay_write, by_write):
        client = start(64, 2, scheme | GLOBAL | BULK, texts="head foot channel", full=full)
        results = [write(client, file, length) for length in (20, 20, 57, 56, 65, 10, 40, 40, 1)]
        client.ask("resume")
        results.append(write(client, file, 30))
        seen.append((results, info(client), read(file)))
        client.ask("close")
    assert seen[0] == seen[1]
    assert "EMSGSIZE" in seen[0][0]
    assert ("ENOSPC" in seen[0][0]) == bool(full)


def test_callbacks_for_the_writes_of_others_are_called_in_the_client(file: Path, start: Start) -> None:
    client = start(64, 2, texts="head foot -")
    append(file, b"a" * 50)
    append(file, b"b" * 50)
    assert told_soon(client, "start 1 ") == ["start 0 ", "end 10", "deliver head" + "a" * 36, "start 1 "]
    append(file, b"c" * 50)
    assert told_soon(client, "start 2 ")[4:] == ["end 10", "deliver head" + "b" * 36, "full", "start 2 "]
    assert read(file) == b"head" + b"b" * 50 + b"foothead" + b"c" * 50


def test_a_write_may_be_longer_than_two_pages(file: Path, start: Start) -> None:
    client = start(1 << 20, 2)
    append(file, b"w" * 1_000_000)
    client.ask("fill 1000000")
    assert read(file, 1 << 20) == b"w" * 1_000_000
    assert read(file, 1 << 20) == b"x" * 1_000_000
    assert info(client)["bufs_produced"] == "1"


# --- mmap(2) ---


@pytest.mark.usefixtures("mapped_through")
def test_the_file_is_mapped_and_unused_bytes_are_skipped(file: Path, start: Start) -> None:
    client = start(4096, 2, texts="head foot -", full=1)
    for length in (1000, 1100, 1900, 1000, 1050, 5):
        client(f"fill {length}")
    client("fill 4000")
    unused = [int(bytes_) for bytes_ in info(client)["unused_bytes"].split(",")]
    memory = Mapper(file, "rw", 2 * 4096)
    mapped = b"".join(memory.show(at * 4096, 4096 - unused[at]) for at in range(2))
    memory.close()
    assert info(client)["buffer_complete"] == "1,1"
    assert mapped.startswith(b"headxxx")
    assert mapped.count(b"head") == mapped.count(b"foot") == 2
    assert read(file) == mapped


@pytest.mark.usefixtures("mapped_through")
def test_memory_is_mapped_whole_or_in_part(shared_mount: Mount, start: Start) -> None:
    start(4096, 2).ask("write mapped")
    with (shared_mount.path / f".channels/{FILE}/mem0").open("r+b") as mem:
        for length in (8192, 4096):
            with mmap.mmap(mem.fileno(), length, prot=mmap.PROT_READ) as memory:
                assert memory[:6] == b"mapped"


# --- suspended ---


def test_resume_is_a_command_too(shared_mount: Mount, file: Path, start: Start) -> None:
    client = start(64, 2, full=1)
    for result in ("0", "0", "ENOSPC", "ENOSPC"):
        assert client("fill 64") == result
    assert shared_mount.shown(FILE, "suspended") == "1"
    assert shared_mount.shown(FILE, "lost_full") == "2"
    shared_mount.command(f"resume {FILE}")
    assert shared_mount.shown(FILE, "suspended") == "0"
    assert client("fill 64") == "0"
    assert info(client)["bufs_consumed"] == "2"


def test_readers_of_a_suspended_channel_get_what_it_has(file: Path, start: Start) -> None:
    client = start(64, 2, full=1)
    for letter in "abc":
        client(f"write {letter * 64}")
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(0)
    assert os.read(descriptor, 1000) == b"a" * 64 + b"b" * 64
    os.close(descriptor)
    assert client("write d") == "ENOSPC", "that they have read changes nothing"
    client.ask("resume")
    client.ask("write e")


# --- lives ---


@pytest.mark.parametrize("last", ["reader", "reference", "mapping"])
def test_the_memory_is_freed_with_the_last_reference(
    make_mount: Callable[..., Mount], own_tmpfs: Path, last: str
) -> None:
    mount = make_mount(store=own_tmpfs / "store")
    before = used(own_tmpfs)
    with ExitStack() as stack:
        client = run_client(stack, mount)
        client.ask("texts - - -")
        client.ask(f"open /{FILE} {1 << 19} 4 {USUAL}")
        client.ask("get")
        client.ask("write to the end")
        with (mount.store / FILE / "mem0").open("r+b") as memory:
            mapping = mmap.mmap(memory.fileno(), 4096)
        reader = os.open(mount.path / FILE, os.O_RDONLY)
        client.ask("close")
        assert not (mount.path / FILE).exists()
        ends = {
            "reader": lambda: os.close(reader), "reference": lambda: client.ask("put"), "mapping": mapping.close,
        }  # fmt: skip
        assert os.read(reader, 100) == b"to the end"
        assert os.read(reader, 100) == b""
        for name in sorted(ends, key=lambda name: name == last):
            assert used(own_tmpfs) >= before + (1 << 21), f"before {name}"
            ends[name]()
        wait_until(lambda: used(own_tmpfs) == before, lambda: f"{used(own_tmpfs) - before} bytes are left")


def test_a_killed_clients_channel_stays_and_is_read(shared_mount: Mount, file: Path, start: Start) -> None:
    client = start()
    client.ask("write last words")
    client.process.kill()
    client.process.wait()
    assert read(file) == b"last words"
    shared_mount.command(f"remove {FILE}")


def test_a_channel_opened_before_there_is_a_mount_is_shown_by_it(nowhere: Path, late_mount: Mount) -> None:
    with ExitStack() as stack:
        late_mount.path = nowhere
        client = run_client(stack, late_mount)
        client.ask("texts head - -")
        client.ask(f"open /{FILE} 64 2 {USUAL}")
        client.ask("write early")
        late_mount.start()
        assert read(nowhere / FILE) == b"headearly"
        client.ask("write and late")
        assert read(nowhere / FILE) == b"and late"
        client.ask("close")
        assert not (nowhere / FILE).exists()


# --- others ---


def test_programs_of_relay_h_write_to_it(shared_mount: Mount, file: Path, start: Start) -> None:
    client = start(64, 2, texts="head foot -")
    with Channel(file) as channel:
        channel.write(b"a" * 50)
        channel.write(b"b" * 50)
    assert client("write c") == "0"
    assert told_soon(client, "start 1 ") == ["start 0 ", "end 10", "deliver head" + "a" * 36, "start 1 "]
    assert read(file) == b"head" + b"a" * 50 + b"foothead" + b"b" * 50 + b"c"


def test_programs_of_both_kinds_use_one_mount(shared_mount: Mount, file: Path, start: Start) -> None:
    client = start()
    with making(environment_of(shared_mount)) as maker:
        maker.ask("open cpu - 4096 4")
        maker.ask("write of 2008")
        client.ask("write of 2003")
        assert read(file) == b"of 2003"
        assert b"of 2008\n" in [read(path) for path in shared_mount.path.glob("cpu*") if path.stat().st_size]
        maker.ask("close")


def test_direct_writes_arrive(file: Path, start: Start) -> None:
    client = start(64, 2, ANY | PACKET)
    assert client.ask("direct straight in") == ["deliver straight in"]
    assert read(file) == b"straight in"


@pytest.mark.parametrize("sanitize", builds(MEMORY))
def test_no_memory_is_lost_or_misused(shared_mount: Mount, sanitize: str) -> None:
    with ExitStack() as stack:
        client = run_client(stack, shared_mount, sanitize)
        client.ask("texts head foot channel")
        for _ in range(3):
            client.ask(f"open /{FILE} 64 2 {USUAL}")
            client.ask("get")
            for _ in range(9):
                client.ask("write a record of some length")
                client.ask("direct another one")
                append(shared_mount.path / FILE, b"and one of others")
            client("info")
            client.ask("close")
            client.ask("put")
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert client.process.wait(DEADLINE_S) == 0
