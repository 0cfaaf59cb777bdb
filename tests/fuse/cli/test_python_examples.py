"""The examples in Python that keep events and log messages, on a real mount."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from build import ROOT
from mounts import DEADLINE_S, Mount, wait_until

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.one_mount


def run(*command: object, status: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    return done.stdout


def python(name: str, *arguments: object) -> str:
    return run(sys.executable, EXAMPLES / f"{name}.py", *arguments)


def test_an_asyncio_program_saves_its_last_events_when_it_fails(mount: Mount, tmp_path: Path) -> None:
    channel, out = mount.path / "app/flight", tmp_path / "out"
    began = time.strftime("%H:%M:%S")
    assert python("flight_asyncio", channel, out, 2000) == ""
    lines = out.read_text().splitlines()
    assert lines == sorted(lines)
    assert began <= lines[0][:8] <= lines[-1][:8] <= time.strftime("%H:%M:%S")
    events = [line.partition(" ")[2] for line in lines]
    assert events[-1] == "Task-1: failed: division by zero"
    # The newest events are there, and the oldest were overwritten.
    assert "first: 10 / 0" in events[-4:]
    firsts = [event for event in events if event.startswith("first: 10 / ")]
    assert firsts == [f"first: 10 / {n}" for n in range(len(firsts) - 1, -1, -1)]
    assert 100 < len(firsts) < 2000
    assert int(mount.shown("app/flight", "lost_overwritten")) > 0


def test_the_last_events_of_a_program_that_was_killed_are_saved_later(mount: Mount, tmp_path: Path) -> None:
    channel, out = mount.path / "app/flight", tmp_path / "out"
    command = [sys.executable, EXAMPLES / "flight_asyncio.py", channel, out, str(1 << 40)]
    with subprocess.Popen(command) as process:
        shown = mount.path / ".channels/app/flight/records"
        wait_until(lambda: shown.exists() and int(shown.read_text()) > 100, "the program writes events")
        process.kill()
    assert not out.exists()
    assert python("flight_asyncio", channel, out, 0) == ""
    lines = out.read_text().splitlines()
    assert len(lines) > 50
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{9} (first|second): (10 / \d+|is \S+)", lines[-1])


def test_a_program_logs_as_its_configuration_says(mount: Mount) -> None:
    channel = mount.path / "app/log"
    for _ in range(2):
        assert python("logging_config", channel) == ""
        text = channel.with_name("log0").read_text()
        when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
        assert re.fullmatch(
            rf"{when} INFO example: 1 / 2 = 0\.5\n{when} ERROR example: cannot divide 1\n"
            r"Traceback \(most recent call last\):\n(?:  .*\n)+ZeroDivisionError: division by zero\n",
            text,
        )


def test_json_lines_are_read_with_jq(mount: Mount) -> None:
    out = run(EXAMPLES / "json_lines.sh", mount.path, sys.executable).splitlines()
    assert out[0] == "errors:"
    assert sorted(out[1:11]) == sorted(f"[{number},{number * 1.5}]" for number in range(7, 100, 10))
    assert out[11:] == ["mean of ms:", "74.25"]
    assert "app" not in os.listdir(mount.path)
