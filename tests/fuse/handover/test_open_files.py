"""The server is killed while programs have files of the mount open: they do not notice."""

import mmap
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, User, opened, wait_until, watching
from pcapng import parse
from traffic import LINE_BYTES, append, lines, wait_asleep

from relayfs_fuse import Channel
from relayfs_fuse.fs.nodes import BUFFER_BITS, CHANNEL_BITS, INSIDE_BITS
from relayfs_fuse.fs.tree import place_of

DIED = "WARNING: the server before, process .* has died"
pytestmark = pytest.mark.one_mount


@pytest.fixture
def kill(mount: Mount) -> Callable[[], None]:
    """Give a function that kills the server; ten that live no longer than a second together would be too many."""
    mount.expect(DIED)

    def n_successors() -> int:
        return mount.log.read_text().count("this one has taken over")

    def kill() -> None:
        time.sleep(0.11)
        n_before = n_successors()
        mount.kill_server()
        wait_until(lambda: n_successors() > n_before, "there is a successor")

    return kill


def numbers(mount: Mount) -> dict[str, int]:
    """Return the inode number of everything in the mount."""
    found = {}
    for above, directories, files in os.walk(mount.path):
        for name in (*directories, *files):
            path = os.path.join(above, name)
            found[path] = os.lstat(path).st_ino
    return found


def test_files_that_keep_memory_files_open_have_inodes_of_their_own(mount: Mount) -> None:
    mount.create("app/cpu", "buffers=single subbuf_size=4K n_subbufs=4")
    memory = mount.path / ".channels/app/cpu/mem0"
    with opened(memory) as one, opened(memory) as other:
        tokens = [int.from_bytes(os.pread(mem, 8, memory.stat().st_size), "little") for mem in (one, other)]
        names = [memory.with_name(f"mem0.{token:016x}") for token in tokens]
        with opened(names[0]) as first:
            with opened(names[1]) as second:
                assert os.fstat(first).st_ino != os.fstat(second).st_ino
            assert names[0].stat().st_ino == os.fstat(first).st_ino


def test_names_and_inode_numbers_stay(mount: Mount, kill: Callable[[], None]) -> None:
    mount.create("app/cpu", "subbuf_size=4K n_subbufs=4")
    mount.create("app/ring", "type=ring size=4K")
    mount.command("trace create t")
    os.mkdir(mount.path / "plain")
    before = numbers(mount)
    assert len(before) > 100
    assert len(set(before.values())) == len(before)
    with opened(mount.path / ".channels/app/cpu/buffer0/records") as descriptor:
        kill()
        assert os.fstat(descriptor).st_ino == before[f"{mount.path}/.channels/app/cpu/buffer0/records"]
    assert numbers(mount) == before
    mount.command("trace remove t")


def test_numbers_of_statistics_do_not_depend_on_which_others_there_are(mount: Mount) -> None:
    """Otherwise a version with more of them would confuse them. If two names have one place, PLACES has to change.

    That, and no other statistic, needs another HANDOVER_VERSION.
    """
    for options in ("", "type=ring size=4K", "times=mono"):
        mount.create("app/cpu", options)
        directory = mount.path / ".channels/app/cpu"
        for above, inside in ((directory, CHANNEL_BITS), (directory / "buffer0", BUFFER_BITS)):
            first, bits = above.stat().st_ino, INSIDE_BITS[inside]
            places = {one.name: one.stat().st_ino - first for one in above.iterdir()}
            assert len(places) > 15
            assert places == {name: place_of(name, inside - bits) << bits for name in places}
        mount.command("remove app/cpu")


def test_another_channel_of_the_same_name_has_another_inode(mount: Mount) -> None:
    seen = set()
    for _ in range(3):
        path = mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")
        seen |= {path.stat().st_ino, (mount.path / ".channels/log/mem0").stat().st_ino}
        mount.command("remove log")
    assert len(seen) == 6


@pytest.mark.parametrize("options", ["", "type=ring size=64K", "times=mono"])
def test_cat_that_waits_gets_each_byte_once(mount: Mount, kill: Callable[[], None], options: str) -> None:
    path = mount.create("log", f"buffers=single read=wait {options}")
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        for n in range(5):
            wait_asleep(cat, path)
            kill()
            path.write_bytes(lines(1, n))
            assert cat.stdout.readline() == lines(1, n)
        cat.kill()


