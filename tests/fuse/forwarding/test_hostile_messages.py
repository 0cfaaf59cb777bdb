"""relayctl receive and messages that no forwarder sends: each is refused, named and counted, and harms nothing."""

import os
import struct
import subprocess
from pathlib import Path

import google_crc32c
import pytest
import zstandard
from babeltrace import MAGIC, PACKET, read
from forking import RELAYCTL
from forwarding import files_in, forward, make_recording, receive, receiving, same
from mounts import wait_until
from tracing import relayctl

HOST = os.uname().nodename
SUBJECT = "relayfs.h.r.p-1.cpu0"
MANY = 1 << 61


def packet(n_bytes: int = 200, number: int = 0) -> bytes:
    head = PACKET.pack(MAGIC, 0, 0, 8 * n_bytes, 0, number, 2000, 1000, 8 * n_bytes, 0, 1)
    return head + bytes(n_bytes - len(head))


def headers(data: bytes, path: str = "p-1/cpu0", offset: int = 0, **changes: str) -> dict[str, str]:
    """Those of a message that is right, but for the changes."""
    found = {
        "Relay-Path": path, "Relay-Offset": str(offset), "Relay-End": str(offset + len(data)),
        "Relay-Packet": f"{offset} {len(data)}", "Relay-Lost": "0", "Relay-Crc32c": f"{google_crc32c.value(data):08x}",
    }  # fmt: skip
    return {**found, **{name.replace("_", "-"): value for name, value in changes.items()}}


GOOD = packet()
PACKED = zstandard.compress(bytes(1 << 26))
LONG = 1 << 26

