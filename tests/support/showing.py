"""relayctl live, and babeltrace2 that shows what it serves.

with serving("t", "--store", store.path) as server, server.showing("t") as shown:
    shown.wait_for(lambda: len(shown.events()) == 3)
    shown.finish()
"""

import itertools
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from babeltrace import LOST, Event, event_of
from forking import RELAYCTL, start
from mounts import DEADLINE_S, wait_until
from tracing import Program

# Interrupted while it receives an answer, babeltrace2 takes the rest of that for the answer to its next command, or, if
# it had events to show, goes on and then complains that it was interrupted, as do the components that wait for it.
INTERRUPTED = re.compile("lttng_live_session_detach@viewer-connection.c|Message iterator was interrupted")


class Shown:
    """The lines that babeltrace2 has written, each with the time at which it came."""

    def __init__(self, url: str) -> None:
        self.lines: list[str] = []
        self.came: list[float] = []
        self.warnings: list[str] = []
        command = ["stdbuf", "-oL", "babeltrace2", "--clock-seconds", "--no-delta", "-i", "lttng-live", url]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._threads = [
            threading.Thread(target=self._listen, daemon=True), threading.Thread(target=self._warn, daemon=True)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.came.append(time.time())
            self.lines.append(line.rstrip("\n"))

    def _warn(self) -> None:
        assert self.process.stderr is not None
        self.warnings.extend(line.rstrip("\n") for line in self.process.stderr)

    def events(self) -> list[Event]:
        return [event_of(line) for line in list(self.lines)]

    def numbers(self, process: str = "") -> list[int]:
        """Return the numbers of event_writer.c's events."""
        return [event["n"] for event in self.events() if process in {"", event.process}]

    def lost(self) -> int:
        """Return how many events are said to be lost."""
        counts = [LOST.match(line) for line in self.warnings]
        return sum(int(match[2]) for match in counts if match)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait while it runs."""

        def is_so() -> bool:
            self.check_runs()
            return bool(condition())

        wait_until(is_so, self._said)

    def check_runs(self) -> None:
        """Fail if it has ended."""
        if self.process.poll() is not None:
            self._join()
            pytest.fail(f"babeltrace2 has ended with status {self.process.returncode}: {self._said()}")

    def write_patiently(self, program: Program, n: int) -> int:
        """Have a program write so many events, each as soon as there is room; return how often there was none."""
        program.start_patiently(n)
        self.wait_for(lambda: select.select([program.process.stdout], [], [], 0)[0])
        return program.done()

    def _said(self) -> str:
        return f"a line of {len(self.lines)}: {self.lines[-3:]}, {self.warnings[-20:]}"

    def ends(self) -> None:
        """Wait until the server has told it to end; it may have warned of nothing but losses."""
        status = self.process.wait(DEADLINE_S)
        self._join()
        assert status == 0, self._said()
        self._check_warnings()

    def finish(self) -> None:
        """End it as a user does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE_S)
        self._join()
        self._check_warnings()

    def _check_warnings(self) -> None:
        before = list(itertools.takewhile(lambda line: not INTERRUPTED.search(line), self.warnings))
        complaints = [line for line in before if line and not LOST.match(line)]
        assert not complaints, "\n".join(complaints)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)


