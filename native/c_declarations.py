"""Read the declarations of a C header, as text."""

import re
from pathlib import Path

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
# Fields that several structs have.
FIELDS = re.compile(r"^#define (\w+_FIELDS) ((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
# How a function is bound is no part of how it is called.
BINDING = re.compile(r"\bRELAY_TRACE_BOUND_EARLY\s+")
EXTERN_C = re.compile(r'extern\s+"C"\s*\{')


def declarations(path: Path) -> list[str]:
    """Top-level declarations, without assertions, with the fields that are macros, white space normalised."""
    text = BINDING.sub("", EXTERN_C.sub("", DIRECTIVE.sub("", COMMENT.sub("", path.read_text()))))
    for header in path.parent.glob("*layout.h"):
        for name, fields in FIELDS.findall(COMMENT.sub("", header.read_text())):
            text = re.sub(rf"\b{name}\b", fields.replace("\\\n", ""), text)
    found, start, depth = [], 0, 0
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == ";" and depth == 0:
            found.append(normalise(text[start:position]))
            start = position + 1
    return [text for text in found if not text.startswith("RELAY_STATIC_ASSERT")]


def normalise(text: str) -> str:
    """Leave only the white space that separates words."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()