# By what is wrong: subject, data, headers, and what is said.
MESSAGES: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "no headers": (SUBJECT, GOOD, {}, "Relay-Path: None is not the file of the subject, p-1/cpu0"),
    "parent directory": (
        "relayfs.h.r.%2E%2E.cpu0", GOOD, headers(GOOD, "../cpu0"), "'../cpu0' is no file of a recording"
    ),
    "parent of a host": ("relayfs.%2E%2E.r.p-1.cpu0", GOOD, headers(GOOD), "'..' and 'r' are no names of a host"),
    "the receiver's own directory": ("relayfs.%2Ereceived.r.p-1.cpu0", GOOD, headers(GOOD), "'.received' and 'r'"),
    "absolute": (
        "relayfs.h.r.%2Fetc.cpu0", GOOD, headers(GOOD, "/etc/cpu0"), "'/etc/cpu0' is no file of a recording"
    ),
    "deep": ("relayfs.h.r.a%2Fb%2Fc.cpu0", GOOD, headers(GOOD, "a/b/c/cpu0"), "'a/b/c/cpu0' is no file"),
    "null byte": ("relayfs.h.r.p%00.cpu0", GOOD, headers(GOOD, "p%00/cpu0"), "'p\\x00/cpu0' is no file"),
    "other file": ("relayfs.h.r.p-1.passwd", GOOD, headers(GOOD, "p-1/passwd"), "'p-1/passwd' is no file"),
    "many tokens": (f"{SUBJECT}.x", GOOD, headers(GOOD), "is no relayfs.HOST.TRACE.PROCESS.STREAM"),
    "other spelling": ("relayfs.%68.r.p-1.cpu0", GOOD, headers(GOOD), "'%68' is no token of a subject"),
    "other path": (SUBJECT, GOOD, headers(GOOD, "../../x"), "Relay-Path: '../../x' is not the file of the subject"),
    "huge offset": (SUBJECT, GOOD, headers(GOOD, offset=MANY), "it would have more than 268435456 bytes"),
    "too large a number": (SUBJECT, GOOD, headers(GOOD, offset=1 << 63), "is more than 4611686018427387904"),
    "negative": (SUBJECT, GOOD, headers(GOOD, offset=-72), "Relay-Offset: '-72' is no number"),
    "no number": (SUBJECT, GOOD, headers(GOOD, Relay_Lost="x"), "Relay-Lost: 'x' is no number"),
    "checksum": (SUBJECT, GOOD, headers(GOOD, Relay_Crc32c="00000000"), "another checksum than the header"),
    "length": (SUBJECT, GOOD + b"x", headers(GOOD), "it has 201 bytes; it should have those from 0 to 200"),
    "outside of its packet": (SUBJECT, GOOD, headers(GOOD, Relay_Packet="0 100"), "bytes 0 to 200 are none of 100"),
    "large packet": (SUBJECT, GOOD, headers(GOOD, Relay_Packet=f"0 {1 << 40}"), "or these are more than 134217728"),
    "no packet": (SUBJECT, b"x" * 200, headers(b"x" * 200), "there is no packet of 200 bytes at 0"),
    "shorter packet": (SUBJECT, GOOD[:150], headers(GOOD[:150]), "there is no packet of 150 bytes at 0"),
    "number of packet": (
        SUBJECT, packet(number=(1 << 64) - 1), headers(packet(number=(1 << 64) - 1)), "there is no packet of 200 bytes"
    ),
    "end without a beginning": (
        SUBJECT, packet(72), headers(packet(72), Relay_Last="1"), "the file ends before it has begun"
    ),
    "bomb": (SUBJECT, PACKED, headers(GOOD, Content_Encoding="zstd"), "or has more than 262144"),
    "no zstd": (SUBJECT, GOOD, headers(GOOD, Content_Encoding="zstd"), "Content-Encoding: "),
    "other encoding": (SUBJECT, GOOD, headers(GOOD, Content_Encoding="gzip"), "Content-Encoding: 'gzip' is not zstd"),
    "middle of a packet": (
        SUBJECT, GOOD, headers(GOOD, offset=200, Relay_Packet="0 500"), "what is before byte 200 of its packet is"
    ),
    "large metadata": (
        "relayfs.h.r.p-1.metadata", GOOD, headers(GOOD, "p-1/metadata", Relay_Packet=f"0 {LONG}"),
        f"{LONG} bytes are more than the 4259840",
    ),
    "digits of another script": (
        "relayfs.h.r.p-1.cpu%D9%A3", GOOD, headers(GOOD, "p-1/cpu%D9%A3"), "'p-1/cpu\N{ARABIC-INDIC DIGIT THREE}' is no"
    ),
    "hole": (
        "relayfs.h.r.%2Edamaged%2Fp-1.why", GOOD, headers(GOOD, ".damaged/p-1/why", MANY),
        f"{MANY} bytes before a message are missing",
    ),
}  # fmt: skip


def test_wrong_messages_are_refused_and_harm_nothing(nats, store, run, out, tmp_path):
    """All of them in one stream, before, between and behind those of a recording."""
    make_recording(store, run, out)
    messages, reasons = [one[:3] for one in MESSAGES.values()], [one[3] for one in MESSAGES.values()]
    numbers = nats.publish(*messages)
    forward(out, nats)
    wrong = dict(zip([*numbers, *nats.publish(*messages)], 2 * reasons, strict=True))
    before = sorted(tmp_path.rglob("*"))
    into = tmp_path / "a/b/into"
    said = receive(into, nats).splitlines()
    assert said[-1].endswith(f", {len(wrong)} messages refused, received from {nats.url}")
    for line, (sequence, why) in zip(said[:-1], wrong.items(), strict=False):
        assert line.startswith(f"relayctl: message {sequence} of RELAYFS is refused: "), line
        assert why in line
    # The first twenty of them; further ones are only counted.
    assert len(said) == 21
    assert said[-2].endswith("; further ones are counted only")
    assert same(out, into / HOST / "out")
    assert [path for path in files_in(into) if path.startswith(("h/", "..", "r/", "p"))] == []
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path not in before and not path.is_relative_to(tmp_path / "a")
    ] == []
    assert receive(into, nats).splitlines() == [f"relayctl: 0 messages, 0 B, received from {nats.url}"]


