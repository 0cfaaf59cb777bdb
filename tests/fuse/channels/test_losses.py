"""When records were lost, and why: the files `losses`, and relayctl stat --losses."""

import errno
import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from babeltrace import babeltrace
from making import making
from mounts import Mount, wait_until
from traced import directory_of, program, relayctl, start_trace, traced

SMALL = "buffers=single subbuf_size=4K n_subbufs=2"
RECORD = b"x" * 1000


def losses(path: Path) -> list[tuple[int, int, str, str, int, int]]:
    """Return FROM, TO, BUFFER, CAUSE, RECORDS, BYTES of each line; 0 for -."""
    found = []
    for line in path.read_text().splitlines():
        since, until, buffer, cause, n_records, n_bytes = ("0" if word == "-" else word for word in line.split())
        found.append((int(since), int(until), buffer, cause, int(n_records), int(n_bytes)))
    return found


def write(path: Path, n: int, record: bytes = RECORD) -> int:
    """Write n records; return how many were refused."""
    refused = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    for _ in range(n):
        try:
            os.write(descriptor, record)
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.ENOSPC, errno.EMSGSIZE, errno.ECANCELED)
            refused += 1
    os.close(descriptor)
    return refused


def write_disabled(mount: Mount, path: Path) -> int:
    mount.command("disable log")
    n = write(path, 3)
    mount.command("enable log")
    return n


def check_sums(mount: Mount, path: str) -> None:
    """Intervals have all that the statistics count."""
    sums: Counter[str] = Counter()
    for *_, cause, n_records, _ in losses(mount.path / f".channels/{path}/losses"):
        sums[cause] += n_records
    causes = ("full", "too_large", "disabled", "overwritten", "torn")
    assert dict(sums) == {cause: n for cause in causes if (n := int(mount.shown(path, f"lost_{cause}")))}


@pytest.mark.one_mount
@pytest.mark.parametrize("kind", ["relay", "ring"])
def test_a_loss_is_within_the_interval_that_names_its_cause(mount: Mount, kind: str) -> None:
    options = SMALL if kind == "relay" else "type=ring size=8K buffers=single"
    path, shown = mount.create("log", options), mount.path / ".channels/log/losses"
    assert losses(shown) == []
    for cause, lose in (
        ("full", lambda: write(path, 20)),
        ("too_large", lambda: write(path, 2, b"x" * 9000)),
        ("disabled", lambda: write_disabled(mount, path)),
    ):
        before = time.time_ns()
        n = lose()
        after = time.time_ns()
        assert n
        (found,) = [one for one in losses(shown) if one[3] == cause]
        since, until, buffer, _, n_records, n_bytes = found
        assert 0 < since <= after
        assert before <= until
        assert (buffer, n_records) == ("0", n)
        assert n_bytes > 0
    check_sums(mount, "log")


@pytest.mark.one_mount
def test_a_pause_between_losses_is_seen(mount: Mount) -> None:
    path, shown = mount.create("log", f"{SMALL} mode=overwrite"), mount.path / ".channels/log/losses"
    write(path, 30)
    first = losses(shown)
    assert [one[3] for one in first] == ["overwritten"]
    looked = time.time_ns()
    assert losses(shown) == first
    write(path, 30)
    (before, later) = losses(shown)
    assert before == first[0]
    assert later[0] >= looked
    check_sums(mount, "log")


@pytest.mark.one_mount
def test_the_server_looks_without_being_asked(mount: Mount) -> None:
    path, shown = mount.create("log", SMALL), mount.path / ".channels/log/losses"
    write(path, 20)
    lost = time.time_ns()
    # As it has set the counter, it has looked.
    wait_until(lambda: "relayfs/channels/log/lost_full " in counted(mount), "the counters have it")
    ((_, until, *_),) = losses(shown)
    asked = time.time_ns()
    assert lost - 2_000_000_000 < until < asked


