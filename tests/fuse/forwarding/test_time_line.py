"""Several machines on one time line: relayctl view and export of what relayctl receive has written."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from mounts import wait_until
from ping_pong import NAMES, machines
from showing import serving
from trace_processor import trace_processor
from tracing import relayctl

from relayfs_fuse.tracefiles.clock_pairs import unpack

MS = 10**6
# What the kernels say of the clocks, and how far one of them is off nevertheless.
MAX_ERROR, AHEAD, BACK = 5 * MS, 3 * MS, 2000 * MS


@dataclass
class Played:
    """A directory of three machines, whose clocks were right, then one of them less so, then another one set back."""

    into: Path
    right: range
    ahead: range
    back: range


def is_noted(out: Path, n: int) -> bool:
    pairs = unpack((out / ".clocks").read_bytes())
    return sum(now.is_set_since(before) for before, now in pairwise(pairs)) == n


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with machines(tmp_path_factory.mktemp("machines")) as all_of_them:
        right = all_of_them.play(30)
        web_1, web_2 = all_of_them.all["web-1"], all_of_them.all["web-2"]
        web_1.clock.set(AHEAD)
        wait_until(lambda: is_noted(web_1.out, 1), "the note of the step")
        ahead = all_of_them.play(30)
        web_2.clock.set(-BACK, max_error_us=None)
        wait_until(lambda: is_noted(web_2.out, 1), "the note of the step back")
        back = all_of_them.play(30)
        all_of_them.end()
        yield Played(all_of_them.into, right, ahead, back)


def events_of(said: str) -> list[dict]:
    return [one for one in map(json.loads, said.splitlines()) if "event" in one]


def view(*words: object) -> tuple[list[dict], str]:
    done = relayctl("view", *words, "--json")
    assert done.returncode == 0, done.stderr
    return events_of(done.stdout), done.stderr


def step_of(event: dict) -> int:
    """The place of an event in the order of causes: a number is sent, and then got."""
    n = event["fields"]["n"]
    return 2 * n if event["event"] == "pong:got" else 2 * n - 1


def of_numbers(events: list[dict], numbers: range) -> list[dict]:
    """The events of a play, from its first `sent` to its last one."""
    return [one for one in events if 2 * numbers.start < step_of(one) < 2 * numbers.stop]


def test_what_machines_tell_each_other_is_shown_in_the_order_of_causes(played):
    """Their monotonic clocks differ by days."""
    events, _ = view(played.into)
    of_right = of_numbers(events, played.right)
    assert [step_of(one) for one in of_right] == list(range(1, 2 * len(played.right)))
    assert [one["host"] for one in of_right[:5]] == ["db", "web-1", "web-1", "web-2", "web-2"]


def test_no_event_is_further_from_its_order_than_the_clocks_were_off(played):
    events, _ = view(played.into, "--errors")
    times = {step_of(one): one for one in of_numbers(events, played.ahead)}
    # What was last before a clock was set has no error that is known.
    known = [one for one in times.values() if one["error_ns"] is not None]
    assert all(MAX_ERROR < one["error_ns"] < MAX_ERROR + 2 * MS for one in known)
    assert {one["host"] for one in known} >= {"db", "web-1"}
    too_early = []
    for cause, effect in pairwise(times[step] for step in sorted(times)):
        early = cause["ns"] - effect["ns"]
        if cause in known and effect in known:
            assert early <= cause["error_ns"] + effect["error_ns"]
        too_early += [early] if early > 0 else []
    # This says something: the clock of web-1 was ahead by more than it takes to tell web-2.
    assert too_early
    assert max(too_early) < AHEAD


def test_a_clock_that_was_set_back_is_shown_as_it_was(played):
    """Its events of the time before are not moved, and those after it are in their order."""
    done = relayctl("view", played.into, "--json", "--errors")
    assert '"late"' not in done.stdout
    events = events_of(done.stdout)
    assert [one["ns"] for one in events] == sorted(one["ns"] for one in events)
    assert len(events) == 2 * (played.back.stop + 1) + 1
    back = of_numbers(events, played.back)
    of_web_2 = [one for one in back if one["host"] == "web-2"]
    others = [one for one in back if one["host"] != "web-2"]
    assert [step_of(one) for one in of_web_2] == sorted(map(step_of, of_web_2))
    assert {one["error_ns"] for one in of_web_2} == {None}
    assert None not in {one["error_ns"] for one in others}
    assert others[0]["ns"] - of_web_2[0]["ns"] > BACK - 1000 * MS


def test_it_is_said_once_how_far_clocks_were_off(played):
    _, said = view(played.into)
    first, *of_hosts = said.splitlines()
    assert first.startswith("relayctl: events of 3 machines, by their clocks: ")
    known = r"its clock was off by at most 5(\.\d+|) ms \(its kernel estimates 100 us\)"
    assert re.fullmatch(f"relayctl: db: {known}", of_hosts[0])
    step = r"; it was set, or the machine was suspended: forward by 3(\.00|) ms at [\d-]{10} [\d:]{8} UTC"
    assert re.fullmatch(f"relayctl: web-1: {known}{step}", of_hosts[1])
    assert re.fullmatch(
        rf"relayctl: web-2: {known}; at \d of \d notes its clock was not sync.*back by 2 s at .*", of_hosts[2]
    )
    assert len(of_hosts) == 3


def test_lines_have_the_machine_and_if_asked_for_the_error(played):
    of_host = r"(db|web-[12]) python-\d+/\d+ cpu\d+ pong:(got|sent): \{ n = \d+ \}"
    plain = relayctl("view", played.into).stdout.splitlines()
    assert all(re.fullmatch(rf"\[[\d:]+\.\d{{9}}\] {of_host}", line) for line in plain)
    exported = relayctl("export", played.into, "--errors").stdout.splitlines()
    assert all(re.fullmatch(rf"\[[\d:]+\.\d{{9}}\] \+-(0\.00[5-9]\d{{3}}|\?) {of_host}", line) for line in exported)
    assert [re.sub(r" \+-\S+", "", line) for line in exported] == plain
    (db, web_1, web_2, *_) = map(json.loads, relayctl("export", played.into, "--json").stdout.splitlines())
    assert [one["host"] for one in (db, web_1, web_2)] == list(NAMES)
    assert MAX_ERROR < db["max_error_ns"] < MAX_ERROR + 2 * MS
    assert db["est_error_ns"] == 100_000
    assert (web_2["max_error_ns"], web_2["est_error_ns"]) == (None, None)


def test_a_machine_is_one_of_perfettos(played, tmp_path):
    out = tmp_path / "t.pftrace"
    done = relayctl("export", played.into, "--perfetto", "-o", out)
    assert done.returncode == 0, done.stderr
    with trace_processor(out) as query:
        assert [row["id"] for row in query("select id from machine order by id")] == [0, 1, 2]
        names = query("select name, ifnull(machine_id, 0) as machine from process where pid != 0 order by machine")
        assert [(row["name"], row["machine"]) for row in names] == [
            (f"{name}: python", n) for n, name in enumerate(NAMES)
        ]
        shown = query(
            "select ts, slice.name as name, ifnull(thread.machine_id, 0) as machine, int_value as n from slice "
            "join thread_track on track_id = thread_track.id join thread using (utid) join args using (arg_set_id) "
            "where key = 'debug.n' order by ts, slice.id"
        )
        assert query("select name from stats where value and severity != 'info'") == []
        clocks = query(
            "select extract_arg(arg_set_id, 'debug.host') as host, "
            "extract_arg(arg_set_id, 'debug.est_error_ns') as error from slice where name = 'clock' order by host"
        )
    events, _ = view(played.into)
    assert [(row["ts"], row["name"], list(NAMES)[row["machine"]], row["n"]) for row in shown] == [
        (one["ns"], one["event"], one["host"], one["fields"]["n"]) for one in events
    ]
    assert [(row["host"], row["error"]) for row in clocks] == [
        ("db", 100_000),
        ("web-1", 100_000),
        ("web-2", "unknown"),
    ]


def test_chromes_processes_have_numbers_for_each_machine(played, tmp_path):
    done = relayctl("export", played.into, "--chrome")
    chrome = json.loads(done.stdout)
    names = {one["pid"]: one["args"]["name"] for one in chrome["traceEvents"] if one["name"] == "process_name"}
    assert sorted(names.values()) == [f"{name}: python" for name in NAMES]
    assert [pid >> 23 for pid in sorted(names)] == [0, 1, 2]
    assert [one["host"] for one in chrome["otherData"]["hosts"]] == list(NAMES)
    events, _ = view(played.into)
    shown = [
        (round(1000 * one["ts"]), names[one["pid"]], one["name"]) for one in chrome["traceEvents"] if one["ph"] == "i"
    ]
    zero = chrome["otherData"]["since_ns"]
    assert shown == [(one["ns"] - zero, f"{one['host']}: python", one["event"]) for one in events]
    (tmp_path / "t.json").write_text(done.stdout)
    with trace_processor(tmp_path / "t.json") as query:
        assert query("select count(*) as n from slice") == [{"n": len(events)}]


def test_directories_can_be_given_each(played):
    """Their machines are known by what the recordings say."""
    every, _ = view(played.into)
    assert view(*(played.into / name for name in NAMES))[0] == every
    two, said = view(played.into / "web-1" / "t", played.into / "db")
    assert two == [one for one in every if one["host"] in {"web-1", "db"}]
    assert "events of 2 machines" in said
    # Of one recording, times are those of its own clock, as babeltrace2 shows them.
    one, said = view(played.into / "db" / "t")
    assert "host" not in one[0]
    assert said == ""
    refused = relayctl("view", played.into, "t")
    assert refused.returncode == 2
    assert "t is no directory; only recordings can be shown together, by their directories" in refused.stderr
    refused = relayctl("export", played.into, "--errors", "--chrome")
    assert refused.returncode == 2
    assert "--errors is about lines, which --chrome does not write" in refused.stderr


def test_a_recording_without_notes_of_clocks_is_shown_by_when_its_trace_was_made(played, tmp_path):
    copy = tmp_path / "into"
    shutil.copytree(played.into, copy)
    (copy / "db/t/.clocks").unlink()
    (copy / "web-1/t/.clocks").write_bytes(b"\0\xff real=1 mono=2\n" * 100)
    events, said = view(copy, "--errors")
    right = of_numbers(events, played.right)
    assert [step_of(one) for one in right] == list(range(1, 2 * len(played.right)))
    assert {one["error_ns"] for one in events if one["host"] != "web-2"} == {None}
    assert said.count("its recording has no notes of its clock, so nobody knows how far that was off") == 2


@pytest.mark.parametrize("each", [False, True])
def test_viewers_of_lttngs_protocol_see_all_machines_on_one_time_line(played, each):
    directories = [played.into / name for name in NAMES] if each else [played.into]
    with serving(*directories, "--once") as server:
        with server.showing("recordings" if each else played.into.name) as shown:
            shown.ends()
        assert "relayctl: events of 3 machines, by their clocks: " in server.finish()
    seen = [(one.ns, one.origin.split(":")[0], one.name, one["n"]) for one in shown.events()]
    events, _ = view(played.into)
    assert seen == [(one["ns"], one["host"], one["event"], one["fields"]["n"]) for one in events]
