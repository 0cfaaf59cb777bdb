"""Conditions of `trace enable NAME GLOB if CONDITION` and `relayctl view --if`: parsing and compiling them.

    ms > 500 && (path ~ "/api/*" || !(state == "IDLE")) && level <= warning

A condition becomes steps, each a comparison that says which later step is next if it is true, and which if it is false:
struct relay_conditions in <relayfs/trace_store.h>. So && || and ! are no steps of their own.
"""

from __future__ import annotations

import errno
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from relayfs_fuse.errors import CommandError
from relayfs_fuse.native.events import LEVELS, FieldKind, field_form
from relayfs_fuse.native.trace import CONDITION_STEPS, CONDITION_TEXT_MAX, NAME_MAX, Operand, Order, Step, Target
from relayfs_fuse.native.trace import pack_conditions as pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from relayfs_fuse.native.events import FieldForm
    from relayfs_fuse.tracefiles.ctf import Declaration

# How deep brackets and ! may be nested.
_DEPTH_MAX = 32
_TOO_MANY = f"a trace has at most {CONDITION_STEPS} conditions, with {CONDITION_STEPS} comparisons in all"
_ORDERS = {
    "==": Order.EQUAL,
    "!=": Order.LESS | Order.GREATER | Order.UNORDERED,
    "<": Order.LESS,
    "<=": Order.LESS | Order.EQUAL,
    ">": Order.GREATER,
    ">=": Order.GREATER | Order.EQUAL,
    "~": Order.EQUAL,
}
_HINTS = {
    '"': 'the " that ends the text is missing',
    "=": "== compares",
    "&": "&& means and",
    "|": "|| means or",
    "'": 'texts stand in ""',
}
# Compiled by the first condition: relayctl, most of whose commands have none, starts without it.
_LEXEME = r"""(?xa)[ \t]*(?:
    (?P<number>-?(?:0[xX][0-9a-fA-F]+|[0-9]+(?P<real>(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?))(?![\w.]))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)
    |"(?P<text>(?:[^"\\]|\\.)*)"
    |(?P<sign>&&|\|\||[=!<>]=|[<>~!()])
    |(?P<end>$)
    |(?P<wrong>.))"""


class _Token(NamedTuple):
    """kind: number, word, text, sign or end; column: where it begins in the line."""

    kind: str
    text: str
    column: int


@dataclass(frozen=True)
class _Comparison:
    """A comparison of a field, or of the level, with a value.

    field: at.x for the field x of a struct at
    number: the bits of an integer or a double
    """

    operand: Operand
    order: Order
    field: str = ""
    text: str = ""
    number: int = 0


@dataclass(frozen=True)
class _Not:
    operand: _Node


@dataclass(frozen=True)
class _Both:
    is_and: bool
    left: _Node
    right: _Node


_Node = _Comparison | _Not | _Both


def _refuse(column: int, message: str) -> NoReturn:
    raise CommandError(errno.EINVAL, message, column)


def _tokens(text: str, column: int) -> Iterable[_Token]:
    for match in re.finditer(_LEXEME, text):
        kind = "number" if match["number"] else str(match.lastgroup)
        at = column + match.start() + len(match[0]) - len(match[0].lstrip(" \t"))
        if kind == "wrong":
            _refuse(at, f"{match['wrong']!r}: {_HINTS.get(match['wrong'], 'this means nothing in a condition')}")
        yield _Token(kind, match[kind], at)
        if kind == "end":
            return


