"""relayctl snapshot, with babeltrace2 as the judge."""

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest
from babeltrace import read
from mounts import wait_until
from tracing import finish, recorded, recording, relayctl, spoil

from relayfs_fuse import native


def snapshot(store, out: Path, *arguments: object) -> str:
    done = relayctl("snapshot", "t", "--store", store.path, "-o", out, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr if "--json" not in arguments else done.stdout


def test_the_newest_events_of_a_flight_recorder_are_taken(store, run, out):
    program = run(store.create("t", mode=native.MODE_OVERWRITE), "app")
    program.write(10_000)
    summary = json.loads(snapshot(store, out, "--json"))
    seen = read(out)
    n = len(seen.events["app"])
    assert n > 800
    assert seen.events["app"] == list(range(10_000 - n, 10_000))
    assert seen.lost == summary["lost"] == 10_000 - n
    assert sorted(path.name for path in out.iterdir()) == [program.name]


def test_it_stops_nobody_and_consumes_nothing(store, run, out, tmp_path):
    trace = store.create("t", mode=native.MODE_OVERWRITE)
    program, still = run(trace, "app"), run(trace, "still")
    still.write(300)
    program.start_flat_out()
    n_written = 0
    with closing(native.Buffer(str(program.directory / "cpu/mem0"))) as buffer:
        for i in range(5):
            wait_until(lambda goal=n_written + 100: buffer.stats().records >= goal, "it writes on")
            n_written = buffer.stats().records
            summary = json.loads(snapshot(store, tmp_path / str(i), "--json"))
            seen = read(tmp_path / str(i), may_miss_packets=True)
            events = seen.events["app"]
            assert seen.events["still"] == list(range(300))
            assert events == sorted(set(events))
            assert events[-1] >= n_written - 1
            assert len(events) + seen.lost == events[-1] + 1
            assert summary["lost"] == seen.lost
            n_written = events[-1] + 1


def test_a_trace_that_is_recorded_can_be_looked_at(store, run, out, tmp_path):
    program = run(store.create("t"), "app")
    program.write(700)
    snapshot(store, out)
    assert read(out).events == {"app": list(range(700))}
    with recording("t", "--store", store.path, "-o", tmp_path / "recorded") as process:
        program.write(100)
        finish(process)
    assert read(tmp_path / "recorded").events == {"app": list(range(800))}


@pytest.mark.parametrize("mode", [native.MODE_NO_OVERWRITE, native.MODE_OVERWRITE])
def test_beside_a_recorder_nothing_is_damaged_and_nothing_lost_that_is_recorded(store, run, out, tmp_path, mode):
    program = run(store.create("t", mode=mode), "app")
    recorded_to, n = tmp_path / "recorded", 0
    with recording("t", "--store", store.path, "-o", recorded_to) as process:
        # The first time nothing is overwritten yet; afterwards more has been written than there is room for.
        for i, rounds in enumerate([1, 4, 1]):
            for _ in range(rounds):
                program.write(400)
                program.flush()
                n += 400
                recorded(recorded_to, n, "app")
            program.write(50)
            n += 50
            said = snapshot(store, tmp_path / f"taken{i}", "--json")
            summary, seen = json.loads(said), read(tmp_path / f"taken{i}")
            events = seen.events["app"]
            assert len(events) >= 400
            assert events == list(range(n - len(events), n))
            assert (summary["lost"], summary["damaged"], seen.lost) == (0, {}, 0)
        said = finish(process)
    assert "0 events lost\n" in said
    assert read(recorded_to).events == {"app": list(range(n))}


def test_beside_a_recorder_what_really_is_lost_is_told(store, run, out, tmp_path):
    program = run(store.create("t", mode=native.MODE_OVERWRITE), "app")
    program.write(5000)
    with recording("t", "--store", store.path, "-o", tmp_path / "recorded") as process:
        recorded(tmp_path / "recorded", 500, "app")
        lost = read(tmp_path / "recorded").lost
        assert lost > 3000
        snapshot(store, out)
        assert read(out).lost == lost
        process.send_signal(signal.SIGSTOP)
        program.write(5000)
        taken = tmp_path / "taken"
        snapshot(store, taken)
        seen = read(taken)
        given = read(tmp_path / "recorded")
        # What the recorder has, what the snapshot has, and what neither has.
        first = seen.events["app"][0]
        assert seen.lost == lost + first - (given.events["app"][-1] + 1)
        process.send_signal(signal.SIGCONT)
        finish(process)


def test_what_the_dead_have_left_is_taken(store, run, out):
    program = run(store.create("t", mode=native.MODE_OVERWRITE), "app")
    program.start_flat_out()
    with closing(native.Buffer(str(program.directory / "cpu/mem0"))) as buffer:
        wait_until(lambda: buffer.stats().lost_overwritten_records > 1000, "it overwrites")
    program.kill()
    written = program.counted()
    snapshot(store, out)
    seen = read(out).events["app"]
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert written <= seen[-1] + 1 <= written + 101


def test_damage_costs_its_process_only(store, run, out):
    trace = store.create("t")
    for seed, name in enumerate(("one", "two", "three")):
        program = run(trace, name)
        program.write(200)
        if name != "two":
            path = program.directory / "cpu/mem0"
            spoil(path, seed, path.stat().st_size - 4096 + 128)
    said = snapshot(store, out)
    assert read(out).events == {"two": list(range(200))}
    assert len(list(out.glob(".damaged/*/why"))) == said.count("is damaged: ") == 2


def test_a_directory_that_holds_something_is_refused(store, run, out):
    store.create("t")
    snapshot(store, out)
    (out / "file").write_text("")
    done = relayctl("snapshot", "t", "--store", store.path, "-o", out)
    assert (done.returncode, done.stderr) == (1, f"relayctl: {out} is not empty; -o needs a new or empty directory\n")


def test_processes_without_events_leave_nothing(store, run, out):
    program = run(store.create("t"), "app")
    wait_until(program.directory.exists, "the program")
    snapshot(store, out)
    assert list(out.iterdir()) == []
