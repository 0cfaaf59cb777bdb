"""Buffers of a traced program take their memory when their CPU first writes to them; and if there is none?"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from babeltrace import babeltrace, packets_in
from making import Maker, making
from mounts import NOBODY, Mount, User, wait_until
from traced import check_summary, program, record_stopped, relayctl, start_trace, traced

from relayfs_fuse import native

SUBBUF = 65536
N_SUBBUFS = 8
DATA = SUBBUF * N_SUBBUFS
EACH = native.buf_file_bytes(SUBBUF, N_SUBBUFS)
REST = EACH - DATA
N_CPUS = native.n_possible_cpus()
ROOM = f"subbuf_size={SUBBUF} n_subbufs={N_SUBBUFS}"

pytestmark = pytest.mark.skipif(N_CPUS < 2 or len(os.sched_getaffinity(0)) < 2, reason="it takes two CPUs")


def taken(mount: Mount, maker: Maker) -> list[int]:
    """Bytes that a program's buffers take, for CPU 0 and 1."""
    return [memory_file(mount, maker, cpu).stat().st_blocks * 512 for cpu in (0, 1)]


def memory_file(mount: Mount, maker: Maker, cpu: int) -> Path:
    return mount.store / "t" / f"traced-{maker.process.pid}" / "cpu" / f"mem{cpu}"


def move(maker: Maker, cpu: int) -> None:
    os.sched_setaffinity(maker.process.pid, {cpu})


def fill(directory: Path) -> Path:
    """Take all that is left of a tmpfs."""
    filler = directory / "filler"
    status = os.statvfs(directory)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
    return filler


@pytest.fixture
def small_mount(make_mount: Callable[..., Mount], own_tmpfs: Path) -> Mount:
    """A mount whose store is a file system that can be filled."""
    own_tmpfs.chmod(0o755)
    return make_mount(store=own_tmpfs / "store")


@contextmanager
def limited(mount: Mount, user: int | None) -> Iterator[Maker]:
    """traced.c, that may not write to files."""
    command: list[str | Path] = ["taskset", "-c", "0", "prlimit", "--fsize=0", program("traced")]
    with making({"RELAYFS": str(mount.path)}, user, command) as maker:
        yield maker


@contextmanager
def without_rseq(mount: Mount, user: int | None) -> Iterator[Maker]:
    """traced.c, whose own buffers are lockless."""
    environment = {"RELAYFS": str(mount.path), "GLIBC_TUNABLES": "glibc.pthread.rseq=0"}
    with making(environment, user, ["taskset", "-c", "0", program("traced")]) as maker:
        yield maker


@contextmanager
def plain(mount: Mount, user: int | None) -> Iterator[Maker]:
    with traced(mount, user=user, cpus=[0]) as maker:
        yield maker


# Who runs how.
RUNS = [(plain, None), (plain, NOBODY), (without_rseq, None)]
Run = Callable[[Mount, int | None], AbstractContextManager[Maker]]


@pytest.mark.parametrize(("run", "user"), [*RUNS, (limited, None), (limited, NOBODY)])
def test_a_buffer_takes_memory_when_its_cpu_first_writes(
    mount: Mount, unprivileged: User, tmp_path: Path, run: Run, user: int | None
) -> None:
    start_trace(mount, "t", ROOM)
    with run(mount, user) as maker:
        maker.ask("emit 10")
        assert taken(mount, maker) == [EACH, REST]
        move(maker, 1)
        maker.ask("emit 10")
        assert taken(mount, maker) == [EACH, EACH]
        trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers() == list(range(20))
    assert trace.lost == 0


