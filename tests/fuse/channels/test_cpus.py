"""CPUs that programs may use come and go: relay files stay, and so does what was written on each."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import Mount
from traffic import drain, lines

from relayfs_fuse import Channel

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def free_to_move() -> Iterator[None]:
    yield
    os.sched_setaffinity(0, CPUS)


def relay_files(mount: Mount) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (mount.path / "app").iterdir()}


@pytest.mark.usefixtures("free_to_move")
def test_a_writer_that_is_moved_goes_on_in_another_file_and_each_keeps_its_data(mount: Mount) -> None:
    path = mount.create("app/cpu")
    files = relay_files(mount)
    expected = dict.fromkeys(CPUS, b"")
    with Channel(path) as channel:
        for number in range(600):
            cpu = CPUS[number // 7 % len(CPUS)]
            os.sched_setaffinity(0, {cpu})
            channel.write(lines(1, number))
            expected[cpu] += lines(1, number)
    assert relay_files(mount) == files
    for cpu in CPUS:
        assert drain(Path(f"{path}{cpu}")) == expected[cpu]


@pytest.mark.usefixtures("free_to_move")
def test_every_possible_cpu_has_a_file_before_anybody_may_run_there(mount: Mount) -> None:
    os.sched_setaffinity(0, {CPUS[-1]})
    path = mount.create("app/cpu")
    possible = Path("/sys/devices/system/cpu/possible").read_text()
    n_possible = int(possible.strip().rpartition("-")[2]) + 1
    assert set(relay_files(mount)) == {f"cpu{cpu}" for cpu in range(n_possible)}
    os.sched_setaffinity(0, {CPUS[0]})
    with Channel(path) as channel:
        channel.write(b"early\n")
    assert drain(Path(f"{path}{CPUS[0]}")) == b"early\n"


@pytest.mark.usefixtures("free_to_move")
def test_the_file_of_a_cpu_where_the_reader_may_not_run_is_read_all_the_same(mount: Mount) -> None:
    path = mount.create("app/cpu")
    with Channel(path) as channel:
        os.sched_setaffinity(0, {CPUS[0]})
        channel.write(lines(10))
    os.sched_setaffinity(0, {CPUS[-1]})
    assert drain(Path(f"{path}{CPUS[0]}")) == lines(10)
    mount.command("flush app/cpu")
    mount.command("reset app/cpu")
