"""relayctl view: of recordings, and of traces while programs write them."""

import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import ExitStack
from fcntl import F_SETPIPE_SZ, fcntl, ioctl
from pathlib import Path

import forking
import pytest
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, NOBODY, wait_until
from traced import environment_of, start_trace, traced
from tracing import EVENT_BYTES, RELAYCTL, Store, catches, finish, recorded, recording, relayctl
from viewing import CONTROLS, View, on_terminal, viewing

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.tables import CLOCKS

pytestmark = pytest.mark.one_mount

TICKETS = PROGRAMS / "tickets.c"
SCRIBBLER = Path(__file__).parents[1] / "record/trace_scribbler.c"
EARLIER_BOOT = "11111111-2222-3333-4444-555555555555"
LAST_CPU = native.n_possible_cpus() - 1
BABELTRACE = re.compile(r"\[(\d+)\.(\d{9})\] .* \{ (n = \d+), fill = \d+ \}")
CONSUMES = "relayctl: nobody records t: what is shown is consumed, so that its programs have room for further events\n"
SAYS_STRUCTS = """
from relayfs_fuse import Event
event = Event("a", "b", {"at": {"x": "i8", "to": {"y": "u8"}}, "n": "u8"})
event((1, (2,)), 3)
event((-1, (0,)), 0)
"""
SAYS_ESCAPES = """
from relayfs_fuse.trace import Event
Event("a", "b", {"text": "string"})("\\x1b[2Jgr\\u00fc\\u00dfe\\x9b1m\\n\\x7f")
"""