@pytest.mark.parametrize(("run", "user"), RUNS)
def test_without_memory_events_are_lost_and_counted_until_there_is_some(
    small_mount: Mount, own_tmpfs: Path, unprivileged: User, tmp_path: Path, run: Run, user: int | None
) -> None:
    mount = small_mount
    start_trace(mount, "t", ROOM)
    with run(mount, user) as maker:
        maker.ask("emit 10")
        filler = fill(own_tmpfs)
        move(maker, 1)
        maker.ask("emit 100")
        assert taken(mount, maker) == [EACH, REST]
        move(maker, 0)
        maker.ask("emit 10")
        filler.unlink()
        move(maker, 1)

        def goes_on() -> bool:
            maker.ask("emit 1")
            return taken(mount, maker) == [EACH, EACH]

        wait_until(goes_on, "there is memory, and it is taken")
        maker.ask("emit 10")
        trace = record_stopped(mount, "t", tmp_path / "out")
    # Each event has its number, so that what is missing can be counted.
    numbers = trace.numbers()
    assert numbers == sorted(numbers)
    assert not set(range(10, 110)) & set(numbers)
    assert trace.lost == numbers[-1] + 1 - len(numbers)


@pytest.mark.parametrize(("run", "user"), RUNS)
def test_what_a_program_lost_that_never_had_memory_is_said(
    small_mount: Mount, own_tmpfs: Path, unprivileged: User, run: Run, user: int | None
) -> None:
    mount = small_mount
    start_trace(mount, "t", ROOM)
    with run(mount, user) as maker:
        maker.ask("emit 10")
        fill(own_tmpfs)
        move(maker, 1)
        maker.ask("emit 100")
        maker.process.kill()
        maker.process.wait()
        lost_file = mount.path / "t" / f"traced-{maker.process.pid}" / "cpu1"

        # What CPU 0 wrote is unread, so the directory stays.
        found: list[bytes] = []

        def is_said() -> bool:
            found.append(lost_file.read_bytes())
            return bool(found[-1])

        wait_until(is_said, "the server has finished what the dead program has left")
        assert {(packet.lost, events) for packet, events in packets_in(found[-1])} == {(100, b"")}
        assert taken(mount, maker) == [EACH, REST]


def test_a_recorder_says_what_a_program_lost_that_never_had_memory(
    small_mount: Mount, own_tmpfs: Path, tmp_path: Path
) -> None:
    mount = small_mount
    start_trace(mount, "t", ROOM)
    with traced(mount, cpus=[0]) as maker:
        maker.ask("emit 10")
        fill(own_tmpfs)
        move(maker, 1)
        maker.ask("emit 100")
        mount.command("trace stop t")
        done = relayctl(mount, "record", "t", "-o", tmp_path / "out", "--until-stopped")
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith(", 100 events lost")
    assert len(babeltrace(tmp_path / "out").numbers()) == 10


def test_another_users_program_takes_memory_also_without_a_server(
    mount: Mount, unprivileged: User, tmp_path: Path
) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=NOBODY, cpus=[0]) as maker:
        maker.ask("emit 10")
        mount.kill()
        move(maker, 1)
        maker.ask("emit 10")
        assert taken(mount, maker) == [EACH, EACH]
        mount.start()
        trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers() == list(range(20))


def allocate_others(mount: Mount, maker: Maker) -> None:
    """Give all buffers of a program their memory but the first."""
    for n in range(1, N_CPUS):
        os.posix_fallocate(fd := os.open(memory_file(mount, maker, n), os.O_RDWR), 0, DATA)
        os.close(fd)


def test_memory_of_a_trace_is_looked_at_again_when_a_cpu_first_writes(mount: Mount, tmp_path: Path) -> None:
    # As much as one program with all its buffers, and two with one each.
    mount.expect("memory= is used up")
    start_trace(mount, "t", f"{ROOM} memory={N_CPUS * EACH + N_CPUS * REST + DATA}")
    with traced(mount, cpus=[0]) as first, traced(mount, cpus=[0]) as second:
        for maker in (first, second):
            maker.ask("emit 10")
        others = sum(taken(mount, maker)[0] for maker in (first, second))
        assert others == 2 * EACH
        allocate_others(mount, first)
        move(second, 1)
        second.ask("emit 100")
        assert taken(mount, second) == [EACH, REST]
        # The dead give way.
        first.process.kill()
        first.process.wait()

        def goes_on() -> bool:
            second.ask("emit 1")
            return taken(mount, second) == [EACH, EACH]

        wait_until(goes_on, "there is room, and it is taken")


