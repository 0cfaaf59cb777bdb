"""What shows a thousand buffers: the page of relayctl serve in Chromium, and relayctl top in a terminal of tmux."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, browsing
from forking import RELAYCTL
from http_site import site
from making import N_CPUS
from mounts import Mount, serving, tmpfs_directory, wait_until
from tmux import terminal
from traced import start_trace, traced

from relayfs_fuse import Channel

N_CHANNELS = 1000 // N_CPUS
# The one that is written all the time, and the one that is full.
WRITTEN, FULL = "app/c0007", "app/c0000"
TOP = (RELAYCTL, "top", "-i", "0.2", "-m")


@pytest.fixture(scope="module")
def crowd() -> Iterator[Mount]:
    """A mount with 1,000 buffers, one of which is full and has lost records."""
    with tmpfs_directory() as path, serving(path / "store") as make:
        mount = make()
        options = "subbuf_size=4K n_subbufs=2"
        lines = [f"create app/c{i:04} {options} times=mono mode=overwrite\n" for i in range(1, N_CHANNELS)]
        mount.control.write_text("".join(lines))
        with Channel(mount.create(FULL, f"{options} buffers=single")) as channel:
            for _ in range(2):
                channel.write(bytes(4096))
            with pytest.raises(OSError, match="No space"):
                channel.write(bytes(4096))
        yield mount


@contextmanager
def writing(mount: Mount) -> Iterator[None]:
    """Write a record to WRITTEN now and then."""
    is_over = threading.Event()

    def act() -> None:
        with Channel(mount.path / WRITTEN) as channel:
            while not is_over.wait(0.1):
                channel.write(b"a record")

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Page:
    """The page of relayctl serve in a browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def cells(self, channel: str) -> list[str]:
        """Return the texts of a channel's row."""
        rows = "[...document.querySelectorAll('#channels tbody tr')]"
        found = f"{rows}.find(row => row.cells[0].textContent === {channel!r})"
        return self._browser.evaluate(f"[...{found}.cells].map(cell => cell.textContent)")

    def wait(self, text: str, place: str) -> None:
        """Wait until a text stands in an element."""
        self._browser.wait_for(f"document.getElementById({place!r}).textContent.includes({text!r})")

    def wait_for_rate(self) -> None:
        """Wait until the channel that is written shows at least one record a second."""
        self._browser.wait_for(
            f"""[...document.querySelectorAll('#channels tr')].some(row =>
            row.cells[0].textContent === {WRITTEN!r} && parseFloat(row.cells[3].textContent) >= 1)"""
        )

    def n_lines(self) -> int:
        return self._browser.evaluate("document.getElementById('lines').textContent.split('\\n').length")

    def wait_for_lines(self) -> None:
        """Wait until the live tail has grown."""
        self._browser.wait_for(f"document.getElementById('lines').textContent.split('\\n').length > {self.n_lines()}")


def test_the_page_shows_rates_fill_losses_and_a_live_tail_and_outlives_its_server(crowd: Mount, tmp_path: Path) -> None:
    with browsing(tmp_path, 1200, 900) as browser, writing(crowd):
        page = Page(browser)
        with site("--mount", crowd.path) as served:
            port = served.port
            browser.call("Page.navigate", url=served.url)
            browser.wait_for(f"document.querySelectorAll('#channels tbody tr').length === {N_CHANNELS}")
            page.wait_for_rate()
            full = page.cells(FULL)
            n_lost = crowd.shown(FULL, "lost_full")
            assert (full[1], full[2], full[7].strip(), full[8]) == (
                "ok", crowd.shown(FULL, "records"), "100%", f"full {n_lost}",
            )  # fmt: skip
            assert page.cells(WRITTEN)[8] == "0"
            browser.evaluate(
                f"""loaded_once = true;
                [...document.querySelectorAll('#channels tbody tr')].find(row =>
                row.cells[0].textContent === {WRITTEN!r}).querySelector('button').click()"""
            )
            page.wait('"record":"a record"', "lines")
            page.wait_for_lines()
            served.kill()
            page.wait("no answer since", "state")
            page.wait("trying again", "tail_state")
        with site("--mount", crowd.path, "--listen", f"127.0.0.1:{port}"):
            page.wait("connected again: what was written meanwhile is not shown", "lines")
            page.wait("as of", "state")
            page.wait_for_rate()
            page.wait_for_lines()
            browser.evaluate("document.getElementById('pause').click()")
            page.wait("lines came since", "tail_state")
            n_lines = page.n_lines()
            browser.evaluate("document.getElementById('pause').click()")
            page.wait("which came in the pause, are not shown", "lines")
            assert page.n_lines() > n_lines
            assert browser.evaluate("loaded_once")
    assert browser.errors == []


