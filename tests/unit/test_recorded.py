"""Recordings are found, and their metadata read, whatever lies there."""

import os
import random
import re
import tempfile
from pathlib import Path

import pytest
import zstandard

from relayfs_fuse.errors import RelayError
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.tracefiles import ctf, recorded, thread_names
from relayfs_fuse.tracefiles.hosts import Hosts
from relayfs_fuse.tracefiles.merged import merge, thread_names_of, unread
from relayfs_fuse.tracefiles.recorded import Clock, NoTraceError, Recording, read_metadata
from relayfs_fuse.tracefiles.streams import MARK, RECEIVED

SEEDS = range(300)
BOOT = "11111111-2222-3333-4444-555555555555"
EVENT = """event {
	name = "net.tcp:sent";
	id = 7;
	stream_id = 0;
	fields := struct {
		uint32_t _x;
		string { encoding = UTF8; } _text;
		uint32_t __body_length;
		xint8_t _body[__body_length];
	};
};
"""


def metadata(clock: str = "tsc", buffers: str = "perprocess", pid: int = 42, after_ns: int = 10**9) -> bytes:
    """As it is written so long after the trace was made, of a counter that seems to be a bit off 3 GHz by then."""
    line = (
        f"/* relayfs trace=t id=3 process=app pid={pid} uid=0 buffers={buffers} clock={clock} tsc=3000 mono=1000"
        f" real=1700000000000000000 boot={BOOT} made_mono=5000 */\n"
    )
    return ctf.metadata((line + EVENT).encode(), native_trace.Clocks(3000 + 3 * after_ns + 500, 1000 + after_ns, 0))


def make(directory: Path, text: bytes, *streams: str, written: float = 0) -> None:
    directory.mkdir(parents=True)
    (directory / "metadata").write_bytes(text)
    os.utime(directory / "metadata", (written, written))
    for name in streams:
        (directory / name).touch()


@pytest.fixture
def recording():
    opened = []

    def open_recording(path: Path) -> Recording:
        opened.append(Recording(str(path)))
        return opened[-1]

    yield open_recording
    for one in opened:
        one.close()


def test_metadata_tells_process_clock_and_events():
    part = read_metadata("here", metadata("mono"))
    assert (part.origin.process, part.origin.pid, part.context) == ("app", 42, ("vtid",))
    assert part.clock == Clock(10**9, 1_699_999_999, 999_999_000)
    (event,) = part.declarations
    assert (event.id, event.name) == (7, "net.tcp:sent")
    assert event.fields == (("x", "u32"), ("text", "string"), ("body", "bytes"))
    assert read_metadata("here", metadata(buffers="shared")).context == ("vpid", "vtid")


def test_recordings_of_events_without_a_context_are_read():
    changed, n = re.subn(rb"\tevent\.context := struct \{\n\t\tint32_t _vtid;\n\t\};\n", b"", metadata())
    assert n == 1
    assert read_metadata("here", changed).context == ()


@pytest.mark.parametrize(
    ("pattern", "instead", "reason"),
    [
        (rb"relayfs trace", b"other trace", "no metadata of relayfs"),
        (rb"\tfreq = \d+", b"\tfreq = 0", "no clock"),
        (rb"\toffset_s = \d+", b"\toffset_s = -1", "no clock"),
    ],
)
def test_metadata_that_cannot_be_is_refused(pattern, instead, reason):
    changed, n = re.subn(pattern, instead, metadata("mono"))
    assert n == 1
    with pytest.raises(ValueError, match=reason):
        read_metadata("here", changed)


def test_spoilt_metadata_is_refused_or_read(tmp_path, recording):
    whole = metadata(buffers="shared")
    n_read = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        text = bytearray(whole)
        for _ in range(chance.choice([1, 2, 20])):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
        try:
            part = read_metadata("here", bytes(text))
        except ValueError:
            continue
        merge([part]).close()
        n_read += 1
    assert 0 < n_read < len(SEEDS)