class _Parser:
    """Parse by recursive descent; CommandError: EINVAL, ENOSPC."""

    def __init__(self, text: str, column: int) -> None:
        self._tokens = list(_tokens(text, column))
        self._at = 0
        self._depth = 0
        self._n_comparisons = 0

    def parse(self) -> _Node:
        node = self._any()
        if self._next.kind != "end":
            _refuse(self._next.column, f"{self._next.text!r}: && or || is needed before another comparison")
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _takes(self, sign: str) -> bool:
        is_there = self._next.kind == "sign" and self._next.text == sign
        self._at += is_there
        return is_there

    def _any(self) -> _Node:
        node = self._all()
        while self._takes("||"):
            node = _Both(False, node, self._all())
        return node

    def _all(self) -> _Node:
        node = self._one()
        while self._takes("&&"):
            node = _Both(True, node, self._one())
        return node

    def _one(self) -> _Node:
        start = self._next.column
        if self._depth > _DEPTH_MAX:
            _refuse(start, f"brackets and ! are nested deeper than {_DEPTH_MAX}")
        self._depth += 1
        try:
            if self._takes("!"):
                return _Not(self._one())
            if self._takes("("):
                node = self._any()
                if not self._takes(")"):
                    _refuse(self._next.column, f"the ) is missing for the ( of column {start + 1}")
                return node
        finally:
            self._depth -= 1
        return self._comparison()

    def _comparison(self) -> _Comparison:
        name = self._take("word", 'a comparison such as FIELD > 5 or FIELD ~ "GLOB" is needed')
        if len(name.text) > NAME_MAX:
            _refuse(name.column, f"no field has a name of more than {NAME_MAX} bytes")
        self._n_comparisons += 1
        if self._n_comparisons > CONDITION_STEPS:
            raise CommandError(errno.ENOSPC, _TOO_MANY, name.column)
        sign = self._next
        if sign.kind != "sign" or sign.text not in _ORDERS:
            _refuse(sign.column, f"one of {' '.join(_ORDERS)} must follow {name.text}")
        self._at += 1
        value = self._next
        self._at += value.kind != "end"
        order = _ORDERS[sign.text]
        if value.kind == "text":
            is_pattern = sign.text == "~"
            text = _unquoted(value, is_pattern=is_pattern)
            return _Comparison(Operand.PATTERN if is_pattern else Operand.TEXT, order, name.text, text)
        if sign.text == "~":
            _refuse(value.column, 'a pattern in "" must follow ~')
        if value.kind == "number":
            operand, number = _number(value)
            return _Comparison(operand, order, name.text, number=number)
        if value.kind != "word" or name.text != "level":
            _refuse(value.column, f'a number, or a text in "", must follow {sign.text}')
        if value.text not in LEVELS:
            _refuse(value.column, f"{value.text}: the levels are {', '.join(LEVELS)}")
        return _Comparison(Operand.LEVEL, order, number=LEVELS.index(value.text))

    def _take(self, kind: str, message: str) -> _Token:
        token = self._next
        if token.kind != kind:
            _refuse(token.column, message)
        self._at += 1
        return token


def _number(token: _Token) -> tuple[Operand, int]:
    """Return the type of a number, and its bits."""
    try:
        integer = int(token.text, 16) if "x" in token.text.lower() else int(token.text)
    except ValueError:
        return Operand.REAL, int.from_bytes(struct.pack("<d", float(token.text)), "little")
    if not -(1 << 63) <= integer < 1 << 64:
        _refuse(token.column, f"{token.text} is not from -2^63 to 2^64 - 1; with a point it is a floating-point number")
    return (Operand.NEGATIVE if integer < 0 else Operand.POSITIVE), integer % (1 << 64)


def _unquoted(token: _Token, *, is_pattern: bool) -> str:
    r"""Return a token's text without escapes; a pattern keeps \\, \* and \?, which the library reads when matching."""
    parts = []
    at = 0
    while at < len(token.text):
        character = token.text[at : at + 1]
        if character == "\\":
            quoted = token.text[at + 1]
            if quoted not in ('"\\*?' if is_pattern else '"\\'):
                allowed = r"\" \\ \* and \?" if is_pattern else r"\" and \\"
                _refuse(token.column + 1 + at, f"\\{quoted}: there are {allowed}")
            character = quoted if quoted == '"' or not is_pattern else character + quoted
            at += 1
        elif not character.isprintable():
            _refuse(token.column + 1 + at, f"{character!r} is not printable")
        parts.append(character)
        at += 1
    return "".join(parts)


def check(text: str, column: int) -> None:
    """Check a condition, which begins in this column of the line; CommandError: EINVAL, ENOSPC."""
    _Parser(text, column).parse()


