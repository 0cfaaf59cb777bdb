"""Triggers: what they fire at, how often, and that nothing is left out when the server is killed."""

import json
import os
import re
import select
import signal
import subprocess
from collections import deque
from contextlib import ExitStack
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest
from babeltrace import babeltrace
from mounts import Mount, wait_until
from stress import is_long
from traced import environment_of, program, relayctl, start_trace, traced
from tracing import finish, recording
from triggering import Line, lines_of, listed, wait_evaluated, wait_lines, wait_seen, watcher_of

from relayfs_fuse.counters import Counters
from relayfs_fuse.native.triggers import TRIGGERS_MAX
from relayfs_fuse.triggers.watch import LINES_MAX

ROOM = "subbuf_size=256K n_subbufs=16"
# Of a trigger before the server is killed, which happens three times.
LEAST_FIRINGS = 3500 if is_long() else 1
BURST = 1 if is_long() else 10
AFTER_NS = 2_000_000_000
# That the library keeps at a time: native/src/merge/triggers.c.
FIRINGS_MAX = 1024


def add(mount: Mount, line: str) -> None:
    mount.command(f"trigger add {line}")


def ns(time: str) -> int:
    """The time of a line, ns since 1970."""
    second, _, rest = time.partition(".")
    return int(datetime.strptime(second, "%Y-%m-%d %H:%M:%S").timestamp()) * 10**9 + int(rest)


def fill(path: Path) -> None:
    """Write to a file until there is no room."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        deque(iter(lambda: file.write(bytes(1 << 16)), None), 0)


def events_of(trace: Path) -> list[dict]:
    found = [json.loads(line) for line in (trace / "merged.json").read_text().splitlines()]
    return [one for one in found if one.get("event") == "judge:step"]


def due(times: list[int], limit: int) -> list[int]:
    """Of events at these times, those at which a trigger with this limit fires."""
    found: list[int] = []
    for time in sorted(times):
        if not found or time >= found[-1] + limit:
            found.append(time)
    return found


def fired_of(trace: Path, name: str) -> list[Line]:
    """The lines that say at which events a trigger has fired."""
    return [line for line in lines_of(trace, name) if " judge:step: " in line.text]


def outcomes_of(trace: Path, name: str) -> list[Line]:
    """The lines that say what became of a trigger's snapshots, in the order of its firings."""
    return sorted(line for line in lines_of(trace, name) if "snapshot" in line.text)


def test_an_event_fires_and_all_is_listed(mount, tmp_path):
    trace = start_trace(mount, "t", ROOM)
    line = "trigger add third on t judge:step if 'seq == 3' do notify limit=1ms"
    mount.command(line)
    add(mount, "other on t nobody:* do notify")
    with traced(mount) as program:
        program.ask("emit 10")
        (fired,) = wait_lines(trace, "third", 1)
        wait_seen(mount, "third", 1)
    (event,) = [one for one in events_of(trace) if one["fields"]["seq"] == 3]
    assert (ns(fired.time), fired.number) == (event["ns"], 1)
    assert fired.text.startswith(f"traced-{program.process.pid}/")
    assert " judge:step: { seq = 3, " in fired.text
    assert listed(mount)["third"].items() >= {
        "trace": "t", "does": "notify", "fired": 1, "limited": 0, "events": 1, "when": "judge:step if 'seq == 3'",
        "command": line,
    }.items()  # fmt: skip
    assert listed(mount)["other"]["events"] == 0
    assert f"{line}\n" in mount.control.read_text()
    for name in ("third", "other"):
        done = relayctl(mount, "trigger", "remove", name)
        assert (done.returncode, done.stderr) == (0, "")
    assert listed(mount) == {}
    wait_until(lambda: watcher_of(mount) is None, "the process that evaluates triggers ends")
    assert lines_of(trace) == [fired]