def test_parts_are_found_in_their_order(tmp_path, recording):
    for number in ("0001", "0002", "9999", "10000"):
        make(tmp_path / number / "app-9", metadata(), "cpu0")
        make(tmp_path / number / "app-10", metadata(), "cpu0")
    make(tmp_path / ".damaged/app-9", metadata(), "cpu0")
    make(tmp_path / "empty", b"")
    (tmp_path / ".relayfs").touch()
    found = [os.path.relpath(part.path, tmp_path) for part in recording(tmp_path).parts]
    assert found == [f"{number}/app-{pid}" for number in ("0001", "0002", "9999", "10000") for pid in (9, 10)]


def test_names_of_threads_are_read_as_far_as_they_are_well_formed(tmp_path, recording):
    make(tmp_path / "p", metadata(), "cpu0")
    threads = tmp_path / "p/.threads"
    names = {(42, 43): b"two\nlines", (42, 4): b"\xff", (1, 999_999_999): b"n" * thread_names.NAME_BYTES}
    good = thread_names.pack(names)
    for data in [good, good + b"42 44 no end", b"\0" + good + b"1000000000 1 a\0x 1 a\0 2 3 \0"]:
        threads.write_bytes(data)
        assert recording(tmp_path).parts[0].threads == names
    for seed in SEEDS:
        threads.write_bytes(random.Random(seed).randbytes(500) + good)
        merge(recording(tmp_path).parts).close()
    threads.write_bytes(b"".join(b"1 %d a\0" % tid for tid in range(2 * thread_names.THREADS_MAX)))
    assert len(recording(tmp_path).parts[0].threads) == thread_names.THREADS_MAX
    threads.unlink()
    os.mkfifo(threads)
    with pytest.raises(RelayError, match="no regular file"):
        recording(tmp_path)


def test_of_too_many_names_of_threads_those_that_were_added_last_are_kept():
    names = {(1, tid): b"old" for tid in range(thread_names.THREADS_MAX)}
    thread_names.add(names, {(1, 0): b"new", (2, 0): b"new"})
    assert len(names) == thread_names.THREADS_MAX
    assert (names[1, 0], names[2, 0], names[1, 2]) == (b"new", b"new", b"old")
    assert (1, 1) not in names


