"""Trace this program: declare and emit events, and write log messages to traces or to the channel `log`.

request = Event("server", "request", {"id": "u32", "path": "string", "ms": "f64"})

request(7, "/index.html", 1.25)            # or request(7, path="/index.html", ms=1.25)
if request.wanted:                         # if the arguments are expensive
    request(*details())
with span("load"):                         # shown as a slice by `relayctl export --perfetto`
    ...
state("workers", 4)                        # stands at the front of each snapshot, recording and crash card

Events are written to the traces of the mount that want them (`echo 'trace create t' >MNT/control`); relayfs-trace(3)
describes how the mount is found. While no trace wants an event, a call only checks this.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import struct
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

from relayfs_fuse.native.events import (
    DEPTH_MAX,
    FIELDS_MAX,
    HEAD_BYTES,
    LEVELS,
    NAME_MAX,
    EventHandle,
    FieldForm,
    FieldKind,
    end,
    field_form,
    log_is_heard,
    log_text,
    prepare,
    relay_trace_emit,
    relay_trace_wants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from enum import IntEnum

    Fields = Mapping[str, "str | type[IntEnum] | Fields"]
    Packer = Callable[[object], bytes]

__all__ = [
    "Event",
    "LogHandler",
    "Span",
    "State",
    "TraceHandler",
    "counter",
    "end",
    "log",
    "log_is_heard",
    "prepare",
    "span",
    "state",
]

_LENGTH = struct.Struct("<I")


def _pack_string(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"it is to be a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError("a null character ends a string; use bytes")
    # Surrogates, as in names of files that are not UTF-8, become text such as \udc80.
    return value.encode("utf-8", "backslashreplace") + b"\0"


def _pack_bytes(value: object) -> bytes:
    data = bytes(memoryview(value))  # type: ignore[arg-type]  # TypeError: it is none
    return _LENGTH.pack(len(data)) + data


# Letters of `struct`, for 1, 2, 4 and 8 bytes.
_LETTERS = {FieldKind.UNSIGNED: "BHIQ", FieldKind.SIGNED: "bhiq", FieldKind.HEX: "BHIQ", FieldKind.REAL: " efd"}
_OF_VARYING_LENGTH = {FieldKind.STRING: _pack_string, FieldKind.BYTES: _pack_bytes}


def _packer(form: FieldForm) -> Packer:
    base = form.base
    if not base.bytes:
        return _OF_VARYING_LENGTH[base.kind]
    if form.length or form.is_sequence:
        return partial(_pack_numbers, _letter(form), form.length)
    return struct.Struct(f"<{_letter(form)}").pack


def _letter(form: FieldForm) -> str:
    return _LETTERS[form.base.kind][form.base.bytes.bit_length() - 1]


def _pack_numbers(letter: str, length: int, value: object) -> bytes:
    numbers: tuple[object, ...] = tuple(value)  # type: ignore[arg-type]  # TypeError: it has no numbers
    if length and len(numbers) != length:
        raise ValueError(f"it is to have {length} numbers, not {len(numbers)}")
    try:
        packed = struct.pack(f"<{len(numbers)}{letter}", *numbers)
    except struct.error as error:
        raise ValueError(str(error)) from None
    return packed if length else _LENGTH.pack(len(numbers)) + packed


def _pack_struct(members: tuple[tuple[str, Packer], ...], value: object) -> bytes:
    """Pack the members' values, which are in a mapping, or in their order."""
    names = [name for name, _ in members]
    values: Mapping[object, object] | tuple[object, ...]
    try:
        values = value if isinstance(value, Mapping) else tuple(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"it is to have {', '.join(names)}") from None
    if len(values) != len(names) or (isinstance(values, Mapping) and values.keys() != set(names)):
        raise ValueError(f"it is to have {', '.join(names)}")
    record = bytearray()
    for index, (name, pack) in enumerate(members):
        try:
            record += pack(values[name] if isinstance(values, Mapping) else values[index])
        except (struct.error, ValueError, OverflowError) as error:
            raise ValueError(f"{name}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    return bytes(record)


def _record_packer(forms: list[tuple[str, FieldForm]], names: tuple[str, ...]) -> Callable[..., bytes] | None:
    """Compile a function that packs the values of all fields into a record: a call for each run of numbers.

    None: one of the fields has several numbers, or is a struct
    """
    if tuple(path for path, _ in forms) != names or any(form.length or form.is_sequence for _, form in forms):
        return None
    runs: list[tuple[str, list[int]]] = [(f"<{HEAD_BYTES}x", [])]
    calls: dict[str, Callable[..., bytes]] = {}
    for index, (_, form) in enumerate(forms):
        if form.base.bytes:
            if runs[-1][0] == "":
                runs.append(("<", []))
            runs[-1] = (runs[-1][0] + _letter(form), [*runs[-1][1], index])
        else:
            runs.append(("", [index]))
            calls[f"p{len(runs) - 1}"] = _OF_VARYING_LENGTH[form.base.kind]
    for number, (letters, _) in enumerate(runs):
        if letters:
            calls[f"p{number}"] = struct.Struct(letters).pack
    if len(runs) == 1:
        return calls["p0"]
    values = ", ".join(f"v{index}" for index in range(len(forms)))
    parts = (f"p{number}({', '.join(f'v{index}' for index in run)})" for number, (_, run) in enumerate(runs))
    packer: Callable[..., bytes] = eval(f"lambda {values}: {' + '.join(parts)}", calls)  # noqa: S307  # of letters, p1, v1
    return packer


def _compiled(fields: Fields, before: str = "") -> tuple[list[tuple[str, FieldForm]], tuple[tuple[str, Packer], ...]]:
    """Return all fields as the library has them, of structs one by one, and what packs each of `fields`.

    before: names of the structs that they are in, with a dot behind each
    """
    forms: list[tuple[str, FieldForm]] = []
    packers: list[tuple[str, Packer]] = []
    for name, kind in fields.items():
        path = before + name
        if "." in name:
            raise ValueError(f"{path}: the name of a field has letters, digits and _")
        if isinstance(kind, Mapping):
            _check_struct(path, kind)
            inside, members = _compiled(kind, f"{path}.")
            forms += inside
            packers.append((name, partial(_pack_struct, members)))
        else:
            form = _form_of(path, kind)
            forms.append((path, form))
            packers.append((name, _packer(form)))
    return forms, tuple(packers)


def _check_struct(path: str, members: Fields) -> None:
    if not members:
        raise ValueError(f"{path}: a struct has at least one field")
    if path.count(".") >= DEPTH_MAX:
        raise ValueError(f"{path}: a field is in at most {DEPTH_MAX} structs")
    longest = max((f"{path}.{name}" for name in members), key=len)
    if len(longest) > NAME_MAX:
        raise ValueError(f"{longest}: names with those of the structs that they are in have at most {NAME_MAX} bytes")


def _form_of(field: str, kind: str | type[IntEnum]) -> FieldForm:
    if not isinstance(kind, str) and not hasattr(kind, "__members__"):
        raise ValueError(f"{field}: type {kind!r} is not a string, an IntEnum, or a mapping, for a struct")
    try:
        return field_form(kind if isinstance(kind, str) else _enum_word(kind))
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _enum_word(kind: type[IntEnum]) -> str:
    labels = {name: int(member) for name, member in kind.__members__.items()}
    least, most = min(labels.values(), default=0), max(labels.values(), default=0)
    base = "i32" if least >= -(1 << 31) and most < 1 << 31 else "i64" if most < 1 << 63 else "u64"
    return f"{base}{{{','.join(f'{name}={value}' for name, value in labels.items())}}}"


_LOG_FIELDS = {
    "level": "string", "logger": "string", "message": "string",
    "file": "string", "line": "u32", "function": "string", "thread": "string",
}  # fmt: skip


_NAMES = {"provider": r"[\w.]+", "name": r"\w+", "field": r"\w+(\.\w+)*"}


def _why_refused(provider: str, name: str, forms: list[tuple[str, FieldForm]]) -> str:
    """Say what the library refuses of an event."""
    if len(forms) > FIELDS_MAX:
        return f"it has {len(forms)} fields, and an event has at most {FIELDS_MAX}"
    for what, text in (("provider", provider), ("name", name), *(("field", path) for path, _ in forms)):
        if len(text) > NAME_MAX or not re.fullmatch(_NAMES[what], text, re.ASCII):
            dots = ", in a provider dots, too" if what == "provider" else ""
            return f"{what} {text!r:.200}: a name has 1 to {NAME_MAX} letters, digits and _{dots}"
    return "its names, and labels of enums, are too long together"


def _place() -> tuple[str, int]:
    """Return the file and the line from which this module was called."""
    frame = sys._getframe()
    while frame.f_globals is globals() and frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Event:
    """Declare an event; a call of the object emits it.

    provider, name: letters, digits and _; in provider dots, too
    fields: types by name, those of relayfs-trace(3), such as u32, i64, x16 (shown in hexadecimal), f64, string (str)
        and bytes (an object with a buffer); u32[4], u32[] and so on for 4 and for any number of them
        (a list, a tuple ...); an IntEnum, or u8{idle=0,busy=1}, for an integer some of whose values have labels; at
        most 64 fields. A struct is a mapping of its fields' types by name, which may be structs, too, at most 8 deep.
        Its value is a mapping, or the values in order: for {"at": {"x": "i32", "y": "i32"}}, {"x": 1, "y": 2} or (1, 2)
    level: its severity: emerg alert crit err warning notice info debug_system debug_program debug_process
        debug_module debug_unit debug_function debug_line debug; None: it has no level

    Any number of threads may emit. A child of fork() has its own buffers. ValueError: an unknown type or level, or a
    name that is not allowed. If a trace wants the event and a value does not fit its field, emitting raises TypeError
    or ValueError and writes nothing; events that cannot be written are counted in the trace as lost.
    """

    def __init__(self, provider: str, name: str, fields: Fields | None = None, *, level: str | None = None) -> None:
        if level not in (None, *LEVELS):
            raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)}")
        forms, packers = _compiled(fields or {})
        self.name = f"{provider}:{name}"
        self._names = tuple(field for field, _ in packers)
        self._packers = tuple(pack for _, pack in packers)
        try:
            self._handle = EventHandle(provider, name, forms, LEVELS.index(level) if level else None, _place())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ValueError(f"{self.name}: {_why_refused(provider, name, forms)}") from error
        self._pointer = self._handle.pointer
        self._pack = _record_packer(forms, self._names) or self._pack_each

    @property
    def wanted(self) -> bool:
        """Whether a trace wants the event; one with a condition may still leave it out, by the values of its fields."""
        return self._handle.is_wanted()

    def __call__(self, /, *values: object, **named: object) -> None:
        """Emit the event with values of the fields in order, by name, or both."""
        if relay_trace_wants(self._pointer):
            if named:
                values = self._in_order(values, named)
            try:
                record = self._pack(*values)
            except (struct.error, TypeError, ValueError, OverflowError):
                if self._pack != self._pack_each:
                    self._record(self._in_order(values, {}))  # raises the error with the name of the field
                raise
            relay_trace_emit(self._pointer, record, len(record))

    def _pack_each(self, *values: object) -> bytes:
        return bytes(self._record(self._in_order(values, {})))

    def _in_order(self, values: tuple[object, ...], named: dict[str, object]) -> tuple[object, ...]:
        if not named and len(values) == len(self._names):
            return values
        rest = self._names[len(values) :]
        if len(values) > len(self._names) or named.keys() != set(rest):
            raise TypeError(f"{self.name} takes the fields {', '.join(self._names) or 'none'}")
        return (*values, *(named[name] for name in rest))

    def _record(self, values: tuple[object, ...]) -> bytearray:
        """Return a record of the first fields, as many as there are values."""
        record = bytearray(HEAD_BYTES)
        for index, value in enumerate(values):
            try:
                record += self._packers[index](value)
            except (struct.error, TypeError, ValueError, OverflowError) as error:
                raise self._refusal(index, value, error) from None
        return record

    def _refusal(self, index: int, value: object, error: Exception) -> Exception:
        is_range = isinstance(value, (SupportsFloat, SupportsIndex)) and not isinstance(error, TypeError)
        kind = ValueError if is_range or isinstance(error, ValueError) else TypeError
        return kind(f"{self.name}: {self._names[index]}={value!r:.100}: {error}")

    def __repr__(self) -> str:
        return f"<Event {self.name}({', '.join(self._names)})>"


