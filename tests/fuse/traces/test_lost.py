"""Events of programs that never get buffers: no packet tells of them, so the trace's count does."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forking
import pytest
from babeltrace import babeltrace
from making import Maker, making
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from traced import lost_without_buffers, program, record_stopped, relayctl, start_trace, traced
from tracing import recording

from relayfs_fuse import native

pytestmark = pytest.mark.one_mount

SUBBUF, N_SUBBUFS = 4096, 16
EACH = native.buf_file_bytes(SUBBUF, N_SUBBUFS) * native.n_possible_cpus()
ROOM = f"subbuf_size={SUBBUF} n_subbufs={N_SUBBUFS}"


@contextmanager
def limited(mount: Mount, *command: str) -> Iterator[Maker]:
    with making({"RELAYFS": str(mount.path)}, None, [*command, program("traced")]) as maker:
        yield maker


def metadata(trace: Path) -> str:
    """Return the metadata of a trace's only process."""
    (file,) = trace.glob("*/metadata")
    return file.read_text()


def test_what_is_lost_for_want_of_room_is_counted(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    with ExitStack() as stack, recording("t", "-m", mount.path, "-o", tmp_path / "out") as recorder:
        first = stack.enter_context(traced(mount, cpus=[0]))
        first.ask("emit 100")
        others = [stack.enter_context(traced(mount, cpus=[0])) for _ in range(3)]
        for other in others:
            other.ask("emit 1000")
        assert lost_without_buffers(mount) == 3000
        shown = relayctl(mount, "stat", "t").stdout.split()
        assert (shown[:2], shown[-3:]) == (["t", "trace"], ["3000", "no_buffers:3000", "started"])
        wait_until(lambda: "programs could get no buffers, and have lost " in mount.error_log, "it is said")
        for other in others:
            other.kill()
        assert lost_without_buffers(mount) == 3000
        assert "\tlost_without_buffers = 3000;\n" in metadata(mount.path / "t")
        mount.command("trace remove t")
        said = recorder.communicate(timeout=DEADLINE_S)[1]
    assert " 0 events lost, and 3000 of programs that could get no buffers\n" in said
    assert "\tlost_without_buffers = 3000;\n" in metadata(tmp_path / "out")
    assert len(babeltrace(tmp_path / "out").events) == 100


def test_another_trace_begins_at_nothing(mount: Mount) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    with traced(mount, cpus=[0]) as one, traced(mount, cpus=[0]) as other:
        one.ask("emit 1")
        other.ask("emit 10")
        assert lost_without_buffers(mount) == 10
        mount.command("trace remove t")
        start_trace(mount, "t", ROOM)
        assert lost_without_buffers(mount) == 0


@pytest.mark.one_mount(False)
def test_what_is_counted_in_a_buffer_in_the_end_is_counted_once(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    mount.expect("memory= is used up")
    with traced(mount, cpus=[0]) as one, traced(mount, cpus=[0]) as other:
        one.ask("emit 1")
        other.ask("emit 50")
        assert lost_without_buffers(mount) == 50
        one.kill()
        name = f"traced-{other.process.pid}"

        def has_room() -> bool:
            other.ask("emit 1")
            return name in os.listdir(mount.store / "t")

        wait_until(has_room, "the other has room")
        assert lost_without_buffers(mount) == 0
        trace = record_stopped(mount, "t", tmp_path / "out")
        seen = trace.by_pid()[other.process.pid]
        assert trace.lost == seen[0] >= 50


def test_a_program_without_descriptors_is_counted(mount: Mount) -> None:
    start_trace(mount, "t")
    # Enough to find the mount, and too few for a file of events and the buffers.
    with limited(mount, "prlimit", "--nofile=6:6") as maker:
        maker.ask("emit 200")
        assert lost_without_buffers(mount) == 200


@pytest.mark.one_mount(False)
def test_the_count_outlives_a_server(mount: Mount) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    with traced(mount, cpus=[0]) as one, traced(mount, cpus=[0]) as other:
        one.ask("emit 1")
        other.ask("emit 10")
        mount.kill()
        other.ask("emit 10")
        mount.start()
        other.ask("emit 10")
        assert lost_without_buffers(mount) == 30


def test_what_another_users_programs_lose_is_counted_apart(mount: Mount, unprivileged: User, tmp_path: Path) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    with traced(mount, cpus=[0]) as own, recording("t", "-m", mount.path, "-o", tmp_path / "out") as recorder:
        own.ask("emit 1")
        with traced(mount, user=NOBODY) as one, traced(mount, user=NOBODY) as other:
            one.ask("emit 500")
            other.ask("emit 7")
            # Each event is counted at once, so nothing is missing when its program dies without a word.
            one.kill()
            assert (lost_without_buffers(mount), lost_without_buffers(mount, NOBODY)) == (0, 507)
            shown = relayctl(mount, "stat", "t", "--parts").stdout.splitlines()[-1].split()
            assert (shown[:2], shown[-3:]) == ([f"t/user-{NOBODY}", "user"], ["507", "no_buffers:507", "no-buffers"])
            said = f"programs of user {NOBODY} could get no buffers, and have lost "
            wait_until(lambda: said in mount.error_log, "it is said")
            text = "\tlost_without_buffers_of_users = 507;\n"
            wait_until(lambda: text in metadata(mount.path / "t"), "it is in the metadata")
        mount.command("trace remove t")
        said = recorder.communicate(timeout=DEADLINE_S)[1]
    assert f" 0 events lost, and 507 of programs of user {NOBODY} that could get no buffers\n" in said
    assert text in metadata(tmp_path / "out")


def test_another_users_program_without_descriptors_is_counted(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t")
    # Enough to map what is counted, and too few for `join` and the buffers.
    with making({"RELAYFS": str(mount.path)}, NOBODY, ["prlimit", "--nofile=6:6", program("traced")]) as maker:
        maker.ask("emit 200")
        assert lost_without_buffers(mount, NOBODY) == 200


@pytest.mark.one_mount(False)
def test_another_users_count_outlives_servers_and_traces(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t", f"{ROOM} memory={EACH}")
    with traced(mount, cpus=[0]) as own, traced(mount, user=NOBODY) as other:
        own.ask("emit 1")
        other.ask("emit 10")
        mount.kill()
        other.ask("emit 10")
        mount.start()
        other.ask("emit 10")
        assert lost_without_buffers(mount, NOBODY) == 30
        mount.command("trace remove t")
        start_trace(mount, "t", f"{ROOM} memory={EACH}")
        own.ask("emit 1")
        assert lost_without_buffers(mount, NOBODY) == 0
        other.ask("emit 3")
        assert lost_without_buffers(mount, NOBODY) == 3


def test_what_a_user_counts_is_that_users_alone(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t")
    path = mount.path / ".traces/lost"
    code = f"""
import mmap, os
page = mmap.mmap(os.open({str(path)!r}, os.O_RDWR), 4096)
page[:4096] = b"\\xff" * 4096
"""
    forking.run([sys.executable, "-c", code], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
    done = relayctl(mount, "stat", "t", "--parts", "--json")
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["lost_by_cause"]["no_buffers"] == 0
    with pytest.raises(PermissionError):
        path.open("rb")
