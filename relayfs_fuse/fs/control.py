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

from relayfs_fuse import native, native_ring
from relayfs_fuse.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERBS = ("create", "remove", "flush", "reset", "enable", "disable", "resume", "consumed", "adopt", "trace")
# What a channel is made of; without type=, the first.
TYPES = ("relay", "ring")
KEYS_OF = {
    "relay": (
        *("type", "subbuf_size", "n_subbufs", "mode", "buffers", "scheme", "delivery", "read", "reserve"),
        *("start_reserve", "end_reserve", "channel_start_reserve", "timestamp"),
        *("flush_interval", "perm", "uid", "gid"),
    ),
    "ring": ("type", "size", "mode", "buffers", "scheme", "read", "framing", "perm", "uid", "gid"),
}
KEYS = (*KEYS_OF["relay"], *(key for key in KEYS_OF["ring"] if key not in KEYS_OF["relay"]))
# Bytes of a sub-buffer that no record takes.
RESERVED = ("start_reserve", "end_reserve", "channel_start_reserve")
# Those that are not decided before there are files.
ADOPT_KEYS = ("perm", "uid", "gid")

DEFAULT_SUBBUF_SIZE = 256 * 1024
DEFAULT_N_SUBBUFS = 8
DEFAULT_PERM = 0o640
# poll(2) tells of what read(2) would return; the kernel's relay_open() has it otherwise.
DEFAULT_DELIVERY = native.DELIVERY_PACKET
# What the defaults are reduced to at most: below this a channel is of little use to anybody.
LEAST_SUBBUF_SIZE = 4096
LEAST_N_SUBBUFS = 2

# Leaves room, within the 255 bytes of a file name, for a CPU number and for the name while it is made.
NAME_MAX = 200
PATH_MAX = 1024
# What one write may hold. A write is carried out in one go for who made it, so this bounds how long that takes.
LINES_MAX = 1024
WRITE_MAX = 64 << 10
_ID_MAX = 2**32 - 2
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
    def is_ring(self) -> bool:
        """Whether it makes rings."""
        return TYPES[self.options.get("type", 0)] == "ring"

    @property
    def reserved(self) -> int:
        """How many bytes of the first sub-buffer no record takes."""
        return sum(self.options.get(key, 0) for key in RESERVED)

    def refuse(self, code: int, message: str, key: str | None = None) -> CommandError:
        """Make the error that points at a key's word, or at the path."""
        return CommandError(code, message, self.columns.get(key, self.column) if key else self.column)


class Sizes(Protocol):
    """What a command says of the sizes of what it makes."""

    options: dict[str, int]

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


def _octal(text: str) -> int:
    if not re.fullmatch(r"0*[0-7]{1,3}", text) or int(text, 8) & 0o111:
        raise ValueError(text)
    return int(text, 8)


def _ring_size(text: str) -> int:
    size = parse_size(text)
    if not native_ring.ring_file_bytes(size):
        raise ValueError(text)
    return size


def _one_of(words: Sequence[str]) -> tuple[Callable[[str], int], str]:
    return words.index, " or ".join(words)


# For each key: what understands its value (ValueError: it does not), and what is allowed.
_VALUES: dict[str, tuple[Callable[[str], int], str]] = {
    "subbuf_size": (parse_size, "bytes, 1 or more, with an optional K, M or G"),
    **dict.fromkeys(RESERVED, (parse_size, "bytes, with an optional K, M or G")),
    "n_subbufs": (lambda text: _number(text, 2**32 - 1), "a number, 1 or more"),
    "type": _one_of(TYPES),
    "mode": _one_of(native.MODES),
    "buffers": _one_of(native.BUFFERS),
    "scheme": _one_of(native.SCHEMES),
    "delivery": _one_of(native.DELIVERIES),
    "read": _one_of(native.READS),
    "reserve": _one_of(native.RESERVES),
    "timestamp": _one_of(native.TIMESTAMPS),
    "flush_interval": (lambda text: _number(text, 2**31 - 1), "milliseconds; 0: never"),
    "perm": (_octal, "three octal digits without execute permission, such as 0640"),
    "uid": (lambda text: _number(text, _ID_MAX), "a user's number"),
    "gid": (lambda text: _number(text, _ID_MAX), "a group's number"),
}


