"""relayctl fleet: what a stream tells of those who forward and receive, and the stream's settings."""

import json
import os
import re
from datetime import UTC, datetime, timedelta

import pytest
from forwarding import files_in, forward, forwarding, make_recording, receive
from nats_server import STREAM
from tracing import relayctl

HOST = os.uname().nodename


def fleet(nats, *words: str) -> list[dict]:
    done = relayctl("fleet", *words, "--to", nats.url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_shows_what_was_forwarded_and_who_receives_it(nats, store, run, out, tmp_path):
    lost = make_recording(store, run, out, n_subbufs=4)
    assert lost > 0
    total = sum((out / path).stat().st_size for path in files_in(out))
    forward(out, nats, "--host", "a.b", "--as", "one")
    receive(tmp_path / "into", nats)
    forward(out, nats, "--host", "c d", "--as", "two")
    first, second, receiver, stream = fleet(nats)
    for shown, host, recording in ((first, "a.b", "one"), (second, "c d", "two")):
        assert (shown["kind"], shown["host"], shown["recording"]) == ("recording", host, recording)
        assert (shown["files"], shown["bytes"], shown["lost"]) == (len(files_in(out)), total, lost)
        assert shown["behind"] == 0
        assert datetime.now(UTC) - datetime.fromisoformat(shown["last_seen"]) < timedelta(minutes=30)
    n = sum(nats.subjects().values())
    assert first["messages"] == second["messages"] == n // 2
    assert datetime.fromisoformat(receiver.pop("waits_since")) <= datetime.fromisoformat(second["last_seen"])
    assert receiver == {
        "kind": "receiver", "name": (tmp_path / "into/.received/name").read_text().strip(),
        "directory": str(tmp_path / "into"), "behind": n // 2,
    }  # fmt: skip
    assert (stream["kind"], stream["messages"], stream["max_bytes"]) == ("stream", n, 1 << 30)
    receive(tmp_path / "into", nats)
    receiver = fleet(nats, "list")[2]
    assert (receiver["behind"], receiver["waits_since"]) == (0, None)
    done = relayctl("fleet", "--to", nats.url)
    lines = done.stdout.splitlines()
    assert re.fullmatch(rf"a\.b +one +\d+ +{n // 2} +[\d.]+K +0 +- +{lost} +\d+[smh] ago", lines[0])
    assert re.fullmatch(rf"{tmp_path}/into +0 +-", lines[2])
    assert re.fullmatch(rf"{n} messages, [\d.]+K of 1\.0G", lines[3])
    assert done.stderr == ""


def test_it_shows_what_a_host_has_not_sent(nats, store, run, out):
    """As when it has crashed: what its last messages say."""
    make_recording(store, run, out, 5000)
    nats.make_stream("--max-bytes", "60K")
    with forwarding(out, nats) as process:
        assert "the stream takes no message now" in process.stderr.readline()
        process.kill()
    (shown, stream) = fleet(nats)
    assert stream["max_bytes"] == 60 << 10
    sent = sum(len(message.data) for message in nats.messages() if ".cpu" in message.subject)
    total = sum((out / path).stat().st_size for path in files_in(out) if "/cpu" in path)
    assert 0 < shown["behind"] <= total - sent


def test_a_name_that_two_machines_have_is_said(nats):
    words = {
        "Relay-Path": "p-1/cpu0", "Relay-Offset": "0", "Relay-End": "0", "Relay-Packet": "0 0", "Relay-Lost": "0",
        "Relay-Crc32c": "0",
    }  # fmt: skip
    nats.publish(
        *((f"relayfs.h.{n}.p-1.cpu0", b"", {**words, "Relay-Machine": machine}) for n, machine in enumerate("abb"))
    )
    nats.publish(("relayfs.h.0.p-1.other", b"", {}))
    done = relayctl("fleet", "--to", nats.url)
    assert (done.returncode, done.stderr) == (0, "relayctl: 2 machines forward as h: their ids are a, b\n")
    assert len(done.stdout.splitlines()) == 4


def test_the_settings_of_a_stream_can_be_changed(nats):
    async def settings(stream):
        return (await stream.stream_info(STREAM)).config

    one = nats.ask(settings)
    assert (one.max_bytes, one.max_age, one.discard, one.num_replicas) == (1 << 30, 0, "new", 1)
    done = relayctl("fleet", "init", "--to", nats.url, "--max-bytes", "2G", "--max-age", "7d")
    assert (done.returncode, done.stdout) == (0, "stream RELAYFS has these settings: 2.0G, 1 replicas\n")
    one = nats.ask(settings)
    assert (one.max_bytes, one.max_age, one.discard) == (2 << 30, 7 * 86400, "new")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--max-bytes", "100G"],
            "stream RELAYFS: insufficient storage resources available; see --max-bytes, and max_file_store of the "
            "server, 3/4 of the free disk unless it is set",
        ),
        (["--max-bytes", "1G", "--replicas", "3"], "stream RELAYFS: replicas > 1 not supported in non-clustered mode"),
    ],
)
def test_what_the_server_refuses_is_said(running, words, why):
    done = relayctl("fleet", "init", "--to", running.url, *words)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {running.url}: {why}\n")


@pytest.mark.parametrize("words", [["init"], ["init", "--max-bytes", "0"], ["nonsense"]])
def test_wrong_words_are_refused(words):
    assert relayctl("fleet", *words, "--to", "nats://127.0.0.1:1").returncode == 2
