"""Make the pictures of the README, from a trace of examples/mandelbrot.c and png.py: ./dev pictures.

docs/pictures/perfetto.png   the page that `relayctl view DIR --browser` serves, in a browser without a window
docs/pictures/view.svg       what `relayctl view DIR` prints on a terminal
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import termios
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from browser import browsing
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PICTURES = ROOT / "docs/pictures"
# The browser's window, and the pixels for each of its points: a README is some 830 points wide.
WIDTH, HEIGHT, PIXELS = 1100, 800, 2
COLUMNS, N_LINES = 112, 24
SHOWN = ["-n", "16", "-e", "mandel:inside", "-e", "png:*", "-e", "python:span*"]


def run(*command: str | Path) -> str:
    """Run a program in the directory of examples; return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=EXAMPLES).stdout


# --- the trace ---


@contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    """Mount relayfs."""
    mount = directory / "relay"
    mount.mkdir()
    run("relayfs", mount, "-o", f"store={directory}/store")
    try:
        yield mount
    finally:
        run("umount", mount)


def record(directory: Path) -> Path:
    """Run the programs; return the recording of what they traced."""
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "relayfs"))
    library = run("pkg-config", "--variable=libdir", "relayfs").strip()
    command = ["cc", "-O2", "-o", directory / "mandelbrot", "mandelbrot.c"]
    run(*command, *flags, "-Xlinker", f"-rpath={library}")
    recording = directory / "recording"
    with mounted(directory) as mount:
        control = mount / "control"
        control.write_text("trace create pictures\ntrace start pictures\n")
        run("sh", "-c", f"export RELAYFS={mount}; {directory}/mandelbrot 4 3 | python png.py {directory}")
        run("relayctl", "snapshot", "pictures", "--mount", mount, "-o", recording)
    return recording


# --- the page ---


@contextmanager
def served(recording: Path) -> Iterator[str]:
    """Have relayctl serve the page for a recording; give its address."""
    command = ["relayctl", "view", recording, "--browser"]
    view = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": "true"})
    try:
        yield view.stdout.readline().strip()
    finally:
        view.send_signal(signal.SIGINT)
        view.communicate()


# Show the second and third picture of four, and the tracks of all threads.
ARRANGE = """
    const select = "select ts, dur from slice where name = 'mandel:picture' order by ts";
    const pictures = await app.trace.engine.query(select);
    const times = [];
    for (const row = pictures.iter({ts: 0n, dur: 0n}); row.valid(); row.next()) times.push([row.ts, row.ts + row.dur]);
    const margin = (times[2][1] - times[1][0]) / 50n;
    app.trace.timeline.setViewportTime(times[1][0] - margin, times[2][1] + 3n * margin);
    for (const group of app.trace.workspace.children) if (!group.name.startsWith("System")) group.expand();
"""
BOTTOM = "Math.max(...[...document.querySelectorAll('.pf-track')].map(track => track.getBoundingClientRect().bottom))"


def picture_of_page(recording: Path, directory: Path) -> None:
    """Make perfetto.png."""
    with browsing(directory, WIDTH, HEIGHT, PIXELS) as browser, served(recording) as url:
        browser.call("Page.navigate", url=f"{url}&hideSidebar=true")
        browser.wait_for("window.app?.trace?.workspace.children.length > 2")
        browser.evaluate(ARRANGE)
        browser.wait_for(f"{BOTTOM} > 0")
        page = browser.picture(browser.evaluate(BOTTOM))
    path = PICTURES / "perfetto.png"
    path.write_bytes(page)
    run("pngquant", "--force", "--strip", "--speed", "1", "--output", path, "64", path)
    run("optipng", "-quiet", "-o5", path)


# --- the terminal ---


def picture_of_terminal(recording: Path) -> None:
    """Make view.svg."""
    # A terminal of its own, so that there are colours.
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", N_LINES, COLUMNS, 0, 0))
    words = ["view", "recording", *SHOWN]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(["relayctl", *words], stdout=inside, cwd=recording.parent, env=environment):
        os.close(inside)
        text = b""
        with suppress(OSError):  # EIO: all was read
            while piece := os.read(terminal, 1 << 16):
                text += piece
    os.close(terminal)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold"), shlex.join(["relayctl", *words])))
    for line in map(Text.from_ansi, text.decode().splitlines()):
        # As a terminal does, and not between words.
        for start in range(0, len(line), COLUMNS):
            console.print(line[start : start + COLUMNS], no_wrap=True)
    drawn = console.export_svg(title="relayctl view")
    # Without the fonts, which a browser would fetch from elsewhere: any with letters of one width will do.
    (PICTURES / "view.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


def main() -> None:
    """Make both."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="relayfs-pictures-") as name:
        recording = record(Path(name))
        picture_of_terminal(recording)
        picture_of_page(recording, Path(name))


if __name__ == "__main__":
    main()