def first_row(lines: list[str]) -> list[str]:
    at = next(i for i, line in enumerate(lines) if line.startswith("NAME"))
    return lines[at + 1].split()


def test_top_takes_keys_that_come_at_once_in_a_small_terminal(crowd: Mount, tmp_path: Path) -> None:
    with writing(crowd), terminal([*TOP, crowd.path], tmp_path, 80, 24) as shown:
        lines = shown.wait(f"relay {N_CHANNELS}, ring 0, trace 0, process 0", FULL)
        assert (len(lines), max(map(len, lines))) == (24, 80)
        shown.keys("r")
        wait_until(lambda: first_row(shown.lines())[0] == WRITTEN, "the channel that is written is the first")
        shown.keys("/", "c0000", "Enter", "p")
        lines = shown.wait("PAUSED  /c0000  relay", without=WRITTEN)
        (row,) = [line for line in lines if line.startswith(FULL)]
        assert row.split()[-2:] == ["█████100%", crowd.shown(FULL, "lost_full")], row
        shown.keys("Escape")
        before = shown.wait("PAUSED  relay", WRITTEN)
        n_written = int(crowd.shown(WRITTEN, "records"))
        wait_until(lambda: int(crowd.shown(WRITTEN, "records")) > n_written + 5, "further records are written")
        assert shown.lines() == before
        shown.keys("p")
        wait_until(lambda: shown.lines() != before, "it goes on")
        shown.resize(200, 50)
        assert len(shown.wait("CAUSES", "WRITERS", WRITTEN)) == 50
        shown.resize(80, 24)
        assert len(shown.wait("NAME", WRITTEN, without="CAUSES")) == 24
        shown.keys("q")
        shown.wait("ended with 0", without="NAME")


def test_top_shows_details_and_outlives_the_file_server_in_a_large_terminal(crowd: Mount, tmp_path: Path) -> None:
    start_trace(crowd, "t")
    with writing(crowd), traced(crowd) as program, terminal([*TOP, crowd.path], tmp_path, 200, 50) as shown:
        program.ask("emit 5")
        assert len(shown.wait("CAUSES", "WRITERS", f"relay {N_CHANNELS}, ring 0, trace 1, process 1")) == 50
        shown.keys("r")
        wait_until(lambda: first_row(shown.lines())[0] == WRITTEN, "the channel that is written is the first")
        shown.keys("Home", "Enter")
        shown.wait(f"{WRITTEN}: relay, ok", "] cpu", ": a record")
        crowd.kill()
        before = shown.wait(f"{WRITTEN}: relay, ok")
        wait_until(lambda: shown.lines() != before, "it goes on without the file server")
        shown.keys("Escape")
        shown.wait(f"relay {N_CHANNELS},")
        crowd.start()
        crowd.create("app/new", "buffers=single")
        shown.wait(f"relay {N_CHANNELS + 1},")
        shown.keys("/", "t/*", "Enter")
        shown.wait("/t/*  relay", without=WRITTEN)
        shown.keys("t")
        shown.wait("packets of 1 processes to")
        shown.keys("q")
        shown.wait("ended with 0", without="NAME")
    crowd.command("trace remove t")
    crowd.command("remove app/new")
    assert list(tmp_path.glob("t-*/*/metadata"))
