"""A process that becomes another program again and again: each image has a directory of its own, and loses nothing."""

import os
import re
from pathlib import Path

from conftest import Mount, wait_until
from traced import Trace, babeltrace, check_summary, record_stopped, recording, start_trace, traced

N = 20
ROOM = "subbuf_size=4K n_subbufs=2"


def become_often(mount: Mount) -> int:
    """Write an event in each of N images of one process; return its number."""
    with traced(mount, cpus=[0]) as program:
        for _ in range(N - 1):
            program.ask("emit 1")
            program.ask("exec")
        program.ask("emit 1")
        return program.process.pid


def names(pid: int) -> set[str]:
    """As relayfs-trace(3) says."""
    return {f"traced-{pid}", *(f"traced-{pid}-{number}" for number in range(2, N + 1))}


def visible(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if not name.startswith(".")}


def check(trace: Trace, pid: int) -> None:
    """One event of each image."""
    assert trace.by_pid() == {pid: [0] * N}
    assert trace.lost == 0


def test_each_image_is_a_recording(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    pid = become_often(mount)
    assert visible(mount.store / "t") == names(pid)
    wait_until(lambda: visible(mount.path / "t") == names(pid), "the mount shows them")
    check(record_stopped(mount, "t", tmp_path / "out"), pid)
    assert visible(tmp_path / "out") == names(pid)


def test_each_image_is_recorded_while_others_come(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", ROOM)
    out = tmp_path / "out"
    with recording(mount, "t", out) as recorder:
        wait_until(out.is_dir, "the recorder has begun")
        pid = become_often(mount)
        check_summary(recorder.finish())
    check(babeltrace(out), pid)
    # What has been recorded is removed, and its name is free for the next image; in the recording it is not.
    found = visible(out)
    assert len(found) == N
    assert all(re.fullmatch(rf"traced-{pid}(-\d+)*", name) for name in found), found