@pytest.mark.stress
def test_what_is_due_fires_once_though_the_server_is_killed(mount, tmp_path):
    """The times of the events say which are due; those that were lost would be missing in the trace, too."""
    # Each snapshot ends a sub-buffer of each CPU, and nobody consumes them.
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=4096")
    mount.expect("WARNING: the server before, process .* has died")
    limits = {"all": 1, "some": 7, "few": 300, "saved": 300}
    for name, limit in limits.items():
        does = f"snapshot {tmp_path} keep=2" if name == "saved" else "notify"
        add(mount, f"{name} on t judge:step do {does} limit={limit}ms")
    n = 0
    with traced(mount) as program:
        for dies in (mount.kill_server, mount.kill, mount.kill_server):
            before = len(lines_of(trace, "all"))
            # Some are evaluated when the server dies, and some are not.
            while len(lines_of(trace, "all")) < before + LEAST_FIRINGS:
                for _ in range(max(1, LEAST_FIRINGS // 20)):
                    program.ask(f"emit {BURST}")
                    n += BURST
                    select.select([], [], [], 0.002)  # so that several are due
                shown = relayctl(mount, "stat", "--json", "t")
                assert json.loads(shown.stdout)["lost"] == 0, shown
            dies()
            program.ask(f"emit {BURST}")
            n += BURST
            if dies == mount.kill:
                mount.start()
        for name in limits:
            wait_seen(mount, name, n)
        events = events_of(trace)
        wait_until(lambda: len(fired_of(trace, "saved")) == len(outcomes_of(trace, "saved")), "all is said")
    assert len(events) == n
    outcomes = outcomes_of(trace, "saved")
    assert [line.number for line in outcomes] == list(range(1, len(outcomes) + 1))
    assert babeltrace(Path(outcomes[-1].text.split()[1].rstrip(","))).numbers() == list(range(n))
    for name, limit in limits.items():
        expected = due([one["ns"] for one in events], limit * 1_000_000)
        fired = fired_of(trace, name)
        assert [ns(line.time) for line in fired] == expected
        assert [line.number for line in fired] == list(range(1, len(fired) + 1))
        assert listed(mount)[name].items() >= {"fired": len(fired), "events": n}.items()


def test_a_process_that_evaluates_and_is_killed_is_replaced(mount):
    trace = start_trace(mount, "t", ROOM)
    add(mount, "all on t judge:step do notify limit=1ms")
    with traced(mount) as program:
        program.ask("emit 1")
        wait_lines(trace, "all", 1)
        before = watcher_of(mount)
        os.kill(before, 9)
        program.ask("emit 1")
        wait_lines(trace, "all", 2)
        assert watcher_of(mount) not in (None, before)


def test_triggers_end_with_their_trace(mount):
    start_trace(mount, "t", ROOM)
    add(mount, "all on t judge:step do notify")
    wait_until(lambda: watcher_of(mount) is not None, "the process that evaluates triggers begins")
    mount.command("trace remove t")
    wait_until(lambda: watcher_of(mount) is None, "the process that evaluates triggers ends")
    trace = start_trace(mount, "t", ROOM)
    assert listed(mount) == {}
    add(mount, "all on t judge:step do notify")
    with traced(mount) as program:
        program.ask("emit 1")
        wait_lines(trace, "all", 1)


def test_a_snapshot_has_the_event_and_its_window(mount, tmp_path):
    """Two triggers take snapshots of one event, while relayctl takes one, and a recorder records all."""
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=64 mode=overwrite")
    for name in ("one", "two"):
        add(mount, f"{name} on t judge:step if seq == 2000 do snapshot {tmp_path} limit=1ms window=500ms")
    with traced(mount, cpus=[0]) as program:
        program.ask("emit 500")
        select.select([], [], [], 1.0)  # the window begins behind these
        program.ask("emit 2000")
        by_hand = relayctl(mount, "snapshot", "t", "-o", tmp_path / "by-hand")
        assert by_hand.returncode == 0, by_hand.stderr
        places = [wait_lines(trace, name, 2)[1].text for name in ("one", "two")]
    for place in places:
        assert place.startswith("snapshot ")
        path = Path(place.removeprefix("snapshot "))
        found = babeltrace(path)
        assert not found.losses
        numbers = [event["seq"] for event in found.named("judge:step")]
        assert 2000 in numbers
        assert 0 not in numbers
        assert path.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(tmp_path)) == sorted([Path(place).name for place in places] + ["by-hand"])


def test_a_window_reaches_behind_the_event_and_a_recorder_beside_the_snapshot_gets_all(mount, tmp_path):
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=256 mode=overwrite")
    place = tmp_path / "snapshots"
    place.mkdir()
    add(mount, f"slow on t judge:step if seq == 1000 do snapshot {place} limit=1h window=10s/2s")
    with traced(mount) as program, recording("t", "-o", tmp_path / "all", env=environment_of(mount)) as recorder:
        program.ask("emit 1001")
        numbers = count(1001)
        wait_until(lambda: bool(next(numbers)) and not program.ask("emit 1") and len(lines_of(trace, "slow")) > 1,
                   "the snapshot is taken")  # fmt: skip
        finish(recorder)
    fired, taken = lines_of(trace, "slow")
    until = ns(fired.time) + AFTER_NS
    found = babeltrace(Path(taken.text.removeprefix("snapshot "))).named("judge:step")
    recorded = babeltrace(tmp_path / "all").named("judge:step")
    # What is written while one CPU's buffer is copied after the other may be in the one, and missing in the other.
    assert [one["seq"] for one in found if one.ns <= until] == [one["seq"] for one in recorded if one.ns <= until]
    assert [one["seq"] for one in found] == sorted({one["seq"] for one in found})
    assert recorded[-1].ns > until
    assert ns(taken.time) > until
    assert [one["seq"] for one in recorded] == list(range(next(numbers)))


@pytest.mark.parametrize(("keep", "n_left"), [("keep=2", 2), ("keep=1K", 1), ("keep=1G", 4)])
def test_a_trigger_keeps_so_many_snapshots(mount, tmp_path, keep, n_left):
    trace = start_trace(mount, "t", ROOM)
    time = "20260101T000000.000000000Z"
    others, link = {f"one-{time}-mine", f"other-{time}", f".one-{time}"}, tmp_path / f"one-{time}"
    for name in others:
        (tmp_path / name).mkdir()
    link.symlink_to(tmp_path / f"other-{time}")
    add(mount, f"one on t judge:step do snapshot {tmp_path} limit=1ms {keep}")
    taken = []
    with traced(mount) as program:
        for n in range(4):
            program.ask("emit 1")
            said = wait_lines(trace, "one", 2 * n + 2)[-1].text
            taken.append(Path(said.removeprefix("snapshot ").partition(",")[0]).name)
            assert (", and removed 1 older" in said) == (n >= n_left)
    assert {path.name for path in tmp_path.iterdir()} == {*others, link.name, *taken[-n_left:]}
    assert babeltrace(tmp_path / taken[-1]).numbers() == list(range(4))


def test_a_trigger_without_a_directory_keeps_its_snapshots_in_the_mount(mount):
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=64 mode=overwrite")
    above = mount.path / ".traces/t/snapshots"
    (above / "one-mine").mkdir()
    line = ("one", "on", "t", "judge:step", "do", "snapshot", "limit=1ms", "keep=2", "window=1h")
    done = relayctl(mount, "trigger", "add", *line)
    assert (done.returncode, done.stderr) == (0, "")
    taken = []
    with traced(mount) as program:
        for n in range(4):
            program.ask("emit 1")
            said = wait_lines(trace, "one", 2 * n + 2)[-1].text
            taken.append(Path(said.removeprefix("snapshot ").partition(",")[0]))
            assert (", and removed 1 older" in said) == (n >= 2)
    assert set(above.iterdir()) == {above / "one-mine", *taken[-2:]}
    assert babeltrace(taken[-1]).numbers() == list(range(4))
    assert listed(mount)["one"]["does"] == "snapshot"


@pytest.mark.parametrize("keep", ["", "keep=9"])
def test_memory_for_snapshots_in_the_mount_that_does_not_suffice_is_said(mount, keep):
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=8 mode=overwrite")
    above = mount.path / ".traces/t/snapshots"
    (above.parent / "snapshot_memory").write_text("100K")
    add(mount, f"one on t judge:step if seq == 999 || seq == 1999 || seq == 2999 do snapshot limit=1ms {keep}")
    with traced(mount, cpus=[0]) as program:
        for n in range(3):
            program.ask("emit 1000")
            wait_lines(trace, "one", 2 * n + 2)
    said = [line.text for line in lines_of(trace, "one") if line.text.startswith("snapshot")]
    if keep:
        assert said[2].endswith(", and removed 1 older")
        last = Path(said[2].removeprefix("snapshot ").partition(",")[0])
    else:
        assert said[2].startswith("snapshot failed: trace snapshot t one-")
        assert "left of snapshot_memory=100K: 2 snapshots of t have " in said[2]
        last = Path(said[1].removeprefix("snapshot "))
    assert max(above.iterdir()) == last
    assert len(list(above.iterdir())) == 2
    assert babeltrace(last).numbers()[-1] == (2999 if keep else 1999)


def test_a_full_disk_is_said_and_leaves_nothing(mount, own_tmpfs):
    trace = start_trace(mount, "t", ROOM)
    place = own_tmpfs / "snapshots"
    place.mkdir()
    add(mount, f"all on t judge:step do snapshot {place} limit=1ms")
    filler = own_tmpfs / "filler"
    with traced(mount) as program:
        fill(filler)
        program.ask("emit 1")
        assert wait_lines(trace, "all", 2)[1].text == "snapshot failed: No space left on device"
        assert os.listdir(place) == []
        filler.unlink()
        program.ask("emit 1")
        taken = wait_lines(trace, "all", 4)[3].text
        assert os.listdir(place) == [Path(taken).name]


def test_lines_for_which_a_full_store_has_no_room_are_counted(make_mount, own_tmpfs):
    mount = make_mount(store=own_tmpfs / "store")
    trace = start_trace(mount, "t", ROOM)
    start_trace(mount, "u", "subbuf_size=4K n_subbufs=4")
    n_triggers, filler = TRIGGERS_MAX - 1, own_tmpfs / "filler"
    n = LINES_MAX // n_triggers + 10
    for number in range(n_triggers):
        add(mount, f"all{number} on t judge:step do notify limit=1ms")
    add(mount, f"last on t judge:step if 'seq == {n}' do stop u")
    with traced(mount) as program:
        # The buffers of other CPUs would get no memory later.
        os.sched_setaffinity(program.process.pid, {min(os.sched_getaffinity(0))})
        program.ask("emit 1")
        wait_lines(trace, f"all{n_triggers - 1}", 1)
        fill(filler)
        for _ in range(n):
            program.ask("emit 1")
            select.select([], [], [], 0.0012)  # so that each is due
        wait_until(lambda: "trace start u\n" not in mount.control.read_text(), "all events are evaluated")
    assert "trace t: what triggers have done cannot be written: No space left on device" in mount.log.read_text()
    filler.unlink()
    said = re.compile(r"trace t: (\d+) lines of what triggers have done are lost")
    wait_until(lambda: said.search(mount.log.read_text()), mount.log.read_text)
    lost = int(said.findall(mount.log.read_text())[0])
    # Those of `last` say that it has fired, and that it has stopped the trace.
    assert lost >= n_triggers * n - LINES_MAX
    wait_until(lambda: len(lines_of(trace)) + lost == n_triggers * (n + 1) + 2, lambda: str(len(lines_of(trace))))


# --- what else triggers wait for ---


def test_silence_rate_loss_and_death_fire(mount):
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=4")
    add(mount, "silence on t quiet 400ms of judge:step do notify limit=1ms")
    add(mount, "rate on t rate > 5/s of judge:step if who == 0 do notify")
    add(mount, "loss on t lost do notify")
    add(mount, "full on t fill>50% do notify")
    add(mount, "end on t death do notify")
    wait_lines(trace, "silence", 1)  # of nothing at all
    with traced(mount) as program:
        program.ask("emit 1")
        assert [line.text for line in wait_lines(trace, "silence", 2)] == ["no event for 400ms"] * 2
        program.ask("emit 2000")
        assert " lost " in wait_lines(trace, "loss", 1)[0].text
        assert wait_lines(trace, "full", 1)[0].text.startswith("a buffer is filled to ")
        assert "judge:step" in lines_of(trace, "rate")[0].text
        directory = f"traced-{program.process.pid}"
        assert lines_of(trace, "end") == []
    assert wait_lines(trace, "end", 1)[0].text == f"{directory} has ended"


def test_several_deaths_that_one_look_finds_fire_each(mount):
    trace, n = start_trace(mount, "t", "subbuf_size=4K n_subbufs=2"), 5
    for when in ("death", "crash"):
        add(mount, f"{when} on t {when} do notify limit=1ms")
        add(mount, f"one-{when} on t {when} do notify limit=1h")
    with ExitStack() as stack:
        programs = [stack.enter_context(traced(mount)) for _ in range(n)]
        for program in programs:
            program.ask("emit 1")
        wait_until((mount.store / "t/.trigger-state").exists, "triggers are evaluated")
        wait_evaluated(mount, "t")
        watcher = watcher_of(mount)
        os.kill(watcher, signal.SIGSTOP)
        for program in programs:
            program.kill()
        wait_until(lambda: len(list((mount.path / ".crashed").iterdir())) == n, "the cards are there")
        os.kill(watcher, signal.SIGCONT)
        for when in ("death", "crash"):
            times = [ns(line.time) for line in wait_lines(trace, when, n)]
            assert times == sorted(set(times))
            assert len({line.text for line in lines_of(trace, when)}) == n
            wait_until(lambda name=f"one-{when}": listed(mount)[name]["limited"] == n - 1, lambda: str(listed(mount)))
            assert len(lines_of(trace, f"one-{when}")) == 1


def test_no_end_is_left_out_though_all_triggers_fire_at_it(mount):
    trace, n = start_trace(mount, "t", "subbuf_size=4K n_subbufs=2"), FIRINGS_MAX // TRIGGERS_MAX + 1
    for number in range(TRIGGERS_MAX):
        add(mount, f"end{number} on t death do notify limit=1ms")
    wait_until((mount.store / "t/.trigger-state").exists, "triggers are evaluated")
    wait_evaluated(mount, "t")
    watcher = watcher_of(mount)
    os.kill(watcher, signal.SIGSTOP)
    for _ in range(n):
        subprocess.run([program("traced"), "--steps", "1"], env=environment_of(mount), check=True)
    os.kill(watcher, signal.SIGCONT)
    for number in range(TRIGGERS_MAX):
        assert len({line.text for line in wait_lines(trace, f"end{number}", n)}) == n


def test_a_crash_fires_with_its_card_and_an_orderly_end_does_not(mount):
    trace = start_trace(mount, "t", ROOM)
    with traced(mount) as before:
        before.ask("emit 1")
        before.kill()
    wait_until(lambda: len(list((mount.path / ".crashed").iterdir())) == 1, "the card from before is there")
    add(mount, "crashed on t crash do notify limit=1ms")
    with traced(mount) as good, traced(mount) as bad, traced(mount) as worse:
        for program in (good, bad, worse):
            program.ask("emit 1")
        good.end()
        bad.kill()
        wait_lines(trace, "crashed", 1)
        mount.kill()
        worse.kill()
        mount.start()
        lines = wait_lines(trace, "crashed", 2)
        for line, program in zip(lines, (bad, worse), strict=True):
            card, _, why = line.text.removeprefix("crash card ").partition(": ")
            assert card.startswith(f"traced-{program.process.pid}-")
            assert (mount.path / ".crashed" / card).is_dir()
            assert why in ("SIGKILL", "unknown")  # if this process has waited before the server looked


def test_a_counter_fires_when_it_crosses_the_value(mount):
    trace = start_trace(mount, "t")
    with Counters(mount.path) as counters:
        counter = counters.add("app/errors", kind="gauge")
        counter.adjust(7)
        add(mount, "many on t counter app/errors > 9 do notify limit=1ms")
        add(mount, "few on t counter app/errors < 5 do notify limit=1ms")
        add(mount, "soon on t counter app/errors > 6 do notify limit=1ms")
        wait_lines(trace, "soon", 1)
        for value, name, n in ((10, "many", 1), (3, "few", 1), (11, "many", 2)):
            counter.adjust(value - counters.value("app/errors"))
            assert wait_lines(trace, name, n)[-1].text == f"counter app/errors is {value}"
        wait_evaluated(mount, "t")  # nothing more happens as long as nothing is crossed
        assert [len(lines_of(trace, name)) for name in ("many", "few", "soon")] == [2, 1, 2]


# --- what else they do ---


def test_traces_are_started_and_stopped_and_marks_written(mount):
    trace = start_trace(mount, "t", ROOM)
    mount.command("trace create detail")
    add(mount, "begin on t judge:step if seq == 1 do start detail")
    add(mount, "mark on t judge:step if seq == 1 do mark")
    add(mount, "end on t judge:step if seq == 5 do stop")
    with traced(mount) as program:
        program.ask("emit 3")
        assert wait_lines(trace, "begin", 2)[1].text == "start detail"
        wait_until(lambda: "relayfs:mark" in (trace / "merged").read_text(), "the mark is in the trace")
        program.ask("emit 3")
        assert wait_lines(trace, "end", 2)[1].text == "stop t"
    assert "trace start detail\n" in mount.control.read_text()
    assert "trace start t\n" not in mount.control.read_text()
    marks = [line for line in (trace / "merged").read_text().splitlines() if "relayfs:mark" in line]
    assert len(marks) == 1
    assert 'trigger = "mark", number = 1, ' in marks[0]


def test_programs_run_only_where_the_mount_says_so(make_mount, tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $RELAYFS_TRIGGER $RELAYFS_FIRING $(id -u) >{tmp_path}/ran\n")
    program.chmod(0o755)
    line = f"run on t judge:step do run {program}"
    mount = make_mount("trigger_run")
    trace = start_trace(mount, "t", ROOM)
    add(mount, line)
    with traced(mount) as traced_program:
        traced_program.ask("emit 1")
        wait_until((tmp_path / "ran").exists, "the program runs")
        assert wait_lines(trace, "run", 2)[1].text.startswith(f"run {program} as process ")
    wait_until(lambda: (tmp_path / "ran").read_text() == f"run 1 {os.geteuid()}\n", "it has written")
    program.chmod(0o757)
    with pytest.raises(PermissionError):
        add(mount, line.replace("run on", "again on"))
    assert "others can change it" in mount.error_log


# --- the file, and what is refused ---


def test_the_file_is_readable_when_there_is_more(mount):
    trace = start_trace(mount, "t", ROOM)
    add(mount, "all on t judge:step do notify limit=1ms")
    with traced(mount) as program, (trace / "triggered").open("rb", buffering=0) as file:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        assert poll.poll(0) == []
        program.ask("emit 1")
        assert poll.poll(60_000) == [(file.fileno(), select.POLLIN)]
        assert b"judge:step" in file.read()
        assert poll.poll(0) == []
        mount.command("trace remove t")
        assert poll.poll(60_000)[0][1] & select.POLLHUP


@pytest.mark.one_mount
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trigger", "one of add, remove must follow"),
        ("trigger ad x", "did you mean add?"),
        ("trigger add .x on t lost do notify", "the name of a trigger"),
        ("trigger add x at t lost do notify", "`on` must follow NAME"),
        ("trigger add x on nothing lost do notify", "no trace nothing"),
        ("trigger add x on t nothing do notify", "matches nothing"),
        ("trigger add x on t a:b if ms do notify", "must follow ms"),
        ("trigger add x on t a:b if 'ms > ' do notify", "must follow >"),
        ("trigger add x on t lost notify", "`do` must follow"),
        ("trigger add x on t lost do nothing", "there are: snapshot, start, stop, mark, notify, run"),
        ("trigger add x on t lost do snapshot kep=2", "did you mean keep?"),
        ("trigger add x on t lost do run", "PROGRAM must follow"),
        ("trigger add x on t lost do snapshot here", "an absolute path"),
        ("trigger add x on t lost do snapshot /nonexistent", "No such file"),
        ("trigger add x on t lost do snapshot /etc/passwd", "Not a directory"),
        ("trigger add x on t lost do snapshot /tmp", "others can change it"),
        ("trigger add x on t lost do start nothing", "no trace nothing"),
        ("trigger add x on t lost do run /bin/true", "mount option trigger_run"),
        ("trigger add x on t lost do notify limit=1", "a time is a number and ms, s, m or h"),
        ("trigger add x on t lost do notify limit=0ms", "from 1ms to 24h"),
        ("trigger add x on t lost do notify limit=1s limit=2s", "limit is given twice"),
        ("trigger add x on t lost do notify window=1s", "window= is for `do snapshot`"),
        ("trigger add x on t lost do notify size=1", "there are: limit=, window=, keep="),
        ("trigger add x on t lost do notify keep=1", "keep= is for `do snapshot`"),
        ("trigger add x on t lost do snapshot /root keep=0", "1 to 99999, or their bytes"),
        ("trigger add x on t crash x do notify", "`do` must follow"),
        ("trigger add x on t fill > 100% do notify", "fill > N%"),
        ("trigger add x on t fill > 10% do notify", "mode=overwrite"),
        ("trigger add x on t rate > 5 do notify", "rate > N/s"),
        ("trigger add x on t quiet 5 do notify", "a time is a number"),
        ("trigger add x on t counter a/b = 5 do notify", "counter NAME > N"),
        ("trigger remove x y", "takes a NAME and nothing else"),
        ("trigger remove x", "no trigger x; there are none"),
    ],
)
def test_what_is_wrong_is_refused(shared_mount, line, says):
    if "trace create t " not in shared_mount.channels():
        shared_mount.command("trace create t mode=overwrite")
    with pytest.raises(OSError):  # of many sorts; the text says which
        shared_mount.command(line)
    assert says in shared_mount.error_log
    assert "trigger" not in shared_mount.channels()


def test_others_may_not_add_triggers_nor_get_snapshots_into_their_directories(make_mount, unprivileged, tmp_path):
    mount = make_mount("control_mode=0666")
    start_trace(mount, "t")
    done = unprivileged.run("sh", "-c", f"echo 'trigger add x on t lost do notify' >{mount.control}")
    assert done.returncode != 0
    assert "triggers are for root" in mount.error_log
    tmp_path.chmod(0o755)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, unprivileged.uid, unprivileged.gid)
    with pytest.raises(PermissionError):
        mount.command(f"trigger add x on t lost do snapshot {theirs}")
    assert f"{theirs} belongs to user {unprivileged.uid} and has mode 0755: others can change it" in mount.error_log
