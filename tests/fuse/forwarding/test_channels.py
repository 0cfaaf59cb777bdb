"""relayctl forward of what a mount has, by its path: channels of both types, and a trace."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from babeltrace import read
from forwarding import forward, receive, running
from framed import parsed
from mounts import DEADLINE_S, Mount, wait_until
from tracing import Program, Served, relayctl

from relayfs_fuse.cli.channel import find_channel
from relayfs_fuse.cli.live_source import Losses
from relayfs_fuse.native import n_possible_cpus
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


@pytest.mark.parametrize(
    ("options", "framing", "head"),
    [("", "length", "<I"), ("framing=length", "length", "<I"), ("times=mono framing=line", "time,length", "<QI")],
)
def test_rings_arrive_by_whole_records_and_what_precedes_each_is_said(
    mount: Mount, nats, tmp_path, options: str, framing: str, head: str
):
    """One file each; a message has whole records, or a part of a long one."""
    channel = mount.create("app/ring", f"type=ring buffers=percpu size=1M {options}")
    long = b"x" * 300_000
    records = [long, *(b"%d" % number * 20 for number in range(3000)), long]
    files = [Path(f"{channel}{cpu}") for cpu in (0, n_possible_cpus() - 1)]
    for file in files:
        with file.open("wb", buffering=0) as ring:
            for record in records:
                ring.write(record)
    forward(channel, nats, *spooled(tmp_path / "spool", 4 << 20))
    receive(tmp_path / "into", nats)
    (recording,) = (tmp_path / "into" / HOST).iterdir()
    assert (recording / ".framing").read_text() == f"{framing}\n"
    for file in files:
        assert [found[-1] for found in parsed((recording / file.name).read_bytes(), head)] == records
    units: dict[tuple[str, str], bytes] = {}
    for message in nats.messages():
        if message.headers["Relay-Path"] in {file.name for file in files}:
            place = message.headers["Relay-Path"], message.headers["Relay-Packet"]
            units[place] = units.get(place, b"") + message.data
    for (_, where), data in units.items():
        assert int(where.split()[1]) == len(data)
        parsed(data, head)
    assert len(units) >= 2 * 3


def test_of_a_record_in_parts_nothing_arrives_before_the_last(mount: Mount, nats, tmp_path):
    """The earlier ones are kept, also by a receiver that begins again; without them, the record is left out."""
    channel, into = mount.create("app/log", "type=ring buffers=single framing=line size=2M"), tmp_path / "into"
    sent = b"first\n" + b"x" * 600_000 + b"\n" + b"last\n"
    with Path(f"{channel}").open("wb", buffering=0) as ring:
        for line in sent.splitlines(keepends=True):
            ring.write(line)
    forward(channel, nats, *spooled(tmp_path / "spool", 4 << 20))
    parts = [one for one in nats.messages() if one.headers["Relay-Path"] == "log0"]
    assert len(parts) == 5
    again(nats, parts[:3])
    receive(into, nats)
    file = next((into / HOST).iterdir()) / "log0"
    assert file.read_bytes() == b"first\n"
    nats.publish(*map(plain, parts[3:]))
    receive(into, nats)
    assert file.read_bytes() == sent
    file.unlink()
    again(nats, [parts[0], *parts[2:]])
    assert "log0: what is before byte " in receive(into, nats)
    assert file.read_bytes() == b"first\n" + bytes(600_001) + b"last\n"


def again(nats, messages: list[Any]) -> None:
    """Have a stream with these messages only."""
    nats.remove_stream()
    nats.make_stream()
    nats.publish(*map(plain, messages))


def plain(message: Any) -> tuple[str, bytes, dict[str, str]]:
    """Return what is published to have the message again."""
    headers = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
    return message.subject, message.data, headers


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


def test_what_a_channel_lost_before_it_was_reset_stays_lost(mount: Mount, tmp_path):
    """Also if it was reset while nobody looked; what it lost before the recording was begun does not count."""
    path, file = mount.create("app/log", "buffers=single subbuf_size=4K n_subbufs=2"), tmp_path / ".lost"
    channel = find_channel("app/log", str(mount.path), None)
    assert channel is not None
    n_taken = len(write(path, 0, 1000))

    def lost() -> int:
        return int(file.read_text().removeprefix("lost=").split()[0])

    for n in range(2):
        with closing(Losses(channel, str(file))) as losses:
            losses.note()
            assert lost() == n * (1100 - n_taken)
            write(path, 0, 100)
            losses.note()
            assert lost() == n * (1100 - n_taken) + 100
            mount.command("reset app/log\n")
            losses.note()
            assert lost() == n * (1100 - n_taken) + 100
            write(path, 0, 1000)
        assert lost() == (n + 1) * (1100 - n_taken)
        mount.command("reset app/log\n")
        write(path, 0, n_taken)


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


@pytest.mark.parametrize("options", [RELAY, RING], ids=["relay", "ring"])
def test_a_channel_that_was_made_again_is_another_recording(mount: Mount, nats, tmp_path, options: str):
    """Whether or not the spool has something of the first one when the second one is there."""
    into = tmp_path / "into"
    wrote = []
    for n in range(3):
        channel = mount.create("app/log", options)
        wrote.append(b"".join(write(channel, 1000 * n, 10)))
        forward(channel, nats, *spooled(tmp_path / "spool", 1 << 20))
        mount.command("remove app/log")
    receive(into, nats)
    found = sorted((into / HOST).iterdir())
    assert [(one / "log0").read_bytes() for one in found] == wrote
    assert len({(one / ".relayfs").read_text() for one in found}) == 3
    shown = [json.loads(line) for line in relayctl("fleet", "--to", nats.url, "--json").stdout.splitlines()]
    assert [one["recording"] for one in shown if "recording" in one] == [one.name for one in found]
