"""The language of the control file: one command a line.

    create PATH [key=value ...]    flush PATH     enable PATH    consumed PATH CPU N
    remove PATH                    reset PATH     disable PATH   resume PATH
    adopt PATH FD,FD,... [key=value ...]
    trace ...                      see trace_control.py
    trigger ...                    see trigger_control.py

Words are separated by spaces or tabs. Empty lines and lines that begin with `#` are ignored. This module checks the
syntax of a line and the values of options; channel.py checks whether PATH exists. The options of `create` are in
native/src/store/options.c, in a table for each type of channel.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from relayfs_fuse import native
from relayfs_fuse.errors import CommandError
from relayfs_fuse.native.buffer import HEAD_BYTES
from relayfs_fuse.native.tables import OPTIONS, RELAY_OPTIONS, TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relayfs_fuse.native.library import Fields
    from relayfs_fuse.native.tables import Option

VERBS = ("create", "remove", "flush", "reset", "enable", "disable", "resume", "consumed", "adopt", "trace", "trigger")
# The options whose bytes of a sub-buffer records cannot use.
RESERVED = ("start_reserve", "end_reserve", "channel_start_reserve")
# The options of `adopt`; all others are decided by the program that made the files.
ADOPT_OPTIONS = {key: RELAY_OPTIONS[key] for key in ("perm", "uid", "gid")}

# The default size of a sub-buffer, in bytes, and number of sub-buffers.
DEFAULT_SIZES = RELAY_OPTIONS["subbuf_size"].initial, RELAY_OPTIONS["n_subbufs"].initial
# The smallest values to which the defaults are reduced if little memory is free.
LEAST_SUBBUF_SIZE = 4096
LEAST_N_SUBBUFS = 2

# Bytes of a name and of a PATH. A file name has at most 255 bytes, of which a CPU number, and the temporary name while
# a directory is made, need some.
NAME_MAX = 200
PATH_MAX = 1024
# Lines and bytes of one write(2). A user's next command waits until the write is carried out, so its length is limited.
LINES_MAX = 1024
WRITE_MAX = 64 << 10
# Other names for commands, for suggestions.
_SYNONYMS = {
    **dict.fromkeys(("delete", "del", "destroy", "rm", "unlink"), "remove"),
    **dict.fromkeys(("add", "make", "mk", "new", "open"), "create"),
    **dict.fromkeys(("begin", "on"), "start"),
    **dict.fromkeys(("end", "off"), "stop"),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Word:
    """A word of a line and where it begins."""

    text: str
    column: int


class Placed:
    """A command that knows where its words are in the line; columns count from 0.

    column: where its path or name begins
    columns: where other words begin, by key
    """

    column: int
    columns: dict[str, int]

    def refuse(self, code: int, message: str, key: str | None = None) -> CommandError:
        """Return the error that points at the word of `key` in the line, or at the path or name."""
        return CommandError(code, message, self.columns.get(key, self.column) if key else self.column)


@dataclass
class Command(Placed):
    """A command whose syntax is correct.

    line: the whole line
    options: the values of the options of create and adopt, by key; keys that were not given are missing
    columns: of the options, by key; of other commands, "cpu" and "descriptors"
    cpu, count: of consumed
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
        """The type of the channel that create makes: a key of OPTIONS."""
        return TYPES[self.options.get("type", 0)]

    @property
    def reserved(self) -> int:
        """How many bytes of the first sub-buffer no record takes."""
        return sum(self.options.get(key, 0) for key in RESERVED)


class Options(Protocol):
    """A command with options, of channels (Command) or traces (TraceCommand)."""

    options: dict[str, int]
    columns: dict[str, int]

    def refuse(self, code: int, message: str, key: str | None = None) -> CommandError:
        """Return the error that points at the word of `key` in the line."""


class Sizes(Options, Protocol):
    """A command that makes relay buffers."""

    @property
    def reserved(self) -> int:
        """How many bytes of the first sub-buffer no record takes."""


