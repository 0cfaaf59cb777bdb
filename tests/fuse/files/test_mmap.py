"""Mapping a ring: by ordinary programs through the mount, and by the library where the mount maps nothing."""

import errno
import os
import select
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import forking
import pytest
from mapping import Mapper
from mounts import DEADLINE_S, Mount, User, wait_until
from traffic import LINE_BYTES, Stream, drain, lines, open_at_once, streaming

from relayfs_fuse import Channel, Reader

pytestmark = pytest.mark.one_mount

SUBBUF_BYTES = 4096
N_SUBBUFS = 64
DATA_BYTES = SUBBUF_BYTES * N_SUBBUFS
LINES_IN_SUBBUF = SUBBUF_BYTES // LINE_BYTES

Map = Callable[..., Mapper]


@pytest.fixture
def map_file() -> Iterator[Map]:
    mappers: list[Mapper] = []

    def start(file: Path, access: str = "rw", length: int = DATA_BYTES) -> Mapper:
        mappers.append(Mapper(file, access, length))
        return mappers[-1]

    yield start
    for mapper in mappers:
        mapper.close()


@pytest.fixture
def stream(mount: Mount) -> Iterator[Stream]:
    with streaming(mount, f"subbuf_size={SUBBUF_BYTES} n_subbufs={N_SUBBUFS} perm=0640") as stream:
        yield stream


def mem_of(stream: Stream) -> Path:
    return stream.mount.path / ".channels" / stream.channel / f"mem{stream.cpu}"


def in_memory(n: int) -> bytes:
    """Return what the ring holds after n lines: no line straddles two sub-buffers."""
    return b"".join(
        lines(min(LINES_IN_SUBBUF, n - first), first).ljust(SUBBUF_BYTES, b"\0")
        for first in range(0, n, LINES_IN_SUBBUF)
    )


@pytest.fixture(params=["memory", "relay file"])
def target(request: pytest.FixtureRequest, stream: Stream) -> Path:
    """Each file that can be mapped."""
    return mem_of(stream) if request.param == "memory" else stream.file


@pytest.mark.usefixtures("mapped_through")
def test_a_mapping_shows_what_producers_write_while_others_read_the_stream(
    stream: Stream, map_file: Map, target: Path, tmp_path: Path
) -> None:
    mapper = map_file(target)
    assert mapper.answer == "mapped"
    with (tmp_path / "out").open("wb") as out:
        reader = subprocess.Popen(["tail", "-n", "+1", "-f", "-s", "0.05", stream.file], stdout=out)
    stream.start(at_most=3000)
    wait_until(lambda: stream.shown("records") == 3000, "all is written")
    stream.finish()
    wait_until(lambda: (tmp_path / "out").read_bytes().endswith(lines(1, first=2999)), "the reader has it all")
    assert mapper.show(0, len(in_memory(3000))) == in_memory(3000)
    reader.terminate()
    reader.wait()
    assert (tmp_path / "out").read_bytes() == lines(3000)


@pytest.mark.usefixtures("mapped_through")
def test_what_is_written_through_a_mapping_is_read_from_the_ring(stream: Stream, map_file: Map, target: Path) -> None:
    stream.write(2)
    mapper = map_file(target)
    assert mapper.ask("put 0 LINE") == "done"
    assert mapper.ask(f"put {LINE_BYTES} Line") == "done"
    with Reader(stream.file, timeout=0) as reader:
        assert bytes(next(reader)) == lines(2).replace(b"line", b"LINE", 1).replace(b"line", b"Line", 1)
        assert mapper.ask("put 0 last") == "done"
    # The reader put its piece back.
    assert drain(stream.file) == lines(2).replace(b"line", b"last", 1).replace(b"line", b"Line", 1)


@pytest.mark.usefixtures("mapped_through")
def test_all_mappings_of_a_buffer_are_one_memory(stream: Stream, map_file: Map) -> None:
    mappers = [map_file(file) for file in (mem_of(stream), stream.file, stream.file, mem_of(stream))]
    for number, writer in enumerate(mappers):
        assert writer.ask(f"put 100 text{number}") == "done"
        for mapper in mappers:
            assert mapper.show(100, 5) == b"text%d" % number


