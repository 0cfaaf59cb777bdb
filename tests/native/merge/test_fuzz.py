"""Random packets and declarations, through the merge and every export format: nothing is read beyond them."""

from pathlib import Path

import pytest
from fuzzing import fuzz
from stress import is_long

RUNS = 5_000_000 if is_long() else 20_000


@pytest.mark.stress
def test_packets_of_anything_harm_nobody(tmp_path: Path) -> None:
    fuzz(Path(__file__).with_name("fuzz_merge.c"), RUNS, tmp_path, "-max_len=800")