def shown(*arguments: object) -> str:
    done = relayctl("view", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(*arguments: object) -> list[dict]:
    return [json.loads(line) for line in shown(*arguments, "--json").split("\n") if line]


def numbers(found: list[dict], process: str = "") -> list[int]:
    return [one["fields"]["n"] for one in found if "event" in one and process in {"", one["process"]}]


def trace_environment(store: Store) -> dict[str, str]:
    return {**os.environ, "RELAYFS_STORE": str(store.path), "RELAYFS": str(store.path / "nowhere")}


@pytest.fixture
def out(store, run, tmp_path):
    """A recording of two programs on two CPUs."""
    trace = store.create("t")
    with recording("t", "--store", store.path, "-o", tmp_path / "out") as process:
        programs = [run(trace, "one"), run(trace, "two", cpu=LAST_CPU)]
        for program in programs:
            program.start_patiently(1500)
        for program in programs:
            program.done()
        finish(process)
    return tmp_path / "out"


# --- recordings ---


def test_babeltrace2_agrees_on_a_recording(out):
    done = subprocess.run(
        ["babeltrace2", "--clock-seconds", "--no-delta", out], capture_output=True, text=True, check=True
    )
    theirs = [(int(s) * 10**9 + int(ns), n) for s, ns, n in BABELTRACE.findall(done.stdout)]
    ours = [(one["ns"], f"n = {one['fields']['n']}") for one in objects(out) if "event" in one]
    assert len(ours) == 3000
    assert sorted(ours) == sorted(theirs)
    assert [ns for ns, _ in ours] == [ns for ns, _ in theirs]
    assert shown(out) == relayctl("export", out).stdout


def test_the_last_lines_and_those_since(out):
    everything = shown(out).splitlines()
    assert shown(out, "-n", 7).splitlines() == everything[-7:]
    assert shown(out, "-n", 0) == ""
    assert shown(out, "-n", 10**6).splitlines() == everything
    found = objects(out)
    ns = found[1000]["ns"]
    assert objects(out, "--since", f"{ns // 10**9}.{ns % 10**9:09}") == [one for one in found if one["ns"] >= ns]
    done = relayctl("view", out, "-e", "no:*")
    assert (done.returncode, done.stdout) == (3, "")
    done = relayctl("view", out / "nowhere", "--store", out)
    assert done.returncode == 1


def test_a_reader_that_has_had_enough_ends_it(out):
    script = f'{RELAYCTL} view {out} | head -1; echo "${{PIPESTATUS[*]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout.splitlines() == [shown(out).splitlines()[0], "0 0"]
    assert done.stderr == ""


# --- terminals ---


def test_a_terminal_has_colours_and_may_be_narrow(out):
    plain = shown(out, "-n", 5)
    assert on_terminal(100, out, "-n", 5, NO_COLOR="1").decode() == plain
    assert on_terminal(100, out, "-n", 5, TERM="dumb").decode() == plain
    coloured = on_terminal(100, out, "-n", 5).decode()
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    first = coloured.splitlines()[0]
    assert re.match(
        r"\x1b\[2m\[[\d:.]+\]\x1b\[0m \x1b\[36m\w+-\d+(/\d+)?\x1b\[0m cpu\d+ \x1b\[1mtest:\w+\x1b\[0m: ", first
    )
    narrow = on_terminal(59, out, "-n", 5, NO_COLOR="1").decode().splitlines()
    wide = [re.fullmatch(r"\[(.{15})\d{3}\] (\S+) cpu\d+ (\S+) \{ n = (\d+), (fill) = (\d+) \}", line)
            for line in plain.splitlines()]  # fmt: skip
    assert narrow == [f"{one[1]} {one[2]} {one[3]} n={one[4]} {one[5]}={one[6]}" for one in wide]
    assert on_terminal(59, out, "-n", 1, "--json").decode() == shown(out, "-n", 1, "--json")


def test_no_text_of_a_program_moves_the_cursor(store):
    store.create("t")
    forking.run([sys.executable, "-c", SAYS_ESCAPES], env=trace_environment(store), check=True, timeout=DEADLINE_S)
    (line,) = shown("t", "--store", store.path).splitlines()
    assert line.endswith(r'a:b: { text = "\x1b[2Jgrüße\xc2\x9b1m\n\x7f" }')
    text = shown("t", "--store", store.path, "--json")
    assert "\\u001b[2Jgrüße\\u009b1m\\n\\u007f" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert not CONTROLS.search(on_terminal(100, "t", "--store", store.path, NO_COLOR="1"))


def test_structs_are_in_brackets_on_terminals_too(store):
    store.create("t")
    forking.run([sys.executable, "-c", SAYS_STRUCTS], env=trace_environment(store), check=True, timeout=DEADLINE_S)
    narrow = on_terminal(59, "t", "--store", store.path, NO_COLOR="1").decode().splitlines()
    assert [line.partition("a:b: ")[2] for line in narrow] == ["at={x=1 to={y=2}} n=3", "at={x=-1 to={y=0}} n=0"]
    coloured = on_terminal(100, "t", "--store", store.path).splitlines()[0]
    name = "\x1b[34m%s\x1b[0m"
    shown = f"{{ {name % 'at'} = {{ {name % 'x'} = 1, {name % 'to'} = {{ {name % 'y'} = 2 }} }}, {name % 'n'} = 3 }}"
    assert coloured.endswith(shown.encode())


# --- traces ---


def test_what_a_trace_holds_is_shown_and_stays(store, run):
    program = run(store.create("t"), "app")
    program.write(100)
    place = "--store", store.path
    everything = objects("t", *place)
    assert numbers(everything) == list(range(100))
    assert numbers(objects("t", *place, "-n", 3)) == [97, 98, 99]
    done = relayctl("view", "t", *place, "-e", "no:*")
    nothing = "relayctl: t: no event is declared so far whose name matches\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", nothing)
    with viewing("t", *place, "--follow", "-e", "no:*") as view:
        wait_until(lambda: catches(view.process, signal.SIGQUIT), "the viewer")
        assert view.finish() == nothing + CONSUMES
    ns = everything[50]["ns"]
    assert objects("t", *place, "--since", f"{ns // 10**9}.{ns % 10**9:09}") == everything[50:]
    assert shown("t", *place).count("\n") == 100
    done = relayctl("view", "nothing", *place)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no trace nothing" in done.stderr