@pytest.mark.usefixtures("mapped_through")
def test_memory_can_be_mapped_with_its_control_area_and_not_beyond(stream: Stream, map_file: Map) -> None:
    size = mem_of(stream).stat().st_size
    assert size == stream.shown("file_bytes")
    assert size > DATA_BYTES
    mapper = map_file(mem_of(stream), "rw", size)
    # The last page begins with the magic number of layout.h.
    assert mapper.show(size - 4096, 8) == b"RELYFS01"


@pytest.mark.usefixtures("mapped_through")
def test_a_file_opened_for_reading_is_mapped_for_reading(stream: Stream, map_file: Map, target: Path) -> None:
    stream.write(3)
    mapper = map_file(target, "ro")
    assert mapper.show(0, 3 * LINE_BYTES) == lines(3)
    # Through a mapping nothing is consumed.
    assert drain(stream.file) == lines(3)


@pytest.mark.usefixtures("mapped_through")
def test_python_maps_a_file_to_its_end(stream: Stream) -> None:
    stream.write(3)
    code = "import mmap, sys; f = open(sys.argv[1], 'rb'); print(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:])"
    done = forking.run([sys.executable, "-c", code, stream.file], capture_output=True, check=True)
    assert done.stdout == b"%r\n" % lines(3)


def test_a_mapping_outlives_the_channel(stream: Stream, map_file: Map, mapped_through: None) -> None:
    stream.write(3)
    mapper = map_file(mem_of(stream))
    stream.mount.command(f"remove {stream.channel}")
    assert mapper.show(0, 3 * LINE_BYTES) == lines(3)


@pytest.mark.usefixtures("mapped_through")
def test_nobody_truncates_the_memory_through_the_mount(stream: Stream, map_file: Map) -> None:
    stream.write(3)
    store_file = stream.mount.store / stream.channel / f"mem{stream.cpu}"
    before = store_file.stat()
    for target in (mem_of(stream), stream.file):
        mapper = map_file(target)
        refused = "0" if target == stream.file else str(errno.EPERM)  # `>` on a relay file appends
        assert mapper.ask("truncate 0") == refused
        assert mapper.ask("truncate 100") == refused
        try:
            os.close(os.open(target, os.O_RDWR | os.O_TRUNC))
        except PermissionError:
            assert target != stream.file
        punch = ["fallocate", "--punch-hole", "--offset", "0", "--length", "4096", target]
        assert b"not permitted" in subprocess.run(punch, capture_output=True, check=False).stderr
        assert mapper.show(0, 3 * LINE_BYTES) == lines(3)
    subprocess.run(["truncate", "-s", "0", stream.file], check=True)
    after = store_file.stat()
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
    assert drain(stream.file) == lines(3)


@pytest.mark.usefixtures("mapped_through")
def test_a_file_can_be_opened_in_all_ways_at_once(stream: Stream) -> None:
    open_at_once(stream.file, [os.O_RDONLY, os.O_WRONLY, os.O_RDWR], 200)


def test_bash_loses_nothing_when_it_opens_for_both_and_reads_lines(stream: Stream) -> None:
    stream.start(at_most=1500)
    wait_until(lambda: stream.shown("records") >= 100, "the producer is at work")
    script = 'exec 3<>"$F"; while read -r -u 3 line; do echo "$line"; done; read -r -u 3 more; echo "$more"'
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "F": str(stream.file)}, capture_output=True, check=True
    )
    got = done.stdout.removesuffix(b"\n") if done.stdout.endswith(b"\n\n") else done.stdout
    assert got + stream.rest() == lines(stream.written)


def test_memory_and_relay_files_poll_alike(stream: Stream, target: Path) -> None:
    descriptor = os.open(target, os.O_RDWR)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(0) == []
    stream.write(1)
    assert poll.poll(DEADLINE_S * 1000) == [(descriptor, select.POLLIN)]
    os.close(descriptor)