def test_a_drained_process_gives_way_before_an_older_one_with_events(mount: Mount) -> None:
    # As much as one program with all its buffers, and two with one each.
    start_trace(mount, "t", f"{ROOM} memory={N_CPUS * EACH + 2 * (EACH + (N_CPUS - 1) * REST)}")
    with traced(mount, cpus=[0]) as writer, traced(mount, cpus=[0]) as older, traced(mount, cpus=[0]) as drained:
        for maker in (writer, older, drained):
            maker.ask("emit 10")
        allocate_others(mount, drained)
        # A server would remove a drained process's directory by itself.
        mount.kill()
        for maker in (older, drained):
            maker.process.kill()
            maker.process.wait()
        with closing(native.Buffer(str(memory_file(mount, drained, 0)))) as buffer:
            buffer.flush()
            buffer.subbufs_consumed(1)
            assert (buffer.stats().records, buffer.stats().unread_records) == (10, 0)
        move(writer, 1)
        writer.ask("emit 10")
        assert taken(mount, writer) == [EACH, EACH]
        assert not memory_file(mount, drained, 0).exists()
        assert memory_file(mount, older, 0).exists()
    # It had nothing that anybody could miss.
    assert not (mount.store / "t/.given-up").exists()


def test_memory_that_is_there_already_is_used(mount: Mount, tmp_path: Path) -> None:
    """Its allocator was killed before it could say so."""
    start_trace(mount, "t", ROOM)
    with traced(mount, cpus=[0]) as maker:
        maker.ask("emit 10")
        with memory_file(mount, maker, 1).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, DATA)
        move(maker, 1)
        maker.ask("emit 10")
        trace = record_stopped(mount, "t", tmp_path / "out")
    assert trace.numbers() == list(range(20))
    assert trace.lost == 0


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_prepared_program_has_all_its_memory(mount: Mount, unprivileged: User, user: int | None) -> None:
    start_trace(mount, "t", ROOM)
    with traced(mount, user=user, cpus=[0]) as maker:
        maker("signals 10")
        assert taken(mount, maker) == [EACH, EACH]


@pytest.mark.parametrize("buffers", ["peruser", "shared"])
def test_buffers_of_several_programs_are_whole(mount: Mount, buffers: str) -> None:
    start_trace(mount, "t", f"{ROOM} buffers={buffers}")
    with traced(mount, cpus=[0]) as maker:
        maker.ask("emit 10")
        for path in (mount.store / "t").rglob("mem*"):
            assert path.stat().st_blocks * 512 == EACH


@pytest.mark.parametrize("user", [None, NOBODY])
def test_a_flag_that_is_cleared_without_memory_harms_no_reader(
    small_mount: Mount, own_tmpfs: Path, unprivileged: User, tmp_path: Path, user: int | None
) -> None:
    """The memory is full, and the positions say that there is something in a buffer that has none."""
    mount = small_mount
    mount.expect("damaged")
    start_trace(mount, "t", ROOM)
    with traced(mount, user=user, cpus=[0]) as maker:
        maker.ask("emit 10")
        control = memory_file(mount, maker, 0).read_bytes()[-4096:]
        with os.fdopen(native.file_open(str(memory_file(mount, maker, 1))), "r+b") as file:
            # Of another CPU, in the geometry's cpu; all else is as in the one that was written.
            file.seek(EACH - 4096)
            file.write(control[:12] + (1).to_bytes(4, "little") + control[16:])
        filler = fill(own_tmpfs)
        mount.command("trace stop t")
        name = f"traced-{maker.process.pid}"
        descriptor = os.open(mount.path / "t" / name / "cpu1", os.O_RDONLY)
        try:
            os.read(descriptor, 1 << 20)
        except OSError as error:
            assert error.errno is not None
        finally:
            os.close(descriptor)
        done = relayctl(mount, "record", "t", "-o", tmp_path / "out", "--until-stopped")
        assert done.returncode in (0, 1), done.stderr
        assert "t" in mount.channels()
        filler.unlink()
        assert maker.process.poll() is None
    assert len([event for event in babeltrace(tmp_path / "out").named("judge:step") if event.pid]) >= 10
    # Whether it is seen to be damaged depends on what the memory is then taken for.
    check_summary(done.stderr.removesuffix(f"; damaged: {name}\n"), ".*")
