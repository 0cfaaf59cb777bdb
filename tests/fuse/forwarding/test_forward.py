"""relayctl forward: what a NATS server's stream has of a recording."""

import os
import signal
import subprocess
from pathlib import Path

import google_crc32c
import pytest
import zstandard
from babeltrace import packets_in
from forking import RELAYCTL, start
from forwarding import files_in, forward, forwarding, make_recording, recorded_packets
from mounts import DEADLINE_S, wait_until
from tracing import catches, finish, recording, relayctl

HEAD_BYTES = 72


def test_each_packet_is_a_message_and_is_sent_once(nats, store, run, out):
    lost = make_recording(store, run, out, n_subbufs=4)
    assert lost > 0
    said = forward(out, nats)
    found = nats.subjects()
    packets = recorded_packets(out)
    assert len(packets) == 2
    for path, n in packets.items():
        process, name = path.split("/")
        assert n > 2
        assert found[f"relayfs.{os.uname().nodename}.out.{process}.{name}"] == n
        assert found[f"relayfs.{os.uname().nodename}.out.{process}.metadata"] == 1
    assert f": {sum(found.values())} messages, " in said
    assert said.endswith(f"sent to {nats.url}; 0 B behind, {lost} events lost\n")
    assert ": 0 messages, 0 B, sent to" in forward(out, nats)
    assert nats.subjects() == found


def test_messages_say_what_they_hold(nats, store, run, out):
    lost = make_recording(store, run, out, n_subbufs=4)
    forward(out, nats, "--host", "a.b c", "--as", "t*")
    seen: dict[str, bytes] = {}
    metadata: set[str] = set()
    losses: dict[str, int] = {}
    for message in nats.messages():
        headers, data = message.headers, message.data
        path = headers["Relay-Path"]
        process, _, name = path.rpartition("/")
        assert message.subject == f"relayfs.a%2Eb%20c.t%2A.{process or '%'}.{name.replace('.', '%2E')}"
        assert int(headers["Relay-Offset"]) == len(seen.get(path, b""))
        seen[path] = seen.get(path, b"") + data
        assert int(headers["Relay-End"]) == len(seen[path])
        assert headers["Relay-Packet"] == f"{headers['Relay-Offset']} {len(data)}"
        assert headers["Relay-Crc32c"] == f"{google_crc32c.value(data):08x}"
        losses[path] = int(headers["Relay-Lost"])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert headers["Nats-Msg-Id"] == f"{boot}:a%2Eb%20c.t%2A:{path}:{headers['Relay-Offset']}"
        if name == "metadata":
            metadata.add(process)
        # The metadata comes before the first packet that needs it.
        assert not name.startswith("cpu") or process in metadata
        assert ("Relay-Last" in headers) == (name.startswith("cpu") and len(seen[path]) == (out / path).stat().st_size)
    assert seen == {path: (out / path).read_bytes() for path in files_in(out)}
    assert sum(losses.values()) == lost


