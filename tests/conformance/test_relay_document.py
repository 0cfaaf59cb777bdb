"""The table of the relay document's sentences is whole, and the tests it names exist."""

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from build import ROOT
from conformance.model import Rules
from conformance.relay_document import Entry, digest, digest_of_all, sentences, table

TABLE = table()
# What relay_document.py finds in the document; if an entry goes or changes, they do not fit any more.
N_SENTENCES = 140
ALL_SENTENCES = "96e90af99798"
C_TESTS_RUN_BY = "tests/native/test_ring.py"


def test_the_table_has_all_sentences_of_the_document() -> None:
    assert len(TABLE) == N_SENTENCES
    assert digest_of_all(TABLE) == ALL_SENTENCES


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.digest)
def test_each_sentence_has_a_test_or_a_reason(entry: Entry) -> None:
    assert entry.says
    assert bool(entry.tests) != bool(entry.why)


# The summary of the API, in the document's order; where it has a dentry or a struct file, ours have a path.
NAMES = {
    "relay_open": 6, "relay_close": 1, "relay_flush": 1, "relay_reset": 1, "relay_subbufs_consumed": 3,
    "relay_write": 3, "__relay_write": 3, "relay_reserve": 2, "relay_buf_full": 1, "subbuf_start_reserve": 2,
    "relay_late_setup_files": 3, "subbuf_start": 4, "buf_mapped": 2, "buf_unmapped": 2, "create_buf_file": 5,
    "remove_buf_file": 1,
}  # fmt: skip


@pytest.mark.parametrize(("name", "n_parameters"), NAMES.items())
def test_the_names_of_the_document_are_declared(name: str, n_parameters: int) -> None:
    header = (ROOT / "native/include/relayfs/relay.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
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


@pytest.mark.parametrize("name", sorted({name for entry in TABLE for name in entry.tests}))
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


def test_sentences_are_told_apart() -> None:
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
    assert list(sentences(text)) == [
        ("Heading", "A first one, i.e. one."),
        ("Heading", "do_this() is the second."),
        ("Heading", "The third!"),
        ("Heading", "/* * A comment. It is long. */ static int code(void) { return 0; }"),
        ("Heading", "Last."),
    ]
    assert digest("The\n third!") == digest("The third!") != digest("The third")
