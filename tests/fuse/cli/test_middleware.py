"""The middleware of the how-to on flight recorders, in a service of Starlette that uvicorn runs."""

import ast
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import ROOT
from mounts import DEADLINE_S, Mount, wait_until

EXAMPLE = ROOT / "examples/flight_asyncio.py"
HOW_TO = ROOT / "docs/howto/flight-recorder.md"
SERVICE = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def fine(request):
    return PlainTextResponse("fine")

async def fails(request):
    return PlainTextResponse(str(1 / 0))

app = Starlette(routes=[Route("/fine", fine), Route("/fails", fails)])
"""

pytestmark = pytest.mark.one_mount


def program(mount: Mount, saved: Path) -> str:
    """The service: what is copied of the example, and the lines of the how-to, with other paths."""
    kinds = ast.Import, ast.ImportFrom, ast.ClassDef
    copied = [one for one in ast.parse(EXAMPLE.read_text()).body if isinstance(one, kinds)]
    (middleware,) = (block for block in HOW_TO.read_text().split("```\n")[1::2] if "add_middleware" in block)
    assert middleware.count("/mnt/relay/app/flight") == middleware.count("/var/log/web") == 1
    middleware = middleware.replace("/mnt/relay", str(mount.path)).replace("/var/log/web", str(saved))
    return "\n".join([*map(ast.unparse, copied), SERVICE, middleware])


@contextmanager
def serving(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the service of app.py on a socket there."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", place, "--uds", place / "socket", "app:app"]
    with (place / "said").open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            # The socket is there before anybody listens.
            wait_until(lambda: "running on" in (place / "said").read_text(), (place / "said").read_text)
            yield process
        finally:
            process.kill()


def status_of(place: Path, path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(place / "socket"))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(4096), b"")).split()[1].decode()


def texts(file: Path) -> list[str]:
    """What a saved file has, without times and names of tasks."""
    lines = [re.fullmatch(r"\d\d:\d\d:\d\d\.\d{9} Task-\d+: (.*)", line) for line in file.read_text().splitlines()]
    assert all(lines), file.read_text()
    return [line[1] for line in lines if line]


def test_the_last_events_are_saved_when_a_request_fails_and_after_the_service_was_killed(
    mount: Mount, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "app.py").write_text(program(mount, saved))
    with serving(tmp_path) as process:
        assert [status_of(tmp_path, path) for path in ("/fine", "/none", "/fails")] == ["200", "404", "500"]
        (first,) = saved.iterdir()
        assert texts(first) == ["GET /fine", "200", "GET /none", "404", "GET /fails"]
        # Another one that fails in the same second has a file of its own.
        assert status_of(tmp_path, "/fails") == "500"
        (second,) = set(saved.iterdir()) - {first}
        assert texts(second) == ["GET /fails"]
        assert status_of(tmp_path, "/fine") == "200"
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
    command = [sys.executable, EXAMPLE, mount.path / "app/flight", tmp_path / "late", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(tmp_path / "late") == ["GET /fine", "200"]
