"""One user's commands, however many, keep nobody else waiting."""

import errno
import os
import sys
from pathlib import Path

import forking
import pytest
from mounts import DEADLINE_S, Mount, User, wait_until

LINES_MAX = 1024
WRITE_MAX = 64 << 10
# The server counts the lines of a write, and refuses too many before it looks at any of them.
REFUSAL_CPU_S = 0.5


def refusal(mount: Mount, text: bytes, file: str = "control") -> int:
    descriptor = os.open(mount.path / file, os.O_WRONLY)
    try:
        os.write(descriptor, text)
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(descriptor)
    return 0


@pytest.mark.parametrize("file", ["control", "counters.names"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\n" * 60_000, f"lines in one write: at most {LINES_MAX}"),
        (b"# nothing\n" * 95_000, f"bytes: at most {WRITE_MAX}"),
        (b"\n" * 500_000, f"bytes: at most {WRITE_MAX}"),
    ],
    ids=["lines", "comments", "newlines"],
)
def test_a_write_of_too_much_is_refused_as_a_whole(mount: Mount, file: str, text: bytes, said: str) -> None:
    first = b"create first buffers=single\n" if file == "control" else b"add first\n"
    before = mount.cpu_s()
    assert refusal(mount, first + text[len(first) :] + b"\n", file) == errno.E2BIG
    assert mount.cpu_s() - before < REFUSAL_CPU_S
    assert said in mount.error_log
    assert "nothing of it was done" in mount.error_log
    assert not (mount.path / "first").exists()
    assert "first" not in (mount.path / "counters.names").read_text()


def test_as_many_lines_as_are_allowed_are_carried_out(mount: Mount) -> None:
    assert refusal(mount, b"create a buffers=single\n" + b"\n" * (LINES_MAX - 2) + b"create b buffers=single\n") == 0
    assert (mount.path / "a").exists()
    assert (mount.path / "b").exists()


FLOOD = """
import os, sys
control, first = sys.argv[1], int(sys.argv[2])
lines = [f"create theirs/c{n} buffers=single subbuf_size=4K n_subbufs=2" for n in range(first, first + 900)]
os.write(os.open(control, os.O_WRONLY), "\\n".join(lines).encode())
"""


def test_a_command_comes_in_between_the_commands_of_one_write(make_mount, unprivileged: User) -> None:
    mount: Mount = make_mount("control_mode=0666")
    flood = [
        forking.start(
            [sys.executable, "-c", FLOOD, mount.control, str(n * 900)],
            user=unprivileged.uid, group=unprivileged.gid, extra_groups=[], cwd="/",
        )
        for n in range(2)
    ]  # fmt: skip
    wait_until((mount.path / "theirs").exists, "the first of the others' channels")
    mount.create("mine", "buffers=single")
    n_theirs = len(os.listdir(mount.path / "theirs"))
    assert [process.wait(DEADLINE_S) for process in flood] == [0, 0]
    assert n_theirs < len(os.listdir(mount.path / "theirs")) == 1800


def test_commands_of_one_user_are_carried_out_in_order(mount: Mount) -> None:
    text = "".join(f"create c{n} buffers=single\nremove c{n}\n" for n in range(50)) + "create last buffers=single\n"
    mount.command(text)
    assert [
        path.name for path in Path(mount.path).iterdir() if path.name[0] in "cl" and "counters" not in path.name
    ] == [
        "control",
        "last",
    ]
