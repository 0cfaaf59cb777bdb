"""The sentences of the kernel's relay document, and the tests that show what they state.

relay_document.toml has an entry for each sentence, in order: a digest of the sentence, what it says in our words, and
the tests that hold relayfs to it, or the reason why there is none. The document itself is Linux's, GPL-2.0, and stays
outside (Documentation/filesystems/relay.txt at c9f3f2d8b3): who has it at hand compares the table with it by

    python tests/conformance/relay_document.py relay.txt

which names sentences that are missing or changed. Without it the digest of all digests tells that none has gone.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).with_name("relay_document.toml")

CODE = re.compile(r"^(?:/\*(?:(?!\*/).)*\*/\n)?static .*?^\};?$", re.MULTILINE | re.DOTALL)
# A sentence begins with a capital letter or with the name of a function.
SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z]|[a-z_]+\(\) )")


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


def table() -> list[Entry]:
    """Read relay_document.toml."""
    sections = tomllib.loads(TABLE.read_text())["section"]
    return [Entry(section["title"], **entry) for section in sections for entry in section["sentence"]]


def digest(sentence: str) -> str:
    """Return what stands for a sentence, however its lines are broken."""
    return hashlib.sha256(" ".join(sentence.split()).encode()).hexdigest()[:12]


def digest_of_all(entries: list[Entry]) -> str:
    """Return what stands for the document."""
    return digest(" ".join(entry.digest for entry in entries))


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence with the heading above it; a piece of code is one sentence."""
    section = ""
    for block in _blocks(text):
        heading, underline, *rest = [*block.splitlines(), "", ""]
        headed = bool(underline) and set(underline) in ({"="}, {"-"})
        section = heading if headed else section
        text = "\n".join(rest) if headed else block
        for sentence in [text] if CODE.match(text) else SENTENCE_END.split(text.strip()):
            if sentence.strip():
                yield section, " ".join(sentence.split())


def _blocks(text: str) -> Iterator[str]:
    at = 0
    for code in CODE.finditer(text):
        yield from re.split(r"\n\s*\n", text[at : code.start()])
        yield code[0]
        at = code.end()
    yield from re.split(r"\n\s*\n", text[at:])


def document(path: Path) -> str:
    """Read a copy of the document, also one that was taken from a web page with the dividers between its lines."""
    text = path.read_text()
    text = text[text.index("relay interface (formerly relayfs)") :]
    lines = [re.sub(r"^\| \|", "", line) for line in text.splitlines() if not line.startswith(" | |")]
    return "\n".join(re.sub(r"^\| |\s+\|$", "", line) for line in lines) + "\n"


def main(path: Path) -> int:
    """Say which sentences the table does not have, and which of its entries are no sentences; 0: none."""
    there = [(section, digest(sentence), sentence) for section, sentence in sentences(document(path))]
    entries = [(entry.section, entry.digest) for entry in table()]
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
    sys.exit(main(Path(sys.argv[1])))
