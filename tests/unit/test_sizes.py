"""Files and functions are small enough to be read: what CONTRIBUTING.md permits holds everywhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from build import ROOT

LINES_MAX, TEST_LINES_MAX, FUNCTION_LINES_MAX = 500, 600, 60
# The folders and files that hold code, of which there is at least one each.
CODE = [
    "dev", "benchmarks/**/*.[ch]", "benchmarks/**/*.py", "docs/**/*.py", "examples/**/*.[ch]", "examples/**/*.py",
    "mount/completions/*", "native/**/*.[ch]", "native/**/*.py", "packaging/**/*.py", "relayfs_fuse/**/*.py",
    "tests/**/*.[ch]", "tests/**/*.py",
]  # fmt: skip


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, without its signature and docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, node.body[-1].end_lineno - body[0].lineno + 1 if body else 0


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield the line above it, and the lines, of each body: it stands between braces in the first column."""
    for body in re.finditer(r"^(.+)\n(\{\n(?:[^}\n].*\n|\n)*\}\n)", text, re.MULTILINE):
        yield body[1], body[2].count("\n")


def too_long(path: Path) -> Iterator[str]:
    """Yield what is too long in this file."""
    text, name = path.read_text(), str(path.relative_to(ROOT))
    n_lines = text.count("\n")
    if n_lines > (TEST_LINES_MAX if name.startswith("tests/") else LINES_MAX):
        yield f"{name} has {n_lines} lines"
    if path.suffix in (".py", ".c", ".h"):
        functions = python_functions(text) if path.suffix == ".py" else c_functions(text)
        yield from (f"{name}: {what} has {n} lines" for what, n in functions if n > FUNCTION_LINES_MAX)


def test_no_file_and_no_function_is_too_long():
    found = [[path for path in ROOT.glob(pattern) if path.is_file()] for pattern in CODE]
    assert all(found)
    assert [fault for paths in found for path in paths for fault in too_long(path)] == []


def test_what_is_too_long_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    examples = {  # one line more than permitted, and that line
        "a.py": ("def f(a,\n      b):\n    '''Do.'''\n" + "    a = b\n" * 61, "    a = b\n"),
        "b.c": ("static void f(void)\n{\n" + "\tg();\n" * 59 + "}\n", "\tg();\n"),
        "c.h": ("\n" * 501, "\n"),
        "tests/d.py": ("\n" * 601, "\n"),
    }
    for name, (text, line) in examples.items():
        path = tmp_path / name
        path.write_text(text)
        assert len(list(too_long(path))) == 1
        path.write_text(text.replace(line, "", 1))
        assert list(too_long(path)) == []
