"""Parsing the commands of the control file that are about traces.

    trace create NAME [key=value ...]    trace start NAME    trace enable NAME GLOB [if CONDITION]
    trace remove NAME                    trace stop NAME     trace disable NAME GLOB
    trace set NAME key=value [...]       trace snapshot NAME SNAPSHOT [since=NS] [until=NS]

Like control.py, this module checks the syntax; traces/registry.py checks whether NAME exists.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from relayfs_fuse.errors import CommandError
from relayfs_fuse.fs.commands import condition
from relayfs_fuse.fs.commands.control import Placed, Word, check_sizes, parse_value, split_option, suggestion
from relayfs_fuse.native import trace as native_trace
from relayfs_fuse.native.merge import EVER
from relayfs_fuse.native.tables import TRACE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relayfs_fuse.native.trace import Trace

VERB = "trace"
ACTIONS = ("create", "remove", "start", "stop", "enable", "disable", "set", "snapshot")
# The allowed values of each key, in words.
ALLOWED = {**{key: option.allowed for key, option in TRACE_OPTIONS.items()}, "filter": "TERM,TERM..."}

# Of snapshot.
_TIME = "a time, nanoseconds since 1970"
TIMES = {"since": _TIME, "until": _TIME}

DEFAULT_SIZES = TRACE_OPTIONS["subbuf_size"].initial, TRACE_OPTIONS["n_subbufs"].initial

# The name of a trace is a part of paths, and of CTF metadata.
_NAME = re.compile(r"[A-Za-z0-9_+@:=-][A-Za-z0-9._+@:=-]*")
_GLOB = re.compile(r"[!-~]+")
_NUMBER = re.compile(r"[0-9]{1,10}")
_ID_MAX = 2**32 - 1
_NS = re.compile(r"[0-9]{1,19}")
# The name of a snapshot has the rules of a trace's, and may be longer: that of a trigger is part of it.
SNAPSHOT_NAME_MAX = 200


@dataclass
class TraceCommand(Placed):
    """A command about a trace, whose syntax is correct.

    action: one of ACTIONS
    line: the whole line
    options: the values of the options of create and set, by key; keys that were not given are missing
    columns: of the options, by key; and "glob", "condition" and "snapshot"
    filter: of create and set
    glob: of enable and disable
    condition: of enable; empty: there is none
    snapshot: the snapshot's name
    window: of snapshot: only packets with events between these times, ns since 1970; None: all
    """

    action: str
    name: str
    column: int
    line: str
    options: dict[str, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    filter: str = ""
    glob: str = ""
    condition: str = ""
    snapshot: str = ""
    window: tuple[int, int] | None = None

    @property
    def reserved(self) -> int:
        """How many bytes of a sub-buffer are the packet's header."""
        return native_trace.PACKET_HEAD_BYTES


def parse(line: str) -> TraceCommand | None:
    """Parse one line; None: it is not about traces; CommandError."""
    words = [Word(match.group(), match.start()) for match in re.finditer(r"[^ \t]+", line)]
    if not words or words[0].text != VERB:
        return None
    if len(words) < 2:
        raise CommandError(errno.EINVAL, f"{VERB}: one of {', '.join(ACTIONS)} must follow", len(line))
    action = words[1]
    if action.text not in ACTIONS:
        hint = suggestion(action.text, ACTIONS)
        raise _invalid(action, f"unknown command {VERB} {action.text!r}{hint}; there are: {', '.join(ACTIONS)}")
    if len(words) < 3:
        raise CommandError(errno.EINVAL, f"{VERB} {action.text}: the NAME of a trace must follow", len(line))
    check_trace_name(words[2])
    command = TraceCommand(action.text, words[2].text, words[2].column, line)
    if action.text in ("create", "set"):
        if action.text == "set" and len(words) < 4:
            raise CommandError(errno.EINVAL, f"{VERB} set NAME: KEY=VALUE must follow", len(line))
        _parse_options(command, words[3:])
    elif action.text in ("enable", "disable"):
        _parse_glob(command, words[3:])
    elif action.text == "snapshot":
        _parse_snapshot(command, words[3:])
    elif len(words) > 3:
        raise _invalid(words[3], f"{VERB} {action.text} takes a NAME and nothing else")
    return command