def test_losses_are_lines(store, run):
    program = run(store.create("t"), "app")
    lost = program.write(5000)
    found = objects("t", "--store", store.path)
    assert lost > 0
    assert numbers(found) == list(range(5000 - lost))
    (loss,) = [one for one in found if "lost" in one]
    assert (loss["lost"], loss["cause"]) == (lost, "full")
    assert loss["process"] == "app"
    line = shown("t", "--store", store.path).splitlines()[found.index(loss)]
    assert re.fullmatch(rf"\[[\d:.]+\] {program.name} cpu0 lost {lost} events since \[[\d:.]+\]: full", line)


def test_a_recorder_and_other_viewers_get_all_of_it_too(store, run, tmp_path):
    trace = store.create("t", subbuf_size=1 << 14, n_subbufs=16)
    follow = "t", "--store", store.path, "--follow", "--json"
    with (
        recording("t", "--store", store.path, "-o", tmp_path / "out") as recorder,
        viewing(*follow) as one, viewing(*follow) as two,
    ):  # fmt: skip
        programs = [run(trace, "app"), run(trace, "other", cpu=LAST_CPU)]
        for n in range(1, 11):
            for program in programs:
                assert program.write_patiently(100) == 0
            for view in (one, two):
                view.wait_for(lambda view=view, n=n: len(view.lines) == 200 * n)
        for view in (one, two):
            assert numbers(view.events(), "app") == numbers(view.events(), "other") == list(range(1000))
            assert view.finish() == ""
        for program in programs:
            program.end()
        for name in ("app", "other"):
            recorded(tmp_path / "out", 1000, name)
        assert "0 events lost" in finish(recorder)


def test_without_a_recorder_programs_have_room_as_it_is_shown(store, run):
    trace = store.create("t")
    program = run(trace, "app")
    with viewing("t", "--store", store.path, "--follow", "--json") as view:
        for n in range(1, 11):
            while program.write_patiently(300):
                pass
            view.wait_for(lambda n=n: numbers(view.events()) and numbers(view.events())[-1] >= 300 * n - 1)
        program.end()
        wait_until(lambda: not store.lost(program.directory) or view.lost(), "what was lost is said")
        said = view.finish()
    assert said == CONSUMES
    assert numbers(view.events()) == list(range(numbers(view.events())[-1] + 1))


def test_programs_have_room_also_while_events_are_held_back(store, run):
    program = run(store.create("t", n_subbufs=4), "app")
    with viewing("t", "--store", store.path, "--follow", "--json", "--delay", 60_000) as view:
        program.write_patiently(10_000)
        assert view.lines == []
        assert view.finish() == CONSUMES
    assert numbers(view.events()) == list(range(10_000))


def test_damage_is_said_also_of_what_is_shown_once(store, run):
    program = run(store.create("t"), "app")
    program.write(100)
    memory = program.directory / "cpu/mem0"
    data = memory.read_bytes()
    # The number and its copy, of which the event consists besides its head.
    event = data.index(struct.pack("<QQ", 50, 50))
    head = event - (EVENT_BYTES - 16)
    with memory.open("r+b") as file:
        file.seek(head)
        file.write(b"\xff" * (EVENT_BYTES - 16))
    done = relayctl("view", "t", "--store", store.path, "--json")
    assert done.returncode == 0
    assert "has written what is no declared event" in done.stderr
    assert '"n":49' in done.stdout.replace(" ", "")
    assert '"n":50' not in done.stdout.replace(" ", "")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_output_is_no_traceback(store, run, closed):
    run(store.create("t"), "app").write(10)
    script = f"exec {RELAYCTL} view t --store {store.path} -e no:* {closed}>&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    said = "relayctl: the standard output is closed: open it, or give -o if the command has it\n"
    expected = (1, "", said) if closed == 1 else (3, "", "")
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_a_flight_recorder_is_left_alone(store, run):
    program = run(store.create("t", mode=1), "app")
    with viewing("t", "--store", store.path, "--follow", "--json") as view:
        program.write(50)
        view.wait_for(lambda: numbers(view.events()) == list(range(50)))
        assert view.finish() == ""
    buffer = native.Buffer(str(program.directory / "cpu/mem0"))
    assert (buffer.stats().consumed, buffer.stats().produced) == (0, 0)
    buffer.close()


