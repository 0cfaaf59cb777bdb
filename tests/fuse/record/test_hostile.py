"""relayctl record and snapshot of programs that do harm: the others' events are recorded exactly, and all is readable.

The judge is babeltrace2 on the whole recording: one event that it cannot read makes it give up everything.
"""

import fcntl
import itertools
import json
import os
import random
import re
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from babeltrace import LOSS, Trace, babeltrace, lost, read
from build import compile_c
from making import Maker
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from stress import is_long
from traced import environment_of, processes, start_trace, traced
from tracing import EVENT_BYTES, finish, recorded, recording, relayctl

from relayfs_fuse import native
from relayfs_fuse.reading.process import Process
from relayfs_fuse.reading.source import Source
from relayfs_fuse.record import recording as of_process
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.record.outputs import ProcessOutput
from relayfs_fuse.record.recorder import Options, Recorder
from relayfs_fuse.tracefiles import ctf

pytestmark = pytest.mark.one_mount

SCRIBBLER = Path(__file__).with_name("trace_scribbler.c")
SUBBUF_BYTES, N_SUBBUFS = 4096, 8
ROOM = f"subbuf_size={SUBBUF_BYTES} n_subbufs={N_SUBBUFS}"
SEEDS = range(1, 30 if is_long() else 6)
# struct relay_control is the last page; where its words lie in it.
CONTROL_BYTES, LOST_FULL_AT, READER_LOCK_AT = 4096, 192, 336
HEAD_BYTES = 72  # of a packet


