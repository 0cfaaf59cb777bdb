"""Stream files: valid CTF after each step of their growth, and whatever step was the last of a recorder's."""

import fcntl
import itertools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relayfs_fuse.reading.packet import HEAD_BYTES, Head, Packet, closed, first_time, split, walk
from relayfs_fuse.record import stream
from relayfs_fuse.record.stream import OpenFiles, StreamFile, beginning_after
from relayfs_fuse.tracefiles import ctf

EVENTS = b"""\
/* relayfs trace=t id=3 process=p pid=42 uid=0 buffers=perprocess clock=mono tsc=0 mono=1 real=1700000000000000000 \
boot=11111111-2222-3333-4444-555555555555 made_mono=1 */
event {
	name = "test:e";
	id = 7;
	stream_id = 0;
	fields := struct {
		uint64_t _n;
	};
};
"""
EVENT = struct.Struct("<QiQ")  # head, thread, number


class AtStart:
    ticks, mono_ns = 0, 1


def packet(number: int, lost: int = 0) -> Packet:
    """Three events, numbered 3 * number and so on, in pieces."""
    events = [EVENT.pack((1000 * n + 500) << 16 | 7, 77, n) for n in range(3 * number, 3 * number + 3)]
    size = 8 * (HEAD_BYTES + sum(map(len, events)))
    times = 1000 * (3 * number + 3), 1000 * 3 * number + 500
    return Packet(Head(0xC1FC1FC1, 0, 5, size, lost, number, *times, size, 5, 42), events)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    path.mkdir()
    (path / "metadata").write_bytes(ctf.metadata(EVENTS, AtStart()))
    return path


def read(directory: Path) -> list[int]:
    """The numbers of the events, as babeltrace2 reads them; it may warn of lost events."""
    done = subprocess.run(["babeltrace2", directory], capture_output=True, text=True, check=False)
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: Tracer discarded")]
    assert (done.returncode, warnings) == (0, []), done.stderr
    return [int(line.partition("n = ")[2].split()[0]) for line in done.stdout.splitlines()]


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are looked at often."""
    monkeypatch.setattr(stream, "ROOM_BYTES", 1 << 16)


@pytest.fixture
def after_each_write(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Have something done after each write to a file."""
    write, act = os.pwritev, [lambda: None]

    def watched(*arguments: object) -> int:
        written = write(*arguments)
        act[0]()
        return written

    monkeypatch.setattr(os, "pwritev", watched)
    yield lambda function: act.__setitem__(0, function)
    act[0] = lambda: None


def valid() -> bool:
    return True


def grow(path: Path) -> StreamFile:
    file = StreamFile.create(str(path), packet(0), OpenFiles(), goes_on=False)
    file.append([packet(0)], valid)
    file.append([packet(1), packet(2, 4)], valid)
    file.append([packet(3, 4)], valid)
    return file


def test_each_step_leaves_a_beginning_of_the_trace(directory, tmp_path, after_each_write):
    seen: list[list[int]] = [[]]

    def look() -> None:
        seen.append(read(directory) if (directory / "cpu5").exists() else [])

    after_each_write(look)
    file = grow(directory / "cpu5")
    after_each_write(lambda: None)
    file.close()
    whole = list(range(12))
    assert all(whole[: len(events)] == events for events in seen)
    assert all(len(a) <= len(b) for a, b in itertools.pairwise(seen))
    # Among them that in which of two packets only the first is shown.
    assert {0, 3, 6, 9, 12} <= {len(events) for events in seen}
    assert read(directory) == whole


def test_whichever_step_was_the_last_it_goes_on(directory, tmp_path, after_each_write):
    """Copies of the file after each step are what a killed recorder leaves."""
    copies: list[Path] = []

    def copy() -> None:
        if (directory / "cpu5").exists():
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(directory, copies[-1])

    after_each_write(copy)
    grow(directory / "cpu5").discard()
    after_each_write(lambda: None)
    assert len(copies) == 10
    for one in copies:
        last, file = StreamFile.reopen(str(one / "cpu5"), OpenFiles())
        assert last
        assert file
        left = [packet(n, 4) for n in range(4) if n > last.packet_seq_num]
        if left:
            file.append(left, valid)
        file.close()
        assert read(one) == list(range(12))
        end = (one / "cpu5").stat().st_size
        with (one / "cpu5").open("rb") as opened:
            assert end == sum(head.packet_bytes for _, head in walk(opened.fileno(), end)) < 1 << 12
        assert StreamFile.reopen(str(one / "cpu5"), OpenFiles())[1] is None


def closed_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        return b"".join(os.pread(file.fileno(), head.packet_bytes, at) for at, head in closed(file.fileno(), end))


