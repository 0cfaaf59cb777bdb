"""Parsing the commands of the control file that are about triggers.

    trigger add NAME on TRACE WHEN do ACTION [key=value ...]    trigger remove NAME

    WHEN     GLOB [if CONDITION]   quiet TIME [of GLOB [if CONDITION]]   lost    counter COUNTER > N
             fill > N%             rate > N/s [of GLOB [if CONDITION]]   death   counter COUNTER < N
                                                                         crash
    ACTION   snapshot [DIR] start [TRACE]   stop [TRACE]   mark   notify   run PROGRAM

CONDITION is that of `trace enable`, in '' or up to the next word `do`. Like control.py, this module checks the syntax;
traces/triggers.py checks whether the trace exists.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import condition
from relayfs_fuse.fs.commands.control import PATH_MAX, Placed, Word, suggestion
from relayfs_fuse.fs.commands.trace_control import check_glob, check_trace_name
from relayfs_fuse.native.triggers import Kind

if TYPE_CHECKING:
    from typing import NoReturn

VERB = "trigger"
ACTIONS = ("add", "remove")
# What a trigger does, and what each takes behind it: nothing, a path, or the name of a trace, which may be left out.
DOES = {"snapshot": "[DIR]", "start": "[TRACE]", "stop": "[TRACE]", "mark": "", "notify": "", "run": "PROGRAM"}
# The allowed values of each key, in words.
ALLOWED = {
    "limit": "a time, 1ms to 24h, such as 10s: at most one firing in it",
    "window": "BEFORE or BEFORE/AFTER, times up to 24h, such as 10s/2s",
    "keep": "how many snapshots of the trigger stay, 1 to 99999, or their bytes, such as 1G",
}
CONDITIONS = ("lost", "death", "crash", "fill", "quiet", "rate", "counter")

NS_IN_MS = 1_000_000
_UNITS = {"ms": NS_IN_MS, "s": 1000 * NS_IN_MS, "m": 60_000 * NS_IN_MS, "h": 3_600_000 * NS_IN_MS}
TIME_MAX = 24 * _UNITS["h"]
LIMIT_DEFAULT = _UNITS["s"]
_N_MAX = 2**63 - 1
_KEPT = re.compile(r"([1-9][0-9]{0,4})([KMGT]?)")
_FACTORS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME = re.compile(r"([0-9]{1,8})(ms|s|m|h)")
_WORD = re.compile(r"[ \t]*([^ \t]+)")
# A condition in quotes, and one up to the word `do`. Texts in "" may have both.
_QUOTED = re.compile(r"""[ \t]*'((?:[^'"]|"(?:[^"\\]|\\.)*")*)'(?=[ \t]|$)""")
_BARE = re.compile(r"""[ \t]*((?:[^"]|"(?:[^"\\]|\\.)*")*?)(?=[ \t]+do(?:[ \t]|$)|[ \t]*$)""")
_COMPARED = {
    "fill": re.compile(r"[ \t]*>[ \t]*([0-9]{1,3})[ \t]*%(?=[ \t]|$)"),
    "rate": re.compile(r"[ \t]*>[ \t]*([0-9]{1,19})[ \t]*/s(?=[ \t]|$)"),
    "counter": re.compile(r"[ \t]*([<>])[ \t]*(-?[0-9]{1,19})(?=[ \t]|$)"),
}
_FORMS = {"fill": "fill > N%, with N from 0 to 99", "rate": "rate > N/s", "counter": "counter NAME > N, or < N"}


@dataclass
class TriggerCommand(Placed):
    """A command about a trigger, whose syntax is correct.

    action: one of ACTIONS
    line: the whole line
    columns: of "trace", "do", "argument", and the keys

    Of add:

    when: "event" or one of CONDITIONS
    glob: of PROVIDER:NAME, of event, quiet and rate
    condition: of these events; empty: all of them
    number: the percentage of fill, the events of rate, or the value of the counter
    is_above: whether the counter must rise above `number`, or fall below it
    counter: the counter's name
    quiet: of quiet, ns
    does: a key of DOES
    argument: the directory, program or trace behind it; empty: there is none; of snapshot: the mount keeps it
    limit: the least time between two firings, ns
    window: how much before and after the firing a snapshot has, ns; before: 0: all that there is
    keep, keep_bytes: how many snapshots of the trigger stay, or how many bytes of them; 0: all
    """

    action: str
    name: str
    column: int
    line: str
    columns: dict[str, int] = field(default_factory=dict)
    trace: str = ""
    when: str = ""
    glob: str = "*"
    condition: str = ""
    number: int = 0
    is_above: bool = True
    counter: str = ""
    quiet: int = 0
    does: str = ""
    argument: str = ""
    limit: int = LIMIT_DEFAULT
    window: tuple[int, int] = (0, 0)
    keep: int = 0
    keep_bytes: int = 0

    @property
    def kind(self) -> Kind:
        """How the trigger is evaluated."""
        kinds = {"event": Kind.EVENT, "quiet": Kind.QUIET, "rate": Kind.RATE, "lost": Kind.LOST}
        return kinds.get(self.when, Kind.OTHER)


