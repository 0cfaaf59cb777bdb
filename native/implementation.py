"""Write <relayfs/implementation.h>: the library in one file, for programs that are not linked to it.

    python3 implementation.py implementation.h
    python3 implementation.py --library library.c

The second is a source file of the whole library, which is compiled in a third of the time of its sources, as
headers are read once: for builds with -DRELAYFS_ONE_FILE=ON.

The header has all that <relayfs/producer.h> needs: channels, rings, counters and events, from the sources of the
library.
Sources are copied as they are, with these exceptions:

* A file that is included with quotes is copied to the place where it is included first.
* A name that two sources define for themselves gets the path of its source.
* The headers of the system come first, because all else is declared with hidden visibility.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

NATIVE = Path(__file__).parent
SRC = NATIVE / "src"
ROOMS = ("base", "store", "buffer", "ring", "channel", "counters", "trace")

TOKENS = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?:\.|->)\s*[A-Za-z_]\w*|[A-Za-z_]\w*|.""", re.S
)
COMMENTS = re.compile(r"/\*.*?\*/", re.S)
NOISE = re.compile(r"__attribute__\(\(.*?\)\) ?|RELAY_TLS")
INCLUDES = re.compile(r"[ \t]*#[ \t]*include[ \t]+(\S+)")
SYSTEM = re.compile(r"#include (<(?!relayfs/)\S+>)")
GUARDS = re.compile(r"#ifndef RELAYFS_\w+_H$")
MACROS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
# What a source defines for itself at file scope: functions, objects, structs, constants.
FUNCTIONS = re.compile(r"^static [^;={(]*?(\w+)(?:\[[^]]*\])*\s*(?:\(|=|;)", re.M)
OBJECTS_OF_STRUCTS = re.compile(r"^static [^;(]*?\{.*?^\}[^;=]*?(\w+)(?:\[[^]]*\])*\s*(?:=|;)", re.M | re.S)
STRUCTS = re.compile(r"^(?:static (?:const )?)?(?:struct|union|enum) (\w+) \{", re.M)
ENUMS = re.compile(r"^enum (?:\w+ )?\{(.*?)\}", re.M | re.S)

BEGINNING = """\
/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/implementation.h>: what <relayfs/producer.h> needs of the library, for a program that is not linked to it.
 * Do not include this file, but, in one C file of the program, which has nothing else:
 *
 *     #define RELAYFS_IMPLEMENTATION
 *     #include <relayfs/producer.h>
 *
 * implementation.py has written it from the sources of the library.
 */
#ifndef RELAYFS_IMPLEMENTATION_H
#define RELAYFS_IMPLEMENTATION_H

/* Options of the program that make the compiler warn of more do so of the program only. */
#pragma GCC system_header

#ifdef __cplusplus
#error "RELAYFS_IMPLEMENTATION is for a C file; what calls its functions may be C++"
#elif __STDC_VERSION__ < 201112L
#error "RELAYFS_IMPLEMENTATION needs C11 or later"
#elif !defined(_GNU_SOURCE)
#error "RELAYFS_IMPLEMENTATION needs -D_GNU_SOURCE, or #define _GNU_SOURCE before all headers"
#else

"""


def private_names(text: str) -> set[str]:
    """Get what a source defines for itself at file scope, but for macros."""
    text = NOISE.sub("", COMMENTS.sub("", text))
    constants = (constant for body in ENUMS.findall(text) for constant in re.findall(r"(?:^|,)\s*(\w+)", body))
    return {*FUNCTIONS.findall(text), *OBJECTS_OF_STRUCTS.findall(text), *STRUCTS.findall(text), *constants}


