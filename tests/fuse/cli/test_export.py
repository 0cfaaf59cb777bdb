"""relayctl export: real programs' events, with babeltrace2 as the judge of order and values."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import forking
import pytest
import zstandard
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, wait_until
from tracing import EVENT_BYTES, RELAYCTL, Store, finish, recording, relayctl

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.events import LEVELS
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.reading.packet import HEAD_BYTES, walk

TICKETS = PROGRAMS / "tickets.c"
NEEDED = "a DIR of `relayctl record` or `relayctl snapshot` is needed"
N_PROCESSES, N_THREADS, N_TICKETS = 4, 4, 2000
BABELTRACE = re.compile(
    r"\[(?P<time>[\d.]+)\] \S+:(?P<name>[\w.-]+):\((?P<pid>\d+)\) (?P<event>[\w.]+:\w+): "
    r"\{ cpu_id = (?P<cpu>\d+), pid = \d+ \}, \{ vtid = (?P<tid>\d+) \}, (?P<fields>\{.*\})"
)
TEXT = re.compile(
    r"\[(?P<time>[\d.]+)\] (?P<name>[\w.-]+)-(?P<pid>\d+)/(?P<tid>\d+) cpu(?P<cpu>\d+) "
    r"(?P<event>[\w.]+:\w+): (?P<fields>\{.*\})"
)
LOST = re.compile(r"\[[\d.]+\] [\w.-]+-\d+ cpu\d+ lost (\d+) events? since \[[\d.]+\]: full")
ALL_TYPES = (
    "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "x8", "x16", "x32", "x64", "f32", "f64", "string", "bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One, as it is shown; writer: name, pid and thread."""

    time: str
    writer: tuple[str, int, int]
    cpu: int
    name: str
    fields: str


def events(text: str, line: re.Pattern[str]) -> list[Event]:
    found = []
    for shown in text.splitlines():
        if LOST.fullmatch(shown):
            continue
        match = line.fullmatch(shown)
        assert match, shown
        writer = match["name"], int(match["pid"]), int(match["tid"])
        found.append(Event(match["time"], writer, int(match["cpu"]), match["event"], match["fields"]))
    return found


def babeltrace(*directories: Path) -> list[Event]:
    command = ["babeltrace2", "--clock-seconds", "--no-delta", *directories]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return events(done.stdout, BABELTRACE)


def by_time(found: list[Event]) -> list[Event]:
    """In an order that does not depend on how streams are sorted that have events of the same time."""
    return sorted(found, key=lambda event: (event.time, event.writer, event.cpu))