@dataclass
class Live:
    """relayctl live, running."""

    process: subprocess.Popen[str]
    url: str
    said: str = ""

    @property
    def address(self) -> tuple[str, int]:
        found = re.match(r"net://([\d.]+):(\d+)", self.url)
        assert found, self.url
        return found[1], int(found[2])

    def url_of(self, trace: str) -> str:
        host, port = self.address
        return f"net://{host}:{port}/host/{os.uname().nodename}/{trace}"

    def listed(self) -> str:
        """Return what babeltrace2 shows of the sessions."""
        host, port = self.address
        done = subprocess.run(
            ["babeltrace2", "-i", "lttng-live", f"net://{host}:{port}"],
            capture_output=True, text=True, timeout=DEADLINE_S, check=True,
        )  # fmt: skip
        return done.stdout

    @contextmanager
    def showing(self, trace: str, kind: type[Shown] = Shown) -> Iterator[Shown]:
        """Attach a babeltrace2; it sees what is written from now on."""
        before = self._n_clients(trace)
        shown = kind(self.url_of(trace))
        try:
            wait_until(
                lambda: self._n_clients(trace) > before or shown.process.poll() is not None, "babeltrace2 attaches"
            )
            yield shown
        finally:
            shown.process.kill()
            shown.process.wait()
            shown._join()
            for pipe in (shown.process.stdout, shown.process.stderr):
                assert pipe is not None
                pipe.close()
            wait_until(lambda: self.process.poll() is not None or self._n_clients(trace) <= before, "it has gone")

    def _n_clients(self, trace: str) -> int:
        with Talk(self) as talk:
            return sum(one.n_clients for one in talk.connect() if one.name == trace)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, DEADLINE_S)

    def wait_said(self, text: str) -> None:
        """Wait until it has said something."""
        assert self.process.stderr is not None
        descriptor = self.process.stderr.fileno()

        def has_said() -> bool:
            if select.select([descriptor], [], [], 0)[0]:
                self.said += os.read(descriptor, 65536).decode()
            return text in self.said

        wait_until(has_said, lambda: f"{text}; said: {self.said}")

    def finish(self) -> str:
        """End it as a user does; return what it said."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> str:
        """Wait for its end; return what it said."""
        _, said = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, said
        return self.said + said


@contextmanager
def serving(*arguments: object) -> Iterator[Live]:
    command = [RELAYCTL, "live", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Live(process, process.stdout.readline().strip())
        finally:
            process.kill()


class Session(NamedTuple):
    id: int
    n_clients: int
    name: str


class Stream(NamedTuple):
    id: int
    trace: int
    is_metadata: bool


class Index(NamedTuple):
    offset: int
    bits: int
    content_bits: int
    begin: int
    end: int
    lost: int
    stream_class: int
    status: int
    flags: int


class Talk:
    """A viewer that says what a test wants."""

    def __init__(self, server: Live) -> None:
        self.socket = server.connect()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @staticmethod
    def command(number: int, payload: bytes = b"") -> bytes:
        return struct.pack(">QII", len(payload), number, 0) + payload

    def ask(self, number: int, payload: bytes, length: int) -> bytes:
        self.socket.sendall(self.command(number, payload))
        return self._receive(length)

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data

    def connect(self) -> list[Session]:
        """Connect; return the sessions."""
        answer = struct.unpack(">QIII", self.ask(1, struct.pack(">QIII", 0, 2, 4, 1), 20))
        assert answer[1:] == (2, 4, 1)
        return self.sessions()

    def sessions(self) -> list[Session]:
        self.ask_for_sessions()
        return self.listed()

    def ask_for_sessions(self) -> None:
        self.socket.sendall(self.command(2))

    def listed(self) -> list[Session]:
        """Return the answer to that."""
        (n,) = struct.unpack(">I", self._receive(4))
        found = [struct.unpack(">QIII64s255s", self._receive(339)) for _ in range(n)]
        return [Session(one[0], one[2], one[5].rstrip(b"\0").decode()) for one in found]

    def begin(self) -> list[int]:
        """Connect, and create a session of the viewer; return the ids of those there are."""
        found = self.connect()
        assert self.ask(8, b"", 4) == struct.pack(">I", 1)
        return [one.id for one in found]

    def attach(self, session: int, seek: int) -> int:
        self.ask_to_attach(session, seek)
        return self.attached()

    def ask_to_attach(self, session: int, seek: int) -> None:
        self.socket.sendall(self.command(3, struct.pack(">QQI", session, 0, seek)))

    def attached(self) -> int:
        """Return the answer to that."""
        status, n = struct.unpack(">II", self._receive(8))
        assert n == 0
        return int(status)

    def streams(self, session: int) -> list[Stream]:
        """Wait until there are streams."""
        found: list[Stream] = []

        def are_there() -> bool:
            status, n = struct.unpack(">II", self.ask(7, struct.pack(">Q", session), 8))
            assert (status == 1) == (n > 0)
            for _ in range(n):
                number, trace, is_metadata = struct.unpack_from(">QQI", self._receive(4371))
                found.append(Stream(number, trace, bool(is_metadata)))
            return n > 0

        wait_until(are_there, "new streams")
        return found

    def index(self, stream: int) -> Index:
        return Index(*struct.unpack(">QQQQQQQII", self.ask(4, struct.pack(">Q", stream), 64)))

    def packet(self, stream: int, offset: int, length: int) -> bytes | None:
        status, n, _ = struct.unpack(">III", self.ask(5, struct.pack(">QQI", stream, offset, length), 12))
        assert (status == 1) == (n > 0)
        return self._receive(n) if status == 1 else None
