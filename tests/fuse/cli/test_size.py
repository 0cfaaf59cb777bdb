"""relayctl size: a channel that is made as it says loses nothing, wherever its reader stopped."""

import errno
import json
import os

import click
import pytest
from click.testing import CliRunner
from mounts import Mount

from relayfs_fuse import Channel, Ring, native
from relayfs_fuse.cli.relayctl import relayctl

pytestmark = pytest.mark.one_mount

NOTHING_FREE = 1
WRONG = 2


def suggest(mount: Mount, *arguments: object, status: int = 0) -> list[dict]:
    words = ["size", "--json", "--mount", str(mount.path), *map(str, arguments)]
    done = CliRunner().invoke(relayctl, words, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return json.loads(done.output)["suggestions"]


@pytest.mark.parametrize("record", [1, 100, 1000, 5000])
def test_relay_channels_keep_what_is_written_while_the_reader_is_away(mount: Mount, record: int) -> None:
    *_, one = suggest(mount, "--records", 100, "--record", record, "--delay", 3)
    assert one["writers"] == "any, into one buffer"
    assert one["lasts"] >= 3
    promised = round(one["lasts"] * 100)
    path = mount.create("app/sized", one["create"].removeprefix("create PATH "))
    assert one["memory"] == os.stat(mount.store / "app/sized/mem0").st_size
    with Channel(path) as channel:
        # The worst place for the reader to stop: the first sub-buffer is full, and it has read all of it but a byte.
        fits = int(mount.shown("app/sized", "subbuf_size")) // record
        for _ in range(fits):
            channel.write(bytes(record))
        with open(f"{path}0", "rb", buffering=0) as reader:
            left = fits * record - 1
            while left:
                left -= len(reader.read(left))
        for _ in range(promised):
            channel.write(bytes(record))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            channel.write(bytes(record))
    mount.command("remove app/sized\n")


@pytest.mark.parametrize("record", [1, 8, 1000])
def test_rings_keep_what_is_written_while_the_reader_is_away(mount: Mount, record: int) -> None:
    *_, one = suggest(mount, "--records", 100, "--record", record, "--delay", 2.5, "--type", "ring")
    assert one["lasts"] >= 2.5
    path = mount.create("app/sized", one["create"].removeprefix("create PATH "))
    assert one["memory"] == os.stat(mount.store / "app/sized/mem0").st_size
    with Ring(path) as ring:
        for _ in range(round(one["lasts"] * 100)):
            ring.output(bytes(record))
        with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
            ring.output(bytes(record))
    mount.command("remove app/sized\n")


def test_the_busiest_cpu_has_the_whole_rate(mount: Mount) -> None:
    alike, busiest, single = suggest(mount, "--rate", "1M", "--delay", 10, "--cpus", 4)
    assert (alike["writers"], busiest["writers"]) == ("4 CPUs alike", "one CPU all")
    # Each lasts as long as was asked for, and little longer.
    assert all(10 <= one["lasts"] < 12 for one in (alike, busiest, single))
    n = max(4, native.n_possible_cpus())
    assert busiest["memory"] == n * single["memory"]
    assert alike["memory"] < n * 4 << 20 < busiest["memory"]
    assert [one["create"].split()[2] for one in (alike, busiest, single)] == [
        "subbuf_size=256K", "subbuf_size=1M", "buffers=global"
    ]  # fmt: skip


def test_what_does_not_fit_is_said(mount: Mount) -> None:
    found = suggest(mount, "--rate", "1G", "--delay", 300, status=NOTHING_FREE)
    assert not any(one["fits"] for one in found)
    done = CliRunner().invoke(relayctl, ["size", "-m", str(mount.path), "--rate", "1G", "--delay", "300"])
    assert done.exit_code == NOTHING_FREE
    assert "one CPU all: " in done.output
    status = os.statvfs(mount.path)
    assert f" of {status.f_blocks * status.f_frsize / (1 << 30):.1f}G for all channels" in done.output
    too_much = CliRunner().invoke(relayctl, ["size", "-m", str(mount.path), "--rate", "1000000G", "--delay", "300"])
    assert "no channel holds so much" in str(too_much.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--delay", "1"), "give --rate BYTES, or --records N and --record BYTES"),
        (("--rate", "1", "--records", "1", "--delay", "1"), "give --rate BYTES, or --records N"),
        (("--rate", "1", "--records", "1", "--record", "1", "--delay", "1"), "--record BYTES, not both"),
        (("--rate", "1", "--delay", "5s"), "'5s' is no number of seconds, such as 5 or 0.5"),
        (("--records", "1", "--delay", "1"), "--records needs --record BYTES"),
        (("--rate", "0", "--delay", "1"), "--rate 0: at least one byte"),
        (("--rate", "1", "--delay", "nan"), "'--delay': 'nan' is no number"),
        (("--rate", "1", "--delay", "0"), "--delay"),
    ],
)
def test_a_wrong_load_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(relayctl, ["size", *words])
    assert done.exit_code == click.UsageError.exit_code == WRONG
    assert said in done.output