def test_what_is_closed_never_changes(directory, tmp_path, after_each_write):
    """Neither by what a recorder writes later, nor by a recorder that goes on after a kill at any step."""
    path = directory / "cpu5"
    seen = [b""]
    left: list[tuple[bytes, Path]] = []

    def look() -> None:
        if not path.exists():
            return
        now = closed_bytes(path)
        assert now.startswith(seen[-1])
        seen.append(now)
        left.append((now, tmp_path / f"left{len(left)}"))
        shutil.copy(path, left[-1][1])

    after_each_write(look)
    file = grow(path)
    file.end_with(9)
    after_each_write(lambda: None)  # to open it while it is cut would break its lease
    file.close()
    assert closed_bytes(path) == path.read_bytes()
    assert closed_bytes(path).startswith(seen[-1])
    assert len(set(seen)) == 4
    for now, copy in left:
        last, again = StreamFile.reopen(str(copy), OpenFiles())
        assert last
        if again:
            again.append([packet(last.packet_seq_num + 1, 9)], valid)
            again.end_with(12)
            again.close()
        assert closed_bytes(copy) == copy.read_bytes()
        assert closed_bytes(copy).startswith(now)


def test_losses_of_a_file_that_could_not_be_cut_are_known_to_the_next_recorder(directory):
    file = grow(directory / "cpu5")
    file.end_with(9)
    last, again = StreamFile.reopen(str(directory / "cpu5"), OpenFiles())
    assert last
    assert again
    assert (last.packet_seq_num, last.events_discarded) == (3, 9)


def test_a_flush_is_a_packet_as_any_other_to_a_recorder_that_goes_on(directory):
    """Of a sub-buffer without events, too: it is not recorded once more, and no number is lower than the one before."""
    file = grow(directory / "cpu5")
    flushed = packet(4, 4).head.empty(timestamp_begin=file.last.timestamp_end)
    file.append([Packet(flushed, [])], valid)
    file.discard()
    last, again = StreamFile.reopen(str(directory / "cpu5"), OpenFiles())
    assert last == flushed
    assert again
    again.close()
    with (directory / "cpu5").open("rb") as opened:
        heads = [head for _, head in walk(opened.fileno(), os.fstat(opened.fileno()).st_size)]
    assert [head.packet_seq_num for head in heads] == [0, 0, 1, 2, 3, 4, 4]


def test_a_file_that_was_just_being_cut_is_cut(directory, monkeypatch):
    """Who was killed then has said where the empty packet ends, and not cut off what is behind."""
    file = grow(directory / "cpu5")
    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", lambda *_: None)
        file.close()
    assert (directory / "cpu5").stat().st_size == 1 << 16
    last, again = StreamFile.reopen(str(directory / "cpu5"), OpenFiles())
    assert last
    assert (last.packet_seq_num, again) == (3, None)
    assert (directory / "cpu5").stat().st_size < 1 << 12
    assert read(directory) == list(range(12))


def test_what_was_not_valid_is_not_shown(directory):
    file = grow(directory / "cpu5")
    assert not file.append([packet(4), packet(5)], lambda: False)
    assert read(directory) == list(range(12))
    file.append([packet(4)], valid)
    file.close()
    assert read(directory) == list(range(15))


def test_a_file_that_is_full_says_so(directory):
    file = grow(directory / "cpu5")
    n = len(file.fitting([packet(i) for i in range(4, 2000)]))
    assert 450 < n < 550
    file.append([packet(i) for i in range(4, 4 + n)], valid)
    assert file.fitting([packet(4 + n)]) == []
    file.close()
    again = StreamFile.create(str(directory / "cpu5_1"), packet(4 + n), OpenFiles(), goes_on=True)
    again.append([packet(4 + n)], valid)
    assert read(directory) == list(range(12 + 3 * n + 3))
    again.close()
    assert read(directory) == list(range(12 + 3 * n + 3))


def test_a_file_that_continues_another_begins_behind_its_end(directory):
    """Its first packet begins when the last one has ended, at the very time of the empty packet that ends the file."""
    file = grow(directory / "cpu5")
    file.close()
    ends = file.last.timestamp_end
    follows = packet(4)
    follows.head = follows.head._replace(timestamp_begin=ends)
    follows = beginning_after(file.last, follows)
    assert follows.head.timestamp_begin == ends + 1
    assert beginning_after(file.last, follows) == follows
    again = StreamFile.create(str(directory / "cpu5_1"), follows, OpenFiles(), goes_on=True)
    again.append([follows], valid)
    again.close()
    # By the clock, as readers do, and not by names or offsets.
    heads = []
    for name in ("cpu5_1", "cpu5"):
        with (directory / name).open("rb") as opened:
            heads += [head for _, head in walk(opened.fileno(), os.fstat(opened.fileno()).st_size)]
    heads.sort(key=lambda head: head.timestamp_begin)
    assert [head.packet_seq_num for head in heads if not head.is_empty] == [0, 1, 2, 3, 4]
    assert all(one.timestamp_end <= other.timestamp_begin for one, other in itertools.pairwise(heads))
    assert read(directory) == list(range(15))


