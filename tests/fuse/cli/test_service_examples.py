"""The examples for servers that are not written for relayfs, on a real mount."""

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build import ROOT
from mounts import DEADLINE_S, Mount, wait_until

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.one_mount


# --- Node ---


def node(relay_file: Path, count: int) -> subprocess.CompletedProcess[str]:
    command = ["node", EXAMPLES / "node_writer.js", relay_file, str(count)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_a_node_program_writes_json_lines_and_counts_what_it_drops(mount: Mount) -> None:
    channel = mount.create("app/json", "buffers=single subbuf_size=4K n_subbufs=2 times=mono")
    done = node(channel, 20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert mount.shown("app/json", "records") == "20"
    expected = [
        {"level": "ERROR" if n % 10 == 7 else "INFO", "request": n, "text": f"caf\u00e9 {n}", "ms": n * 1.5}
        for n in range(1000)
    ]
    assert [json.loads(line) for line in channel.read_text().splitlines()] == expected[:20]
    done = node(channel, 1000)
    kept = [json.loads(line) for line in channel.read_text().splitlines()]
    assert kept == expected[: len(kept)]
    lost = int(mount.shown("app/json", "lost_full"))
    assert 0 < lost == 1000 - len(kept) == int(mount.shown("app/json", "lost"))
    assert (done.returncode, done.stderr) == (0, f"{lost} lines were dropped, because the buffer was full\n")


def test_a_node_program_makes_no_file_and_hides_no_error(mount: Mount, tmp_path: Path) -> None:
    done = node(tmp_path / "json0", 1)
    assert done.returncode == 1
    assert "ENOENT" in done.stderr
    assert not (tmp_path / "json0").exists()
    channel = mount.create("json", "buffers=single")
    mount.command("disable json\n")
    done = node(channel, 1)
    assert done.returncode == 1
    assert "ECANCELED" in done.stderr


# --- nginx ---

CONFIGURATION = """
daemon off;
pid {place}/pid;
error_log stderr notice;
events {{ }}
http {{
    client_body_temp_path {place}/temp; proxy_temp_path {place}/temp; fastcgi_temp_path {place}/temp;
    uwsgi_temp_path {place}/temp; scgi_temp_path {place}/temp;
    include {place}/access.conf;
    server {{
        listen unix:{place}/socket;
        location / {{ return 204; }}
        location /fails {{ return 503; }}
    }}
}}
"""


@contextmanager
def nginx(mount: Mount, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is missing, which ./dev unpacks from Debian's packages")
    snippet = (EXAMPLES / "nginx_access.conf").read_text()
    assert snippet.count("\naccess_log /mnt/relay/") == 1
    (place / "access.conf").write_text(snippet.replace("/mnt/relay", str(mount.path)))
    (place / "nginx.conf").write_text(CONFIGURATION.format(place=place))
    command = [program, "-p", place, "-c", place / "nginx.conf", "-e", "stderr"]
    # Its worker is another user, who may not open files here.
    with (place / "error.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: (place / "pid").exists() or process.poll() is not None, "nginx listens")
            assert process.poll() is None, (place / "error.log").read_text()
            yield process
        finally:
            process.terminate()


def get(place: Path, uri: str, agent: str = "test") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(place / "socket"))
        client.sendall(f"GET {uri} HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_the_access_log_of_nginx_goes_into_a_channel(mount: Mount, tmp_path: Path) -> None:
    (create,) = (
        line.partition("relayctl ")[2]
        for line in (EXAMPLES / "nginx_access.conf").read_text().splitlines()
        if "relayctl create" in line
    )
    mount.command(create)
    with nginx(mount, tmp_path) as process:
        assert b" 204 " in get(tmp_path, "/one", 'says "a"\\')
        assert b" 503 " in get(tmp_path, "/fails?x=1")
        wait_until(lambda: mount.shown("web/access", "records") == "2", "nginx logs two requests")
        # As logrotate(8) has it done to all of nginx's logs: they are opened again.
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: (tmp_path / "error.log").read_text().count(": reopening logs") == 2, "both open them again")
        get(tmp_path, "/three")
        wait_until(lambda: mount.shown("web/access", "records") == "3", "nginx logs after it has opened its log again")
    assert process.returncode == 0
    # Nothing else has become a record, nor was refused.
    lines = (mount.path / "web/access").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(line["uri"], line["status"], line["agent"]) for line in found] == [
        ("/one", 204, 'says "a"\\'), ("/fails?x=1", 503, "test"), ("/three", 204, "test"),
    ]  # fmt: skip
    assert {line["method"] for line in found} == {"GET"}
    assert mount.shown("web/access", "lost") == "0"
    log = (tmp_path / "error.log").read_text()
    assert not [line for line in log.splitlines() if "[notice]" not in line], log