def split_write(text: bytes) -> list[str]:
    """Return the lines of one write(2) that are not blank; CommandError: E2BIG, too many bytes or lines."""
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
    """Parse one line; None: it is blank or a comment; CommandError.

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
    """Whether the PATH is in quotes and has blanks. A quote that is not closed is an ordinary character of a path."""
    quote = words[0].text[0] if words else ""
    return quote in ("'", '"') and any(word.text.endswith(quote) and "=" not in word.text for word in words[1:])


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean ...?" if a word is similar to one of the known words, else ""."""
    import difflib  # noqa: PLC0415  # only mistakes need it

    meant = _SYNONYMS.get(word.lower()) or next(iter(difflib.get_close_matches(word.lower(), known, 1)), None)
    return f"; did you mean {meant}?" if meant in known else ""


def check_path(path: str, column: int = 0) -> None:
    """Check the path of a channel; CommandError: EINVAL, ENAMETOOLONG.

    column: where the path begins in the line
    """
    check_path_length(path, column)
    at = column
    for name in path.split("/"):
        if not name:
            raise CommandError(errno.EINVAL, f"PATH {path!r}: names are separated by single slashes", at)
        check_name(name, at)
        at += len(name) + 1


def check_path_length(path: str, column: int = 0) -> None:
    """Check how long the path of a channel is; CommandError: ENAMETOOLONG."""
    length = len(os.fsencode(path))
    if length > PATH_MAX:
        raise CommandError(errno.ENAMETOOLONG, f"PATH is longer than {PATH_MAX} bytes; it has {length}", column)


def check_name(name: str, column: int = 0) -> None:
    """Check the name of a channel or directory; CommandError: EINVAL, ENAMETOOLONG.

    column: where the name begins in the line
    """
    if name.startswith("."):
        raise CommandError(errno.EINVAL, f"{name!r}: names that begin with a dot belong to relayfs", column)
    if len(os.fsencode(name)) > NAME_MAX:
        length = len(os.fsencode(name))
        raise CommandError(errno.ENAMETOOLONG, f"a name is longer than {NAME_MAX} bytes; it has {length}", column)
    if _CONTROL.search(name):
        raise CommandError(errno.EINVAL, f"{name!r}: a name holds no control characters", column)


def parse_size(text: str) -> int:
    """Parse a number of bytes with an optional K, M or G (powers of 1024, in either case); ValueError."""
    match = re.fullmatch(r"([0-9]{1,20})([KMG]?)", text, re.IGNORECASE)
    if not match:
        raise ValueError(text)
    return int(match.group(1)) * _UNITS[match.group(2).upper()]


def format_size(size: int) -> str:
    """Format a number of bytes for parse_size(), with the largest unit that is exact."""
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
    """Return the type of the channel, TYPES[0] if none is given; _parse_options() refuses an unknown one."""
    given = (word.text.partition("=")[2] for word in words if word.text.startswith("type="))
    return next((name for name in given if name in TYPES), TYPES[0])


def split_option(command: Options, word: Word, allowed: Mapping[str, str]) -> tuple[str, str]:
    """Return KEY and VALUE of `KEY=VALUE`, and note the word's column in the command.

    CommandError: EINVAL if the key is unknown, has no value, or is given twice.

    allowed: by key, the allowed values in words
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
    """Parse the VALUE of an option into command.options; CommandError: EINVAL."""
    try:
        command.options[option.key] = option.parse(value)
    except ValueError:
        raise _invalid(word, f"{option.key}={value}: not allowed; allowed: {option.allowed}") from None


def _unknown(word: Word, message: str, keys: Sequence[str]) -> CommandError:
    hint = suggestion(word.text.partition("=")[0], keys)
    return _invalid(word, f"{message}{hint}; there are: {', '.join(f'{key}=' for key in keys)}")


def _parse_options(command: Command, words: Sequence[Word], type_of: str | None) -> None:
    """Parse `key=value` words.

    type_of: the type of the channel that create makes; None: the command is adopt
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
        _check_times(command)