class Copy:
    """The sources of some rooms, one after the other."""

    def __init__(self, rooms: Iterable[str]) -> None:
        self.sources = {path: path.read_text() for room in rooms for path in sorted((SRC / room).glob("*.c"))}
        names = Counter(name for text in self.sources.values() for name in private_names(text))
        self.ambiguous = {name for name, sources in names.items() if sources > 1}
        self.seen: set[str] = set()

    def text(self) -> str:
        """Return them, with the headers that they include with quotes, and with #line where another file begins."""
        return "\n".join(self._source(path, text) for path, text in self.sources.items())

    def _source(self, path: Path, text: str) -> str:
        renamed = private_names(text) & self.ambiguous
        own = "_".join(("relay_own", *path.relative_to(SRC).with_suffix("").parts))
        text = "".join(f"{own}_{token}" if token in renamed else token for token in TOKENS.findall(text))
        copied = self._lines(path, text.replace("#define _GNU_SOURCE\n", "\n"))
        macros = [f"#undef {macro}" for macro in dict.fromkeys(MACROS.findall(text)) if macro != "_GNU_SOURCE"]
        return "\n".join((f"/* {path.relative_to(SRC)} */", copied, *macros, ""))

    def _lines(self, path: Path, text: str) -> str:
        copied = [f'#line 1 "{path}"']
        for number, line in enumerate(text.split("\n"), 1):
            copied.append(self._line(line))
            if "\n" in copied[-1]:
                copied.append(f'#line {number + 1} "{path}"')
        return "\n".join(copied)

    def _line(self, line: str) -> str:
        included = INCLUDES.match(line)
        if not included:
            return line
        what = included[1]
        if what.startswith('"'):
            return self._header(what.strip('"'))
        if what.startswith("RELAY_ARCH_"):
            return self._of_each_architecture(what)
        return line

    def _header(self, name: str) -> str:
        if name in self.seen:
            return ""
        self.seen.add(name)
        return self._lines(SRC / name, (SRC / name).read_text())

    def _of_each_architecture(self, macro: str) -> str:
        """Copy the header file that base/arch/arch.h gives this name, for each architecture."""
        if macro in self.seen:
            return ""
        self.seen.add(macro)
        arch = (SRC / "base/arch/arch.h").read_text()
        parts = re.split(r"^#(?:el)?if defined\((\w+)\)$", arch, flags=re.M)[1:]
        copied = []
        for condition, names in zip(parts[::2], parts[1::2], strict=True):
            files = dict(re.findall(r'#define (\w+) "(\S+)"', names))
            copied += [f"#if defined({condition})", self._header(files[macro]), "#endif"]
        return "\n".join(copied)


def system_headers(text: str) -> dict[str, bool]:
    """Get the headers of the system that a text includes, and whether it includes them under any conditions."""
    found: dict[str, bool] = {}
    conditions: list[bool] = []  # of those that hold here, whether they are more than a guard
    for line in text.split("\n"):
        if line.startswith("#if"):
            conditions.append(not GUARDS.match(line))
        elif line.startswith("#endif"):
            conditions.pop()
        elif included := SYSTEM.match(line):
            found[included[1]] = not any(conditions) or found.get(included[1], False)
    return found


def header() -> str:
    """Get <relayfs/implementation.h>."""
    text = re.sub(r"^#line .*\n", "", Copy(ROOMS).text(), flags=re.M)
    public = "\n".join(path.read_text() for path in sorted((NATIVE / "include").rglob("*.h")))
    headers = [
        f"#include {name}" if is_needed else f"#if __has_include({name})\n#include {name}\n#endif"
        for name, is_needed in sorted(system_headers(f"{public}\n{text}").items())
    ]
    return "\n".join(
        (
            BEGINNING,
            *headers,
            "\n#pragma GCC visibility push(hidden)\n",
            text,
            "#pragma GCC visibility pop\n\n#endif\n#endif\n",
        )
    )


def library() -> str:
    """Get a source file of the whole library."""
    return f"#define _GNU_SOURCE\n{Copy(sorted(path.name for path in SRC.iterdir())).text()}"


def main(*arguments: str) -> None:
    """Write one of them."""
    Path(arguments[-1]).write_text(library() if arguments[0] == "--library" else header())


if __name__ == "__main__":
    main(*sys.argv[1:])