def test_a_writer_goes_on(mount: Mount, kill: Callable[[], None]) -> None:
    path = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=4")
    with opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        for n in range(6):
            os.write(descriptor, lines(1, n))
            kill()
    assert path.read_bytes() == lines(6)


def test_who_has_read_a_part_reads_the_rest_and_can_go_back(mount: Mount, kill: Callable[[], None]) -> None:
    path = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=4")
    path.write_bytes(lines(20))
    with path.open("rb", buffering=0) as file:
        got = b""
        for _ in range(10):
            got += file.read(60)
            kill()
        assert got == lines(20)[:600]
        file.seek(-100, os.SEEK_CUR)
        assert file.read(100) == got[-100:]
        kill()
        got += file.read()
        assert got == lines(20)
        assert file.read() == b""


@pytest.mark.parametrize("options", ["type=ring size=64K framing=line", "times=mono"])
def test_a_record_that_was_read_in_part_is_read_to_its_end(
    mount: Mount, kill: Callable[[], None], options: str
) -> None:
    path = mount.create("log", f"buffers=single {options}")
    for n in range(3):
        path.write_bytes(lines(3, 10 * n))
    with path.open("rb", buffering=0) as file:
        got = b""
        while piece := file.read(7):
            got += piece
            kill()
    assert b"".join(got.split()) == b"".join((lines(3) + lines(3, 10) + lines(3, 20)).split())


def test_a_text_that_was_begun_is_read_to_its_end(mount: Mount, kill: Callable[[], None]) -> None:
    mount.create("log", "buffers=single")
    with mount.control.open("rb", buffering=0) as file:
        whole = mount.control.read_bytes()
        got = file.read(10)
        mount.create("another", "buffers=single")
        kill()
        assert got + file.read() == whole


@pytest.mark.parametrize("edge", [0, select.EPOLLET])
def test_who_polls_is_woken(mount: Mount, kill: Callable[[], None], edge: int) -> None:
    path = mount.create("log", "buffers=single read=wait")
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | edge)
        assert epoll.poll(0.01) == []
        for n in range(3):
            kill()
            mount.channels()
            path.write_bytes(lines(1, n))
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert os.read(descriptor, 4096) == lines(1, n)
        woken: list[object] = []
        waits = threading.Thread(target=lambda: woken.extend(epoll.poll(DEADLINE_S)))
        waits.start()
        kill()
        path.write_bytes(lines(1))
        waits.join(DEADLINE_S)
        assert woken == [(descriptor, select.EPOLLIN)]


@pytest.mark.usefixtures("mapped_through")
def test_mappings_stay_and_files_can_be_mapped_again(mount: Mount, kill: Callable[[], None]) -> None:
    path = mount.create("log", "buffers=single subbuf_size=64K n_subbufs=4")
    mem = mount.path / ".channels/log/mem0"
    with opened(mem, os.O_RDWR) as descriptor, mmap.mmap(descriptor, 4096) as first:
        kill()
        with mmap.mmap(descriptor, 4096) as again, mem.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as another:
            path.write_bytes(lines(1))
            assert first[:] == again[:] == another[:]


def test_programs_that_map_a_channel_through_the_mount_go_on(
    mount: Mount, kill: Callable[[], None], unprivileged: User
) -> None:
    path = mount.create("log", "buffers=single perm=0666 read=wait")
    code = """
import sys
from relayfs_fuse import Channel
with Channel(sys.argv[1]) as channel:
    for line in sys.stdin:
        channel.write(line.encode())
        print("written", flush=True)
"""
    with forking.start(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        user=unprivileged.uid, group=unprivileged.gid, extra_groups=[],
    ) as writer, path.open("rb", buffering=0) as file:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None
        for n in range(3):
            writer.stdin.write(lines(1, n).decode())
            writer.stdin.flush()
            assert writer.stdout.readline() == "written\n"
            assert file.read(4096) == lines(1, n)
            kill()
        writer.stdin.close()
        assert writer.wait(DEADLINE_S) == 0


