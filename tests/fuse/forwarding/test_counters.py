"""relayctl forward and record of counters: a line of values each time, which never changes once it is written."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forwarding import forward, receive, running
from mounts import DEADLINE_S, Mount, wait_until
from tracing import relayctl

from relayfs_fuse import Counters
from relayfs_fuse.cli.counters import matching
from relayfs_fuse.record.counters import CountersFile
from relayfs_fuse.record.full import Limit

pytestmark = pytest.mark.one_mount

HOST = "a"


def lines_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def spooled(mount: Mount, spool: Path, only: str) -> list[object]:
    """Tests of one mount have counters of their own."""
    return [mount.path / "counters", "--spool", spool, "--spool-max", "1M", "--host", HOST, "--only", only]


def test_counters_are_forwarded_and_go_on_where_they_were(mount: Mount, nats, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    source, *options = spooled(mount, spool, "app/*")
    began = time.time()
    with Counters(mount.path) as counters:
        requests = counters.add("app/requests", unit="requests", help="Answered ones")
        requests.adjust(3)
        counters.add("other/x").adjust(1)
        forward(source, nats, *options)
        (recording,) = spool.iterdir()
        with (recording / "counters.jsonl").open("ab") as file:
            file.write(b'{"time": 1')  # as of a recorder that was killed
        counters.add("app/queue", kind="gauge").adjust(-2)
        requests.adjust(4)
        forward(source, nats, *options)
    receive(into, nats)
    arrived = into / HOST / recording.name
    first, second = lines_in(arrived / "counters.jsonl")
    assert began <= first["time"] < second["time"] <= time.time()
    assert first["values"] == {"app/requests": 3}
    assert second["values"] == {"app/queue": -2, "app/requests": 7}
    known = {"name": "app/requests", "kind": "counter", "unit": "requests", "help": "Answered ones"}
    assert first["new"] == [known]
    assert second["new"] == [{"name": "app/queue", "kind": "gauge", "unit": "", "help": ""}, known]
    assert (arrived / ".framing").read_text() == "line\n"


def test_each_line_arrives_once_whoever_is_killed(mount: Mount, nats, tmp_path):
    spool, into = tmp_path / "spool", tmp_path / "into"
    source, *options = spooled(mount, spool, "kill/n")
    with Counters(mount.path) as counters:
        counters.add("kill/n")
    for n in range(2):
        with running("forward", source, "--to", nats.url, *options, "--every", "1s") as process:
            wait_until(lambda n=n: sum(nats.subjects().values()) > 3 + 2 * n, "lines")
            process.send_signal(signal.SIGTERM if n else signal.SIGKILL)
            process.wait(DEADLINE_S)
    receive(into, nats)
    (recording,) = spool.iterdir()
    times = [line["time"] for line in lines_in(into / HOST / recording.name / "counters.jsonl")]
    assert len(times) > 3
    assert times == sorted(set(times))


def test_lines_without_room_are_counted_and_the_next_one_says_how_many(mount: Mount, tmp_path):
    with Counters(mount.path) as counters:
        counters.add("full/n")
        found = matching(counters, ["full/*"])
    file, other = tmp_path / "counters.jsonl", tmp_path / "other"
    other.write_bytes(bytes(64 << 10))
    with CountersFile(str(tmp_path), Limit(str(tmp_path), 64 << 10)) as recorded:
        assert [recorded.append(found, 1.5) for _ in range(2)] == [0, 0]
    assert ((tmp_path / ".lost").read_text(), file.read_bytes()) == ("lost=2\n", b"")
    other.unlink()
    with CountersFile(str(tmp_path), Limit(str(tmp_path), 64 << 10)) as recorded:
        assert recorded.append(found, 2.5) == file.stat().st_size
        assert recorded.append(found, 3.5) > 0
    first, second = lines_in(file)
    assert (first["time"], first["lost"], first["values"]) == (2.5, 2, {"full/n": 0})
    assert ("new" in first, "new" in second) == (True, False)


def test_relayctl_record_has_them_too_and_refuses_what_is_not_about_them(mount: Mount, tmp_path):
    with Counters(mount.path) as counters:
        counters.add("record/n").adjust(5)
    here = ("--mount", mount.path)
    done = relayctl("record", "counters", "-o", tmp_path / "out", "--duration", 0, "--only", "record/n", *here)
    assert (done.returncode, done.stderr.startswith("counters: 1 lines, ")) == (0, True), done.stderr
    assert lines_in(tmp_path / "out/counters.jsonl")[0]["values"] == {"record/n": 5}
    mount.create("app/cpu")
    for words, why in (
        (["counters", "--rotate-size", "1M"], "--rotate-size is for traces; these are counters"),
        (["app/cpu", "--every", "5s"], "--every is for counters; app/cpu is something else"),
        (["counters", "--every", "0s"], "'0s': an age is digits and s, m, h or d"),
    ):
        done = relayctl("record", *words, "-o", tmp_path / "none", *here)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert not os.path.exists(tmp_path / "none")
