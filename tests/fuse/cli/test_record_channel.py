"""relayctl record, of channels."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from forking import run
from mounts import DEADLINE_S, Mount, wait_until
from tracing import RELAYCTL, recording, relayctl

from relayfs_fuse import Channel
from relayfs_fuse.record.full import size_of

pytestmark = pytest.mark.one_mount


def write(channel: Path, *records: bytes) -> None:
    """Write records in turn on the first and the last CPU."""
    cpus = os.sched_getaffinity(0)
    with Channel(channel) as opened:
        for i, record in enumerate(records):
            os.sched_setaffinity(0, {max(cpus) if i % 2 else min(cpus)})
            opened.write(record)
    os.sched_setaffinity(0, cpus)


def recorded(directory: Path) -> list[bytes]:
    """Return all lines, in the order of their numbers."""
    return sorted((line for file in directory.iterdir() for line in file.read_bytes().splitlines()), key=int)


@pytest.mark.parametrize("options", ["delivery=bulk subbuf_size=4K", "times=mono", "buffers=single mode=overwrite"])
def test_a_channel_is_recorded_to_its_end(mount: Mount, tmp_path: Path, options: str) -> None:
    channel = mount.create("app/cpu", options)
    numbers = [b"%d" % i for i in range(600)]
    write(channel, *(number + b"\n" for number in numbers[:200]))
    out = tmp_path / "new/out"
    with recording("app/cpu", "-o", out, "--mount", mount.path) as recorder:
        wait_until((out / "cpu0").exists, "its files")
        write(channel, *(number + b"\n" for number in numbers[200:300]))
        recorder.send_signal(signal.SIGINT)
        said = recorder.communicate(timeout=DEADLINE_S)[1]
        assert recorder.returncode == 0, said
    assert said.startswith("app/cpu: 1.09 kB of ")
    assert said.endswith(f" to {out}, 0 records lost\n")
    assert recorded(out) == numbers[:300]
    # It is continued, while nobody records what is written stays in the channel, and the removal ends it.
    write(channel, *(number + b"\n" for number in numbers[300:400]))
    with recording(channel, "-o", out, "--json") as recorder:
        wait_until(lambda: recorded(out)[-1:] == [b"399"] or "bulk" in options, "what was there")
        write(channel, *(number + b"\n" for number in numbers[400:]))
        mount.command("remove app/cpu")
        assert recorder.communicate(timeout=DEADLINE_S)[1] == ""
        assert recorder.returncode == 0
    assert recorded(out) == numbers


def test_losses_are_said(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/cpu", "buffers=single subbuf_size=4K n_subbufs=2")
    with recording("app/cpu", "-o", tmp_path, "--mount", mount.path) as recorder:
        wait_until((tmp_path / "cpu0").exists, "its file")
        recorder.send_signal(signal.SIGSTOP)
        lost = 0
        with Channel(channel) as opened:
            for number in range(5000):
                try:
                    opened.write(b"%d\n" % number)
                except OSError:
                    lost += 1
        recorder.send_signal(signal.SIGCONT)
        recorder.terminate()
        said = recorder.communicate(timeout=DEADLINE_S)[1]
    assert lost > 0
    assert said.endswith(f", {lost} records lost\n")
    assert len(recorded(tmp_path)) == 5000 - lost


def test_a_full_disk_loses_nothing(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/cpu", "buffers=single")
    (tmp_path / "cpu0").symlink_to("/dev/full")
    write(channel, b"1\n")
    done = relayctl("record", "app/cpu", "-o", tmp_path, "--duration", 0.1, "--mount", mount.path)
    assert done.returncode == 1
    assert done.stderr.endswith("app/cpu: No space left on device; what was not written is still in the channel\n")
    assert channel.read_bytes() == b"1\n"


@pytest.mark.parametrize("options", ["subbuf_size=4K n_subbufs=64", "type=ring framing=line size=256K"])
def test_max_is_a_bound_and_what_has_no_room_stays_in_the_channel(mount: Mount, tmp_path: Path, options: str) -> None:
    channel = mount.create("app/cpu", f"buffers=single {options}")
    lines = b""
    with channel.open("wb", buffering=0) as opened:
        for number in range(2000):
            line = b"%d".ljust(99) % number + b"\n"
            opened.write(line)
            lines += line
    file = tmp_path / "out/cpu0"
    for most in (64 << 10, 100 << 10):
        done = relayctl("record", channel, "-o", file.parent, "--max", most, "--duration", 0)
        assert done.returncode == 1
        assert re.search(
            rf"app/cpu: no.*: the files in {file.parent} take \d+ bytes, and --max permits {most}; "
            "what was not written is still in the channel\n$", done.stderr,
        )  # fmt: skip
        assert most - (16 << 10) < size_of(str(file.parent)) <= most
        assert file.stat().st_size + int(mount.shown("app/cpu", "unread_bytes")) >= len(lines)
    assert relayctl("record", channel, "-o", file.parent, "--max", "1M", "--duration", 0).returncode == 0
    assert file.read_bytes() == lines


def test_with_wait_it_goes_on_when_there_is_room(mount: Mount, tmp_path: Path) -> None:
    """A removal meanwhile takes nothing away."""
    channel = mount.create("app/cpu", "buffers=single subbuf_size=4K n_subbufs=64")
    lines = [b"%d".ljust(99) % number + b"\n" for number in range(2000)]
    write(channel, *lines)
    out = tmp_path / "out"
    with recording(channel, "-o", out, "--max", "64K", "--duration", "0", "--wait") as recorder:
        assert recorder.stderr is not None
        assert recorder.stderr.readline().endswith("--max permits 65536; the recording waits until there is room\n")
        mount.command("remove app/cpu")
        found = b""
        while recorder.poll() is None:
            found += moved(out / "cpu0", len(found))
            time.sleep(0.01)
        assert recorder.returncode == 0, recorder.stderr.read()
    found += moved(out / "cpu0", len(found))
    assert found.splitlines(keepends=True) == lines


def moved(path: Path, start: int) -> bytes:
    """Return what a file has from there on, and free its room."""
    with path.open("rb") as file:
        data = os.pread(file.fileno(), 1 << 30, start)
    if end := start + len(data) & -4096:
        run(["fallocate", "--punch-hole", "--length", str(end), path], check=True)
    return data


def test_json_and_what_is_refused(mount: Mount, tmp_path: Path) -> None:
    channel = mount.create("app/cpu")
    mount.create("app/ring", "type=ring")
    write(channel, b"12\n")
    command = [RELAYCTL, "record", channel, "-o", tmp_path / "out", "--duration", "0.1", "--json"]
    told = json.loads(run(command, capture_output=True, timeout=DEADLINE_S, check=True).stdout)
    assert told == {
        "channel": str(channel), "output": str(tmp_path / "out"), "bytes": 3, "lost": 0,
        "buffers": int(mount.shown("app/cpu", "n_buffers")),
    }  # fmt: skip
    here = "--mount", mount.path
    done = relayctl("record", "app/ring", "-o", tmp_path / "out", "--duration", 0.1, *here)
    said = f"app/ring: 0 B of 1 buffers to {tmp_path / 'out'}, 0 records lost, each record after its length\n"
    assert (done.returncode, done.stderr) == (0, said)
    for options in (["-o", "-"], ["-o", tmp_path, "--compress"], ["-o", tmp_path, "--until-stopped"]):
        done = relayctl("record", "app/cpu", *options, *here)
        assert done.returncode == 2
        assert "is for traces; app/cpu is a channel, which has records" in done.stderr
    assert relayctl("record", "app/cp", "-o", tmp_path / "none", *here).returncode == 1
    assert not (tmp_path / "none").exists()
