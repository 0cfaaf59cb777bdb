"""A traced program that wants to do harm: it can spoil its own buffers, and nothing else."""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from babeltrace import babeltrace
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from stress import is_long
from traced import environment_of, processes, program, relayctl, start_trace, traced
from tracing import finish, recording
from traffic import at_once
from triggering import listed, wait_lines, wait_seen, watcher_of

from relayfs_fuse.tracefiles.recorder_lock import holder

pytestmark = pytest.mark.one_mount

HONEST = 60_002
ROOM = "subbuf_size=64K n_subbufs=16"
SEEDS = range(1, 40 if is_long() else 5)


def attack(mount: Mount, user: int) -> dict[str, str]:
    done = subprocess.run(
        [program("trace_hostile"), "attack"], env=environment_of(mount), user=user, group=user, extra_groups=[],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines())


@contextmanager
def spoiling(mount: Mount, user: int, seed: int, rounds: int) -> Iterator[subprocess.Popen[str]]:
    """Run a hostile program until it has done what it can."""
    process = subprocess.Popen(
        [program("trace_hostile"), "spoil", str(seed), str(rounds)], env=environment_of(mount), user=user, group=user,
        extra_groups=[], stdout=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    try:
        assert process.stdout is not None
        word, n_mappings = process.stdout.readline().split()
        assert word == "spoilt"
        assert int(n_mappings) > 0
        yield process
    finally:
        process.kill()
        process.communicate()


def spoilt_directory(mount: Mount, process: subprocess.Popen[str]) -> str:
    name = f"trace_hostile-{process.pid}"
    assert name in os.listdir(mount.path / "t")
    return name


@pytest.mark.parametrize("user", [NOBODY, 0])
def test_the_control_page_cannot_be_written(mount: Mount, unprivileged: User, user: int) -> None:
    start_trace(mount, "t", ROOM)
    page = hashlib.sha256((mount.store / ".traces").read_bytes()[:4096])
    done = attack(mount, user)
    assert done["store"] == "fault"
    assert done["mprotect"] == "EACCES"
    assert done["proc"] in ("EIO", "EFAULT")
    if user != 0:
        # Whoever is root can do anything with files, but not through what the library maps.
        assert {done[name] for name in ("open", "truncate")} == {"EACCES"}
        assert done["unlink"] in ("EACCES", "EPERM")
        assert done["chmod"] == "EPERM"
        assert hashlib.sha256((mount.store / ".traces").read_bytes()[:4096]).digest() == page.digest()


def test_a_user_cannot_open_anothers_buffers(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=HONEST) as honest:
        honest.ask("emit 10")
        directory = f"traced-{honest.process.pid}"
        wait_until((mount.path / "t" / directory).exists, "it is shown")
        for path in [*(mount.store / "t" / directory).rglob("*"), *(mount.path / "t" / directory).iterdir()]:
            script = f"exec 3<>{path}" if path.is_file() else f"touch {path}/x"
            assert unprivileged.run("bash", "-c", script).returncode != 0, path
        assert unprivileged.run("rm", "-rf", str(mount.store / "t" / directory)).returncode != 0
        assert unprivileged.run("mv", str(mount.store / "t" / directory), "/tmp/x").returncode != 0
        honest.ask("emit 10")


def read_some(path: Path) -> None:
    subprocess.run(["timeout", "20", "head", "-c", "1000000", path], capture_output=True, check=False)


@pytest.mark.stress
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.one_mount(False)
def test_spoilt_buffers_harm_nobody_else(mount: Mount, unprivileged: User, tmp_path: Path, seed: int) -> None:
    mount.expect("damaged|positions")
    start_trace(mount, "t", ROOM)
    out, place = tmp_path / "out", tmp_path / "snapshots"
    place.mkdir()
    mount.command("trigger add all on t * do notify limit=1ms")
    mount.command(f"trigger add disk on t judge:step do snapshot {place} limit=100ms keep=2")
    mount.command("trigger add memory on t judge:step do snapshot limit=100ms keep=2")
    wait_until(lambda: watcher_of(mount) is not None, "the process that evaluates triggers begins")
    watcher = watcher_of(mount)
    with recording("t", "-m", mount.path, "-o", out) as recorder, traced(mount, user=HONEST) as honest:
        wait_until(lambda: holder(str(mount.store / "t")), "the recorder has begun")
        honest.ask("emit 1000")
        with spoiling(mount, NOBODY, seed, 50) as hostile:
            spoilt = spoilt_directory(mount, hostile)
            honest.ask("emit 1000")
            # Also while it is alive: its files answer, or fail, but at once.
            at_once(read_some, (mount.path / "t" / spoilt).iterdir())
            shown = relayctl(mount, "stat", "t")
            assert shown.returncode == 0, shown.stderr
        honest.ask("emit 1000")
        name = f"traced-{honest.process.pid}"
        wait_until(lambda: list(out.rglob(name)), "the honest one is recorded")
        for trigger in ("disk", "memory"):
            wait_seen(mount, trigger, 3000)
            lines = wait_lines(mount.path / "t", trigger, 2 * listed(mount)[trigger]["fired"])
            # It may have fired again before it said what became of the firing before.
            fired, said = (line for line in lines if line.number == lines[-1].number)
            assert said.text.startswith("snapshot /"), said
            numbers = babeltrace(Path(said.text.split()[1].rstrip(",")) / name).numbers()
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[-1] >= int(fired.text.split("seq = ")[1].split(",")[0])
        assert watcher_of(mount) == watcher
        said = finish(recorder)
    trace = babeltrace(out / name)
    assert (trace.numbers(), trace.lost) == (list(range(3000)), 0)
    # It says which, and nothing of others.
    assert spoilt in said
    assert name not in said
    mount.command("trace stop t")
    mount.command("trace remove t")
    assert "t" not in os.listdir(mount.path)


def test_an_early_trace_of_a_user_takes_nobody_elses_name(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=HONEST) as honest, traced(mount, user=NOBODY) as other:
        honest.ask("emit 10")
        other.ask("emit 10")
        wait_until(lambda: len(processes(mount.path / "t")) == 2, "both are shown")
        for process, user in ((honest, HONEST), (other, NOBODY)):
            status = (mount.store / "t" / f"traced-{process.process.pid}" / "cpu/mem0").stat()
            assert (status.st_uid, status.st_mode & 0o007) == (user, 0)