class Span:
    """Declare a span, which viewers of tracks show as a slice; calling the object returns a context manager.

    query = Span("app", "query", {"table": "string"})
    with query("users"):
        ...

    A span begins with the event PROVIDER:NAME, which has the fields that are passed to the call, and ends with
    PROVIDER:NAME_end. By Perfetto's convention both have a field track_event_type. Spans of a thread must be nested, so
    a coroutine must not await anything inside one. Parameters and errors: as Event.
    """

    def __init__(self, provider: str, name: str, fields: Fields | None = None, *, level: str | None = None) -> None:
        self._begin = Event(provider, name, {"track_event_type": "u8", **(fields or {})}, level=level)
        self._end = Event(provider, f"{name}_end", {"track_event_type": "u8"}, level=level)

    @contextmanager
    def __call__(self, /, *values: object, **named: object) -> Iterator[None]:
        """Return a context manager that emits both events; the values of the fields are passed as for an Event."""
        is_wanted = self._begin.wanted
        self._begin(ord("B"), *values, **named)
        try:
            yield
        finally:
            if is_wanted:
                self._end(ord("E"))


class State(Event):
    """Declare an event that tells a state, such as a connection; calling the object sets the state of a key.

    connection = State("server", "connection", {"fd": "u32", "peer": "string"})
    connection(7, "10.0.0.1")
    connection.clear(7)

    The first field is the key. The last value of each key is kept, also of those that were set while there was no
    trace, and stands at the front of each snapshot, recording and crash card. At most 256 keys of all states of a
    process are kept, each with up to 984 bytes of fields; relayfs-trace(3) tells more. Parameters and errors: as Event;
    ValueError also: there is no field. Values are checked always, as they are kept whether or not a trace wants them.
    """

    def __init__(self, provider: str, name: str, fields: Fields, *, level: str | None = None) -> None:
        if not fields:
            raise ValueError(f"{provider}:{name}: a state has at least one field, its key")
        super().__init__(provider, name, fields, level=level)

    def __call__(self, /, *values: object, **named: object) -> None:
        """Set the state of the key, and emit the event, if a trace wants it."""
        self._handle.set_state(self._record(self._in_order(values, named)))

    def clear(self, key: object) -> None:
        """Keep no state of this key any more; emits no event."""
        self._handle.clear_state(self._record((key,)))


