"""A terminal that is no test's own: tmux, which shows what a program has drawn.

with terminal(["relayctl", "top"], tmp_path, 80, 24) as shown:
    shown.wait("NAME")
    shown.keys("q")
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mounts import wait_until


class Terminal:
    """A window of tmux; socket: the server's."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *words: object) -> str:
        """Give tmux a command; return what it prints."""
        command = ["tmux", "-u", "-f", "/dev/null", "-S", self._socket, *map(str, words)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def lines(self) -> list[str]:
        """Return what is on the screen, without spaces at the ends of lines."""
        return self.tmux("capture-pane", "-p").split("\n")[:-1]

    def keys(self, *keys: str) -> None:
        """Press keys; those that have names, as Enter, and others."""
        self.tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.tmux("resize-window", "-x", width, "-y", height)

    def wait(self, *words: str, without: str = "\0") -> list[str]:
        """Wait until the screen has all words; return its lines."""
        seen: list[str] = []

        def is_there() -> bool:
            seen[:] = self.lines()
            text = "\n".join(seen)
            return all(word in text for word in words) and without not in text

        wait_until(is_there, lambda: "\n".join([f"{words}, without {without!r}, in", *seen]))
        return seen


@contextmanager
def terminal(command: Sequence[str | Path], directory: Path, width: int, height: int) -> Iterator[Terminal]:
    """Run a program in a directory in a new terminal; when it has ended, the screen says `ended with STATUS`."""
    shown = Terminal(directory / "tmux")
    # Of a process that has loaded readline, programs inherit the size of a terminal that is not theirs.
    script = 'unset COLUMNS LINES; "$@"; echo "ended with $?"; exec cat'
    begin = ["new-session", "-d", "-x", width, "-y", height, "-c", directory]
    shown.tmux(*begin, "sh", "-c", script, "sh", *command)
    try:
        yield shown
    finally:
        shown.tmux("kill-server")
