"""relayctl forward --spool: a trace or channel that is recorded, sent, and removed from the spool."""

import asyncio
import json
import signal
from contextlib import closing
from pathlib import Path

import pytest
from babeltrace import read
from forwarding import forward, make_recording, receive, running
from mounts import DEADLINE_S, wait_until
from nats_server import STREAM
from tracing import relayctl

from relayfs_fuse.forwarding.forwarder import Forwarder, Options
from relayfs_fuse.forwarding.recording import Recording
from relayfs_fuse.forwarding.server import Server
from relayfs_fuse.reading.source import Source
from relayfs_fuse.record.full import Limit, OutputFullError, size_of
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.record.recorder import Options as RecorderOptions
from relayfs_fuse.record.recorder import Recorder
from relayfs_fuse.tracefiles.recorder_lock import holder

HOST = "a"
MAX = 128 << 10


def live(store, spool: Path, *more: object) -> list[object]:
    return ["--store", store.path, "--spool", spool, "--spool-max", MAX, "--host", HOST, *more]


def spooled(spool: Path) -> list[Path]:
    return sorted(path for path in spool.rglob("cpu*") if path.is_file())


def received(into: Path) -> tuple[list[Path], dict[str, list[int]], int]:
    """The recordings that arrived, the numbers of their events by process, and how many were lost."""
    events: dict[str, list[int]] = {}
    recordings = sorted((into / HOST).iterdir())
    lost = 0
    for number in sorted(path for one in recordings for path in one.iterdir() if path.is_dir()):
        found = read(number)
        lost += found.lost
        for name, numbers in found.events.items():
            events.setdefault(name, []).extend(numbers)
    return recordings, events, lost


