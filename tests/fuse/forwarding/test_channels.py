"""relayctl forward of what a mount has, by its path: channels of both types, and a trace."""

import json
import os
import signal
from pathlib import Path

import pytest
from babeltrace import read
from forwarding import forward, receive, running
from mounts import DEADLINE_S, Mount, wait_until
from tracing import Program, Served, relayctl

from relayfs_fuse.record.full import size_of

pytestmark = pytest.mark.one_mount

HOST = "a"
LINE_BYTES = 100
RELAY, RING = "buffers=single subbuf_size=4K n_subbufs=32", "type=ring buffers=single framing=line size=128K"


def spooled(spool: Path, most: int) -> list[object]:
    return ["--spool", spool, "--spool-max", most, "--host", HOST]


def write(channel: Path, first: int, n: int) -> list[bytes]:
    """Write lines with these numbers; return those for which there was room."""
    taken = []
    descriptor = os.open(channel, os.O_WRONLY)
    try:
        for number in range(first, first + n):
            line = b"%d".ljust(LINE_BYTES) % number + b"\n"
            try:
                os.write(descriptor, line)
                taken.append(line)
            except OSError as error:
                assert error.errno in {28, 11}, error
    finally:
        os.close(descriptor)
    return taken


def arrived(into: Path) -> tuple[bytes, int]:
    """The records of the channel, and how many were lost."""
    (recording,) = (into / HOST).iterdir()
    lost = recording / ".lost"
    return (recording / "log0").read_bytes(), int(lost.read_text()[5:].split()[0]) if lost.exists() else 0


@pytest.mark.parametrize("options", [RELAY, RING], ids=["relay", "ring"])
def test_a_channel_is_recorded_and_sent_and_its_room_is_free_again(mount: Mount, nats, tmp_path, options: str):
    spool, into = tmp_path / "spool", tmp_path / "into"
    channel = mount.create("app/log", options)
    sent = []
    for n in range(8):
        sent += write(channel, 1000 * n, 1000)
        forward(channel, nats, *spooled(spool, 1 << 20))
    assert len(sent) == 8000
    # The last message is kept, and so much that a recorder may have to write anew.
    (name,) = os.listdir(spool)
    file = spool / name / "log0"
    assert file.stat().st_size == sum(map(len, sent)) > 5 * size_of(str(spool))
    receive(into, nats)
    assert name.startswith("app-log-")
    assert arrived(into) == (b"".join(sent), 0)
    mount.command("remove app/log")
    done = relayctl("forward", channel, "--to", nats.url, "--once", *spooled(spool, 1 << 20))
    assert (done.returncode, "there is no trace app/log in " in done.stderr) == (1, True), done.stderr
    assert os.listdir(spool) == []


@pytest.mark.parametrize("options", [RELAY, RING], ids=["relay", "ring"])
def test_what_a_channel_loses_while_the_spool_is_full_is_known(mount: Mount, nats, tmp_path, options: str):
    spool, into = tmp_path / "spool", tmp_path / "into"
    channel = mount.create("app/log", options)
    nats.make_stream("--max-bytes", "20K")
    sent, n = [], 0
    with running("forward", channel, "--to", nats.url, *spooled(spool, 64 << 10)) as process:

        def loses() -> bool:
            nonlocal n
            sent.extend(write(channel, n, 500))
            n += 500
            return n - len(sent) > 1000

        wait_until(loses, "losses")
        assert size_of(str(spool)) <= 64 << 10
        nats.make_stream()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    forward(channel, nats, *spooled(spool, 4 << 20))
    sent += write(channel, n, 1)
    forward(channel, nats, *spooled(spool, 4 << 20))
    receive(into, nats)
    assert arrived(into) == (b"".join(sent), n + 1 - len(sent))
    shown, *_ = map(json.loads, relayctl("fleet", "--to", nats.url, "--json").stdout.splitlines())
    assert shown["lost"] == n + 1 - len(sent)


def test_a_trace_of_a_mount_is_forwarded_by_its_path(mount: Mount, nats, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    served = Served(mount.store, mount.path).create(mount, "t")
    with Program(served, served, "app") as app:
        app.write(100)
        forward(mount.path / "t", nats, *spooled(spool, 1 << 20))
        mount.command("trace remove t")
    receive(into, nats)
    (recording,) = (into / HOST).iterdir()
    assert recording.name.startswith("t-")
    assert read(recording / "0001").events == {"app": list(range(100))}
