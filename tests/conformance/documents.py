"""The sentences of the five documents that relayfs follows, and the tests that show what they state.

NAME_document.toml has an entry for each sentence of a document, in order: a digest of the sentence, what it says in our
words, and the tests that hold relayfs to it, or the reason why there is none. docs/conformance.md shows these tables.
The documents themselves stay outside:

    classic   Tom Zanussi's announcement of relayfs on the linux-kernel list of 18 March 2003, with
              Documentation/filesystems/relayfs.txt
    relay     Documentation/filesystems/relay.txt of Linux at c9f3f2d8b3, GPL-2.0
    ringbuf   Andrii Nakryiko's design notes of the BPF ring buffer, with their review, of May 2020:
              "[v2,bpf-next,7/7] docs/bpf: add BPF ring buffer design notes" on patchwork
    tracing   Mathieu Desnoyers's "[RFC] Userspace tracing memory mappings" on the linux-kernel list of 23 January 2008,
              and the answers
    counters  "Proposed ABI" of performance counters that are read by mmap(), on the linux-kernel list

Who has one at hand compares the table with it by

    python tests/conformance/documents.py relay relay.txt

which names sentences that are missing or changed. Without it the digest of all digests tells that none has gone.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CODE = re.compile(r"^(?:/\*(?:(?!\*/).)*\*/\n)?static .*?^\};?$", re.MULTILINE | re.DOTALL)


# In the others, a sentence begins with a capital letter, a bracket or the name of a function.
PROSE = re.compile(r"(?<=[.?!])(?<!i\.e\.)(?<!e\.g\.)(?<!Ph\.D\.)(?<!Ch\.)\s+(?=[A-Z(]|[a-z]+_[\w(),/]+ )")


@dataclass(frozen=True)
class Entry:
    """One sentence.

    section: the heading it stands under
    says: what it says
    tests: "file::name" of the tests that show it
    why: the reason, where there are none
    """

    section: str
    digest: str
    says: str
    tests: list[str] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True)
class Document:
    """One document.

    title: what docs/conformance.md calls it
    begins: its first words; what a copy has before them is left out
    sentence_end: what lies between two sentences
    separate: puts empty lines between what else is apart
    """

    name: str
    title: str
    begins: str
    sentence_end: re.Pattern[str]
    separate: Callable[[str], str] = str

    def table(self) -> list[Entry]:
        """Read its .toml."""
        sections = tomllib.loads((HERE / f"{self.name}_document.toml").read_text())["section"]
        return [Entry(section["title"], **entry) for section in sections for entry in section["sentence"]]

    def text(self, copy: Path) -> str:
        """Read a copy of it, also one that was taken from a web page with the dividers between its lines."""
        text = copy.read_text()
        text = text[text.index(self.begins) :]
        lines = [re.sub(r"^\| \|", "", line) for line in text.splitlines() if not line.startswith(" | |")]
        return "\n".join(re.sub(r"^\| |\s+\|$", "", line) for line in lines) + "\n"

    def sentences(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield each sentence with the heading above it; a piece of code is one sentence."""
        section = ""
        for block in _blocks(self.separate(text)):
            heading, underline, *rest = [*block.splitlines(), "", ""]
            headed = bool(underline) and set(underline) in ({"="}, {"-"})
            section = heading if headed else section
            part = "\n".join(rest) if headed else block
            for sentence in [part] if CODE.match(part) else self.sentence_end.split(part.strip()):
                if sentence.strip():
                    yield section, " ".join(sentence.split())


def _separate_2003(text: str) -> str:
    """Prototypes and the points of lists are sentences; a dashed line is none."""
    text = re.sub(r"^-{4,}$", "", text, flags=re.MULTILINE)
    return re.sub(r"^(?=- |(?:int|void) relay_\w+\()", "\n", text, flags=re.MULTILINE)


LETTERS = re.compile(r"^(?:by (.+)|(\w+ \w+) May \d+, 2020, .* UTC.*)$", re.MULTILINE)
NOT_THE_LETTERS_OWN = [
    r"^On .*(?:\n.*)?wrote:$",
    r"^(?:>.*|.* (?:wrote|writes):|\[\.\.\.\]|\[permalink\].*|Subject: .*|\d{4}-\d\d-\d\d [\d:]+|--|---)$",
    r"^(?:diff |new file |index |\+\+\+ |--- |@@ ).*$",
    r"^\+",
]


def _separate_letters(text: str) -> str:
    """Leave out what letters quote, and the marks of a patch; writers are headings, the points of lists sentences."""
    for pattern in NOT_THE_LETTERS_OWN:
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    text = LETTERS.sub(lambda head: f"\n{head[1] or head[2]}\n===\n", text)
    return re.sub(r"^(?=\s*- )", "\n", text, flags=re.MULTILINE)


