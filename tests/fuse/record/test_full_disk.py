"""relayctl record on a disk without room: it waits, and says so."""

import os
import re
import select
import signal
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from babeltrace import Read, read
from mounts import DEADLINE_S, wait_until
from tracing import Store, finish, recorded, recording

from relayfs_fuse.reading.packet import HEAD_BYTES

WAITS = "No space left on device; the recording waits until there is room"


@pytest.fixture
def small(own_tmpfs: Path) -> Iterator[Path]:
    """A disk of 2 MiB, half of which somebody else's file takes."""
    path = own_tmpfs / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", path], check=True)
    (path / "somebody's").write_bytes(bytes(1 << 20))
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def waits(process: subprocess.Popen[str]) -> str:
    """Wait until a recorder says that it waits for room."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], DEADLINE_S)[0], "it has said nothing"
    return process.stderr.readline()


def wait_tried_again(process: subprocess.Popen[str]) -> None:
    """Wait until a recorder that waits for room has called write(2) three times more."""

    def n_writes() -> int:
        found = re.search(r"^syscw: (\d+)", Path(f"/proc/{process.pid}/io").read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    before = n_writes()
    wait_until(lambda: n_writes() >= before + 3, "it tries again and again")


@pytest.mark.parametrize("check", ["none", "all"])
def test_a_full_disk_is_waited_for(store, run, small, check):
    """What its buffers hold of a program, also of one that has ended meanwhile, is recorded when there is room."""
    out = small / "out"
    trace = store.create("t", subbuf_size=1 << 16)
    with recording("t", "--store", store.path, "-o", out, "--check", check) as process:
        app = run(trace, "app")
        app.start_patiently(50_000)
        assert waits(process).endswith(f"/out/{app.name}/cpu0: {WAITS}\n")
        first = read(out).events["app"]
        assert first == list(range(len(first)))
        other = run(trace, "other")
        lost = other.write(40_000)
        assert lost > 10_000
        other.declare("later")
        other.end()
        wait_tried_again(process)
        (small / "somebody's").unlink()
        refused = app.done()
        wait_until(lambda: store.programs(trace) == [app.name], "the removal of the dead program's buffers")
        said = finish(process)
    seen = read(out)
    assert seen.events["app"] == list(range(50_000))
    assert len(seen.events["other"]) == 40_000 - lost
    assert seen.lost == refused + lost
    assert f"{seen.lost} events lost" in said
    assert "waits" not in said


@pytest.mark.parametrize("check", ["none", "all"])
def test_a_batch_that_is_written_directly_waits_for_room_too(store, run, small, check):
    """Of what had room of it, nothing is there twice."""
    out = small / "out"
    app = run(store.create("t", subbuf_size=60 << 10, n_subbufs=64), "app")
    assert app.write(55_000) == 0
    with recording("t", "--store", store.path, "-o", out, "--check", check) as process:
        assert waits(process).endswith(f"/out/{app.name}/cpu0: {WAITS}\n")
        wait_tried_again(process)
        (small / "somebody's").unlink()
        finish(process)
    seen = read(out)
    assert (seen.events["app"], seen.lost) == (list(range(55_000)), 0)


def test_it_ends_also_while_a_disk_is_full(store, run, small, out):
    """What is not written stays in the buffers, and is said."""
    program = run(store.create("t", subbuf_size=1 << 16), "app")
    with recording("t", "--store", store.path, "-o", small / "out") as process:
        program.start_flat_out()
        where = waits(process).removesuffix(f"; {WAITS.partition('; ')[2]}\n")
        program.kill()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert said.splitlines()[1:] == [where]
    first = read(small / "out").events["app"]
    unwritten = re.search(r"events lost, (\d+) events not written$", said.splitlines()[0])
    assert unwritten
    with recording("t", "--store", store.path, "-o", out) as process:
        finish(process)
    rest = read(out).events["app"]
    assert first + rest == list(range(len(first + rest)))
    assert len(rest) == int(unwritten[1])
    assert len(first + rest) >= program.counted()


@contextmanager
def archiving(store: Store, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Record to an archive."""
    with (
        path.open("wb") as archive,
        recording("t", "--store", store.path, "-o", "-", stdout=archive) as process,
    ):
        yield process


def read_archive(path: Path, out: Path) -> Read:
    out.mkdir()
    subprocess.run(["tar", "x", "-C", out, "-f", path], check=True)
    return read(out)


