"""Fields that are enums, arrays and sequences, from C and Python, with babeltrace2 as the judge of what is written."""

import json
import re
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest
from build import compile_c
from mounts import DEADLINE_S, NOBODY
from traced import environment_of, relayctl, start_trace
from tracing import Store

from relayfs_fuse import Event

PROGRAM = Path(__file__).with_name("trace_forms.c")
ALL = [
    'forms:all: { state = ( "BUSY" : container = 7 ), pair = [ [0] = 1, [1] = 65535 ], text = "text", _ns_length = 4, '
    "ns = [ [0] = -9223372036854775808, [1] = -1, [2] = 0, [3] = 9223372036854775807 ], "
    'hex = [ [0] = 0x0, [1] = 0xBEEF, [2] = 0xFFFFFFFF ], error = ( "LOWEST" : container = -9223372036854775808 ), '
    "_reals_length = 2, reals = [ [0] = 0.5, [1] = -1e+300 ], last = 200 }",
    'forms:all: { state = ( "int" : container = 255 ), pair = [ [0] = 1, [1] = 65535 ], text = "", _ns_length = 0, '
    "ns = [ ], hex = [ [0] = 0x0, [1] = 0xBEEF, [2] = 0xFFFFFFFF ], error = ( <unknown> : container = 5 ), "
    "_reals_length = 1, reals = [ [0] = 0.5 ], last = 0 }",
    'forms:top: { width = ( "TOP" : container = 9223372036854775808 ), one = [ [0] = -128 ] }',
]
PYTHON = """
from enum import IntEnum
from relayfs_fuse import Event
class Error(IntEnum):
    LOWEST, MINUS, HIGHEST = -2**63, -1, 2**63 - 1
all = Event("forms", "all", {
    "state": "u8{IDLE=0,BUSY=7,int=255}", "pair": "u16[2]", "text": "string", "ns": "i64[]", "hex": "x32[3]",
    "error": Error, "reals": "f64[]", "last": "u8"})
hex = (0, 0xbeef, 2**32 - 1)
all(7, (1, 65535), "text", [-2**63, -1, 0, 2**63 - 1], hex, Error.LOWEST, (0.5, -1e300), 200)
all(255, (1, 65535), "", [], hex, 5, [0.5], 0)
class Width(IntEnum):
    TOP = 1 << 63
Event("forms", "top", {"width": Width, "one": "i8[1]"})(Width.TOP, [-128])
"""


def test_babeltrace2_reads_what_a_c_program_writes(store: Store):
    store.create("t", subbuf_size=1 << 18)
    store.run(compile_c([PROGRAM]))
    found = store.events("t")
    assert found[:3] == ALL
    numbers = ", ".join(f"[{i}] = {i}" for i in range(300))
    assert found[3].startswith(f"forms:longest: {{ _n_length = 300, n = [ {numbers} ], many = [ [0] = 0, ")
    assert found[3].endswith("[65534] = 9 ] }")
    assert found[4] == "forms:plain: { n = 5 }"
    assert '( "IDLE" : container = 0 ), _n_length = 2, n = [ [0] = 1, [1] = 65535 ]' in found[5]
    assert len(found) == 7


def test_a_sequence_that_no_buffer_holds_is_lost(store: Store):
    store.create("t")
    store.run(compile_c([PROGRAM]), "too-long")
    (process,) = store.processes("t")
    assert (store.written(process), store.lost(process)) == (0, 1)


def test_python_and_c_declare_and_write_the_same(store: Store):
    store.create("t", buffers=2, subbuf_size=1 << 18)
    store.run(compile_c([PROGRAM]))
    store.run(sys.executable, "-c", PYTHON)
    (process,) = store.processes("t")
    declared = (process / ".events").read_text()
    fields = [block.partition("fields := ")[2] for block in declared.split("event {")[1:] if "forms:all" in block]
    # Each is declared once for each place, and both alike but for that.
    assert len(fields) == 2
    assert fields[0] == fields[1]
    found = [re.sub(r"\{ vpid = \d+ \}, ", "", event) for event in store.events("t")]
    assert found[:3] == found[-3:] == ALL


