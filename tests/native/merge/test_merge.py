"""The merge of streams: the C tests, plain and sanitized."""

import re
import subprocess
from pathlib import Path

import pytest
from build import builds, compile_c, native_prefix, run_command, run_environment
from conftest import DEADLINE_S

SOURCE = Path(__file__).resolve().parent / "test_merge.c"
CASES = re.findall(r"^TEST\((\w+)\)", SOURCE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("sanitize", builds())
@pytest.mark.parametrize("case", CASES)
def test_merge(case: str, sanitize: str, tmp_path: Path) -> None:
    # What it tests is not exported.
    library = native_prefix(sanitize).lib / "librelayfs.a"
    program = compile_c([SOURCE, library], sanitize=sanitize)
    command = run_command(program, case, "rseq", tmp_path, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
