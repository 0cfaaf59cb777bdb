"""The control file of traces and the directories in a trace: the C tests, plain and sanitized."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from build import builds, compile_c, run_command, run_environment

SOURCE = Path(__file__).resolve().parent / "test_traces.c"
CASES = re.findall(r"^TEST\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
DEADLINE = 900


@pytest.mark.parametrize("sanitize", builds())
@pytest.mark.parametrize("case", CASES)
def test_traces(case: str, sanitize: str) -> None:
    if case.startswith("as_root") and os.geteuid() != 0:
        pytest.skip("only root can make files of other users")
    program = compile_c([SOURCE], sanitize=sanitize)
    # On tmpfs, as a store is.
    with tempfile.TemporaryDirectory(prefix="relayfs-test-", dir="/dev/shm") as scratch:
        command = run_command(program, case, "rseq", scratch, sanitize=sanitize)
        done = subprocess.run(
            command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
