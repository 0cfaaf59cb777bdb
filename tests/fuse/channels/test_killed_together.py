"""Producers of many channels that are killed together: what they had written is read, the rest is counted as lost."""

import subprocess

import pytest
from build import PROGRAMS, compile_c, run_environment
from mounts import Mount
from stress import is_long

pytestmark = pytest.mark.one_mount

SOURCE = PROGRAMS / "killed_together.c"
RECORDS_MAX = 7  # as there
PRODUCERS, EACH = (1000, 5) if is_long() else (20, 5)
# Channels of one write(2) to control.
LINES = 100
OPTIONS = ["buffers=single scheme=lockless", "buffers=single scheme=locking"]


def kill_producers(mount: Mount, names: list[str]) -> None:
    """Let PRODUCERS write to these channels, and kill them."""
    command = [compile_c([SOURCE]), str(PRODUCERS), mount.path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=run_environment()
    ) as producers:
        assert producers.stdin is not None
        assert producers.stdout is not None
        producers.stdin.write("".join(f"{name}\n" for name in names) + "\n")
        producers.stdin.flush()
        assert producers.stdout.readline() == "reserved\n"
        producers.stdin.close()
        assert producers.stdout.readline() == "killed\n"


@pytest.mark.stress
@pytest.mark.parametrize("options", OPTIONS)
def test_each_record_of_producers_that_are_killed_together_is_read_or_counted(mount: Mount, options: str) -> None:
    names = [f"killed/{number // LINES}/c{number % LINES}" for number in range(PRODUCERS * EACH)]
    for first in range(0, len(names), LINES):
        lines = [f"create {name} {options} subbuf_size=4096 n_subbufs=1\n" for name in names[first : first + LINES]]
        mount.command("".join(lines))
    kill_producers(mount, names)
    for number, name in enumerate(names):
        expected = b"".join(b"%d %d\n" % (number, record) for record in range(number % RECORDS_MAX))
        assert (mount.path / name).read_bytes() == expected
        counted = {what: mount.shown(name, what) for what in ("lost", "lost_torn", "lost_full", "unread_bytes")}
        assert counted == {"lost": "1", "lost_torn": "1", "lost_full": "0", "unread_bytes": "0"}, name
