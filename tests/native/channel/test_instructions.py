"""How many instructions the fast paths take, counted by callgrind: 5 % more than is written here fails.

The figures are those of Debian 12's gcc 12, and of records of 64 bytes where nothing else is said; each has the few
instructions of the loop around it. Whoever makes a path shorter writes the new figure.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from build import PLAIN, compile_c
from tracing import Store

from relayfs_fuse.native.tables import CLOCKS

COMPILER = 12
RECORDS = 1000
INSTRUCTIONS = {
    "write_16": 54,
    "write_64": 60,
    "write_256": 84,
    "write_called_64": 91,
    "refused": 53,
    "refused_called": 78,
    "lockless_16": 214,
    "lockless_64": 215,
    "lockless_refused": 185,
    "adjust": 31,
    "adjust_called": 40,
    "output_64": 70,
    "output_called_64": 114,
    "reserve_64": 150,
    "reserve_called_64": 171,
    "lockless_reserve_64": 394,
    "ring_reserve_64": 153,
    "ring_reserve_called_64": 188,
    "event_64": 168,
    "event_called_64": 206,
    "event_unwanted": 10,
}


def inclusive_costs(text: str) -> dict[str, int]:
    """Sum up what callgrind has counted in each function and in all that it called."""
    names: dict[str, str] = {}
    costs: dict[str, int] = {}
    function = ""
    for line in text.splitlines():
        if found := re.match(r"(c?)fn=(\(\d+\))(?: (.*))?", line):
            names.setdefault(found[2], found[3] or "")
            function = function if found[1] else names[found[2]]
        elif re.match(r"[+*\d-]\S* \d", line):
            costs[function] = costs.get(function, 0) + int(line.split()[1])
    return costs


@pytest.fixture(scope="module")
def compiler() -> str:
    return subprocess.run(["gcc", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()


def test_fast_paths_take_no_more_instructions(nowhere: Path, tmp_path: Path, compiler: str) -> None:
    program = compile_c([Path(__file__).with_name("instructions.c")], None, PLAIN, "-O2")
    out = tmp_path / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=count_*",
               f"--callgrind-out-file={out}", program]  # fmt: skip
    store = Store(nowhere.parent / "store")
    store.create("t", clock=CLOCKS["tsc"].number, subbuf_size=1 << 20, rules="+counted:*\n")
    places = {"RELAYFS": str(nowhere), "RELAYFS_STORE": str(store.path)}
    done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    costs = inclusive_costs(out.read_text())
    counted = {name: costs.get(f"count_{name}", 0) / RECORDS for name in INSTRUCTIONS}
    is_that = compiler.partition(".")[0] == str(COMPILER)
    whose = f"gcc {compiler}" if is_that else f"the figures are those of gcc {COMPILER}, and this is gcc {compiler}"
    too_many = {name: n for name, n in counted.items() if not 0 < n <= INSTRUCTIONS[name] * 1.05}
    assert not too_many, f"{whose}: {counted}"
