"""Conditions of `trace enable`: which events of C and Python programs are recorded, as babeltrace2 reads them."""

import errno
import json
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import forking
import pytest
import tracing
from making import making
from mounts import NOBODY, Mount, wait_until
from stress import is_long
from traced import directory_of, environment_of, processes, program, record_stopped, relayctl, start_trace, traced
from tracing import Store

from relayfs_fuse.fs.commands.condition import compile_conditions
from relayfs_fuse.native.events import LEVELS
from relayfs_fuse.native.merge import Export, Style
from relayfs_fuse.tracefiles.merged import merge
from relayfs_fuse.tracefiles.recorded import Part, Recording

pytestmark = pytest.mark.one_mount

ROUNDS = 3000 if is_long() else 150
ROWS = 12
ROOM = "subbuf_size=256K n_subbufs=16"
# It carries out each line, and says so.
PYTHON = """
import sys
from enum import IntEnum
from relayfs_fuse import Event
from relayfs_fuse.trace import TraceHandler, span
State = IntEnum("State", {"IDLE": 0, "BUSY": 1})
request = Event("server", "request", {"id": "u32", "path": "string", "ms": "f64", "state": State}, level="warning")
other = Event("server", "other", {"id": "u32"})
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
REQUESTS = 'request(1, "/api/a", 600.5, 0); request(2, "/api/b", 1, 1); request(3, "/x", 700, 1); other(4)'


class Python:
    """A Python program that does as it is told."""

    def __init__(self, environment: dict[str, str], user: int | None = None) -> None:
        self.process = forking.start(
            [sys.executable, "-c", PYTHON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, **environment}, cwd="/", user=user, group=user,
            extra_groups=None if user is None else [],
        )  # fmt: skip

    def ask(self, code: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{code}\n")
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def python(environment: dict[str, str], user: int | None = None) -> Iterator[Python]:
    one = Python(environment, user)
    try:
        yield one
    finally:
        one.process.communicate()


def recorded_ids(mount: Mount, name: str, out: Path) -> list[int]:
    """The fields `id` of a trace's events, as babeltrace2 reads them."""
    return [event["id"] for event in record_stopped(mount, name, out).events]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("ms > 500", [1, 3]),
        ('ms > 500 && path ~ "/api/*"', [1]),
        ('!(ms > 500) || path == "/x"', [2, 3]),
        ('state == "BUSY"', [2, 3]),
        ("state < 1", [1]),
        ("level <= warning", [1, 2, 3]),
        ("level < warning", []),
        ("level == warning && id == 0x2", [2]),
        ("id >= 2", [2, 3, 4]),
        ("id < 4 || nothing == 1", []),
        ("path > 5", []),
    ],
)
@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
def test_a_trace_takes_the_events_for_which_its_condition_is_true(
    mount: Mount, tmp_path: Path, condition: str, found: list[int], buffers: str
) -> None:
    mount.command(f"trace create t buffers={buffers}\ntrace enable t server:* if {condition}\ntrace start t\n")
    with python({"RELAYFS": str(mount.path)}) as program:
        program.ask(REQUESTS)
    if found:
        assert recorded_ids(mount, "t", tmp_path / "out") == found
    else:
        # An event that is never taken makes no buffers.
        assert not [path for path in (mount.path / "t").iterdir() if path.is_dir()]


