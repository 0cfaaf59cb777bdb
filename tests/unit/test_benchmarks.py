"""Benchmarks that are compiled with parts of the library link: nobody else notices when a part needs another one."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_benchmark_of_the_merge_has_all_parts_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from bench_merge import MERGE  # noqa: PLC0415  # the path is set above
    from support import compiled  # noqa: PLC0415

    try:
        with compiled("bench_merge.c", parts=MERGE) as program:
            assert program.exists()
    finally:
        for name in ("bench_merge", "support"):
            sys.modules.pop(name, None)
