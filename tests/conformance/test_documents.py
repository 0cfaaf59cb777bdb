"""The tables of the documents' sentences are whole, and the tests they name exist."""

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from build import ROOT
from conformance.documents import CLASSIC, RELAY, Document, Entry, digest, digest_of_all
from conformance.model import Rules

# What documents.py finds in each; if an entry goes or changes, they do not fit any more.
WHOLE = {RELAY: (140, "96e90af99798"), CLASSIC: (186, "b6aa3a2f04f3")}
ENTRIES = [(document, entry) for document in WHOLE for entry in document.table()]
C_TESTS_RUN_BY = "tests/native/test_ring.py"


@pytest.mark.parametrize("document", WHOLE, ids=lambda document: document.name)
def test_the_table_has_all_sentences_of_the_document(document: Document) -> None:
    table = document.table()
    assert (len(table), digest_of_all(table)) == WHOLE[document]


@pytest.mark.parametrize(("document", "entry"), ENTRIES, ids=[f"{of.name}-{entry.digest}" for of, entry in ENTRIES])
def test_each_sentence_has_a_test_or_a_reason(document: Document, entry: Entry) -> None:
    assert entry.says, document.name
    assert bool(entry.tests) != bool(entry.why)


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
    pattern = r"^TEST\((\w+)\)" if path.suffix == ".c" else r"^(?:async )?def (test_\w+)\("
    yield from re.findall(pattern, path.read_text(), re.MULTILINE)


@cache
def found_in(file: str) -> set[str]:
    path = ROOT / file
    if path.suffix == ".c":
        assert f'"{path.stem}"' in (ROOT / C_TESTS_RUN_BY).read_text(), f"{file} is not run"
    return set(names_in(path)) if path.exists() else set()


@pytest.mark.parametrize("name", sorted({name for _, entry in ENTRIES for name in entry.tests}))
def test_the_found_in_the_table_exist(name: str) -> None:
    file, _, test = name.partition("::")
    assert test in found_in(file)


def test_what_holds_the_deviations_exists() -> None:
    table = (ROOT / "docs/conformance.md").read_text()
    files = set(re.findall(r"`((?:test_)?\w+\.(?:py|c))`", table))
    assert len(files) > 5
    assert not [name for name in files if not list((ROOT / "tests").glob(f"*/{name}"))]


def test_rules_of_the_model_are_told() -> None:
    table = (ROOT / "docs/conformance.md").read_text()
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