def exported(directory: Path | str, *options: object) -> str:
    done = relayctl("export", directory, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(directory: Path | str, *options: object) -> list[dict]:
    # Not splitlines(), which knows more ends of lines than there are.
    return [json.loads(line) for line in exported(directory, "--json", *options).split("\n") if line]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def snapshot(store: Store, out: Path) -> Path:
    done = relayctl("snapshot", "t", "--store", store.path, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def run_python(store: Store, text: str) -> int:
    """Run a program that traces; return its pid."""
    environment = {**os.environ, "RELAYFS_STORE": str(store.path), "RELAYFS": str(store.path / "nowhere")}
    program = forking.start([sys.executable, "-c", text], env=environment)
    assert program.wait(DEADLINE_S) == 0
    return program.pid


def two_programs(store: Store, run, out: Path, **options: object) -> Path:
    """Two programs that write at the same time, on two CPUs, are recorded while some events are lost."""
    trace = store.create("t", **options)
    with recording("t", "--store", store.path, "-o", out) as process:
        programs = [run(trace, "one"), run(trace, "two", cpu=native.n_possible_cpus() - 1)]
        for program in programs:
            program.start_patiently(3000)
        for program in programs:
            program.done()
        programs[0].write(2000)
        programs[1].write(1)
        finish(process)
    return out


# --- order and values ---


def test_babeltrace2_agrees_on_order_and_values(store, run, out):
    two_programs(store, run, out)
    text = exported(out, "--time", "seconds")
    ours, theirs = events(text, TEXT), babeltrace(out)
    assert len(ours) > 6000
    assert by_time(ours) == by_time(theirs)
    assert [event.time for event in ours] == [event.time for event in theirs]
    lost = [int(match[1]) for line in text.splitlines() if (match := LOST.fullmatch(line))]
    assert sum(lost) == sum(int(stats["lost"]) for stats in objects(out) if "lost" in stats) > 0


def test_events_by_the_time_stamp_counter_come_in_the_same_order(store, run, out):
    if not CLOCKS["tsc"].is_available:
        pytest.skip("this machine has no time stamp counter to trace with")
    two_programs(store, run, out, clock=CLOCKS["tsc"].number)
    ours, theirs = events(exported(out, "--time", "seconds"), TEXT), babeltrace(out)
    assert Counter((e.writer, e.cpu, e.fields) for e in ours) == Counter((e.writer, e.cpu, e.fields) for e in theirs)
    for writer in {event.writer for event in ours}:
        mine = [event for event in ours if event.writer == writer]
        other = [event for event in theirs if event.writer == writer]
        assert [event.fields for event in mine] == [event.fields for event in other]
        # babeltrace2 counts in doubles, and with the metadata of each process alone.
        assert all(abs(float(a.time) - float(b.time)) < 1e-3 for a, b in zip(mine, other, strict=True))


def test_fields_of_all_types_are_shown(store, out):
    store.create("t")
    numbers = "255, 65535, 4294967295, 18446744073709551615, -128, -2, -3, -9223372036854775808, 254, 1, 0, 2**64 - 1"
    pid = run_python(
        store,
        f"""
from relayfs_fuse.native.events import relay_trace_emit
from relayfs_fuse.trace import Event
event = Event("all.types", "e", {dict(zip((f"f_{word}" for word in ALL_TYPES), ALL_TYPES, strict=True))})
event({numbers}, 0.1, -1e300, 'grüße "e" \\\\ \\n\\x1b[1m\\x85', b"\\0\\xff")
event(*[0] * 12, float("inf"), float("nan"), "", b"")
event(*[1] * 12, 1.5, 0.1, "x", b"x")
Event("other", "none")()
raw = Event("raw", "text", {{"s": "string"}})
record = bytes(16) + b"a\\xff\\xc3\\xbc\\xed\\xa0\\x80\\0"
relay_trace_emit(raw._pointer, record, len(record))
""",
    )
    snapshot(store, out)
    lines = exported(out).splitlines()
    first, special, plain, none, raw = (line.partition(" all.types:e: ")[2] or line for line in lines)
    assert first == (
        "{ f_u8 = 255, f_u16 = 65535, f_u32 = 4294967295, f_u64 = 18446744073709551615, f_i8 = -128, f_i16 = -2, "
        "f_i32 = -3, f_i64 = -9223372036854775808, f_x8 = 0xFE, f_x16 = 0x1, f_x32 = 0x0, f_x64 = 0xFFFFFFFFFFFFFFFF, "
        'f_f32 = 0.1, f_f64 = -1e+300, f_string = "grüße \\"e\\" \\\\ \\n\\x1b[1m\\xc2\\x85", f_bytes = <00ff> }'
    )
    assert 'f_f32 = Infinity, f_f64 = NaN, f_string = "", f_bytes = <> }' in special
    assert "f_f32 = 1.5, f_f64 = 0.1, " in plain
    assert none.endswith(f"-{pid}/{pid} cpu{none.partition(' cpu')[2].partition(' ')[0]} other:none: {{ }}")
    assert raw.endswith('raw:text: { s = "a\\xffü\\xed\\xa0\\x80" }')
    found = objects(out)
    assert [one["event"] for one in found] == ["all.types:e"] * 3 + ["other:none", "raw:text"]
    assert {one["pid"] for one in found} == {pid}
    values = list(found[0]["fields"].values())
    assert list(found[0]["fields"]) == [f"f_{word}" for word in ALL_TYPES]
    assert values[:12] == [255, 65535, 2**32 - 1, 2**64 - 1, -128, -2, -3, -(2**63), 254, 1, 0, 2**64 - 1]
    assert values[12:] == [0.1, -1e300, 'grüße "e" \\ \n\x1b[1m\x85', "00ff"]
    assert list(found[1]["fields"].values())[12:] == ["Infinity", "NaN", "", ""]
    assert found[3]["fields"] == {}
    # As Python does it: bytes.decode("utf-8", "backslashreplace").
    assert found[4]["fields"] == {"s": "a\\xffü\\xed\\xa0\\x80"}


def test_levels_are_shown(store, out):
    store.create("t")
    run_python(
        store,
        """
from relayfs_fuse.native.events import LEVELS
from relayfs_fuse.trace import Event
for level in LEVELS:
    Event("app", f"is_{level}", level=level)()
Event("app", "none")()
""",
    )
    snapshot(store, out)
    *lines, none = [line.partition(" cpu")[2].partition(" ")[2] for line in exported(out).splitlines()]
    assert lines == [f"{level} app:is_{level}: {{ }}" for level in LEVELS]
    assert none == "app:none: { }"
    assert [one.get("level") for one in objects(out)] == [*LEVELS, None]


@pytest.mark.parametrize("clock", [clock.number for clock in CLOCKS.values() if clock.is_available])
@pytest.mark.parametrize("buffers", [native_trace.BUFFERS_PERPROCESS, native_trace.BUFFERS_SHARED])
def test_tickets_of_many_threads_come_in_their_order(store, out, clock, buffers):
    """The lock under which tickets are taken and written puts the events into one order."""
    store.create("t", clock=clock, buffers=buffers, subbuf_size=1 << 16, n_subbufs=64)
    environment = {**os.environ, "RELAYFS_STORE": str(store.path), "RELAYFS": str(store.path / "nowhere")}
    program = compile_c([TICKETS])
    command = list(map(str, [program, N_PROCESSES, N_THREADS, N_TICKETS]))
    subprocess.run(command, env=environment, check=True, timeout=DEADLINE_S)
    snapshot(store, out)
    found = objects(out)
    assert not [one for one in found if "lost" in one]
    tickets = [one["fields"]["ticket"] for one in found]
    n = N_PROCESSES * N_THREADS * N_TICKETS
    assert sorted(tickets) == list(range(n))
    assert len({one["pid"] for one in found}) == N_PROCESSES
    by_thread = Counter((one["pid"], one["tid"]) for one in found)
    assert list(by_thread.values()) == [N_TICKETS] * (N_PROCESSES * N_THREADS)
    assert [one["ns"] for one in found] == sorted(one["ns"] for one in found)
    wrong = [(a, b) for a, b in itertools.pairwise(found) if a["fields"]["ticket"] > b["fields"]["ticket"]]
    assert not [(a, b) for a, b in wrong if a["ns"] != b["ns"]]


# --- what is chosen ---


def test_events_are_chosen_by_name_and_time(store, run, out):
    program = run(store.create("t"), "app")
    program.write(10)
    program.declare("other")
    program.write(10)
    program.kill()
    snapshot(store, out)
    everything = objects(out)
    names = {one["event"] for one in everything}
    assert len(names) == 2
    assert len(everything) == 20
    assert objects(out, "-e", "*:other") == everything[10:]
    assert objects(out, "-e", "test:oth*", "-e", "test:[!o]*") == everything
    since, until = everything[5]["ns"], everything[8]["ns"]
    limits = [f"{ns // 10**9}.{ns % 10**9:09}" for ns in (since, until)]
    chosen = [one for one in everything if since <= one["ns"] <= until]
    assert objects(out, "--since", limits[0], "--until", limits[1]) == chosen
    shown = subprocess.run(
        ["date", "-d", f"@{limits[0]}", "+%Y-%m-%dT%H:%M:%S.%N"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert objects(out, "--since", shown) == objects(out, "--since", limits[0])
    assert objects(out, "--since", shown.partition("T")[2]) == objects(out, "--since", limits[0])
    done = relayctl("export", out, "-e", "nobody:*")
    assert (done.returncode, done.stdout) == (3, "")
    done = relayctl("export", out, "--since", "yesterday")
    assert done.returncode == 2
    assert "yesterday is no time" in done.stderr
    assert "or before now, as -10s" in done.stderr


@pytest.mark.parametrize(
    ("times", "form"),
    [
        ("clock", r"\d\d:\d\d:\d\d\.\d{9}"), ("date", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9}"),
        ("relative", r"0\.\d{9}"), ("seconds", r"1\d{9}\.\d{9}"),
    ],
)  # fmt: skip
def test_text_tells_times_as_it_is_asked(store, run, out, times, form):
    program = run(store.create("t"), "app")
    program.write(3)
    snapshot(store, out)
    lines = exported(out, "--time", times).splitlines()
    assert len(lines) == 3
    assert all(re.match(rf"\[{form}\] app-", line) for line in lines)
    first = objects(out)[0]["ns"]
    if times == "relative":
        assert lines[0].startswith("[0.000000000]")
    elif times != "seconds":
        wanted = subprocess.run(
            ["date", "-d", f"@{first // 10**9}", "+%Y-%m-%d %H:%M:%S"], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert f"{wanted if times == 'date' else wanted.split()[1]}.{first % 10**9:09}]" in lines[0]


# --- kinds of recordings ---


def test_a_rotated_recording_is_one_stream(store, run, out):
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out, "--rotate-size", "16K") as process:
        programs = [run(trace, "one"), run(trace, "two", cpu=native.n_possible_cpus() - 1)]
        for program in programs:
            program.start_patiently(3000)
        for program in programs:
            program.done()
        finish(process)
    assert len(list(out.glob("0*"))) > 1
    found = [one for one in objects(out) if "event" in one]
    for name in ("one", "two"):
        assert [one["fields"]["n"] for one in found if one["process"] == name] == list(range(3000))
    assert [one["ns"] for one in found] == sorted(one["ns"] for one in found)


def test_a_recording_is_exported_while_it_grows(store, run, out):
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out) as process:
        program = run(trace, "app")
        seen = 0
        for _ in range(5):
            program.write_patiently(300)
            program.flush()
            wait_until(lambda: any(out.rglob("cpu*")), "a stream")
            numbers = [one["fields"]["n"] for one in objects(out) if "event" in one]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= seen
            seen = len(numbers)
        # The room behind the last packet is there.
        (stream,) = out.rglob("cpu*")
        assert stream.stat().st_size > 1 << 20
        finish(process)
    assert [one["fields"]["n"] for one in objects(out) if "event" in one] == list(range(1500))


def test_compressed_recordings_are_unpacked(store, run, out, tmp_path, monkeypatch):
    two_programs(store, run, out)
    expected = exported(out, "--time", "seconds")
    for path in [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]:
        path.with_name(f"{path.name}.zst").write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    assert exported(out, "--time", "seconds") == expected
    assert not os.listdir(tmp_path / "temporary")
    (spoilt, *_) = out.rglob("cpu*.zst")
    spoilt.write_bytes(spoilt.read_bytes()[:40])
    done = relayctl("export", out)
    assert done.returncode == 1
    assert "cannot be unpacked" in done.stderr
    assert not os.listdir(tmp_path / "temporary")


def test_what_a_trace_holds_is_exported(store, run, out, tmp_path, monkeypatch):
    trace = store.create("t")
    place = ("--store", store.path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    reasons = {
        "t": "t: no program has written to it that can be read",
        "u": f"there is no trace u in {store.path}; traces: t",
    }
    for name, reason in reasons.items():
        done = relayctl("export", name, *place)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"relayctl: {reason}\n")
    program = run(trace, "app")
    program.write(400)
    before = exported("t", *place)
    assert before == exported(snapshot(store, out))
    assert len(before.splitlines()) == 400
    # It stays there, and a directory of the same name is none of it.
    (tmp_path / "t").mkdir()
    monkeypatch.chdir(tmp_path)
    assert objects("t", *place) == objects(out)
    assert "t: there is no trace of relayfs in it" in relayctl("export", "t").stderr
    for options in ([], ["-e", "nothing:*"]):
        done = relayctl("export", "t", *place, "--perfetto", "-o", tmp_path / "file", *options)
        says = "relayctl: t: no event is declared so far whose name matches\n" if options else None
        assert done.stderr == (says or f"t: 400 events to {tmp_path}/file, 0 events lost\n")
    assert not list((tmp_path / "temporary").iterdir())


def test_two_formats_are_refused(out):
    done = relayctl("export", "--json", out, "--chrome")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: --json and --chrome: there is one format; give one of them\n" in done.stderr


def test_what_is_no_recording_is_refused(out):
    out.mkdir()
    done = relayctl("export", out)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"relayctl: {out}: there is no trace of relayfs in it; {NEEDED}\n"
    (out / "metadata").write_text("/* CTF 1.8 */\nnonsense\n")
    done = relayctl("export", out)
    assert done.returncode == 1
    assert "it is no metadata of relayfs" in done.stderr


def test_a_damaged_packet_costs_its_rest_alone(store, run, out):
    program = run(store.create("t"), "app")
    program.write(400)
    snapshot(store, out)
    (stream,) = out.rglob("cpu*")
    whole = [one["fields"]["n"] for one in objects(out)]
    with stream.open("r+b") as file:
        packets = [(at, head) for at, head in walk(file.fileno(), stream.stat().st_size) if not head.is_empty]
        at, head = packets[1]
        # The id of its third event.
        file.seek(at + HEAD_BYTES + 2 * EVENT_BYTES)
        file.write(b"\x99\x99")
    n = (packets[0][1].content_bytes - HEAD_BYTES) // EVENT_BYTES
    n_damaged = (head.content_bytes - HEAD_BYTES) // EVENT_BYTES
    done = relayctl("export", out, "--json")
    assert done.returncode == 0
    assert done.stderr == "relayctl: 1 packets end in what is no declared event\n"
    found = [json.loads(line)["fields"]["n"] for line in done.stdout.splitlines()]
    assert found == whole[: n + 2] + whole[n + n_damaged :]


# --- where to ---


def test_a_file_appears_when_it_is_whole(store, run, out, tmp_path):
    program = run(store.create("t"), "app")
    program.write(10)
    snapshot(store, out)
    target = tmp_path / "exported"
    target.write_text("old")
    done = relayctl("export", out, "--json", "-o", target)
    assert done.returncode == 0
    assert done.stderr == f"{out}: 10 events to {target}, 0 events lost\n"
    assert target.read_text() == exported(out, "--json")
    assert sorted(os.listdir(tmp_path)) == ["exported", "out"]
    (tmp_path / "usual").touch()
    assert target.stat().st_mode == (tmp_path / "usual").stat().st_mode
    nowhere = tmp_path / "none" / "exported"
    done = relayctl("export", out, "-o", nowhere)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {nowhere}: No such file or directory\n")


def test_a_file_that_cannot_be_whole_does_not_appear(store, run, out, tmp_path):
    program = run(store.create("t"), "app")
    program.write(10)
    snapshot(store, out)
    command = ["prlimit", "--fsize=100", RELAYCTL, "export", out, "-o", tmp_path / "exported"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (1, "relayctl: File too large\n")
    assert os.listdir(tmp_path) == ["out"]


def test_a_stream_that_is_no_file_is_told(store, run, out):
    program = run(store.create("t"), "app")
    program.write(10)
    snapshot(store, out)
    (stream,) = out.rglob("cpu*")
    stream.unlink()
    os.mkfifo(stream)
    done = relayctl("export", out)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {stream} is no regular file; {NEEDED}\n")


def test_a_reader_that_has_had_enough_ends_it_quietly(store, run, out):
    two_programs(store, run, out)
    with forking.start([RELAYCTL, "export", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE_S) == -signal.SIGPIPE
