"""relayctl view, running.

with viewing("t", "--follow", "--store", store.path) as view:
    view.wait_for(lambda: len(view.events()) == 3)
assert view.finish() == ""
"""

import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl

from forking import RELAYCTL, start
from mounts import DEADLINE_S, wait_until

# What a terminal would not show but do.
CONTROLS = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]")


class View:
    """The lines that it has written, each with the time at which it came."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.process = start(
            [RELAYCTL, "view", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.lines: list[str] = []
        self._objects: list[dict] = []
        self.came: list[float] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it has died
            self.came.append(time.time())
            self.lines.append(line.decode())

    def objects(self) -> list[dict]:
        """What was written with --json; asked again and again, of perhaps a million lines."""
        self._objects += map(json.loads, self.lines[len(self._objects) :])
        return list(self._objects)

    def events(self) -> list[dict]:
        """The same without losses."""
        return [one for one in self.objects() if "event" in one]

    def lost(self) -> int:
        return sum(one["lost"] for one in self.objects() if "lost" in one)

    def wait_for(self, condition: Callable[[], object]) -> None:
        def is_so() -> bool:
            assert self.process.poll() is None, self.process.stderr.read()
            return bool(condition())

        wait_until(is_so, lambda: f"a line of {len(self.lines)}: {self.lines[-3:]}")

    def wait(self) -> str:
        """Wait for its end; return what it said on stderr."""
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        assert self.process.wait(DEADLINE_S) == 0, said
        self._thread.join(DEADLINE_S)
        return said

    def finish(self) -> str:
        """End it as a user does."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()


class Clock:
    """In place of the module `time`: the time that passes while something waits is what the test says."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.time_ns = time.time_ns

    def monotonic(self) -> float:
        return self.passed_s


@contextmanager
def viewing(*arguments: object, **environment: str) -> Iterator[View]:
    view = View(*arguments, **environment)
    try:
        yield view
    finally:
        view.process.kill()
        view.process.wait()
        view._thread.join(DEADLINE_S)
        for pipe in (view.process.stdout, view.process.stderr):
            assert pipe is not None
            pipe.close()


def on_terminal(columns: int, *arguments: object, **environment: str) -> bytes:
    """What it writes to a terminal of so many columns."""
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    command = [RELAYCTL, "view", *map(str, arguments)]
    text = b""
    with start(command, stdout=its, env={**plain, "TERM": "xterm", **environment}) as process:
        os.close(its)
        try:
            while data := os.read(ours, 1 << 16):
                text += data
        except OSError:  # EIO: nobody has the other side any more
            pass
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    return text.replace(b"\r\n", b"\n")
