"""Python's view of the C API, native/relay.cdef, says what the headers say, word for word."""

import re

import pytest
from build import HEADERS, ROOT
from c_declarations import declarations

CDEF = ROOT / "native/relay.cdef"


def constants(enum: str) -> dict[str, int]:
    """The enumerators whose value is given. With `...` the compiler fills it in: it cannot differ."""
    body = enum.partition("{")[2].partition("}")[0]
    items = (item.partition("=") for item in body.split(",") if "=" in item)
    found: dict[str, int] = {}
    for name, _, value in items:
        if value != "...":
            found[name] = eval(re.sub(r"(?<=\d)u\b", "", value), {}, found)
    return found


def names(enum: str) -> set[str]:
    body = enum.partition("{")[2].partition("}")[0]
    return {item.partition("=")[0] for item in body.split(",")} - {"", "..."}


def is_enum(text: str) -> bool:
    return text.startswith("enum") and "{" in text


IN_CDEF = declarations(CDEF)
IN_HEADERS = {text for path in HEADERS for text in declarations(path)}
CONSTANTS = {name: value for text in IN_HEADERS if is_enum(text) for name, value in constants(text).items()}


@pytest.mark.parametrize("declaration", [text for text in IN_CDEF if not is_enum(text)])
def test_declaration_stands_in_a_header(declaration):
    assert declaration in IN_HEADERS


@pytest.mark.parametrize("enum", [text for text in IN_CDEF if is_enum(text)])
def test_constants_are_those_of_a_header(enum):
    assert names(enum) <= CONSTANTS.keys()
    assert constants(enum).items() <= CONSTANTS.items()


def test_cdef_declares_functions():
    assert any(text.endswith(")") for text in IN_CDEF)
