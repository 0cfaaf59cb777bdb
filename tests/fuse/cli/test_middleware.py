"""What the how-to on flight recorders has for web services: a middleware for Starlette and FastAPI, gunicorn's log."""

import ast
import os
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
from traced import relayctl

EXAMPLE = ROOT / "examples/flight_asyncio.py"
HOW_TO = ROOT / "docs/howto/flight-recorder.md"
STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def fine(request):
    return PlainTextResponse("fine")

async def fails(request):
    return PlainTextResponse(str(1 / 0))

app = Starlette(routes=[Route("/fine", fine), Route("/fails", fails)])
"""
FASTAPI = """
from fastapi import FastAPI

app = FastAPI()

@app.get("/fine")
async def fine():
    return "fine"

@app.get("/fails")
def fails():
    return 1 / 0
"""
WSGI = """
import os

def app(environ, start_response):
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""

pytestmark = pytest.mark.one_mount


def block_with(word: str, *replaced: tuple[str, str]) -> str:
    """The block of the how-to that has this word, with other paths."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", HOW_TO.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    for path, other in replaced:
        assert block.count(path) == 1
        block = block.replace(path, other)
    return block


def program(mount: Mount, saved: Path, service: str) -> str:
    """The service: what is copied of the example, and the lines of the how-to."""
    kinds = ast.Import, ast.ImportFrom, ast.ClassDef
    copied = [one for one in ast.parse(EXAMPLE.read_text()).body if isinstance(one, kinds)]
    middleware = block_with("add_middleware", ("/mnt/relay", str(mount.path)), ("/var/log/web", str(saved)))
    return "\n".join([*map(ast.unparse, copied), service, middleware])


@contextmanager
def serving(place: Path, listens: str, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run app.py on a socket there; listens: what the server says then."""
    with (
        (place / "said").open("wb") as said,
        subprocess.Popen([sys.executable, "-m", *command, "app:app"], stdout=said, stderr=said, cwd=place) as process,
    ):
        try:
            # The socket is there before anybody listens.
            wait_until(lambda: listens in (place / "said").read_text(), (place / "said").read_text)
            yield process
        finally:
            process.terminate()


def ask(place: Path, path: str) -> bytes:
    """Send a request; return the answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(place / "socket"))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(4096), b""))


def status_of(place: Path, path: str) -> str:
    return ask(place, path).split()[1].decode()


def answering(place: Path, path: str) -> int:
    """Return the process that has answered."""
    return int(ask(place, path).rpartition(b"\n")[2])


def texts(file: Path) -> list[str]:
    """What a saved file has, without times and names of tasks."""
    lines = [re.fullmatch(r"\d\d:\d\d:\d\d\.\d{9} Task-\d+: (.*)", line) for line in file.read_text().splitlines()]
    assert all(lines), file.read_text()
    return [line[1] for line in lines if line]


@pytest.mark.parametrize("service", [STARLETTE, FASTAPI], ids=["Starlette", "FastAPI"])
def test_the_last_events_are_saved_when_a_request_fails_and_after_the_service_was_killed(
    mount: Mount, tmp_path: Path, service: str
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (tmp_path / "app.py").write_text(program(mount, saved, service))
    with serving(tmp_path, "running on", "uvicorn", "--app-dir", tmp_path, "--uds", tmp_path / "socket") as process:
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


def test_gunicorn_logs_the_requests_of_all_its_processes_also_of_those_that_were_killed(
    mount: Mount, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(WSGI)
    (tmp_path / "gunicorn.conf.py").write_text(block_with("logconfig_dict", ("/mnt/relay", str(mount.path))))
    asked = [f"/{n}" for n in range(50)]
    with serving(tmp_path, "Listening at", "gunicorn", "-w", "2", "-b", f"unix:{tmp_path}/socket") as process:
        answered = {answering(tmp_path, path) for path in asked[:25]}
        assert process.pid not in answered
        for pid in answered:
            os.kill(pid, signal.SIGKILL)
        # A request goes to another process, or to one that was forked since.
        assert answered.isdisjoint(answering(tmp_path, path) for path in asked[25:])
    done = relayctl(mount, "view", "app/access")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(re.findall(r'"GET (/\d+) HTTP/1.1" 200', done.stdout)) == sorted(asked)
    assert "Listening at" not in done.stdout
