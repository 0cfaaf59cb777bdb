"""Fuzz record rings with libFuzzer: whatever somebody writes to their memory, nobody crashes, hangs or reads beyond."""

import subprocess
from pathlib import Path

import pytest
from build import ROOT, native_prefix
from stress import is_long

pytestmark = pytest.mark.stress

SOURCES = [Path(__file__).with_name("fuzz_ring.c"), *sorted((ROOT / "native/src").rglob("*.c"))]
RUNS = 5_000_000 if is_long() else 15_000
SECONDS_PER_INPUT = 60  # of one that hangs, on a machine where everything takes long


def test_spoilt_rings_harm_nobody(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_ring"
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    include = [f"-I{native_prefix().include}", f"-I{ROOT / 'native/src'}"]
    subprocess.run(["clang", *flags, *include, "-o", program, *SOURCES, "-pthread"], check=True)
    limits = [f"-runs={RUNS}", f"-timeout={SECONDS_PER_INPUT}", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run([program, *limits], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr
