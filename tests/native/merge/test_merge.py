"""The merge of streams: the C tests, plain and sanitized."""

import re
import subprocess
from pathlib import Path

import pytest
from build import ROOT, builds, compile_c, native_prefix, run_command, run_environment
from conftest import DEADLINE_S
from stress import is_long

SOURCE = Path(__file__).resolve().parent / "test_merge.c"
CASES = re.findall(r"^TEST\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
RUNS = 5_000_000 if is_long() else 50_000


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


@pytest.mark.stress
def test_packets_of_anything_harm_nobody(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_merge"
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    include = [f"-I{ROOT / 'native/include'}", f"-I{ROOT / 'native/src'}"]
    sources = [SOURCE.with_name("fuzz_merge.c"), *sorted((ROOT / "native/src").rglob("*.c"))]
    subprocess.run(["clang", *flags, *include, "-o", program, *sources, "-pthread"], check=True)
    limits = [f"-runs={RUNS}", "-max_len=800", "-timeout=60", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([program, *limits], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr
