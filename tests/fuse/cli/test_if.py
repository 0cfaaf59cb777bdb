"""--if of relayctl view and export shows the events that programs take under the same condition."""

import json
import sys
from pathlib import Path

import pytest
from build import compile_c
from tracing import Store, relayctl
from viewing import viewing

from relayfs_fuse.fs.commands.condition import compile_conditions

C_PROGRAM = Path(__file__).parents[1] / "traces/trace_structs.c"
PYTHON = """
from enum import IntEnum
from relayfs_fuse import Event
State = IntEnum("State", {"IDLE": 0, "BUSY": 7})
at = {"x": "i32", "y": "i32"}
request = Event("web", "request", {"path": "string", "ms": "f64", "state": State, "at": at}, level="warning")
request("/api/a", 600.5, 0, (5, 1))
request("/api/b", 1, 7, (-5, 2))
request("/x", 700, 7, (6, 3))
Event("web", "other", {"ms": "string", "id": "u32"})("600", 1)
"""
# With how many events each takes.
CONDITIONS = {
    'ms > 500 && path ~ "/api/*"': 1,
    "at.x == 5": 4,  # of C also
    'state == "IDLE" || at.y == -0x80000000': 2,
    "level <= warning && !(at.x < 0)": 2,
    'ms == "600"': 1,
    "request.from.x == 1": 1,
    "last != 255 || id != 1": 0,
}


def events(command: str, *arguments: object) -> list[dict]:
    done = relayctl(command, *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def essence(found: list[dict]) -> list[tuple[object, ...]]:
    return [(one["process"], one["pid"], one["event"], one["fields"]) for one in found]


def test_what_is_shown_is_what_a_trace_takes_under_the_same_condition(store: Store, tmp_path: Path) -> None:
    store.create("all")
    for number, condition in enumerate(CONDITIONS):
        store.create(f"t{number}", rules=f"+* {condition}\n", conditions=compile_conditions([condition]))
    store.run(compile_c([C_PROGRAM]))
    store.run(sys.executable, "-c", PYTHON)
    place = "--store", store.path
    out = tmp_path / "out"
    assert relayctl("snapshot", "all", *place, "-o", out).returncode == 0
    for number, (condition, n) in enumerate(CONDITIONS.items()):
        taken = essence(events("view", f"t{number}", *place))
        assert len(taken) == n, condition
        assert essence(events("view", "all", *place, "--if", condition)) == taken, condition
        assert essence(events("export", out, "--if", condition)) == taken, condition
    last = events("view", "all", *place, "--if", "at.x >= 5", "-n", 1)
    assert essence(last) == essence(events("view", out, "--if", "at.x >= 5"))[-1:]
    assert [one["fields"]["path"] for one in last] == ["/x"]


def test_while_programs_write(store: Store, run) -> None:
    trace = store.create("t")
    program = run(trace, "app")
    program.write(10)
    with viewing("t", "--store", store.path, "-f", "--json", "-n", 2, "--if", "n >= 5 && n != 8") as view:
        view.wait_for(lambda: len(view.events()) == 2)
        program.write(3)
        another = run(trace, "another")
        another.write(7)
        view.wait_for(lambda: len(view.events()) == 7)
        found = [(one["process"], one["fields"]["n"]) for one in view.events()]
        view.finish()
    new = [("app", n) for n in (10, 11, 12)] + [("another", n) for n in (5, 6)]
    assert found == [("app", 7), ("app", 9), *new]


def test_losses_stay(store: Store, run) -> None:
    lost = run(store.create("t"), "app").write(5000)
    assert lost > 0
    event, loss = events("view", "t", "--store", store.path, "--if", "n == 7")
    assert (event["fields"]["n"], loss["lost"]) == (7, lost)


@pytest.mark.parametrize("command", ["view", "export"])
def test_a_wrong_condition_is_pointed_at(tmp_path: Path, command: str) -> None:
    for condition, said in (
        ("ms => 5", "'=': == compares\n  ms => 5\n     ^\n"),
        ("", 'a comparison such as FIELD > 5 or FIELD ~ "GLOB" is needed\n  \n  ^\n'),
    ):
        done = relayctl(command, tmp_path, "--if", condition)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"Error: Invalid value for '--if': {said}")


def test_a_condition_that_no_event_can_meet_is_said(store: Store, run, tmp_path: Path) -> None:
    run(store.create("t"), "app").write(1)
    place = "--store", store.path
    assert relayctl("snapshot", "t", *place, "-o", tmp_path / "out").returncode == 0
    for where in (["t", *place], [tmp_path / "out"]):
        for command in ("view", "export"):
            done = relayctl(command, *where, "--if", "ms > 5")
            reason = "no event that is declared so far can meet the condition: test:first has no field ms"
            assert (done.returncode, done.stdout, done.stderr) == (3, "", f"relayctl: {where[0]}: {reason}\n")