def test_each_part_gets_a_bounded_number_of_names(tmp_path, recording):
    # Of a program that makes a thread for each request, all directories together have any number of names.
    n = thread_names.THREADS_MAX
    for part in range(3):
        make(tmp_path / f"{part}/p", metadata(), "cpu0")
        names = {(1, tid): b"%d" % part for tid in (*range(part * n // 2, part * n // 2 + n // 2), 10 * n + part % 2)}
        (tmp_path / f"{part}/p/.threads").write_bytes(thread_names.pack(names))
    make(tmp_path / "3/p", metadata("mono"), "cpu0")
    first, second, third, other = thread_names_of(recording(tmp_path).parts)
    # The number 10 * n stands for another thread in the third part.
    own = {(1, tid): b"0" for tid in (*range(n // 2), 10 * n)}
    assert first == {**own, **{(1, tid): b"1" for tid in range(n // 2, n - 1)}}
    assert (len(second), len(third), other) == (n, n // 2 + 1, {})


def test_a_stream_s_files_are_in_their_order(tmp_path, recording):
    make(
        tmp_path / "p", metadata(), "cpu0", "cpu0_2", "cpu0_10", "cpu0_1", "cpu11", ".cpu3", "cpux", ".lost_before_cpu0"
    )
    (part,) = recording(tmp_path / "p").parts
    names = {cpu: [os.path.basename(path) for path in paths] for cpu, paths in part.streams.items()}
    assert names == {0: ["cpu0", "cpu0_1", "cpu0_2", "cpu0_10"], 11: ["cpu11"]}


def test_a_stream_that_cannot_be_read_is_named(tmp_path):
    for name in ("a", "b"):
        make(tmp_path / name, metadata(), "cpu0", "cpu1")
    whole = Hosts([str(tmp_path)])
    for spoilt, expected in ((False, None), (True, "b/cpu1 cannot be read: No such file or directory")):
        if spoilt:
            (tmp_path / "b/cpu1").unlink()
        merged = merge(whole.parts)
        assert list(Export(merged, Style("text")).pieces()) == []
        assert unread(merged, whole) == expected
        merged.close()


def test_all_parts_of_a_trace_have_the_clock_that_is_known_best(tmp_path, recording):
    make(tmp_path / "early", metadata(after_ns=1000), written=10)
    make(tmp_path / "late", metadata(after_ns=10**12), written=30)
    make(tmp_path / "middle", metadata(after_ns=10**6), written=20)
    make(tmp_path / "mono", metadata("mono"), written=40)
    own = {
        name: read_metadata(name, (tmp_path / name / "metadata").read_bytes()).clock for name in os.listdir(tmp_path)
    }
    assert len(set(own.values())) == 4
    clocks = {os.path.basename(part.path): part.clock for part in recording(tmp_path).parts}
    assert clocks == {**dict.fromkeys(("early", "late", "middle"), own["late"]), "mono": own["mono"]}


def test_of_a_file_that_is_being_compressed_the_whole_one_is_read(tmp_path, recording):
    make(tmp_path / "p", metadata(), "cpu0", "cpu0.zst", "cpu1.zst")
    (tmp_path / "p/cpu1.zst").write_bytes(zstandard.compress(b"packets"))
    (part,) = recording(tmp_path).parts
    assert part.streams[0] == [str(tmp_path / "p/cpu0")]
    (copy,) = part.streams[1]
    assert Path(copy).read_bytes() == b"packets"


def test_what_becomes_too_long_is_not_unpacked(tmp_path, recording, monkeypatch):
    """Also of several frames; and no copy stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(recorded, "UNPACKED_MAX", 100_000)
    make(tmp_path / "p/a", metadata(), "cpu0.zst", "cpu1.zst")
    for name, length in (("cpu0.zst", 50_000), ("cpu1.zst", 50_001)):
        (tmp_path / "p/a" / name).write_bytes(zstandard.compress(bytes(50_000)) + zstandard.compress(bytes(length)))
    with pytest.raises(RelayError, match=r"cpu1\.zst becomes longer than 100000 bytes"):
        recording(tmp_path / "p")
    (tmp_path / "p/a/cpu1.zst").unlink()
    whole = recording(tmp_path / "p")
    assert os.path.getsize(whole.parts[0].streams[0][0]) == 100_000
    whole.close()
    reader = recorded.PartReader()
    long = zstandard.compress(metadata() + bytes(32 << 20))
    (tmp_path / "p/a/metadata.zst").write_bytes(long)
    with pytest.raises(RelayError, match=r"metadata\.zst becomes longer"):
        reader.part(str(tmp_path / "p/a"), ["metadata.zst"])
    assert not list(tmp_path.glob("relayctl-*/*"))
    reader.close()


def test_the_file_system_of_temporary_files_is_not_filled(tmp_path, recording, monkeypatch):
    make(tmp_path / "p", metadata(), "cpu0.zst")
    (tmp_path / "p/cpu0.zst").write_bytes(zstandard.compress(b"packets"))
    recording(tmp_path)
    monkeypatch.setattr(recorded, "_FREE_SHARE", 1)
    with pytest.raises(
        RelayError, match=r"p/cpu0\.zst cannot be unpacked: .* is nearly full; TMPDIR names another one"
    ):
        recording(tmp_path)


def test_what_holds_no_trace_is_refused(tmp_path):
    with pytest.raises(RelayError, match="no trace of relayfs"):
        Recording(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        Recording(str(tmp_path / "nowhere"))
    (tmp_path / "cpu0").write_bytes(b"a record\n")
    with pytest.raises(RelayError, match="recording of a channel, its files, such as cpu0, are the records"):
        Recording(str(tmp_path))


def test_received_recordings_whose_marks_are_missing_are_told_from_none(tmp_path):
    """A mark may arrive last. One recording is shown without it."""
    make(tmp_path / "host/t/p", metadata(), "cpu0")
    (tmp_path / RECEIVED).mkdir()
    with pytest.raises(NoTraceError, match=rf"no directory in it has the file {re.escape(MARK)}, .*; the DIR of one"):
        Hosts([str(tmp_path)])
    shown = Hosts([str(tmp_path / "host/t")])
    assert [part.path for part in shown.parts] == [str(tmp_path / "host/t/p")]
    shown.close()
