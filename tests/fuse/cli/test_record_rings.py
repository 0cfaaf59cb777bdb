"""relayctl record, of rings."""

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest
from forking import RELAYCTL, run
from framed import parsed
from mounts import DEADLINE_S, Mount, wait_until
from tracing import finish, recording, relayctl

from relayfs_fuse import Ring, native
from relayfs_fuse.record.rings import RingsApp

pytestmark = pytest.mark.one_mount


def output(channel: Path, *records: bytes) -> None:
    with Ring(channel) as ring:
        for record in records:
            ring.output(record)


RECORDS = [b"first", b"", b"x" * 5000, b"with a newline\n", b"the end"]


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
def test_records_are_what_cat_has_or_follow_their_lengths(mount: Mount, tmp_path: Path, mode: str) -> None:
    for framing in ("line", "length", "raw"):
        channel = mount.create(f"app/{framing}", f"type=ring buffers=single framing={framing} mode={mode}")
        output(channel, *RECORDS)
        expected = run([RELAYCTL, "cat", channel, "--peek"], capture_output=True, timeout=DEADLINE_S).stdout
        with recording(channel, "-o", tmp_path) as recorder:
            wait_until(lambda: mount.shown(f"app/{framing}", "read_records") == "5", "all is recorded")  # noqa: B023
            output(channel, b"later")
            said = finish(recorder)
        data = (tmp_path / f"{framing}0").read_bytes()
        assert ("each record after its length" in said) == (framing == "raw")
        if framing == "raw":
            assert parsed(data, "<I") == [(record,) for record in [*RECORDS, b"later"]]
        else:
            assert data.startswith(expected)
            assert data[len(expected) :] == {"line": b"later\n", "length": b"\5\0\0\0later"}[framing]
        assert mount.shown(f"app/{framing}", "unread_bytes") == "0"


@pytest.mark.parametrize("clock", ["mono", "tsc"])
def test_records_have_their_times(mount: Mount, tmp_path: Path, clock: str) -> None:
    channel = mount.create("app/timed", f"type=ring buffers=single times={clock} framing=line")
    before = time.time_ns()
    output(channel, b"one")
    between = time.time_ns()
    output(channel, b"two")
    after = time.time_ns()
    command = [RELAYCTL, "record", channel, "-o", tmp_path, "--duration", "0.3", "--json"]
    told = json.loads(run(command, capture_output=True, timeout=DEADLINE_S, check=True).stdout)
    assert (told["before_each_record"], told["lost"], told["buffers"]) == ("time,length", 0, 1)
    (first, one), (second, two) = parsed((tmp_path / "timed0").read_bytes(), "<QI")
    assert (one, two) == (b"one", b"two")
    slack = 0 if clock == "mono" else 100_000_000  # the frequency of the counter is measured for a moment only
    assert before - slack <= first <= between + slack
    assert between - slack <= second <= after + slack
    assert first < second


def test_losses_are_counted(mount: Mount, tmp_path: Path) -> None:
    for mode in ("overwrite", "no-overwrite"):
        channel = mount.create("app/lossy", f"type=ring size=4K buffers=single mode={mode}")
        with recording(channel, "-o", tmp_path / mode) as recorder:
            wait_until((tmp_path / mode / "lossy0").exists, "its file")
            recorder.send_signal(signal.SIGSTOP)
            wait_until(lambda: is_stopped(recorder.pid), "its stop")
            with Ring(channel) as ring:
                for number in range(1000):
                    try:
                        ring.output(b"%d" % number)
                    except BlockingIOError:
                        assert mode == "no-overwrite"
            recorder.send_signal(signal.SIGCONT)
            said = finish(recorder)
        kept = parsed((tmp_path / mode / "lossy0").read_bytes(), "<I")
        assert 0 < len(kept) < 1000
        assert f", {1000 - len(kept)} records lost" in said
        mount.command("remove app/lossy")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_removal_ends_it_and_it_is_continued(mount: Mount, tmp_path: Path) -> None:
    for number in range(2):
        channel = mount.create("app/ring", "type=ring buffers=percpu framing=line")
        with recording(channel, "-o", tmp_path) as recorder:
            output(channel, b"%d" % number)
            mount.command("remove app/ring")
            assert recorder.wait(DEADLINE_S) == 0
    assert sorted(b"".join(file.read_bytes() for file in tmp_path.iterdir())) == sorted(b"0\n1\n")


