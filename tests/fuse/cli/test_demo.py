"""The demo tells the truth, and leaves nothing behind, whenever it is interrupted."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import ROOT
from mounts import DEADLINE_S

LINES = [b"\n", b"\xff\0 no text\n", b"y" * 5000 + b"\n", *(b"%d: some words\n" % i for i in range(5000))]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose name has a space, in which the demo works."""
    with tempfile.TemporaryDirectory(prefix="relayfs demo ") as path:
        yield Path(path)


def start(
    place: Path, *arguments: object, examples: Path = ROOT / "examples", user: int | None = None
) -> subprocess.Popen[str]:
    # -P: as in ./dev test, the working directory is not searched for modules.
    return subprocess.Popen(
        [sys.executable, "-P", examples / "demo.py", *map(str, arguments)], cwd="/", user=user, group=user,
        extra_groups=None if user is None else [], env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="surrogateescape", start_new_session=True,
    )  # fmt: skip


def finish(demo: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = demo.communicate(timeout=DEADLINE_S)
    finally:
        demo.kill()
    return demo.returncode, out, err


def traces(place: Path, demo: subprocess.Popen[str]) -> list[str]:
    """What a demo that worked here might have left: files, mounts, processes."""
    mark = f"relayfs-demo-{demo.pid}-"
    store = [str(path) for path in Path("/dev/shm").glob(f"{mark}*")]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if mark in line]
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if mark.encode() in command:
            processes.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return [*map(str, place.iterdir()), *store, *mounts, *processes]


def value(out: str, name: str) -> str:
    return next(line for line in out.splitlines() if line.strip().startswith(name)).strip().removeprefix(name).strip()


def test_lines_come_out_as_they_went_in(place):
    file = place / "text"
    file.write_bytes(b"".join(LINES))
    demo = start(place, file)
    status, out, err = finish(demo)
    assert (status, err) == (0, ""), out
    assert "identical: every line came out once, byte for byte" in out
    assert value(out, "records") == f"{len(LINES):,} ({file.stat().st_size:,} bytes), read {len(LINES):,}"
    assert value(out, "lost") == "none"
    file.unlink()
    assert traces(place, demo) == []


def test_steps_are_shown_with_what_they_print(place):
    file = place / "text"
    file.write_bytes(b"one line\n")
    status, out, _ = finish(start(place, file))
    file.unlink()
    assert status == 0
    assert "\n$ echo 'good morning' >hello\n$ cat hello\ngood morning\n$ cat .channels/hello/read_bytes\n13\n" in out


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"no newline at the end", b"a\n" * 3], ids=["empty", "blank", "open", "few"]
)
def test_odd_texts(place, text):
    file = place / "text"
    file.write_bytes(text)
    status, out, err = finish(start(place, file))
    assert (status, err) == (0, "")
    assert "identical" in out


@pytest.mark.usefixtures("open_fuse_device")
def test_root_is_not_needed(place, unprivileged):
    # The clone may be where others cannot go.
    examples = shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "text").write_bytes(b"".join(LINES))
    work = place / "work"
    work.mkdir()
    os.chown(work, unprivileged.uid, unprivileged.gid)
    place.chmod(0o755)
    demo = start(work, place / "text", examples=examples, user=unprivileged.uid)
    status, out, err = finish(demo)
    assert (status, err) == (0, ""), out
    assert "identical" in out
    assert traces(work, demo) == []


def test_missing_file_is_named(place):
    demo = start(place, place / "none")
    status, _, err = finish(demo)
    assert status == 1
    assert "No such file" in err
    assert traces(place, demo) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_lines_flow(place, signum):
    file = place / "text"
    file.write_bytes(b"one of some lines\n" * 2_000_000)
    demo = start(place, file)
    assert demo.stdout
    for line in demo.stdout:
        if "producers write" in line:
            break
    demo.send_signal(signum)
    status, _, err = finish(demo)
    assert status == 128 + signum
    assert err == f"demo: interrupted by {signum.name}; cleaning up\n"
    file.unlink()
    assert traces(place, demo) == []


def test_interrupted_at_any_moment(place):
    """More than once, too, as people do who are impatient, and together with all it started, as a terminal does."""
    file = place / "text"
    file.write_bytes(b"".join(LINES))
    started = time.monotonic()
    assert finish(start(place, file))[0] == 0
    whole = time.monotonic() - started
    moments = random.Random(1)
    for _ in range(int(os.environ.get("RELAYFS_DEMO_INTERRUPTIONS", "5"))):
        demo = start(place, file)
        time.sleep(0.1 + moments.random() * whole)  # any moment of its life will do
        for _ in range(3):
            try:
                os.killpg(demo.pid, signal.SIGINT)
            except ProcessLookupError:
                break
            time.sleep(0.01)  # as fast as a key repeats
        status, _, err = finish(demo)
        # 0: it was done before; -SIGINT, 1: Python itself had not yet begun.
        assert status in (0, 130, -signal.SIGINT, 1), err
        assert [trace for trace in traces(place, demo) if trace != str(file)] == [], err