# The same where type=ring has other values.
_RING_VALUES: dict[str, tuple[Callable[[str], int], str]] = {
    "size": (_ring_size, "bytes, with an optional K, M or G: a power of two, 4096 or more"),
    "mode": _one_of(native_ring.MODES),
    "scheme": _one_of(native_ring.SCHEMES),
    "framing": _one_of(native_ring.FRAMINGS),
}


def _type_of(words: Sequence[Word]) -> str:
    """Find the type, which may stand anywhere; what is none is refused where it stands."""
    given = (word.text.partition("=")[2] for word in words if word.text.startswith("type="))
    return next((name for name in given if name in TYPES), TYPES[0])


def _parse_options(command: Command, words: Sequence[Word], kind: str) -> None:
    """Understand keys and values.

    kind: a type of channel, or "adopt"
    """
    keys = KEYS_OF.get(kind, ADOPT_KEYS)
    for word in words:
        key, equals, value = word.text.partition("=")
        if key not in keys:
            message = f"{key}= is not for type={kind}" if kind in TYPES and key in KEYS else f"unknown key {key!r}"
            hint = suggestion(key, keys)
            raise _invalid(word, f"{message}{hint}; there are: {', '.join(f'{key}=' for key in keys)}")
        understand, allowed = (_RING_VALUES.get(key) if kind == "ring" else None) or _VALUES[key]
        if not equals:
            raise _invalid(word, f"{key}: {key}=VALUE is needed; allowed: {allowed}")
        if key in command.options:
            raise _invalid(word, f"{key} is given twice")
        try:
            command.options[key] = understand(value)
        except ValueError:
            raise _invalid(word, f"{key}={value}: not allowed; allowed: {allowed}") from None
        command.columns[key] = word.column
    if kind == TYPES[0]:
        _check_geometry(command)


def _check_geometry(command: Command) -> None:
    subbuf_size = command.options.get("subbuf_size", LEAST_SUBBUF_SIZE)
    n_subbufs = command.options.get("n_subbufs", LEAST_N_SUBBUFS)
    for key, value, largest in (("subbuf_size", subbuf_size, 2**32 - 1), ("n_subbufs", n_subbufs, 2**32 - 1)):
        if not 1 <= value <= largest:
            raise command.refuse(errno.EINVAL, f"{key}={value}: not allowed; allowed: 1 to {largest}", key)
    if not native.buf_file_bytes(subbuf_size, n_subbufs):
        key = "n_subbufs" if "n_subbufs" in command.options else "subbuf_size"
        raise command.refuse(
            errno.EINVAL, f"{n_subbufs} sub-buffers of {subbuf_size} bytes: at most {2**40} bytes together", key
        )
    _check_reserved(command)


def _check_reserved(command: Command) -> None:
    subbuf_size = command.options.get("subbuf_size", DEFAULT_SUBBUF_SIZE)
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
    _parse_options(command, words[1:], "adopt")


def choose_geometry(
    command: Sizes,
    n_buffers: int,
    free_bytes: int,
    default: tuple[int, int] = (DEFAULT_SUBBUF_SIZE, DEFAULT_N_SUBBUFS),
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


def format_create(path: str, facts: native.Facts, perm: int, uid: int, gid: int) -> str:
    """Write the command that would make this channel again."""
    words = {
        "subbuf_size": format_size(facts.subbuf_size),
        "n_subbufs": str(facts.n_subbufs),
        "mode": native.MODES[facts.mode],
        "buffers": native.BUFFERS[facts.buffers],
        "scheme": native.SCHEMES[facts.scheme],
        "delivery": native.DELIVERIES[facts.delivery],
        "read": native.READS[facts.read],
        "reserve": native.RESERVES[facts.reserve],
        **{key: format_size(getattr(facts, key)) for key in RESERVED},
        "timestamp": native.TIMESTAMPS[facts.timestamp],
        "flush_interval": str(facts.flush_interval_ms),
        "perm": f"{perm:04o}",
        "uid": str(uid),
        "gid": str(gid),
    }
    return f"create {path} " + " ".join(f"{key}={value}" for key, value in words.items())
