"""The tables of the documents' sentences are whole, the tests they name exist, and docs/conformance.md shows them."""

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import c_tests
import pytest
from build import ROOT
from conformance.documents import (
    ASKS_NOTHING,
    CLASSIC,
    COUNTERS,
    HEADING,
    RELAY,
    RINGBUF,
    TRACING,
    Document,
    conformance,
    digest,
    digest_of_all,
)
from conformance.model import Rules

# What documents.py finds in each; if an entry goes or changes, they do not fit any more.
WHOLE = {
    RELAY: (140, "96e90af99798"),
    CLASSIC: (186, "b6aa3a2f04f3"),
    RINGBUF: (112, "30186fe72d8a"),
    TRACING: (83, "18d09d4ba2c3"),
    COUNTERS: (73, "b4de2f2eecc1"),
}
ENTRIES = [entry for document in WHOLE for entry in document.table()]
CONFORMANCE = ROOT / "docs/conformance.md"


@pytest.mark.parametrize("document", WHOLE, ids=lambda document: document.name)
def test_the_table_has_all_sentences_of_the_document(document: Document) -> None:
    table = document.table()
    assert (len(table), digest_of_all(table)) == WHOLE[document]


@pytest.mark.parametrize("document", WHOLE, ids=lambda document: document.name)
def test_each_sentence_has_a_test_or_a_reason(document: Document) -> None:
    table = document.table()
    assert not [entry for entry in table if not entry.says or bool(entry.tests) == bool(entry.why)]
    # "partly" would be neither.
    assert not [entry for entry in table if "partly" in entry.says + entry.why]


def test_what_user_space_cannot_have_is_said() -> None:
    """No sentence asks for what there is not, but for those of this list; each has its reason in the table."""
    assert [entry.says for entry in ENTRIES if entry.why and not entry.why.startswith(ASKS_NOTHING)] == []


def test_the_page_shows_the_tables() -> None:
    text = CONFORMANCE.read_text()
    differences = text.partition(f"{HEADING}\n")[0]
    whole = differences + conformance()
    if os.environ.get("RELAYFS_CONFORMANCE") == "write":
        CONFORMANCE.write_text(whole)
    assert CONFORMANCE.read_text() == whole, (
        "docs/conformance.md is not what the tables say: RELAYFS_CONFORMANCE=write ./dev test "
        "tests/conformance/test_documents.py"
    )


# The summaries of the APIs, in the documents' order; where one has a dentry or a struct file, ours have a path.
NAMES = {
    "relay_open": 6, "relay_close": 1, "relay_flush": 1, "relay_reset": 1, "relay_subbufs_consumed": 3,
    "relay_write": 3, "__relay_write": 3, "relay_reserve": 2, "relay_buf_full": 1, "subbuf_start_reserve": 2,
    "relay_late_setup_files": 3, "subbuf_start": 4, "buf_mapped": 2, "buf_unmapped": 2, "create_buf_file": 5,
    "remove_buf_file": 1,
}  # fmt: skip
CLASSIC_NAMES = {
    "relay_open": 8, "relay_write": 4, "relay_buffers_consumed": 2, "relay_resume": 1, "relay_info": 2,
    "relay_close": 1, "buffer_start": 6, "buffer_end": 6, "deliver": 3, "buffers_full": 1, "rchan_get": 1,
    "relay_lock_channel": 1, "relay_reserve": 5, "relay_commit": 3, "relay_unlock_channel": 1, "rchan_put": 1,
}  # fmt: skip
DECLARED = [("relay.h", *one) for one in NAMES.items()] + [("classic.h", *one) for one in CLASSIC_NAMES.items()]


@pytest.mark.parametrize(("header", "name", "n_parameters"), DECLARED)
def test_the_names_of_the_document_are_declared(header: str, name: str, n_parameters: int) -> None:
    code = re.sub(r"/\*.*?\*/", "", (ROOT / "native/include/relayfs" / header).read_text(), flags=re.DOTALL)
    # In classic.h some are macros for longer names.
    (name,) = re.findall(rf"^#define {name} (\w+)$", code, re.MULTILINE) or [name]
    (parameters,) = re.findall(rf"\W\(?\*?{name}\)?\(([^()]*)\);", code)
    assert len(parameters.split(",")) == n_parameters


def names_in(path: Path) -> Iterator[str]:
    """Yield the tests of a Python or a C file."""
    if path.suffix == ".c":
        yield from c_tests.names_in(path)
    else:
        yield from re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)


@cache
def found_in(file: str) -> set[str]:
    path = ROOT / file
    return set(names_in(path)) if path.exists() else set()


@pytest.mark.parametrize("document", WHOLE, ids=lambda document: document.name)
def test_the_tests_in_the_table_exist(document: Document) -> None:
    names = {name for entry in document.table() for name in entry.tests}
    assert not [name for name in sorted(names) if name.partition("::")[2] not in found_in(name.partition("::")[0])]


DIFFERENCES = [
    row
    for row in CONFORMANCE.read_text().partition(HEADING)[0].splitlines()
    if row.startswith("| ") and not row.startswith(("| | ", "| --- "))
]


def test_each_difference_is_held_by_something() -> None:
    held = [row.rstrip("|").rpartition("|")[2].strip() for row in DIFFERENCES]
    assert len(held) > 100
    rules = {rule.name for rule in fields(Rules)}
    files = {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("*.*")}
    for row, by in zip(DIFFERENCES, held, strict=True):
        names = set(re.findall(r"`([\w./]+)`", by))
        assert names & (rules | files), f"nothing holds it: {row}"
        assert not [name for name in names - files if name.endswith((".py", ".c"))], row


def test_rules_of_the_model_are_told() -> None:
    table = CONFORMANCE.read_text()
    assert not [rule.name for rule in fields(Rules) if f"`{rule.name}`" not in table]


def test_sentences_of_the_relay_document_are_told_apart() -> None:
    text = """Heading
=======

A first one, i.e. one. do_this() is the second.  The
third!

/*
 * A comment. It is long.
 */
static int code(void)
{
	return 0;

}

Last.
"""
    assert list(RELAY.sentences(text)) == [
        ("Heading", "A first one, i.e. one."),
        ("Heading", "do_this() is the second."),
        ("Heading", "The third!"),
        ("Heading", "/* * A comment. It is long. */ static int code(void) { return 0; }"),
        ("Heading", "Last."),
    ]
    assert digest("The\n third!") == digest("The third!") != digest("The third")


def test_sentences_of_the_document_of_2003_are_told_apart() -> None:
    text = """Heading
=======

The summary, i.e. two:
int relay_one(a,
b)
void relay_two(c)

----------
int relay_one(a, b)

relay_one() is one. start_time is
another.
- a point. It goes on
- a second one

--
"""
    assert list(CLASSIC.sentences(text)) == [
        ("Heading", sentence)
        for sentence in (
            "The summary, i.e. two:", "int relay_one(a, b)", "void relay_two(c)", "int relay_one(a, b)",
            "relay_one() is one.", "start_time is another.", "- a point.", "It goes on", "- a second one", "--",
        )
    ]  # fmt: skip
