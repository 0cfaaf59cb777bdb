"""relay_app writes many records at once, and loses none if it is killed meanwhile."""

import signal
from pathlib import Path

import pytest
from build import PLAIN, compile_c
from mounts import DEADLINE_S, Mount
from running_app import CHANNEL, Start

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

# A quarter of the buffer, 1 MiB, is written at once. Records of 1000 bytes fill neither sub-buffers nor blocks.
LARGE = "buffers=global subbuf_size=64K n_subbufs=64"


@pytest.fixture
def writes(tmp_path: Path) -> dict[str, str]:
    """The environment of an app that notes each write(2) to a file in the file WRITES."""
    source = Path(__file__).with_name("struck_writes.c")
    library = compile_c([source], tmp_path / "writes.so", PLAIN, "-shared", "-fPIC")
    return {"LD_PRELOAD": str(library), "WRITES": str(tmp_path / "writes")}


def records(n: int, first: int) -> list[bytes]:
    """Records of 1000 bytes."""
    return [b"%08d" % number * 125 for number in range(first, first + n)]


def sizes(writes: dict[str, str], how: str) -> list[int]:
    """Return how much each write(2) had that went that way."""
    noted = [line.split() for line in Path(writes["WRITES"]).read_text().splitlines()]
    return [int(size) for way, size in noted if way == how]


@pytest.mark.parametrize("options", ["", "mode=overwrite", "times=mono", "delivery=packet times=mono mode=overwrite"])
def test_many_records_are_written_at_once_past_the_page_cache(
    mount: Mount, open_app: Start, writes: dict[str, str], options: str
):
    """Wherever they begin in the file and in the buffer, unless there are few."""
    app = open_app(f"create={LARGE} {options}", environment=writes)
    n = 0
    with Channel(mount.path / CHANNEL) as channel:
        for n_more in (1, 1900, 1800, 3):
            app.start()
            app.stop()
            mount.command(f"enable {CHANNEL}\n")
            assert channel.write_many(records(n_more, n)) == n_more
            n += n_more
        app.start()
        app.stop()
    assert app.of(0) == b"".join(records(n, 0))
    assert app.stats()["lost_records"] == 0
    assert len(sizes(writes, "direct")) >= 4
    assert min(sizes(writes, "direct")) > 100_000
    assert sum(sizes(writes, "direct")) > len(app.of(0)) * 0.9
    assert max(sizes(writes, "cached")) < 512 << 10


def test_while_the_buffer_fills_up_it_tries_whether_the_page_cache_is_faster(
    mount: Mount, open_app: Start, writes: dict[str, str]
):
    app = open_app(f"create={LARGE}", environment=writes)
    with Channel(mount.path / CHANNEL) as channel:
        assert channel.write_many(records(3900, 0)) == 3900
        app.start()
        app.stop()
    assert app.of(0) == b"".join(records(3900, 0))
    assert max(sizes(writes, "direct")) > 512 << 10
    assert max(sizes(writes, "cached")) > 512 << 10


@pytest.mark.parametrize("when", ["before", "in", "behind"])
@pytest.mark.parametrize("options", ["", "mode=overwrite", "times=mono"])
def test_whichever_write_an_app_is_killed_at_the_next_one_goes_on(
    mount: Mount, open_app: Start, writes: dict[str, str], options: str, when: str
):
    """Nothing is lost, and nothing there twice. Whole blocks, and the parts before and behind, are a write each."""
    mount.create(CHANNEL, f"{LARGE} {options}")
    with Channel(mount.path / CHANNEL) as channel:
        n = channel.write_many(records(1, 0))
        app = open_app("append", "keep")
        app.start()
        app.stop()
        for strike in range(1, 8):
            room = 3300 - int(mount.shown(CHANNEL, "unread_bytes")) // 1000
            n += channel.write_many(records(max(0, room), n))
            dying = {"STRIKE": str(strike), "STRIKE_WHEN": when}
            app = open_app("append", "keep", environment=writes | dying)
            app.tell("start")
            assert app.process.wait(DEADLINE_S) == -signal.SIGKILL
        app = open_app("append")
        app.start()
        app.stop()
    assert app.of(0) == b"".join(records(n, 0))
    assert mount.shown(CHANNEL, "lost") == "0"