def test_who_watches_a_directory_goes_on(mount: Mount, kill: Callable[[], None], tmp_path: Path) -> None:
    os.mkdir(mount.path / "watched")
    told = tmp_path / "told"
    with watching(mount.path / "watched", told):
        for n in range(3):
            kill()
            os.mkdir(mount.path / f"watched/{n}")
            wait_until(lambda: f"CREATE,ISDIR {n}" in told.read_text(), "it is told")  # noqa: B023


def test_a_listing_that_was_begun_goes_on(mount: Mount, kill: Callable[[], None]) -> None:
    names = [f"directory-{n:04}-{'x' * 100}" for n in range(400)]
    os.mkdir(mount.path / "many")
    for name in names:
        os.mkdir(mount.path / "many" / name)
    with os.scandir(mount.path / "many") as entries:
        got = [next(entries).name]
        kill()
        got += [entry.name for entry in entries]
    assert sorted(got) == names


def test_what_was_counted_and_mapped_by_the_maker_stays(mount: Mount, kill: Callable[[], None]) -> None:
    path = mount.create("log", "buffers=single read=wait")
    with Channel(path) as channel, opened(path) as descriptor:
        channel.write(lines(1))
        kill()
        assert os.read(descriptor, 4096) == lines(1)
        channel.write(lines(1, 1))
        assert os.read(descriptor, 4096) == lines(1, 1)


PEEKED = {
    "relay": "subbuf_size=256K n_subbufs=4",
    "timed": "subbuf_size=256K n_subbufs=4 times=mono mode=overwrite",
    "raw": "type=ring size=1M",
    "line": "type=ring size=1M framing=line times=mono",
}


def peeked(mount: Mount, options: str, happens: Callable[[], None]) -> list[object]:
    """Return what a program gets that peeks at a channel, between the steps of which something happens."""
    path = mount.create("log", f"buffers=single {options}")
    for record in (lines(1), lines(1, 1), lines(5_000, 2), lines(1, 5_002)):
        append(path, record)
    found: list[object] = []

    def look(step: Callable[[], object]) -> None:
        try:
            found.append(step())
        except OSError as error:
            found.append(error.errno)
        happens()

    with opened(mount.path / ".channels/log/peek0") as peek, opened(path, os.O_RDWR) as channel:
        poll = select.poll()
        poll.register(peek, select.POLLIN)
        look(lambda: os.read(peek, 40))
        assert len(os.read(channel, 1 << 20)) > 40  # it is consumed
        look(lambda: os.read(peek, 7))
        look(lambda: os.pread(peek, 60, 100_000))
        for n in range(6):  # it is overwritten
            os.write(channel, lines(5_000, 10_000 * n))
            os.read(channel, 1 << 20)
        look(lambda: os.read(peek, 30_000))
        os.write(channel, lines(3))
        look(lambda: os.pread(peek, 30, 0))
        for _ in range(3):
            look(lambda: os.read(peek, 1 << 20))
        os.write(channel, lines(2))
        mount.command("remove log")
        look(lambda: poll.poll(0) == [(peek, select.POLLIN | select.POLLERR | select.POLLHUP)])
        look(lambda: os.read(peek, 100))
    return found


@pytest.mark.parametrize("options", PEEKED.values(), ids=PEEKED)
def test_who_peeks_goes_on(mount: Mount, kill: Callable[[], None], options: str) -> None:
    expected = peeked(mount, options, lambda: None)
    assert lines(2)[4:40] in expected[0]
    assert b"" in expected
    assert True in expected
    assert peeked(mount, options, kill) == expected


@pytest.mark.parametrize("face", ["merged", "merged.json", "merged.raw"])
def test_who_reads_what_is_merged_goes_on(mount: Mount, kill: Callable[[], None], face: str) -> None:
    path = mount.create("log", "buffers=single times=mono")
    for n in range(100):
        path.write_bytes(lines(1, n))
    merged = mount.path / ".channels/log" / face
    whole = merged.read_bytes()
    with merged.open("rb", buffering=0) as file:
        got = file.read(500)
        kill()
        while piece := file.read(1000):
            got += piece
    assert got == whole


def numbered(face: str, got: bytes) -> list[int]:
    """Return the numbers of the lines() in a merged file."""
    texts = [packet.data for packet in parse(got).packets] if face == "merged.raw" else got.splitlines()
    return [int(found[1]) for text in texts if (found := re.search(rb"line (\d+) ", text))]


