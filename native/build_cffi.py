"""Write the C source of `relayfs_fuse._native`: build_cffi.py OUTPUT PACKAGE HEADER...

The extension module has what Python calls: of the headers' declarations those whose names stand in a module
PACKAGE/*.py as lib.NAME, "struct NAME" or "enum NAME", and the types that they need. Macros are not among them; structs
with aligned fields are opaque.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from c_declarations import declarations
from cffi import FFI

_USED = re.compile(r"\blib\.(\w+)|\"((?:struct|enum) \w+)")
_TYPE = re.compile(r"\b(?:struct|enum) \w+")
_FUNCTION = re.compile(r"(\w+)\((?!\*)")


def used_names(package: Path) -> set[str]:
    """Find what the modules of the package want."""
    found: set[str] = set()
    for path in package.glob("*.py"):
        for name, type_name in _USED.findall(path.read_text()):
            found.add(name or type_name)
    return found


def names_of(declaration: str) -> set[str]:
    """Tell what a declaration declares: a function, a struct, or an enum with its constants."""
    head, brace, body = declaration.partition("{")
    function = _FUNCTION.search(head)
    if function:
        return {function[1]}
    named = set(_TYPE.findall(head))
    return named | set(_constants(body)) if brace and head.startswith("enum") else named


def _constants(body: str) -> list[str]:
    return re.findall(r"(?:^|,)(\w+)", body.partition("}")[0])


def wanted(found: Iterable[str], names: Iterable[str]) -> list[str]:
    """Choose declarations: those of the names, and before each the types that it mentions."""
    by_name: dict[str, str] = {}
    # Definitions first; some types have none, and are only said to exist.
    for declaration in sorted(found, key=lambda text: "{" not in text):
        for name in names_of(declaration):
            by_name.setdefault(name, declaration)
    missing = set(names) - by_name.keys()
    if missing:
        raise SystemExit(f"no header declares {', '.join(sorted(missing))}")
    chosen: list[str] = []
    seen: set[str] = set()

    def choose(declaration: str) -> None:
        if declaration in seen:
            return
        seen.add(declaration)
        for name in _TYPE.findall(declaration):
            if name in by_name:
                choose(by_name[name])
        chosen.append(declaration)

    for name in sorted(names):
        choose(by_name[name])
    return chosen


def cdef_of(declaration: str) -> str:
    """Write a declaration as cffi reads it: the compiler fills in the values of constants and the lengths of arrays."""
    head, brace, body = declaration.partition("{")
    if head.startswith("enum") and brace:
        return f"{head} {{ {', '.join(_constants(body))}, ... }};"
    if "RELAY_LINE" in body:  # cffi knows no alignment; and shared memory is not Python's to look at
        return f"{head} {{ ...; }};"
    return re.sub(r"\[\w*[A-Z]\w*\]", "[...]" if brace else "[]", declaration) + ";"


def write_source(output: Path, package: Path, headers: list[Path]) -> None:
    """Emit the extension's source, against the stable ABI.

    The headers are included as programs include them, so that the compiler compares each
    declaration with the real one.
    """
    found = [declaration for header in headers for declaration in declarations(header)]
    ffi = FFI()
    ffi.cdef("\n".join(map(cdef_of, wanted(found, used_names(package)))))
    # All headers at once: what two of them call by the same name has its long one.
    includes = "#define RELAYFS_CLASSIC_LONG_NAMES\n"
    includes += "".join(f"#include <{header.parent.name}/{header.name}>\n" for header in headers)
    ffi.set_source("relayfs_fuse._native", includes, py_limited_api=True)
    ffi.emit_c_code(str(output))


if __name__ == "__main__":
    write_source(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
