"""The sentences of the two documents that relayfs follows, and the tests that show what they state.

relay_document.toml and classic_document.toml have an entry for each sentence, in order: a digest of the sentence, what
it says in our words, and the tests that hold relayfs to it, or the reason why there is none. The documents stay
outside: one is Linux's, GPL-2.0 (Documentation/filesystems/relay.txt at c9f3f2d8b3), the other is Tom Zanussi's
announcement of relayfs on the linux-kernel list of 18 March 2003, with Documentation/filesystems/relayfs.txt. Who has
one at hand compares the table with it by

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

    begins: its first words; what a copy has before them is left out
    sentence_end: what lies between two sentences
    separate: puts empty lines between what else is apart
    """

    name: str
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


DOCUMENTS = {
    # A sentence begins with a capital letter or with the name of a function.
    "relay": Document(
        "relay", "relay interface (formerly relayfs)", re.compile(r"(?<=[.?!])\s+(?=[A-Z]|[a-z_]+\(\) )")
    ),
    # Here with any: "start_time contains ...".
    "classic": Document("classic", "[ANNOUNCE] relayfs", re.compile(r"(?<=[.?!])(?<!i\.e\.)\s+"), _separate_2003),
}
RELAY, CLASSIC = DOCUMENTS.values()


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
