"""A process that becomes another program again and again: each image has a directory of its own, and loses nothing."""

import os
import re
from pathlib import Path

import pytest
from babeltrace import Trace, babeltrace
from build import compile_c
from mounts import NOBODY, Mount, User, wait_until
from traced import check_summary, processes, record_stopped, start_trace, traced
from tracing import finish, recording

pytestmark = pytest.mark.one_mount

N = 20
ANOTHER = Path(__file__).with_name("another.c")
ROOM = "subbuf_size=4K n_subbufs=2"


def become_often(mount: Mount, user: int | None) -> int:
    """Write an event in each of N images of one process; return its number."""
    with traced(mount, user=user, cpus=[0]) as images:
        for _ in range(N - 1):
            images.ask("emit 1")
            images.ask("exec")
        images.ask("emit 1")
        return images.process.pid


def names(pid: int) -> set[str]:
    """As relayfs-trace(3) says."""
    return {f"traced-{pid}", *(f"traced-{pid}-{number}" for number in range(2, N + 1))}


def visible(directory: Path) -> set[str]:
    return {name for name in os.listdir(directory) if not name.startswith(".")}


def check(trace: Trace, pid: int) -> None:
    """One event of each image."""
    assert trace.by_pid() == {pid: [0] * N}
    assert trace.lost == 0


@pytest.mark.parametrize("user", [None, NOBODY])
def test_each_image_is_a_recording(mount: Mount, unprivileged: User, tmp_path: Path, user: int | None) -> None:
    start_trace(mount, "t", ROOM)
    pid = become_often(mount, user)
    assert visible(mount.store / "t") == names(pid)
    wait_until(lambda: set(processes(mount.path / "t")) == names(pid), "the mount shows them")
    check(record_stopped(mount, "t", tmp_path / "out"), pid)
    assert visible(tmp_path / "out") == names(pid)


@pytest.mark.parametrize("user", [None, NOBODY])
def test_each_image_is_recorded_while_others_come(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    start_trace(mount, "t", ROOM)
    out = tmp_path / "out"
    with recording("t", "-m", mount.path, "-o", out) as recorder:
        wait_until(out.is_dir, "the recorder has begun")
        pid = become_often(mount, user)
        check_summary(finish(recorder))
    check(babeltrace(out), pid)
    # What has been recorded is removed, and its name is free for the next image; in the recording it is not.
    found = visible(out)
    assert len(found) == N
    assert all(re.fullmatch(rf"traced-{pid}(-\d+)*", name) for name in found), found


def test_another_program_does_not_write_by_what_the_one_before_has_declared(
    mount: Mount, unprivileged: User, tmp_path: Path
) -> None:
    """Also while the server still takes the one before for one that lives: its `join` is still open."""
    start_trace(mount, "t", ROOM)
    with traced(mount, user=NOBODY) as image:
        image.ask("emit 3")
        image.ask("keep")
        image.ask(f"become {compile_c([ANOTHER])}")
        pid = image.process.pid
        trace = record_stopped(mount, "t", tmp_path / "out")
    assert visible(tmp_path / "out") == {f"traced-{pid}", f"another-{pid}"}
    assert trace.numbers() == list(range(3))
    assert trace.numbers("another:step") == trace.numbers("another:one") == list(range(4))
    assert trace.lost == 0


def test_the_line_of_an_image_is_checked(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    code = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for image in ("image 1f", "image 1f\\n", "image", "image 12345678123456781", "image x", "image 1\\nimage 2"):
    try:
        os.write(fd, f"t program\\n{image}".encode())
        print("joined")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    said = unprivileged.python(code, str(mount.path / ".traces/join")).stdout.split()
    assert said == ["joined"] * 2 + ["EINVAL"] * 4
