"""relayfs_fuse.Channel and Reader, on a real mount."""

import array
import errno
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forking
import pytest
from mounts import DEADLINE_S, Mount

from relayfs_fuse import Channel, Reader, Ring, log, native
from relayfs_fuse import open as open_channel

pytestmark = pytest.mark.one_mount


@pytest.fixture
def path(mount: Mount) -> Path:
    """A channel of one buffer, so that order is known: the path of its only relay file is this and 0."""
    return mount.create("app/one", "buffers=global subbuf_size=4096 n_subbufs=4")


@pytest.fixture
def channel(path: Path) -> Iterator[Channel]:
    with Channel(path) as opened:
        yield opened


def relay_file(path: Path) -> Path:
    return path.with_name(f"{path.name}0")


@pytest.mark.parametrize(
    "record",
    [b"bytes", bytearray(b"array"), memoryview(b"view")[1:3], array.array("i", [1, 2, 3])],
    ids=["bytes", "bytearray", "memoryview", "array"],
)
def test_any_buffer_is_a_record(path: Path, channel: Channel, record: bytes) -> None:
    channel.write(record)
    assert relay_file(path).read_bytes() == bytes(record)


def test_a_batch_is_written_in_order(mount: Mount, path: Path, channel: Channel) -> None:
    records = [b"%d\n" % i for i in range(500)]
    assert channel.write_many(records) == 500
    assert relay_file(path).read_bytes() == b"".join(records)
    assert mount.shown("app/one", "records") == "500"


def test_a_batch_ends_at_the_first_record_that_is_refused(mount: Mount, channel: Channel) -> None:
    assert channel.write_many([bytes(4096)] * 10) == 4
    with pytest.raises(OSError) as error:
        channel.write_many([b"x"])
    assert error.value.errno == errno.ENOSPC
    # The fifth of the first batch and the one of the second: what was not tried is not lost.
    assert mount.shown("app/one", "lost_full") == "2"


def test_a_record_that_will_be_tried_again_is_not_lost(mount: Mount, path: Path, channel: Channel) -> None:
    assert channel.write_many([bytes(4096)] * 4) == 4
    for _ in range(3):
        with pytest.raises(OSError) as error:
            channel.write(b"x", will_retry=True)
        assert error.value.errno == errno.ENOSPC
    assert mount.shown("app/one", "lost") == "0"
    assert relay_file(path).read_bytes() == bytes(4 * 4096)
    channel.write(b"x", will_retry=True)
    assert relay_file(path).read_bytes() == b"x"


def test_a_batch_may_be_any_iterable(mount: Mount, path: Path, channel: Channel) -> None:
    assert channel.write_many(b"%d\n" % i for i in range(20)) == 20
    assert channel.write_many(iter([bytearray(b"a"), memoryview(b"bc")[1:], array.array("h", [0])])) == 3
    assert relay_file(path).read_bytes() == b"".join(b"%d\n" % i for i in range(20)) + b"ac\0\0"
    assert mount.shown("app/one", "records") == "23"


CUT = [
    ({"length": 3}, b"onetwosix", [b"one", b"two", b"six"]),
    ({"length": 4}, array.array("H", [257, 257, 514, 514]), [b"\1\1\1\1", b"\2\2\2\2"]),
    ({"separator": b"\n"}, bytearray(b"one\n\nthree"), [b"one\n", b"\n", b"three"]),
    ({"separator": b"\0"}, memoryview(b"-a\nb\0c\0")[1:], [b"a\nb\0", b"c\0"]),
    ({"separator": b"\xff"}, b"a\xffb", [b"a\xff", b"b"]),
    ({"separator": b","}, b"", []),
]


@pytest.mark.parametrize(
    ("ends", "data", "records"), CUT, ids=[f"{next(iter(ends))}-{len(data)}" for ends, data, _ in CUT]
)
def test_records_are_cut_from_one_buffer(mount: Mount, ends: dict[str, Any], data: bytes, records: list[bytes]) -> None:
    name = f"cut{CUT.index((ends, data, records))}"
    with Channel.create(mount.path / name, buffers="single", times="mono") as channel:
        assert channel.write_many(data, **ends) == len(records)
    with Ring.create(mount.path / f"{name}r", size="4K") as ring:
        assert ring.output_many(data, **ends) == len(records)
        assert list(map(bytes, ring.records(timeout=0))) == records
    with open_channel(mount.path / name, timeout=0) as reader:
        assert [record.data for record in reader] == records


@pytest.mark.parametrize("ends", [{"length": 4096}, {"separator": b"\n"}], ids=["length", "separator"])
def test_a_buffer_is_cut_up_to_the_first_record_that_is_refused(
    mount: Mount, channel: Channel, ends: dict[str, Any]
) -> None:
    data = (bytes(4095) + b"\n") * 10
    assert channel.write_many(data, **ends) == 4
    with pytest.raises(OSError) as error:
        channel.write_many(data, **ends)
    assert error.value.errno == errno.ENOSPC
    assert mount.shown("app/one", "lost_full") == "2"
    for _ in range(2):
        with pytest.raises(OSError) as error:
            channel.write_many(bytes(8192), length=8192)
        assert error.value.errno == errno.EMSGSIZE
    assert mount.shown("app/one", "lost_too_large") == "2"
    assert mount.shown("app/one", "records") == "4"


def test_a_ring_takes_a_batch_up_to_the_first_record_that_is_refused(mount: Mount) -> None:
    with Ring.create(mount.path / "full", size="4K") as ring:
        assert ring.output_many(iter([b"x" * 1016, b"y" * 1016])) == 2
        assert ring.output_many(b"z" * 10160, length=1016) == 1
        late = b"z" * 1016
        for call in (
            lambda: ring.output_many([late]), lambda: ring.output_many(late, length=1016), lambda: ring.output(late),
            lambda: ring.output_many(bytes(8192), length=8192),
        ):  # fmt: skip
            with pytest.raises(BlockingIOError):
                call()
        assert [bytes(record[:1]) for record in ring.records(timeout=0)] == [b"x", b"y", b"z"]
        assert ring.output_many(b"no\none\n", wakeup=False, separator=b"\n") == 2
        assert ring.output_many([b"woken"], wakeup=True) == 1
    # The second of the second batch, and those of the four calls, one of which had no chance.
    assert mount.shown("full", "lost_full") == "4"
    assert mount.shown("full", "lost_too_large") == "1"


