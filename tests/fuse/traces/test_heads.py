"""Heads of events: small ids on which processes agree, as Trace Compass demands them, and times however far apart."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from mounts import DEADLINE_S, Mount, wait_until
from tracing import RELAYCTL, Store, relayctl

from relayfs_fuse.native import trace as native_trace

# Emits events, in this order, each with its number; "NAME" or "NAME:TYPE".
PROGRAM = """\
import os, sys
from relayfs_fuse import Event
os.sched_setaffinity(0, {0})
for number, word in enumerate(sys.argv[1:]):
    name, _, kind = word.partition(":")
    Event("test", name, {"n": kind or "u64"})(number)
"""
LARGE_FILE = 1 << 20
LATER_S = 360_000  # more than 2^48 ns
SHOWN = re.compile(r"^\[(\d+)\.(\d+)\].* test:(\w+): .*\{ n = (\w+) \}$", re.MULTILINE)


def emit(where: dict[str, str], *names: str, limit: int = 0, command: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    """Start a program; limit: of the files that it may write."""
    limited = ["prlimit", f"--fsize={limit}"] if limit else []
    return subprocess.Popen(
        [*limited, *command, sys.executable, "-c", PROGRAM, *names], env={**os.environ, **where}, cwd="/", text=True
    )


def finish(*programs: "subprocess.Popen[str]") -> None:
    for program in programs:
        assert program.wait(DEADLINE_S) == 0


def shown(directory: Path) -> list[tuple[int, str, int]]:
    """Return time, name and number of each event, as babeltrace2 reads them."""
    command = ["babeltrace2", "--clock-seconds", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [(int(s) * 10**9 + int(ns), name, int(n, 0)) for s, ns, name, n in SHOWN.findall(done.stdout)]


def check_for_trace_compass(metadata: str) -> dict[int, str]:
    """Look for what org.eclipse.tracecompass.ctf.core refuses; return the names of events by id.

    EventIDParser: an id is an int. CTFStream.addEvent(): each once. UUIDParser: a UUID. CTFPacketReader: an integer or
    enum `id`, and the id of the variant `v` if that has one. LttngUstTrace.validate(): the domain is "ust".
    LttngUst20EventLayout: _vtid and _vpid in the event's context.
    """
    events = re.findall(r'event \{\n\tname = "([^"]+)";\n\tid = (\d+);\n\tstream_id = 0;', metadata)
    ids = [int(number) for _, number in events]
    assert len(ids) == metadata.count("\nevent {\n")
    assert all(number < 1 << 31 for number in ids)
    assert len(set(ids)) == len(ids)
    found = re.search(r'\tuuid = "(.*)";', metadata)
    assert found
    assert str(UUID(found[1])) == found[1]
    assert '\tdomain = "ust";\n' in metadata
    for word in ("tracer_major", "tracer_minor", "tracer_patch"):
        assert re.search(rf"\t{word} = \d+;\n", metadata)
    assert "enum : uint16_t { compact = 0 ... 65534, extended = 65535 } id;\n\t\tvariant <id> {" in metadata
    context = re.search(r"\tevent\.context := struct \{\n(.*?)\t\};\n", metadata, re.DOTALL)
    assert context
    numbers = re.findall(r"\t\tint32_t (\w+);\n", context[1])
    assert numbers == (["_vtid"] if "buffers=perprocess" in metadata else ["_vpid", "_vtid"])
    if "buffers=perprocess" in metadata:
        assert re.search(r'\tprocname = ".+";\n\tvpid = \d+;\n', metadata)
    return {int(number): name for name, number in events}


def test_ids_of_a_process_are_0_1_2(store: Store, tmp_path: Path) -> None:
    store.create("t")
    where = {"RELAYFS": "none", "RELAYFS_STORE": str(store.path)}
    finish(emit(where, "a", "b", "c", "b", "a:x32"), emit(where, "z"))
    assert relayctl("record", "t", "--store", store.path, "-o", tmp_path / "out", "--duration", "0").returncode == 0
    texts = [path.read_text() for path in (tmp_path / "out").glob("*/metadata")]
    tables = sorted((check_for_trace_compass(text) for text in texts), key=len)
    first = {name: number for number, name in tables[-1].items()}
    assert len(tables) == 2
    assert {"test:a", "test:b", "test:c"} <= first.keys()
    assert all(sorted(table) == list(range(len(table))) for table in tables)
    assert len({re.search('\tuuid = "(.*)";', text)[1] for text in texts}) == 2
    assert [event[1:] for event in shown(tmp_path / "out") if event[1] != "z"] == [
        ("a", 0), ("b", 1), ("c", 2), ("b", 3), ("a", 4),
    ]  # fmt: skip


def test_processes_that_share_buffers_agree_on_ids(mount: Mount, tmp_path: Path) -> None:
    """Some append to .events themselves, others ask the server, as they may not write to files; all at once."""
    mount.command("trace create t buffers=shared subbuf_size=64K n_subbufs=4\ntrace start t\n")
    where = {"RELAYFS": str(mount.path)}
    lists = [("a", "b", "c"), ("c", "d:x8", "a"), ("d", "c", "e"), ("e", "b", "a:i32"), ("a:i32", "f", "d:x8")]
    finish(*(emit(where, *names, limit=LARGE_FILE * (i % 2)) for i, names in enumerate(lists)))
    metadata = mount.path / "t/shared/metadata"
    wait_until(metadata.exists, "the metadata")
    table = check_for_trace_compass(metadata.read_text())
    assert sorted(table) == list(range(len(table)))
    record = "record", "t", "-m", mount.path, "-o", tmp_path / "out", "--check", "all", "--duration", "0"
    assert relayctl(*record).returncode == 0
    expected = sorted((word.partition(":")[0], n) for names in lists for n, word in enumerate(names))
    assert sorted(event[1:] for event in shown(tmp_path / "out")) == expected


def has_time_namespaces() -> bool:
    return Path("/proc/self/ns/time").exists()


@pytest.mark.skipif(not has_time_namespaces(), reason="the kernel has no time namespaces")
def test_a_time_that_is_far_from_the_last_one_is_told_in_full(store: Store, tmp_path: Path) -> None:
    """48 bits of it would tell one of 78 hours that repeat."""
    trace = store.create("t", buffers=native_trace.BUFFERS_SHARED, subbuf_size=65536)
    where = {"RELAYFS": "none", "RELAYFS_STORE": str(store.path)}
    later = ("unshare", "--time", "--monotonic", str(LATER_S), "--fork")
    finish(emit(where, "a", "b"))
    finish(emit(where, "b", "c", "d", command=later))
    command = [*later, RELAYCTL, "record", trace.name, "--store", store.path, "-o", tmp_path / "out"]
    done = subprocess.run(
        [*command, "--duration", "0", "--check", "all"], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stderr
    events = shown(tmp_path / "out")
    assert [event[1:] for event in events] == [("a", 0), ("b", 1), ("b", 0), ("c", 1), ("d", 2)]
    gaps = [(after[0] - before[0]) // 10**9 for before, after in itertools.pairwise(events)]
    assert LATER_S <= gaps[1] < LATER_S + 600
    assert all(gap < 600 for gap in gaps[:1] + gaps[2:])
