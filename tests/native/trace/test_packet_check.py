"""What a check of a packet passes, babeltrace2 reads; and it reads nothing beyond the packet, whatever is in that."""

import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from fuzzing import fuzz
from stress import is_long

from relayfs_fuse.native.events import field_form
from relayfs_fuse.native.packets import Layouts
from relayfs_fuse.reading.check import Checker, copied
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head, Packet
from relayfs_fuse.tracefiles import ctf

SEEDS = range(20 if is_long() else 3)
N_PACKETS = 200
RUNS = 20_000_000 if is_long() else 200_000
LONG = 200_000
BOOT = "11111111-2222-3333-4444-555555555555"
LINE = (
    "/* relayfs trace=t id=3 process=p pid=42 uid=0 buffers={buffers} clock=mono tsc=0 mono=5000"
    f" real=1700000000000000000 boot={BOOT} made_mono=5000 */\n"
)
TYPES = {
    "u8": "uint8_t", "u64": "uint64_t", "i16": "int16_t", "x32": "xint32_t", "f32": "float", "f64": "double",
    "string": "string { encoding = UTF8; }",
}  # fmt: skip
PACKING = {"u8": "<B", "u64": "<Q", "i16": "<h", "x32": "<I", "f32": "<f", "f64": "<d"}
ARRAY, SEQUENCE, ENUM = "i16[3]", "u64[]", "u8{a=1,b=2}"
STRUCT = "a struct"
OTHERS = {
    "bytes": "uint32_t __$_length;\n\t\txint8_t _$[__$_length];", ARRAY: "int16_t _$[3];",
    SEQUENCE: "uint32_t __$_length;\n\t\tuint64_t _$[__$_length];", ENUM: 'enum : uint8_t { "a" = 1, "b" = 2 } _$;',
    STRUCT: "struct {\n\t\tint16_t _x;\n\t\tstruct {\n\t\tstring { encoding = UTF8; } _y;\n\t\t} _to;\n\t\t} _$;",
}  # fmt: skip


def declared(number: int, types: list[str]) -> str:
    """As the library writes it."""
    fields = "".join(
        "\t\t" + OTHERS.get(word, f"{TYPES.get(word)} _$;").replace("$", f"f{i}") + "\n" for i, word in enumerate(types)
    )
    return (
        f'event {{\n\tname = "fuzz:e{number}";\n\tid = {1000 + number};\n\tstream_id = 0;\n\tfields := struct {{\n'
        f"{fields}\t}};\n}};\n"
    )


def value(chance: random.Random, word: str) -> bytes:
    if word == "string":
        return bytes(chance.randrange(1, 256) for _ in range(chance.randrange(12))) + b"\0"
    if word == "bytes":
        return struct.pack("<I", n := chance.randrange(12)) + chance.randbytes(n)
    if word == SEQUENCE:
        return struct.pack("<I", n := chance.randrange(5)) + chance.randbytes(8 * n)
    if word == STRUCT:
        return value(chance, "i16") + value(chance, "string")
    if word in (ARRAY, ENUM):
        return chance.randbytes(6 if word == ARRAY else 1)
    if word in ("f32", "f64"):
        return struct.pack(PACKING[word], chance.uniform(-9, 9))
    return chance.randbytes(struct.calcsize(PACKING[word]))


def spoilt(chance: random.Random, data: bytes) -> bytes:
    """Change a few bytes or words, cut it, or join it with something."""
    spoils = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at = chance.randrange(len(spoils))
        what = chance.choice([b"\0", b"\xff", b"\1\0\0\0", b"\xff\xff\xff\xff", chance.randbytes(8), bytes(8)])
        spoils[at : at + len(what)] = what
    if chance.random() < 0.1:
        del spoils[chance.randrange(len(spoils)) :]
    return bytes(spoils)