def test_a_trace_is_recorded_and_what_is_sent_of_it_is_removed(nats, store, run, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    trace = store.create("t", n_subbufs=64)
    app = run(trace, "app")
    for _ in range(3):
        assert app.write(5000) == 0
        forward("t", nats, *live(store, spool))
        # More than 3 times MAX is sent.
        assert size_of(str(spool)) <= MAX
    (recording,) = spool.iterdir()
    app.end()
    store.change(trace, id=0)
    done = relayctl("forward", "t", "--to", nats.url, "--once", *live(store, spool))
    # What an earlier recorder has left is sent all the same.
    assert (done.returncode, "there is no trace t in " in done.stderr) == (1, True)
    assert list(spool.iterdir()) == []
    receive(into, nats)
    recordings, events, lost = received(into)
    assert [path.name for path in recordings] == [recording.name]
    assert (events, lost) == ({"app": list(range(15_000))}, 0)


def test_a_file_that_comes_while_others_are_sent_is_sent_before_its_directory_is_removed(nats, store, run, tmp_path):
    out, into = tmp_path / "t", tmp_path / "into"
    make_recording(store, run, out, n=100)
    names = [path.name for path in out.glob("*-*")]
    (out / "0000").mkdir()
    for name in names:
        (out / name).rename(out / "0000" / name)
        # A recorder writes metadata before it makes files of packets.
        (out / "0000" / name / "cpu0").rename(tmp_path / name)

    class Growing(Recording):
        def has_left(self, directory: str) -> bool:
            name = Path(directory).name
            if name in names:
                names.remove(name)
                (tmp_path / name).rename(out / directory / "cpu0")
                (out / "0001").mkdir(exist_ok=True)
            return super().has_left(directory)

    async def send() -> None:
        server = Server(nats.url, STREAM, "test", print)
        await server.open()
        try:
            options = Options(HOST, "t", removes=True)
            await Forwarder(server, Growing(str(out)), options, lambda: None, lambda: not (out / "0000").exists()).run()
        finally:
            await server.close()

    asyncio.run(send())
    receive(into, nats)
    assert {name.partition("-")[0]: numbers for name, numbers in received(into)[1].items()} == {
        "one": list(range(100)), "two": list(range(100)),
    }  # fmt: skip


def test_a_trace_that_is_made_anew_is_another_recording(nats, store, run, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    for n in (100, 200):
        trace = store.create("t") if n == 100 else store.create("t2")
        name = trace.name
        app = run(trace, f"app{n}")
        app.write(n)
        forward(name, nats, *live(store, spool, "--as", "t"))
        app.end()
    receive(into, nats)
    recordings, events, _ = received(into)
    assert len(recordings) == 2
    assert events == {"app100": list(range(100)), "app200": list(range(200))}
    # Only the one that may grow is left.
    assert len(list(spool.iterdir())) == 1


def test_a_full_spool_loses_what_comes_and_both_sides_know_how_much(nats, store, run, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    nats.make_stream("--max-bytes", "20K")
    trace = store.create("t", n_subbufs=16)
    app = run(trace, "app")
    refused = 0
    with running("forward", "t", "--to", nats.url, *live(store, spool)) as process:

        def loses() -> bool:
            nonlocal refused
            refused += app.write(500)
            return refused > 1000

        wait_until(loses, "losses")
        assert size_of(str(spool)) <= MAX
        nats.make_stream()
        # There is room for later events.
        wait_until(lambda: size_of(str(spool)) < MAX // 2, "room")
        for _ in range(20):
            app.write_patiently(500)
        app.flush()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    forward("t", nats, *live(store, spool))
    receive(into, nats)
    _, events, lost = received(into)
    assert lost == store.lost(app.directory)
    numbers = events["app"]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == store.written(app.directory)
    shown, *_ = map(json.loads, relayctl("fleet", "--to", nats.url, "--json").stdout.splitlines())
    assert shown["lost"] == lost > 1000


def test_whenever_it_is_killed_each_event_arrives_once(nats, store, run, tmp_path):
    """The recorder ends with it, at any place."""
    spool, into = tmp_path / "spool", tmp_path / "into"
    trace = store.create("t", n_subbufs=64)
    app = run(trace, "app")
    for _ in range(3):
        with running("forward", "t", "--to", nats.url, *live(store, spool), waits=False) as process:
            before = nats.subjects()
            app.write_patiently(4000)
            wait_until(lambda before=before: len(nats.subjects()) > len(before), "messages")
            process.kill()
            process.wait(DEADLINE_S)
        wait_until(lambda: holder(str(app.directory.parent)) is None, "its recorder has ended, too")
    app.flush()
    forward("t", nats, *live(store, spool))
    receive(into, nats)
    recordings, events, lost = received(into)
    assert len(recordings) == 1
    assert events == {"app": list(range(12_000))}
    assert lost == store.lost(app.directory)


def test_a_spool_that_never_has_room_for_a_sub_buffer_is_said(nats, store, run, tmp_path):
    trace = store.create("t")
    app = run(trace, "app")
    app.write(100)
    command = ["forward", "t", "--to", nats.url, *live(store, tmp_path / "spool", "--spool-max", "12K", "--once")]
    done = relayctl(*command)
    assert done.returncode == 1
    assert "relayctl: --max 4096 permits 0 bytes at once; sub-buffers of t have 4096\n" in done.stderr
    # What is not recorded is still there; another user's process could have made itself larger buffers.
    limit = Limit(str(tmp_path / "other"), 20 << 10)
    with closing(Source("t", store.path)) as source:
        output = DirectoryOutput(str(tmp_path / "other"), source.identity, rotates=True, limit=limit)
        recorder = Recorder(source, output, RecorderOptions(duration_s=0), print, lambda: None)
        recorder.run()
    (why,) = recorder.summary.damaged.values()
    assert " bytes never have room: --max 20480 permits 2048 at once" in why
    into = tmp_path / "into"
    forward("t", nats, *live(store, tmp_path / "spool"))
    receive(into, nats)
    assert received(into)[1:] == ({"app": list(range(100))}, 0)


def test_processes_that_wait_for_room_are_recorded_before_it_ends(store, run, tmp_path):
    trace, filler, said = store.create("t"), tmp_path / "filler", []
    app = run(trace, "app")

    def record(*, waits: bool) -> None:
        with closing(Source("t", store.path)) as source:
            limit = Limit(str(tmp_path), MAX)
            output = DirectoryOutput(str(tmp_path / "out"), source.identity, rotates=True, limit=limit)
            options = RecorderOptions(duration_s=0, waits=waits)
            Recorder(source, output, options, said.append, lambda: filler.unlink(missing_ok=True)).run()

    app.write(100)
    record(waits=False)
    app.write(100)
    filler.write_bytes(bytes(MAX))
    # To go on with its directory, it writes metadata.
    with pytest.raises(OutputFullError, match="--max permits"):
        record(waits=False)
    record(waits=True)
    assert len(said) == 2
    assert all("metadata: " in line and "; the recording waits until there is room" in line for line in said)
    (directory,) = (tmp_path / "out/0001").iterdir()
    assert read(directory).events == {"app": list(range(200))}
