"""Run the C tests of one buffer: each in a process of its own, in both schemes, plain and sanitized."""

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import builds, compile_c, run_command, run_environment

HERE = Path(__file__).resolve().parent
PROGRAMS = (
    "buffer/test_buffer",
    "buffer/test_subbuf_start",
    "buffer/test_reserve",
    "channel/test_try_write",
    "buffer/test_consume",
    "buffer/test_model",
    "buffer/test_stopped_reader",
    "buffer/test_damage",
    "buffer/test_bounds",
    "buffer/test_claims",
    "buffer/test_locking",
    "classic/test_classic",
    "classic/test_changes",
    "classic/test_direct",
    "classic/test_full",
    "classic/test_info",
    "classic/test_open",
    "classic/test_time",
    "classic/test_writers",
)
DEADLINE = 900


def cases_in(program: str) -> list[str]:
    return re.findall(r"^TEST\((\w+)\)", (HERE / f"{program}.c").read_text(), re.MULTILINE)


SCHEMES = ["rseq", "lockless", "locking"]
# What holds in some schemes only.
SCHEMES_OF = {
    "buffer/test_claims": ["rseq", "lockless"],
    "buffer/test_locking": ["locking"],
    # The channels of 2003 have one buffer; those of test_classic_open name their schemes.
    "classic/test_classic": ["lockless", "locking"],
    "classic/test_changes": ["lockless", "locking"],
    "classic/test_direct": ["lockless", "locking"],
    "classic/test_full": ["lockless", "locking"],
    "classic/test_info": ["lockless", "locking"],
    "classic/test_open": ["lockless"],
    "classic/test_time": ["lockless", "locking"],
    "classic/test_writers": ["lockless", "locking"],
}
CASES = [
    (program, test, scheme)
    for program in PROGRAMS
    for test in cases_in(program)
    for scheme in SCHEMES_OF.get(program, SCHEMES)
]


@functools.cache
def built(program: str, sanitize: str) -> Path:
    return compile_c([HERE / f"{program}.c"], sanitize=sanitize)


@pytest.fixture
def scratch() -> Iterator[Path]:
    # On tmpfs, as a store is.
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("sanitize", builds())
@pytest.mark.parametrize(("program", "test", "scheme"), CASES, ids=[f"{test}-{scheme}" for _, test, scheme in CASES])
def test_ring(program: str, test: str, scheme: str, sanitize: str, scratch: Path) -> None:
    command = run_command(built(program, sanitize), test, scheme, scratch, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_each_name_stands_for_one_test() -> None:
    names = [test for program in PROGRAMS for test in cases_in(program)]
    assert names
    assert len(names) == len(set(names))
