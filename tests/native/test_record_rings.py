"""Run the C tests of record rings: each in a process of its own, in both schemes, plain and sanitized."""

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import MEMORY, PLAIN, builds, compile_c, run_command, run_environment

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "ring/test_ring",
    "ring/test_wake",
    "ring/test_shared",
    "ring/test_damage",
    "ring/test_bounds",
    "ring/test_kill",
    "ring/test_stress",
    "ring/test_stepped",
)
# rseq: the ring of one CPU; lockless: one for all.
SCHEMES = ("rseq", "lockless")
DEADLINE = 900 if os.environ.get("RELAYFS_STRESS") != "long" else 3600


def cases_in(program: str) -> list[str]:
    return re.findall(r"^TEST\((\w+)\)", (HERE / f"{program}.c").read_text(), re.MULTILINE)


# A kill leaves the same memory in all builds, and all are stepped through alike.
BUILDS_OF = {"ring/test_kill": builds(PLAIN), "ring/test_stepped": builds(PLAIN)}
CASES = [
    (program, test, sanitize)
    for program in PROGRAMS
    for test in cases_in(program)
    for sanitize in BUILDS_OF.get(program, builds(PLAIN, MEMORY))
]
IDS = [f"{test}-{sanitize}" if sanitize else test for _, test, sanitize in CASES]


@functools.cache
def built(program: str, sanitize: str) -> Path:
    return compile_c([HERE / f"{program}.c"], sanitize=sanitize)


@pytest.fixture
def scratch() -> Iterator[Path]:
    # On tmpfs, as a store is.
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("program", "test", "sanitize"), CASES, ids=IDS)
def test_record_ring(program: str, test: str, scheme: str, sanitize: str, scratch: Path) -> None:
    command = run_command(built(program, sanitize), test, scheme, scratch, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