def test_an_archive_on_a_full_disk_is_whole_when_there_is_room(store, run, small, out):
    program = run(store.create("t", subbuf_size=1 << 16), "app")
    with archiving(store, small / "tar") as process:
        program.start_patiently(50_000)
        assert waits(process) == f"relayctl: the archive: {WAITS}\n"
        (small / "somebody's").unlink()
        refused = program.done()
        finish(process)
    seen = read_archive(small / "tar", out)
    assert (seen.events["app"], seen.lost) == (list(range(50_000)), refused)


@pytest.fixture
def smaller(small: Path) -> Path:
    """The same, with room for less than a program writes before it is recorded."""
    with (small / "more").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (1 << 20) - (1 << 18))
    return small


def test_the_end_of_an_archive_waits_for_room_although_no_more_events_come(store, run, smaller, out):
    assert run(store.create("t", subbuf_size=1 << 16), "app").write(18_000) == 0
    with archiving(store, smaller / "tar") as process:
        assert waits(process) == f"relayctl: the archive: {WAITS}\n"
        (smaller / "more").unlink()
        finish(process)
    assert read_archive(smaller / "tar", out).events["app"] == list(range(18_000))


def test_an_archive_that_is_ended_while_a_disk_is_full_says_what_is_missing(store, run, smaller):
    assert run(store.create("t", subbuf_size=1 << 16), "app").write(18_000) == 0
    path = smaller / "tar"
    with archiving(store, path) as process:
        assert WAITS in waits(process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
    missing = re.search(r"^relayctl: the archive, of which the last (\d+) bytes are missing: No space left", said, re.M)
    assert missing
    assert (path.stat().st_size + int(missing[1])) % tarfile.BLOCKSIZE == 0


def test_events_that_nobody_can_read_are_counted_once_however_often_the_disk_is_full(store, run, small):
    out = small / "out"
    program = run(store.create("t", subbuf_size=1 << 16), "app")
    assert program.write(10_000) == 0
    with (program.directory / "cpu/mem0").open("r+b") as file:
        file.seek((1 << 16) + HEAD_BYTES)
        file.write(struct.pack("<H", 12345))
    with (small / "more").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, (1 << 20) - 20_480)
    with recording("t", "--store", store.path, "-o", out, "--check", "all") as process:
        assert WAITS in waits(process)
        wait_tried_again(process)
        (small / "more").unlink()
        recorded(out, 5000, "app")
        said = finish(process)
    seen = read(out)
    assert len(seen.events["app"]) + seen.lost == 10_000
    assert f"{seen.lost} events lost" in said
    assert (out / ".damaged" / program.name / "why").read_text().count("\n") == 1


@pytest.mark.parametrize("removes", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_losses_count_once_if_recorders_end_before_the_next_directory_has_room(store, run, small, end, removes):
    """Also if the complete directory is moved away meanwhile, as a forwarder removes it."""
    where, more, moved = small / "out", small / "more", small / "moved"
    moved.mkdir()
    rotating = ["t", "--store", store.path, "-o", where, "--rotate-size", "1M", "--max", "4M"]
    program = run(store.create("t", n_subbufs=16), "app")
    lost = program.write(10_000)
    assert lost > 1000
    with recording(*rotating) as process:
        recorded(where, 10_000 - lost, "app")
        fill(more)

        def begins_the_next() -> bool:
            nonlocal lost
            lost += program.write(100)
            return (where / "0002").exists()

        # Room may be missing first for metadata, which does not have the recorder begin a directory.
        wait_until(begins_the_next, "the next directory")
        assert waits(process).endswith(WAITS + "\n")
        process.send_signal(end)
        process.wait(DEADLINE_S)
    if removes:
        (where / "0001").rename(moved / "0001")
    with recording(*rotating) as process:
        assert waits(process).endswith(WAITS + "\n")
        process.send_signal(end)
        process.wait(DEADLINE_S)
    more.unlink()
    with recording(*rotating) as process:
        finish(process)
    parts = [read(path) for path in (*moved.iterdir(), *where.iterdir()) if path.is_dir()]
    assert sum(part.lost for part in parts) == Store.lost(program.directory) == lost
    assert sum(len(part.events.get("app", [])) for part in parts) == Store.written(program.directory)


def fill(path: Path) -> None:
    """Write to a file until its disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass
