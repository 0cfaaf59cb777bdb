"""Prometheus's own tools as judges of what is printed for it."""

import shutil
import subprocess

import pytest
from mounts import DEADLINE_S


def judge(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing, which ./dev unpacks from Debian's packages")
    return found


def check_by_promtool(text: str) -> None:
    """Let promtool read it. Status 3: it was read, and breaks a rule of style, as names that people chose may."""
    command = [judge("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in {0, 3}, (done.stderr.decode(), text)


def types_in(text: str) -> dict[str, str]:
    return dict(line.split(" ")[2:] for line in text.splitlines() if line.startswith("# TYPE "))