# --- where the mount maps nothing ---


def test_without_mapping_through_the_mount_files_say_so_and_all_else_works(unmapped: Mount, map_file: Map) -> None:
    stream = Stream(unmapped, "app/cpu")
    unmapped.create(stream.channel)
    stream.write(100)
    assert map_file(mem_of(stream)).answer == f"mmap: {errno.ENODEV}"
    assert map_file(stream.file).answer == f"mmap: {errno.ENODEV}"
    backing = os.getxattr(mem_of(stream), "user.relayfs.backing")
    assert backing == os.fsencode(unmapped.store / stream.channel / f"mem{stream.cpu}")
    assert map_file(Path(os.fsdecode(backing))).show(0, LINE_BYTES) == lines(1)
    assert subprocess.run(["cat", stream.file], capture_output=True, check=True).stdout == lines(100)
    # Where readers wait, files are streams, however they are opened.
    descriptor = os.open(unmapped.create("wait", "buffers=single read=wait"), os.O_RDWR)
    os.write(descriptor, lines(1))
    assert os.read(descriptor, 100) == lines(1)
    with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
        os.lseek(descriptor, 0, os.SEEK_SET)
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["c", "python"])
def test_without_mapping_through_the_mount_the_library_maps_the_store(unmapped: Mount, kind: str) -> None:
    stream = Stream(unmapped, "app/cpu", kind)
    unmapped.create(stream.channel)
    stream.start(burst=100, at_most=3000)
    wait_until(lambda: stream.shown("records") == 3000, "all is written")
    maps = Path(f"/proc/{stream.process.pid}/maps").read_text() if stream.process else ""
    assert str(unmapped.store / stream.channel / f"mem{stream.cpu}") in maps
    with Reader(stream.file, timeout=0) as reader:
        got = b"".join(bytes(piece) for piece in reader)
    assert got + stream.rest() == lines(3000)


def test_without_mapping_through_the_mount_other_users_write_where_modes_let_them(
    unmapped: Mount, unprivileged: User
) -> None:
    write = "import sys; from relayfs_fuse import Channel; Channel(sys.argv[1]).write(b'theirs\\n')"
    public = unmapped.create("app/public", "buffers=single perm=0666")
    secret = unmapped.create("app/secret", "buffers=single perm=0640")
    assert unprivileged.python(write, public).returncode == 0
    assert drain(public) == b"theirs\n"
    refused = unprivileged.python(write, secret)
    assert "PermissionError" in refused.stderr
    assert drain(secret) == b""
    assert stat.S_IMODE((unmapped.store / "app/secret/mem0").stat().st_mode) == 0o640


@pytest.mark.usefixtures("open_fuse_device")
def test_an_unprivileged_mounts_channels_are_mapped_from_the_store(
    make_mount: Callable[..., Mount], unprivileged: User
) -> None:
    mount: Mount = make_mount(user=unprivileged.uid)
    code = """
import os, sys
from relayfs_fuse import Channel, Reader
path, store = sys.argv[1:]
with Channel.create(path, buffers="single") as channel:
    channel.write(b"mine\\n")
    assert store + "/log/mem0" in open("/proc/self/maps").read()
with Reader(path, timeout=0) as reader:
    print(bytes(next(reader)))
try:
    import mmap
    mmap.mmap(os.open(os.path.dirname(path) + "/.channels/log/mem0", os.O_RDWR), 4096)
except OSError as error:
    print(error.errno)
"""
    done = unprivileged.python(code, mount.path / "log", mount.store)
    assert (done.stdout, done.stderr) == (f"b'mine\\n'\n{errno.ENODEV}\n", "")


def test_channels_written_through_the_store_and_the_mount_are_the_same(unmapped: Mount) -> None:
    path = unmapped.create("log", "buffers=single")
    with Channel(path) as channel:
        channel.write(b"through memory\n")
        path.write_bytes(b"through write(2)\n")
        channel.write(b"through memory again\n")
    assert drain(path) == b"through memory\nthrough write(2)\nthrough memory again\n"