def parse(line: str) -> TriggerCommand | None:
    """Parse one line; None: it is not about triggers; CommandError."""
    words = _Words(line)
    verb = words.peek()
    if verb is None or verb.text != VERB:
        return None
    words.take("")
    action = words.take(f"{VERB}: one of {', '.join(ACTIONS)} must follow")
    if action.text not in ACTIONS:
        hint = suggestion(action.text, ACTIONS)
        _refuse(action, f"unknown command {VERB} {action.text!r}{hint}; there are: {', '.join(ACTIONS)}")
    name = words.take(f"{VERB} {action.text}: the NAME of a trigger must follow")
    check_trace_name(name, "trigger")
    command = TriggerCommand(action.text, name.text, name.column, line)
    if action.text == "add":
        _parse_add(command, words)
    elif (more := words.peek()) is not None:
        _refuse(more, f"{VERB} remove takes a NAME and nothing else")
    return command


class _Words:
    """The words of a line, one after the other."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0

    def peek(self) -> Word | None:
        """Return the next word; None: there is none."""
        match = _WORD.match(self._line, self._at)
        return Word(match[1], match.start(1)) if match else None

    def take(self, missing: str) -> Word:
        """Return the next word and go on behind it; CommandError with the message `missing`: there is none."""
        word = self.peek()
        if word is None:
            raise CommandError(errno.EINVAL, missing, len(self._line))
        self._at = word.column + len(word.text)
        return word

    def expect(self, text: str, after: str) -> Word:
        """Take the next word, which must be this one."""
        word = self.take(f"`{text}` must follow {after}")
        if word.text != text:
            _refuse(word, f"{word.text!r}: `{text}` must follow {after}")
        return word

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go on behind what a pattern matches here; None: it does not match."""
        match = pattern.match(self._line, self._at)
        self._at = match.end() if match else self._at
        return match

    @property
    def column(self) -> int:
        """Where the next word begins, or the line ends."""
        word = self.peek()
        return word.column if word else len(self._line)


def _refuse(word: Word, message: str) -> NoReturn:
    raise CommandError(errno.EINVAL, message, word.column)


def _parse_add(command: TriggerCommand, words: _Words) -> None:
    words.expect("on", "NAME")
    trace = words.take("the name of a trace must follow `on`")
    check_trace_name(trace, "trace")
    command.trace, command.columns["trace"] = trace.text, trace.column
    _parse_when(command, words)
    words.expect("do", "what the trigger waits for")
    _parse_does(command, words)
    while words.peek() is not None:
        _parse_option(command, words.take(""))


# ---------------------------------------------------------------- what it waits for


def _parse_when(command: TriggerCommand, words: _Words) -> None:
    missing = f"a GLOB of events must follow TRACE, or one of {', '.join(CONDITIONS)}"
    first = words.peek() or words.take(missing)
    kind = re.match(r"[a-z]*", first.text)
    command.when = kind[0] if kind and kind[0] in CONDITIONS and ":" not in first.text else "event"
    if command.when == "event":
        _parse_events(command, words)
        return
    # `fill>80%` is one word.
    words.match(re.compile(rf"[ \t]*{command.when}"))
    if command.when == "quiet":
        time = words.take("quiet: a time must follow, such as 5s")
        command.quiet = _time(time, time.text, least=NS_IN_MS)
    elif command.when in _COMPARED:
        _parse_compared(command, words)
    elif (next_word := words.peek()) is not None and next_word.column == first.column + len(command.when):
        _refuse(first, f"{first.text!r}: {missing}")
    if command.when in ("quiet", "rate") and (of := words.peek()) is not None and of.text == "of":
        words.take("")
        _parse_events(command, words)