@pytest.mark.parametrize("n_consumed", [5, 60])
@pytest.mark.parametrize(
    ("face", "options"), [("merged", "times=mono"), ("merged.json", "times=tsc"), ("merged.raw", "times=mono")]
)
def test_who_reads_what_is_merged_goes_on_if_that_was_consumed(
    mount: Mount, kill: Callable[[], None], face: str, options: str, n_consumed: int
) -> None:
    path = mount.create("log", f"type=ring buffers=percpu size=16K {options}")
    first, second = (path.with_name(f"log{cpu}") for cpu in range(2))
    for n in range(100):
        append((first, second)[n % 2], lines(1, n))
    with (mount.path / ".channels/log" / face).open("rb", buffering=0) as merged, opened(first) as reader:
        got = b""
        while (n_given := len(numbered(face, got))) < 10:
            got += merged.read(400)
        assert n_given < 40
        for _ in range(n_consumed // 2):
            os.read(reader, LINE_BYTES)
        kill()
        append(second, lines(1, 100))
        while piece := merged.read(1000):
            got += piece
        # Of the first file those are gone that were consumed before they were merged.
        expected = [n for n in range(100) if n < n_given or n % 2 or n >= 2 * (n_consumed // 2)] + [100]
        assert numbered(face, got) == expected


@pytest.mark.parametrize("options", ["subbuf_size=64K n_subbufs=4", "read=wait", "type=ring size=64K", "times=mono"])
def test_files_of_a_removed_channel_go_on(mount: Mount, kill: Callable[[], None], options: str) -> None:
    path = mount.create("log", f"buffers=single {options}")
    shown = mount.path / ".channels/log"
    for n in range(4):
        append(path, lines(1, n))
    with ExitStack() as stack:
        reader, writer, text, memory = (stack.enter_context(opened(file, flags)) for file, flags in (
            (path, os.O_RDONLY | os.O_NONBLOCK), (path, os.O_WRONLY), (shown / "buffer0/records", os.O_RDONLY),
            (shown / "mem0", os.O_RDWR),
        ))  # fmt: skip
        assert os.read(reader, LINE_BYTES) == lines(1)
        mount.command("remove log")

        def seen() -> list[object]:
            """Return what is seen of the files, but for what is read."""
            poll = select.poll()
            poll.register(reader)
            found: list[object] = [os.fstat(one)[:7] for one in (reader, text, memory)]
            try:
                found.append(os.write(writer, lines(1)))
            except OSError as error:
                found.append(error.errno)
            return [*found, poll.poll(0), os.pread(memory, 64, 0)]

        before = seen()
        kill()
        assert seen() == before
        assert os.read(reader, LINE_BYTES) == lines(1, 1)
        kill()
        rest = b"".join(iter(lambda: os.read(reader, 4096), b""))
        assert rest == lines(2, 2)
    wait_until(lambda: not [*mount.store.glob(".removed-*")], "its files are deleted")


def test_the_error_log_stays(mount: Mount, kill: Callable[[], None]) -> None:
    with pytest.raises(OSError, match="No such file"):
        mount.command("remove nothing")
    before = mount.error_log
    kill()
    assert mount.error_log == before != ""
    (mount.path / "error_log").write_text("")
    kill()
    assert mount.error_log == ""


def test_what_another_user_is_shown_stays(mount: Mount, kill: Callable[[], None], unprivileged: User) -> None:
    code = """
import os, sys
paths = [f"{sys.argv[1]}/{name}" for name in ("control", ".traces/join", "error_log")]
opened = {path: os.open(path, os.O_RDONLY) for path in paths}
numbers = {path: os.fstat(descriptor).st_ino for path, descriptor in opened.items()}
print("open", flush=True)
input()
for path, descriptor in opened.items():
    assert os.fstat(descriptor).st_ino == os.stat(path).st_ino == numbers[path], path
print(os.read(opened[paths[0]], 1 << 16).decode(), end="")
"""
    mount.create("log", "buffers=single")
    with forking.start(
        [sys.executable, "-c", code, mount.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        user=unprivileged.uid, group=unprivileged.gid, extra_groups=[],
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        kill()
        shown, _ = other.communicate("\n", DEADLINE_S)
    assert shown == mount.control.read_text()