def test_a_full_disk_loses_nothing_or_it_is_said(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "ring0").symlink_to("/dev/full")
    for mode in ("no-overwrite", "overwrite"):
        channel = mount.create("app/ring", f"type=ring buffers=single mode={mode} framing=line")
        output(channel, b"1")
        done = relayctl("record", "app/ring", "-o", tmp_path, "--duration", 0.1, "--mount", mount.path)
        assert done.returncode == 1
        if mode == "no-overwrite":
            assert done.stderr.endswith("No space left on device; what was not written is still in the channel\n")
            assert channel.read_bytes() == b"1\n"
        else:
            assert ", 2 bytes consumed and not written\n" in done.stderr
        mount.command("remove app/ring")


@pytest.mark.parametrize("is_written", [False, True])
def test_a_recorder_that_is_killed_leaves_no_part_and_nothing_twice(
    mount: Mount, tmp_path: Path, is_written: bool
) -> None:
    """It is killed after it has written a block, or a part of it, and before it has consumed that."""
    channel = mount.create("app/ring", "type=ring buffers=single")
    output(channel, b"before")
    assert relayctl("record", channel, "-o", tmp_path, "--duration", 0.1).returncode == 0
    output(channel, b"record", b"another")
    file = tmp_path / "ring0"
    with Ring(channel) as ring:
        position, identity = ring.query("cons_pos"), ring._handle.identity(0)
    block = b"\6\0\0\0record\7\0\0\0another"
    words = f"{identity} {position} {file.stat().st_size} {len(block)}"
    os.setxattr(file, "user.relayfs.unfinished", words.encode())
    with file.open("ab") as opened:
        opened.write(block if is_written else block[:7])
    assert relayctl("record", channel, "-o", tmp_path, "--duration", 0.1).returncode == 0
    assert parsed(file.read_bytes(), "<I") == [(b"before",), (b"record",), (b"another",)]
    assert os.listxattr(file) == []


def test_a_recorder_that_is_killed_keeps_what_the_ring_has_no_more(mount: Mount, tmp_path: Path) -> None:
    """In overwrite mode a block is consumed before it is written: what the next recorder cuts off would be lost."""
    channel = mount.create("app/ring", "type=ring buffers=single mode=overwrite")
    file = tmp_path / "ring0"
    with recording(channel, "-o", tmp_path) as recorder:
        output(channel, b"record", b"another")
        wait_until(lambda: file.exists() and file.stat().st_size == 21, "both records")
        recorder.kill()
        recorder.wait(DEADLINE_S)
    assert relayctl("record", channel, "-o", tmp_path, "--duration", 0.1).returncode == 0
    assert parsed(file.read_bytes(), "<I") == [(b"record",), (b"another",)]


@pytest.mark.parametrize("written", [0, 7, 21])
def test_what_a_recorder_that_was_killed_has_consumed_and_not_written_is_counted(
    mount: Mount, tmp_path: Path, written: int
) -> None:
    """It is killed within the write of a block of 21 bytes, which an overwriting ring does not have any more."""
    channel = mount.create("app/ring", "type=ring buffers=single mode=overwrite")
    file, block = tmp_path / "ring0", b"\6\0\0\0record\7\0\0\0another"
    file.write_bytes(block[:written])
    with Ring(channel) as ring:
        os.setxattr(file, "user.relayfs.unfinished", f"{ring._handle.identity(0)} -1 0 {len(block)}".encode())
    command = [RELAYCTL, "record", channel, "-o", tmp_path, "--duration", "0", "--json"]
    told = json.loads(run(command, capture_output=True, timeout=DEADLINE_S, check=True).stdout)
    is_whole = written == len(block)
    assert told.get("unwritten_bytes", 0) == (0 if is_whole else len(block))
    assert file.read_bytes() == (block if is_whole else b"")


def test_what_another_reader_keeps_is_said_and_the_other_rings_are_written(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/ring", "type=ring buffers=percpu framing=line")
    first, last = Path(f"{channel}0"), Path(f"{channel}{native.n_possible_cpus() - 1}")
    assert first != last
    first.write_bytes(b"kept")
    with Ring(channel) as ring:
        kept = ring.records(0)
        assert next(kept) == b"kept"
        last.write_bytes(b"other")
        done = relayctl("record", channel, "-o", tmp_path, "--duration", 0)
        assert done.returncode == 1
        assert done.stderr.endswith("another reader keeps ring 0; what was not written is still in the channel\n")
        kept.close()
    assert (first.read_bytes(), (tmp_path / last.name).read_bytes()) == (b"kept\n", b"other\n")


def test_an_error_of_any_kind_ends_it(mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = mount.create("app/ring", "type=ring buffers=single")
    with RingsApp(str(channel), f"{tmp_path}/ring") as app:
        monkeypatch.setattr(app._rings, "next_framed", lambda *_: b"x" * (1 << 62))
        app.start()
        assert select.select([app], [], [], DEADLINE_S)[0] == [app]
        with pytest.raises((MemoryError, OverflowError)):
            app.stop()