def test_programs_that_run_see_each_change_of_a_condition(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    changes = [
        ("trace enable t test:* if seq < 3 || seq == 9", [0, 1, 2, 9]),
        ("trace enable t test:* if seq >= 15", list(range(15, 20))),
        ("trace enable t test:st*", list(range(20, 30))),
        ("trace disable t *", []),
        ("trace enable t test:* if seq == 45", [45]),
        ("trace enable t test:step if seq == 52", [52]),
        ("trace disable t test:step", []),
        ("trace enable t test:step if seq >= 70", list(range(70, 80))),
    ]
    with traced(mount) as c_program:
        for line, _ in changes:
            mount.command(line)
            c_program.ask("step 10")
            c_program.ask("emit 1")  # judge:step, that no pattern matches
    trace = record_stopped(mount, "t", tmp_path / "out")
    assert [event["seq"] for event in trace.events] == [number for _, numbers in changes for number in numbers]
    assert trace.lost == 0


def test_each_trace_has_a_condition_of_its_own(mount: Mount, tmp_path: Path) -> None:
    for name, condition in [("all", None), ("low", "seq < 5"), ("high", "seq >= 95"), ("none", "seq > 1000")]:
        mount.command(f"trace create {name} {ROOM}")
        if condition:
            mount.command(f"trace enable {name} test:step if {condition}")
        mount.command(f"trace start {name}")
    with traced(mount) as c_program:
        c_program.ask("step 100")
        assert directory_of(mount.path / "all", c_program)
    found = {
        name: [event["seq"] for event in record_stopped(mount, name, tmp_path / name).events]
        for name in ("all", "low", "high")
    }
    assert found == {"all": list(range(100)), "low": list(range(5)), "high": list(range(95, 100))}
    assert not [path for path in (mount.path / "none").iterdir() if path.is_dir()]


def test_programs_of_another_user_obey_conditions(mount: Mount, unprivileged: object, tmp_path: Path) -> None:
    mount.store.chmod(0o700)
    mount.command('trace create t\ntrace enable t server:* if path ~ "/api/?"\ntrace start t\n')
    with python({"RELAYFS": str(mount.path)}, NOBODY) as program:
        program.ask(REQUESTS)
    assert recorded_ids(mount, "t", tmp_path / "out") == [1, 2]


def test_early_events_are_all_there_and_later_ones_are_chosen(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    mount = make_mount(start=False)
    environment = {
        "RELAYFS": str(mount.path), "RELAYFS_STORE": str(mount.store),
        "RELAYFS_TRACE_EARLY": "boot,subbuf_size=64K,n_subbufs=16",
    }  # fmt: skip
    with making(environment, None, [program("traced")]) as early:
        early.ask("step 10")
        mount.start()
        # Beside early events, for which no trace is there yet, a trace has a condition.
        mount.command("trace create beside\ntrace enable beside test:* if seq == 15\ntrace start beside\n")
        early.ask("step 10")
        mount.command(f"trace create boot {ROOM}\ntrace enable boot test:* if seq >= 28\n")
        mount.command("trace start boot\n")
        early.ask("step 10")
    trace = record_stopped(mount, "boot", tmp_path / "boot")
    assert [event["seq"] for event in trace.events] == [*range(20), 28, 29]
    assert [event["seq"] for event in record_stopped(mount, "beside", tmp_path / "beside").events] == [15]


def test_a_condition_is_said_as_it_was_given_and_outlives_the_server(mount: Mount, tmp_path: Path) -> None:
    lines = [
        'trace enable t server:* if ms > 500 && (path ~ "/api/*" || !(state == "IDLE"))',
        "trace disable t server:other",
        'trace enable t other:x if name == "gr\u00fc\u00df"',
    ]
    mount.command("".join(f"{line}\n" for line in ("trace create t", *lines)))
    text = mount.channels()
    assert text.splitlines()[1:] == lines
    described = json.loads(relayctl(mount, "trace", "list", "--json").stdout)
    assert described["rules"][1:] == ["-server:other", '+other:x name == "gr\u00fc\u00df"']
    mount.command("trace remove t")
    mount.command(text)
    assert mount.channels() == text
    mount.stop()
    mount.start()
    assert mount.channels() == text
    mount.command("trace start t")
    with python({"RELAYFS": str(mount.path)}) as program:
        program.ask(REQUESTS)
    assert recorded_ids(mount, "t", tmp_path / "out") == [1, 3]


@pytest.mark.parametrize(
    ("condition", "at", "said"),
    [
        ("ms > 500 &&", None, "a comparison such as FIELD > 5"),
        ("ms => 5", "=> 5", "== compares"),
        ("level <= loud", "loud", "the levels are emerg, alert"),
        (" || ".join(f"x == {number}" for number in range(65)), "x == 64", "64 comparisons in all"),
    ],
)
def test_a_wrong_condition_is_refused_and_changes_nothing(
    mount: Mount, condition: str, at: str | None, said: str
) -> None:
    mount.command("trace create t\ntrace enable t a:b if x > 5\n")
    before = mount.channels()
    line = f"trace enable t a:b if {condition}"
    with pytest.raises(OSError) as caught:  # the errno is what the caller looks at
        mount.command(f"{line}\n")
    assert caught.value.errno in (errno.EINVAL, errno.ENOSPC)
    assert mount.channels() == before
    entry = mount.error_log
    assert said in entry
    lines = entry.splitlines()
    (number,) = [number for number, text in enumerate(lines) if text.strip() == "^"]
    shown = lines[number - 1][lines[number].index("^") :]
    assert shown.startswith(at) if at else not shown


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("mss > 5", "server:request has no field mss"),
        ("path > 5", "server:request has path as string"),
        ('state == "LOST"', "server:request has state as i32{IDLE=0,BUSY=1}"),
        ('ms ~ "5*"', "server:request has ms as f64"),
        ('ms > 5 && !(state == "BUSY" || path < "x" || level <= warning || id == 1.5)', None),
    ],
)
def test_a_condition_that_no_declared_event_meets_is_said(mount: Mount, condition: str, said: str | None) -> None:
    start_trace(mount, "t")
    mount.command("trace create other")
    with python({"RELAYFS": str(mount.path)}) as program:
        program.ask(REQUESTS)
        wait_until(lambda: processes(mount.path / "t"), "the process is there")
        if said:
            mount.expect("none can be taken")
        mount.command(f"trace enable other server:r* if {condition}")
    entry = mount.error_log
    checked = "checked are 16 processes at most, and 64 KiB of each one's declarations"
    assert (f"of the events declared so far ({checked}) none can be taken: {said}" in entry) == bool(said)
    assert f"trace enable other server:r* if {condition}" in mount.channels().splitlines()


