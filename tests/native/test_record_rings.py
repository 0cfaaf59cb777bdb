"""Run the C tests of record rings: each in a process of its own, in both schemes, plain and sanitized."""

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import builds, compile_c, run_command, run_environment

HERE = Path(__file__).resolve().parent
PROGRAMS = ("test_record_ring", "test_record_damage")
# rseq: the ring of one CPU; lockless: one for all.
SCHEMES = ("rseq", "lockless")
DEADLINE = 120


def cases_in(program: str) -> list[str]:
    return re.findall(r"^TEST\((\w+)\)", (HERE / f"{program}.c").read_text(), re.MULTILINE)


CASES = [(program, test) for program in PROGRAMS for test in cases_in(program)]


@functools.cache
def built(program: str, sanitize: str) -> Path:
    return compile_c([HERE / f"{program}.c"], sanitize=sanitize)


@pytest.fixture
def scratch() -> Iterator[Path]:
    # On tmpfs, as a store is.
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("sanitize", builds())
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("program", "test"), CASES, ids=[test for _, test in CASES])
def test_record_ring(program: str, test: str, scheme: str, sanitize: str, scratch: Path) -> None:
    command = run_command(built(program, sanitize), test, scheme, scratch, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
