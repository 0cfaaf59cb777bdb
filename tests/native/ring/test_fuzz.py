"""Fuzz record rings with libFuzzer: whatever somebody writes to their memory, nobody crashes, hangs or reads beyond."""

from pathlib import Path

import pytest
from fuzzing import fuzz
from stress import is_long

RUNS = 5_000_000 if is_long() else 15_000


@pytest.mark.stress
def test_spoilt_rings_harm_nobody(tmp_path: Path) -> None:
    fuzz(Path(__file__).with_name("fuzz_ring.c"), RUNS, tmp_path)
