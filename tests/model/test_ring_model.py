"""The protocol of record rings, all its interleavings and deaths, by spin.

The short form looks at one record of each producer, by bit-state hashing, which misses a state in hundreds.
RELAYFS_STRESS=long looks at every state with two records of the first one: six minutes and 4 GB.
"""

import os
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("ring.pml").read_text()
LONG = os.environ.get("RELAYFS_STRESS") == "long"
# How a burial goes, and a way in which it must not.
BURIAL = """\
				if
				:: state[c] == TAKEN || state[c] == REAPED -> reap_record(c, at, now)
				:: else
				fi;
				state[c] = FREE;
"""
LAST = "				owned[c] = false\n"
FENCE = ":: else -> FENCED /* membarrier */"


def run(scratch: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True, timeout=1800)
    return done.stdout


def check(model: str, scratch: Path, *options: str) -> str:
    """Return what the verifier reports that is compiled with these options."""
    (scratch / "ring.pml").write_text(model)
    run(scratch, "spin", "-a", f"-DFIRST={1 + LONG}", "ring.pml")
    states = "-DCOLLAPSE" if LONG else "-DBITSTATE"
    run(scratch, "gcc", *options, "-DSAFETY", states, "-DVECTORSZ=2048", "-o", "pan", "pan.c")
    size = [] if LONG else ["-w27"]
    return run(scratch, "./pan", "-m100000", *size)


@pytest.mark.stress
def test_no_interleaving_and_no_death_breaks_the_protocol(tmp_path: Path) -> None:
    report = check(MODEL, tmp_path, "-O2")
    assert "errors: 0" in report, report
    assert "max search depth too small" not in report


def refute(right: str, wrong: str, scratch: Path) -> str:
    """Return what the verifier reports of a model that is wrong here."""
    # If the last process moves first, it finds each of the errors soon.
    assert MODEL.count(right) == 1
    report = check(MODEL.replace(right, wrong), scratch, "-O0", "-DREVERSE")
    assert "errors: 1" in report, report
    return report


@pytest.mark.stress
def test_the_model_sees_a_burier_that_dies_too_late(tmp_path: Path) -> None:
    wrong = LAST.replace("\n", ";\n") + BURIAL.replace("FREE;", "FREE")
    assert "invalid end state" in refute(BURIAL + LAST, wrong, tmp_path)


@pytest.mark.stress
def test_the_model_sees_an_entry_that_nobody_sees(tmp_path: Path) -> None:
    assert "invalid end state" in refute(FENCE, ":: else", tmp_path)


@pytest.mark.stress
def test_the_model_sees_a_position_that_passes_what_has_no_header(tmp_path: Path) -> None:
    assert "assertion violated" in refute("turn = position == end;", "turn = true;", tmp_path)
