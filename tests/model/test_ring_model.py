"""The protocol of record rings, all its interleavings and deaths, by spin.

The short form looks at one record of each producer, by bit-state hashing, which misses a state in hundreds.
RELAYFS_STRESS=long looks at every state with two records of the first one: two minutes and 2 GB.
"""

import os
import subprocess
from pathlib import Path

MODEL = Path(__file__).with_name("ring.pml").read_text()
LONG = os.environ.get("RELAYFS_STRESS") == "long"
# How a burial ends, and a way in which it must not.
RIGHT = "publish(at, now);\n\t\t\t\tstate[c] = FREE;\n\t\t\t\towned[c] = false\n"
WRONG = "state[c] = FREE;\n\t\t\t\towned[c] = false;\n\t\t\t\tpublish(at, now)\n"


def run(scratch: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True, timeout=1800)
    return done.stdout


def check(model: str, scratch: Path) -> str:
    """Return what the verifier reports."""
    (scratch / "ring.pml").write_text(model)
    run(scratch, "spin", "-a", f"-DFIRST={1 + LONG}", "ring.pml")
    states = "-DCOLLAPSE" if LONG else "-DBITSTATE"
    run(scratch, "gcc", "-O2", "-DSAFETY", states, "-DVECTORSZ=2048", "-o", "pan", "pan.c")
    size = [] if LONG else ["-w27"]
    return run(scratch, "./pan", "-m100000", *size)


def test_no_interleaving_and_no_death_breaks_the_protocol(tmp_path: Path) -> None:
    report = check(MODEL, tmp_path)
    assert "errors: 0" in report, report
    assert "max search depth too small" not in report


def test_the_model_sees_a_burier_that_dies_too_late(tmp_path: Path) -> None:
    assert MODEL.count(RIGHT) == 1
    report = check(MODEL.replace(RIGHT, WRONG), tmp_path)
    assert "invalid end state" in report, report
    assert "errors: 1" in report
