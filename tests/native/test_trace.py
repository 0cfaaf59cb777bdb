"""Tracepoints: the C tests, plain and sanitized, and what only shows in programs of several files."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from build import PLAIN, THREADS, builds, compile_c, native_prefix, run_command, run_environment
from conftest import DEADLINE_S
from trace_store import TraceStore, tracing

SOURCE = Path(__file__).resolve().parent / "test_trace.c"
CASES = re.findall(r"^TEST\((\w+)\)", SOURCE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("sanitize", builds())
@pytest.mark.parametrize("case", CASES)
def test_trace(case: str, sanitize: str) -> None:
    program = compile_c([SOURCE], sanitize=sanitize)
    with tracing() as store:
        done = subprocess.run(
            run_command(program, case, "rseq", store.path, sanitize=sanitize),
            env={**run_environment(sanitize), **store.environment},
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