@pytest.mark.parametrize(
    ("data", "ends", "error", "says"),
    [
        (b"one\n", {}, TypeError, "either length= or separator= says where"),
        (b"one\n", {"length": 1, "separator": b"\n"}, TypeError, "either length= or separator= says where"),
        (b"one\n", {"length": 3}, ValueError, "length=3: it is 1 or more, and divides the buffer's 4 bytes"),
        (b"one\n", {"length": 0}, ValueError, "length=0: it is 1 or more"),
        (b"one\n", {"length": -4}, ValueError, "length=-4: it is 1 or more"),
        (b"one\n", {"length": 2.0}, ValueError, "length=2.0: it is 1 or more"),
        (b"one\n", {"separator": b"\r\n"}, ValueError, r"separator=b'\\r\\n': it is one byte, as bytes"),
        (b"one\n", {"separator": "\n"}, ValueError, r"separator='\\n': it is one byte"),
        ("one\n", {"length": 1}, TypeError, "a record is bytes, not str"),
        ([b"one"], {"length": 1}, TypeError, "another object with a buffer, not list"),
        (7, {}, TypeError, "not iterable"),
    ],
)  # fmt: skip
def test_a_batch_that_is_wrong_writes_nothing(
    mount: Mount, channel: Channel, data: Any, ends: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        channel.write_many(data, **ends)
    assert mount.shown("app/one", "records") == "0"


def test_what_is_closed_takes_nothing(mount: Mount, channel: Channel) -> None:
    ring = Ring.create(mount.path / "closed", size="4K")
    ring.close()
    channel.close()
    for write in (channel.write, ring.output):
        with pytest.raises(ValueError, match="is closed"):
            write(b"late")
        with pytest.raises(ValueError, match="is closed"):
            write(bytearray(b"late"))
    for write_many in (channel.write_many, ring.output_many):
        with pytest.raises(ValueError, match="is closed"):
            write_many(b"late", length=4)
        for records in ([b"late"], []):
            with pytest.raises(ValueError, match="is closed"):
                write_many(records)


def test_an_empty_batch_writes_nothing(channel: Channel) -> None:
    assert channel.write_many([]) == 0


@pytest.mark.parametrize(
    ("act", "code"),
    [("too large", errno.EMSGSIZE), ("disabled", errno.ECANCELED), ("removed", errno.EPIPE)],
)
def test_a_refused_write_says_why(mount: Mount, channel: Channel, act: str, code: int) -> None:
    if act == "disabled":
        mount.command("disable app/one")
    elif act == "removed":
        mount.command("remove app/one")
    with pytest.raises(OSError) as error:
        channel.write(bytes(4097 if act == "too large" else 1))
    assert error.value.errno == code


def test_a_channel_that_is_not_there_cannot_be_opened(mount: Mount) -> None:
    with pytest.raises(FileNotFoundError):
        Channel(mount.path / "app/none")


def test_a_closed_channel_says_so(path: Path) -> None:
    channel = Channel(path)
    channel.close()
    channel.close()
    with pytest.raises(ValueError, match="closed"):
        channel.write(b"x")


def test_create_makes_the_channel_that_its_options_describe(mount: Mount) -> None:
    with Channel.create(mount.path / "made/here", subbuf_size="8K", n_subbufs=3, mode="overwrite"):
        assert mount.shown("made/here", "subbuf_size") == "8192"
        assert mount.shown("made/here", "n_subbufs") == "3"
        assert mount.shown("made/here", "mode") == "overwrite"


def test_flush_and_reset_reach_every_buffer(mount: Mount, path: Path, channel: Channel) -> None:
    channel.write(b"x")
    channel.flush()
    assert mount.shown("app/one", "produced") == "1"
    channel.reset()
    assert mount.shown("app/one", "produced") == "0"
    assert relay_file(path).read_bytes() == b""


def test_the_reader_shows_the_memory_itself(path: Path, channel: Channel) -> None:
    channel.write(b"abc")
    with Reader(relay_file(path), timeout=0) as reader:
        piece = next(reader)
        assert isinstance(piece, memoryview)
        assert bytes(piece) == b"abc"
        with path.parent.parent.joinpath(".channels/app/one/mem0").open("r+b") as memory:
            mmap.mmap(memory.fileno(), 4096)[0] = ord("X")
        assert bytes(piece) == b"Xbc"


def test_a_piece_ends_with_the_next_step(path: Path, channel: Channel) -> None:
    channel.write(b"abc")
    with Reader(relay_file(path), timeout=0) as reader:
        piece = next(reader)
        with pytest.raises(StopIteration):
            next(reader)
        with pytest.raises(ValueError, match="released"):
            bytes(piece)


def test_what_the_reader_did_not_finish_stays(path: Path, channel: Channel) -> None:
    channel.write(b"abc")
    with Reader(relay_file(path), timeout=0) as reader:
        assert bytes(next(reader)) == b"abc"
    assert relay_file(path).read_bytes() == b"abc"


def test_a_piece_that_is_left_is_read_again_by_anybody(path: Path, channel: Channel) -> None:
    channel.write(b"abc")
    first, second = native.ReaderHandle(str(relay_file(path))), native.ReaderHandle(str(relay_file(path)))
    for reader in (first, second, first):
        assert bytes(reader.next(0) or b"") == b"abc"
        reader.abort()
        with pytest.raises(OSError) as error:
            reader.abort()
        assert error.value.errno == errno.EINVAL
    assert bytes(second.next(0) or b"") == b"abc"
    second.done()
    assert first.next(0) is None
    first.close()
    second.close()


def test_the_reader_passes_padding(path: Path, channel: Channel) -> None:
    records = [bytes([65 + i]) * 1500 for i in range(6)]
    assert channel.write_many(records) == 6
    with Reader(relay_file(path), timeout=0) as reader:
        pieces = [bytes(piece) for piece in reader]
    assert [len(piece) for piece in pieces] == [3000, 3000, 3000]
    assert b"".join(pieces) == b"".join(records)


def test_a_waiting_reader_gets_what_is_written_later_without_spinning(path: Path, channel: Channel) -> None:
    got: list[bytes] = []
    used: list[float] = []

    def read() -> None:
        with Reader(relay_file(path)) as reader:
            before = resource.getrusage(resource.RUSAGE_THREAD)
            got.append(bytes(next(reader)))
            after = resource.getrusage(resource.RUSAGE_THREAD)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    thread = threading.Thread(target=read)
    thread.start()
    # Long enough that a loop without sleep would show in its CPU time.
    thread.join(1.0)
    assert thread.is_alive()
    channel.write(b"late")
    thread.join(DEADLINE_S)
    assert got == [b"late"]
    assert used[0] < 0.5


def test_the_reader_ends_when_the_channel_is_removed_and_drained(mount: Mount, path: Path, channel: Channel) -> None:
    channel.write(b"last")
    with Reader(relay_file(path)) as reader:
        mount.command("remove app/one")
        assert [bytes(piece) for piece in reader] == [b"last"]


def test_a_timeout_ends_the_iteration(path: Path) -> None:
    with Reader(relay_file(path), timeout=0.05) as reader:
        assert list(reader) == []


def test_ctrl_c_ends_a_waiting_reader(path: Path) -> None:
    code = "import sys, relayfs_fuse\nprint('ready', flush=True)\nnext(relayfs_fuse.Reader(sys.argv[1]))"
    process = forking.start(
        [sys.executable, "-c", code, relay_file(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + DEADLINE_S
    status = Path(f"/proc/{process.pid}/wchan")
    while not re.match("futex|hrtimer", status.read_text()):
        assert time.monotonic() < deadline
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error


def test_what_the_reader_has_in_hand_is_nobody_elses(path: Path, channel: Channel) -> None:
    channel.write(b"abc")
    with Reader(relay_file(path), timeout=0) as first, Reader(relay_file(path), timeout=0) as second:
        assert bytes(next(first)) == b"abc"
        with pytest.raises(OSError) as error:
            next(second)
        assert error.value.errno == errno.EBUSY
        assert list(first) == []
        assert list(second) == []


# --- errors say what was wrong ---


def test_what_refuses_a_create_is_said_in_the_exception(mount: Mount) -> None:
    with pytest.raises(
        OSError,
        match=r"subbuf_size=0: not allowed; allowed: bytes, 1 to 4294967295, with .*: '.*/app/new'",
    ) as error:
        Channel.create(mount.path / "app/new", subbuf_size=0)
    assert (error.value.errno, error.value.filename) == (errno.EINVAL, str(mount.path / "app/new"))
    with pytest.raises(OSError, match=r"unknown key 'subbufsize'; did you mean subbuf_size\?"):
        Channel.create(mount.path / "app/new", subbufsize=4096)
    mount.create("app/one")
    with pytest.raises(FileExistsError, match="app/one exists"):
        Channel.create(mount.path / "app/one")
    with pytest.raises(OSError, match="size=1: not allowed"):
        Ring.create(mount.path / "app/ring", size=1)


def test_a_path_of_another_kind_is_said_to_be_that(mount: Mount, path: Path) -> None:
    mount.create("app/ring", "type=ring size=4K")
    ring = mount.path / "app/ring"
    for opened, given, code, said in [
        (Channel, f"{path}0", errno.ENOENT, f"a relay file, .* its channel is {path}"),
        (Channel, ring, errno.EMEDIUMTYPE, "a channel of record rings, for Ring"),
        (Channel, mount.path / "app", errno.EISDIR, "a directory, and no channel"),
        (Reader, path, errno.ENOENT, "a channel of relay files, for Channel"),
        (Reader, f"{ring}0", errno.EMEDIUMTYPE, f"a file of a record ring; its channel is {ring}"),
        (Ring, path, errno.EMEDIUMTYPE, "a channel of relay files, for Channel"),
    ]:
        with pytest.raises(OSError, match=said) as error:
            opened(given)
        assert (error.value.errno, error.value.filename) == (code, str(given))
    for of_any_kind in (Channel, Reader, Ring):
        with pytest.raises(IsADirectoryError, match=f"it is a directory, and no channel: '{mount.path}/app'"):
            of_any_kind(mount.path / "app")
        with pytest.raises(FileNotFoundError):
            of_any_kind(mount.store.parent)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*/none'"):
        Channel(mount.path / "none")


def test_text_is_no_record(mount: Mount, channel: Channel) -> None:
    with pytest.raises(TypeError, match=r"a record is bytes, not str: text.encode\(\) makes them"):
        channel.write("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a record is bytes"):
        channel.write_many([b"fine", "text"])  # type: ignore[list-item]
    for wrong in (None, 7, [b"text"]):
        with pytest.raises(TypeError, match=f"another object with a buffer, not {type(wrong).__name__}"):
            channel.write(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a line of the log is str, not bytes"):
        log(b"text")  # type: ignore[arg-type]
    mount.create("app/ring", "type=ring size=4K")
    with Ring(mount.path / "app/ring") as ring, pytest.raises(TypeError, match="a record is bytes"):
        ring.output("text")  # type: ignore[arg-type]
