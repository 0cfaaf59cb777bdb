"""relayctl serve, running, and requests to it.

with site("--mount", mount.path) as served:
    assert served.get("metrics").status == 200
"""

import http.client
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forking import RELAYCTL, start
from mounts import DEADLINE_S


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Site:
    """The server at an address that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        assert self.url, process.stderr and process.stderr.read()
        self.port = urlsplit(self.url).port
        self.token = urlsplit(self.url).query.removeprefix("token=")

    def kill(self) -> None:
        """Let it die without a chance to do anything."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Send a request; an underscore in the name of a header stands for a hyphen."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, f"/{path}", headers={name.replace("_", "-"): headers[name] for name in headers})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def figures(self) -> dict[str, float]:
        """Return the samples of /metrics, as NAME{LABELS}."""
        lines = (line.rpartition(" ") for line in self.get("metrics").text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


class Events:
    """A client of /events; receives: bytes that its socket buffers."""

    def __init__(self, site: Site, query: str, receives: int = 0) -> None:
        self._socket = socket.socket()
        if receives:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(("127.0.0.1", site.port))
        self._socket.sendall(f"GET /events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._answer = http.client.HTTPResponse(self._socket)
        self._answer.begin()
        assert self._answer.status == 200, self._answer.read()

    def message(self) -> tuple[str, dict]:
        """Return the next message that is no comment: its type, and what is in it."""
        sort = "message"
        while line := self._answer.readline():
            name, _, text = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                sort = text
            elif name == "data":
                return sort, json.loads(text)
        raise EOFError

    def close(self) -> None:
        self._answer.close()
        self._socket.close()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def site(*arguments: object, relayctl: Sequence[str | Path] = (RELAYCTL,), said: str = "") -> Iterator[Site]:
    """Run relayctl serve at a free port, until a signal ends it in order, or it was killed.

    said: a pattern of what it writes to stderr
    """
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    command = [*relayctl, "serve", *map(str, arguments), *listen]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Site(process)
            killed = process.poll() == -signal.SIGKILL
            process.terminate()
            _, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == (-signal.SIGKILL if killed else 0)
            assert re.fullmatch(said, errors, re.DOTALL), errors
        finally:
            process.kill()