@pytest.mark.parametrize("buffers", [native_trace.BUFFERS_PERPROCESS, native_trace.BUFFERS_SHARED])
@pytest.mark.parametrize("clock", [clock.number for clock in CLOCKS.values() if clock.is_available])
def test_tickets_of_two_programs_and_their_threads_come_in_order(store, clock, buffers):
    """The lock under which tickets are taken and written puts the events into one order."""
    n = 50_000
    store.create("t", clock=clock, buffers=buffers, subbuf_size=1 << 17, n_subbufs=32)
    with viewing("t", "--store", store.path, "--follow", "--json", "-e", "tickets:*") as view:
        command = [compile_c([TICKETS]), "2", "2", str(n // 4)]
        subprocess.run(list(map(str, command)), env=trace_environment(store), check=True, timeout=DEADLINE_S)
        view.wait_for(lambda: len(view.lines) >= n)
        said = view.finish()
    found = view.objects()
    assert sorted(one["fields"]["ticket"] for one in found) == list(range(n))
    late = [one for one in found if "late" in one]
    assert ("came late" in said) == bool(late)
    found = [one for one in found if "late" not in one]
    # A thread that is kept from running for longer than the delay, just between the clock and its write.
    assert len(late) < n // 1000
    wrong = [(a, b) for a, b in itertools.pairwise(found) if a["fields"]["ticket"] > b["fields"]["ticket"]]
    assert not [(a, b) for a, b in wrong if a["ns"] != b["ns"]]


def test_a_stopped_program_does_not_hold_up_others(store, run):
    trace = store.create("t")
    stopped, other = run(trace, "stopped"), run(trace, "other", cpu=LAST_CPU)
    with viewing("t", "--store", store.path, "--follow", "--json", "--delay", 50) as view:
        for program in (stopped, other):
            program.write(1)
        view.wait_for(lambda: len(view.lines) == 2)
        stopped.process.send_signal(signal.SIGSTOP)
        other.write(10)
        view.wait_for(lambda: numbers(view.events(), "other") == list(range(11)))
        stopped.process.send_signal(signal.SIGCONT)
        stopped.write(1)
        view.wait_for(lambda: numbers(view.events(), "stopped") == [0, 1])
        view.finish()


def test_an_event_is_soon_a_line(store, run):
    """A quick round is what counts: others may use the machine."""
    program = run(store.create("t"), "app")
    with viewing("t", "--store", store.path, "--follow", "--json") as view:

        def latency_s() -> float:
            n = len(view.lines)
            program.write(1)
            view.wait_for(lambda: len(view.lines) > n)
            return view.came[n] - view.objects()[n]["ns"] / 1e9

        wait_until(lambda: latency_s() < 0.3, "a line within 300 ms")
        view.finish()


def test_programs_come_and_go_and_declare_events(store, run):
    trace = store.create("t")
    with viewing("t", "--store", store.path, "--follow", "--json") as view:
        for n in range(1, 5):
            program = run(trace, f"app{n}")
            program.write(10)
            view.wait_for(lambda n=n: len(view.lines) == 20 * n - 10)
            program.declare("other")
            program.write(10)
            program.end()
            view.wait_for(lambda n=n: len(view.lines) == 20 * n)
        view.finish()
    assert [one["process"] for one in view.events()] == [f"app{n}" for n in range(1, 5) for _ in range(20)]
    assert [one["event"] == "test:other" for one in view.events()] == 4 * ([False] * 10 + [True] * 10)


def test_the_last_lines_come_before_what_follows(store, run):
    program = run(store.create("t"), "app")
    program.write(100)
    with viewing("t", "--store", store.path, "-f", "--json", "-n", 2) as view:
        view.wait_for(lambda: numbers(view.events()) == [98, 99])
        program.write(1)
        view.wait_for(lambda: numbers(view.events()) == [98, 99, 100])
        view.finish()


def test_a_trace_of_an_earlier_boot_is_shown_to_its_end(store, run):
    trace = store.create("t")
    program = run(trace, "app")
    program.write(100)
    program.end()
    store.change(trace, boot=EARLIER_BOOT)
    events = program.directory / ".events"
    events.write_bytes(events.read_bytes().replace(native_trace.boot_id().encode(), EARLIER_BOOT.encode(), 1))
    place = "t", "--store", store.path
    assert numbers(objects(*place)) == list(range(100))
    with viewing(*place, "--follow", "--json") as view:
        assert view.wait() == CONSUMES
    assert numbers(view.events()) == list(range(100))


def test_it_ends_when_its_reader_has_gone(store, run):
    run(store.create("t"), "app").write(10)
    with viewing("t", "--store", store.path, "--follow") as view:
        view.wait_for(lambda: len(view.lines) == 10)
    reader, writer = os.pipe()
    command = [RELAYCTL, "view", "t", "--store", str(store.path), "--follow"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        os.read(reader, 10)
        # There is nothing to be written any more.
        os.close(reader)
        assert process.stderr.read().decode() in {"", CONSUMES}
        assert process.wait(DEADLINE_S) == 0


def test_a_signal_ends_it_though_nobody_reads(store, run):
    program = run(store.create("t", subbuf_size=1 << 16, n_subbufs=16), "app")
    program.write(10_000)
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, 4096)
    command = [RELAYCTL, "view", "t", "--store", str(store.path), "--follow"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        wait_until(lambda: int.from_bytes(ioctl(reader, termios.FIONREAD, bytes(4)), "little") == 4096, "it is full")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    os.close(reader)


# --- mounts ---


def test_it_ends_with_its_trace(mount):
    start_trace(mount, "t", "mode=overwrite")
    with ExitStack() as stack:
        view: View = stack.enter_context(viewing("t", "--follow", "--json", RELAYFS=str(mount.path)))
        program = stack.enter_context(traced(mount))
        program.ask("emit 100")
        view.wait_for(lambda: len(view.lines) == 100)
        program.ask("emit 100")
        mount.command("trace remove t")
        assert view.wait() == ""
    assert [one["fields"]["seq"] for one in view.events()] == list(range(200))


def test_the_last_lines_come_if_the_trace_goes_before_its_events_are_due(mount):
    start_trace(mount, "t", "mode=overwrite")
    with traced(mount) as program:
        program.ask("emit 100")
        with viewing("t", "-f", "-n", 3, "--delay", 2000, "--json", RELAYFS=str(mount.path)) as view:
            maps = Path(f"/proc/{view.process.pid}/maps")
            wait_until(lambda: "/cpu/mem" in maps.read_text(), "its buffers")
            mount.command("trace remove t")
            assert view.wait() == ""
    assert [one["fields"]["seq"] for one in view.events()] == [97, 98, 99]


def test_events_are_seen_without_a_trace(mount):
    with traced(mount) as before, viewing("-e", "test:*", "--json", RELAYFS=str(mount.path)) as view:
        wait_until(lambda: "trace start view-" in mount.channels(), "its trace")
        assert f"trace enable view-{view.process.pid} test:*\n" in mount.channels()
        before.ask("step 100")
        with traced(mount) as after:
            after.ask("emit 10")
            after.ask("other 10")
            after.ask("step 100")
            view.wait_for(lambda: len(view.lines) == 200)
            assert view.finish() == ""
        assert {(one["event"], one["pid"]) for one in view.events()} == {
            ("test:step", before.process.pid), ("test:step", after.process.pid),
        }  # fmt: skip
        assert "trace" not in mount.channels()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, None])
def test_its_own_trace_goes_however_it_ends(mount, signum):
    reader, writer = os.pipe()
    command = [RELAYCTL, "view", "-e", "test:*"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment_of(mount)) as process:
        os.close(writer)
        wait_until(lambda: "trace start view-" in mount.channels(), "its trace")
        if signum:
            process.send_signal(signum)
        os.close(reader)
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""
    assert "trace" not in mount.channels()


def test_its_own_trace_goes_though_nobody_reads_and_signals_come_twice(mount):
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, 4096)
    command = [RELAYCTL, "view", "-e", "test:*"]
    with (
        subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment_of(mount)) as process,
        traced(mount) as program,
    ):
        os.close(writer)
        wait_until(lambda: "trace start view-" in mount.channels(), "its trace")
        program.ask("step 1000")
        wait_until(lambda: int.from_bytes(ioctl(reader, termios.FIONREAD, bytes(4)), "little") == 4096, "it is full")
        for signum in (signal.SIGINT, signal.SIGQUIT):
            process.send_signal(signum)
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""
    os.close(reader)
    assert "trace" not in mount.channels()


