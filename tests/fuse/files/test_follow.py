"""Tools that follow a relay file: lines appear soon after they are written, all of them, in order, none twice."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, wait_until
from traffic import LINE_BYTES, PRELOADED, Stream, drain, lines

pytestmark = pytest.mark.one_mount

# Level-triggered, as selectors use epoll.
PYTHON_SELECTORS = """
import os, selectors, sys
file = open(sys.argv[1], "rb", buffering=0)
selector = selectors.EpollSelector()
selector.register(file, selectors.EVENT_READ)
while selector.select():
    sys.stdout.buffer.write(file.read(1 << 20))
    sys.stdout.flush()
"""


class Follower:
    """A tool that runs until it is ended; what it prints goes to a file."""

    def __init__(self, command: list[str], stream: Stream, out: Path) -> None:
        self.out = out
        with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=stream.mount.path, env={**os.environ, "F": stream.name, "LC_ALL": "C"},
                stdout=stdout, stderr=stderr, start_new_session=True,
            )  # fmt: skip

    @property
    def shown(self) -> bytes:
        return self.out.read_bytes()

    @property
    def complaints(self) -> bytes:
        return self.out.with_suffix(".err").read_bytes()

    def wait_for(self, ending: bytes) -> None:
        # Within 2 s, it is promised: benchmarks/bench_latency.py measures it.
        wait_until(lambda: self.shown.endswith(ending), f"{self.process.args!r} shows {ending!r}")

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 15)
        self.process.wait(DEADLINE_S)


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[[str, Stream], Follower]]:
    """Start followers: follow('tail -f "$F"', stream)."""
    followers: list[Follower] = []

    def start(script: str, stream: Stream) -> Follower:
        followers.append(Follower(["bash", "-c", script], stream, tmp_path / f"out{len(followers)}"))
        return followers[-1]

    yield start
    for follower in followers:
        follower.end()


FROM_THE_BEGINNING = [
    'tail -n +1 -f "$F"',
    'tail -n +1 -F "$F"',
    'tail -n +1 -f < "$F"',
    'tail -n +1 -f ---disable-inotify -s 0.1 "$F"',
    'tail -n 100000 -f "$F"',
    'tail -c +1 -f "$F"',
    'tail -c +1 -f ---disable-inotify -s 0.1 "$F"',
    'tail -n +1 -F ---disable-inotify -s 0.1 "$F"',
    'cat "$F"; tail -c +1 -f "$F"',
    '(head -n 5; tail -f -c +1) < "$F"',
    'busybox tail -n +1 -f "$F"',
    'busybox tail -n +1 -F "$F"',
    'while sleep 0.1; do cat "$F"; done',
    'while sleep 0.1; do while read -r line; do echo "$line"; done; done < "$F"',
    'while sleep 0.1; do while read -r line; do echo "$line"; done < "$F"; done',
    'dash -c \'while sleep 0.1; do while read -r line; do echo "$line"; done; done\' < "$F"',
    'zsh -c \'while sleep 0.1; do while read -r line; do echo "$line"; done; done\' < "$F"',
]
FROM_THE_LAST_LINES = [
    'tail -f "$F"',
    'tail -F "$F"',
    'tail -n 3 -f "$F"',
    'busybox tail -f "$F"',
    'busybox tail -F "$F"',
]


@pytest.mark.parametrize("script", FROM_THE_BEGINNING)
def test_a_follower_from_the_beginning_shows_every_line_soon(
    stream: Stream, follow: Callable[[str, Stream], Follower], script: str
) -> None:
    follower = follow(script, stream)
    # dash and zsh read byte by byte.
    more = PRELOADED // 8 if "sh -c" in script else 2 * PRELOADED
    stream.start(at_most=more)
    wait_until(lambda: len(follower.shown) >= (PRELOADED + more // 4) * LINE_BYTES, "it follows")
    last = stream.finish() - 1
    follower.wait_for(lines(1, first=last))
    # Once more, after a time without anything.
    stream.write(3)
    follower.wait_for(lines(3, first=last + 1))
    assert follower.shown == lines(stream.written)
    assert follower.complaints == b""
    assert follower.process.poll() is None


@pytest.mark.parametrize("script", FROM_THE_LAST_LINES)
def test_a_follower_from_the_last_lines_shows_what_comes_soon(
    stream: Stream, follow: Callable[[str, Stream], Follower], script: str
) -> None:
    follower = follow(script, stream)
    first = PRELOADED - (3 if "-n 3" in script else 10)
    follower.wait_for(lines(PRELOADED - first, first))
    stream.start(at_most=1000)
    wait_until(lambda: len(follower.shown) >= PRELOADED * LINE_BYTES, "it follows")
    last = stream.finish() - 1
    follower.wait_for(lines(1, first=last))
    assert follower.shown == lines(stream.written - first, first)
    assert follower.complaints == b""
    assert follower.process.poll() is None


def test_python_selectors_see_every_line_once_and_in_order(mount: Mount, tmp_path: Path) -> None:
    stream = Stream(mount, "packets")
    mount.create(stream.channel, "delivery=packet")
    stream.start(at_most=1000)
    follower = Follower([sys.executable, "-c", PYTHON_SELECTORS, str(stream.file)], stream, tmp_path / "out")
    try:
        wait_until(lambda: stream.shown("records") == 1000, "the producer has written all")
        follower.wait_for(lines(1, first=stream.finish() - 1))
        assert follower.shown == lines(1000)
    finally:
        follower.end()
        stream.kill()


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
def test_a_follower_is_not_confused_by_what_others_read_before(
    stream: Stream, follow: Callable[[str, Stream], Follower], tool: str
) -> None:
    drain(stream.file)
    follower = follow(f'{tool} -n +1 -f "$F"', stream)
    for _ in range(3):
        first = stream.written
        stream.write(5)
        follower.wait_for(lines(5, first))
    assert follower.shown == lines(15, first=PRELOADED)
    assert follower.complaints == b""


def test_tail_follows_an_overwritten_channel(mount: Mount, follow: Callable[[str, Stream], Follower]) -> None:
    stream = Stream(mount, "flight")
    mount.create(stream.channel, "mode=overwrite subbuf_size=4K n_subbufs=4")
    stream.write(5000)
    follower = follow('tail -n +1 -f "$F"', stream)
    wait_until(lambda: follower.shown.endswith(lines(1, first=4999)), "the latest lines are shown")
    stream.write(5)
    follower.wait_for(lines(5, first=5000))
    assert lines(5005).endswith(follower.shown)
    assert len(follower.shown) == (5005 - stream.shown("lost_overwritten")) * LINE_BYTES
    assert follower.complaints == b""


# GNU tail looks more often than each second, as it opens a name anew only when it has looked five times in vain.
@pytest.mark.parametrize("tool", ["tail -s 0.1", "busybox tail"])
@pytest.mark.parametrize("option", ["-n +1", "-c +1"])
def test_tail_by_name_goes_on_with_a_channel_made_anew(
    stream: Stream, mount: Mount, follow: Callable[[str, Stream], Follower], tool: str, option: str
) -> None:
    follower = follow(f'{tool} {option} -F "$F"', stream)
    follower.wait_for(lines(1, first=PRELOADED - 1))
    for _ in range(2):
        complaints = len(follower.complaints)
        mount.command(f"remove {stream.channel}")
        wait_until(lambda n=complaints: len(follower.complaints) > n, "tail notices that the file is gone")  # type: ignore[misc]
        mount.create(stream.channel)
        first = stream.written
        stream.write(5)
        follower.wait_for(lines(5, first))
    assert follower.shown == lines(stream.written)
    assert stream.rest() == b""


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
def test_a_follower_shows_what_was_unread_when_the_channel_was_removed(
    stream: Stream, mount: Mount, follow: Callable[[str, Stream], Follower], tool: str
) -> None:
    follower = follow(f'{tool} -n +1 -f "$F"', stream)
    follower.wait_for(lines(1, first=PRELOADED - 1))
    stream.write(5)
    mount.command(f"remove {stream.channel}")
    follower.wait_for(lines(5, first=PRELOADED))
    assert follower.shown == lines(PRELOADED + 5)


@pytest.mark.parametrize(
    "tool", ["tail -f", "tail -F", "tail -n +1 -f", "tail -f ---disable-inotify", "busybox tail -f"]
)
def test_what_tail_took_of_a_stream_is_shown_when_the_channel_is_removed(
    mount: Mount, follow: Callable[[str, Stream], Follower], tool: str
) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "read=wait")
    follower = follow(f'{tool} "$F"', stream)
    stream.write(5)
    wait_until(lambda: stream.shown("unread_bytes") == 0, "tail has taken the lines")
    mount.command(f"remove {stream.channel}")
    follower.wait_for(lines(5))
    assert follower.shown == lines(5)


@pytest.mark.parametrize("script", ['cat "$F"', 'cat "$F" | while read -r line; do echo "$line"; done'])
def test_cat_shows_each_line_of_a_stream_soon_and_takes_few_reads(
    mount: Mount, follow: Callable[[str, Stream], Follower], script: str
) -> None:
    stream = Stream(mount, "app/cpu")
    mount.create(stream.channel, "read=wait")
    stream.write(PRELOADED)
    follower = follow(script, stream)
    follower.wait_for(lines(1, first=PRELOADED - 1))
    stream.write(3)
    follower.wait_for(lines(1, first=PRELOADED + 2))
    assert follower.shown == lines(PRELOADED + 3)
    # One for what was there, at most one for each later line. A shell that reads the stream itself takes one a byte.
    assert stream.shown("reads") <= 4
    mount.command(f"remove {stream.channel}")
    assert follower.process.wait(DEADLINE_S) == 0
    assert follower.complaints == b""


@pytest.mark.parametrize("tool", ["tail", "busybox tail"])
def test_followers_of_one_file_share_its_lines(
    stream: Stream, follow: Callable[[str, Stream], Follower], tool: str
) -> None:
    followers = [follow(f'{tool} -n +1 -f "$F"', stream) for _ in range(3)]
    stream.start(at_most=1000)
    wait_until(lambda: stream.shown("records") == PRELOADED + 1000, "the producer has written all")
    everything = lines(stream.finish())
    wait_until(lambda: sum(len(one.shown) for one in followers) >= len(everything), "all is shown")
    # Pieces are of bytes: a line may be divided among two.
    assert sorted(b"".join(one.shown for one in followers)) == sorted(everything)
    assert [(one.complaints, one.process.poll()) for one in followers] == [(b"", None)] * 3


def test_tools_that_come_and_go_do_not_confuse_a_follower(
    stream: Stream, follow: Callable[[str, Stream], Follower]
) -> None:
    follower = follow('tail -c +1 -f "$F"', stream)
    follower.wait_for(lines(1, first=PRELOADED - 1))
    stream.start(burst=5, at_most=1000)
    taken = b""
    for script in ('cat "$F"', 'head -c 93 "$F"', 'wc -c "$F" > /dev/null', 'read -r line < "$F"; echo "$line"') * 10:
        done = subprocess.run(
            ["bash", "-c", script], cwd=stream.mount.path, env={**os.environ, "F": stream.name}, capture_output=True,
            check=False,
        )  # fmt: skip
        taken += done.stdout
    wait_until(lambda: stream.shown("records") == PRELOADED + 1000, "the producer has written all")
    stream.finish()
    stream.write(1)
    follower.wait_for(lines(1, first=stream.written - 1))
    # Pieces may end within a line; but nothing is shown twice.
    shown = [line for line in (follower.shown + taken).splitlines(keepends=True) if len(line) == LINE_BYTES]
    assert len(set(shown)) == len(shown)
    assert follower.complaints == b""


def test_a_follower_leaves_nothing_for_others(stream: Stream, follow: Callable[[str, Stream], Follower]) -> None:
    follower = follow('tail -n +1 -f "$F"', stream)
    follower.wait_for(lines(1, first=PRELOADED - 1))
    assert drain(stream.file) == b""
    stream.write(1)
    follower.wait_for(lines(1, first=PRELOADED))
    assert drain(stream.file) == b""