def test_a_packet_begins_no_later_than_its_first_event():
    """By a clock that is as coarse, the last event before a switch and the first one behind it have one time."""
    one, last = packet(4), packet(3).head
    at = one.head.timestamp_begin
    for time in (at, at - 1):
        assert beginning_after(last._replace(timestamp_end=time), one) == one
    first = first_time(one)
    assert first == at
    empty = Packet(one.head.empty(timestamp_end=first), [])
    begun = beginning_after(last._replace(timestamp_end=first), empty).head
    assert (begun.timestamp_begin, begun.timestamp_end) == (first + 1, first + 1)


@pytest.mark.parametrize("length", [1, 5, 30])
def test_the_time_of_the_first_event_is_found(length):
    """In pieces of any length; its upper bits are those of the packet's begin, or the next ones."""
    begin = (5 << 48) + 1000

    def found(head: bytes) -> int | None:
        data = head + b"x" * (30 - len(head))
        body = [data[at : at + length] for at in range(0, len(data), length)]
        return first_time(Packet(packet(0).head._replace(timestamp_begin=begin), body))

    assert found((1000 << 16 | 7).to_bytes(8, "little")) == begin
    assert found((1234 << 16 | 7).to_bytes(8, "little")) == begin + 234
    assert found((999 << 16 | 7).to_bytes(8, "little")) == begin + (1 << 48) - 1
    assert found(struct.pack("<HHQ", 65535, 7, 9 << 48)) == 9 << 48
    assert first_time(Packet(packet(0).head, [b"1234567"])) is None


def test_a_packet_that_needs_more_gets_a_file_of_its_own(directory):
    large = packet(0)
    events = [EVENT.pack((500 + n) << 16 | 7, 77, n) for n in range(5000)]
    size = 8 * (HEAD_BYTES + EVENT.size * len(events))
    large = Packet(large.head._replace(packet_size=size, content_size=size, timestamp_end=6000), events)
    file = StreamFile.create(str(directory / "cpu5"), large, OpenFiles(), goes_on=False)
    assert len(file.fitting([large])) == 1
    file.append([large], valid)
    file.close()
    assert read(directory) == list(range(5000))


def test_who_has_it_open_reads_on_when_it_is_cut(directory):
    """The file is replaced; who opened it before finds what was there."""
    file = grow(directory / "cpu5")
    with (directory / "cpu5").open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        file.close()
        assert os.fstat(opened.fileno()).st_size == size
        assert sum(head.packet_bytes for _, head in walk(opened.fileno(), size)) == size
    assert (directory / "cpu5").stat().st_size < 1 << 12
    assert read(directory) == list(range(12))
    assert sorted(path.name for path in directory.iterdir()) == ["cpu5", "metadata"]


def test_a_file_system_without_leases_will_do(directory, monkeypatch):
    def refuse(descriptor: int, command: int, *rest: int) -> int:
        assert command == fcntl.F_SETLEASE
        raise OSError(22, "Invalid argument")

    file = grow(directory / "cpu5")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    file.close()
    assert read(directory) == list(range(12))
    assert (directory / "cpu5").stat().st_size < 1 << 12


def test_losses_up_to_the_end_are_said(directory):
    file = grow(directory / "cpu5")
    file.end_with(9)
    file.close()
    done = subprocess.run(["babeltrace2", directory], capture_output=True, text=True, check=False)
    assert [int(line.split()[3]) for line in done.stderr.splitlines()] == [4, 5]


def test_a_file_that_was_never_shown_is_removed(directory):
    StreamFile.create(str(directory / "cpu5"), packet(0), OpenFiles(), goes_on=False).close()
    assert [path.name for path in directory.iterdir()] == ["metadata"]


# --- packets in memory ---


def pieces(*packets: Packet) -> list[bytes]:
    return [piece for one in packets for piece in (one.head.pack(), *one.body)]


def test_packets_are_found_in_pieces():
    given = [packet(0), packet(1)]
    assert split(pieces(*given)) == (given, 0, True)
    assert split([]) == ([], 0, True)


def test_the_rest_of_a_packet_is_passed_over():
    assert split([*packet(0).body, *pieces(packet(1))]) == ([packet(1)], 3 * EVENT.size, True)


def test_a_packet_that_is_not_whole_is_left_out():
    assert split(pieces(packet(0), packet(1))[:-1]) == ([packet(0)], 0, False)


@pytest.mark.parametrize("rubbish", [[b"x" * 72], [b"x" * 10], [packet(0).head.pack(), b"x" * 100]])
def test_rubbish_is_no_packet(rubbish):
    with pytest.raises(ValueError, match="packet"):
        split([*pieces(packet(0)), *rubbish])