def test_it_is_said_if_its_own_trace_stays(make_mount):
    mount = make_mount()
    with viewing("-e", "test:*", RELAYFS=str(mount.path)) as view, traced(mount) as program:
        wait_until(lambda: "trace start view-" in mount.channels(), "its trace")
        program.ask("step 1")
        view.wait_for(lambda: view.lines)
        mount.kill()
        view.process.send_signal(signal.SIGINT)
        assert view.process.wait(DEADLINE_S) == 1
        name = f"view-{view.process.pid}"
        assert f"the trace {name} stays: `trace remove {name}`\n" in view.process.stderr.read().decode()


def test_its_own_trace_needs_a_mount(tmp_path, store):
    for place in (tmp_path, store.path):
        (place / "control").unlink(missing_ok=True)
        done = relayctl("view", "-e", "test:*", "--mount", place)
        assert done.returncode == 1
        assert re.fullmatch(rf"relayctl: {place}.*\n", done.stderr)
        assert not (place / "control").exists()


@pytest.mark.parametrize("pattern", ["[", "nothing", "a:b trace", "a:*\ntrace remove t"])
def test_a_pattern_that_cannot_be_makes_no_trace(mount, pattern):
    start_trace(mount, "t")
    before = mount.channels()
    done = relayctl("view", "-e", pattern, env=environment_of(mount))
    assert done.returncode == 1
    assert done.stderr.startswith("relayctl: ")
    assert mount.channels() == before