@contextmanager
def scribbling(mount: Mount, seed: int, rounds: int = 40) -> Iterator[str]:
    """Run a program of another user that spoils its events; give the name of its directory."""
    command = [compile_c([SCRIBBLER]), str(seed), str(rounds), str(SUBBUF_BYTES * N_SUBBUFS)]
    with subprocess.Popen(
        command, env=environment_of(mount), user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE,
        text=True, cwd="/",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            word, n_buffers = process.stdout.readline().split()
            assert (word, int(n_buffers) > 0) == ("scribbled", True)
            yield f"trace_scribbler-{process.pid}"
        finally:
            process.kill()


def emit(honest: Maker, n: int) -> None:
    """Have it write events, slowly enough for few to be lost where the recorder is kept waiting by others."""
    for _ in range(n // 50):
        honest.ask("emit 50")


def judge(out: Path, honest: Maker) -> Trace:
    """Read the whole recording, then the honest program's part, of which all is in both."""
    done = subprocess.run(["babeltrace2", out], capture_output=True, check=False, timeout=DEADLINE_S)
    strange = [line for line in done.stderr.decode().splitlines() if not LOSS.fullmatch(line)]
    assert (done.returncode, strange) == (0, []), done.stderr
    # Its times and counts, too.
    lost(out)
    trace = babeltrace(out / f"traced-{honest.process.pid}")
    assert done.stdout.count(f":({honest.process.pid}) judge:step: ".encode()) == len(trace.numbers())
    return trace


# --- events that are not as declared ---


@pytest.mark.stress
@pytest.mark.parametrize("seed", SEEDS)
def test_scribbled_events_leave_the_recording_readable(mount: Mount, unprivileged: User, out: Path, seed: int) -> None:
    start_trace(mount, "t", ROOM)
    with recording("t", "-m", mount.path, "-o", out) as process, traced(mount) as honest:
        emit(honest, 500)
        with scribbling(mount, seed) as scribbler:
            emit(honest, 500)
        said = finish(process)
    trace = judge(out, honest)
    assert len(trace.numbers()) + trace.lost == 1000
    # It is named, once, and what is wrong with it; so is nobody else.
    pid = scribbler.rpartition("-")[2]
    assert len(re.findall(rf"^relayctl: {scribbler} \(uid {NOBODY}, pid {pid}\) is damaged: ", said, re.MULTILINE)) == 1
    assert said.count("is damaged") == 1
    apart = out / ".damaged" / scribbler
    assert re.match(r"cpu\d+: packet \d+, byte \d+: \w.*; \d+ events lost\n", (apart / "why").read_text())
    assert (apart / "events").read_bytes().count(b"event {\n") == 3
    assert [path.name for path in (out / ".damaged").iterdir()] == [scribbler]


@pytest.mark.stress
@pytest.mark.parametrize("seed", SEEDS)
def test_scribbled_events_leave_a_snapshot_readable(mount: Mount, unprivileged: User, out: Path, seed: int) -> None:
    start_trace(mount, "t", f"{ROOM} mode=overwrite")
    with traced(mount) as honest, scribbling(mount, seed) as scribbler:
        honest.ask("emit 100")
        done = relayctl("snapshot", "t", "-m", mount.path, "-o", out)
    assert done.returncode == 0
    assert judge(out, honest).numbers() == list(range(100))
    assert f"{scribbler} (uid {NOBODY}) is damaged: " in done.stderr
    assert (out / ".damaged" / scribbler / "why").exists()


@pytest.mark.parametrize("command", ["record", "snapshot"])
@pytest.mark.parametrize("at", [0, 17, 123])
def test_events_behind_a_wrong_one_count_as_lost(store, run, out, command, at):
    app = run(store.create("t"), "app")
    per_packet = (SUBBUF_BYTES - HEAD_BYTES) // EVENT_BYTES
    app.write(3 * per_packet)
    with (app.directory / "cpu/mem0").open("r+b") as file:
        # The id of one event in the second packet.
        file.seek(SUBBUF_BYTES + HEAD_BYTES + at * EVENT_BYTES)
        file.write(struct.pack("<H", 12345))
    ends = ["--duration", "0"] if command == "record" else []
    done = relayctl(command, "t", "--store", store.path, "-o", out, "--check", "all", "--json", *ends)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    seen = read(out)
    assert seen.events["app"] == [*range(per_packet + at), *range(2 * per_packet, 3 * per_packet)]
    assert seen.lost == summary["lost"] == per_packet - at
    assert "no event of id 12345 is declared" in summary["damaged"][app.name]
    raw = (out / ".damaged" / app.name / "cpu0").read_bytes()
    assert len(raw) == HEAD_BYTES + per_packet * EVENT_BYTES
    assert read(out / app.name).lost == per_packet - at


def test_a_recorder_that_is_started_again_still_counts_them(store, run, record, out):
    app = run(store.create("t"), "app")
    per_packet = (SUBBUF_BYTES - HEAD_BYTES) // EVENT_BYTES
    app.write(2 * per_packet + 1)
    with (app.directory / "cpu/mem0").open("r+b") as file:
        file.seek(HEAD_BYTES + 10 * EVENT_BYTES)
        file.write(struct.pack("<H", 12345))
    with record("--check", "all") as process:
        recorded(out, 10 + per_packet, "app")
        process.kill()
        process.wait()
    app.write(per_packet)
    with record("--check", "all") as process:
        finish(process)
    seen = read(out)
    assert seen.events["app"] == [*range(10), *range(per_packet, 3 * per_packet + 1)]
    assert seen.lost == per_packet - 10


def test_unchecked_and_checked_recordings_of_honest_programs_are_the_same(store, run, record, out, tmp_path):
    trace = store.create("t")
    app = run(trace, "app")
    with record("--check", "all") as process:
        refused = app.write_patiently(3000)
        app.declare("later")
        refused += app.write_patiently(1000)
        said = finish(process)
    seen = read(out)
    assert seen.events == {"app": list(range(4000))}
    assert (seen.names, seen.lost) == ({"first", "later"}, refused)
    assert "damaged" not in said
    assert not (out / ".damaged").exists()


def test_own_programs_are_trusted_by_default(store, run):
    trace = store.create("t")
    directory = run(trace, "app").directory

    def is_checked(check: str = "others") -> bool:
        with closing(Process(str(directory), check, trace)) as process:
            return process.checker is not None

    assert (is_checked(), is_checked("all"), is_checked("none")) == (False, True, False)
    (directory / "cpu/mem0").chmod(0o662)
    assert (is_checked(), is_checked("none")) == (True, False)
    (directory / "cpu/mem0").chmod(0o640)
    assert not is_checked()
    os.chown(directory / "cpu/mem0", NOBODY, NOBODY)
    assert is_checked()


def test_a_tar_archive_has_what_was_set_apart(store, run, out):
    app = run(store.create("t"), "app")
    app.write(200)
    with (app.directory / "cpu/mem0").open("r+b") as file:
        file.seek(HEAD_BYTES)
        file.write(struct.pack("<H", 12345))
    command = ["-o", "-", "--check", "all", "--duration", "0"]
    with recording("t", "--store", store.path, *command, stdout=subprocess.PIPE) as process:
        out.mkdir()
        assert subprocess.run(["tar", "x", "-C", out], stdin=process.stdout, check=False).returncode == 0
    assert sorted(path.name for path in (out / ".damaged" / app.name).iterdir()) == ["cpu0", "events", "why"]
    assert len(read(out).events["app"]) + read(out).lost == 200


# --- memory that goes away ---


@pytest.mark.stress
@pytest.mark.parametrize("check", ["all", "none"])
@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_buffers_cost_their_process_only(store, run, record, out, check, seed):
    """At a moment that the seed tells, to a length that it tells."""
    chance = random.Random(seed)
    trace = store.create("t")
    good, bad = run(trace, "good"), run(trace, "bad")
    with record("--check", check) as process:
        good.write(200)
        bad.write(chance.choice([0, 100, 1000]))
        if chance.random() < 0.5:
            wait_until((out / good.name / "cpu0").exists, "a recording of both")
        path = bad.directory / "cpu/mem0"
        # It would be killed for what is done to it, and nothing would be left of it.
        bad.process.send_signal(signal.SIGSTOP)
        os.truncate(path, chance.choice([0, 4096, path.stat().st_size - 4096]))
        refused = good.write_patiently(3000)
        wait_until((out / ".damaged" / bad.name / "why").exists, "the mark")
        refused += good.write_patiently(1000)
        said = finish(process)
    # It may have been damaged before the recorder looked.
    who = rf"{bad.name} \(uid {os.geteuid()}(, pid {bad.process.pid})?\)"
    assert len(re.findall(rf"^relayctl: {who} is damaged: ", said, re.MULTILINE)) == said.count("is damaged") == 1
    seen = read(out)
    assert seen.events["good"] == list(range(4200))
    assert read(out / good.name).lost == refused


def truncate(mem: Path) -> None:
    os.truncate(mem, 0)


def spoil_losses(mem: Path) -> None:
    with mem.open("r+b") as file:
        file.seek(mem.stat().st_size - CONTROL_BYTES + LOST_FULL_AT)
        file.write(struct.pack("=QQ", 0, 1 << 63))


@pytest.mark.parametrize("check", ["all", "none"])
@pytest.mark.parametrize("duration_s", [0, 1])
@pytest.mark.parametrize("spoil", [truncate, spoil_losses])
@pytest.mark.parametrize("step", ["n_with_room", "append"])
def test_memory_that_is_spoiled_while_it_is_written_costs_its_process_only(
    store, run, out, step, spoil, duration_s, check
):
    """Between the moment when a packet is found and that when it is on the disk; also the last of a process."""
    trace = store.create("t")
    bad, good = run(trace, "bad"), run(trace, "good")
    bad.write(300)
    good.write(300)
    bad.process.send_signal(signal.SIGSTOP)

    class Spoiling(DirectoryOutput):
        def process(self, name: str, origin: ctf.Origin) -> ProcessOutput:
            process = super().process(name, origin)
            really = getattr(process, step)

            def spoil_before(*arguments: Any, **words: Any) -> Any:
                if name == bad.name:
                    spoil(bad.directory / "cpu/mem0")
                return really(*arguments, **words)

            setattr(process, step, spoil_before)
            return process

    native.guard_install()
    source, said = Source("t", str(store.path)), []
    recorder = Recorder(
        source, Spoiling(str(out), source.identity), Options(duration_s=duration_s, check=check), said.append, int
    )
    recorder.run()
    source.close()
    assert list(recorder.summary.damaged) == [bad.name]
    assert len(said) == 1
    assert f"{bad.name} (uid {os.geteuid()}, pid {bad.process.pid}) is damaged: " in said[0]
    assert read(out).events["good"] == list(range(300))


@contextmanager
def taking_turns(directory: Path, cpus: Sequence[int]) -> Iterator[None]:
    """Say in the memory of two buffers, in turn, that this thread reads them: at each moment in one at least."""
    mems = [directory / f"cpu/mem{cpu}" for cpu in cpus]
    with ExitStack() as stack:
        files = [stack.enter_context(mem.open("r+b", buffering=0)) for mem in mems]
        at = mems[0].stat().st_size - CONTROL_BYTES + READER_LOCK_AT
        process = stack.enter_context(closing(Process(str(directory))))
        assert process.buffers[cpus[0]].begin()
        owner = os.pread(files[0].fileno(), 8, at)
        process.buffers[cpus[0]].abort()
        assert struct.unpack("=Q", owner)[0], "the lock does not lie there any more"
        stop = threading.Event()

        def take_turns() -> None:
            for now, before in itertools.cycle([(files[0], files[1]), (files[1], files[0])]):
                os.pwrite(now.fileno(), owner, at)
                os.pwrite(before.fileno(), bytes(8), at)
                if stop.wait(0.1):
                    return

        thread = threading.Thread(target=take_turns)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two CPUs are needed")
def test_readers_that_take_turns_hold_up_the_end_for_a_limited_time(store, run, out):
    bad, cpus = run(store.create("t"), "bad"), sorted(os.sched_getaffinity(0))[:2]
    for cpu in cpus:
        os.sched_setaffinity(bad.process.pid, {cpu})
        bad.write(300)
    with taking_turns(bad.directory, cpus):
        said = relayctl("record", "t", "--store", store.path, "-o", out, "--duration", "0").stderr
    # The recorder may come to both while it is the other one's turn.
    is_given_up = "it cannot be read as somebody does not end reading it" in said
    assert is_given_up or len(read(out).events["bad"]) == 600


@contextmanager
def in_a_thread(recorder: Recorder) -> Iterator[None]:
    thread = threading.Thread(target=recorder.run)
    thread.start()
    try:
        yield
    finally:
        recorder.stop()
        thread.join()


def test_a_dead_process_whose_buffer_another_program_reads_keeps_no_other_from_being_recorded(
    store, run, out, monkeypatch
):
    monkeypatch.setattr(of_process, "_BUSY_S", DEADLINE_S)
    monkeypatch.setattr(of_process, "_ALL_BUSY_S", DEADLINE_S)
    trace = store.create("t")
    dead, alive = run(trace, "dead"), run(trace, "alive")
    dead.write(300)
    source, ticks = Source("t", str(store.path)), list[None]()
    output = DirectoryOutput(str(out), source.identity)
    recorder = Recorder(source, output, Options(removes=True), str, lambda: ticks.append(None))
    with closing(source), ExitStack() as running, closing(Process(str(dead.directory))) as other:
        # Before the recorder does, which would have it otherwise.
        assert other.buffers[0].begin()
        running.enter_context(in_a_thread(recorder))
        dead.kill()
        n = len(ticks)
        wait_until(lambda: len(ticks) > n + 3, "the recorder has seen that it is dead")
        # Some twenty times what its buffer holds.
        alive.start_patiently(20000)
        recorded(out, 20000 - 4096 // EVENT_BYTES, "alive")
        assert not (out / dead.name / "cpu0").exists()
        other.buffers[0].abort()
    assert not recorder.summary.damaged
    assert read(out).events["dead"] == list(range(300))


def test_it_ends_with_the_trace_whatever_its_programs_have_done(mount: Mount, out: Path) -> None:
    mount.expect("damaged|truncated|positions")
    start_trace(mount, "t", ROOM)
    with recording("t", "-m", mount.path, "-o", out) as process, traced(mount) as one, traced(mount) as two:
        one.ask("emit 20")
        two.ask("emit 20")
        wait_until(lambda: len(processes(mount.path / "t")) == 2, "both are shown")
        spoilt = mount.store / "t" / f"traced-{two.process.pid}"
        two.process.kill()
        two.process.wait()
        for path in (spoilt / "cpu").iterdir():
            os.truncate(path, 0)
        wait_until((out / ".damaged" / spoilt.name / "why").exists, "the mark")
        mount.command("trace stop t")
        mount.command("trace remove t")
        assert process.wait(DEADLINE_S) == 0
    assert judge(out, one).numbers() == list(range(20))


# --- declarations ---


def replaced(line: str, key: str, value: str) -> str:
    return re.sub(rf" {key}=\S+", f" {key}={value}", line)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("boot", "11111111-2222-3333-4444-555555555555"), ("mono", "5"), ("real", "18446744073709551615"), ("id", "77"),
        ("clock", "tsc"), ("buffers", "shared"), ("trace", "u"), ("pid", "4294967296"), ("process", 'x";\n'),
        ("process", "\x01"), ("uid", "-1"),
    ],
)  # fmt: skip
def test_a_first_line_that_is_not_of_the_trace_is_refused(store, run, record, out, key, value):
    """Viewers refuse to put clocks into one order that contradict each other."""
    trace = store.create("t")
    good, bad = run(trace, "good"), run(trace, "bad")
    good.write(100)
    bad.write(100)
    events = bad.directory / ".events"
    line, rest = events.read_text().split("\n", 1)
    events.write_text(f"{replaced(line, key, value)}\n{rest}")
    with record() as process:
        wait_until((out / ".damaged" / bad.name / "why").exists, "the mark")
        said = finish(process)
    assert f"{bad.name} (uid {os.geteuid()}) is damaged: " in said
    assert read(out).events == {"good": list(range(100))}


def test_a_recorder_whose_messages_nobody_reads_goes_on(store, run, record, out):
    trace = store.create("t")
    good = run(trace, "good")
    with record() as process:

        def see_damaged(*names: str) -> None:
            process.send_signal(signal.SIGSTOP)
            for name in names:
                bad = run(trace, name)
                bad.write(100)
                (bad.directory / ".events").write_text("nonsense\n")
            process.send_signal(signal.SIGCONT)

        fill(process)
        see_damaged("bad1", "bad2", "bad3")
        wait_until(lambda: len(list((out / ".damaged").glob("*/why"))) == 3, "the marks")
        good.write(100)
        good.flush()
        recorded(out, 100, "good")
        # Then somebody reads them.
        filled = process.stderr.readline()
        see_damaged("bad4")
        said = finish(process)
    assert set(filled) == {"x", "\n"}
    assert "relayctl: 3 messages are missing here: stderr was full\nrelayctl: bad4" in said


def fill(process: subprocess.Popen[str]) -> None:
    """Fill the pipe that is a process's stderr, with a line."""
    stderr = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    pipe_bytes = fcntl.fcntl(stderr, fcntl.F_SETPIPE_SZ, 8192)
    os.write(stderr, b"x" * (pipe_bytes - 1) + b"\n")
    os.close(stderr)


@pytest.mark.stress
@pytest.mark.parametrize("seed", SEEDS)
def test_nonsense_in_declarations_costs_the_events_that_it_declares(store, run, record, out, seed):
    chance = random.Random(seed)
    trace = store.create("t")
    good, bad = run(trace, "good"), run(trace, "bad")
    events = bad.directory / ".events"
    line, declared = events.read_bytes().split(b"\n", 1)
    nonsense = [
        declared.replace(b"uint64_t", b"uint32_t"), declared.replace(b"_n;", b"_fill;"), declared[: len(declared) // 2],
        declared.replace(b"test:", b"test:\""), declared.replace(b"id = ", b"id = 0"), b"event {\n" * 100,
        b"struct {", chance.randbytes(1000), b'/* */ env { x = "', b"\0" * 100,
    ]  # fmt: skip
    chance.shuffle(nonsense)
    with record("--check", "all") as process:
        bad.write(100)
        good.write(100)
        # What was declared has been read by now, or has been changed before.
        events.write_bytes(b"\n".join([line, *nonsense, declared]))
        bad.write(500)
        refused = good.write_patiently(1000)
        finish(process)
    seen = read(out)
    assert seen.events["good"] == list(range(1100))
    assert read(out / good.name).lost == refused
    assert set(seen.events.get("bad", [])) <= set(range(600))


def test_more_declarations_than_are_read_are_left_out(store, run, record, out):
    trace = store.create("t")
    good, bad = run(trace, "good"), run(trace, "bad")
    with (bad.directory / ".events").open("ab") as file:
        file.write(b"x" * ctf.EVENTS_MAX)
    bad.declare("late")
    with record("--check", "all") as process:
        bad.write(10)
        good.write(10)
        said = finish(process)
    who = f"{bad.name} (uid {os.geteuid()}, pid {bad.process.pid})"
    assert f"{who} is damaged: cpu0: packet 0, byte 72: no event of id " in said
    seen = read(out)
    assert seen.events == {"good": list(range(10))}
    assert seen.lost == 10


# --- open files ---


def n_files_for(n_processes: int) -> int:
    """How many open files let so many processes be recorded at once."""
    return next(n for n in itertools.count(32) if n - 32 - max(4, n // 8) == n_processes)


def test_a_process_takes_one_open_file(store, run, out):
    """However many CPUs there are, and files that it is recorded to."""
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", out, n_files=n_files_for(12)) as process:
        programs = [run(trace, f"app{i}", cpu=i % native.n_possible_cpus()) for i in range(12)]
        for _ in range(3):
            for app in programs:
                app.write_patiently(300)
        # All of them still live.
        wait_until(lambda: len(list(out.glob("app*"))) == 12, "all are recorded")
        said = finish(process)
    assert read(out).events == {f"app{i}": list(range(900)) for i in range(12)}
    assert said.count("\n") == 1


def test_processes_wait_if_there_are_too_few_open_files(store, run, out):
    trace = store.create("t")
    programs = [run(trace, f"app{i}") for i in range(8)]
    for i, app in enumerate(programs):
        app.write(10 + i)
    n_files = n_files_for(2)
    with recording("t", "--store", store.path, "-o", out, n_files=n_files) as process:
        for app in programs:
            app.end()
        wait_until(lambda: not store.programs(trace), "the removal of what all have left")
        said = finish(process)
    assert read(out).events == {f"app{i}": list(range(10 + i)) for i in range(8)}
    assert said.count(f"relayctl: {n_files} open files are too few: some processes wait until others have ended\n") == 1


def test_one_user_cannot_take_all_open_files(mount: Mount, unprivileged: User, out: Path) -> None:
    start_trace(mount, "t", ROOM)
    n_files = n_files_for(12)
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(traced(mount, user=NOBODY)).ask("emit 200")
        process = stack.enter_context(recording("t", "-m", mount.path, "-o", out, n_files=n_files))
        wait_until(lambda: len(list(out.glob("traced-*"))) == 3, "three are recorded")
        honest = stack.enter_context(traced(mount))
        emit(honest, 500)
        said = finish(process)
    trace = judge(out, honest)
    assert len(trace.numbers()) + trace.lost == 500
    assert said.count(f"relayctl: uid {NOBODY} has too many processes: some wait until others have ended\n") == 1
