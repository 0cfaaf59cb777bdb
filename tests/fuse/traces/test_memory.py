"""What the buffers of a trace take together: memory= of `trace create`."""

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from mounts import NOBODY, Mount, User, wait_until
from traced import record_stopped, start_trace, traced

from relayfs_fuse import native

SUBBUF = 4096
N_SUBBUFS = 16
EACH = native.buf_file_bytes(SUBBUF, N_SUBBUFS) * native.n_possible_cpus()
# What a program takes that writes on one CPU only.
DATA = SUBBUF * N_SUBBUFS
ONE = EACH - (native.n_possible_cpus() - 1) * DATA
ROOM = f"subbuf_size={SUBBUF} n_subbufs={N_SUBBUFS}"


def directories(mount: Mount) -> list[str]:
    return sorted(name for name in os.listdir(mount.store / "t") if not name.startswith("."))


def bytes_of(mount: Mount) -> int:
    return sum(path.stat().st_blocks * 512 for path in (mount.store / "t").rglob("mem*"))


@pytest.mark.parametrize("user", [None, NOBODY])
def test_living_programs_keep_their_buffers_and_a_newcomer_waits(
    mount: Mount, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    # Another user's program can take all of what it maps, so all of it counts.
    limit = 3 * EACH if user else 2 * ONE + EACH
    start_trace(mount, "t", f"{ROOM} memory={limit}")
    with ExitStack() as stack:
        # On the CPU in whose buffer it is said what was lost while there was none.
        programs = [stack.enter_context(traced(mount, user=user, cpus=[0])) for _ in range(6)]
        for program in programs:
            program.ask("emit 10")
        kept = directories(mount)
        assert len(kept) == 3
        assert bytes_of(mount) == 3 * ONE
        last, pid = programs[-1], programs[-1].process.pid
        programs[0].ask("emit 10")
        programs[0].process.kill()

        def has_room() -> bool:
            last.ask("emit 1")
            return f"traced-{pid}" in directories(mount)

        mount.expect("memory= is used up")
        wait_until(has_room, "the newcomer has room")
        assert len(directories(mount)) <= 3
        assert bytes_of(mount) <= 3 * ONE
    trace = record_stopped(mount, "t", tmp_path / "out")
    seen = trace.by_pid()[pid]
    # What it lost before it had room is counted.
    assert len(seen) < 10
    assert trace.lost == seen[0]


def test_the_dead_give_way_the_oldest_first_and_it_is_said(mount: Mount) -> None:
    mount.expect("memory= is used up")
    start_trace(mount, "t", f"{ROOM} memory={2 * ONE + EACH} mode=overwrite")
    pids = []
    for n in range(1, 6):
        with traced(mount, cpus=[0]) as program:
            program.ask(f"emit {n}")
            pids.append(program.process.pid)
        wait_until(lambda: f"traced-{pids[-1]}" in directories(mount), "it is there")
    assert directories(mount) == sorted(f"traced-{pid}" for pid in pids[-3:])
    for n, pid in enumerate(pids[:2], 1):
        said = f"traced-{pid} had ended, and was removed with {n} unread events"
        wait_until(lambda said=said: said in mount.error_log, said)


def test_many_programs_do_not_fill_the_machine(mount: Mount) -> None:
    mount.expect("memory= is used up")
    start_trace(mount, "t", f"{ROOM} memory={5 * EACH}")
    for _ in range(40):
        with traced(mount) as program:
            program.ask("emit 1")
        assert bytes_of(mount) <= 5 * EACH


def test_one_process_must_find_room(mount: Mount) -> None:
    with pytest.raises(OSError) as caught:
        mount.command(f"trace create t {ROOM} memory={EACH - 1}\n")
    assert caught.value.errno == errno.ENOSPC
    assert f"less than the {EACH} bytes that one process takes" in mount.error_log
    mount.command(f"trace create t {ROOM} memory={EACH}\n")
    assert f"memory={native.buf_file_bytes(SUBBUF, N_SUBBUFS) * native.n_possible_cpus() // 1024}K" in (
        mount.channels()
    )


def test_memory_is_shown_where_it_is_not_the_default(mount: Mount) -> None:
    mount.command("trace create a\ntrace create b memory=16M\n")
    first, second = mount.channels().splitlines()
    assert "memory=" not in first
    assert " memory=16M " in second
