"""relayctl receive --keep: old files are removed, and neither come again nor hold up what follows."""

import os
import shutil
import time
from pathlib import Path

import pytest
from babeltrace import read
from forwarding import files_in, forward, make_recording, receive, recorded_packets, same
from tracing import finish, recording, relayctl

HOST = os.uname().nodename
HOUR = 3600


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


def make_old(path: Path, n_hours: int) -> None:
    then = time.time() - n_hours * HOUR
    os.utime(path, (then, then))


def shown(into: Path) -> list[str]:
    """Return what is there besides the receiver's own files."""
    return [path for path in files_in(into) if not path.startswith(".received")]


def test_what_is_old_is_removed_with_its_directory_and_does_not_come_again(nats, store, run, out, into):
    make_recording(store, run, out)
    forward(out, nats)
    receive(into, nats)
    there = into / HOST / "out"
    one, two = sorted(there.glob("*/cpu0"))
    make_old(one, 3)
    make_old(two, 1)
    assert "1 files removed" in receive(into, nats, "--keep", "2h")
    assert sorted(path.name for path in there.iterdir()) == [".clocks", ".relayfs", two.parent.name]
    assert same(out / two.parent.name, two.parent)
    # A receiver that gets all messages once more knows what it has had.
    (into / ".received/name").unlink()
    receive(into, nats)
    assert not (there / one.parent.name / "cpu0").exists()
    assert "1 files removed" in receive(into, nats, "--keep", "30m")
    assert [path for path in shown(into) if path.endswith("cpu0")] == []


def test_a_recording_goes_when_nothing_of_it_is_left(nats, store, run, out, into):
    make_recording(store, run, out)
    forward(out, nats)
    receive(into, nats)
    for path in into.rglob("cpu0"):
        make_old(path, 48)
    assert "2 files removed" in receive(into, nats, "--keep", "1d", "--keep", "1G")
    # Its recorder may go on.
    assert shown(into) == [f"{HOST}/out/.clocks", f"{HOST}/out/.relayfs"]
    make_old(into / HOST / "out/.clocks", 1)
    receive(into, nats, "--keep", "1d")
    assert sorted(path.name for path in into.iterdir()) == [".received"]


def test_the_oldest_files_are_removed_that_are_too_much(nats, store, run, out, into):
    make_recording(store, run, out, 5000)
    forward(out, nats)
    receive(into, nats)
    one, two = sorted((into / HOST / "out").glob("*/cpu0"))
    make_old(two, 1)
    kept = one.stat().st_blocks * 512
    assert kept > 50_000
    assert "removed" not in receive(into, nats, "--keep", str(3 * kept))
    assert "1 files removed" in receive(into, nats, "--keep", str(kept))
    assert [path.name for path in (into / HOST / "out").glob("*-*")] == [one.parent.name]


def test_a_file_that_grows_goes_on_behind_what_was_removed(nats, store, run, out, into):
    """It is removed for its age alone; in its place is an empty packet, which takes no room."""
    trace = store.create("t")
    app = run(trace, "app")
    with recording("t", "--store", store.path, "-o", out) as recorder:
        app.write_patiently(1000)
        forward_while_recorded(out, nats)
        receive(into, nats, "--keep", "1")
        (grows,) = into.rglob("cpu0")
        before = read(into).events["app"]
        assert len(before) > 500
        make_old(grows, 3)
        assert "1 files removed" in receive(into, nats, "--keep", "2h")
        assert not grows.exists()
        app.write_patiently(1000)
        finish(recorder)
    forward(out, nats)
    said = receive(into, nats)
    assert "missing" not in said
    (path,) = recorded_packets(out)
    assert grows.stat().st_size == (out / path).stat().st_size
    after = read(into).events["app"]
    assert after == list(range(len(before), 2000))


def forward_while_recorded(out: Path, nats) -> None:
    while ".cpu0" not in "".join(nats.subjects()):
        forward(out, nats)


def test_a_file_whose_end_comes_when_it_is_removed_stays_removed(nats, store, run, out, into, tmp_path):
    make_recording(store, run, out)
    forward(out, nats)
    receive(into, nats)
    whole = tmp_path / "whole"
    shutil.copytree(into, whole)
    # As a receiver has it that was killed before the last message of each file.
    ends = [message.seq for message in nats.messages() if "Relay-Last" in message.headers]
    assert len(ends) == 2
    for path in into.rglob("cpu0"):
        known = into / ".received/files" / path.parent.relative_to(into) / f".{path.name}.known"
        known.write_text(f"{path.stat().st_size - 72}\n")
        path.unlink()
    (into / ".received/name").unlink()
    receive(into, nats)
    assert list(into.rglob("cpu0")) == []
    (into / ".received/name").unlink()
    assert "relayctl: 0 messages" in receive(into, nats)


@pytest.mark.parametrize("keep", ["0d", "7", "d", "1w", "99999999999s"])
def test_what_is_no_age_and_no_size_is_refused(nats, into, keep):
    done = relayctl("receive", "--from", nats.url, "-o", into, "--once", "--keep", keep)
    assert done.returncode == (0 if keep == "7" else 2)
