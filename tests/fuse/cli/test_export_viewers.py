"""relayctl export for viewers of tracks, with Perfetto's own trace processor as the judge."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import forking
import pytest
from build import compile_c
from mounts import DEADLINE_S
from trace_processor import Query, trace_processor
from tracing import Store, finish, recording, relayctl

from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head
from relayfs_fuse.tracefiles import ctf

N = 50
WRONG = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
# Two processes run this. What each slice has to be, and in what, stands in its arguments.
PROGRAM = f"""
from relayfs_fuse.trace import Event
span = Event("app", "work", {{"track_event_type": "string", "slice_name": "string", "id": "u32"}})
lane = Event("app", "lane", {{"track_event_type": "u8", "slice_name": "string", "track_name": "string", "h": "x32"}})
scoped = Event("app", "scoped", {{"track_event_type": "string", "slice_name": "string", "scope_disk": "u16"}})
queue = Event("app", "queue", {{"counter_value": "i32", "track_name": "string"}})
load = Event("app", "load", {{"counter_value": "f64"}})
plain = Event("other.app", "plain", {{"s": "string", "b": "bytes", "d": "f64", "u": "u64", "i": "i64", "n": "u32"}})
odd = Event("app", "odd", {{"track_name": "string", "slice_name": "string"}})
none = Event("app", "none", {{"track_event_type": "string", "slice_name": "string"}})
odd("t", "s")
none("X", "s")
for i in range({N}):
    span("B", "outer", i)
    scoped("B", "disk", i % 2)
    span("B", "inner", i)
    lane(ord("B"), "step", "lane A", 0xbeef)
    plain('grüße "\\x01', b"\\0\\xff", 0.5, 2**63 - 1, -5, i)
    span("E", "", i)
    queue(i - 2, "queue length")
    lane(ord("E"), "", "lane A", 1)
    load(i / 4)
    scoped("E", "", i % 2)
    span("I", "moment", i)
    span("E", "", i)
"""


SPANS = Path(__file__).with_name("export_spans.c")
PYTHON_SPANS = """
import threading
from relayfs_fuse.trace import Span, counter, span
outer, level = Span("spans", "outer", {"n": "u32"}), counter("spans", "level", "i16")
def run():
    for n in range(30):
        try:
            with outer(n), span("inner"):
                level(-n)
                if n % 2:
                    raise ValueError
        except ValueError:
            pass
thread = threading.Thread(target=run)
thread.start()
run()
thread.join()
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run_programs(store: Store, text: str, n: int) -> list[int]:
    """Run programs that trace, side by side; return their pids."""
    environment = {**os.environ, "RELAYFS_STORE": str(store.path), "RELAYFS": str(store.path / "nowhere")}
    programs = [forking.start([sys.executable, "-c", text], env=environment) for _ in range(n)]
    assert [program.wait(DEADLINE_S) for program in programs] == [0] * n
    return sorted(program.pid for program in programs)


def snapshot(store: Store, out: Path) -> None:
    done = relayctl("snapshot", "t", "--store", store.path, "-o", out)
    assert done.returncode == 0, done.stderr


@contextmanager
def loaded(out: Path, *options: object):
    target = out.with_name("exported")
    done = relayctl("export", out, "-o", target, *options)
    assert done.returncode == 0, done.stderr
    with trace_processor(target) as query:
        yield query


@pytest.fixture(params=["--perfetto", "--chrome"])
def exported(request, store, out) -> Callable[[], tuple[Query, list[int]]]:
    """What two programs wrote, loaded."""
    store.create("t", n_subbufs=64)
    pids = run_programs(store, PROGRAM, 2)
    snapshot(store, out)
    with loaded(out, request.param) as query:
        yield query, pids


def objects(out: Path) -> list[dict]:
    return [json.loads(line) for line in relayctl("export", out, "--json").stdout.split("\n") if line]


def rows(query: Query, sql: str) -> list[tuple]:
    return [tuple(row.values()) for row in query(sql)]


