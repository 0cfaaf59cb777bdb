"""Many writers, moved, interrupted, forked and killed: each record is read once or is in the loss count.

The short form takes a minute. RELAYFS_STRESS=long makes it 50 million records for each scheme and mode.
"""

import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build import MEMORY, PLAIN, THREADS, builds, run_command, run_environment
from stress import (
    DEADLINE,
    OVERRUN,
    Channel,
    Stress,
    combined,
    is_long,
    kill_and_replace,
    program,
    start_late_producer,
    stresses,
    wait_for,
)

if TYPE_CHECKING:
    from mounts import Mount

pytestmark = pytest.mark.stress

SCHEMES = ["rseq", "lockless", "locking"]
# Scheme locking is the lock around what lockless does, which is enough to try sanitized.
VARIANTS = [(scheme, kind) for scheme in SCHEMES for kind in builds() if (scheme, kind) != ("locking", MEMORY)]
MODES = ["no-overwrite", "overwrite"]
CALLBACKS = ["keep", "replace"]
READERS = ["read", "zero-copy"]
N_PRODUCERS = 4
# Two threads with this many each, and a forked child with half of it, times four.
RECORDS = 50_000_000 // 20 if is_long() else 15_000
SERVER_KILLS = 60 if is_long() else 2
PRODUCER_KILLS = 200 if is_long() else 8
RESERVED_RECORDS = 50_000 if is_long() else 1200
SANITIZED_RECORDS = 10_000 if is_long() else 500
RESERVED = [("no-overwrite", (4096, 2)), ("overwrite", (5000, 3)), ("keep", (5000, 3)), ("replace", (60_000, 8))]
CONTROLS = [("flush", "stats", "affinity"), ("flush", "disable", "consumed", "affinity"),
            ("reset", "flush", "disable", "stats", "affinity")]  # fmt: skip
N_CONTROLLERS = 3
CALLS = 500 if is_long() else 200
LATE_RECORDS = 100_000 if is_long() else 3000
UNPLUGGED_CALLS = 30
CPUS_TO_UNPLUG = [
    online for online in Path("/sys/devices/system/cpu").glob("cpu[1-9]*/online") if os.access(online, os.W_OK)
]
GENERATIONS = 100 if is_long() else 6
CONTROLLED_RECORDS = 200_000 if is_long() else 5000
GEOMETRIES = [(4096, 1), (4096, 2), (5000, 3), (60_000, 8)]
# A few, so that overwriting and refusing happen; not a divisor of a read's 1 MiB.
GEOMETRY = (60_000, 8)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="relayfs-stress-", dir="/dev/shm") as path:
        yield Path(path)


def stored_channel(scratch: Path, geometry: tuple[int, int], mode: str, scheme: str, sanitize: str) -> Channel:
    directory = scratch / "channel"
    made_as = "callback" if mode in CALLBACKS else mode
    command = run_command(program("make_channel", sanitize), directory, *geometry, made_as, scheme, sanitize=sanitize)
    subprocess.run(command, env=run_environment(sanitize), check=True)
    return Channel.in_store(directory, mode)


def mounted_channel(mount: "Mount", name: str, mode: str, scheme: str) -> Channel:
    size, n = GEOMETRY
    made_as = "callback" if mode in CALLBACKS else mode
    path = mount.create(f"stress/{name}", f"subbuf_size={size} n_subbufs={n} mode={made_as} scheme={scheme}")
    return Channel.in_mount(path, mount.store / "stress" / name, mode)


def check_overrun(stress: Stress, account: dict[str, int]) -> None:
    """The run met what it is there for."""
    assert account["read"] > 0
    assert account["overwritten" if stress.channel.overwrites else "full"] > 0


@pytest.mark.parametrize(("variant", "geometry", "mode"), combined(VARIANTS, GEOMETRIES, MODES), ids=str)
def test_without_a_server(scratch: Path, variant: tuple[str, str], geometry: tuple[int, int], mode: str) -> None:
    scheme, sanitize = variant
    channel = stored_channel(scratch, geometry, mode, scheme, sanitize)
    make = lambda: Stress(channel, scratch / "ledger", "consume", sanitize, signals_us=60)  # noqa: E731
    with stresses(make) as [stress]:
        stress.stop_reader()  # before producers may be done with all
        for _ in range(N_PRODUCERS):
            stress.start_producer(600 if sanitize else 2000, fork=True)
        stress.overrun_reader()
        stress.join_producers()
        check_overrun(stress, stress.finish())


