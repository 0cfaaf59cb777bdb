"""Metadata: what babeltrace2 reads with it, and what of a process's own words is not taken over."""

import os
import re
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import relayfs_fuse
from relayfs_fuse.tracefiles import ctf

MADE_TSC, MADE_MONO, MADE_REAL = 5_000_000_000_000, 2_000_000_000_000, 1_700_000_000_000_000_000
BOOT = "11111111-2222-3333-4444-555555555555"
EVENT = """event {
	name = "net.tcp:sent";
	id = 65534;
	stream_id = 0;
	fields := struct {
		uint32_t _x;
		int8_t _i;
		xint16_t _h;
		float _f;
		double _d;
		string { encoding = UTF8; } _s;
		uint32_t __b_length; xint8_t _b[__b_length];
	};
};
"""
THREAD = struct.pack("<i", 77)
VALUES = struct.pack("<IbHfd", 7, -1, 255, 1.5, 2.5) + "hö\0".encode() + struct.pack("<I", 2) + b"\1\xff"
SHOWN = 'x = 7, i = -1, h = 0xFF, f = 1.5, d = 2.5, s = "hö", _b_length = 2, b = [ [0] = 0x1, [1] = 0xFF ]'


@dataclass
class At:
    """The clocks so long after the trace was made, of a counter of 3 GHz."""

    after_ns: int

    @property
    def ticks(self) -> int:
        return MADE_TSC + 3 * self.after_ns

    @property
    def mono_ns(self) -> int:
        return MADE_MONO + self.after_ns


LATER = At(3_600_500_000_000)


