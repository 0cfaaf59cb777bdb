"""Benchmarks of which nobody else notices when they break: those with parts of the library, and those of peers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS, PICTURES = ROOT / "benchmarks", ROOT / "docs/pictures"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import from benchmarks/ and docs/, and forget it: support.py is not the name of one module only."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield
    for name in set(sys.modules) - before:
        if name == "support" or name.startswith("bench"):
            del sys.modules[name]


def test_the_benchmark_of_the_merge_has_all_parts_that_it_needs() -> None:
    from bench_merge import MERGE  # noqa: PLC0415  # the path is set above
    from support import compiled  # noqa: PLC0415

    with compiled("bench_merge.c", parts=MERGE) as program:
        assert program.exists()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing flows from one to another")
def test_what_flows_through_peers_arrives(tmp_path: Path) -> None:
    from bench_flow import Flowed  # noqa: PLC0415
    from bench_peers import LENGTHS, PEERS  # noqa: PLC0415
    from support import compiled  # noqa: PLC0415

    names = next(peer.names for peer in PEERS if peer.source == "bench_peers.c")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with compiled("bench_peers.c", "") as program:
        # On a busy machine, the two processes may get no CPU for longer than the shortest time.
        for seconds in ("0.001", "0.03", "1"):
            command = [program, seconds, str(first), str(second), tmp_path, "65536"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = [Flowed(*line.split()) for line in done.stdout.splitlines()]
            assert [flowed.name for flowed in found] == [f"{name}-{length}" for length in LENGTHS for name in names]
            assert all(flowed.lost == "0" for flowed in found), found
            if all(int(flowed.records) >= 64 for flowed in found):
                break
    assert all(int(flowed.records) >= 64 for flowed in found), found


def test_peers_that_are_not_installed_are_noticed() -> None:
    from bench_peers import Peer  # noqa: PLC0415

    assert Peer("", (), library="relayfs").is_there()
    assert not Peer("", (), library="relayfs-none").is_there()
    assert Peer("", (), header="vector").is_there()
    assert not Peer("", (), header="relayfs/none.hpp").is_there()


def test_the_picture_of_the_peers_shows_all_of_them_as_they_were_measured() -> None:
    from bench_peers import LENGTHS, PEERS  # noqa: PLC0415
    from benchmarks_plot import COSTS, FLOWS, draw, read  # noqa: PLC0415

    assert FLOWS.keys() == {name for peer in PEERS for name in peer.names}
    measured = read(PICTURES / "benchmarks.csv")
    assert measured.keys() == COSTS.keys() | {f"{name}-{length}" for name in FLOWS for length in LENGTHS}
    assert (PICTURES / "benchmarks.svg").read_text() == draw(measured)