def unmet(text: str, fields: Iterable[tuple[str, str]], level: int | None) -> str | None:
    """Return why a condition refuses all events with these fields and level: one is missing, or of a wrong type.

    fields: names and types, the types as for field_form()

    None: none is.
    """
    forms = {name: (word, field_form(word)) for name, word in fields}
    for one in _comparisons(_Parser(text, 0).parse()):
        if one.operand == Operand.LEVEL:
            if level is None:
                return "has no level"
            continue
        if one.field not in forms:
            is_struct = any(name.startswith(f"{one.field}.") for name in forms)
            return f"has {one.field} as a struct" if is_struct else f"has no field {one.field}"
        word, form = forms[one.field]
        if not _fits(one, form):
            return f"has {one.field} as {word:.60}"
    return None


def unmet_by_all(text: str, declarations: Iterable[Declaration]) -> str | None:
    """Return why a condition refuses each of these events, for one of them, with its name. None: it may take one.

    That an event has the field in another form says more than that another event has no such field.
    """
    reasons: dict[str, str] = {}
    for one in declarations:
        lacks = unmet(text, one.fields, one.level)
        if not lacks:
            return None
        reasons.setdefault(lacks, f"{one.name} {lacks}")
    return reasons[min(reasons, key=lambda lacks: lacks.startswith("has no "))] if reasons else None


def _comparisons(node: _Node) -> Iterator[_Comparison]:
    if isinstance(node, _Comparison):
        yield node
    elif isinstance(node, _Not):
        yield from _comparisons(node.operand)
    else:
        yield from _comparisons(node.left)
        yield from _comparisons(node.right)


def _fits(comparison: _Comparison, form: FieldForm) -> bool:
    """Return whether a field can be compared so; native/src/trace/condition.c has the same rule."""
    if form.length or form.is_sequence or form.base.kind == FieldKind.BYTES:
        return False
    if form.base.kind == FieldKind.STRING:
        return comparison.operand in {Operand.TEXT, Operand.PATTERN}
    if comparison.operand == Operand.TEXT:
        return comparison.text in dict(form.labels)
    return comparison.operand != Operand.PATTERN


@dataclass
class _Label:
    """The index of a step, which is set when the step is appended; or a Target."""

    at: int = 0


@dataclass
class _Compiled:
    """The steps of all conditions of a trace.

    steps: each a comparison, and the labels of the next step if it is false, and if it is true
    first: of each condition, its first step
    texts: names of fields and texts, each with a null byte
    """

    steps: list[tuple[_Comparison, _Label, _Label]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)

    def add(self, node: _Node, no: _Label, yes: _Label) -> None:
        """Append the steps of a node; `no` and `yes` label the step that is next if the node is false or true."""
        if isinstance(node, _Comparison):
            self.steps.append((node, no, yes))
        elif isinstance(node, _Not):
            self.add(node.operand, yes, no)
        else:
            right = _Label()
            self.add(node.left, *((no, right) if node.is_and else (right, yes)))
            right.at = len(self.steps)
            self.add(node.right, no, yes)

    def place(self, text: str) -> int:
        """Return where a text is in `texts`, to which it is added if it is not there."""
        data = text.encode() + b"\0"
        at = self.texts.find(data)
        if at < 0:
            at = len(self.texts)
            self.texts += data
        return at


def compile_conditions(conditions: Iterable[str]) -> bytes:
    """Compile the conditions of a trace's rules, in their order; CommandError: EINVAL, ENOSPC."""
    compiled = _Compiled()
    starts: dict[str, int] = {}
    no, yes = _Label(Target.REFUSE), _Label(Target.TAKE)
    for text in conditions:
        if text not in starts:
            starts[text] = len(compiled.steps)
            compiled.add(_Parser(text, 0).parse(), no, yes)
        compiled.first.append(starts[text])
    if max(len(compiled.steps), len(compiled.first)) > CONDITION_STEPS:
        raise CommandError(errno.ENOSPC, _TOO_MANY)
    steps = [
        Step(one.operand, one.order, (no.at, yes.at), compiled.place(one.field), compiled.place(one.text), one.number)
        for one, no, yes in compiled.steps
    ]
    if len(compiled.texts) > CONDITION_TEXT_MAX:
        raise CommandError(
            errno.ENOSPC,
            f"names of fields and texts in the conditions of a trace take {CONDITION_TEXT_MAX} bytes at most, with one "
            "more for each",
        )
    return pack(steps, compiled.first, bytes(compiled.texts))
