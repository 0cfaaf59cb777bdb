"""The language of the control file: one command a line.

    create PATH [key=value ...]    flush PATH     enable PATH    consumed PATH CPU N
    remove PATH                    reset PATH     disable PATH   resume PATH
    adopt PATH FD,FD,... [key=value ...]
    trace ...                      see trace_control.py

Words are separated by spaces or tabs; empty lines and lines that begin with `#` mean nothing. This module knows
what may be said, not what is: whether PATH exists is found out by those who carry the command out.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.native.tables import OPTIONS, RELAY_OPTIONS, TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.tables import Option

VERBS = ("create", "remove", "flush", "reset", "enable", "disable", "resume", "consumed", "adopt", "trace")
# Bytes of a sub-buffer that no record takes.
RESERVED = ("start_reserve", "end_reserve", "channel_start_reserve")
# What is not decided before there are files.
ADOPT_OPTIONS = {key: RELAY_OPTIONS[key] for key in ("perm", "uid", "gid")}

# Of a sub-buffer, in bytes, and how many there are.
DEFAULT_SIZES = RELAY_OPTIONS["subbuf_size"].initial, RELAY_OPTIONS["n_subbufs"].initial
# What the defaults are reduced to at most: below this a channel is of little use to anybody.
LEAST_SUBBUF_SIZE = 4096
LEAST_N_SUBBUFS = 2

# Leaves room, within the 255 bytes of a file name, for a CPU number and for the name while it is made.
NAME_MAX = 200
PATH_MAX = 1024
# What one write may hold. A write is carried out in one go for who made it, so this bounds how long that takes.
LINES_MAX = 1024
WRITE_MAX = 64 << 10
# What commands of this kind are called elsewhere.
_SYNONYMS = {
    **dict.fromkeys(("delete", "del", "destroy", "rm", "unlink"), "remove"),
    **dict.fromkeys(("add", "make", "mk", "new", "open"), "create"),
    **dict.fromkeys(("begin", "on"), "start"),
    **dict.fromkeys(("end", "off"), "stop"),
}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Word:
    """A word of a line and where it begins."""

    text: str
    column: int


@dataclass
class Command:
    """A command that could be understood.

    options: of create and adopt; keys that were not given are not in it
    columns: where each key's word begins
    descriptors: of adopt
    """

    verb: str
    path: str
    column: int
    line: str
    options: dict[str, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    cpu: int = 0
    count: int = 0
    descriptors: list[int] = field(default_factory=list)

    @property
    def type(self) -> str:
        """What it makes; see OPTIONS."""
        return TYPES[self.options.get("type", 0)]

    @property
    def reserved(self) -> int:
        """How many bytes of the first sub-buffer no record takes."""
        return sum(self.options.get(key, 0) for key in RESERVED)

    def refuse(self, code: int, message: str, key: str | None = None) -> CommandError:
        """Make the error that points at a key's word, or at the path."""
        return CommandError(code, message, self.columns.get(key, self.column) if key else self.column)


class Options(Protocol):
    """A command with options; see Command."""

    options: dict[str, int]
    columns: dict[str, int]

    def refuse(self, code: int, message: str, key: str | None = None) -> CommandError:
        """Make the error that points at a key's word."""


class Sizes(Options, Protocol):
    """One that makes buffers."""

    @property
    def reserved(self) -> int:
        """How many bytes of the first sub-buffer no record takes."""


def split_write(text: bytes) -> list[str]:
    """Take apart what was written to a file of commands; CommandError: it is too much for one write."""
    if len(text) > WRITE_MAX:
        raise CommandError(
            errno.E2BIG, f"a write of {len(text)} bytes: at most {WRITE_MAX} are allowed; nothing of it was done"
        )
    n_lines = text.count(b"\n") + (not text.endswith(b"\n"))
    if n_lines > LINES_MAX:
        raise CommandError(
            errno.E2BIG, f"{n_lines} lines in one write: at most {LINES_MAX} are allowed; nothing of it was done"
        )
    return [line for line in os.fsdecode(text).split("\n") if line and not line.isspace()]


def parse(line: str) -> Command | None:
    """Understand one line; None: there is no command in it.

    line: without its newline
    """
    words = [Word(match.group(), match.start()) for match in re.finditer(r"[^ \t]+", line)]
    if not words or words[0].text.startswith("#"):
        return None
    verb = words[0]
    if verb.text not in VERBS:
        hint = suggestion(verb.text, VERBS)
        raise _invalid(verb, f"unknown command {verb.text!r}{hint}; there are: {', '.join(VERBS)}")
    if verb.text == "create" and _is_quoted(words[1:]):
        raise _invalid(words[1], f"{words[1].text}: a PATH holds no blanks, and quotes do not change that")
    if len(words) < 2:
        raise CommandError(errno.EINVAL, f"{verb.text}: the PATH of a channel must follow", len(line))
    check_path(words[1].text, words[1].column)
    command = Command(verb.text, words[1].text, words[1].column, line)
    if verb.text == "create":
        channel_type = _type_of(words[2:])
        _parse_options(command, words[2:], channel_type)
    elif verb.text == "adopt":
        _parse_adopt(command, words[2:])
    elif verb.text == "consumed":
        _parse_consumed(command, words[2:])
    elif len(words) > 2:
        raise _invalid(words[2], f"{verb.text} takes a PATH and nothing else")
    return command