def first_line(clock: str = "mono", buffers: str = "perprocess", pid: int = 42) -> str:
    return (
        f"/* relayfs trace=t id=3 process=my-prog pid={pid} uid=0 buffers={buffers} clock={clock} tsc={MADE_TSC}"
        f" mono={MADE_MONO} real={MADE_REAL} boot={BOOT} made_mono={MADE_MONO + 5} */\n"
    )


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., str]:
    """Have babeltrace2 read one packet with one event."""

    def read(metadata: bytes, timestamp: int, values: bytes = THREAD + VALUES) -> str:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        (directory / "metadata").write_bytes(metadata)
        size = 72 + 8 + len(values)
        head = (0xC1FC1FC1, 0, 0, 8 * size, 0, 0, timestamp, timestamp, 8 * size, 0, 42)
        data = struct.pack("<IIQQQQQQQIIQ", *head, timestamp << 16 & (1 << 64) - 1 | 65534) + values
        (directory / "cpu0").write_bytes(data)
        done = subprocess.run(
            ["babeltrace2", "--clock-gmt", "--clock-date", directory], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return read


def test_all_types_are_read(read):
    shown = read(ctf.metadata((first_line() + EVENT).encode(), LATER), MADE_MONO + 1_500_000_001)
    assert shown.startswith(f"[2023-11-14 22:13:21.500000001] (+?.?????????) {os.uname().nodename}:my-prog:(42) ")
    assert f"net.tcp:sent: {{ cpu_id = 0, pid = 42 }}, {{ vtid = 77 }}, {{ {SHOWN} }}" in shown


@pytest.mark.parametrize("buffers", ["peruser", "shared"])
def test_events_of_shared_buffers_say_whose_they_are(read, buffers):
    text = ctf.metadata((first_line(buffers=buffers) + EVENT).encode(), LATER)
    assert "{ vpid = 1234, vtid = 77 }" in read(text, MADE_MONO, struct.pack("<i", 1234) + THREAD + VALUES)


def test_the_metadata_tell_the_version_of_the_tracer():
    text = ctf.metadata(first_line().encode(), LATER).decode()
    assert ".".join(re.findall(r"\ttracer_(?:major|minor|patch) = (\d+);", text)) == relayfs_fuse.__version__


@pytest.mark.parametrize("after_ns", [0, 1, 1_000_000_007, 3_600_000_000_000])
def test_both_clocks_tell_the_same_time(read, after_ns):
    mono = read(ctf.metadata((first_line() + EVENT).encode(), LATER), LATER.mono_ns - after_ns)
    tsc = read(ctf.metadata((first_line("tsc") + EVENT).encode(), LATER), LATER.ticks - 3 * after_ns)
    times = [int(shown.partition("]")[0].rpartition(".")[2]) for shown in (mono, tsc)]
    assert abs(times[0] - times[1]) <= 1


def test_a_counter_of_which_nothing_later_is_known_began_with_the_clock():
    text = ctf.metadata(first_line("tsc").encode(), At(0)).decode()
    assert f"freq = {MADE_TSC * 1_000_000_000 // MADE_MONO};" in text


def test_declarations_that_are_not_whole_or_not_well_formed_are_left_out():
    bad = [
        EVENT.replace("id = ", "id = -"), EVENT.replace("uint32_t _x;", "uint32_t _x[0];"),
        EVENT.replace("uint32_t _x;", "uint32_t _i;"), EVENT.replace("[__b_length]", "[__c_length]"),
        EVENT.replace("net.tcp:sent", 'net:sent"; x = "'), EVENT.replace("uint32_t _x;", "};\n};\n"),
        EVENT.replace("_length; xint8_t _b", "_length; xint8_t _c"), EVENT.replace("id = 6", "id = 06"),
        EVENT.replace("id = 65534", "id = 65535"),
        EVENT.replace("uint32_t _x;\n", "".join(f"\t\tuint8_t _x{i};\n" for i in range(64)).removeprefix("\t\t")),
        EVENT.replace("stream_id = 0", "stream_id = 1"), "\0\377" * 50 + "\n", "event {\nevent {\n};\n",
    ]  # fmt: skip
    good = EVENT.replace("id = 65534", "id = 8")
    events = (first_line() + "".join(bad) + EVENT + good + EVENT.replace("sent", "again") + EVENT[:-4]).encode()
    assert [one.text for one in ctf.declarations(events)] == [EVENT.encode(), good.encode()]
    types = ("u32", "i8", "x16", "f32", "f64", "string", "bytes")
    assert [(one.id, one.types) for one in ctf.declarations(events)] == [(65534, types), (8, types)]


def test_arrays_sequences_and_enums_are_told():
    forms = {
        "uint32_t _x[3];": "u32[3]", "uint32_t __x_length; float _x[__x_length];": "f32[]",
        "uint32_t __x_length;\n\t\tuint8_t _x[__x_length];": "u8[]", "xint8_t _x[65535];": "x8[65535]",
        'enum : int8_t { "a" = -128, "_i" = 127 } _x;': "i8{a=-128,_i=127}",
        'enum : uint64_t { "a" = 18446744073709551615 } _x;': "u64{a=18446744073709551615}",
    }  # fmt: skip
    for text, word in forms.items():
        (found,) = ctf.declarations((first_line() + EVENT.replace("uint32_t _x;", text)).encode())
        assert found.fields[0] == ("x", word)
    bad = [
        "uint32_t _x[65536];", "uint32_t _x[];", "string _x[3];", "uint32_t __x_length; float _x[__y_length];",
        "uint32_t __i_length; float _i[__i_length];", 'enum : int8_t { "a" = 128 } _x;', "enum : int8_t { } _x;",
        'enum : int8_t { "a" = 1, "a" = 2 } _x;', 'enum : float { "a" = 1 } _x;', 'enum : uint8_t { "a" = -1 } _x;',
        'enum : uint8_t { "a\\"" = 1 } _x;', 'enum : uint8_t { "a" = 1 } _i;',
        f'enum : uint16_t {{ {", ".join(f"{chr(34)}a{i}{chr(34)} = {i}" for i in range(257))} }} _x;',
    ]  # fmt: skip
    events = "".join(EVENT.replace("uint32_t _x;", text) for text in bad)
    assert ctf.declarations((first_line() + events).encode()) == []


def in_lines(fields: str) -> str:
    """The event with these fields in place of the first one; | stands between lines."""
    return EVENT.replace("uint32_t _x;", fields.replace("|", "\n\t\t"))


def test_structs_are_told():
    x = "uint32_t _x;"
    deepest = f"{'struct {|' * 8}{x}{'|} _in;' * 8}"
    forms = {
        "struct {|\tint32_t _x;|\tint32_t _i;|} _at;": [("at.x", "i32"), ("at.i", "i32")],
        "struct {|struct {|uint32_t __x_length;|float _x[__x_length];|} _x;|} _x;": [("x.x.x", "f32[]")],
        "struct {|struct {|string { encoding = UTF8; } _x;|} _a;|uint32_t __b_length; xint8_t _b[__b_length];|} _at;":
            [("at.a.x", "string"), ("at.b", "bytes")],
        'struct {|enum : int8_t { "a" = 1 } _x;|uint8_t _y[2];|} _at;': [("at.x", "i8{a=1}"), ("at.y", "u8[2]")],
        deepest: [("in." * 8 + "x", "u32")],
    }  # fmt: skip
    for text, fields in forms.items():
        (found,) = ctf.declarations((first_line() + in_lines(text)).encode())
        assert found.fields[: len(fields)] == tuple(fields)
        assert found.fields[len(fields) :] == ctf.declarations((first_line() + EVENT).encode())[0].fields[1:]
    bad = [
        "struct {|} _at;", f"struct {{|{x}|{x}|}} _at;", f"struct {{|{x}|}} _i;", f"struct {{|{x}|}} _y;|{x}|{x}",
        f"struct {{|{x}", f"{x}|}} _at;", f"struct {{|{x}|}} _at;|}} _at;", "struct {|_x;|} _at;", "} _at;",
        f"struct {{|{deepest}|}} _at;", f"struct {{|{x}|}} _{'n' * 126};", f"struct {{|{x}|}} _a.b;",
        f"struct {{|{x}|}} _y;|struct {{|{x}|}} _y;", f"struct {{|{x}|}} __b_length;",
        f"struct {{|{'|'.join(f'uint8_t _y{i};' for i in range(59))}|}} _at;",
        "|".join(["struct {"] * 5000), "|".join(["} _a;"] * 5000), f"{'struct {|' * 5000}{x}{'|} _in;' * 5000}",
    ]  # fmt: skip
    assert ctf.declarations((first_line() + "".join(map(in_lines, bad))).encode()) == []


def test_declarations_tell_levels_and_places():
    level, place = "\tloglevel = 14;\n", '\tmodel.emf.uri = "a b.c:7";\n'
    texts = [EVENT.replace("\tfields", f"{words}\tfields") for words in ("", level, place, level + place)]
    events = "".join(text.replace("id = 65534", f"id = {i}") for i, text in enumerate(texts))
    found = ctf.declarations((first_line() + events).encode())
    assert [one.level for one in found] == [None, 14, None, 14]
    bad = ["15", "01", "-1", "6; x = 1"]
    bad_texts = [EVENT.replace("\tfields", f"\tloglevel = {word};\n\tfields") for word in bad]
    bad_texts += [EVENT.replace("\tfields", f"{word}\tfields") for word in (place + level, level + level)]
    bad_texts += [EVENT.replace("\tfields", f'\tmodel.emf.uri = "{word}";\n\tfields') for word in ("", '"', "\\", "\t")]
    assert ctf.declarations((first_line() + "".join(bad_texts)).encode()) == []


@pytest.mark.parametrize(
    "line",
    [
        "", "/* relayfs */\n", EVENT, first_line().replace("id=3 ", ""), first_line().replace("pid=42", "pid=x"),
        first_line().replace("pid=42", f"pid={1 << 64}"), first_line("sundial"),
        first_line().replace("mono=2", "mono=-2"), first_line().replace(BOOT, 'x";'),
        first_line().replace("my-prog", 'my"prog'), first_line().removesuffix("\n"),
        first_line().replace("my-prog", "*/event{"),
    ],
)  # fmt: skip
def test_a_line_that_the_library_does_not_write_is_refused(line):
    with pytest.raises(ValueError, match=r"\w"):
        ctf.metadata((line + EVENT).encode(), LATER)