@pytest.mark.parametrize(("mode", "geometry"), RESERVED, ids=str)
@pytest.mark.parametrize(("scheme", "sanitize"), VARIANTS)
def test_reservations(scratch: Path, geometry: tuple[int, int], mode: str, scheme: str, sanitize: str) -> None:
    channel = stored_channel(scratch, geometry, mode, scheme, sanitize)
    make = lambda: Stress(channel, scratch / "ledger", "consume", sanitize, signals_us=60, reserves=True)  # noqa: E731
    with stresses(make) as [stress]:
        stress.stop_reader()
        for _ in range(N_PRODUCERS):
            stress.start_producer(SANITIZED_RECORDS if sanitize else RESERVED_RECORDS, fork=True)
        stress.overrun_reader()
        stress.join_producers()
        account = stress.finish()
        check_overrun(stress, account)
        assert account["discarded"] > 0
        assert (account["headers"] > 0) == (mode in CALLBACKS)


@pytest.mark.parametrize(("scheme", "sanitize"), VARIANTS)
def test_mapped_memory_is_what_headers_say(scratch: Path, scheme: str, sanitize: str) -> None:
    # What is discarded or overwritten cannot be told by who looks at the memory alone.
    channel = stored_channel(scratch, (60_000, 8), "keep", scheme, sanitize)
    with stresses(lambda: Stress(channel, scratch / "ledger", "mmap", sanitize, signals_us=60)) as [stress]:
        stress.stop_reader()
        for _ in range(N_PRODUCERS):
            stress.start_producer(SANITIZED_RECORDS if sanitize else RESERVED_RECORDS, fork=True)
        stress.overrun_reader()
        stress.join_producers()
        check_overrun(stress, stress.finish())


@pytest.mark.parametrize(("variant", "mode", "calls"), combined(VARIANTS, [*MODES, *CALLBACKS], CONTROLS), ids=str)
def test_control_at_random(scratch: Path, variant: tuple[str, str], mode: str, calls: tuple[str, ...]) -> None:
    scheme, sanitize = variant
    channel = stored_channel(scratch, (20_000, 4), mode, scheme, sanitize)
    verified = {"passed": "consumed" in calls, "resets": "reset" in calls}
    make = lambda: Stress(channel, scratch / "ledger", "consume", sanitize, reserves=True, **verified)  # noqa: E731
    with stresses(make) as [stress]:
        for _ in range(N_PRODUCERS):
            stress.start_producer()
        for _ in range(N_CONTROLLERS):
            stress.start_controller(*calls)
        wait_for(lambda: stress.written() >= CONTROLLED_RECORDS, "producers write", DEADLINE)
        wait_for(lambda: stress.calls() >= CALLS, "controllers call", DEADLINE)
        counts = stress.stop_controllers()
        assert all(counts[call] > 0 for call in calls), counts
        stress.stop_producers()
        account = stress.finish()
        assert account["read"] > 0
        if "reset" in calls:
            assert account["resets_met"] > 0


def plug_all() -> None:
    """A controller that was killed may have left a CPU unplugged."""
    for online in CPUS_TO_UNPLUG:
        online.write_text("1")


# It happens to the whole machine.
if is_long() and CPUS_TO_UNPLUG:

    @pytest.mark.parametrize("mode", [*MODES, *CALLBACKS])
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_cpus_are_unplugged(scratch: Path, mode: str, scheme: str, request: pytest.FixtureRequest) -> None:
        request.addfinalizer(plug_all)
        channel = stored_channel(scratch, (20_000, 4), mode, scheme, PLAIN)
        make = lambda: Stress(channel, scratch / "ledger", "consume", reserves=True, unplugged=True, resets=True)  # noqa: E731
        with stresses(make) as [stress]:
            for _ in range(N_PRODUCERS):
                stress.start_producer()
            stress.start_controller("unplug")
            stress.start_controller("reset", "flush", "disable", "stats", "unplug")
            wait_for(lambda: stress.calls() >= UNPLUGGED_CALLS, "controllers call", DEADLINE)
            counts = stress.stop_controllers()
            assert counts["unplug"] > 0
            stress.stop_producers()
            assert stress.finish()["read"] > 0


