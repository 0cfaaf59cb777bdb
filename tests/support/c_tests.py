"""C tests as pytest items: each TEST(name) of a file tests/native/ROOM/test_*.c is `test_file.c::name[scheme-build]`.

check.h tells how such a file is written, and what its SCHEMES and BUILDS say. Each item is a process of its own.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, THREADS, builds, compile_c, native_prefix, run_command, run_environment
from stress import is_long

from relayfs_fuse.native.trace import Traces

DEADLINE_S = 3600 if is_long() else 900
SCHEMES = ("rseq", "lockless", "locking")
BUILDS = {"plain": PLAIN, "memory": MEMORY, "threads": THREADS}


def names_in(source: Path) -> list[str]:
    """Return the names of a file's tests."""
    return re.findall(r"^TEST\((\w+)\)", source.read_text(), re.MULTILINE)


def run(source: Path, name: str, scheme: str = "", sanitize: str = PLAIN) -> None:
    """Run a test in a directory of its own on tmpfs, where stores are; fail with what it says."""
    text = source.read_text()
    archive = [native_prefix(sanitize).lib / "librelayfs.a"] if _words(text, "LIBRARY", ["static"]) else []
    # --as-needed: of the shared library nothing is, if the archive has it all.
    program = compile_c([source, *archive], None, sanitize, *(["-Wl,--as-needed"] if archive else []))
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        scratch = Path(path)
        # Programs of other users may enter it.
        scratch.chmod(0o755)
        if _words(text, "STORE", ["traces"]):
            Traces(path, serves=True).close()
        # No mount and no store of this machine.
        environment = {"RELAYFS_STORE": path, "RELAYFS": str(scratch / "nowhere")}
        done = subprocess.run(
            run_command(program, name, scratch, *([scheme] if scheme else []), sanitize=sanitize),
            env={**run_environment(sanitize), **environment}, capture_output=True, text=True, timeout=DEADLINE_S,
            check=False,
        )  # fmt: skip
    if done.returncode:
        pytest.fail(f"status {done.returncode}\n{done.stderr[-4000:]}", pytrace=False)


class Item(pytest.Item):
    """One test in one scheme and one build."""

    def __init__(self, *, line: int, test: str, scheme: str, sanitize: str, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.line, self.test, self.scheme, self.sanitize = line, test, scheme, sanitize

    def runtest(self) -> None:
        if self.test.startswith("as_root") and os.geteuid() != 0:
            pytest.skip("only root can do it")
        run(self.path, self.test, self.scheme, self.sanitize)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.name


class File(pytest.File):
    """A C file of tests."""

    def collect(self) -> Iterator[Item]:
        text = self.path.read_text()
        schemes = _words(text, "SCHEMES", SCHEMES) or [""]
        kinds = builds(*(BUILDS[word] for word in _words(text, "BUILDS", BUILDS) or ["plain", "memory"]))
        variants = [(scheme, kind) for scheme in schemes for kind in kinds]
        if not is_long() and "lockless" in schemes:
            # Scheme locking is the lock around what lockless does, which is enough to try sanitized.
            variants = [(scheme, kind) for scheme, kind in variants if scheme != "locking" or kind == PLAIN]
        for test in re.finditer(r"^TEST\((\w+)\)", text, re.MULTILINE):
            line = text.count("\n", 0, test.start())
            for scheme, sanitize in variants:
                variant = "-".join(filter(None, (scheme, sanitize)))
                name = f"{test[1]}[{variant}]" if variant else test[1]
                yield Item.from_parent(self, name=name, line=line, test=test[1], scheme=scheme, sanitize=sanitize)


def _words(text: str, macro: str, allowed: Iterable[str]) -> list[str]:
    """Return what a macro of check.h says, if it is there."""
    found = re.search(rf"^{macro}\((.*)\);", text, re.MULTILINE)
    words = found[1].split(", ") if found else []
    if not set(words) <= set(allowed):
        raise ValueError(f"{macro} takes {', '.join(allowed)}, not {', '.join(words)}")
    return words


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> File | None:
    """Take what is named like a test of C."""
    is_test = file_path.suffix == ".c" and file_path.name.startswith("test_")
    return File.from_parent(parent, path=file_path) if is_test else None
