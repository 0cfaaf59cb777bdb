"""The program and the libraries that a process has loaded, as in `.objects` and in crash cards, and in metadata.

    BASE SIZE BIAS BUILD_ID PATH                  a line; see native/src/trace/loaded.h
    object_0 = "BASE SIZE BIAS BUILD_ID PATH";    in the environment of a recording's metadata

The process can write anything there, so what is no such line is left out.
"""

from __future__ import annotations

import re

from relayfs_fuse.native.trace import OBJECTS_BYTES

_NUMBER = r"0x[0-9a-f]{1,16}"
_LINE = re.compile(rf"{_NUMBER} {_NUMBER} {_NUMBER} (?:-|[0-9a-f]{{2,64}}) [!#-\[\]-~]{{1,12288}}")


def parse(data: bytes) -> list[str]:
    """Return the lines, without their ends; a last one that has no end is not complete."""
    text = data[:OBJECTS_BYTES].decode("ascii", "replace")
    return [line for line in text.split("\n")[:-1] if _LINE.fullmatch(line)]


def text_of(lines: list[str]) -> bytes:
    """Return the text of lines."""
    return "".join(f"{line}\n" for line in lines).encode()