@pytest.mark.parametrize("buffers", ["perprocess", "shared"])
@pytest.mark.parametrize("seed", SEEDS)
def test_babeltrace2_reads_what_passes(tmp_path: Path, seed: int, buffers: str) -> None:
    chance = random.Random(seed)
    words = [*TYPES, *OTHERS]
    kinds = [chance.choices(words, k=chance.randrange(7)) for _ in range(6)]
    text = (LINE.format(buffers=buffers) + "".join(declared(i, kind) for i, kind in enumerate(kinds))).encode()
    origin = ctf.Origin.of(text)
    checker = Checker(origin)
    checker.learn(ctf.declarations(text))
    stream, n_events, n_spoilt = [], 0, 0
    for number in range(N_PACKETS):
        begin = 10_000 * (number + 1)
        events, times = [], sorted(chance.randrange(begin, begin + 9000) for _ in range(chance.randrange(1, 20)))
        for time in times:
            kind = chance.randrange(len(kinds))
            context = struct.pack(f"<{len(origin.context)}i", *range(7, 7 + len(origin.context)))
            events.append(
                struct.pack("<Q", time << 16 | 1000 + kind) + context + b"".join(value(chance, w) for w in kinds[kind])
            )
        whole = b"".join(events)
        bits = 8 * (HEAD_BYTES + len(whole))
        head = Head(MAGIC, 0, 0, bits, 0, number, begin + 9000, begin, bits, 0, 42)
        checked = checker.check(Packet(head, [whole]))
        assert (checked.n_events, checked.most_lost, checked.fault) == (len(events), 0, "")
        data = spoilt(chance, whole)
        bits = 8 * (HEAD_BYTES + len(data))
        checked = checker.check(*copied([Packet(head._replace(packet_size=bits, content_size=bits), [data])]))
        n_events += checked.n_events
        n_spoilt += bool(checked.most_lost)
        stream += [checked.packet.head.pack(), *map(bytes, checked.packet.body)]
    assert 0 < n_spoilt < N_PACKETS
    (tmp_path / "metadata").write_bytes(ctf.metadata(text, type("At", (), {"ticks": 0, "mono_ns": 6000})()))
    (tmp_path / "cpu0").write_bytes(b"".join(stream))
    done = subprocess.run(["babeltrace2", tmp_path], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(re.findall(rb"(?m)^\[.* fuzz:e\d+: \{ cpu_id = 0, pid = 42 \}", done.stdout)) == n_events


def layouts(*types: str, context_bytes: int = 0) -> Layouts:
    """Of one event, with the id 1."""
    found = Layouts(context_bytes)
    found.add(1, [field_form(word).number for word in types])
    return found


def event(time: int, fields: bytes = b"", number: int = 1) -> bytes:
    return struct.pack("<Q", time << 16 | number) + fields


@pytest.mark.parametrize(
    ("types", "bad", "fault"),
    [
        ([], event(20)[:-1], "within an event's head"),
        ([], event(9), "time"), ([], event(31), "time"), ([], event(14), "time"),
        ([], event(20, number=2), "no event of id 2 is declared"),
        (["u32"], event(20, b"123"), "longer"),
        (["string"], event(20, b"no end"), "longer"),
        (["bytes"], event(20, b"\0\0\0"), "longer"), (["bytes"], event(20, b"\5\0\0\0abcd"), "longer"),
        (["bytes"], event(20, b"\xff\xff\xff\xffabcd"), "longer"),
        (["string"], event(20, b"x" * LONG), "longer"),
        (["u16[2]"], event(20, b"123"), "longer"),
        (["u16[]"], event(20, b"\2\0\0\0abc"), "longer"), (["u64[]"], event(20, b"\0\0\0\x20abcd"), "longer"),
        (["u64[]"], event(20, b"\xff\xff\xff\xffabcd"), "longer"),
        (["bytes", "u8"], event(20, struct.pack("<I", LONG) + bytes(LONG)), "longer"),
    ],
)  # fmt: skip
def test_the_first_event_that_is_wrong_is_found(types: list[str], bad: bytes, fault: str) -> None:
    values = {"u32": b"1234", "string": b"s\0", "bytes": b"\2\0\0\0ab", "u8": b"1"}
    values |= {"u16[2]": b"1234", "u16[]": b"\2\0\0\0abcd", "u64[]": b"\1\0\0\0abcdefgh"}
    fields = b"".join(values[word] for word in types)
    good = event(10, fields) + event(15, fields)
    found = layouts(*types).check(good + bad, 10, 30)
    assert (found.n_bytes, found.n_events) == (len(good), 2)
    assert fault in found.fault


def test_an_event_may_fill_the_packet() -> None:
    longest = event(20, b"x" * LONG + b"\0")
    assert layouts("string").check(longest, 10, 30).n_events == 1
    assert layouts("string", context_bytes=4).check(event(20, b"1234" + longest[8:]), 10, 30).n_events == 1


def test_many_declarations_are_found() -> None:
    found = Layouts(0)
    numbers = [number for i in range(5000) if (number := pow(3, i, 65537)) < 65535]
    for number in numbers:
        found.add(number, [])
    with pytest.raises(FileExistsError):
        found.add(numbers[17], [0])
    assert found.check(b"".join(event(20, number=number) for number in numbers), 10, 30).n_events == len(numbers)


@pytest.mark.stress
def test_nothing_is_read_beyond_a_packet(tmp_path: Path) -> None:
    fuzz(Path(__file__).with_name("fuzz_packet.c"), RUNS, tmp_path, "-max_len=600")
