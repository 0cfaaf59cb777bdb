"""relayctl forward of a recording whose owner has put something else in the place of its files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mounts import wait_until
from tracing import finish, recording, relayctl


def make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_link(path: Path) -> None:
    target = path.parents[3] / "others"
    target.write_bytes(b"what only the user who forwards may read")
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "make"),
    [("cpu0", make_fifo), ("cpu900.zst", make_fifo), ("cpu900.zst", make_link), (".relayfs", make_fifo)],
)
def test_what_is_no_file_holds_nobody_up_and_is_not_sent(nats, store, run, tmp_path, name: str, make: Callable) -> None:
    trace, out = store.create("t"), tmp_path / "owner" / "out"
    with recording("t", "--store", store.path, "-o", out) as recorder:
        app = run(trace, "app")
        app.write_patiently(10)
        app.end()
        wait_until(lambda: list(out.rglob("cpu[0-9]")), "the first packet")
        finish(recorder)
    path = out / name if name == ".relayfs" else next(out.rglob("metadata")).with_name(name)
    make(path)
    done = relayctl("forward", out, "--to", nats.url, "--once")
    assert done.returncode == 1
    assert f"{path} is no regular file" in done.stderr