def _is_quoted(words: Sequence[Word]) -> bool:
    """Tell whether a path with blanks stands in quotes: they are part of names, so a lone one may begin a path."""
    quote = words[0].text[0] if words else ""
    return quote in ("'", '"') and any(word.text.endswith(quote) and "=" not in word.text for word in words[1:])


def suggestion(word: str, known: Sequence[str]) -> str:
    """Say which of the known words may have been meant."""
    meant = _SYNONYMS.get(word.lower()) or next(iter(difflib.get_close_matches(word.lower(), known, 1)), None)
    return f"; did you mean {meant}?" if meant in known else ""


def check_path(path: str, column: int = 0) -> None:
    """Refuse what cannot be a channel's path."""
    if len(os.fsencode(path)) > PATH_MAX:
        raise CommandError(errno.ENAMETOOLONG, f"PATH is longer than {PATH_MAX} bytes", column)
    at = column
    for name in path.split("/"):
        if not name:
            raise CommandError(errno.EINVAL, f"PATH {path!r}: names are separated by single slashes", at)
        check_name(name, at)
        at += len(name) + 1


def check_name(name: str, column: int = 0) -> None:
    """Refuse what cannot be the name of a channel or a directory."""
    if name.startswith("."):
        raise CommandError(errno.EINVAL, f"{name!r}: names that begin with a dot belong to relayfs", column)
    if len(os.fsencode(name)) > NAME_MAX:
        raise CommandError(errno.ENAMETOOLONG, f"a name is longer than {NAME_MAX} bytes", column)
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        raise CommandError(errno.EINVAL, f"{name!r}: a name holds no control characters", column)


def parse_size(text: str) -> int:
    """Understand a number of bytes with an optional K, M or G; ValueError otherwise."""
    match = re.fullmatch(r"([0-9]{1,20})([KMG]?)", text, re.IGNORECASE)
    if not match:
        raise ValueError(text)
    return int(match.group(1)) * _UNITS[match.group(2).upper()]


