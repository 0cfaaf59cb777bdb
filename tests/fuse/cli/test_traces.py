"""relayctl trace list, stat of traces, and log."""

import json
from pathlib import Path

import pytest
from mounts import Mount
from tracing import RELAYCTL, relayctl, spoil
from traffic import drain

from relayfs_fuse import native

# struct relay_control is the last page; lost_full is in it.
CONTROL_BYTES, LOST_FULL_AT = 4096, 192


def shown(*arguments: object) -> str:
    done = relayctl(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(*arguments: object) -> list[dict[str, object]]:
    return list(map(json.loads, shown(*arguments, "--json").splitlines()))


def test_processes_of_a_trace_that_was_being_changed_are_no_channels(store, run):
    run(store.create("t"), "app").write(10)
    with (store.path / ".traces").open("r+b") as file:
        file.seek(CONTROL_BYTES)
        file.write(b"\1")  # the server died between two stores to the first slot, which is odd then
    assert objects("list", "--store", store.path) == []


def test_traces_are_listed(store, run):
    store.create("two", mode=native.MODE_OVERWRITE, is_started=False, subbuf_size=64 << 10, filter="uid:7")
    run(store.create("one"), "app")
    assert [line.split() for line in shown("trace", "list", "--store", store.path).splitlines()] == [
        ["one", "started", "no-overwrite", "perprocess", "mono", "8x4K", "1", "0", "0"],
        ["two", "stopped", "overwrite", "perprocess", "mono", "8x64K", "0", "0", "0"],
    ]
    one, two = objects("trace", "list", "--store", store.path)
    assert (one["name"], one["started"], one["processes"]) == ("one", True, 1)
    assert (one["snapshots"], one["snapshot_bytes"]) == (0, 0)
    assert (two["mode"], two["subbuf_size"], two["filter"], two["rules"]) == ("overwrite", 65536, "uid:7", [])


def test_figures_of_processes_are_shown(store, run):
    trace = store.create("t")
    dead, bad, alive = run(trace, "dead"), run(trace, "bad"), run(trace, "alive")
    lost = dead.write(3000)
    dead.kill()
    spoil(bad.directory / "cpu/mem0", 1)
    alive.write(10)
    whole, *parts = objects("stat", "--parts", "--store", store.path)
    of = {part["name"]: part for part in parts}
    assert {part["kind"] for part in parts} == {"process"}
    found = of[f"t/{alive.name}"]
    assert (found["state"], found["count"], found["lost"], found["writers"]) == ("alive", 10, 0, 1)
    assert found["bytes"] >= 240
    assert found["memory"] > 0
    assert 0 < found["fill"] < 1
    found = of[f"t/{dead.name}"]
    assert (found["state"], found["count"], found["lost"], found["writers"]) == ("dead", 3000 - lost, lost, 0)
    assert found["lost_by_cause"]["full"] == lost
    found = of[f"t/{bad.name}"]
    assert (found["state"], found["count"], found["lost"], found["fill"]) == ("damaged", None, None, None)
    assert (whole["kind"], whole["state"], whole["size"]) == ("trace", "started", 8 * 4096)
    assert (whole["writers"], whole["count"], whole["lost"]) == (1, 3010 - lost, lost)
    assert whole["memory"] == of[f"t/{alive.name}"]["memory"] + of[f"t/{dead.name}"]["memory"]


def test_a_process_that_says_nonsense_hides_no_other(store, run):
    """The numbers are in range one by one, but nobody has lost so many events."""
    trace = store.create("t")
    alive, bad = run(trace, "alive"), run(trace, "bad")
    alive.write(10)
    path = bad.directory / "cpu/mem0"
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size - CONTROL_BYTES + LOST_FULL_AT)
        file.write(((1 << 62) + 1).to_bytes(8, "little"))
    _, *parts = objects("stat", "t", "--parts", "--store", store.path)
    assert {part["name"]: (part["state"], part["count"]) for part in parts} == {
        f"t/{alive.name}": ("alive", 10), f"t/{bad.name}": ("damaged", None),
    }  # fmt: skip


def test_a_trace_that_is_not_there_has_no_figures(store):
    done = relayctl("stat", "none", "--store", store.path)
    message = "relayctl: there is no channel, trace or counter none; there is none at all\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", message)


@pytest.fixture
def log(mount: Mount) -> Path:
    return mount.create("log", "buffers=global")


def test_lines_are_logged(mount, log):
    done = relayctl("log", "-m", mount.path, "hello,", "world")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert relayctl("log", "-m", mount.path, "-", input="one\ntwo").returncode == 0
    lines = drain(mount.path / "log0").decode().splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["hello, world", "one", "two"]
    assert all(line.startswith("[") for line in lines)


def test_nobody_need_listen(mount):
    assert relayctl("log", "-m", mount.path, "hello").returncode == 0
    assert relayctl("log", "-m", mount.path, "--check", "hello").returncode == 3
    assert relayctl("log", "-m", mount.path, "--check").returncode == 3
    mount.create("log", "buffers=global")
    assert relayctl("log", "-m", mount.path, "--check").returncode == 0
    assert drain(mount.path / "log0") == b""


def test_everybody_may_log_if_the_channel_says_so(mount, unprivileged):
    mount.create("log", "buffers=global mode=overwrite perm=666")
    done = unprivileged.run(RELAYCTL, "log", "-m", mount.path, "hello")
    assert done.returncode == 0, done.stderr
    assert drain(mount.path / "log0").endswith(b": hello\n")