@pytest.mark.parametrize("what", list(MESSAGES)[20:])
def test_further_ones_are_named_too(nats, tmp_path, what):
    subject, data, words, why = MESSAGES[what]
    (sequence,) = nats.publish((subject, data, words))
    said = receive(tmp_path / "into", nats)
    assert f"relayctl: message {sequence} of RELAYFS is refused: " in said
    assert why in said


def test_names_are_not_those_of_the_receivers_own_files(nats, tmp_path):
    """Hosts `turn` and `name`, and processes beside whose files the first messages of a packet are kept."""
    whole = packet(400)
    for host in ("turn", "name"):
        nats.publish((f"relayfs.{host}.r.p-1.metadata", b"x", headers(b"x", "p-1/metadata")))
    # Each of the others' paths is one that the receiver has used for the file before.
    processes = {"0001": "0001", "0001%2Fcpu0%2E0": "0001/cpu0.0", "0001%2Fcpu0%2Eknown": "0001/cpu0.known"}
    for at in (0, 200):
        for token, process in processes.items():
            words = headers(whole[at : at + 200], f"{process}/cpu0", at, Relay_Packet="0 400")
            nats.publish((f"relayfs.h.r.{token}.cpu0", whole[at : at + 200], words))
    said = receive(tmp_path / "into", nats)
    assert said == f"relayctl: 8 messages, 1.2 kB, received from {nats.url}\n"
    for host in ("turn", "name"):
        assert (tmp_path / "into" / host / "r/p-1/metadata").read_bytes() == b"x"
    for process in processes.values():
        assert (tmp_path / "into/h/r" / process / "cpu0").read_bytes()[:400] == whole


def test_names_in_messages_command_no_terminal(nats, tmp_path):
    nats.publish(("relayfs.%1B%5B2J.r.p-1.cpu0", GOOD, headers(GOOD, offset=300)))
    said = receive(tmp_path / "into", nats)
    assert said.startswith("relayctl: \\x1b[2J/r/p-1/cpu0: 300 bytes are missing, which the stream does not have\n")


def test_a_mark_that_is_no_text_is_another_recordings(nats, tmp_path):
    nats.publish(("relayfs.h.r.%.%2Erelayfs", b"\xff", headers(b"\xff", ".relayfs")), (SUBJECT, GOOD, headers(GOOD)))
    said = receive(tmp_path / "into", nats)
    assert "is refused: h/r is another recording here: \N{REPLACEMENT CHARACTER}\n" in said
    assert "1 messages, 1 B, 1 messages refused, received" in said


def test_a_file_in_the_place_of_a_host_stays(nats, tmp_path):
    own = tmp_path / "into/h"
    own.parent.mkdir()
    own.write_text("own")
    nats.publish((SUBJECT, GOOD, headers(GOOD)))
    assert f"is refused: {own} is no directory\n" in receive(tmp_path / "into", nats)
    assert own.read_text() == "own"


