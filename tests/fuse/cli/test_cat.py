"""relayctl cat: all buffers of a channel, consumed or not, at once or while programs write."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import forking
import pytest
from forking import RELAYCTL, run, start
from mounts import DEADLINE_S, NOBODY, Mount, wait_until
from tracing import relayctl
from traffic import write_in_turn

from relayfs_fuse import Channel
from relayfs_fuse.errors import MountError
from relayfs_fuse.shown import Shown

pytestmark = pytest.mark.one_mount

KINDS = {
    "relay": "subbuf_size=4K",
    "bulk": "delivery=bulk",
    "overwrite": "mode=overwrite buffers=single",
    "timed": "times=mono",
    "rings": "type=ring buffers=percpu times=mono",
    "length": "type=ring framing=length",
}


def cat(mount: Mount, *arguments: object) -> bytes:
    command = [RELAYCTL, "cat", *map(str, arguments), "--mount", mount.path]
    done = run(command, capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@contextmanager
def following(mount: Mount, tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    out = tmp_path / "out"
    command = [RELAYCTL, "cat", "app/cpu", "--follow", *arguments, "--mount", mount.path]
    with out.open("wb") as file, start(command, stdout=file, stderr=subprocess.PIPE) as process:
        try:
            yield process, out
            assert process.wait(DEADLINE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_it_has_what_cat_has_of_all_relay_files(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    records = [b"%d\n" % i * (i % 30 + 1) for i in range(500)]
    write_in_turn(channel, *records)
    relay_files = sorted(path for path in channel.parent.iterdir() if path.name.startswith("cpu"))
    peeked = cat(mount, "app/cpu", "--peek")
    assert mount.shown("app/cpu", "read_bytes") == "0"
    assert cat(mount, channel) == peeked
    assert cat(mount, "app/cpu") == cat(mount, "app/cpu", "--peek") == b""
    assert int(mount.shown("app/cpu", "read_records")) == len(records)
    write_in_turn(channel, *records)
    assert b"".join(path.read_bytes() for path in relay_files) == peeked


def test_records_with_times_are_merged(mount: Mount) -> None:
    records = [b"%d\n" % i for i in range(100)]
    for name, options in (("relay", "times=tsc"), ("rings", KINDS["rings"])):
        write_in_turn(mount.create(f"app/{name}", options), *records)
        for _ in range(2):
            assert cat(mount, f"app/{name}", "--merge") == b"".join(records)
    mount.create("app/cpu")
    done = relayctl("cat", "app/cpu", "--merge", "--mount", mount.path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the records of app/cpu have no times" in done.stderr


@pytest.mark.parametrize(
    ("options", "way"),
    [(KINDS[kind], way) for kind in ("timed", "rings", "bulk") for way in ("", "--peek", "--merge")][:-1],
)
def test_it_follows_a_channel_to_its_end(mount: Mount, tmp_path: Path, options: str, way: str) -> None:
    channel = mount.create("app/cpu", options)
    records = [b"%d\n" % i for i in range(200)]
    write_in_turn(channel, *records[:100])
    with following(mount, tmp_path, *([way] if way else [])) as (_, out):
        wait_until(lambda: len(out.read_bytes().splitlines()) == 100, lambda: f"{out.read_bytes()!r}")
        write_in_turn(channel, *records[100:])
        mount.command("remove app/cpu")
    lines = out.read_bytes().splitlines(keepends=True)
    assert (lines if way == "--merge" else sorted(lines, key=int)) == records


def test_a_signal_or_a_reader_that_has_gone_ends_it_and_loses_nothing(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/cpu", "buffers=single")
    write_in_turn(channel, b"one\n")
    with following(mount, tmp_path) as (process, out):
        wait_until(lambda: out.read_bytes() == b"one\n", "the record")
        process.send_signal(signal.SIGINT)
    # Nobody reads the pipe, which is full before the first sub-buffer was written. What was not written stays.
    lines = [b"%099d\n" % i for i in range(5000)]
    write_in_turn(channel, *lines)
    script = '"$@" | head -n 1; echo "${PIPESTATUS[*]}"'
    command = ["bash", "-c", script, "-", RELAYCTL, "cat", str(channel)]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    assert (done.stdout, done.stderr) == (lines[0] + b"0 0\n", b"")
    left = channel.read_bytes().splitlines(keepends=True)
    assert len(left) > 3000
    assert left == lines[-len(left) :]


# What the output has not taken stays, unless producers may overwrite it: then it is lost, and that is said.
STAYS = [KINDS[kind] for kind in ("relay", "bulk", "rings", "length")]
GOES = [KINDS["overwrite"], "type=ring mode=overwrite framing=line"]


def cat_to(output: IO[bytes], channel: Path) -> tuple[int, str]:
    done = run([RELAYCTL, "cat", channel], stdout=output, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    return done.returncode, done.stderr


@pytest.mark.parametrize("options", [*STAYS, *GOES])
def test_an_output_that_fails_loses_nothing_or_it_is_said(mount: Mount, options: str) -> None:
    channel = mount.create("app/cpu", options)
    records = [b"%06d\n" % i for i in range(100)]
    write_in_turn(channel, *records)
    there = cat(mount, "app/cpu", "--peek")
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full, open(writing, "wb") as nobody:
        outputs = {"No space left on device": full, "Broken pipe": nobody}
        if options in STAYS:
            assert cat_to(full, channel) == (1, "relayctl: No space left on device\n")
            assert cat_to(nobody, channel) == (0, "")
            assert cat(mount, "app/cpu", "--peek") == there
            return
        for why, output in outputs.items():
            lost = f"{len(there)} bytes are lost: they were consumed, and could not be written: {why}"
            assert cat_to(output, channel) == (1, f"relayctl: {lost}\n")
            assert cat(mount, "app/cpu") == b""
            write_in_turn(channel, *records)


def test_what_is_overwritten_meanwhile_is_not_written(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/cpu", "buffers=single mode=overwrite subbuf_size=4K n_subbufs=4")
    with following(mount, tmp_path) as (process, out), Channel(channel) as opened:
        for begin in range(0, 100_000, 1000):
            opened.write_many([b"%06d " % i * 8 + b"\n" for i in range(begin, begin + 1000)])
        wait_until(lambda: out.read_bytes().endswith(b"099999 \n"), "the last record")
        process.send_signal(signal.SIGTERM)
    lines = out.read_bytes().splitlines()
    assert all(line == line[:7] * 8 for line in lines)
    numbers = [int(line[:6]) for line in lines]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("mode", ["no-overwrite", "overwrite"])
@pytest.mark.parametrize("sizes", ["type=ring size=4M framing=line", "subbuf_size=1M n_subbufs=4"])
def test_it_ends_with_the_records_that_a_buffer_had_at_its_start(mount: Mount, sizes: str, mode: str) -> None:
    channel = mount.create("app/cpu", f"{sizes} buffers=single mode={mode}")
    # A line of a ring gets its end when it is read.
    records = [b"%09d" % i * 100 + b"\n" * ("ring" not in sizes) for i in range(400)]
    write_in_turn(channel, *records)
    with start([RELAYCTL, "cat", channel], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        begin = process.stdout.read(1)  # now it writes the first of several pieces to the pipe, which takes less
        for _ in range(3):
            write_in_turn(channel, *records)
        lines = (begin + process.stdout.read()).splitlines(keepends=True)
        assert process.wait(DEADLINE_S) == 0
    assert lines[:400] == [record.rstrip(b"\n") + b"\n" for record in records]
    assert len(lines) < 700


def test_a_text_of_a_mount_has_no_control_characters(tmp_path: Path) -> None:
    file = tmp_path / ".channels/c/state"
    file.parent.mkdir(parents=True)
    shown = Shown(str(tmp_path), "c")
    for text in (b"damaged: \xff", "damaged: é".encode()):
        file.write_bytes(text + b"\n")
        assert os.fsencode(shown.state()) == text
    for control in "\x1b\x7f\x80\x9b\x9f":
        file.write_text(f"damaged: {control}\n", encoding="utf-8")
        with pytest.raises(MountError, match="no line of text"):
            shown.state()


def test_it_says_what_it_cannot_read(mount: Mount) -> None:
    mount.create("app/cpu", "perm=0600")
    for name, said in (
        ("app/cp", f"there is no channel app/cp in {mount.path}; channels: app/cpu"),
        ("app/cpu0", f"app/cpu0 in {mount.path} is a relay file, for Reader and relay_reader_open(); its channel is"),
        ("app", f"app in {mount.path} is a directory, and no channel"),
    ):
        done = relayctl("cat", name, "--mount", mount.path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"relayctl: {said}")
    if os.geteuid() == 0:
        mount.path.parent.chmod(0o755)
        command = [RELAYCTL, "cat", mount.path / "app/cpu"]
        for more in ([], ["--peek"]):
            done = forking.run(
                [*command, *more], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True,
                timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout, "Permission denied" in done.stderr) == (1, "", True)