def _separate_proposal(text: str) -> str:
    """Nothing lies between its paragraphs, headings and pieces of code."""
    text = re.sub(r"(?<=\n)(?=.+\n=+$)", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=[;}])\n(?=[A-Z])", "\n\n", text)
    return re.sub(r"^(?=\* |(?:user space|kernel): |(?:int|void) perf_|-$)", "\n", text, flags=re.MULTILINE)


DOCUMENTS = {
    # A sentence begins with a capital letter or with the name of a function.
    "relay": Document(
        "relay",
        "The relay interface of Linux, Documentation/filesystems/relay.txt",
        "relay interface (formerly relayfs)",
        re.compile(r"(?<=[.?!])\s+(?=[A-Z]|[a-z_]+\(\) )"),
    ),
    # Here with any: "start_time contains ...".
    "classic": Document(
        "classic",
        "The announcement of relayfs, 18 March 2003, with its document",
        "[ANNOUNCE] relayfs",
        re.compile(r"(?<=[.?!])(?<!i\.e\.)\s+"),
        _separate_2003,
    ),
    "ringbuf": Document(
        "ringbuf",
        "The design notes of the BPF ring buffer, May 2020, with their review",
        "Comments\n",
        PROSE,
        _separate_letters,
    ),
    "tracing": Document(
        "tracing",
        "The request for comments on memory mappings for user-space tracing, 23 January 2008, with the answers",
        "2008-01-23 16:12:44",
        PROSE,
        _separate_letters,
    ),
    "counters": Document(
        "counters",
        "The proposal of performance counters that are read by mmap()",
        "Justification\n",
        PROSE,
        _separate_proposal,
    ),
}
RELAY, CLASSIC, RINGBUF, TRACING, COUNTERS = DOCUMENTS.values()


# What a reason begins with where a sentence asks for nothing; any other reason stands in docs/conformance.md.
ASKS_NOTHING = "states no behaviour: "
HEADING = "# What the documents say, and what shows it"


def conformance() -> str:
    """Return the last part of docs/conformance.md: what each document asks for, and the tests that show it."""
    lines = [
        HEADING,
        "",
        "relayfs follows five documents. Each of their sentences that states a behaviour has a row, in our words,",
        "with the tests that show it. Where relayfs differs, `(relayfs: ...)` says how. This part is made",
        "from the files `*_document.toml`: `RELAYFS_CONFORMANCE=write ./dev test tests/conformance/test_documents.py`.",
    ]
    for document in DOCUMENTS.values():
        table = document.table()
        rows = [entry for entry in table if not entry.why.startswith(ASKS_NOTHING)]
        lines += ["", f"## {document.title}", ""]
        others = len(table) - len(rows)
        lines += [f"{len(rows)} rows. {others} more sentences state no behaviour: headings, thanks, advice."]
        lines += ["", "| the document says | tested by |", "| --- | --- |"]
        lines += [f"| {entry.says} | {_shown_by(entry)} |".replace("\n", " ") for entry in rows]
    return "\n".join(lines) + "\n"


def _shown_by(entry: Entry) -> str:
    return "; ".join("`{}` `{}`".format(*test.removeprefix("tests/").split("::")) for test in entry.tests) or entry.why


def digest(sentence: str) -> str:
    """Return what stands for a sentence, however its lines are broken."""
    return hashlib.sha256(" ".join(sentence.split()).encode()).hexdigest()[:12]


def digest_of_all(entries: list[Entry]) -> str:
    """Return what stands for the document."""
    return digest(" ".join(entry.digest for entry in entries))


def _blocks(text: str) -> Iterator[str]:
    at = 0
    for code in CODE.finditer(text):
        yield from re.split(r"\n\s*\n", text[at : code.start()])
        yield code[0]
        at = code.end()
    yield from re.split(r"\n\s*\n", text[at:])


def main(document: Document, copy: Path) -> int:
    """Say which sentences the table does not have, and which of its entries are no sentences; 0: none."""
    there = [(section, digest(sentence), sentence) for section, sentence in document.sentences(document.text(copy))]
    entries = [(entry.section, entry.digest) for entry in document.table()]
    for section, key, sentence in there:
        if (section, key) not in entries:
            print(f"not in the table: {key} ({section}) {sentence}")
    for section, key in entries:
        if (section, key) not in [(section, key) for section, key, _ in there]:
            print(f"not in the document: {key} ({section})")
    same = entries == [(section, key) for section, key, _ in there]
    print(f"{len(there)} sentences: " + ("all there, in order" if same else "the table differs"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(DOCUMENTS[sys.argv[1]], Path(sys.argv[2])))
