"""CTF 1.8 metadata of traces, by which babeltrace2, Trace Compass and other viewers read the packets.

The library writes `.events` in each process's directory of a trace: a line about the process, then the declarations of
its events, each before the first event of that kind. The process can write anything there, so only well-formed text is
used. metadata() adds the part that is common to all: types, clock, and the headers of packets and events.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol
from uuid import UUID, uuid4, uuid5

from relayfs_fuse.native.clock import offset_of
from relayfs_fuse.native.constants import VERSION
from relayfs_fuse.native.events import DEPTH_MAX, FIELD_TYPES, NAME_MAX, FieldType, field_form
from relayfs_fuse.native.tables import CLOCKS

NS = 1_000_000_000

_LINE = re.compile(rb"/\* relayfs ((?:[a-z_]+=[^\s*]*(?: |(?= \*/)))+) \*/\n")
# Numbers in the first line of .events: fields of Origin by word.
_NUMBERS = {name: name for name in ("id", "pid", "vpid", "uid", "mono", "real", "made_mono")} | {"tsc": "ticks"}
_UUID = re.compile(rb'(\tbyte_order = le;\n\tuuid = ")([0-9a-f-]{36})(";\n)')
# re.compile() has these compiled when the first declaration is read, as most commands read none: it is a tenth of their
# time.
_EVENT = (
    rb"event \{\n\tname = \"(?P<name>[\w.]{1,255}:\w{1,255})\";\n\tid = (?P<id>0|[1-9]\d{0,18});\n\tstream_id = 0;\n"
    rb"(?:\tloglevel = (?P<level>\d|1[0-4]);\n)?(?:\tmodel\.emf\.uri = \"(?P<place>[ !#-\[\]-~]{1,300})\";\n)?"
    rb"\tfields := struct \{\n(?P<fields>(?:\t\t[^\n]*[;{]\n)*)\t\};\n\};\n"
)


# What a line about a field begins with, which may be in structs.
_INDENT = rf"\t{{2,{2 + DEPTH_MAX}}}"


def _field_pattern(name: str, kind: FieldType) -> str:
    """Return what matches the declarations of a type's fields, on one line or more, with a group of the type's name."""
    first, *others = re.escape(kind.tsdl).split(re.escape("$"))
    pattern = first + rf"(?P<{name}>\w{{1,255}})" + f"(?P={name})".join(others)
    return pattern.replace(re.escape("\n\t\t"), rf"(?: |\n{_INDENT})")


# The longest first: a declaration of bytes begins like one of u32.
_FIELDS = sorted(FIELD_TYPES.items(), key=lambda row: len(row[1].tsdl), reverse=True)
_FIELD = f"{_INDENT}(?:{'|'.join(_field_pattern(*row) for row in _FIELDS)})\n".encode()
# Types of numbers, by their names in TSDL; arrays, sequences, enums of them. A sequence of xint8_t is the type bytes.
_NUMBERS_IN_TSDL = {kind.tsdl.split(" ")[0]: word for word, kind in FIELD_TYPES.items() if kind.bytes}
_NUMBER = "|".join(_NUMBERS_IN_TSDL)
_LABELS = r"\"\w{1,127}\" = -?\d{1,20}(?:, \"\w{1,127}\" = -?\d{1,20}){0,255}"
_SEVERAL = (
    rf"{_INDENT}(?:"
    rf"(?P<array>{_NUMBER}) _(?P<a>\w{{1,255}})\[(?P<count>\d{{1,5}})\]"
    rf"|uint32_t __(?P<s>\w{{1,255}})_length;(?: |\n{_INDENT})(?!xint8_t )"
    rf"(?P<sequence>{_NUMBER}) _(?P=s)\[__(?P=s)_length\]"
    rf"|enum : (?P<enum>{_NUMBER}) \{{ (?P<labels>{_LABELS}) \}} _(?P<e>\w{{1,255}})"
    ");\n".encode()
)
_STRUCT = re.compile(rf"{_INDENT}struct \{{\n".encode())
_STRUCT_END = re.compile(rf"{_INDENT}\}} _(?P<name>\w{{1,{NAME_MAX}}});\n".encode())
_DECLARED_NAME = re.compile(rb"\b_\w+")
# The most fields of an event, and the highest event id in a directory, whose ids begin with 0.
_FIELDS_MAX = 64
ID_MAX = 65534
ID_MASK = 65535
# The longest first line of .events: RELAY_TRACE_LINE_BYTES in native/src/trace/alive.h.
LINE_BYTES = 1024
# The longest .events: a program with more declarations can only want to fill the memory of the process that reads them.
EVENTS_MAX = 4 << 20
EVENT_END = b"\n};\n"
# Numbers of events that a trace's programs lost because they got no buffers: as programs of the store's user and root
# count, and as programs of other users count. Metadata contains them under these names.
Unbuffered = tuple[int, int]
_UNBUFFERED = ("lost_without_buffers", "lost_without_buffers_of_users")
# Numbers of events that were refused, by cause, as the process's buffers say; the same names in metadata.
REFUSED = ("lost_full", "lost_too_large", "lost_disabled")
_NUMBER_MAX = (1 << 63) - 1
_BOOT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_TYPES = "".join(kind.alias for kind in FIELD_TYPES.values())
_PREAMBLE = """\
/* CTF 1.8 */
{line}
{types}
trace {{
	major = 1;
	minor = 8;
	byte_order = le;
	uuid = "{uuid}";
	packet.header := struct {{
		uint32_t magic;
		uint32_t stream_id;
		uint64_t stream_instance_id;
	}};
}};