def counted(mount: Mount) -> str:
    """Return the lines of counters that are not 0, NAME VALUE."""
    lines = (line.split() for line in (mount.path / "counters.txt").read_text().splitlines())
    return "".join(f"{words[0]} {words[1]}\n" if words[1] != "0" else "" for words in lines)


def test_what_was_lost_before_the_server_began_has_no_beginning(mount: Mount) -> None:
    path = mount.create("log", SMALL)
    n = write(path, 20)
    assert mount.stop() == 0
    mount.start()
    ((since, until, _, cause, n_records, _),) = losses(mount.path / ".channels/log/losses")
    assert (since, cause, n_records) == (0, "full", n)
    assert until <= time.time_ns()


@pytest.mark.one_mount
def test_relayctl_shows_losses(mount: Mount) -> None:
    path = mount.create("app/log", SMALL)
    n = write(path, 20)
    words = relayctl(mount, "stat", "--losses", "app/*").stdout.split()
    assert (words[:2], words[4], words[6]) == (["app/log", "0"], str(n), "full")
    (one,) = map(json.loads, relayctl(mount, "stat", "--losses", "--json").stdout.splitlines())
    assert (one["name"], one["buffer"], one["cause"], one["records"]) == ("app/log", 0, "full", n)
    assert one["from_ns"] <= one["to_ns"]
    missing = relayctl(mount, "stat", "--losses", "nothing")
    assert (missing.returncode, missing.stdout) == (3, "")
    refused = relayctl(mount, "stat", "--losses", "--parts")
    assert refused.returncode == 2
    assert "--losses are those that a server has seen" in refused.stderr


def test_losses_of_a_trace_are_told_by_process(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=4K n_subbufs=2")
    with traced(mount, cpus=[0]) as writer:
        writer.ask("emit 1000")
        directory = directory_of(mount.path / "t", writer)
        shown = mount.path / ".channels/t" / directory.name / "cpu/losses"
        found = losses(shown)
        assert {one[3] for one in found} == {"full"}
        n_lost = sum(one[4] for one in found)
        assert 0 < n_lost < 1000
        listed = list(map(json.loads, relayctl(mount, "stat", "--losses", "--json", "t").stdout.splitlines()))
        assert {one["name"] for one in listed} == {f"t/{directory.name}"}
        assert sum(one["records"] for one in listed) == n_lost
        assert relayctl(mount, "snapshot", "t", "-o", tmp_path / "out").returncode == 0
        # By packets and times, as ever; and by cause.
        assert babeltrace(tmp_path / "out").lost == n_lost
        assert f"\tlost_full = {n_lost};\n" in (tmp_path / "out" / directory.name / "metadata").read_text()
        writer.kill()
        cards = mount.path / ".crashed"
        wait_until(lambda: os.listdir(cards), "there is a card")
        (card,) = cards.iterdir()
        assert sum(one[4] for one in losses(card / "losses")) == n_lost


def test_events_without_buffers_are_told_by_trace(mount: Mount) -> None:
    start_trace(mount, "t")
    # Enough descriptors to find the mount, and too few for buffers.
    with making({"RELAYFS": str(mount.path)}, None, ["prlimit", "--nofile=6:6", program("traced")]) as maker:
        before = time.time_ns()
        maker.ask("emit 200")
        after = time.time_ns()
        wait_until(lambda: losses(mount.path / ".traces/losses"), "the server has looked")
        ((since, until, name, cause, n_records, _),) = losses(mount.path / ".traces/losses")
        assert (name, cause, n_records) == ("t", "no_buffers", 200)
        assert since <= after
        assert until >= before
        (one,) = map(json.loads, relayctl(mount, "stat", "--losses", "--json", "t").stdout.splitlines())
        assert (one["name"], one["buffer"], one["cause"], one["records"]) == ("t", None, "no_buffers", 200)
    mount.command("trace remove t")
    assert losses(mount.path / ".traces/losses") == []