def test_slices_nest_and_tracks_belong_to_processes(exported):
    query, pids = exported
    assert rows(query, WRONG) == []
    assert rows(query, "select pid, name from process where pid > 0 order by pid") == [(pid, "python") for pid in pids]
    # Chrome's format has other tracks as threads of higher numbers.
    threads = rows(query, "select tid, name from thread where tid > 0 and tid < 5000000 order by tid")
    assert threads == [(pid, "python") for pid in pids]
    slices = "select name, depth, count(*) from slice where dur {} group by name, depth order by name"
    assert rows(query, slices.format("> 0")) == [
        ("disk", 0, 2 * N), ("inner", 1, 2 * N), ("outer", 0, 2 * N), ("step", 0, 2 * N),
    ]  # fmt: skip
    assert rows(query, slices.format("= 0")) == [
        ("app:none", 0, 2), ("app:odd", 0, 2), ("moment", 1, 2 * N), ("other.app:plain", 2, 2 * N),
    ]  # fmt: skip
    assert rows(query, slices.format("< 0")) == []
    assert rows(
        query,
        "select count(*) from slice child join slice parent on child.parent_id = parent.id "
        "where child.name = 'inner' and parent.name = 'outer' and child.ts > parent.ts "
        "and child.ts + child.dur < parent.ts + parent.dur and child.track_id = parent.track_id",
    ) == [(2 * N,)]
    # A track for each disk and process.
    assert rows(query, "select count(distinct track_id) from slice where name = 'disk'") == [(4,)]
    assert rows(query, "select count(distinct track_id) from slice where name = 'step'") == [(2,)]


def test_fields_are_arguments(exported):
    query, _ = exported
    found = rows(
        query,
        "select slice.id, key, coalesce(string_value, int_value, real_value) from slice join args using (arg_set_id) "
        "where slice.name = 'other.app:plain' order by slice.ts",
    )
    by_slice: dict[int, dict[str, object]] = {}
    for number, key, value in found:
        by_slice.setdefault(number, {})[key.removeprefix("debug.").removeprefix("args.")] = value
    values = list(by_slice.values())
    assert len(values) == 2 * N
    assert sorted(value.pop("n") for value in values) == sorted([*range(N)] * 2)
    assert all(value == {"s": 'grüße "\x01', "b": "00ff", "d": 0.5, "u": 2**63 - 1, "i": -5} for value in values), (
        values[0]
    )
    # What would be taken of other events is an argument of one that does not say what it is.
    odd = rows(
        query,
        "select distinct key, string_value from slice join args using (arg_set_id) "
        "where slice.name in ('app:odd', 'app:none') and key glob '*_*' order by key, string_value",
    )
    assert {(key.removeprefix("debug.").removeprefix("args."), value) for key, value in odd} == {
        ("slice_name", "s"), ("track_name", "t"), ("track_event_type", "X"),
    }  # fmt: skip
    # Of a slice those of its beginning and of its end; what the convention takes is not among them.
    keys = rows(query, "select distinct key from slice join args using (arg_set_id) where name = 'outer'")
    assert {key.removeprefix("debug.").removeprefix("args.") for (key,) in keys} == {"id"}


def test_counters_are_drawn(exported):
    query, _ = exported
    found = rows(
        query,
        "select t.name, count(*), min(value), max(value), count(distinct track_id) from counter c "
        "join track t on c.track_id = t.id group by t.name order by t.name",
    )
    assert [(name.removesuffix(" value"), *rest) for name, *rest in found] == [
        ("app:load", 2 * N, 0.0, (N - 1) / 4, 2), ("queue length", 2 * N, -2.0, N - 3, 2),
    ]  # fmt: skip


SLICES = "select tid, slice.name, depth, count(*) from slice join thread_track on track_id = thread_track.id \
join thread using (utid) where dur > 0 group by tid, slice.name, depth"


@pytest.mark.parametrize("form", ["--perfetto", "--chrome"])
def test_spans_are_slices_of_their_threads(store, out, form):
    store.create("t", n_subbufs=64)
    store.run(compile_c([SPANS]), 30)
    snapshot(store, out)
    slices = [("spans:by_hand", 1, 20), ("spans:inner", 1, 50), ("spans:inner", 2, 10), ("spans:outer", 0, 30)]
    with loaded(out, form) as query:
        assert rows(query, WRONG) == []
        found = rows(query, f"{SLICES} order by tid, slice.name, depth")
        assert [row[1:] for row in found] == slices * 2
        assert len({row[0] for row in found}) == 2
        assert rows(query, "select count(*) from slice where dur <= 0") == [(0,)]
        arguments = rows(
            query,
            "select key, coalesce(string_value, int_value), count(*) from slice join args using (arg_set_id) "
            "where slice.name = 'spans:outer' group by 1, 2 order by 1, 2",
        )
        keys = [(key.removeprefix("debug.").removeprefix("args."), value, n) for key, value, n in arguments]
        assert sorted(keys, key=str) == sorted([*(("n", n, 2) for n in range(30)), ("text", "text", 60)], key=str)
        counters = rows(
            query,
            "select t.name, count(*), min(value), max(value), count(distinct track_id) from counter c "
            "join track t on c.track_id = t.id group by t.name order by t.name",
        )
    # Both threads count in one.
    assert [(name.removesuffix(" value"), *rest) for name, *rest in counters] == [
        ("spans:level", 40, -29.0, 0.0, 1), ("spans:load", 2, 0.5, 0.5, 1),
    ]  # fmt: skip