def test_a_large_packet_is_several_messages(nats, store, run, out):
    trace = store.create("t", subbuf_size=1 << 20, n_subbufs=4)
    app = run(trace, "app")
    assert app.write(50_000) == 0
    with recording("t", "--store", store.path, "-o", out) as process:
        finish(process)
    (path,) = recorded_packets(out)
    lengths = [packet.bits // 8 for packet, _ in packets_in((out / path).read_bytes())]
    assert max(lengths) > 1 << 19
    forward(out, nats)
    pieces = [len(message.data) for message in nats.messages() if message.subject.endswith(".cpu0")]
    assert max(pieces) == 256 << 10
    assert len(pieces) == sum(-(-n // (256 << 10)) for n in lengths)
    assert sum(pieces) == (out / path).stat().st_size
    assert ": 0 messages, " in forward(out, nats)


def test_messages_may_be_compressed(nats, store, run, out):
    make_recording(store, run, out)
    forward(out, nats, "--compress", "zstd")
    encodings = set()
    seen: dict[str, bytes] = {}
    for message in nats.messages():
        encodings.add(message.headers.get("Content-Encoding"))
        is_packed = "Content-Encoding" in message.headers
        data = zstandard.decompress(message.data) if is_packed else message.data
        path = message.headers["Relay-Path"]
        seen[path] = seen.get(path, b"") + data
    assert "zstd" in encodings
    assert seen == {path: (out / path).read_bytes() for path in files_in(out)}


def test_a_recording_that_is_compressed_is_sent_as_it_was(nats, store, run, out):
    make_recording(store, run, out)
    plain = {path: (out / path).read_bytes() for path in files_in(out)}
    for path in plain:
        if path != ".relayfs":
            subprocess.run(["zstd", "-q", "--rm", out / path], check=True)
    forward(out, nats)
    seen: dict[str, bytes] = {}
    for message in nats.messages():
        path = message.headers["Relay-Path"]
        seen[path] = seen.get(path, b"") + message.data
    assert seen == plain


def test_it_follows_a_recording_and_goes_on_where_another_has_ended(nats, store, run, out):
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out) as recorder:
        app = run(trace, "app")
        app.write_patiently(100)
        # The mark of the recording is there from the beginning.
        wait_until((out / ".relayfs").exists, "the recording")
        for n in range(3):
            with forwarding(out, nats) as process:
                app.write_patiently(500)
                # What another packet follows is sent while the file grows.
                before = n * 500
                wait_until(lambda n=before: events_in(nats) > n + 300, "events in the stream")
                process.kill()
        finish(recorder)
    forward(out, nats)
    packets = recorded_packets(out)
    assert sum(n for subject, n in nats.subjects().items() if ".cpu" in subject) == sum(packets.values())


def events_in(nats) -> int:
    heads = [message for message in nats.messages() if ".cpu" in message.subject]
    return sum((len(message.data) - HEAD_BYTES) // 28 for message in heads)


def test_metadata_is_sent_again_when_it_has_changed_and_before_what_needs_it(nats, store, run, out):
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out) as recorder, forwarding(out, nats, wait_for=out / ".relayfs"):
        app = run(trace, "app")
        app.write_patiently(300)
        wait_until(lambda: events_in(nats) > 100, "events in the stream")
        app.declare("second")
        app.write_patiently(300)
        wait_until(lambda: any(subject.endswith("cpu0_1") for subject in nats.subjects()), "the second file")
        finish(recorder)
    versions = 0
    for message in nats.messages():
        if message.subject.endswith(".metadata"):
            versions = message.data.count(b"\nevent {\n")
        if message.subject.endswith(".cpu0_1"):
            assert versions == 2
            break
    else:
        pytest.fail("no message of the second file")


def test_a_rate_is_kept(nats, store, run, out):
    """So that 10 KiB a second are two fifths of a recording of 25 KiB after a second."""
    make_recording(store, run, out)
    total = sum((out / path).stat().st_size for path in files_in(out))
    with forwarding(out, nats, "--rate", str(total // 4)) as process:
        began = os.times().elapsed
        wait_until(lambda: bytes_in(nats) >= total // 2, "half of it")
        took = os.times().elapsed - began
        process.kill()
    assert took > 0.5


def bytes_in(nats) -> int:
    return sum(len(message.data) for message in nats.messages())


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--to", "http://x"], "http://x is no address of a NATS server, as nats://HOST or nats://HOST:PORT"),
        (["--to", "nats://user:secret@"], "nats:// is no address of a NATS server, as nats://HOST or nats://HOST:PORT"),
        (["--to", "nats://x:port"], "nats://x:port is no address of a NATS server, as nats://HOST or nats://HOST:PORT"),
    ],
)
def test_wrong_addresses_are_refused(store, run, out, words, why):
    make_recording(store, run, out)
    done = relayctl("forward", out, *words, "--once")
    assert (done.returncode, done.stderr) == (1, f"relayctl: {why}\n")


@pytest.mark.parametrize("words", [["--rate", "0"], ["--host", "a/b"], ["--as", ".."], ["--compress", "gzip"]])
def test_wrong_options_are_refused(out, store, run, words):
    make_recording(store, run, out)
    done = relayctl("forward", out, "--to", "nats://127.0.0.1:1", *words)
    assert done.returncode == 2


def test_what_is_no_recording_is_refused(nats, out):
    done = relayctl("forward", out, "--to", nats.url)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {out}: No such file or directory\n")
    out.mkdir()
    done = relayctl("forward", out, "--to", nats.url)
    why = f"{out} is no recording of a trace by `relayctl record`: it has no .relayfs"
    assert (done.returncode, done.stderr) == (1, f"relayctl: {why}\n")


def test_a_stream_that_is_missing_is_named(running, store, run, out):
    make_recording(store, run, out)
    done = relayctl("forward", out, "--to", running.url)
    why = f"{running.url} has no stream RELAYFS; `relayctl fleet init` makes it"
    assert (done.returncode, done.stderr) == (1, f"relayctl: {why}\n")


def test_the_second_of_two_forwarders_is_refused_by_name(nats, store, run, out):
    """Of however many; the first one goes on, and nothing is sent twice."""
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out) as recorder:
        app = run(trace, "app")
        with forwarding(out, nats, wait_for=out / ".relayfs") as first:
            app.write_patiently(200)
            wait_until(lambda: events_in(nats) > 100, "events in the stream")
            command = [RELAYCTL, "forward", str(out), "--to", nats.url]
            with start(command, stderr=subprocess.PIPE, text=True) as second:
                wait_until(lambda: catches(second, signal.SIGTERM), "the second one")
                wait_until(lambda: app.write_patiently(300) >= 0 and second.poll() is not None, "its end")
                said = second.stderr.read()
            assert second.returncode == 1
            name = f"{os.uname().nodename} (pid {first.pid} since "
            assert said.startswith(f"relayctl: {out} is forwarded as {os.uname().nodename}/out by {name}"), said
            assert said.endswith(f"already, to {nats.url}: end that one first\n")
            assert first.poll() is None
            finish(recorder)
            first.send_signal(signal.SIGTERM)
            assert first.wait(DEADLINE_S) == 0
    forward(out, nats)
    assert sum(n for s, n in nats.subjects().items() if ".cpu" in s) == sum(recorded_packets(out).values())


def test_another_recording_of_the_same_name_is_refused(nats, store, run, out, tmp_path):
    make_recording(store, run, out)
    forward(out, nats)
    before = nats.subjects()
    other = tmp_path / "other/out"
    other.parent.mkdir()
    make_recording(store, run, other, name="u")
    done = relayctl("forward", other, "--to", nats.url, "--once")
    host = os.uname().nodename
    assert done.returncode == 1
    assert f"{nats.url} has another recording as {host}/out, which {host} (pid " in done.stderr
    assert "Choose another name with --host or --as\n" in done.stderr
    assert nats.subjects() == before
    forward(other, nats, "--as", "second")


def test_a_directory_that_was_recorded_anew_is_refused(nats, store, run, out, tmp_path):
    """Also of the same trace: what its files hold is compared with what the stream has."""
    trace = store.create("t")
    app = run(trace, "app")
    for n in (100, 300):
        app.write(n)
        with recording("t", "--store", store.path, "-o", out) as process:
            finish(process)
        if n == 100:
            forward(out, nats)
            subprocess.run(["rm", "-r", out], check=True)
    before = nats.subjects()
    done = relayctl("forward", out, "--to", nats.url, "--once")
    assert done.returncode == 1
    assert "that was another recording. Choose another name with --as or --host\n" in done.stderr
    assert nats.subjects() == before


def test_the_name_of_another_machine_is_refused(nats, store, run, out):
    make_recording(store, run, out)
    host = os.uname().nodename
    nats.publish((f"relayfs.{host}.x.y.metadata", b"x", {"Relay-Machine": "0123456789abcdef"}))
    done = relayctl("forward", out, "--to", nats.url, "--once")
    if Path("/etc/machine-id").exists():
        assert done.returncode == 1
        assert f"another machine, whose id is 0123456789abcdef, sends as {host}; the id of this one is " in done.stderr
    else:
        assert done.returncode == 0
    forward(out, nats, "--host", "another")


# --- a server that is full, or away ---


def test_a_full_server_is_waited_for(nats, store, run, out):
    make_recording(store, run, out)
    # The least that a stream can hold of it: a part.
    nats.make_stream("--max-bytes", "6K")
    with forwarding(out, nats) as process:
        line = process.stderr.readline()
        why = "the stream takes no message now (maximum bytes exceeded); waiting"
        assert line == f"relayctl: {nats.url}: {why}\n"
        assert sum(nats.subjects().values()) < 8
        nats.make_stream()
        wait_until(lambda: packets_in_stream(nats) == sum(recorded_packets(out).values()), "all packets")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert "0 B behind" in process.stderr.read()


def packets_in_stream(nats) -> int:
    return sum(n for subject, n in nats.subjects().items() if ".cpu" in subject)


def test_a_server_that_is_away_is_waited_for(nats, store, run, out):
    make_recording(store, run, out)
    nats.kill()
    try:
        with forwarding(out, nats, "--once", waits=False) as process:
            assert process.stderr.readline() == f"relayctl: {nats.url}: Connection refused; waiting\n"
            nats.start()
            assert process.wait(DEADLINE_S) == 0
    finally:
        if nats.process.poll() is not None:
            nats.start()
    assert packets_in_stream(nats) == sum(recorded_packets(out).values())


def test_what_was_sent_once_may_be_interrupted_as_any_program(nats, store, run, out):
    make_recording(store, run, out)
    nats.send_signal(signal.SIGSTOP)
    try:
        with forwarding(out, nats, "--once") as process:
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == -signal.SIGINT
    finally:
        nats.send_signal(signal.SIGCONT)
