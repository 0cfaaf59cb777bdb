"""relayctl top: on a terminal, as a table and as JSON, beside a real mount."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pexpect
import pytest
from forking import RELAYCTL, start
from mounts import DEADLINE_S, Mount, opened, wait_until
from textual.pilot import Pilot
from traced import directory_of, relayctl, start_trace, traced

from relayfs_fuse.cli.objects import Objects
from relayfs_fuse.cli.relayctl import relayctl as command
from relayfs_fuse.cli.sampler import Sampler
from relayfs_fuse.cli.screen.app import Top
from relayfs_fuse.errors import RelayError

pytestmark = pytest.mark.one_mount

SMALL = "buffers=single subbuf_size=4K n_subbufs=4"
# Tests ask for each refresh.
NEVER_S = 3600
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10[0-7])(?:;\d+)*m")


# --- without a terminal ---


def test_once_prints_a_table_of_channels_a_trace_and_its_processes(mount: Mount) -> None:
    mount.create("a", SMALL).write_bytes(b"x" * 1000)
    mount.create("b", "type=ring size=8K buffers=single")
    mount.create("c", SMALL)
    trace = start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 10")
        name = directory_of(trace, program).name
        done = relayctl(mount, "top", "--once", "--interval", "0.05")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["a", "relay"], ["b", "ring"], ["c", "relay"], ["t", "trace"], [f"t/{name}", "process"],
    ]  # fmt: skip
    assert (rows[0][5:7], rows[0][-1], rows[4][5], rows[4][-1]) == (["1", "1000"], "ok", "10", "alive")
    mount.command("trace remove t")
    chosen = relayctl(mount, "top", "--once", "--interval", "0.05", "[ab]").stdout.splitlines()
    assert [line.split()[0] for line in chosen] == ["a", "b"]


class Stream:
    """relayctl top --json, running."""

    def __init__(self, mount: Mount, path: Path) -> None:
        self._path = path
        with path.open("wb") as out:
            self.process = start(
                [RELAYCTL, "top", "--json", "-i", "0.05", "-m", str(mount.path)], stdout=out, stderr=out
            )

    def objects(self) -> list[dict]:
        """Those of the last reading that is known to be complete."""
        text = self._path.read_text()
        found = list(map(json.loads, text[: text.rfind("\n") + 1].splitlines()))
        times = sorted({one["time"] for one in found})
        return [one for one in found if one["time"] == times[-2]] if len(times) > 1 else []

    def names(self) -> set[str]:
        return {one["name"] for one in self.objects()}

    def wait_for_further(self, n: int) -> None:
        """Wait for so many readings."""
        began = time.time()
        wait_until(lambda: self.n_since(began) > n, "figures are read")

    def n_since(self, began: float) -> int:
        lines = self._path.read_text().splitlines()[:-1]
        return len({at for at in (json.loads(line)["time"] for line in lines) if at > began})


def test_figures_go_on_while_the_server_stands_still_dies_and_comes_back(make_mount: Callable, tmp_path: Path) -> None:
    """A server that stands still answers no request: there is none."""
    mount = make_mount("watchdog=0")
    mount.create("a", SMALL)
    start_trace(mount, "t")
    stream = Stream(mount, tmp_path / "out")
    with stream.process:
        wait_until(lambda: stream.names() == {"a", "t"}, "both are shown")
        os.kill(mount.server, signal.SIGSTOP)
        try:
            stream.wait_for_further(10)
        finally:
            os.kill(mount.server, signal.SIGCONT)
        mount.create("dir/b", SMALL).write_bytes(b"record")
        wait_until(lambda: "dir/b" in stream.names(), "a new channel is shown")
        mount.kill()
        stream.wait_for_further(3)
        assert stream.names() == {"a", "dir/b", "t"}
        mount.start()
        mount.command("remove a")
        wait_until(lambda: stream.names() == {"dir/b", "t"}, "a removed channel is not shown any more")
        (one, _) = stream.objects()
        assert (one["count"], one["rate"], one["unread_bytes"], one["state"]) == (1, 0, 6, "ok")
        stream.process.send_signal(signal.SIGINT)
        assert stream.process.wait(DEADLINE_S) == 0


def test_a_channel_that_is_made_again_begins_at_0(mount: Mount) -> None:
    """Also if it is of the same path, and both happens between two readings."""
    path = mount.create("one", SMALL)
    path.write_bytes(b"record")
    with Objects(str(mount.path), None) as objects:
        sampler = Sampler(objects)
        (before,) = sampler.take()
        mount.command("remove one")
        mount.create("one", SMALL)
        (now,) = sampler.take()
        mount.command("remove one")
        assert sampler.take() == []
    assert (before.count, now.count, now.rate, now.state) == (1, 0, 0, "ok")
    assert now.identity != before.identity


# --- on a terminal ---


@asynccontextmanager
async def showing(mount: Mount, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Top, Pilot]]:
    """Run it without a terminal, as textual's tests do."""
    with Objects(str(mount.path), None) as objects:
        top = Top(Sampler(objects), NEVER_S)
        async with top.run_test(size=size, notifications=True) as pilot:
            await seen(top, pilot, "NAME")
            yield top, pilot
    assert top.return_code == 0


def screen(top: Top) -> list[str]:
    return [strip.text for strip in top.screen._compositor.render_strips()]


async def seen(top: Top, pilot: Pilot, *words: str, without: str = "\0") -> list[str]:
    """Wait until the screen has all words; return its lines."""
    end = time.monotonic() + DEADLINE_S
    while True:
        await pilot.pause()
        text = "\n".join(screen(top))
        if all(word in text for word in words) and without not in text:
            return text.splitlines()
        assert time.monotonic() < end, f"{words}, without {without!r}:\n{text}"
        await asyncio.sleep(0.01)