def format_size(size: int) -> str:
    """Write a number of bytes as parse_size() reads it, as short as is exact."""
    for unit in ("G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def _invalid(word: Word, message: str) -> CommandError:
    return CommandError(errno.EINVAL, message, word.column)


def _number(text: str, largest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > largest:
        raise ValueError(text)
    return int(text)


def _type_of(words: Sequence[Word]) -> str:
    """Find the type, which may stand anywhere; what is none is refused where it stands."""
    given = (word.text.partition("=")[2] for word in words if word.text.startswith("type="))
    return next((name for name in given if name in TYPES), TYPES[0])


def split_option(command: Options, word: Word, allowed: Mapping[str, str]) -> tuple[str, str]:
    """Return KEY and VALUE of an option that is not given yet.

    allowed: the keys that there are, and what values are allowed
    """
    key, equals, value = word.text.partition("=")
    if key not in allowed:
        raise _unknown(word, f"unknown key {key!r}", list(allowed))
    if not equals:
        raise _invalid(word, f"{key}: {key}=VALUE is needed; allowed: {allowed[key]}")
    if key in command.columns:
        raise _invalid(word, f"{key} is given twice")
    command.columns[key] = word.column
    return key, value


def parse_value(command: Options, word: Word, option: Option, value: str) -> None:
    """Understand the VALUE of an option."""
    try:
        command.options[option.key] = option.parse(value)
    except ValueError:
        raise _invalid(word, f"{option.key}={value}: not allowed; allowed: {option.allowed}") from None


def _unknown(word: Word, message: str, keys: Sequence[str]) -> CommandError:
    hint = suggestion(word.text.partition("=")[0], keys)
    return _invalid(word, f"{message}{hint}; there are: {', '.join(f'{key}=' for key in keys)}")


def _parse_options(command: Command, words: Sequence[Word], type_of: str | None) -> None:
    """Understand keys and values.

    type_of: what is to be made; None: it is there already
    """
    options = OPTIONS[type_of] if type_of else ADOPT_OPTIONS
    for word in words:
        key = word.text.partition("=")[0]
        if type_of and key not in options and any(key in others for others in OPTIONS.values()):
            raise _unknown(word, f"{key}= is not for type={type_of}", list(options))
        key, value = split_option(command, word, {key: option.allowed for key, option in options.items()})
        parse_value(command, word, options[key], value)
    if type_of == TYPES[0]:
        check_sizes(command)
        _check_reserved(command)


def check_sizes(command: Sizes) -> None:
    """Refuse what no buffer can have, whatever the defaults become."""
    subbuf_size = command.options.get("subbuf_size", LEAST_SUBBUF_SIZE)
    n_subbufs = command.options.get("n_subbufs", LEAST_N_SUBBUFS)
    if not native.buf_file_bytes(subbuf_size, n_subbufs):
        key = "n_subbufs" if "n_subbufs" in command.options else "subbuf_size"
        raise command.refuse(
            errno.EINVAL, f"{n_subbufs} sub-buffers of {subbuf_size} bytes: at most {2**40} bytes together", key
        )


def _check_reserved(command: Command) -> None:
    subbuf_size = command.options.get("subbuf_size", RELAY_OPTIONS["subbuf_size"].initial)
    if command.reserved < subbuf_size:
        return
    key = max(RESERVED, key=lambda key: command.options.get(key, 0))
    raise command.refuse(
        errno.EINVAL,
        f"{key}={command.options[key]}: not allowed; allowed: start_reserve, end_reserve and channel_start_reserve "
        f"together less than subbuf_size, which is {subbuf_size}; they are {command.reserved}",
        key,
    )


def _parse_consumed(command: Command, words: Sequence[Word]) -> None:
    if len(words) < 2:
        raise CommandError(errno.EINVAL, "consumed PATH CPU N: words are missing", len(command.line))
    if len(words) > 2:
        raise _invalid(words[2], "consumed takes PATH, CPU and N and nothing else")
    for word, name in zip(words, ("cpu", "count"), strict=True):
        try:
            setattr(command, name, _number(word.text, 2**32 - 1 if name == "cpu" else 2**63 - 1))
        except ValueError:
            raise _invalid(word, f"{word.text!r}: a number is needed here") from None
    command.columns["cpu"] = words[0].column


def _parse_adopt(command: Command, words: Sequence[Word]) -> None:
    if not words:
        raise CommandError(errno.EINVAL, "adopt PATH FD,FD,...: the descriptors are missing", len(command.line))
    try:
        command.descriptors = [_number(text, 2**31 - 1) for text in words[0].text.split(",")]
    except ValueError:
        raise _invalid(
            words[0], f"{words[0].text!r}: numbers of descriptors, separated by commas, are needed"
        ) from None
    command.columns["descriptors"] = words[0].column
    _parse_options(command, words[1:], None)


def choose_geometry(
    command: Sizes,
    n_buffers: int,
    free_bytes: int,
    default: tuple[int, int] = DEFAULT_SIZES,
) -> tuple[int, int, str | None]:
    """Choose sizes for a channel: what was asked for, else defaults that leave room for others.

    n_buffers: how many buffers it will have
    free_bytes: how much of the store is free
    default: size of a sub-buffer, and their number

    Returns sub-buffer size, their number, and what must be said when the defaults had to be reduced.
    """
    subbuf_size = command.options.get("subbuf_size", default[0])
    n_subbufs = command.options.get("n_subbufs", default[1])
    wanted = subbuf_size, n_subbufs

    def too_large() -> bool:
        file_bytes = native.buf_file_bytes(subbuf_size, n_subbufs)
        return not file_bytes or file_bytes * n_buffers > free_bytes // 16

    least = max(LEAST_SUBBUF_SIZE, 2 * command.reserved)
    while "subbuf_size" not in command.options and subbuf_size // 2 >= least and too_large():
        subbuf_size //= 2
    while "n_subbufs" not in command.options and n_subbufs > LEAST_N_SUBBUFS and too_large():
        n_subbufs //= 2
    if (subbuf_size, n_subbufs) == wanted:
        return subbuf_size, n_subbufs, None
    return (
        subbuf_size,
        n_subbufs,
        f"reduced to {n_subbufs} sub-buffers of {format_size(subbuf_size)}, from {wanted[1]} of "
        f"{format_size(wanted[0])}: a channel takes by default at most a sixteenth of the {free_bytes} bytes that are "
        f"free; give subbuf_size= and n_subbufs= to have others",
    )


def format_create(path: str, type_of: str, stats: Fields, owner: Mapping[str, int]) -> str:
    """Write the command that would make this channel again.

    owner: perm, uid and gid
    """
    words = [f"type={type_of}"] if type_of != TYPES[0] else []
    for key, option in OPTIONS[type_of].items():
        if option.field:
            number = owner[key] if key in owner else getattr(stats, option.field)
            words.append(f"{key}={option.format(number)}")
    return f"create {path} " + " ".join(words)
