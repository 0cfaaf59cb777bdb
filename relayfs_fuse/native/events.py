"""Events of this process, and the channel `log`; see <relayfs/trace_event.h>."""

from __future__ import annotations

import os
import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.tables import rows, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class FieldKind(IntEnum):
    """How fields are stored and shown; see enum relay_field_kind."""

    UNSIGNED = lib.RELAY_FIELD_UNSIGNED
    SIGNED = lib.RELAY_FIELD_SIGNED
    HEX = lib.RELAY_FIELD_HEX
    REAL = lib.RELAY_FIELD_REAL
    STRING = lib.RELAY_FIELD_STRING
    BYTES = lib.RELAY_FIELD_BYTES


class FieldType(NamedTuple):
    """A type of fields; see struct relay_field_type.

    number: of enum relay_trace_type
    bytes: of a field; 0: their number varies
    alias: the TSDL that declares the type; empty: the type is a part of TSDL
    tsdl: the declaration of a field, with $ for its name
    """

    number: int
    kind: FieldKind
    bytes: int
    alias: str
    tsdl: str


# By name, in the order of enum relay_trace_type.
FIELD_TYPES = {
    text_of(row.name): FieldType(number, FieldKind(row.kind), row.bytes, text_of(row.alias), text_of(row.tsdl))
    for number, row in rows(lib.relay_field_type_at)
}

_FORM = re.compile(
    r"(?P<base>[a-z]+\d*)(?:\[(?P<count>\d{0,5})\]|\{(?P<labels>\w{1,127}=-?\d{1,20}(?:,\w{1,127}=-?\d{1,20})*)\})?",
    re.ASCII,
)
_COUNT_MAX = 65535
# The most bytes of a field's name, with those of the structs that it is in and dots, and the most such structs.
NAME_MAX = 127
FIELDS_MAX = 64
DEPTH_MAX: int = lib.RELAY_TRACE_DEPTH_MAX
_LABELS_MAX = 256


class FieldForm(NamedTuple):
    """The parsed type of a field.

    base: its type; of an array, a sequence or an enum: that of its numbers
    length: how many numbers an array has; 0: it is no array
    labels: of an enum, with their values; empty: it is no enum
    """

    base: FieldType
    length: int = 0
    is_sequence: bool = False
    labels: tuple[tuple[str, int], ...] = ()

    @property
    def number(self) -> int:
        """The type as struct relay_trace_field has it."""
        number: int = self.length << lib.RELAY_TRACE_COUNT_SHIFT | self.base.number
        if self.is_sequence:
            number |= lib.RELAY_TRACE_IS_SEQUENCE
        return number | lib.RELAY_TRACE_IS_ENUM if self.labels else number


def field_form(word: str) -> FieldForm:
    """Parse the type of a field, such as u32, u32[4], u32[] or u8{LABEL=NUMBER,...}; ValueError: it is not valid."""
    base = FIELD_TYPES.get(word)
    if base:
        return FieldForm(base)
    found = _FORM.fullmatch(word)
    base = FIELD_TYPES.get(found["base"]) if found else None
    if not found or not base or not base.bytes:
        raise ValueError(
            f"type {word!r:.200} is not one of {', '.join(FIELD_TYPES)}, or of the numbers among them with [N], [] or "
            "{LABEL=NUMBER,...} behind it"
        )
    if found["labels"]:
        return FieldForm(base, labels=_labels(found["labels"], base))
    count = int(found["count"] or 0)
    if found["count"] and not 0 < count <= _COUNT_MAX:
        raise ValueError(f"an array has 1 to {_COUNT_MAX} numbers, not {count}")
    return FieldForm(base, count, is_sequence=not found["count"])


def _labels(text: str, base: FieldType) -> tuple[tuple[str, int], ...]:
    labels = [(name, int(value)) for name, _, value in (one.partition("=") for one in text.split(","))]
    bits = 8 * base.bytes
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if base.kind == FieldKind.SIGNED else (0, (1 << bits) - 1)
    if base.kind == FieldKind.REAL:
        raise ValueError("the values of an enum are integers")
    if len(labels) > _LABELS_MAX:
        raise ValueError(f"an enum has at most {_LABELS_MAX} labels, not {len(labels)}")
    names = [name for name, _ in labels]
    for index, (name, value) in enumerate(labels):
        if name in names[:index]:
            raise ValueError(f"an enum has two labels {name}")
        if not least <= value <= most:
            raise ValueError(f"{name}={value} is not from {least} to {most}")
    return tuple(labels)


# The levels, in the order of enum relay_trace_level.
LEVELS = (
    "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug_system", "debug_program", "debug_process",
    "debug_module", "debug_unit", "debug_function", "debug_line", "debug",
)  # fmt: skip

# Bytes before the fields in a record, and the most bytes of a record.
HEAD_BYTES: int = ffi.sizeof("struct relay_trace_record")
EVENT_MAX: int = lib.RELAY_TRACE_EVENT_MAX


def new_event(provider: str, name: str, fields: Sequence[tuple[str, FieldForm]]) -> tuple[Any, list[Any]]:
    """Return a struct relay_trace_event, without level and place, and the objects that must live as long as it.

    fields: those of a struct at have the names at.x, at.y
    """
    texts = [ffi.new("char[]", os.fsencode(text)) for text in (provider, name, *(field for field, _ in fields))]
    numbers = [form.number for _, form in fields]
    c_fields = ffi.new("struct relay_trace_field[]", list(zip(texts[2:], numbers, strict=True)))
    kept: list[Any] = [*texts, c_fields]
    enums = []
    for text, (_, form) in zip(texts[2:], fields, strict=True):
        if form.labels:
            names = [ffi.new("char[]", label.encode()) for label, _ in form.labels]
            # Values of a u64 are passed as the int64_t with the same bits.
            values = [(value + (1 << 63)) % (1 << 64) - (1 << 63) for _, value in form.labels]
            labels = ffi.new("struct relay_trace_label[]", list(zip(names, values, strict=True)))
            enums.append((text, labels, len(names)))
            kept += [*names, labels]
    event = ffi.new("struct relay_trace_event *")
    event.provider, event.name = texts[:2]
    event.fields, event.n_fields = c_fields, len(fields)
    event.has_place = 2
    if enums:
        c_enums = ffi.new("struct relay_trace_enum[]", enums)
        event.enums, event.n_enums = c_enums, len(enums)
        kept.append(c_enums)
    return event, kept


# The functions themselves. Of an event's pointer: whether a trace wants it. Of that, bytes and their number: write them
# to each trace that wants it. The bytes begin with HEAD_BYTES into which the library writes: nobody else may have them.
relay_trace_wants = lib.relay_trace_wants
relay_trace_emit = lib.relay_trace_emit_packed


class EventHandle:
    """Declare an event, for as long as this process lives.

    OSError EINVAL: a name is not allowed, or there are too many fields, or too many and too long labels

    level: index of LEVELS; None: it has none
    place: file and line where it is declared
    """

    def __init__(
        self,
        provider: str,
        name: str,
        fields: Sequence[tuple[str, FieldForm]],
        level: int | None,
        place: tuple[str, int],
    ) -> None:
        event, kept = new_event(provider, name, fields)
        file = ffi.new("char[]", os.fsencode(place[0]))
        event.level, event.file, event.line = 0 if level is None else level + 1, file, place[1]
        self._event: Any = library.not_null(lib.relay_trace_declare_event(event), f"{provider}:{name}")
        del kept  # the library has copied it

    def is_wanted(self) -> bool:
        """Return whether a trace wants the event."""
        return bool(relay_trace_wants(self._event))

    @property
    def pointer(self) -> Any:
        """The library's struct."""
        return self._event

    def set_state(self, record: bytearray) -> None:
        """Emit the event, and keep the record as the last value for its key; see relay_trace_set_state().

        Call it whether or not the event is wanted.

        record: HEAD_BYTES for the library, then the fields; one of more than EVENT_MAX bytes is counted as lost
        """
        fits = len(record) <= EVENT_MAX
        c_record = ffi.from_buffer("struct relay_trace_record *", record) if fits else ffi.NULL
        lib.relay_trace_set_state(self._event, c_record, len(record))

    def clear_state(self, record: bytearray) -> None:
        """Keep no value any more for the key in a record, which needs no other fields."""
        c_record = ffi.from_buffer("struct relay_trace_record *", record)
        lib.relay_trace_clear_state(self._event, c_record, len(record))


def prepare() -> None:
    """Make this process's buffers in all traces that want one of its events."""
    lib.relay_trace_prepare()


def end() -> None:
    """Note that this process is about to end in order, by os._exit(), so that it leaves no crash card."""
    lib.relay_trace_end()


def log_text(text: bytes) -> bool:
    """Write a line to the channel `log`; return whether the channel exists."""
    return bool(library.check(lib.relay_log_text(text, len(text))))


def log_is_heard() -> bool:
    """Return whether the channel `log` exists."""
    return bool(lib.relay_log_is_heard())
