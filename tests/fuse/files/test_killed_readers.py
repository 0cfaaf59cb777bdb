"""Readers that are killed in read(2): what had not come into their memory is unread, and nothing is read twice."""

import os
import subprocess
from pathlib import Path

import pytest
from build import compile_c
from mounts import DEADLINE_S, Mount
from traffic import LINE_BYTES, append, lines

from relayfs_fuse import Channel

pytestmark = pytest.mark.one_mount

SOURCE = Path(__file__).parent / "killed_reader.c"
# More than all readers of a test take together.
N_LINES = 40_000


def preloaded(mount: Mount, options: str) -> Path:
    path = mount.create("log", f"buffers=single subbuf_size=64K n_subbufs=64 {options}")
    with Channel(path) as channel:
        for at in range(0, N_LINES, 1000):
            text = lines(1000, at)
            channel.write_many([text[i : i + LINE_BYTES] for i in range(0, len(text), LINE_BYTES)])
    assert mount.shown("log", "lost") == "0"
    return path


@pytest.mark.parametrize("size", [20, 10_000])
@pytest.mark.parametrize("options", ["", "read=wait", "mode=overwrite", "scheme=locking read=wait"])
@pytest.mark.parametrize("killed_at", ["their own system calls", "the server's"])
def test_what_a_killed_reader_has_not_got_into_its_memory_is_unread(
    mount: Mount, options: str, size: int, killed_at: str
) -> None:
    path = preloaded(mount, options)
    assert mount.process is not None
    server = mount.server if killed_at == "the server's" else 0
    done = subprocess.run(
        [compile_c([SOURCE]), path, str(size), str(server)], capture_output=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    n_killed, n_killed_with_data = map(int, done.stderr.split())
    assert n_killed >= 8
    assert n_killed_with_data > 3
    # A reader that waits would never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    rest = b""
    while len(done.stdout) + len(rest) < N_LINES * LINE_BYTES:
        rest += os.read(descriptor, 1 << 20)
    os.close(descriptor)
    assert done.stdout + rest == lines(N_LINES)
    append(path, b"next\n")
    assert mount.shown("log", "lost") == "0"