def test_a_pattern_that_no_declared_event_matches_is_said(mount: Mount) -> None:
    start_trace(mount, "t")
    mount.command("trace create other")
    mount.command("trace enable other serve:*")  # nobody has declared anything
    with python({"RELAYFS": str(mount.path)}) as program:
        program.ask(REQUESTS)
        wait_until(lambda: processes(mount.path / "t"), "the process is there")
        # fnmatch(3) understands these.
        for line in (
            "enable other server:[^x]*",
            r"enable other server:\other",
            "enable other *",
            "disable other no:*",
        ):
            mount.command(f"trace {line}")
        assert mount.error_log == ""
        mount.command("trace enable other serve:* if ms > 5")
    head, line, caret = mount.error_log.splitlines()
    said = (
        "trace: notice: no event declared so far in the traces of this mount (checked are 16 processes at most, and 64 "
        "KiB of each one's declarations) matches 'serve:*'; relayctl events lists those of running programs"
    )
    assert head.endswith(said)
    assert line[caret.index("^") :] == "serve:* if ms > 5"
    assert "trace enable other serve:* if ms > 5" in mount.channels().splitlines()


def test_log_messages_are_chosen_by_their_fields(mount: Mount, tmp_path: Path) -> None:
    mount.command('trace create t\ntrace enable t python:log if level == "ERROR" && line > 0\ntrace start t\n')
    with python({"RELAYFS": str(mount.path)}) as program:
        program.ask("import logging; log = logging.getLogger(); log.addHandler(TraceHandler()); log.setLevel(10)")
        program.ask('log.info("one"); log.error("two"); log.error("three")')
    found = record_stopped(mount, "t", tmp_path / "out").events
    assert [event.fields["message"] for event in found] == ['"two"', '"three"']


def test_view_makes_a_trace_with_a_condition(mount: Mount) -> None:
    viewing = subprocess.Popen(
        [Path(sys.executable).with_name("relayctl"), "view", "-n", "0", "-e", 'judge:step if seq == 5 && text != "é"'],
        stdout=subprocess.PIPE, text=True, env=environment_of(mount),
    )  # fmt: skip
    try:
        wait_until(lambda: "trace start view-" in mount.channels(), "the trace is started")
        with traced(mount) as c_program:
            c_program.ask("emit 10")
            assert viewing.stdout is not None
            assert "seq = 5" in viewing.stdout.readline()
    finally:
        viewing.terminate()
        rest, _ = viewing.communicate()
    assert "seq" not in rest