env {{
{env}}};

clock {{
	name = relayfs_{clock};
	uuid = "{boot}";
	description = "{description}";
	freq = {freq};
	offset_s = {offset_s};
	offset = {offset};
}};

typealias integer {{ size = 64; align = 8; signed = false; map = clock.relayfs_{clock}.value; }} := relayfs_time_t;
typealias integer {{ size = 48; align = 8; signed = false; map = clock.relayfs_{clock}.value; }} := relayfs_time48_t;

stream {{
	id = 0;
	packet.context := struct {{
		uint64_t packet_size;
		uint64_t events_discarded;
		uint64_t packet_seq_num;
		relayfs_time_t timestamp_end;
		relayfs_time_t timestamp_begin;
		uint64_t content_size;
		uint32_t cpu_id;
		uint32_t pid;
	}};
	event.header := struct {{
		enum : uint16_t {{ compact = 0 ... 65534, extended = 65535 }} id;
		variant <id> {{
			struct {{
				relayfs_time48_t timestamp;
			}} compact;
			struct {{
				uint16_t id;
				relayfs_time_t timestamp;
			}} extended;
		}} v;
	}};
{context}}};
"""
_CONTEXT = "\tevent.context := struct {{\n{numbers}\t}};\n"


class Clocks(Protocol):
    """The clocks at one moment; see struct relay_clocks."""

    @property
    def ticks(self) -> int:
        """The time by the trace's clock."""

    @property
    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC."""


@dataclass(frozen=True)
class Origin:
    """The first line of `.events`: which process wrote the events, and the trace's properties.

    line: the line itself, without its end
    pid, vpid: the process, in the server's PID namespace, and in its own
    made_mono: CLOCK_MONOTONIC when the directory was made, ns
    ticks, mono, real: the trace's clock, CLOCK_MONOTONIC and CLOCK_REALTIME when the trace was made
    """

    line: str
    trace: str
    id: int
    process: str
    pid: int
    vpid: int
    uid: int
    buffers: str
    clock: str
    ticks: int
    mono: int
    real: int
    boot: str
    made_mono: int

    @classmethod
    def of(cls, events: bytes) -> Origin:
        """Parse the line; ValueError: it is not what the library writes."""
        found = _LINE.match(events)
        if not found:
            raise ValueError("no line about a process")
        words = dict(word.split("=", 1) for word in found[1].decode("ascii").split(" ") if word)
        try:
            texts = {name: words[name] for name in ("trace", "process", "buffers", "clock", "boot")}
            words.setdefault("vpid", words["pid"])  # as it was written by earlier versions
            numbers = {field: int(words[word]) for word, field in _NUMBERS.items()}
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from error
        if texts["clock"] not in CLOCKS or not _BOOT.fullmatch(texts["boot"]):
            raise ValueError("no such clock")
        short = {"pid", "vpid", "uid"}
        if any(not 0 <= number < 1 << (32 if name in short else 64) for name, number in numbers.items()):
            raise ValueError("a number is out of range")
        line = found[0].decode("ascii").removesuffix("\n")
        if not line.isprintable() or '"' in line or "\\" in line:
            raise ValueError("a name cannot be quoted")
        return cls(line, **texts, **numbers)  # type: ignore[arg-type]  # the two hold each its kind

    @property
    def is_measured(self) -> bool:
        """Whether the frequency of its clock is not known, but measured; otherwise timestamps are ns."""
        return not CLOCKS[self.clock].freq

    def ticks_at(self, clocks: Clocks) -> int:
        """Return the time by its clock, which may be CLOCK_MONOTONIC whatever the trace's is."""
        return clocks.mono_ns if self.clock == "mono" else clocks.ticks

    @property
    def uuid(self) -> str:
        """UUID of the directory: always the same, and different for each directory."""
        return str(uuid5(UUID(self.boot), self.line))

    @property
    def context(self) -> tuple[str, ...]:
        """Names of the numbers, of 4 bytes each, between each event's header and its fields.

        They are the process and the thread, numbered in their own PID namespace and named as by LTTng, because Trace
        Compass looks for these names. If only one process writes, the environment has its number.
        """
        return ("vtid",) if self.buffers == "perprocess" else ("vpid", "vtid")

    def time_at(self, mono_ns: int, clocks: Clocks) -> int:
        """Return the time by its clock at a time by CLOCK_MONOTONIC; 0, if it was before the clock's zero."""
        freq = CLOCKS[self.clock].freq or _measured(self, clocks)
        return max(0, self.made + (mono_ns - self.mono) * freq // NS)

    @property
    def made(self) -> int:
        """Time at which the trace was made, by its clock."""
        return self.mono if self.clock == "mono" else self.ticks


def boot_id() -> str:
    """Return the id of this boot: clocks of different boots cannot be compared."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def metadata(events: bytes, clocks: Clocks, unbuffered: Unbuffered = (0, 0)) -> bytes:
    """Return the metadata of a process's directory; ValueError: `events` is not well formed.

    events: the contents of its `.events`
    unbuffered: the events that the trace's programs lost because they got no buffers
    clocks: the latest known of the boot in which it ran; the longer after the trace was made, the more exact is the
        frequency of the time stamp counter
    """
    texts = b"".join(declaration.text for declaration in declarations(events))
    return preamble(Origin.of(events), clocks, unbuffered) + texts


def preamble(
    origin: Origin,
    clocks: Clocks,
    unbuffered: Unbuffered,
    refused: Mapping[str, int] = MappingProxyType({}),
    told: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> bytes:
    """Return the metadata before the declarations.

    refused: of REFUSED; what is missing is unknown
    told: further texts for the environment, numbered by their names, such as `loss`: loss_0 = "..."
    """
    env = _environment(origin, os.uname().nodename, unbuffered, refused)
    env += "".join(f'\t{name}_{i} = "{text}";\n' for name, texts in told.items() for i, text in enumerate(texts))
    clock = _ClockText(origin.clock, origin.boot, CLOCKS[origin.clock].description, *_conversion(origin, clocks))
    return _filled(origin, env, clock, origin.context)


def preamble_of_machine(origin: Origin, hostname: str, context: Sequence[str]) -> bytes:
    """Return the metadata before the declarations, of a process of one of several machines.

    context: as Part.context. Its timestamps are ns since 1970. Readers take clocks of one UUID for one, as those of
    several machines are here.
    """
    clock = _ClockText("real", str(UUID(int=0)), "CLOCK_REALTIME of several machines", NS, 0, 0)
    return _filled(origin, _environment(origin, hostname, (0, 0), {}), clock, context)


class _ClockText(NamedTuple):
    """What metadata says of the clock; boot: its UUID."""

    clock: str
    boot: str
    description: str
    freq: int
    offset_s: int
    offset: int


def _filled(origin: Origin, env: str, clock: _ClockText, context: Sequence[str]) -> bytes:
    numbers = "".join(f"\t\tint32_t _{name};\n" for name in context)
    return _PREAMBLE.format(
        line=origin.line, uuid=origin.uuid, types=_TYPES, env=env, **clock._asdict(),
        context=_CONTEXT.format(numbers=numbers) if numbers else "",
    ).encode()  # fmt: skip


def new_uuid() -> str:
    """Return a new UUID for a copy of packets: readers join streams of one UUID, and then count lost events wrongly."""
    return str(uuid4())


def with_uuid(metadata: bytes, uuid: str) -> bytes:
    """Return metadata with another UUID."""
    return _UUID.sub(b"\\g<1>%s\\g<3>" % uuid.encode(), metadata, count=1)


def uuid_of(metadata: bytes) -> str:
    """Return the UUID that metadata has; a new one, if it has none."""
    found = _UUID.search(metadata)
    return found[2].decode("ascii") if found else new_uuid()


@dataclass(frozen=True)
class Declaration:
    """The declaration of an event in `.events`.

    name: PROVIDER:NAME
    fields: name and type of each field, in order, the types named as for events.field_form(); the field x of a struct
        at has the name at.x
    level: LTTng's number; None: it has none
    place: FILE:LINE where the event is declared; empty: unknown
    """

    id: int
    text: bytes
    name: str
    fields: tuple[tuple[str, str], ...]
    level: int | None = None
    place: str = ""

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the fields."""
        return tuple(word for _, word in self.fields)

    def with_id(self, number: int) -> Declaration:
        """Return the declaration with another id."""
        text = self.text.replace(b"\tid = %d;" % self.id, b"\tid = %d;" % number, 1)
        return replace(self, id=number, text=text)


def declarations(events: bytes) -> list[Declaration]:
    """Return the complete and well-formed declarations, the first of each id."""
    found: dict[int, Declaration] = {}
    for declaration in declarations_from(events, events.find(b"\n") + 1)[0]:
        found.setdefault(declaration.id, declaration)
    return list(found.values())


def declarations_from(events: bytes, at: int) -> tuple[list[Declaration], int]:
    """Return the complete and well-formed declarations from `at` on, and where to continue later."""
    found = []
    while (end := events.find(EVENT_END, at)) >= 0:
        # A declaration that was begun and not completed does not affect the next one.
        start = events.rfind(b"event {\n", at, end)
        at = end + len(EVENT_END)
        declaration = _declaration(events[start:at]) if start >= 0 else None
        if declaration:
            found.append(declaration)
    return found, at


def _declaration(block: bytes) -> Declaration | None:
    event = re.compile(_EVENT).fullmatch(block)
    fields = _fields(event["fields"]) if event else None
    if not event or fields is None or int(event["id"]) > ID_MAX:
        return None
    level = int(event["level"]) if event["level"] else None
    place = (event["place"] or b"").decode("ascii")
    return Declaration(int(event["id"]), block, event["name"].decode("ascii"), fields, level, place)


# Names and types of fields, the names that their declaration takes, and where that ends.
_Found = tuple[list[tuple[str, str]], set[bytes], int]


def _fields(text: bytes) -> tuple[tuple[str, str], ...] | None:
    """Return names and types of fields; None: the text is not what the library writes."""
    found = _all(text, 0, 0)
    return tuple(found[0]) if found and found[1] == len(text) else None


def _all(text: bytes, at: int, depth: int) -> tuple[list[tuple[str, str]], int] | None:
    """Return the fields from `at` on, in so many structs, and where these or the text end; None: as _fields()."""
    fields: list[tuple[str, str]] = []
    names: set[bytes] = set()
    while at < len(text) and not _STRUCT_END.match(text, at):
        found = _struct(text, at, depth) or _several(text, at) or _single(text, at)
        if not found or len(fields) + len(found[0]) > _FIELDS_MAX or found[1] & names:
            return None
        fields += found[0]
        names |= found[1]
        at = found[2]
    return fields, at


def _struct(text: bytes, at: int, depth: int) -> _Found | None:
    """Find a struct in so many others; None: there is none, or it is not well formed."""
    begun = _STRUCT.match(text, at) if depth < DEPTH_MAX else None
    inside = _all(text, begun.end(), depth + 1) if begun else None
    ended = _STRUCT_END.match(text, inside[1]) if inside and inside[0] else None
    if not inside or not ended:
        return None
    name = ended["name"].decode("ascii")
    fields = [(f"{name}.{member}", word) for member, word in inside[0]]
    if max(len(member) for member, _ in fields) > NAME_MAX:
        return None
    return fields, {b"_" + ended["name"]}, ended.end()


def _single(text: bytes, at: int) -> _Found | None:
    field = re.compile(_FIELD).match(text, at)
    if not field or not field.lastgroup:
        return None
    name = field[field.lastgroup].decode("ascii")
    return [(name, field.lastgroup)], set(_DECLARED_NAME.findall(field[0])), field.end()


def _several(text: bytes, at: int) -> _Found | None:
    """Find an array, a sequence or an enum; None: there is none, or it is not well formed."""
    found = re.compile(_SEVERAL).match(text, at)
    if not found:
        return None
    name = found["a"] or found["s"] or found["e"]
    word = _NUMBERS_IN_TSDL[(found["array"] or found["sequence"] or found["enum"]).decode("ascii")]
    if found["enum"]:
        word += "{" + found["labels"].decode("ascii").replace('"', "").replace(" ", "") + "}"
    else:
        word += f"[{(found['count'] or b'').decode('ascii')}]"
    try:
        field_form(word)
    except ValueError:
        return None
    names = {b"_" + name, *({b"__%s_length" % name} if found["sequence"] else ())}
    return [(name.decode("ascii"), word)], names, found.end()


def _conversion(origin: Origin, clocks: Clocks) -> tuple[int, int, int]:
    """Return how to convert timestamps to times since 1970: frequency, offset in seconds, offset in ticks.

    A clock whose frequency is measured is assumed to have run evenly since the trace was made. At that moment all
    clocks are converted to the same time, so events of traces with any of them are sorted correctly.
    """
    freq = CLOCKS[origin.clock].freq or _measured(origin, clocks)
    return (freq, *offset_of(freq, origin.real, origin.made))


def _measured(origin: Origin, clocks: Clocks) -> int:
    ticks, ns = clocks.ticks - origin.ticks, clocks.mono_ns - origin.mono
    if ticks <= 0 or ns <= 0:
        # No later clocks are known; on most machines the counter started with the monotonic clock.
        ticks, ns = origin.ticks, origin.mono
    return max(1, round(ticks * NS / ns)) if ns > 0 else NS


def last_time(origin: Origin, clocks: Clocks) -> int:
    """Return the last time that readers can show: they count ns since 1970 in signed 64-bit numbers."""
    freq, offset_s, _ = _conversion(origin, clocks)
    return ((1 << 63) // NS - offset_s - 1) * freq


def _environment(origin: Origin, hostname: str, unbuffered: Unbuffered, refused: Mapping[str, int]) -> str:
    words: dict[str, str | int] = {
        "domain": "ust",
        "tracer_name": "relayfs",
        **dict(zip(("tracer_major", "tracer_minor", "tracer_patch"), map(int, VERSION.split(".")), strict=True)),
        "hostname": re.sub(r'["\\\n]', "_", hostname),
        "trace_name": origin.trace,
        "procname": origin.process,
        **({"vpid": origin.vpid, "pid": origin.pid} if origin.buffers == "perprocess" else {}),
        **{name: min(lost, _NUMBER_MAX) for name, lost in zip(_UNBUFFERED, unbuffered, strict=True) if lost},
        **{name: min(lost, _NUMBER_MAX) for name, lost in refused.items() if lost},
    }
    return "".join(f"\t{name} = {_literal(value)};\n" for name, value in words.items())


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'
