"""relayctl receive: directories that are the recordings of other machines, byte for byte."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forking
import pytest
from babeltrace import read, read_if_any
from forwarding import files_in, forward, forwarding, make_recording, receive, receiving, same
from mounts import DEADLINE_S, wait_until
from traced import start_trace
from tracing import finish, recording, relayctl

HOST = os.uname().nodename


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """Where recordings arrive."""
    return tmp_path / "into"


def test_what_arrives_is_what_was_recorded(nats, store, run, out, into):
    lost = make_recording(store, run, out, n_subbufs=4)
    forward(out, nats)
    said = receive(into, nats)
    assert same(out, into / HOST / "out")
    assert said.startswith(f"relayctl: {sum(nats.subjects().values())} messages, ")
    assert said.endswith(f", received from {nats.url}\n")
    assert "missing" not in said
    assert read(into) == read(out)
    assert read(into).lost == lost > 0
    # Whoever reads what was received sees of which machine it is, also if there is only one.
    line = json.loads(relayctl("view", into, "--json").stdout.splitlines()[1])
    assert (line["host"], line["event"]) == (HOST, "test:first")
    assert "relayctl: 0 messages, 0 B, received" in receive(into, nats)


def test_states_arrive(nats, mount, out, into):
    start_trace(mount, "t")
    program = [sys.executable, "-c", "from relayfs_fuse import trace; trace.state('workers', 4)"]
    forking.run(program, env={**os.environ, "RELAYFS": str(mount.path)}, check=True)
    recorded = relayctl("record", "t", "--mount", mount.path, "-o", out, "--duration", "0")
    assert recorded.returncode == 0, recorded.stderr
    assert [path for path in files_in(out) if path.endswith("/state")]
    forward(out, nats)
    receive(into, nats)
    assert same(out, into / HOST / "out")


def test_large_packets_arrive_in_pieces(nats, store, run, out, into):
    app = run(store.create("t", subbuf_size=1 << 20, n_subbufs=4), "app")
    assert app.write(50_000) == 0
    with recording("t", "--store", store.path, "-o", out) as process:
        finish(process)
    forward(out, nats, "--compress", "zstd")
    receive(into, nats)
    assert same(out, into / HOST / "out")
    # Nothing of the pieces is left.
    assert [path for path in files_in(into / ".received") if ".cpu0." in f".{path}" or "cpu0" in path] == []


def test_it_is_a_trace_at_every_moment(nats, store, run, out, into):
    trace = store.create("t")
    with (
        receiving(into, nats) as receiver,
        recording("t", "--store", store.path, "-o", out) as recorder,
        forwarding(out, nats, wait_for=out / ".relayfs") as forwarder,
    ):
        app = run(trace, "app")
        seen: list[int] = []
        for n in range(6):
            app.write_patiently(300)
            if n == 3:
                app.declare("second")

            def arrived(least: int = 300 * n) -> bool:
                nonlocal seen
                now = read_if_any(into).events.get("app", [])
                assert now[: len(seen)] == seen
                seen = now
                return len(now) > least

            wait_until(arrived, "events")
        app.end()
        finish(recorder)
        wait_until(lambda: same(out, into / HOST / "out"), lambda: diff(out, into / HOST / "out"))
        for process in (forwarder, receiver):
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
    assert read(into).events == {"app": list(range(1800))}


def diff(one: Path, other: Path) -> str:
    return subprocess.run(["diff", "-r", one, other], capture_output=True, text=True, check=False).stdout


def test_each_directory_gets_all_and_receivers_of_one_share(nats, store, run, out, into, tmp_path):
    make_recording(store, run, out, 5000)
    other = tmp_path / "other"
    with receiving(into, nats) as one, receiving(into, nats) as two, receiving(other, nats):
        forward(out, nats)
        for directory in (into, other):
            wait_until(lambda at=directory / HOST / "out": same(out, at), lambda: diff(out, into / HOST / "out"))
        shares = []
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, said
            shares.append(int(said.split("relayctl: ")[-1].split(" messages")[0]))
    assert sum(shares) == sum(nats.subjects().values())


@pytest.mark.parametrize("n", [1, 2])
def test_a_receiver_that_was_killed_leaves_a_trace_and_another_goes_on(nats, store, run, out, into, n):
    """Also with messages that were sent to it, and not acknowledged."""
    make_recording(store, run, out, 5000)
    forward(out, nats)
    for _ in range(3):
        with receiving(into, nats) as process:
            wait_until(lambda: list(into.rglob("cpu0")), "the first packets") if n == 1 else None
            process.kill()
            process.wait()
        read_if_any(into)
    with receiving(into, nats):
        wait_until(lambda: same(out, into / HOST / "out"), lambda: diff(out, into / HOST / "out"))


def test_files_that_were_deleted_come_again_with_the_next_messages(nats, store, run, out, into):
    """Each message points back to the one before it."""
    app = run(store.create("t"), "app")
    with recording("t", "--store", store.path, "-o", out) as recorder:
        app.write_patiently(1000)
        while ".cpu0" not in "".join(nats.subjects()):
            forward(out, nats)
        receive(into, nats)
        (grows,) = into.rglob("cpu0")
        assert len(read(into).events["app"]) > 100
        grows.unlink()
        grows.with_name("metadata").unlink()
        app.write_patiently(1000)
        finish(recorder)
    forward(out, nats)
    assert "missing" not in receive(into, nats)
    assert same(out, into / HOST / "out")


def test_what_the_server_has_no_more_is_left_out_and_said(nats, store, run, out, into):
    make_recording(store, run, out, 2000)
    forward(out, nats)
    of_one = [message for message in nats.messages() if ".one-" in message.subject and message.subject.endswith("cpu0")]
    gone = [of_one[0], of_one[1], of_one[5], of_one[6]]
    nats.delete(*(message.seq for message in gone))
    said = receive(into, nats)
    n_bytes = [sum(len(message.data) for message in part) for part in (gone[:2], gone[2:])]
    path = of_one[0].headers["Relay-Path"]
    for n in n_bytes:
        why = f"{HOST}/out/{path}: {n} bytes are missing, which the stream does not have\n"
        assert f"relayctl: {why}" in said
    assert "kB missing, received from" in said
    seen = read(into, may_miss_packets=True)
    assert seen.events["two"] == list(range(2000))
    assert 0 < len(seen.events["one"]) < 2000
    there, here = (out / path).read_bytes(), (into / HOST / "out" / path).read_bytes()
    assert len(there) == len(here)
    last = int(of_one[7].headers["Relay-Offset"])
    assert here[last:] == there[last:]


def test_once_receives_what_is_left_if_the_last_messages_were_deleted(nats, store, run, out, into):
    make_recording(store, run, out)
    forward(out, nats)
    *rest, one, two = nats.messages()
    nats.delete(one.seq, two.seq)
    assert f"relayctl: {len(rest)} messages, " in receive(into, nats)
    assert "relayctl: 0 messages, 0 B, received" in receive(into, nats)


def test_packets_wait_for_metadata_that_comes_late(nats, store, run, out, into):
    """As when a receiver was killed with it: what a packet needs is read from the stream."""
    make_recording(store, run, out)
    forward(out, nats)
    receive(into, nats)
    metadata = [path for path in files_in(into) if path.endswith("metadata") and not path.startswith(".received")]
    assert len(metadata) == 2
    for path in metadata:
        (into / path).unlink()
    # A new name at the server gets all messages again; the metadata is one of the first, so it is deleted.
    (into / ".received/name").unlink()
    receive(into, nats)
    assert same(out, into / HOST / "out")


def test_what_was_damaged_arrives_too(nats, store, run, out, into):
    """Files that grow by any bytes; of what is missing a hole is left."""
    make_recording(store, run, out)
    damaged = out / ".damaged/bad-7/why"
    damaged.parent.mkdir(parents=True)
    for n in range(3):
        with damaged.open("ab") as file:
            file.write(bytes([65 + n]) * 300_000)
        forward(out, nats)
    receive(into, nats)
    assert same(out, into / HOST / "out")
    (into / HOST / "out/.damaged/bad-7/why").unlink()
    (into / ".received/name").unlink()
    of_it = [message.seq for message in nats.messages() if "damaged" in message.subject]
    assert len(of_it) == 6
    nats.delete(of_it[0])
    said = receive(into, nats)
    assert f"{HOST}/out/.damaged/bad-7/why: 262144 bytes are missing, which the stream does not have\n" in said
    arrived = (into / HOST / "out/.damaged/bad-7/why").read_bytes()
    assert arrived == bytes(1 << 18) + damaged.read_bytes()[1 << 18 :]


@pytest.fixture
def small(own_tmpfs: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    path = own_tmpfs / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_waited_for(nats, store, run, out, small):
    make_recording(store, run, out, 5000)
    forward(out, nats)
    (small / "somebody's").write_bytes(bytes(980 << 10))
    into = small / "into"
    with receiving(into, nats) as process:
        assert process.stderr.readline().endswith(": No space left on device; waiting\n")
        read_if_any(into)
        (small / "somebody's").unlink()
        wait_until(lambda: same(out, into / HOST / "out"), lambda: diff(out, into / HOST / "out"))


def test_another_recording_of_the_same_name_is_refused(nats, store, run, out, into):
    make_recording(store, run, out)
    forward(out, nats)
    receive(into, nats)
    mark = into / HOST / "out/.relayfs"
    mark.write_text(mark.read_text().replace("trace=t ", "trace=u "))
    (into / ".received/name").unlink()
    said = receive(into, nats)
    assert f"is refused: {HOST}/out is another recording here: trace=u id=" in said
    assert f"{sum(nats.subjects().values())} messages refused, received" in said


def test_a_directory_that_cannot_be_used_is_refused(nats, into):
    into.write_text("")
    done = relayctl("receive", "--from", nats.url, "-o", into)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {into}: File exists\n")
    into.unlink()
    (into / ".received").mkdir(parents=True)
    (into / ".received/name").write_text("../x")
    done = relayctl("receive", "--from", nats.url, "-o", into)
    assert done.returncode == 1
    assert "has no name that a receiver has written; without the file it gets all again\n" in done.stderr