# --- random conditions ---

LABELS = {"IDLE": -1, "BUSY": 1, "LOST": 100}
# What a field may hold, and what it is compared with.
INTEGERS = {"a": (8, False), "b": (64, True), "c": (64, False), "d": (16, False), "tail": (16, True)}
REALS = ("f", "g")
FIELDS = (
    '{"seq": "u32", "a": "u8", "b": "i64", "s": "string", "c": "u64", "f": "f32", "d": "x16", "e": '
    '"i8{IDLE=-1,BUSY=1,LOST=100}", "t": "string", "more": "u32[]", "g": "f64", "tail": "i16"}'
)
RANDOM = f"""
import json, sys
from relayfs_fuse import Event
events = [Event("random", f"e{{n}}", {FIELDS}, level=level) for n, level in enumerate(("err", "info", None))]
for line in sys.stdin:
    for which, values in json.loads(line):
        events[which](*values)
    print("done", flush=True)
"""
EVENT_LEVELS = (LEVELS.index("err"), LEVELS.index("info"), None)
OPERATORS: dict[str, Callable[[object, object], bool]] = {
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip
Values = dict[str, object]
Judge = Callable[[Values], bool]


def integer(chance: random.Random, bits: int, is_signed: bool) -> int:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return chance.choice([least, most, max(least, -1), 0, 1, 2, chance.randint(least, most)])


def real(chance: random.Random) -> float:
    return chance.choice([0.0, 0.5, -1.5, 1e9, float("inf"), float("nan"), float(chance.randint(-3, 3))])


def text(chance: random.Random) -> str:
    return "".join(chance.choice('aab*?\\"\u00e9 ') for _ in range(chance.randrange(6)))


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def comparison(chance: random.Random) -> tuple[str, Judge | None]:
    """Return a comparison, and what it comes to; None: the event lacks something, or its type is another."""
    operator = chance.choice(list(OPERATORS))
    compare = OPERATORS[operator]
    kind = chance.randrange(12)
    if kind == 0:
        name, word = chance.choice([("none", "5"), ("more", "5"), ("a", '"x"'), ("s", "5"), ("e", '"NONE"')])
        return f"{name} {operator} {word}", None
    if kind <= 4:
        name = chance.choice([*INTEGERS, "e"])
        number = integer(chance, *chance.choice([(8, True), (64, True), (64, False)]))
        if chance.randrange(3) == 0:
            wished = chance.choice([0.5, -1.0, 3.0, 1e19])
            return f"{name} {operator} {wished!r}", lambda values: compare(float(values[name]), wished)  # type: ignore[arg-type]
        word = hex(number) if number >= 0 and chance.randrange(4) == 0 else str(number)
        return f"{name}{operator}{word}", lambda values: compare(values[name], number)
    if kind <= 6:
        name = chance.choice(REALS)
        wished = chance.choice([0.5, -1.5, 2, 1e9, -3, 0])
        return f"{name} {operator} {wished!r}", lambda values: compare(values[name], float(wished))
    if kind == 7:
        label = chance.choice(list(LABELS))
        return f'e {operator} "{label}"', lambda values: compare(values["e"], LABELS[label])
    if kind == 8:
        word = chance.choice(LEVELS)
        return f"level {operator} {word}", lambda values: compare(values["level"], LEVELS.index(word))
    name = chance.choice(["s", "t"])
    if kind == 9:
        wished_text = text(chance)
        return (
            f"{name} {operator} {quoted(wished_text)}",
            lambda values: compare(str(values[name]).encode(), wished_text.encode()),
        )
    parts = [
        chance.choice(["*", "?", "a", "b", '"', "\\*", "\\?", "\\\\", "\u00e9"]) for _ in range(chance.randrange(5))
    ]
    meaning = {"*": b".*", "?": b"."}
    pattern = re.compile(b"".join(meaning.get(part) or re.escape(part[-1].encode()) for part in parts), re.DOTALL)
    written = "".join('\\"' if part == '"' else part for part in parts)
    return f'{name} ~ "{written}"', lambda values: pattern.fullmatch(str(values[name]).encode()) is not None


def condition(chance: random.Random, depth: int = 0) -> tuple[str, Judge | None, int]:
    """Return a condition, what it comes to, and how tightly it binds: 1 ||, 2 &&, 3."""
    kind = chance.randrange(4) if depth < 4 else 3
    if kind == 3:
        return *comparison(chance), 3
    left, judge_left, binds_left = condition(chance, depth + 1)
    if kind == 2:
        inner = f"({left})" if binds_left < 3 or chance.randrange(2) or not left.startswith("!") else left
        return f"!{inner}", judge_left and (lambda values: not judge_left(values)), 3
    right, judge_right, binds_right = condition(chance, depth + 1)
    left = f"({left})" if binds_left <= kind else left
    right = f"({right})" if binds_right <= kind or chance.randrange(5) == 0 else right
    if not (judge_left and judge_right):
        return f"{left} {('||', '&&')[kind]} {right}", None, kind + 1
    if kind:
        return f"{left}&&{right}", lambda values: judge_left(values) and judge_right(values), 2
    return f"{left} || {right}", lambda values: judge_left(values) or judge_right(values), 1


def row(chance: random.Random, seq: int) -> Values:
    values: Values = {"seq": seq, "s": text(chance), "t": text(chance), "more": [1] * chance.randrange(3)}
    for name, (bits, is_signed) in INTEGERS.items():
        values[name] = integer(chance, bits, is_signed)
    values["e"] = chance.choice([*LABELS.values(), 5])
    values["f"], values["g"] = struct.unpack("<f", struct.pack("<f", real(chance)))[0], real(chance)
    return values


def shown_if(parts: list[Part], condition: str) -> set[int]:
    """Return the seq of the events that a merge with this condition gives out."""
    merged = merge(parts, condition=compile_conditions([condition]))
    with closing(merged), closing(Export(merged, Style("json"))) as exporter:
        lines = b"".join(map(bytes, exporter.pieces())).splitlines()
    return {json.loads(line)["fields"]["seq"] for line in lines}


@pytest.mark.stress
def test_random_conditions_choose_as_their_model_does(store: Store, tmp_path: Path) -> None:
    """In programs, for one trace, and in merges of another trace, which takes all events."""
    chance = random.Random(20)
    names = ("seq", "a", "b", "s", "c", "f", "d", "e", "t", "more", "g", "tail")
    trace = store.create("t", subbuf_size=1 << 20, n_subbufs=16)
    store.create("all", subbuf_size=1 << 20, n_subbufs=16)
    environment = {**os.environ, **store.environment}
    conditions = []
    expected = []
    n_true = 0
    with forking.start(
        [sys.executable, "-c", RANDOM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(ROUNDS):
            text, judge, _ = condition(chance)
            conditions.append(text)
            store.change(trace, rules=f"+random:* {text}\n", conditions=compile_conditions([text]))
            rows = [(chance.randrange(3), row(chance, ROWS * number + i)) for i in range(ROWS)]
            uses_level = "level" in text
            for which, values in rows:
                values["level"] = EVENT_LEVELS[which]
                is_taken = judge is not None and not (uses_level and values["level"] is None) and judge(values)
                if is_taken:
                    expected.append((text, values["seq"]))
                n_true += is_taken
            process.stdin.write(
                json.dumps([(which, [values[name] for name in names]) for which, values in rows]) + "\n"
            )
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        process.stdin.close()
    found = [int(event.partition("seq = ")[2].partition(",")[0]) for event in store.events("t")]
    wrong = {seq for _, seq in expected} ^ set(found)
    assert not wrong, [(text, seq) for text, seq in expected if seq in wrong] or wrong
    assert found == [seq for _, seq in expected]
    assert ROUNDS * ROWS // 10 < n_true < ROUNDS * ROWS * 9 // 10
    out = tmp_path / "all"
    assert tracing.relayctl("snapshot", "all", "--store", store.path, "-o", out).returncode == 0
    with closing(Recording(str(out))) as recording:
        for number, text in enumerate(conditions):
            seqs = range(ROWS * number, ROWS * (number + 1))
            assert shown_if(recording.parts, text) & {*seqs} == {seq for seq in found if seq in seqs}, text