@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
@pytest.mark.parametrize("is_own", [True, False], ids=["own user", "other user"])
def test_relayfs_shows_them_in_every_view(mount, unprivileged, tmp_path, is_own, buffers):
    """The declarations of a program of another user pass through the server."""
    mount.store.chmod(0o700)
    start_trace(mount, "t", f"subbuf_size=256K n_subbufs=4 buffers={buffers}")
    user = {} if is_own else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    subprocess.run([compile_c([PROGRAM])], env=environment_of(mount), check=True, timeout=DEADLINE_S, cwd="/", **user)
    first = (
        'forms:all: { state = BUSY, pair = [1, 65535], text = "text", ns = [-9223372036854775808, -1, 0, '
        "9223372036854775807], hex = [0x0, 0xBEEF, 0xFFFFFFFF], error = LOWEST, reals = [0.5, -1e+300], last = 200 }"
    )
    second = (
        'forms:all: { state = int, pair = [1, 65535], text = "", ns = [], hex = [0x0, 0xBEEF, 0xFFFFFFFF], error = 5, '
        "reals = [0.5], last = 0 }"
    )
    fields = {
        "state": "BUSY", "pair": [1, 65535], "text": "text", "ns": [-(2**63), -1, 0, 2**63 - 1],
        "hex": [0, 0xBEEF, 2**32 - 1], "error": "LOWEST", "reals": [0.5, -1e300], "last": 200,
    }  # fmt: skip
    mount.command("trace stop t")
    merged = (mount.path / "t/merged").read_text().splitlines()
    assert [line.partition(" cpu")[2].partition(" ")[2] for line in merged[:2]] == [first, second]
    assert json.loads((mount.path / "t/merged.json").read_text().splitlines()[0])["fields"] == fields
    viewed = relayctl(mount, "view", "t", "-n", "7").stdout.splitlines()
    assert [line.partition(" cpu")[2].partition(" ")[2] for line in viewed[:2]] == [first, second]
    done = relayctl(mount, "record", "t", "-o", tmp_path / "out", "--until-stopped")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in relayctl(mount, "export", tmp_path / "out", "--json").stdout.splitlines()]
    assert found[0]["fields"] == fields
    assert (found[1]["fields"]["error"], found[1]["fields"]["ns"]) == (5, [])
    assert found[2]["fields"] == {"width": "TOP", "one": [-128]}
    assert found[3]["fields"] == {"n": list(range(300)), "many": [0] * 65534 + [9]}


def test_a_count_that_cannot_be_does_not_compile(tmp_path):
    source = tmp_path / "wrong.c"
    for count in (0, 65536, -1):
        source.write_text(
            f"#include <relayfs/trace.h>\nRELAY_TRACE_EVENT(a, b, (array, x, u8, {count}))\nint main(void) {{}}\n"
        )
        with pytest.raises(RuntimeError, match="size of unnamed array is negative"):
            compile_c([source], tmp_path / "wrong")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("u32[0]", "1 to 65535 numbers"), ("u32[65536]", "1 to 65535 numbers"), ("u32[-1]", "is not one of"),
        ("string[2]", "is not one of"), ("bytes[]", "is not one of"), ("u8{}", "is not one of"),
        ("u8{a=256}", "a=256 is not from 0 to 255"), ("i8{a=-129}", "a=-129 is not from -128 to 127"),
        ("u8{a=0,a=1}", "two labels a"), ("f32{a=0}", "integers"), ('u8{a"=0}', "is not one of"),
        (f"u16{{{','.join(f'x{i}={i}' for i in range(257))}}}", "at most 256 labels, not 257"),
        (IntEnum("Wide", {"a": 1 << 64}), "a=18446744073709551616 is not from"),
        (IntEnum("None_", {}), "is not one of"), (IntEnum("Accents", {"\u00e9": 1}), "is not one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_field_is_refused(kind, says):
    with pytest.raises(ValueError, match=says):
        Event("forms", "refused", {"x": kind})


def test_labels_that_are_too_long_for_a_declaration_are_refused():
    long = ",".join(f"{'x' * 120}{i}={i}" for i in range(200))
    with pytest.raises(ValueError, match="its names, and labels of enums, are too long together"):
        Event("forms", "long", {"x": f"u16{{{long}}}"})


def test_names_that_are_too_long_for_a_declaration_are_refused(store: Store):
    """A field of bytes is declared with its name three times; 32 of them are allowed whatever their names are."""
    store.create("t", subbuf_size=1 << 16)
    code = """
from relayfs_fuse import Event
def event(n):
    return Event("p" * 127, "e" * 127, {f"f{i:02}".ljust(127, "x"): "bytes" for i in range(n)})
try:
    event(64)
except ValueError as error:
    print(str(error).rpartition(": ")[2])
event(32)(*[b"x"] * 32)
"""
    said = "its names, and labels of enums, are too long together\n"
    assert store.run(sys.executable, "-c", code) == said
    (process,) = store.processes("t")
    assert (store.written(process), store.lost(process)) == (1, 0)
    assert len(store.events("t")) == 1


def test_values_that_do_not_fit_are_refused_and_not_written(store: Store):
    store.create("t")
    said = store.run(
        sys.executable,
        "-c",
        """
from relayfs_fuse import Event
event = Event("a", "b", {"pair": "u8[2]", "ns": "i16[]", "state": "u8{ON=1}"})
for values in [((1,), (), 1), ((1, 2, 3), (), 1), ((1, 256), (), 1), (5, (), 1), ((1, 2), (1 << 15,), 1),
               ((1, 2), "text", 1), ((1, 2), (), 256), ((1, 2), (), "ON")]:
    try:
        event(*values)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
event(b"\\1\\2", range(2), 3)
""",
    )
    lines = said.splitlines()
    assert len(lines) == 8
    assert lines[0] == "ValueError a:b: pair=(1,): it is to have 2 numbers, not 1"
    assert lines[3].startswith("TypeError a:b: pair=5: ")
    assert store.events("t") == [
        "a:b: { pair = [ [0] = 1, [1] = 2 ], _ns_length = 2, ns = [ [0] = 0, [1] = 1 ], "
        "state = ( <unknown> : container = 3 ) }"
    ]