def check_sizes(command: Sizes) -> None:
    """Check subbuf_size and n_subbufs against the largest buffer; CommandError: EINVAL.

    An option that was not given counts as the smallest value that its default may be reduced to.
    """
    subbuf_size = command.options.get("subbuf_size", LEAST_SUBBUF_SIZE)
    n_subbufs = command.options.get("n_subbufs", LEAST_N_SUBBUFS)
    if not native.buf_file_bytes(subbuf_size, n_subbufs):
        key = "n_subbufs" if "n_subbufs" in command.options else "subbuf_size"
        raise command.refuse(
            errno.EINVAL, f"{n_subbufs} sub-buffers of {subbuf_size} bytes: at most {2**40} bytes together", key
        )


def _check_reserved(command: Command) -> None:
    subbuf_size = command.options.get("subbuf_size", RELAY_OPTIONS["subbuf_size"].initial)
    head = HEAD_BYTES if command.options.get("times") else 0
    if command.reserved + head < subbuf_size:
        return
    if command.reserved < subbuf_size:
        raise command.refuse(
            errno.EINVAL,
            f"times: a record has {head} bytes before it, and a sub-buffer of {subbuf_size} bytes, of which "
            f"{command.reserved} are reserved, has no room for more",
            "times",
        )
    key = max(RESERVED, key=lambda key: command.options.get(key, 0))
    raise command.refuse(
        errno.EINVAL,
        f"{key}={command.options[key]}: not allowed; allowed: start_reserve, end_reserve and channel_start_reserve "
        f"together less than subbuf_size, which is {subbuf_size}; they are {command.reserved}",
        key,
    )


def _check_times(command: Command) -> None:
    """Refuse options that contradict times=; CommandError: EINVAL."""
    times = command.options.get("times", 0)
    if not times:
        return
    word = RELAY_OPTIONS["times"].format(times)
    for key, (allowed, why) in {
        "mode": (("no-overwrite", "overwrite"), "a function that lets sub-buffers begin keeps them from being merged"),
        "reserve": (("commit",), "a record that is visible before it is committed cannot be merged"),
        "timestamp": ((word,), "sub-buffers and records have times of one clock"),
    }.items():
        option = RELAY_OPTIONS[key]
        given = option.format(command.options.get(key, option.initial))
        if key in command.options and given not in allowed:
            raise command.refuse(
                errno.EINVAL,
                f"{key}={given}: not with times={word}, because {why}; allowed: {' or '.join(allowed)}",
                key,
            )


def _parse_consumed(command: Command, words: Sequence[Word]) -> None:
    if len(words) < 2:
        raise CommandError(errno.EINVAL, "consumed PATH CPU N: words are missing", len(command.line))
    if len(words) > 2:
        raise _invalid(words[2], "consumed takes PATH, CPU and N and nothing else")
    for word, name in zip(words, ("cpu", "count"), strict=True):
        what, most = ("CPU", 2**32 - 1) if name == "cpu" else ("N", 2**63 - 1)
        try:
            setattr(command, name, _number(word.text, most))
        except ValueError:
            raise _invalid(word, f"{word.text!r}: {what} is a number from 0 to {most}") from None
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
    """Choose the sizes of relay buffers: the options, or defaults reduced to a sixteenth of the free memory.

    n_buffers: how many buffers there will be
    free_bytes: how many bytes of the store are free
    default: the size of a sub-buffer in bytes, and the number of sub-buffers

    Returns the size, the number, and the text for error_log if a default was reduced.
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
        f"free; subbuf_size= and n_subbufs= choose other sizes",
    )


def format_options(type_of: str, stats: Fields, owner: Mapping[str, int]) -> str:
    """Return the options of the `create` command that would make a channel again.

    owner: the values of perm, uid and gid
    """
    words = [f"type={type_of}"] if type_of != TYPES[0] else []
    for key, option in OPTIONS[type_of].items():
        if option.field:
            words.append(_word(type_of, key, owner[key] if key in owner else getattr(stats, option.field)))
    return " ".join(words)


@functools.lru_cache(maxsize=4096)
def _word(type_of: str, key: str, number: int) -> str:
    """Return an option and its value. They are kept, as most channels have the same ones."""
    return f"{key}={OPTIONS[type_of][key].format(number)}"
