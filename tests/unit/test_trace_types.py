"""A type of fields of events stands in each table of types: one that is forgotten in one of them is found here."""

import re

import pytest
from build import ROOT

from relayfs_fuse.native.events import FIELD_TYPES, LEVELS
from relayfs_fuse.trace import Event
from relayfs_fuse.tracefiles import ctf

HEADER = (ROOT / "native/include/relayfs/trace_event.h").read_text()
ENUM = HEADER.partition("enum relay_trace_type {")[2].partition("RELAY_N_TRACE_TYPES")[0]
TYPES = tuple(name.lower() for name in re.findall(r"^\tRELAY_TRACE_(\w+),", ENUM, re.MULTILINE))

EVENT = """event {
	name = "app:one";
	id = 0;
	stream_id = 0;
	fields := struct {
		%s _x;
	};
};
"""


def rows(path: str) -> dict[str, str]:
    """The values of a C table that has a row [RELAY_TRACE_...] for each type."""
    text = (ROOT / path).read_text()
    return {name.lower(): value for name, value in re.findall(r'\[RELAY_TRACE_(\w+)\] = "?([^",]+)', text)}


def test_python_has_the_types_of_the_header_in_their_order():
    assert TYPES
    assert TYPES == FIELD_TYPES


@pytest.mark.parametrize("word", TYPES)
def test_c_and_python_declare_fields_of_each_type(word):
    assert f"#define RELAY_TRACE_AS_{word}(" in (ROOT / "native/include/relayfs/trace.h").read_text()
    assert Event("app", f"types_{word}", {"field": word}).name == f"app:types_{word}"


def test_the_library_writes_each_type_in_tsdl_and_the_recorder_reads_it():
    written = rows("native/src/trace/tsdl.c")
    assert written.keys() == set(TYPES) - {"bytes"}  # which is two fields
    for word, text in written.items():
        declared, _ = ctf.declarations_from((EVENT % text).encode(), 0)
        assert [declaration.types for declaration in declared] == [(word,)]


def test_the_check_of_packets_knows_the_size_of_each_type():
    assert rows("native/src/trace/layouts.c").keys() == set(TYPES) - {"string", "bytes"}  # which vary


def test_python_has_the_levels_of_the_header_in_their_order():
    enum = HEADER.partition("enum relay_trace_level {")[2].partition("RELAY_N_TRACE_LEVELS")[0]
    assert tuple(word.lower() for word in re.findall(r"^\tRELAY_TRACE_LEVEL_(\w+),", enum, re.MULTILINE)) == LEVELS


def test_the_manual_has_each_level():
    page = (ROOT / "mount/man/relayfs-trace.3").read_text()
    words = page.partition("The levels are LTTng's:\n.BR ")[2].partition("\n.PP")[0]
    assert tuple(re.findall(r"[A-Z_]{3,}", words)) == tuple(word.upper() for word in LEVELS)


def test_the_manual_has_each_type():
    page = (ROOT / "mount/man/relayfs-trace.3").read_text()
    tags = re.findall(r"^\.TP\n\.B (.*)", page.partition("The types of fields are")[2], re.MULTILINE)
    assert tuple(word for tag in tags for word in tag.split())[: len(TYPES)] == TYPES
