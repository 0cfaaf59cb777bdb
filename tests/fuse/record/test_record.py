"""relayctl record, with babeltrace2 as the judge."""

import json
import os
import pwd
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from babeltrace import read, read_if_any
from mounts import DEADLINE_S, wait_until
from tracing import EVENT_BYTES, RELAYCTL, Program, anonymous_kib, finish, recorded, recording, relayctl, spoil

from relayfs_fuse import native
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.packets import Consumer
from relayfs_fuse.native.tables import CLOCKS
from relayfs_fuse.reading.packet import HEAD_BYTES, walk
from relayfs_fuse.reading.source import Source
from relayfs_fuse.record.output import DirectoryOutput
from relayfs_fuse.record.recorder import Options, Recorder


def files(directory: Path) -> list[str]:
    """What is in a directory, by relative path, directories left out."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


# --- what is recorded ---


@pytest.mark.parametrize("clock", [clock.number for clock in CLOCKS.values() if clock.is_available])
def test_all_events_are_recorded_in_order(store, run, record, out, clock):
    trace = store.create("t", clock=clock)
    with record() as process:
        programs = [run(trace, "one"), run(trace, "two", cpu=native.n_possible_cpus() - 1)]
        for program in programs:
            program.start_patiently(5000)
        refused = sum(program.done() for program in programs)
        said = finish(process)
    seen = read(out)
    assert seen.events == {"one": list(range(5000)), "two": list(range(5000))}
    assert seen.lost == refused
    assert f"of 2 processes to {out}, {refused} events lost\n" in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_are_none_of_the_recording(store, run, out, closed):
    run(store.create("t"), "app").write(10)
    script = f"exec {RELAYCTL} record t --store {store.path} -o {out} --duration 0 {closed}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert ("1 processes to" in done.stderr) == ("2>&-" not in closed)
    assert read(out).events == {"app": list(range(10))}
    for path in files(out):
        assert b"1 processes to" not in (out / path).read_bytes()


def test_what_was_written_before_the_recording_is_in_it(store, run, record, out):
    program = run(store.create("t"), "app")
    program.write(10)
    with record() as process:
        finish(process)
    assert read(out).events == {"app": list(range(10))}


def test_events_that_are_lost_are_counted(store, run, record, out):
    program = run(store.create("t"), "app")
    lost = program.write(5000)
    assert lost > 3000
    with record("--json", stdout=subprocess.PIPE) as process:
        recorded(out, 5000 - lost - 200, "app")
        refused = program.write_patiently(1000)
        lost += program.write(3000)
        process.send_signal(signal.SIGINT)
        summary = json.loads(process.communicate()[0])
    seen = read(out)
    assert len(seen.events["app"]) == 9000 - lost
    assert seen.lost == summary["lost"] == lost + refused
    assert summary["packets"] > 8
    assert summary["processes"] == 1


def test_overwritten_events_are_counted(store, run, record, out):
    program = run(store.create("t", mode=native.MODE_OVERWRITE), "app")
    program.write(5000)
    with record() as process:
        recorded(out, 500, "app")
        program.write(100)
        finish(process)
    seen = read(out)
    assert seen.events["app"] == list(range(5100 - len(seen.events["app"]), 5100))
    assert seen.lost == 5100 - len(seen.events["app"])


def test_a_killed_program_leaves_all_events_up_to_its_end(store, run, record, out):
    trace = store.create("t")
    with record() as process:
        program = run(trace, "app")
        program.start_flat_out()
        recorded(out, 1000, "app")
        program.kill()
        written = program.counted()
        # It is drained, and out of the store, without anybody's doing.
        wait_until(lambda: not store.programs(trace), "the removal of the dead program's buffers")
        seen = read(out).events["app"]
        assert seen == list(range(len(seen)))
        assert written <= len(seen) <= written + 101
        again = run(trace, "app")
        again.write_patiently(100)
        again.flush()
        recorded(out, len(seen) + 100, "app")
        finish(process)
    assert read(out).events["app"] == [*seen, *range(100)]


@pytest.mark.stress
def test_programs_come_and_go_while_others_read(store, run, record, out):
    """babeltrace2 reads the directory again and again, at whatever moment it is."""
    trace = store.create("t")
    total = 0
    with record() as process:
        steady = run(trace, "steady")
        steady.start_flat_out()
        end = time.monotonic() + (60 if os.environ.get("RELAYFS_STRESS") == "long" else 3)
        before: dict[str, int] = {}
        while total < 4 or time.monotonic() < end:
            brief = run(trace, "brief")
            brief.write_patiently(random.randrange(1, 3000))
            brief.end()
            seen = {name: len(events) for name, events in read_if_any(out).events.items()}
            assert all(seen[name] >= n for name, n in before.items()), "events were there, and are not"
            before = seen
            total += 1
        steady.kill()
        wait_until(lambda: not store.programs(trace), "the removal of dead programs' buffers")
        finish(process)
    seen = read(out).events["steady"]
    assert seen == list(range(len(seen)))
    assert len(list(out.glob("brief-*/metadata"))) == total


def test_events_that_are_declared_later_are_read(store, run, record, out):
    program = run(store.create("t"), "app")
    with record() as process:
        program.write_patiently(300)
        recorded(out, 100, "app")
        program.declare("later")
        program.write_patiently(300)
        finish(process)
    seen = read(out)
    assert seen.events["app"] == list(range(600))
    assert seen.names == {"first", "later"}


def n_on_disk(out: Path) -> int:
    """How many events of event_writer.c there are."""
    n_bytes = 0
    for path in out.glob("*/cpu*"):
        with path.open("rb") as file:
            heads = walk(file.fileno(), path.stat().st_size)
            n_bytes += sum(head.content_bytes - HEAD_BYTES for _, head in heads)
    return n_bytes // EVENT_BYTES


def test_events_that_are_declared_again_and_again_have_files_of_their_own(store, run, record, out):
    """Who reads a file has read metadata that tells of all that is in it, or will be."""
    program = run(store.create("t"), "app")
    with record() as process:
        for i in range(20):
            program.declare(f"event{i}")
            program.write_patiently(500)
            # Not with babeltrace2, which reads the metadata before it looks for files: a new one may come between.
            wait_until(lambda n=500 * i + 333: n_on_disk(out) >= n, "all finished packets on disk")
            assert len(read(out).events["app"]) >= 500 * i + 333
        finish(process)
    seen = read(out)
    assert seen.events["app"] == list(range(10_000))
    assert len(seen.names) == 20
    assert len(list(out.glob("*/cpu0*"))) >= 20


def test_what_was_declared_stays_declared(store, run, record, out):
    """Also when the process spoils its own declarations, and another recorder goes on."""
    trace = store.create("t")
    program, other = run(trace, "app"), run(trace, "other")
    with record() as process:
        program.write_patiently(500)
        recorded(out, 250, "app")
        spoil(program.directory / ".events", 1, start=300)
        program.write_patiently(500)
        recorded(out, 750, "app")
        process.kill()
    with record() as process:
        program.write_patiently(500)
        other.write_patiently(500)
        finish(process)
    assert read(out).events == {"app": list(range(1500)), "other": list(range(500))}


def test_more_buffers_than_one_thread_waits_for(store, run, record, out):
    trace = store.create("t")
    n = native.WAIT_MAX // native.n_possible_cpus() + 3
    with record() as process:
        programs = [run(trace, "app") for _ in range(n)]
        for _ in range(3):
            for program in programs:
                program.write_patiently(200)
        finish(process)
    assert read(out).events["app"].count(599) == n


def test_a_process_takes_little_memory_of_the_recorder(store, run, record, out):
    trace = store.create("t")
    programs: list[Program] = []
    with record(is_forked=False) as process:
        for n in (10, 60):
            before = anonymous_kib(process.pid)
            while len(programs) < n:
                programs.append(run(trace, "app"))
                programs[-1].write_patiently(200)
                programs[-1].flush()
            wait_until(lambda n=n: n_on_disk(out) == 200 * n, "all events on disk")
        grown = anonymous_kib(process.pid) - before
        finish(process)
    assert grown / 50 < 20 + 20 * native.n_possible_cpus()


# --- how it ends, and goes on ---


def test_it_ends_when_the_trace_is_stopped(store, run, record, out):
    trace = store.create("t")
    with record("--until-stopped") as process:
        run(trace, "app").write(10)
        recorded(out, 0, "app")
        store.change(trace, is_started=False)
        assert process.wait(DEADLINE_S) == 0
    assert read(out).events == {"app": list(range(10))}


def test_it_ends_when_the_trace_is_removed(store, run, record, out):
    trace = store.create("t")
    program = run(trace, "app")
    with record() as process:
        program.write(100)
        program.flush()
        recorded(out, 100, "app")
        program.write(10)
        program.flush()
        native_trace.trace_remove(str(program.directory))
        store.change(trace, id=0)
        assert process.wait(DEADLINE_S) == 0
    assert read(out).events == {"app": list(range(110))}


def test_it_ends_after_its_time(store, run, record, out):
    run(store.create("t"), "app").write(10)
    with record("--duration", "0.2") as process:
        assert process.wait(DEADLINE_S) == 0
    assert read(out).events == {"app": list(range(10))}


def test_a_killed_recorder_goes_on_without_loss_or_repetition(store, run, record, out):
    trace = store.create("t")
    program = run(trace, "app")
    program.start_flat_out()
    for _ in range(5):
        n = len(read_if_any(out).events.get("app", []))
        with record() as process:
            recorded(out, n + 500, "app")
            time.sleep(random.random() / 20)  # any moment will do to kill it
            process.kill()
            process.wait()
        seen = read(out).events["app"]
        assert seen == list(range(len(seen)))
    program.kill()
    with record() as process:
        wait_until(lambda: not store.programs(trace), "the removal of the dead program's buffers")
        finish(process)
    seen = read(out).events["app"]
    assert seen == list(range(len(seen)))
    assert program.counted() <= len(seen)
    assert files(out) == [".clocks", ".relayfs", *files_of(program, out)]


class DiesError(Exception):
    """What ends a recorder in this test."""


def die(*_: object) -> None:
    raise DiesError


@pytest.mark.parametrize("ends_in_order", [True, False])
def test_packets_that_are_written_but_not_consumed_are_not_repeated(
    store, run, record, out, monkeypatch, ends_in_order
):
    run(store.create("t"), "app").write(900)
    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "end", die)
        if not ends_in_order:
            patched.setattr(DirectoryOutput, "close", lambda _: None)
        source = Source("t", str(store.path))
        with pytest.raises(DiesError):
            Recorder(source, DirectoryOutput(str(out), source.identity), Options(), print, lambda: None).run()
        source.close()
    per_packet = (4096 - HEAD_BYTES) // EVENT_BYTES
    assert read(out).events == {"app": list(range(900 // per_packet * per_packet))}
    with record() as process:
        finish(process)
    assert read(out).events == {"app": list(range(900))}


def files_of(program: Program, out: Path) -> list[str]:
    names = files(out / program.name)
    assert "metadata" in names
    assert all(name.startswith("cpu0") for name in names if name != "metadata")
    return [f"{program.name}/{name}" for name in names]


def test_a_recording_that_was_ended_goes_on(store, run, record, out):
    program = run(store.create("t"), "app")
    lost = refused = 0
    for _ in range(3):
        with record() as process:
            refused += program.write_patiently(500)
            lost += program.write(2000)
            finish(process)
        assert read(out).lost == lost + refused
    seen = read(out)
    assert len(seen.events["app"]) == 7500 - lost
    assert sorted(set(seen.events["app"])) == seen.events["app"]


@pytest.mark.parametrize("rotating", [[], ["--rotate-size", "1M"]], ids=["one directory", "rotation"])
def test_a_recording_that_was_ended_and_compressed_goes_on(store, run, record, out, rotating):
    """Each loss counts once, and has its cause once."""
    program = run(store.create("t"), "app")
    lost = refused = 0
    for _ in range(3):
        with record("--compress", *rotating) as process:
            refused += program.write_patiently(500)
            lost += program.write(2000)
            finish(process)
        assert not list(out.rglob("cpu0"))
        shown = map(json.loads, relayctl("view", out, "--json").stdout.splitlines())
        assert sum(line.get("lost", 0) for line in shown) == lost + refused
    for path in out.rglob("*.zst"):
        subprocess.run(["zstd", "-q", "-d", "--rm", path], check=True)
    seen = read(out)
    assert seen.lost == lost + refused
    assert len(seen.events["app"]) == 7500 - lost
    assert sorted(set(seen.events["app"])) == seen.events["app"]


@pytest.mark.parametrize("spoiled", ["metadata.zst", "cpu*.zst"])
def test_a_recorder_goes_on_behind_compressed_files_that_are_spoiled(store, run, record, out, spoiled):
    program = run(store.create("t"), "app")
    written = []
    for _ in range(2):
        with record("--compress") as process:
            written.append(program.write_patiently(500))
            finish(process)
        if len(written) == 1:
            for path in out.rglob(spoiled):
                path.write_bytes(path.read_bytes()[:-5])
    (behind,) = out.glob("app-*-2")
    for path in behind.glob("*.zst"):
        subprocess.run(["zstd", "-q", "-d", "--rm", path], check=True)
    seen = read(behind)
    assert seen.events["app"] == list(range(500, 1000))
    assert seen.lost == sum(written)


def test_a_trace_has_one_recorder_at_a_time(store, run, record, out, tmp_path):
    program = run(store.create("t"), "app")
    with record() as process:
        program.write_patiently(300)
        recorded(out, 100, "app")
        done = relayctl("record", "t", "--store", store.path, "-o", tmp_path / "second")
        assert done.returncode == 1
        user = pwd.getpwuid(os.geteuid()).pw_name
        who = f"pid {process.pid} of {user} on {socket.gethostname()}"
        assert done.stderr == f"relayctl: another recorder has this trace: {who}\n"
        assert not (tmp_path / "second").exists()
        # Who only looks is no recorder.
        assert relayctl("snapshot", "t", "--store", store.path, "-o", tmp_path / "snapshot").returncode == 0
        process.kill()
        process.wait()
    with record() as process:
        program.write_patiently(300)
        finish(process)
    assert read(out).events == {"app": list(range(600))}


def test_another_recording_is_left_alone(store, run, record, out, tmp_path):
    trace = store.create("t")
    with record() as process:
        run(trace, "app").write(10)
        finish(process)
    store.create("other")
    done = relayctl("record", "other", "--store", store.path, "-o", out)
    assert done.returncode == 1
    assert f"{out} holds another trace" in done.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    done = relayctl("record", "t", "--store", store.path, "-o", tmp_path / "mine")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is not empty" in done.stderr
    assert files(tmp_path / "mine") == ["file"]


def test_what_is_wrong_is_told_in_a_line(store, out):
    done = relayctl("record", "none", "--store", store.path, "-o", out)
    said = f"relayctl: there is no trace none in {store.path}, and no such channel; there is none at all\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert not out.exists()


# --- rotation, compression, pipes ---


def test_rotation_by_size_makes_traces_of_their_own(store, run, record, out):
    program = run(store.create("t"), "app")
    with record("--rotate-size", "20K") as process:
        refused = program.write_patiently(5000)
        lost = program.write(3000)
        refused += program.write_patiently(1000)
        finish(process)
    parts = [read(part) for part in sorted(out.iterdir()) if part.is_dir()]
    assert len(parts) > 4
    events = [n for part in parts for n in part.events.get("app", [])]
    assert len(events) == len(set(events)) == 9000 - lost
    assert events == sorted(events)
    assert sum(part.lost for part in parts) == lost + refused
    assert read(out).lost == lost + refused


def test_rotation_by_time_and_compression(store, run, record, out):
    program = run(store.create("t"), "app")
    with record("--rotate-time", "0.5", "--compress") as process:
        # A part without events, as before the first ones on a slow machine, has no directory.
        program.write(50)
        wait_until(lambda: list(out.glob("*/*/cpu0.zst")), "the end of a part")
        program.write(50)
        wait_until(lambda: list(out.glob("*/*/cpu0.zst"))[1:], "the end of another part")
        finish(process)
    # Names of threads, of which there are some if the recorder has seen the program alive, are not compressed.
    assert [name for name in files(out) if not name.endswith((".zst", "/.threads"))] == [".clocks", ".ends", ".relayfs"]
    for path in out.rglob("*.zst"):
        subprocess.run(["zstd", "-q", "-d", "--rm", path], check=True)
    assert read(out).events == {"app": list(range(100))}


def test_processes_that_have_ended_are_compressed(store, run, record, out):
    trace = store.create("t")
    with record("--compress") as process:
        ended, stays = run(trace, "ended"), run(trace, "stays")
        ended.write(10)
        stays.write(10)
        ended.end()
        wait_until((out / ended.name / "cpu0.zst").exists, "compression")
        process.kill()
    assert list(read_if_any(out).events) in ([], ["stays"])


def test_a_stream_is_a_tar_archive(store, run, out, tmp_path):
    program = run(store.create("t"), "app")
    out.mkdir()
    with recording("t", "--store", store.path, "-o", "-", stdout=subprocess.PIPE) as process:
        with subprocess.Popen(["tar", "x", "-C", out], stdin=process.stdout) as tar:
            process.stdout.close()
            refused = program.write_patiently(2000)
            program.declare("later")
            refused += program.write_patiently(100)
            lost = program.write(2900)
            process.send_signal(signal.SIGTERM)
            assert tar.wait(DEADLINE_S) == 0
        assert process.wait(DEADLINE_S) == 0
    seen = read(out)
    assert len(seen.events["app"]) == 5000 - lost
    assert seen.lost == lost + refused
    assert seen.names == {"first", "later"}


# --- damage ---


@pytest.mark.parametrize("seed", range(4))
def test_damage_ends_the_recording_of_that_process_only(store, run, record, out, seed):
    trace = store.create("t")
    good, bad = run(trace, "good"), run(trace, "bad")
    with record() as process:
        bad.write_patiently(500)
        recorded(out, 125, "bad")
        # The positions: the last page but for the geometry.
        path = bad.directory / "cpu/mem0"
        spoil(path, seed, path.stat().st_size - 4096 + 128)
        wait_until((out / ".damaged" / bad.name / "why").exists, "the mark")
        good.write_patiently(5000)
        said = finish(process)
    assert f"{bad.name} (uid {os.geteuid()}, pid {bad.process.pid}) is damaged" in said
    seen = read(out).events
    assert seen["good"] == list(range(5000))
    assert seen["bad"] == list(range(len(seen["bad"])))


def test_what_cannot_be_opened_is_marked(store, run, record, out):
    trace = store.create("t")
    good, bad, strange = run(trace, "good"), run(trace, "bad"), run(trace, "strange")
    spoil(bad.directory / "cpu/mem0", 1)
    spoil(strange.directory / ".events", 2)
    with record() as process:
        good.write(100)
        wait_until(lambda: len(list(out.glob(".damaged/*/why"))) == 2, "the marks")
        finish(process)
    assert read(out).events == {"good": list(range(100))}
