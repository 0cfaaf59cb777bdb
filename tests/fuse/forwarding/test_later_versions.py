"""relayctl receive and files that only later versions forward: kept as they are, if nobody takes them for events."""

import json
import os
import time
from pathlib import Path

import google_crc32c
import pytest
from babeltrace import read
from forwarding import forward, make_recording, receive
from tracing import relayctl

HOST = os.uname().nodename
# By its path: what the file of a later version holds in the end.
WHOLE = {".shape": b"second", "PROCESS/.objects": b"second", ".later/a/b": b"second"}
APPENDED = {"spans.jsonl": b"one\ntwo\n", ".spans/PROCESS": b"one\ntwo\n", "0001/PROCESS/.spans": b"one\ntwo\n"}
REFUSED = [
    "metadata", "PROCESS/metadata.zst", "PROCESS/spans", ".a.b/x", ".new-x", "PROCESS/.cpu0", ".later/metadata",
    ".later/.b/x", "a/b/c/d/.x", ".later/a/b/c/x", f".{'x' * 240}", f"PROCESS/.{'x' * 254}", ".later/PROCESS/..",
]  # fmt: skip


def subject(path: str) -> str:
    directory, _, name = path.rpartition("/")
    quoted = directory.replace(".", "%2E").replace("/", "%2F") or "%"
    return f"relayfs.{HOST}.out.{quoted}.{name.replace('.', '%2E')}"


def message(
    path: str, data: bytes, at: int, origin: str, unit: str = "", **more: str
) -> tuple[str, bytes, dict[str, str]]:
    headers = {
        "Relay-Path": path, "Relay-Offset": str(at), "Relay-End": str(at + len(data)), "Relay-Lost": "0",
        "Relay-Packet": unit or f"{at} {len(data)}", "Relay-Crc32c": f"{google_crc32c.value(data):08x}",
        "Relay-Origin": origin,
    }  # fmt: skip
    return subject(path), data, headers | {name.replace("_", "-"): value for name, value in more.items()}


@pytest.fixture
def sent(nats, store, run, out: Path) -> tuple[str, str]:
    """A recording is forwarded; the name of one of its processes, and the recording's origin as a message has it."""
    make_recording(store, run, out)
    forward(out, nats)
    process = min(path.name for path in out.glob("one-*"))
    return process, nats.messages()[0].headers["Relay-Origin"]


def test_what_a_receiver_does_not_know_is_kept(nats, sent, out, tmp_path):
    process, origin = sent
    whole = {path.replace("PROCESS", process): text for path, text in WHOLE.items()}
    appended = {path.replace("PROCESS", process): text for path, text in APPENDED.items()}
    for path in whole:
        nats.publish(message(path, b"first", 0, origin, Relay_Version="1"))
        nats.publish(message(path, b"sec", 5, origin, "5 6", Relay_Version="2"))
        nats.publish(message(path, b"ond", 8, origin, "5 6", Relay_Version="2"))
    for path in appended:
        nats.publish(message(path, b"one\n", 0, origin), message(path, b"two\n", 4, origin))
    into = tmp_path / "into"
    for _ in range(2):
        assert "refused" not in receive(into, nats)
        for path, text in {**whole, **appended}.items():
            assert (into / HOST / "out" / path).read_bytes() == text
        # All comes once more.
        (into / ".received/name").unlink()
    assert read(into) == read(out)
    assert relayctl("view", into).returncode == 0
    shown, *_ = map(json.loads, relayctl("fleet", "--to", nats.url, "--json").stdout.splitlines())
    n_bytes = sum(path.stat().st_size for path in (into / HOST).rglob("*") if path.is_file())
    assert (shown["host"], shown["bytes"]) == (HOST, n_bytes)


def test_they_go_with_what_they_are_beside(nats, sent, tmp_path):
    process, origin = sent
    into = tmp_path / "into"
    for path in (".shape", f"{process}/.objects"):
        nats.publish(message(path, b"x", 0, origin, Relay_Version="1"))
    receive(into, nats)
    for path in [*into.rglob("cpu0"), into / HOST / "out/.clocks"]:
        os.utime(path, (time.time() - 9999, time.time() - 9999))
    receive(into, nats, "--keep", "1h")
    assert sorted(path.name for path in into.iterdir()) == [".received"]


@pytest.mark.parametrize("path", REFUSED)
def test_what_would_be_taken_for_something_else_is_refused(nats, sent, out, tmp_path, path):
    process, origin = sent
    path, into = path.replace("PROCESS", process), tmp_path / "into"
    # Half of a unit is kept beside the file, under a longer name.
    for unit in ("0 4", "0 5"):
        nats.publish(message(path, b"evil", 0, origin, unit))
    said = receive(into, nats)
    assert said.count(" is refused: ") == 2, said
    assert "is no file of a recording" in said
    assert not (into / HOST / "out" / path).exists() or path.endswith("..")
    assert read(into) == read(out)
