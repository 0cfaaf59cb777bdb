"""A type of fields of events has a number, a macro, a row in the library's table and a place in the manual: one that is
forgotten in one of them is found here."""

import re

import pytest
from build import ROOT

from relayfs_fuse.native.events import FIELD_TYPES, LEVELS, FieldKind
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
		%s
	};
};
"""


def test_the_table_has_the_types_of_the_header_in_their_order():
    assert TYPES
    assert tuple(FIELD_TYPES) == TYPES


@pytest.mark.parametrize("word", TYPES)
def test_c_and_python_declare_fields_of_each_type(word):
    assert f"#define RELAY_TRACE_AS_{word}(" in (ROOT / "native/include/relayfs/trace.h").read_text()
    assert Event("app", f"types_{word}", {"field": word}).name == f"app:types_{word}"


@pytest.mark.parametrize("word", TYPES)
def test_each_type_has_a_kind_a_length_and_a_declaration_that_the_recorder_reads(word):
    kind = FIELD_TYPES[word]
    assert bool(kind.bytes) == (kind.kind not in (FieldKind.STRING, FieldKind.BYTES))
    assert not kind.alias or kind.alias.endswith(f":= {kind.tsdl.split()[0]};\n")
    declared, _ = ctf.declarations_from((EVENT % kind.tsdl.replace("$", "x")).encode(), 0)
    assert [declaration.fields for declaration in declared] == [(("x", word),)]


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