def _invalid(word: Word, message: str) -> CommandError:
    return CommandError(errno.EINVAL, message, word.column)


def check_trace_name(word: Word, what: str = "trace", most: int = native_trace.NAME_MAX) -> None:
    """Check the name of a trace, or of something else that has such names; CommandError: EINVAL, ENAMETOOLONG.

    most: the most bytes
    """
    if len(word.text) > most:
        raise CommandError(
            errno.ENAMETOOLONG,
            f"the name of a {what} is longer than {most} bytes; it has {len(word.text)}",
            word.column,
        )
    if not _NAME.fullmatch(word.text):
        raise _invalid(
            word,
            f"{word.text!r}: the name of a {what} is made of letters, digits and . _ + @ : = - and does not begin with "
            "a dot",
        )


def check_snapshot_name(word: Word) -> None:
    """Check the name of a snapshot; CommandError: EINVAL, ENAMETOOLONG."""
    check_trace_name(word, "snapshot", SNAPSHOT_NAME_MAX)


def _parse_snapshot(command: TraceCommand, words: Sequence[Word]) -> None:
    if not words:
        raise CommandError(errno.EINVAL, f"{VERB} snapshot NAME: the name of a snapshot must follow", len(command.line))
    check_snapshot_name(words[0])
    command.snapshot, command.columns["snapshot"] = words[0].text, words[0].column
    times: dict[str, int] = {}
    for word in words[1:]:
        key, value = split_option(command, word, TIMES)
        if not _NS.fullmatch(value):
            raise _invalid(word, f"{word.text}: not allowed; allowed: {TIMES[key]}")
        times[key] = int(value)
    command.window = (times.get("since", 0), times.get("until", EVER)) if times else None


def _parse_options(command: TraceCommand, words: Sequence[Word]) -> None:
    for word in words:
        key, value = split_option(command, word, ALLOWED)
        if key == "filter":
            command.filter = _filter(Word(value, word.column + len("filter=")))
        else:
            parse_value(command, word, TRACE_OPTIONS[key], value)
    check_sizes(command)


def _is_glob(text: str) -> bool:
    """Whether a text is a pattern of fnmatch(3) of printable ASCII characters in which each [ is closed."""
    at = 0
    while at < len(text):
        if text[at] == "[":
            begin = at + (2 if text[at + 1 : at + 2] in ("!", "^") else 1)
            at = text.find("]", begin + 1)  # a ] at `begin` is an ordinary character
            if at < 0:
                return False
        at += 2 if text[at] == "\\" else 1
    return _GLOB.fullmatch(text) is not None


def _filter(word: Word) -> str:
    """Check the value of filter= and return it; CommandError: EINVAL, ENOSPC."""
    if len(word.text) > native_trace.FILTER_MAX:
        raise CommandError(errno.ENOSPC, f"a filter is longer than {native_trace.FILTER_MAX} bytes", word.column)
    at = word.column
    for term in word.text.split(","):
        kind, colon, number = term.partition(":")
        if colon and kind in ("pid", "uid"):
            if not _NUMBER.fullmatch(number) or int(number) > _ID_MAX:
                raise CommandError(errno.EINVAL, f"{term!r}: a number must follow {kind}:", at)
        elif not _is_glob(term):
            raise CommandError(
                errno.EINVAL,
                f"{term!r}: pid:NUMBER, uid:NUMBER or a pattern of program names is needed, in which each [ is closed "
                "by ]",
                at,
            )
        at += len(term) + 1
    return word.text


def _parse_glob(command: TraceCommand, words: Sequence[Word]) -> None:
    if not words:
        message = f"{VERB} {command.action} NAME GLOB: the pattern of events is missing"
        raise CommandError(errno.EINVAL, message, len(command.line))
    if len(words) > 1:
        _parse_condition(command, words[1:])
    check_glob(words[0])
    command.glob, command.columns["glob"] = words[0].text, words[0].column


def check_glob(glob: Word) -> None:
    """Check a pattern of events; CommandError: EINVAL."""
    if not _is_glob(glob.text):
        raise _invalid(
            glob,
            f"{glob.text!r}: a pattern of events is made of printable ASCII characters, and each [ is closed by ]",
        )
    if not set(glob.text) & set(":*"):
        raise _invalid(glob, f"{glob.text!r} matches nothing: events are called PROVIDER:NAME")


