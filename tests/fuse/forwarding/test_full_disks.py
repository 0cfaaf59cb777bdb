"""A disk that is full: that of the spool, or that of the server. That of a receiver: test_receive.py."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from babeltrace import read
from forwarding import forward, make_recording, receive, running, same
from mounts import DEADLINE_S, wait_until
from nats_server import NatsServer
from tracing import Store

HOST = os.uname().nodename
DISK = 4 << 20


@pytest.fixture
def disk(own_tmpfs: Path) -> Iterator[Path]:
    path = own_tmpfs / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path, left: int) -> Path:
    """Leave so many bytes of a disk; return the file that takes the others."""
    free = os.statvfs(disk)
    file = disk / "somebody's"
    file.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - left)))
    return file


def test_a_server_whose_disk_is_full_gets_all_when_it_has_room_and_runs_again(disk, store, run, out, tmp_path):
    """It stops JetStream then, and has to be started again."""
    make_recording(store, run, out, 20_000, n_subbufs=256)
    with NatsServer(disk) as server:
        server.make_stream()
        file = fill(disk, 200 << 10)
        with running("forward", out, "--to", server.url, "--once") as forwarder:
            assert forwarder.stderr is not None
            assert forwarder.stderr.readline().endswith("; waiting\n")
            file.unlink()
            server.kill()
            server.start()
            assert forwarder.wait(DEADLINE_S) == 0
        receive(tmp_path / "into", server)
    assert same(out, tmp_path / "into" / HOST / "out")


def test_a_spool_whose_disk_is_full_loses_what_comes_and_both_sides_know_how_much(nats, disk, store, run, tmp_path):
    into = tmp_path / "into"
    nats.make_stream("--max-bytes", "20K")
    app = run(store.create("t", n_subbufs=16), "app")
    fill(disk, 300 << 10)
    live = ["--store", store.path, "--spool", disk / "spool", "--spool-max", DISK, "--host", "a"]
    refused = 0
    with running("forward", "t", "--to", nats.url, *live) as forwarder:

        def loses() -> bool:
            nonlocal refused
            refused += app.write(500)
            return refused > 1000

        wait_until(loses, "losses")
        nats.make_stream()
        for _ in range(20):
            app.write_patiently(500)
        app.flush()
        forwarder.send_signal(signal.SIGTERM)
        assert forwarder.wait(DEADLINE_S) == 0
    forward("t", nats, *live)
    receive(into, nats)
    numbers, lost = [], 0
    for part in sorted(into.glob("a/*/*/")):
        found = read(part)
        numbers += found.events.get("app", [])
        lost += found.lost
    assert numbers == sorted(set(numbers))
    assert len(numbers) == Store.written(app.directory)
    assert lost == Store.lost(app.directory) >= refused