@pytest.mark.parametrize("mode", CALLBACKS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_producers_killed_in_callbacks_and_with_reservations(scratch: Path, mode: str, scheme: str) -> None:
    channel = stored_channel(scratch, (20_000, 4), mode, scheme, PLAIN)
    make = lambda: Stress(channel, scratch / "ledger", "consume", killed=True, reserves=True)  # noqa: E731
    with stresses(make) as [stress]:
        for _ in range(N_PRODUCERS):
            stress.start_producer()
        kill_and_replace(stress, PRODUCER_KILLS, 0)
        now = stress.written()
        wait_for(lambda: stress.written() > now + 5000, "the buffers go on")
        stress.stop_producers()
        account = stress.finish()
        assert account["read"] > 0


@pytest.mark.parametrize(("scheme", "sanitize"), [*VARIANTS, *itertools.product(SCHEMES, builds(THREADS))])
@pytest.mark.parametrize("ways", [[], ["reserve"]], ids=["write", "reserve"])
def test_threads_on_one_mapping(scratch: Path, scheme: str, sanitize: str, ways: list[str]) -> None:
    channel = stored_channel(scratch, (16384, 4), "no-overwrite", scheme, sanitize)
    command = run_command(program("stress_threads", sanitize), channel.writer[1], 10_000, *ways, sanitize=sanitize)
    done = subprocess.run(
        command, env=run_environment(sanitize), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]


def makers(mount: "Mount", scratch: Path, mode: str, scheme: str, **options: bool) -> list[Callable[[], Stress]]:
    """One channel for each kind of reader."""

    def maker(reader: str) -> Callable[[], Stress]:
        channel = mounted_channel(mount, reader, mode, scheme)
        return lambda: Stress(channel, scratch / f"ledger-{reader}", reader, **options)

    return [maker(reader) for reader in READERS]


def check_channel_stats(mount: "Mount", stress: Stress, account: dict[str, int]) -> None:
    names = {"records": "written", "read_records": "read", "lost_full": "full", "lost_overwritten": "overwritten"}
    for statistic, counted in names.items():
        assert int(mount.shown(f"stress/{stress.reader}", statistic)) == account[counted], statistic


def overrun(both: list[Stress], n_records: int) -> Iterator[tuple[Stress, dict[str, int]]]:
    """Have producers, each of which forks, write so many records each, more than fit while the readers are stopped."""
    for stress in both:
        stress.stop_reader()  # before some producers are done with all
    for _, stress in itertools.product(range(N_PRODUCERS), both):
        stress.start_producer(n_records, fork=True)
    for stress in both:
        stress.overrun_reader()
    for stress in both:
        stress.join_producers()
        account = stress.finish()
        check_overrun(stress, account)
        yield stress, account


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_mount
def test_every_record_arrives_once_or_is_counted(mount: "Mount", scratch: Path, mode: str, scheme: str) -> None:
    with stresses(*makers(mount, scratch, mode, scheme)) as both:
        for stress, account in overrun(both, RECORDS):
            check_channel_stats(mount, stress, account)
            assert account["written"] >= N_PRODUCERS * 2 * RECORDS


@pytest.mark.parametrize("mode", [*MODES, *CALLBACKS])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_mount
def test_reservations_through_a_mount(mount: "Mount", scratch: Path, mode: str, scheme: str) -> None:
    with stresses(*makers(mount, scratch, mode, scheme, reserves=True)) as both:
        for stress, account in overrun(both, RESERVED_RECORDS):
            assert int(mount.shown(f"stress/{stress.reader}", "discarded")) == account["discarded"] > 0


def wait_for_a_lap(mount: "Mount", both: list[Stress]) -> None:
    """Let producers write more than the buffers hold, and the server be asked for it."""

    def reads() -> int:
        return int(mount.shown("stress/read", "reads"))

    n_written, n_reads = [stress.written() for stress in both], reads()
    for stress, written in zip(both, n_written, strict=True):
        wait_for(lambda s=stress, n=written: s.written() >= n + OVERRUN, "producers write")  # type: ignore[misc]
    wait_for(lambda: reads() > n_reads, "the reader reads")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_server_loses_nothing(mount: "Mount", scratch: Path, mode: str, scheme: str) -> None:
    # The mount that the dead server leaves is cleared by the next.
    mount.expect("")
    with stresses(*makers(mount, scratch, mode, scheme, reopen=True)) as both:
        for _, stress in itertools.product(range(N_PRODUCERS), both):
            stress.start_producer()
        wait_for(lambda: all(stress.each_has_written(1) for stress in both), "all write")
        for _ in range(SERVER_KILLS):
            wait_for_a_lap(mount, both)
            mount.kill()
            before = [stress.written() for stress in both]
            for stress, written in zip(both, before, strict=True):
                if mode == "overwrite":
                    wait_for(lambda s=stress, n=written: s.written() > n, "producers go on")  # type: ignore[misc]
            mount.start()
        for stress in both:
            stress.stop_producers()
        accounts = {stress.reader: stress.finish() for stress in both}
    assert accounts["read"]["reopened"] >= SERVER_KILLS
    assert all(account["read"] > 0 for account in accounts.values())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_mount
def test_killed_producers_cost_one_record_each_at_most(mount: "Mount", scratch: Path, mode: str, scheme: str) -> None:
    with stresses(*makers(mount, scratch, mode, scheme, killed=True)) as both:
        for _, stress in itertools.product(range(N_PRODUCERS), both):
            stress.start_producer()
        for seed, stress in enumerate(both):
            kill_and_replace(stress, PRODUCER_KILLS, seed)
        for stress in both:
            now = stress.written()
            wait_for(lambda s=stress, n=now: s.written() > n + 5000, "the buffers go on")  # type: ignore[misc]
            stress.stop_producers()
            account = stress.finish()
            assert account["read"] > 0


@pytest.mark.parametrize(("scheme", "mode", "reader"), combined(SCHEMES, ["no-overwrite", "keep"], READERS))
def test_files_come_late_and_go_early(mount: "Mount", scratch: Path, mode: str, scheme: str, reader: str) -> None:
    # It cannot be done before somebody reads, as the buffers are full; when it is done, it removes the channel.
    callback = ["--callback", mode] if mode in CALLBACKS else []
    path, ledger = mount.path / "late", scratch / "ledger"
    producer = start_late_producer(path, ledger, scheme, LATE_RECORDS, "--reserve", *callback)
    try:
        wait_for(lambda: Path(f"{path}0").exists() or producer.poll() is not None, "files come")
        channel = Channel.in_mount(path, mount.store / "late", mode)
    except BaseException:
        producer.kill()
        raise
    with stresses(lambda: Stress(channel, ledger, reader)) as [stress]:
        stress.producers.append(producer)
        stress.join_producers()
        account = stress.finish()
        assert account["written"] >= 4 * LATE_RECORDS
    assert not Path(f"{path}0").exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_channels_removed_under_their_writers_are_read_to_the_end(mount: "Mount", scratch: Path, scheme: str) -> None:
    for generation in range(GENERATIONS):
        channel = mounted_channel(mount, "cpu", "no-overwrite", scheme)
        ledger, reader = scratch / f"ledger{generation}", READERS[generation % 2]
        with stresses(lambda: Stress(channel, ledger, reader, reserves=True)) as [stress]:  # noqa: B023
            for _ in range(N_PRODUCERS):
                stress.start_producer()
            wait_for(lambda: stress.each_has_written(1 + 50 * generation), "all write")  # noqa: B023
            mount.command("remove stress/cpu\n")
            stress.join_producers()
            assert stress.finish()["read"] > 0
