"""The last headers of streams, which a recorder that goes on finds."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from relayfs_fuse.reading.packet import HEAD_BYTES, Head
from relayfs_fuse.record.ends import FILE, Ends

EMPTY = Head.of(bytes(HEAD_BYTES))


def head(cpu: int, lost: int) -> Head:
    return EMPTY._replace(stream_instance_id=cpu, events_discarded=lost)


@contextmanager
def ends(path: Path) -> Iterator[Ends]:
    with closing(Ends(str(path))) as one:
        yield one


def test_the_next_recorder_finds_the_headers(tmp_path: Path) -> None:
    with ends(tmp_path) as first:
        assert first.of("a") == {}
        first.write({"a": [head(0, 1), head(3, 2)], "b\udcff": [head(0, 5)], "none": []})
    with ends(tmp_path) as second:
        assert second.of("a") == {0: head(0, 1), 3: head(3, 2)}
        assert second.of("b\udcff") == {0: head(0, 5)}
        assert second.of("none") == {}


def test_processes_that_are_not_recorded_now_stay_until_they_have_ended(tmp_path: Path) -> None:
    with ends(tmp_path) as first:
        first.write({"waits": [head(0, 1)], "ended": [head(0, 2)], "goes on": [head(0, 3)]})
    with ends(tmp_path) as second:
        second.forget("ended")
        second.write({"goes on": [head(0, 4)]})
    with ends(tmp_path) as third:
        assert [third.of(name) for name in ("waits", "ended", "goes on")] == [{0: head(0, 1)}, {}, {0: head(0, 4)}]


def test_the_room_that_is_kept_suffices(tmp_path: Path) -> None:
    heads = {str(process): [head(cpu, 1) for cpu in range(7)] for process in range(50)}
    with ends(tmp_path) as first:
        first.grow(first.missing(7 * 50))
        size = os.stat(tmp_path / FILE)
        assert first.missing(7 * 50) == 0
        first.write(heads)
        written = os.stat(tmp_path / FILE)
        assert (written.st_size, written.st_blocks) == (size.st_size, size.st_blocks)
        assert size.st_blocks * 512 >= size.st_size
    with ends(tmp_path) as second:
        assert second.of("49") == {cpu: head(cpu, 1) for cpu in range(7)}
        assert second.missing(0) == 0
        assert second.missing(1000) > 0