@cache
def _named_state() -> State:
    return State("python", "state", {"name": "string", "value": "string"})


def state(name: str, value: object) -> None:
    """Set a state with this name to the text of a value: the event "python:state"; see State."""
    _named_state()(name, str(value))


@cache
def _named_span() -> Span:
    return Span("python", "span", {"slice_name": "string"})


def span(name: str) -> AbstractContextManager[None]:
    """Return a context manager of a span with this name: events "python:span" and "python:span_end"; see Span."""
    return _named_span()(name)


def counter(provider: str, name: str, kind: str = "i64", *, level: str | None = None) -> Event:
    """Declare an event with one number, which viewers of tracks draw over time.

    kind: u8 ... f64, the type of the field, which by Perfetto's convention is named counter_value. ValueError: as Event
    """
    return Event(provider, name, {"counter_value": kind}, level=level)


def log(text: str) -> bool:
    """Write a line of text to the channel `log` of the mount; return whether the channel exists.

    The time and this program's name and PID come before the text, as in the kernel's log. OSError: as Channel.write();
    TypeError: the text is no str.
    """
    if not isinstance(text, str):
        raise TypeError(f"a line of the log is str, not {type(text).__name__}")
    return log_is_heard() and log_text(text.encode("utf-8", "backslashreplace"))


