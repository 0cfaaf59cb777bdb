"""Random packets and declarations, through the merge and every export format: nothing is read beyond them."""

import subprocess
from pathlib import Path

import pytest
from build import ROOT, native_prefix
from stress import is_long

RUNS = 5_000_000 if is_long() else 50_000


@pytest.mark.stress
def test_packets_of_anything_harm_nobody(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_merge"
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    include = [f"-I{native_prefix().include}", f"-I{ROOT / 'native/src'}"]
    sources = [Path(__file__).with_name("fuzz_merge.c"), *sorted((ROOT / "native/src").rglob("*.c"))]
    subprocess.run(["clang", *flags, *include, "-o", program, *sources, "-pthread"], check=True)
    limits = [f"-runs={RUNS}", "-max_len=800", "-timeout=60", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([program, *limits], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr
