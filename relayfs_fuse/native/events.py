"""Events of this process, and the channel `log`; see <relayfs/trace_event.h>."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from relayfs_fuse._native import ffi, lib
from relayfs_fuse.native import library
from relayfs_fuse.native.tables import rows, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    alias: how TSDL declares the type; empty: it has it
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

# The levels, in the order of enum relay_trace_level.
LEVELS = (
    "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug_system", "debug_program", "debug_process",
    "debug_module", "debug_unit", "debug_function", "debug_line", "debug",
)  # fmt: skip

# Bytes before the fields in a record, and the most bytes of a record.
HEAD_BYTES: int = ffi.sizeof("struct relay_trace_record")
EVENT_MAX: int = lib.RELAY_TRACE_EVENT_MAX


class EventHandle:
    """Declare an event, for as long as this process lives.

    fields: numbers of FIELD_TYPES by name; OSError EINVAL: a name is not allowed, or there are too many
        fields
    level: index of LEVELS; None: it has none
    place: file and line where it is declared
    """

    def __init__(
        self, provider: str, name: str, fields: Mapping[str, int], level: int | None, place: tuple[str, int]
    ) -> None:
        texts = [ffi.new("char[]", os.fsencode(text)) for text in (provider, name, place[0], *fields)]
        c_fields = ffi.new("struct relay_trace_field[]", list(zip(texts[3:], fields.values(), strict=True)))
        event = ffi.new("struct relay_trace_event *")
        event.provider, event.name, event.file = texts[:3]
        event.fields, event.n_fields = c_fields, len(fields)
        event.level, event.has_place, event.line = 0 if level is None else level + 1, 1, place[1]
        self._event: Any = library.not_null(lib.relay_trace_declare_event(event), f"{provider}:{name}")

    def is_wanted(self) -> bool:
        """Return whether a trace wants the event."""
        return bool(lib.relay_trace_wants(self._event))

    def emit(self, record: bytearray) -> None:
        """Write the event to each trace that wants it.

        record: HEAD_BYTES for the library, then the fields; a record of more than EVENT_MAX bytes is counted as lost
        """
        fits = len(record) <= EVENT_MAX
        c_record = ffi.from_buffer("struct relay_trace_record *", record) if fits else ffi.NULL
        lib.relay_trace_emit(self._event, c_record, len(record))


def prepare() -> None:
    """Make this process's buffers in all traces that want one of its events."""
    lib.relay_trace_prepare()


def log_text(text: bytes) -> bool:
    """Write a line to the channel `log`; return whether the channel exists."""
    return bool(library.check(lib.relay_log_text(text, len(text))))


def log_is_heard() -> bool:
    """Return whether the channel `log` exists."""
    return bool(lib.relay_log_is_heard())