class TraceHandler(logging.Handler):
    """Write log messages to traces, as events "python:log" that contain the place of the call.

    logging.getLogger().addHandler(TraceHandler())
    """

    def __init__(self, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._event = Event("python", "log", _LOG_FIELDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Emit an event with the formatted message, if a trace wants it."""
        if not self._event.wanted:
            return
        try:
            where = record.pathname, record.funcName, record.threadName
            texts = (str(text or "") for text in (record.levelname, record.name, self.format(record), *where))
            level, name, message, path, function, thread = (text.replace("\0", "\\0") for text in texts)
            self._event(level, name, message, path, record.lineno, function, thread)
        except Exception:  # a logging handler must not raise
            self.handleError(record)


class LogHandler(logging.Handler):
    """Write log messages to the channel `log` of the mount, as log() does."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the formatted message, if the channel exists."""
        if not log_is_heard():
            return
        try:
            log(self.format(record))
        except Exception:  # a logging handler must not raise
            self.handleError(record)


def _end_as_multiprocessing_does() -> None:
    """Have children that multiprocessing has started call end(), since they end by os._exit()."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, exitpriority=0)
        # A child of this process forgets that before it calls what was registered for it.
        util.register_after_fork(end, lambda _: util.Finalize(None, end, exitpriority=0))


_end_as_multiprocessing_does()
os.register_at_fork(after_in_child=_end_as_multiprocessing_does)