def _parse_condition(command: TraceCommand, words: Sequence[Word]) -> None:
    if command.action == "disable":
        raise _invalid(words[0], f"{VERB} disable takes NAME and GLOB and nothing else")
    if words[0].text != "if":
        raise _invalid(words[0], f"{VERB} enable takes NAME and GLOB, and `if` with a condition")
    column = words[0].column + len("if")
    command.condition = command.line[column:].strip(" \t")
    column = words[1].column if command.condition else len(command.line)
    condition.check(command.condition, column)
    command.columns["condition"] = column


def add_rule(trace: Trace, command: TraceCommand) -> Trace:
    """Return a trace with the rule of an `enable` or `disable` added; CommandError: ENOSPC.

    A rule is a line: + or -, the pattern, and, after a blank, the condition if there is one. Of the rules that match an
    event the last decides. If none matches, the event is recorded if the first rule is a -. So the first rule stays
    when a later one gets the same pattern, but only its sign has an effect then.
    """
    head = ("+" if command.action == "enable" else "-") + command.glob
    rule = f"{head} {command.condition}" if command.condition else head
    first, *others = trace.rules.split("\n")[:-1] or [rule]
    kept = [other for other in others if _glob_of(other) != command.glob]
    if _glob_of(first) == command.glob:
        first = first[0] + rule[1:] if first[0] == rule[0] and not kept else first[0] + command.glob
    if kept or rule != first:
        kept.append(rule)
    rules = "".join(f"{line}\n" for line in (first, *kept))
    if len(os.fsencode(rules)) > native_trace.RULES_MAX:
        raise command.refuse(
            errno.ENOSPC, f"the patterns of {command.name} would be longer than {native_trace.RULES_MAX} bytes", "glob"
        )
    try:
        conditions = condition.compile_conditions(line.partition(" ")[2] for line in (first, *kept) if " " in line)
    except CommandError as error:
        raise command.refuse(error.errno, error.message, "condition") from error
    return replace(trace, rules=rules, conditions=conditions)


def _glob_of(rule: str) -> str:
    return rule[1:].partition(" ")[0]


def numbers_of(trace: Trace) -> dict[str, int]:
    """Return the options of a trace, but for its filter, as TraceCommand.options has them."""
    numbers: dict[str, int] = {key: getattr(trace, option.field) for key, option in TRACE_OPTIONS.items()}
    numbers["clock"] -= native_trace.CLOCK_MONO
    return numbers


def words_of(trace: Trace) -> dict[str, str]:
    """Return the values of all options of a trace as words."""
    numbers = numbers_of(trace) | {"snapshot_memory": snapshot_memory(trace)}
    words = {key: TRACE_OPTIONS[key].format(number) for key, number in numbers.items()}
    return words | {"filter": trace.filter}


def snapshot_memory(trace: Trace) -> int:
    """Return how many bytes the snapshots of a trace in the store may take; 0: there is no limit but the store's."""
    return trace.snapshot_memory or trace.memory


def rules_of(trace: Trace) -> list[tuple[str, str]]:
    """Return the rules of a trace: `enable` or `disable`, and GLOB [if CONDITION]."""
    rules = []
    for rule in trace.rules.split("\n")[:-1]:
        glob, blank, text = rule[1:].partition(" ")
        rules.append(("enable" if rule[0] == "+" else "disable", f"{glob}{blank and ' if '}{text}"))
    return rules


def format_trace(trace: Trace, default_memory: int = 0) -> list[str]:
    """Return the commands that would make this trace again; they leave out memory= if it is `default_memory` bytes."""
    words = words_of(trace)
    if trace.memory == default_memory:
        del words["memory"]
    if not trace.snapshot_memory:
        del words["snapshot_memory"]
    if trace.flush_interval_ms == TRACE_OPTIONS["flush_interval"].initial:
        del words["flush_interval"]
    if not trace.filter:
        del words["filter"]
    lines = [f"{VERB} create {trace.name} " + " ".join(f"{key}={value}" for key, value in words.items())]
    lines += [f"{VERB} {action} {trace.name} {rule}" for action, rule in rules_of(trace)]
    if trace.is_started:
        lines.append(f"{VERB} start {trace.name}")
    return lines
