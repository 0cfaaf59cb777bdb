"""relayctl, as people, shells and Prometheus use it."""

import json
import os
import subprocess
import time

import pytest
from build import ROOT, compile_c
from mounts import Mount, User
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from tracing import RELAYCTL, relayctl

from relayfs_fuse import Counters
from relayfs_fuse.cli import relayctl as commands


def shown(mount: Mount, *arguments: object) -> str:
    done = relayctl("counters", "-m", mount.path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def counters(mount: Mount):
    with Counters(mount.path) as opened:
        yield opened


@pytest.fixture
def furnished(mount: Mount, counters: Counters) -> Mount:
    counters.add("disk/sda/writes", help='Finished "writes"').adjust(7)
    counters.add("disk/sda/read", unit="bytes").adjust(1 << 40)
    counters.add("disk/queue", kind="gauge").adjust(-3)
    return mount


def test_counters_are_shown_with_values_and_units(furnished):
    lines = shown(furnished).splitlines()
    assert [line.split() for line in lines if "disk" in line] == [
        ["-3", "disk/queue"],
        [str(1 << 40), "disk/sda/read", "bytes"],
        ["7", "disk/sda/writes"],
    ]
    assert any("relayfs/server/requests" in line for line in lines)


def test_a_glob_chooses(furnished):
    assert len(shown(furnished, "disk/*").splitlines()) == 3
    assert shown(furnished, "*/writes").split() == ["7", "disk/sda/writes"]


def test_what_is_wrong_is_told_by_the_status_and_one_line(furnished, tmp_path):
    nothing = relayctl("counters", "-m", furnished.path, "nothing*")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (3, "", "")
    missing = relayctl("counters", "-m", tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"relayctl: {tmp_path}: No such file or directory\n"
    assert relayctl("counters", "--frob").returncode == 2
    assert relayctl("counters", "-m", furnished.path, "--openmetrics", "--json").returncode == 2


def test_help_says_of_each_command_what_it_does_in_one_line():
    done = relayctl("--help", env={**os.environ, "COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in shown] == sorted(commands.COMMANDS)
    assert not [line for line in shown if len(line) > 80 or not line.endswith(".") or line.endswith("..")]
    assert list(commands.SUMMARIES) == list(commands.COMMANDS)


def test_counters_of_another_store_do_not_stand_in_for_those_of_the_named_mount(tmp_path):
    named = {**os.environ, "RELAYFS": str(tmp_path), "RELAYFS_STORE": ""}
    missing = relayctl("counters", env=named)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"relayctl: {tmp_path}: No such file or directory\n"


def test_json_says_all_that_is_known(furnished):
    (line,) = shown(furnished, "--json", "disk/sda/writes").splitlines()
    look = json.loads(line)
    assert abs(look["time"] - time.time()) < 3600
    (counter,) = look["counters"]
    assert counter.pop("number") > 0
    assert (counter.pop("uid"), counter.pop("gid")) == (os.geteuid(), os.getegid())
    assert counter == {
        "name": "disk/sda/writes", "value": 7, "kind": "counter", "unit": "", "help": 'Finished "writes"',
        "mode": "0200",
    }  # fmt: skip


def test_watching_shows_rates(furnished, counters):
    command = [RELAYCTL, "counters", "-m", furnished.path, "--json", "-w", "-n", "2", "-i", "0.1", "disk/sda/writes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        counters.add("disk/sda/writes").adjust(100)
        second = json.loads(process.stdout.readline())
    assert process.returncode == 0
    assert "rate" not in first["counters"][0]
    assert second["counters"][0]["value"] - first["counters"][0]["value"] == 100
    took = second["time"] - first["time"]
    assert second["counters"][0]["rate"] == pytest.approx(100 / took, rel=0.5)
    assert "/s" in shown(furnished, "-w", "-n", "2", "-i", "0.01", "disk/queue")


def test_openmetrics_are_what_prometheus_reads(furnished, counters):
    # Names that become the same, of different kinds; one that cannot be a metric's; one that wrapped around.
    counters.add("disk_queue").adjust(5)
    counters.add("disk-queue", kind="gauge").adjust(6)
    counters.add("9/höhe", kind="gauge", unit="m").adjust(1)
    counters.add("disk/down").adjust(-1)
    families = {family.name: family for family in parse(shown(furnished, "--openmetrics"))}
    samples = {sample.labels["name"]: sample.value for family in families.values() for sample in family.samples}
    assert {name: value for name, value in samples.items() if not name.startswith("relayfs/")} == {
        "disk/sda/writes": 7, "disk/sda/read": 1 << 40, "disk/queue": -3, "disk_queue": 5, "disk-queue": 6,
        "9/höhe": 1, "disk/down": (1 << 64) - 1,
    }  # fmt: skip
    assert families["disk_sda_writes"].type == "counter"
    assert families["disk_sda_writes"].documentation == 'Finished "writes"'
    assert families["disk_sda_read_bytes"].unit == "bytes"
    assert "relayfs/server/requests" in samples


def test_everybody_may_look(furnished, unprivileged: User):
    done = unprivileged.run(RELAYCTL, "counters", "-m", furnished.path, "disk/sda/writes")
    assert done.stdout.split() == ["7", "disk/sda/writes"]


def test_the_example_counts(mount):
    program = compile_c([ROOT / "examples/counting.c"])
    for _ in range(2):
        subprocess.run([program, mount.path], input=b"one\ntwo\n", check=True)
    assert shown(mount, "counting/*").split() == ["4", "counting/lines", "16", "counting/size", "bytes"]
