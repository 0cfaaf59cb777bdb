"""The server dies again and again at random moments, while programs of all kinds work: none of them notices.

./dev stress kills it a thousand times.
"""

import os
import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from mounts import Mount, wait_until
from stress import is_long
from traffic import Stream, lines, streaming
from workload import command, look, piped, poll, working

N_KILLS = 1000 if is_long() else 20
DIED = "WARNING: the server before, process .* has died"


@pytest.mark.stress
def test_nobody_notices(mount: Mount, tmp_path: Path) -> None:
    mount.expect(DIED)
    chance = random.Random(os.urandom(8))
    mount.create("bytes", "buffers=single read=wait")
    mount.create("records", "buffers=single type=ring size=256K read=wait")
    mount.create("polled", "buffers=single read=wait")
    got: list[bytes] = []
    with ExitStack() as stack:
        stream: Stream = stack.enter_context(streaming(mount, "subbuf_size=64K n_subbufs=64"))
        stream.start(burst=5, pause_ms=2)
        stack.enter_context(piped(mount.path / "bytes", tmp_path / "bytes"))
        stack.enter_context(piped(mount.path / "records", tmp_path / "records"))
        stack.enter_context(working(poll(mount.path / "polled", got)))
        stack.enter_context(working(command(mount)))
        stack.enter_context(working(look(mount)))
        read = b""
        with stream.file.open("rb", buffering=0) as file, (mount.path / "polled").open("wb", buffering=0) as polled:
            for n in range(N_KILLS):
                polled.write(lines(1, n))
                time.sleep(chance.uniform(0.1, 0.3))  # any moment will do to kill it
                mount.kill_server()
                read += file.read(1 << 20)
            written = stream.finish()
            while piece := file.read(1 << 20):
                read += piece
            wait_until(lambda: len(b"".join(got)) >= len(lines(N_KILLS)), "all is read that was polled for")
    assert read == lines(written)
    assert b"".join(got) == lines(N_KILLS)
    assert mount.error_log == ""


@pytest.mark.stress
def test_a_mount_can_be_read_by_many_while_the_server_dies(mount: Mount, tmp_path: Path) -> None:
    """All of them sleep, and what is written wakes one of them."""
    mount.expect(DIED)
    path = mount.create("log", "buffers=single read=wait")
    outs = [tmp_path / f"out{n}" for n in range(8)]
    with ExitStack() as stack:
        cats = [stack.enter_context(subprocess.Popen(["cat", path], stdout=out.open("wb"))) for out in outs]
        for n in range(8):
            time.sleep(0.11)  # ten servers that live no longer than a second together would be too many
            mount.kill_server()
            path.write_bytes(lines(1, n))
        wait_until(lambda: sum(out.stat().st_size for out in outs) >= len(lines(8)), "all is read")
        for cat in cats:
            assert cat.poll() is None
            cat.kill()
    assert sorted(b"".join(out.read_bytes() for out in outs).splitlines()) == lines(8).splitlines()
