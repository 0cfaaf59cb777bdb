"""Make a web site of all texts and manual pages, which a browser reads without a network: ./dev docs.

    web_site.py WORK DIR     WORK: a directory for what mkdocs reads; DIR: the site

mkdocs wants all its pages in one directory, and they link to files of the whole clone. So WORK/pages gets, at the same
paths, the texts and all that they link to: pictures as they are, manual pages as mandoc(1) translates them, and
programs as pages that show them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAN = Path("mount/man")
SECTIONS = {
    "relayfs": ["README.md", "docs/README.md"],
    "Tutorials": ["docs/tutorials/*.md"],
    "How-to": ["docs/howto/*.md"],
    "Reference": [
        "docs/reference/README.md",
        "docs/python.md",
        "docs/reference/[!R]*.md",
        "mount/man/*",
        "examples/README.md",
    ],
    "Explanation": [
        "docs/explanation/*.md",
        "docs/benchmarks.md",
        "docs/design.md",
        "docs/access.md",
        "docs/conformance.md",
    ],
    "Development": ["CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"],
}
COPIED = {".md", ".png", ".svg"}
LANGUAGES = {".c": "c", ".h": "c", ".py": "python", ".sh": "sh", ".service": "ini"}
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
# No fonts from elsewhere, and links that work without a server. Anchors are those of GitHub.
CONFIGURATION = """
site_name: relayfs
docs_dir: pages
theme: {name: material, font: false, features: [navigation.sections, navigation.footer, content.code.copy]}
plugins: [search, offline]
markdown_extensions:
  - pymdownx.superfences
  - pymdownx.highlight
  - tables
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
validation: {nav: {omitted_files: ignore}, links: {not_found: warn, anchors: warn, unrecognized_links: warn}}
"""


def page_of(path: Path) -> Path:
    """Return what shows a file of the clone in the site."""
    return path if path.suffix in COPIED else path.with_name(f"{path.name}.md")


def man_page(path: Path) -> str:
    """Return a manual page as HTML in Markdown."""
    source = ["mandoc", "-T", "html", "-O", "fragment", ROOT / path]
    text = subprocess.run(source, capture_output=True, text=True, check=True).stdout
    text = text[text.index('<div class="manual-text">') : text.rindex("</div>") + len("</div>")]
    # The page's own title is above its sections.
    text = re.sub(r"(</?h)([12])\b", lambda match: f"{match[1]}{int(match[2]) + 1}", text)

    def link(match: re.Match[str]) -> str:
        other = f"{match[1]}.{match[2]}"
        return f'<a href="{other}.html">{match[0]}</a>' if (ROOT / MAN / other).exists() else match[0]

    text = re.sub(r"<b>([\w-]+)</b>\((\d)\)", link, text)
    return f"# {path.stem}({path.suffix[1:]})\n\n{text}\n"


def program(path: Path) -> str:
    """Return a file as a page that shows it."""
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{(ROOT / path).read_text()}````\n"


def text_and_links(path: Path) -> tuple[str, set[Path]]:
    """Return a text, whose links lead to pages of the site, and the files that it links to."""
    linked = set()

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / match[1]))
        linked.add(target)
        return f"]({match[1].removesuffix(target.name)}{page_of(target).name}{match[2] or ''})"

    return LINK.sub(link, (ROOT / path).read_text()), linked


def write_pages(pages: Path) -> list[dict[str, list[str]]]:
    """Write all pages; return the navigation."""
    sections = {
        title: [file.relative_to(ROOT) for pattern in patterns for file in sorted(ROOT.glob(pattern))]
        for title, patterns in SECTIONS.items()
    }
    done: set[Path] = set()
    waiting = {path for paths in sections.values() for path in paths}
    while waiting:
        path = waiting.pop()
        done.add(path)
        target = pages / page_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text, linked = text_and_links(path)
            waiting |= linked - done
            target.write_text(text)
        elif path.suffix in COPIED:
            shutil.copy(ROOT / path, target)
        else:
            target.write_text(man_page(path) if path.is_relative_to(MAN) else program(path))
    return [{title: [str(page_of(path)) for path in paths]} for title, paths in sections.items()]


def main(work: Path, site: Path) -> None:
    """Make the site."""
    shutil.rmtree(work, ignore_errors=True)
    navigation = write_pages(work / "pages")
    (work / "mkdocs.yml").write_text(f"{CONFIGURATION}nav: {json.dumps(navigation)}\n")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", work / "mkdocs.yml"]
    subprocess.run([*mkdocs, "--site-dir", site], check=True)
    print(site / "index.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
