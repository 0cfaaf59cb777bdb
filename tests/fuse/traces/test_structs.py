"""Fields that are structs, from C and Python, with babeltrace2 as the judge of what is written."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from build import compile_c
from mounts import DEADLINE_S, NOBODY
from traced import environment_of, record_stopped, start_trace
from tracing import Store

from relayfs_fuse import Event

PROGRAM = Path(__file__).with_name("trace_structs.c")
CLICK = "structs:click: { id = 1, at = { x = 5, y = -2147483648 }, last = 255 }"
ALL = [
    'structs:all: { state = ( "IDLE" : container = -1 ), request = { path = "/a", name = "name", '
    'state = ( "BUSY" : container = 7 ), is_open = 1, pair = [ [0] = 1, [1] = 65535 ], from = { x = 1, y = -2 }, '
    "_ns_length = 2, ns = [ [0] = -9223372036854775808, [1] = -1 ], to = { x = 3, y = -4 }, _body_length = 2, "
    "body = [ [0] = 0x1, [1] = 0xFF ], key = [ [0] = 1, [1] = 255 ] }, at = { x = 5, y = -2147483648 } }",
    'structs:all: { state = ( <unknown> : container = 1 ), request = { path = "", name = "", '
    'state = ( "IDLE" : container = 0 ), is_open = 0, pair = [ [0] = 0, [1] = 0 ], from = { x = 0, y = 0 }, '
    "_ns_length = 0, ns = [ ], to = { x = 0, y = 0 }, _body_length = 0, body = [ ], key = [ [0] = 0, [1] = 0 ] }, "
    "at = { x = 0, y = 0 } }",
]
DEEPEST = f"structs:deepest: {{ {'in = { ' * 8}n = 9{' }' * 8}, n = 1 }}"
SPAN = [
    "structs:span: { track_event_type = 66, at = { x = 5, y = -2147483648 } }",
    "structs:span_end: { track_event_type = 69 }",
]
PYTHON = """
from enum import IntEnum
from typing import NamedTuple
from relayfs_fuse import Event
class Point(NamedTuple):
    x: int
    y: int
State = IntEnum("State", {"IDLE": 0, "BUSY": 7})
point = {"x": "i32", "y": "i32"}
request = {
    "path": "string", "name": "string", "state": "u8{IDLE=0,BUSY=7}", "is_open": "u8", "pair": "u16[2]", "from": point,
    "ns": "i64[]", "to": point, "body": "bytes", "key": "u8[2]"}
Event("structs", "click", {"id": "u32", "at": point, "last": "u8"})(1, Point(5, -2**31), last=255)
all = Event("structs", "all", {"state": "i8{IDLE=-1}", "request": request, "at": point})
all(-1, {
    "key": [1, 255], "path": "/a", "name": "name", "state": State.BUSY, "is_open": True, "pair": (1, 65535),
    "from": [1, -2], "ns": [-2**63, -1], "to": {"y": -4, "x": 3}, "body": b"\\1\\xff"}, at={"x": 5, "y": -2**31})