def _parse_compared(command: TriggerCommand, words: _Words) -> None:
    if command.when == "counter":
        counter = words.take("counter: the name of a counter must follow")
        command.counter, command.columns["counter"] = counter.text, counter.column
    column = words.column
    found = words.match(_COMPARED[command.when])
    number = int(found[found.lastindex or 1]) if found else -1
    least = -_N_MAX if command.when == "counter" else 0
    most = 99 if command.when == "fill" else _N_MAX
    if not found or not least <= number <= most:
        raise CommandError(errno.EINVAL, f"{_FORMS[command.when]} is needed", column)
    command.number = number
    command.is_above = command.when != "counter" or found[1] == ">"


def _parse_events(command: TriggerCommand, words: _Words) -> None:
    glob = words.take("a GLOB of events must follow `of`")
    check_glob(glob)
    command.glob, command.columns["glob"] = glob.text, glob.column
    word = words.peek()
    if word is None or word.text != "if":
        return
    words.take("")
    column = words.column
    found = words.match(_QUOTED) or words.match(_BARE)
    command.condition = found[1].strip(" \t") if found else ""
    command.columns["condition"] = column = found.start(1) if found else column
    condition.check(command.condition, column)


# ---------------------------------------------------------------- what it does


def _parse_does(command: TriggerCommand, words: _Words) -> None:
    does = words.take(f"one of {', '.join(DOES)} must follow `do`")
    if does.text not in DOES:
        _refuse(does, f"unknown action {does.text!r}{suggestion(does.text, tuple(DOES))}; there are: {', '.join(DOES)}")
    command.does, command.columns["do"] = does.text, does.column
    takes = DOES[does.text]
    word = words.peek()
    is_option = word is None or ("=" in word.text and not word.text.startswith("/"))
    if not takes or (takes.startswith("[") and is_option):
        command.argument = command.trace if takes == "[TRACE]" else ""
        return
    argument = words.take(f"{does.text}: {takes} must follow")
    command.argument, command.columns["argument"] = argument.text, argument.column
    if takes == "[TRACE]":
        check_trace_name(argument, "trace")
    else:
        _check_path(argument, takes.strip("[]"))


def _check_path(word: Word, what: str) -> None:
    if not word.text.startswith("/"):
        _refuse(word, f"{word.text!r}: {what} is an absolute path, which begins with /")
    if len(os.fsencode(word.text)) > PATH_MAX:
        raise CommandError(errno.ENAMETOOLONG, f"{what} is longer than {PATH_MAX} bytes", word.column)
    if not word.text.isprintable():
        _refuse(word, f"{word.text!r}: {what} has no control characters, and is UTF-8")


def _parse_option(command: TriggerCommand, word: Word) -> None:
    key, equals, value = word.text.partition("=")
    if key not in ALLOWED or not equals:
        there_are = ", ".join(f"{one}=" for one in ALLOWED)
        _refuse(word, f"{word.text!r}: unknown key{suggestion(key, tuple(ALLOWED))}; there are: {there_are}")
    if key in command.columns:
        _refuse(word, f"{key} is given twice")
    command.columns[key] = word.column
    if key == "limit":
        command.limit = _time(word, value, least=NS_IN_MS)
        return
    if command.does != "snapshot":
        _refuse(word, f"{key}= is for `do snapshot`, not for `do {command.does}`")
    if key == "keep":
        _parse_keep(command, word, value)
        return
    before, slash, after = value.partition("/")
    command.window = _time(word, before, least=NS_IN_MS), _time(word, after, least=0) if slash else 0


def _parse_keep(command: TriggerCommand, word: Word, value: str) -> None:
    found = _KEPT.fullmatch(value)
    if not found:
        _refuse(word, f"{word.text}: {ALLOWED['keep']}")
    if found[2]:
        command.keep_bytes = int(found[1]) * _FACTORS[found[2]]
    else:
        command.keep = int(found[1])


def _time(word: Word, text: str, *, least: int) -> int:
    match = _TIME.fullmatch(text)
    time = int(match[1]) * _UNITS[match[2]] if match else -1
    if not least <= time <= TIME_MAX:
        from_ = "1ms" if least else "0s"
        _refuse(word, f"{word.text}: a time is a number and ms, s, m or h, from {from_} to 24h, such as 5s")
    return time