def test_spans_of_python_are_slices_of_their_threads(store, out):
    store.create("t", n_subbufs=64)
    run_programs(store, PYTHON_SPANS, 1)
    snapshot(store, out)
    with loaded(out, "--perfetto") as query:
        assert rows(query, WRONG) == []
        found = rows(query, f"{SLICES} order by tid, depth")
        assert [row[1:] for row in found] == [("spans:outer", 0, 30), ("inner", 1, 30)] * 2
        assert len({row[0] for row in found}) == 2
        assert rows(query, "select count(*), min(value) from counter") == [(60, -29.0)]


def test_a_span_that_began_before_the_trace_does_not_end_in_it(store, out):
    trace = store.create("t", is_started=False)
    program = "import sys\nfrom relayfs_fuse.trace import span\nwith span('a'):\n    print(flush=True)\n    input()\n"
    environment = {**os.environ, "RELAYFS_STORE": str(store.path), "RELAYFS": str(store.path / "nowhere")}
    with forking.start(
        [sys.executable, "-c", f"{program}with span('b'):\n    pass"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        store.change(trace, is_started=True)
        process.communicate("\n", timeout=DEADLINE_S)
    snapshot(store, out)
    assert [one["fields"]["track_event_type"] for one in objects(out)] == [ord("B"), ord("E")]


def test_times_are_those_of_the_monotonic_clock(exported, out):
    query, _ = exported
    plain = [one["ns"] for one in objects(out) if one["event"] == "other.app:plain"]
    found = [ts for (ts,) in rows(query, "select ts from slice where name = 'other.app:plain' order by ts")]
    assert [ts - found[0] for ts in found] == [ns - plain[0] for ns in plain]
    (metadata, *_) = out.rglob("metadata")
    words = dict(word.split("=") for word in metadata.read_text().split("\n")[1].split() if "=" in word)
    assert found[0] == plain[0] - int(words["real"]) + int(words["mono"])


def test_losses_are_told_on_a_track_of_their_own(store, run, out):
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out) as process:
        program = run(trace, "app")
        refused = program.write(3000)
        program.write_patiently(500)
        finish(process)
    assert refused > 0
    with loaded(out, "--perfetto") as query:
        n = rows(query, "select count(*) from slice where name = 'test:first'")
        found = rows(
            query,
            "select t.name, int_value from slice s join track t on s.track_id = t.id join args using (arg_set_id) "
            "where s.name = 'lost' and key = 'debug.events'",
        )
        causes = rows(
            query,
            "select distinct string_value from slice join args using (arg_set_id) "
            "where slice.name = 'lost' and key = 'debug.cause'",
        )
        wrong = rows(query, "select name from stats where severity = 'error' and value > 0")
    assert wrong == []
    assert {name for name, _ in found} == {"lost"}
    assert causes == [("full",)]
    lost = sum(events for _, events in found)
    assert n == [(sum(1 for one in objects(out) if "event" in one),)]
    losses = [one for one in objects(out) if "lost" in one]
    assert lost == sum(one["lost"] for one in losses) >= refused
    assert {one["cause"] for one in losses} == {"full"}


def test_a_rotated_recording_has_each_process_once(store, out):
    store.create("t", n_subbufs=64)
    (pid,) = run_programs(store, PROGRAM, 1)
    for number in ("0001", "0002"):
        snapshot(store, out / number)
    with loaded(out, "--perfetto") as query:
        assert rows(query, "select pid, name from process where pid > 0") == [(pid, "python")]
        assert rows(query, "select count(*) from slice where name = 'other.app:plain'") == [(2 * N,)]
        assert rows(query, WRONG) == []


def test_chrome_json_is_json(store, out):
    store.create("t", n_subbufs=64)
    (pid,) = run_programs(store, PROGRAM, 1)
    snapshot(store, out)
    found = json.loads(relayctl("export", out, "--chrome").stdout)
    assert set(found) == {"traceEvents", "displayTimeUnit"}
    phases = [one["ph"] for one in found["traceEvents"]]
    assert [phases.count(phase) for phase in "BEiC"] == [4 * N, 4 * N, 2 * N + 2, 2 * N]
    assert {one["pid"] for one in found["traceEvents"]} == {pid}
    empty = relayctl("export", out, "--chrome", "--since", "4000000000")
    assert json.loads(empty.stdout)["traceEvents"] == []


def test_events_are_on_tracks_of_their_threads(out):
    boot = "11111111-2222-3333-4444-555555555555"
    line = (
        "/* relayfs trace=t id=3 process=p pid=42 uid=0 buffers=shared clock=mono tsc=0 mono=5000"
        f" real=1700000000000000000 boot={boot} made_mono=5000 */\n"
    )
    declared = (
        'event {\n\tname = "app:work";\n\tid = 0;\n\tstream_id = 0;\n\tfields := struct {\n'
        "\t\tuint8_t _track_event_type;\n\t};\n};\n"
    )
    out.mkdir()
    (out / "metadata").write_bytes(ctf.metadata((line + declared).encode(), native_trace.Clocks(0, 6000, 0)))
    for cpu, thread in enumerate([70, 71]):
        kinds = [(7000 + cpu, "B"), (7010 + cpu, "B"), (7020 + cpu, "E"), (7030 + cpu, "I"), (7040 + cpu, "E")]
        events = [struct.pack("<QIIB", time << 16, 60, thread, ord(kind)) for time, kind in kinds]
        bits = 8 * (HEAD_BYTES + sum(map(len, events)))
        head = Head(MAGIC, 0, cpu, bits, 0, 0, 8000, 7000, bits, cpu, 0)
        (out / f"cpu{cpu}").write_bytes(head.pack() + b"".join(events))
    assert "] p-60/70 cpu0 app:work: { track_event_type = B }\n" in relayctl("export", out).stdout
    for option in ("--perfetto", "--chrome"):
        with loaded(out, option) as query:
            assert rows(query, WRONG) == []
            assert rows(
                query,
                "select pid, tid, depth, slice.ts, dur from slice join thread_track on track_id = thread_track.id "
                "join thread using (utid) join process using (upid) order by slice.ts",
            ) == [
                (60, 70, 0, 7000, 40), (60, 71, 0, 7001, 40), (60, 70, 1, 7010, 10), (60, 71, 1, 7011, 10),
                (60, 70, 1, 7030, 0), (60, 71, 1, 7031, 0),
            ]  # fmt: skip


def test_perfetto_is_not_written_to_a_terminal(store, run, out):
    program = run(store.create("t"), "app")
    program.write(10)
    snapshot(store, out)
    done = subprocess.run(
        ["script", "-qec", f"relayctl export {out} --perfetto", "/dev/null"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "-o FILE" in done.stdout


ON_THREADS = (
    "select count(1) from slice join thread_track on slice.track_id = thread_track.id where slice.name in"
    " ('app:forms', 'app:structs')"
)
FORMS = """
from relayfs_fuse.trace import Event
event = Event("app", "forms", {"ns": "i32[]", "pair": "x8[2]", "state": "u8{IDLE=0,BUSY=1}", "d": "f64[1]"})
event([-5, 7], b"\\1\\2", 1, [0.5])
event([], b"\\3\\4", 9, [1])
at = {"x": "i32", "to": {"state": "u8{IDLE=0,BUSY=1}", "ns": "u8[]"}, "counter_value": "u8"}
Event("app", "structs", {"at": at, "track_event_type": "u8", "scope_x": {"y": "u8"}, "text": "string"})(
    (-5, (1, (6, 7)), 9), ord("I"), (3,), "long" * 100)
Event("app", "level", {"counter_value": "u8{LOW=3}"})(3)
"""


@pytest.mark.parametrize("option", ["--perfetto", "--chrome"])
def test_arrays_enums_and_structs_are_arguments(store, out, option):
    store.create("t")
    run_programs(store, FORMS, 1)
    snapshot(store, out)
    prefix = "debug" if option == "--perfetto" else "args"
    sql = (
        "select key, coalesce(string_value, int_value, real_value) as value from slice join args using (arg_set_id)"
        " where slice.id = (select {}(id) from slice where name = '{}') order by key"
    )
    with loaded(out, option) as query:
        first, second = (dict(rows(query, sql.format(which, "app:forms"))) for which in ("min", "max"))
        nested = dict(rows(query, sql.format("min", "app:structs")))
        values = rows(query, "select value from counter")
        (lanes,) = rows(query, ON_THREADS)
    first, second = ({key.removeprefix(f"{prefix}."): value for key, value in one.items()} for one in (first, second))
    assert (first["ns[0]"], first["ns[1]"], first["state"], first["d[0]"]) == (-5, 7, "BUSY", 0.5)
    assert [int(str(first[f"pair[{i}]"]), 0) for i in range(2)] == [1, 2]
    assert (second["state"], second["pair[0]"] is not None) == (9, True)
    assert not any(key.startswith("ns[") for key in second)
    assert values == [(3.0,)]
    # No field of a struct says which track an event is on.
    assert lanes == (3,)
    assert {key.removeprefix(f"{prefix}."): value for key, value in nested.items()} == {
        "at.x": -5, "at.to.state": "BUSY", "at.to.ns[0]": 6, "at.to.ns[1]": 7, "at.counter_value": 9, "scope_x.y": 3,
        "text": "long" * 100,
    }  # fmt: skip
