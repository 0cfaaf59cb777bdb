"""The files peekN: what is unread, for programs that may not consume it."""

import mmap
import os
import select
import struct
import subprocess
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from mounts import DEADLINE_S, NOBODY, Mount
from traffic import writing

from relayfs_fuse import Channel, Ring

pytestmark = pytest.mark.one_mount

KINDS = {
    "relay": "buffers=single",
    "bulk": "buffers=single delivery=bulk subbuf_size=64K",
    "overwrite": "buffers=single mode=overwrite",
    "timed": "buffers=single times=mono subbuf_size=128K",
    "raw": "type=ring",
    "length": "type=ring framing=length",
    "line": "type=ring framing=line times=mono",
}
SMALL = "buffers=single subbuf_size=4K n_subbufs=4"


def peek_file(mount: Mount, path: str = "app/cpu") -> Path:
    return mount.path / ".channels" / path / "peek0"


def relay_file(mount: Mount) -> Path:
    return next(path for path in (mount.path / "app").iterdir() if path.name in ("cpu", "cpu0"))


def write(channel: Path, *records: bytes) -> None:
    with writing(channel) as write_one:
        for record in records:
            write_one(record)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_it_has_what_the_relay_file_has_and_consumes_nothing(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    peek = peek_file(mount)
    assert peek.read_bytes() == b""
    write(channel, *(b"%d\n" % i * (i % 50 + 1) for i in range(1000)))
    with ExitStack() as stack:
        files = [stack.enter_context(peek.open("rb", buffering=0)) for _ in range(3)]
        write(channel, b"this is written later\n")
        # Several read it at once, each in pieces of its own size; and programs do.
        sizes = dict(zip(files, (47, 4096, 1 << 20), strict=True))
        texts = [b"".join(iter(lambda file=file: file.read(sizes[file]), b"")) for file in files]
    assert texts[0] == texts[1] == texts[2]
    for command in (["cat", peek], ["less", "-f", peek], ["tail", "-c", "+1", peek], ["dd", f"if={peek}", "bs=3000"]):
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
        assert done.stdout.startswith(texts[0])
        assert b"this is written later" in done.stdout[len(texts[0]) :]
    subprocess.run(["grep", "-rlq", "999", peek.parent], timeout=DEADLINE_S, check=True)
    assert mount.shown("app/cpu", "read_bytes") == "0"
    assert relay_file(mount).read_bytes().startswith(texts[0])
    assert (peek.stat().st_size, peek.read_bytes()) == (0, b"")


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_it_can_be_read_anywhere(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    write(channel, *(b"%05d\n" % i for i in range(40_000)))
    with peek_file(mount).open("rb", buffering=0) as file:
        whole = file.read(1 << 30)
        while more := file.read(1 << 20):
            whole += more
        assert len(whole) >= 240_000
        for offset in (0, 1, 100_001, len(whole) - 5, 50_000, len(whole), len(whole) + 9, 0):
            for size in (1, 5000):
                assert os.pread(file.fileno(), size, offset) == whole[offset : offset + size]
        # What it had at the beginning stays as it is, as long as it is there.
        if "ring" not in options:
            assert relay_file(mount).read_bytes() == whole
            assert os.pread(file.fileno(), 20, 0) == whole[:20]
    if options == KINDS["relay"]:
        write(channel, *(b"%05d\n" % i for i in range(40_000)))
        assert subprocess.check_output(["tail", "-n", "2", peek_file(mount)]) == b"39998\n39999\n"
        assert subprocess.check_output(["wc", "-c", peek_file(mount)]).split()[0] == b"240000"


@pytest.mark.parametrize("options", [SMALL, f"{SMALL} times=mono", "type=ring size=16K"])
def test_what_is_overwritten_meanwhile_is_never_shown(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", f"{options} mode=overwrite")
    stop = threading.Event()

    def overwrite() -> None:
        number = 0
        with Ring(channel) if "ring" in options else Channel(channel) as opened:
            while not stop.is_set():
                (opened.output if "ring" in options else opened.write)(b"%06d " % (number % 10**6) * 8 + b"\n")
                number += 1

    writer = threading.Thread(target=overwrite)
    writer.start()
    n_lines = 0
    try:
        while n_lines < 10_000:
            lines = peek_file(mount).read_bytes().splitlines(keepends=True)
            for line in lines:
                assert line == line[:7] * 8 + b"\n"
            numbers = [int(line[:6]) for line in lines]
            assert all((b - a) % 10**6 < 5 * 10**5 for a, b in pairwise(numbers))
            n_lines += len(lines)
    finally:
        stop.set()
        writer.join()


def test_what_cannot_be_read_again_is_an_error(mount: Mount) -> None:
    channel = mount.create("app/cpu", "buffers=single mode=overwrite subbuf_size=64K n_subbufs=4")
    write(channel, *(b"%05d\n" % i for i in range(40_000)))
    with peek_file(mount).open("rb", buffering=0) as file:
        while file.read(1 << 16):
            pass
        end = file.tell()
        last = os.pread(file.fileno(), 600, end - 600)
        write(channel, *(b"%05d\n" % i for i in range(40_000)))
        assert os.pread(file.fileno(), 600, end - 600) == last  # that is kept
        with pytest.raises(OSError, match="Illegal seek"):
            os.pread(file.fileno(), 10, 1000)
        assert os.pread(file.fileno(), 600, end - 600) == last  # which has changed nothing


def test_a_record_longer_than_the_read_is_read_in_parts(mount: Mount) -> None:
    channel = mount.create("app/cpu", "type=ring size=8M framing=length")
    long = os.urandom(3 << 20)
    write(channel, b"first", long, b"last")
    expected = b"".join(struct.pack("<I", len(record)) + record for record in (b"first", long, b"last"))
    with peek_file(mount).open("rb", buffering=0) as file:
        got = b"".join(iter(lambda: file.read(100_000), b""))
        assert got == expected
        assert os.pread(file.fileno(), 10, 2 << 20) == expected[2 << 20 :][:10]
    assert b"".join(iter(peek_file(mount).open("rb", buffering=0).readall, b"")) == expected


@pytest.mark.parametrize("options", ["type=ring size=32M", "buffers=single times=mono subbuf_size=16M n_subbufs=2"])
def test_a_record_too_long_to_be_copied_at_once_is_an_error_and_stays(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    long = bytes((8 << 20) + 1)
    write(channel, b"first", long)
    with peek_file(mount).open("rb", buffering=0) as file:
        assert file.read(5) == b"first"
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                file.read(1)
    with relay_file(mount).open("rb", buffering=0) as file:
        assert b"".join(iter(lambda: file.read(1 << 20), b"")) == b"first" + long


def test_its_permissions_are_those_of_the_relay_file(mount: Mount) -> None:
    channel = mount.create("app/cpu", "buffers=single perm=0640")
    write(channel, b"secret\n")
    peek = peek_file(mount)
    assert peek.stat().st_mode & 0o777 == 0o440
    command = ["cat", peek]
    if os.geteuid() == 0:
        mount.path.parent.chmod(0o755)
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        done = subprocess.run(command, **other, capture_output=True, timeout=DEADLINE_S, check=False)
        assert (done.returncode, b"Permission denied" in done.stderr) == (1, True)
        relay_file(mount).chmod(0o644)
        done = subprocess.run(command, **other, capture_output=True, timeout=DEADLINE_S, check=False)
        assert (done.returncode, done.stdout) == (0, b"secret\n")
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        with pytest.raises(PermissionError):
            os.open(peek, flags)
    for change in (lambda: peek.chmod(0o666), lambda: os.truncate(peek, 0), peek.unlink):
        with pytest.raises(PermissionError):
            change()
    with peek.open("rb") as file, pytest.raises(OSError, match=r"No such device|Invalid argument"):
        mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)[:1]


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_who_was_told_that_the_channel_is_gone_reads_up_to_its_last_record(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    write(channel, b"one\n")
    with peek_file(mount).open("rb", buffering=0) as file:
        events = select.poll()
        events.register(file, select.POLLIN)
        assert events.poll(0) == [(file.fileno(), select.POLLIN)]
        found = [file.read(100)]
        write(channel, b"two\n")
        mount.command("remove app/cpu")
        assert events.poll(0) == [(file.fileno(), select.POLLIN | select.POLLERR | select.POLLHUP)]
        found += iter(lambda: file.read(100), b"")
    assert [one.strip()[-3:] for one in found] == [b"one", b"two"]


def test_it_goes_with_its_channel(mount: Mount) -> None:
    channel = mount.create("app/cpu", "buffers=single")
    write(channel, b"line\n")
    with peek_file(mount).open("rb", buffering=0) as file, peek_file(mount).open("rb", buffering=0) as other:
        mount.command("reset app/cpu")
        assert file.read(100) == b""
        write(channel, b"new\n")
        mount.command("remove app/cpu")
        assert not peek_file(mount).exists()
        assert other.read(100) == b""