def test_what_is_to_be_seen_has_to_be_said(mount):
    done = relayctl("view", env=environment_of(mount))
    assert done.returncode == 2
    assert "TRACE, DIR, CHANNEL or --event is missing" in done.stderr
    assert relayctl("view", "-e", "a:b", "--store", mount.store).returncode == 2


def test_the_directory_of_a_program_that_has_ended_goes_when_it_is_shown(mount):
    trace = start_trace(mount, "t")
    with viewing("t", "--follow", "--json", RELAYFS=str(mount.path)) as view:
        with traced(mount) as program:
            program.ask("emit 200")
            directory = trace / f"traced-{program.process.pid}"
            wait_until(directory.exists, "it is there")
        view.wait_for(lambda: len(view.lines) == 200)
        wait_until(lambda: not directory.exists(), "it goes")
        view.finish()


def test_programs_that_do_harm_do_it_to_themselves(mount, unprivileged):
    start_trace(mount, "t", "subbuf_size=8K n_subbufs=16 mode=overwrite")
    environment = environment_of(mount)
    with viewing("t", "--follow", "--json", RELAYFS=str(mount.path)) as view, traced(mount) as honest:
        for seed in range(1, 6):
            command = [compile_c([SCRIBBLER]), str(seed), "40", str(8192 * 16)]
            with subprocess.Popen(
                command, env=environment, user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE, text=True,
                cwd="/",
            ) as process:  # fmt: skip
                for _ in range(10):
                    honest.ask("emit 10")
                assert process.stdout.readline().startswith("scribbled")
                process.kill()
        of_honest = lambda: [one for one in view.events() if one["pid"] == honest.process.pid]  # noqa: E731
        view.wait_for(lambda: len(of_honest()) == 500)
        said = view.finish()
    assert [one["fields"]["seq"] for one in of_honest()] == list(range(500))
    assert re.search(rf"relayctl: trace_scribbler-\d+ \(uid {NOBODY}\) has written what is no declared event", said)
    assert all(re.match(r"relayctl: trace_scribbler-|relayctl: \d+ events came late", one) for one in said.splitlines())