def names(lines: list[str]) -> list[str]:
    """Of the table's rows."""
    first = next(i for i, line in enumerate(lines) if line.startswith("NAME"))
    return [line.split()[0] for line in lines[first + 1 : -2] if line.strip()]


def test_keys_sort_filter_hide_and_pause(mount: Mount) -> None:
    async def watch() -> None:
        async with showing(mount) as (top, pilot):
            assert names(await seen(top, pilot, "full", "idle", "some")) == ["full", "idle", "some"]
            assert names([*(await press(pilot, top, "u"))]) == ["full", "some", "idle"]
            assert names([*(await press(pilot, top, "u"))]) == ["idle", "some", "full"]
            await pilot.press("end")
            await seen(top, pilot, "lost full:1")
            await pilot.press("z")
            assert names(await seen(top, pilot, "NO ZEROS", without="idle")) == ["some", "full"]
            await pilot.press("p", *"/som", "enter")
            assert names(await seen(top, pilot, "PAUSED", "/som", without="full ")) == ["some"]
            (mount.path / "some").write_bytes(b"y" * 4000)
            top.refresh_figures()
            await seen(top, pilot, " 5 ")
            await pilot.press("p")
            top.refresh_figures()
            await seen(top, pilot, "4005", without="PAUSED")
            await pilot.press("escape", "z")
            await seen(top, pilot, "idle", "full")
            mount.command("remove full")
            top.refresh_figures()
            await seen(top, pilot, "idle", without="full")
            await pilot.press("q")

    for name in ("full", "idle", "some"):
        mount.create(name, SMALL)
    for _ in range(4):
        (mount.path / "full").write_bytes(b"x" * 4000)
    with pytest.raises(OSError, match="No space"):
        (mount.path / "full").write_bytes(b"x" * 4000)
    (mount.path / "some").write_bytes(b"12345")
    asyncio.run(watch())


async def press(pilot: Pilot, top: Top, key: str) -> list[str]:
    await pilot.press(key)
    await pilot.pause()
    return screen(top)


def test_enter_shows_buffers_and_records_and_t_takes_a_snapshot(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def watch() -> None:
        async with showing(mount, (200, 50)) as (top, pilot):
            await seen(top, pilot, "timed", "t/", "untimed")
            await pilot.press("end", "t")
            await seen(top, pilot, "t is for traces")
            await pilot.press("enter")
            await seen(top, pilot, "untimed0", "mem0: a line", "mem0: another \\x1b")
            await pilot.press("escape", "up", "enter")
            lines = await seen(top, pilot, "timed0", "hello \\xff")
            (mount.path / "timed0").write_bytes(b"further")
            await asyncio.sleep(0.2)  # the age of records that are shown
            top.refresh_figures()
            assert lines != await seen(top, pilot, "cpu0: further")
            mount.command("remove timed")
            top.refresh_figures()
            await seen(top, pilot, "timed: it was removed")
            await pilot.press("escape", "home", "enter")
            await seen(top, pilot, "t: trace, started", "judge:step", "process")
            await pilot.press("escape", "t")
            await seen(top, pilot, "packets of 1 processes to")
            await pilot.press("ctrl+c")

    mount.create("untimed", "type=ring size=4K framing=length")
    (mount.path / "untimed0").write_bytes(b"a line")
    (mount.path / "untimed0").write_bytes(b"another \x1b")
    mount.create("timed", "times=mono subbuf_size=4K n_subbufs=2")
    (mount.path / "timed0").write_bytes(b"hello \xff")
    start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 3")
        asyncio.run(watch())
    (snapshot,) = tmp_path.iterdir()
    assert re.fullmatch(r"t-\d{8}-\d{6}", snapshot.name)
    assert list(snapshot.glob("*/metadata"))
    mount.command("trace remove t")


def test_it_runs_on_a_terminal_without_colours_and_with_any_name(mount: Mount) -> None:
    made = b"bytes-\xff", "wide-\N{CJK UNIFIED IDEOGRAPH-4E2D}".encode(), b"long-" * 20 + b"end"
    shown_as = rb"bytes-\xff", made[1], "long-lon…-long-end".encode()
    for name in made:
        command_of_bytes(mount, b"create " + name + f" {SMALL}\n".encode())
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1", "RELAYFS": str(mount.path)}
    terminal = pexpect.spawn(
        str(RELAYCTL), ["top", "-i", "0.1"], env=environment, timeout=DEADLINE_S, dimensions=(24, 80)
    )
    shown = b""
    for name in sorted(shown_as):
        terminal.expect_exact(name)
        shown += terminal.before
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    shown += terminal.before
    terminal.close()
    assert terminal.exitstatus == 0
    assert not COLOUR.search(shown.decode(errors="replace"))
    for name in made:
        command_of_bytes(mount, b"remove " + name)


def command_of_bytes(mount: Mount, line: bytes) -> None:
    with opened(mount.control, os.O_WRONLY) as descriptor:
        os.write(descriptor, line)


def test_what_is_missing_is_told(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    done = relayctl(mount, "top")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "relayctl: standard input and output are no terminal; --once and --json need none\n"
    monkeypatch.delitem(sys.modules, "relayfs_fuse.cli.screen.app")
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(RelayError, match=r"pip install 'relayfs\[top\]'"):
        command.main(["top", "-m", str(mount.path)], standalone_mode=False)