def test_files_that_the_disk_cannot_have_are_refused(nats, tmp_path):
    """ext4 has none of 16 TiB; a limit of this receiver stands for that."""
    nats.publish(*(("relayfs.h.r.%.x0", b"x", headers(b"x", "x0", at)) for at in (1 << 20, 1 << 30)))
    command = ["prlimit", f"--fsize={1 << 21}", RELAYCTL, "receive", "--from", nats.url, "-o", tmp_path, "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/h/r/x0: no file can have {1 << 30} bytes there\n" in done.stderr
    assert (tmp_path / "h/r/x0").stat().st_size == (1 << 20) + 1


@pytest.mark.parametrize("at", ["h", "h/r", "h/r/p-1", "h/r/p-1/cpu0"])
def test_symbolic_links_are_not_followed(nats, tmp_path, at):
    victim = tmp_path / "victim"
    victim.mkdir()
    link = tmp_path / "into" / at
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    nats.publish((SUBJECT, GOOD, headers(GOOD)))
    said = receive(tmp_path / "into", nats)
    assert f"is refused: {link} is no {'regular file' if at.endswith('cpu0') else 'directory'}\n" in said
    assert list(victim.iterdir()) == []


def test_what_a_file_has_is_not_changed_by_other_bytes(nats, store, run, out, tmp_path):
    make_recording(store, run, out)
    forward(out, nats, "--host", "h", "--as", "r")
    into = tmp_path / "into"
    receive(into, nats)
    (path,) = (path for path in files_in(out) if path.startswith("one-") and path.endswith("cpu0"))
    process = path.partition("/")[0]
    origin = nats.messages()[-1].headers["Relay-Origin"]
    for offset in (0, 72):
        nats.publish((f"relayfs.h.r.{process}.cpu0", GOOD, headers(GOOD, path, offset, Relay_Origin=origin)))
    said = receive(into, nats)
    assert said.count("is refused: ") == 2
    assert same(out, into / "h/r")


def test_what_is_missing_before_a_message_is_an_empty_packet(nats, tmp_path):
    """Its file has an empty packet there; the metadata that it needs does not exist."""
    words = headers(GOOD, offset=300, Relay_Metadata=str(MANY), Relay_Previous="0")
    nats.publish((SUBJECT, GOOD, words), (SUBJECT, GOOD, headers(GOOD, offset=600)))
    said = receive(tmp_path / "into", nats)
    for n in (300, 100):
        assert f"h/r/p-1/cpu0: {n} bytes are missing, which the stream does not have\n" in said
    data = (tmp_path / "into/h/r/p-1/cpu0").read_bytes()
    assert data[600:800] == GOOD
    assert struct.unpack_from("<I", data) == (MAGIC,)


def test_a_message_that_needs_metadata_of_the_far_future_keeps_a_receiver_from_none(nats, tmp_path):
    """It has done without, and goes on."""
    recording = tmp_path / "into/h/r"
    with receiving(tmp_path / "into", nats):
        nats.publish((SUBJECT, GOOD, headers(GOOD, Relay_Metadata=str(1 << 62))))
        wait_until((recording / "p-1/cpu0").exists, "the packet")
        nats.publish(("relayfs.h.r.p-1.metadata", b"x", headers(b"x", "p-1/metadata")))
        nats.publish(("relayfs.h.r.p-2.cpu0", GOOD, headers(GOOD, "p-2/cpu0")))
        wait_until((recording / "p-2/cpu0").exists, "what comes later")
    assert (recording / "p-1/metadata").read_bytes() == b"x"


def test_a_forwarder_says_which_message_of_its_files_is_none_of_a_forwarder(nats, store, run, out):
    make_recording(store, run, out)
    forward(out, nats)
    last = nats.messages()[-1]
    origin, forwarder = last.headers["Relay-Origin"], f"h 1 {10**30}"
    for words, why in (
        ({"Relay-Origin": "other", "Relay-Forwarder": forwarder}, "which h (pid 1) has sent"),
        ({"Relay-Origin": origin, "Relay-Forwarder": forwarder}, f"{last.subject}, is none that a forwarder sends: "),
    ):
        (sequence,) = nats.publish((last.subject, b"", words))
        done = relayctl("forward", out, "--to", nats.url, "--once")
        assert done.returncode == 1
        assert why in done.stderr
        assert "Traceback" not in done.stderr
        nats.delete(sequence)
    forward(out, nats)


def test_an_empty_packet_has_any_length(nats, tmp_path):
    """Also one that has no room for two headers."""
    nats.publish((SUBJECT, GOOD, headers(GOOD, offset=100)))
    receive(tmp_path / "into", nats)
    data = (tmp_path / "into/h/r/p-1/cpu0").read_bytes()
    assert (PACKET.unpack_from(data)[3], data[100:300]) == (8 * 100, GOOD)


def test_scribbled_state_is_no_trap(nats, store, run, out, tmp_path):
    make_recording(store, run, out)
    forward(out, nats)
    into = tmp_path / "into"
    receive(into, nats)
    for path in (into / ".received").rglob("*.known"):
        path.write_bytes(b"\xff" * 100)
    (into / ".received/name").unlink()
    receive(into, nats)
    assert same(out, into / HOST / "out")
    assert read(into / HOST).events["one"] == list(range(1000))
    assert Path(into / ".received/name").exists()