all(1, ("", "", 0, 0, (0, 0), (0, 0), (), (0, 0), b"", (0, 0)), (0, 0))
"""


def test_python_and_c_declare_and_write_the_same(store: Store):
    store.create("t", buffers=2)
    store.run(compile_c([PROGRAM]))
    store.run(sys.executable, "-c", PYTHON)
    found = [re.sub(r"\{ vpid = \d+ \}, ", "", event) for event in store.events("t")]
    assert found == [CLICK, *ALL, DEEPEST, *SPAN, CLICK, *ALL]
    (process,) = store.processes("t")
    declared = (process / ".events").read_text().split("event {")
    for name in ("structs:click", "structs:all"):
        one, other = [block.partition("fields := ")[2] for block in declared if f'"{name}"' in block]
        assert one == other


def test_a_sequence_in_a_struct_that_no_buffer_holds_is_lost(store: Store):
    store.create("t")
    store.run(compile_c([PROGRAM]), "too-long")
    (process,) = store.processes("t")
    assert (store.written(process), store.lost(process)) == (0, 1)


def test_relayfs_shows_structs_of_another_user_s_program_in_every_view(mount, unprivileged):
    """The declarations pass through the server, and the packets are checked against them."""
    mount.store.chmod(0o700)
    start_trace(mount, "t")
    subprocess.run(
        [compile_c([PROGRAM])], env=environment_of(mount), check=True, timeout=DEADLINE_S, cwd="/",
        user=NOBODY, group=NOBODY, extra_groups=[],
    )  # fmt: skip
    mount.command("trace stop t")
    shown = [
        CLICK,
        'structs:all: { state = IDLE, request = { path = "/a", name = "name", state = BUSY, is_open = 1, '
        "pair = [1, 65535], from = { x = 1, y = -2 }, ns = [-9223372036854775808, -1], to = { x = 3, y = -4 }, "
        "body = <01ff>, key = [1, 255] }, at = { x = 5, y = -2147483648 } }",
    ]
    merged = (mount.path / "t/merged").read_text().splitlines()
    assert [line.partition(" cpu")[2].partition(" ")[2] for line in merged[:2]] == shown
    at = {"x": 5, "y": -(2**31)}
    request = {
        "path": "/a", "name": "name", "state": "BUSY", "is_open": 1, "pair": [1, 65535], "from": {"x": 1, "y": -2},
        "ns": [-(2**63), -1], "to": {"x": 3, "y": -4}, "body": "01ff", "key": [1, 255],
    }  # fmt: skip
    found = [json.loads(line)["fields"] for line in (mount.path / "t/merged.json").read_text().splitlines()]
    assert found[:2] == [{"id": 1, "at": at, "last": 255}, {"state": "IDLE", "request": request, "at": at}]
    assert found[3] == json.loads('{"in":' * 8 + '{"n":9}' + "}" * 7 + ',"n":1}')


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("at.x > 4", ["click", "all", "span"]),
        ("at.x < 5", ["all"]),
        ('request.state == "BUSY"', ["all"]),
        ('request.state == "IDLE"', ["all"]),
        ("request.to.y == -4 && state == -1", ["all"]),
        ("in.in.in.in.in.in.in.in.n == 9 && n == 1", ["deepest"]),
        ("at == 5 || at.z == 1 || request.ns == 1", []),
    ],
)
@pytest.mark.one_mount
def test_conditions_compare_fields_of_structs(mount, tmp_path, condition, names):
    mount.command(f"trace create t\ntrace enable t structs:* if {condition}\ntrace start t\n")
    try:
        subprocess.run([compile_c([PROGRAM])], env=environment_of(mount), check=True, timeout=DEADLINE_S)
        if names:
            found = [event.name for event in record_stopped(mount, "t", tmp_path / "out").events]
            assert found == [f"structs:{name}" for name in names]
        else:
            assert not [path for path in (mount.path / "t").iterdir() if path.is_dir()]
    finally:
        mount.command("trace remove t")


NEST = "struct s{0} {{ struct s{1} in; }}; RELAY_TRACE_STRUCT(s{0}, struct s{0}, (struct, in, s{1}))\n"
LEAF = "struct s1 { int x; }; RELAY_TRACE_STRUCT(s1, struct s1, (i32, x))\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LEAF + "".join(NEST.format(i, i - 1) for i in range(2, 10)), "relay_trace_struct_s9_is_nested_too_deep"),
        (
            LEAF
            + f"struct w {{ struct s1 {', '.join(f'm{i}' for i in range(13))}; }};\n"
            + f"RELAY_TRACE_STRUCT(w, struct w, {', '.join(f'(struct, m{i}, s1)' for i in range(13))})\n"
            + f"RELAY_TRACE_EVENT(a, b, {', '.join(f'(struct, e{i}, w)' for i in range(5))})",
            "trace_a_b_has_more_than_64_fields",
        ),
        (LEAF + f"RELAY_TRACE_EVENT(a, b, (struct, {'n' * 126}, s1))", "trace_a_b_has_a_name_of_more_than_127_bytes"),
        (LEAF + "RELAY_TRACE_EVENT(a, b, (array, x, struct, 2))", "RELAY_TRACE_AS_struct"),
        ("RELAY_TRACE_EVENT(a, b, (struct, x, unknown))", "relay_trace_struct_unknown_"),
    ],
)
def test_what_cannot_be_a_struct_does_not_compile(tmp_path, text, says):
    source = tmp_path / "wrong.c"
    source.write_text(f"#include <relayfs/trace.h>\n{text}\nint main(void) {{ return 0; }}\n")
    with pytest.raises(RuntimeError, match=says):
        compile_c([source], tmp_path / "wrong")


def nested(depth: int) -> Any:
    return {"in": nested(depth - 1)} if depth else "u8"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({}, "s: a struct has at least one field"),
        ({"x": {}}, "s.x: a struct has at least one field"),
        (5, "s: type 5 is not a string, an IntEnum, or a mapping"),
        ({"x": "u7"}, "s.x: type 'u7' is not one of"),
        ({"x.y": "u8"}, "s.x.y: the name of a field has letters"),
        ({"\u00e9": "u8"}, "refused: field 's.\u00e9': a name has 1 to 127 letters, digits and _"),
        (nested(9), "in: a field is in at most 8 structs"),
        ({"x" * 126: "u8"}, "at most 127 bytes"),
        ({f"x{i}": "u8" for i in range(65)}, "refused: it has 65 fields, and an event has at most 64"),
    ],
)
def test_python_declares_no_struct_that_cannot_be(kind, says):
    with pytest.raises(ValueError, match=says):
        Event("structs", "refused", {"s": kind})
    Event("structs", "allowed", {"s": nested(8)})


def test_values_that_do_not_fit_are_refused_and_not_written(store: Store):
    store.create("t")
    said = store.run(
        sys.executable,
        "-c",
        """
from relayfs_fuse import Event
event = Event("a", "b", {"at": {"x": "i8", "to": {"y": "string"}}})
for value in [5, (1,), {"x": 1}, {"x": 1, "z": {"y": ""}}, (128, [""]), (1, {"y": 2}), ("1", [""])]:
    try:
        event(value)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
event([-1, ["end"]])
""",
    )
    assert said.splitlines() == [
        "TypeError a:b: at=5: it is to have x, to",
        "ValueError a:b: at=(1,): it is to have x, to",
        "ValueError a:b: at={'x': 1}: it is to have x, to",
        "ValueError a:b: at={'x': 1, 'z': {'y': ''}}: it is to have x, to",
        "ValueError a:b: at=(128, ['']): x: byte format requires -128 <= number <= 127",
        "TypeError a:b: at=(1, {'y': 2}): to: y: it is to be a str, not int",
        "ValueError a:b: at=('1', ['']): x: required argument is not an integer",
    ]
    assert store.events("t") == ['a:b: { at = { x = -1, to = { y = "end" } } }']
