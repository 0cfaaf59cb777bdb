"""The links of all texts lead somewhere: to files that exist, and to their headings."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from build import ROOT

PAGES = sorted(ROOT.glob("*.md")) + sorted(
    page for place in ("benchmarks", "docs", "examples", "tests") for page in (ROOT / place).rglob("*.md")
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w -]", "", text).strip().replace(" ", "-"))
    return found


def test_there_are_pages_with_links():
    assert {ROOT / "README.md", ROOT / "docs/README.md"} <= set(PAGES)
    assert len(LINK.findall(prose(ROOT / "README.md"))) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    wrong = []
    for link in LINK.findall(prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_text_below_docs_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    new = {ROOT / "README.md"}
    while new:
        seen |= new
        links = {(page.parent / link.partition("#")[0]).resolve() for page in new for link in LINK.findall(prose(page))}
        new = {target for target in links if target.suffix == ".md" and target.is_file()} - seen
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - seen == set()
