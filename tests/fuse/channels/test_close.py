"""The rest of a channel's life: who maps it, what is consumed in mappings, closing, and where its memory goes."""

import mmap
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from making import GEOMETRY, N_CPUS, USUAL, Maker, contents, environment_of, making, relay_files
from mounts import DEADLINE_S, Mount, used, wait_until
from traffic import drain, some_cpu

from relayfs_fuse import Channel, Reader

MAPPER = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(descriptor, 4096)
os.close(descriptor)
print("mapped", flush=True)
sys.stdin.readline()
"""


# --- buf_mapped and buf_unmapped ---


@pytest.fixture
def watched(maker: Maker) -> Maker:
    """A program that is told who maps its channel cpu."""
    maker.ask("watch")
    maker.ask(f"open cpu - {GEOMETRY}")
    maker.told.clear()
    return maker


def wait_for(maker: Maker, *told: str) -> None:
    wait_until(lambda: maker.told == list(told), lambda: f"{maker.told} becomes {list(told)}")


def mem(mount: Mount, cpu: int, channel: str = "cpu") -> Path:
    return mount.path / f".channels/{channel}/mem{cpu}"


@pytest.mark.parametrize("cpu", range(N_CPUS))
def test_the_maker_is_told_who_opens_memory_and_when_he_is_done(mount: Mount, watched: Maker, cpu: int) -> None:
    mapped, unmapped = (f"{what} {mount.path}/cpu{cpu} {cpu}" for what in ("mapped", "unmapped"))
    first = os.open(mem(mount, cpu), os.O_RDWR)
    wait_for(watched, mapped)
    second = os.open(mount.path / f"cpu{cpu}", os.O_RDWR)
    wait_for(watched, mapped, mapped)
    os.close(first)
    wait_for(watched, mapped, mapped, unmapped)
    os.close(second)
    wait_for(watched, mapped, mapped, unmapped, unmapped)


def test_opens_that_cannot_map_are_not_told_and_neither_are_the_makers_own(mount: Mount, watched: Maker) -> None:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        os.close(os.open(mount.path / "cpu0", flags))
    watched.ask(f"read {mem(mount, 0)}")
    watched.ask(f"read {mount.path}/cpu0")
    # What comes after them is told, and nothing before it.
    with Channel(mount.path / "cpu"):
        wait_until(lambda: len(watched.told) == N_CPUS, "those who attach are told of")
        assert sorted(watched.told) == [f"mapped {mount.path}/cpu{cpu} {cpu}" for cpu in range(N_CPUS)]
    wait_until(lambda: len(watched.told) == 2 * N_CPUS, "their end is told")


@pytest.mark.usefixtures("mapped_through")
@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_a_mapping_lasts_longer_than_its_descriptor(mount: Mount, watched: Maker, end: str) -> None:
    process = forking.start(
        [sys.executable, "-c", MAPPER, mem(mount, 0)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"mapped\n"
    os.close(os.open(mem(mount, 0), os.O_RDWR))
    wait_until(lambda: len(watched.told) == 3, "two opens, one end")
    assert watched.told.count(f"unmapped {mount.path}/cpu0 0") == 1
    if end == "ends":
        process.stdin.write(b"\n")
        process.stdin.close()
    else:
        process.kill()
    process.wait(DEADLINE_S)
    process.stdout.close()
    wait_until(lambda: watched.told.count(f"unmapped {mount.path}/cpu0 0") == 2, "the mapping has gone")


def test_many_opens_are_each_told_once(mount: Mount, watched: Maker) -> None:
    for _ in range(300):
        os.close(os.open(mem(mount, 0), os.O_RDWR))
    wait_until(lambda: len(watched.told) == 600, lambda: f"{len(watched.told)} of 600 are told")
    assert watched.told.count(f"mapped {mount.path}/cpu0 0") == 300


def test_late_files_are_watched(mount: Mount, maker: Maker) -> None:
    maker.ask("watch")
    maker.ask(f"open - - {GEOMETRY}")
    maker.ask("late cpu -")
    descriptor = os.open(mem(mount, 0), os.O_RDWR)
    wait_for(maker, f"mapped {mount.path}/cpu0 0")
    maker.ask("close")
    os.close(descriptor)


def test_opens_of_a_server_that_died_have_ended(mount: Mount, watched: Maker) -> None:
    descriptor = os.open(mem(mount, 0), os.O_RDWR)
    mapped, unmapped = (f"{what} {mount.path}/cpu0 0" for what in ("mapped", "unmapped"))
    wait_for(watched, mapped)
    mount.kill()
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    mount.start()
    wait_for(watched, mapped, unmapped)
    os.close(descriptor)
    again = os.open(mem(mount, 0), os.O_RDWR)
    wait_for(watched, mapped, unmapped, mapped)
    os.close(again)


def test_nonsense_in_the_counts_is_not_told(mount: Mount, watched: Maker) -> None:
    # Where they stand, layout.h says; found by an open that is counted.
    path = mount.store / "cpu/mem0"
    before = path.read_bytes()[-4096:]
    with open(mem(mount, 0), "rb"):
        wait_until(lambda: len(watched.told) == 1, "the open is told")
        after = path.read_bytes()[-4096:]
        (at,) = (i for i in range(0, 4096, 8) if after[i] == 1 and before[i] == 0 and i % 64 == 8)
        with path.open("r+b") as file:
            file.seek(-4096 + at, os.SEEK_END)
            file.write((1 << 60).to_bytes(8, "little"))
    wait_until(lambda: f"unmapped {mount.path}/cpu0 0" in watched.told, "its end is told")
    assert len(watched.told) == 2


# --- relay_subbufs_consumed() ---


def test_who_maps_the_memory_says_what_he_has_consumed(mount: Mount, maker: Maker) -> None:
    maker.ask("options buffers=global")
    maker.ask("open log - 4096 4")
    for _ in range(6):
        maker.ask("write " + "x" * 2000)
    assert maker("consumed 1 1") == "EINVAL"
    maker.ask("consumed 0 2")
    assert (mount.shown("log", "produced"), mount.shown("log", "consumed")) == ("2", "2")
    assert len(drain(mount.path / "log0")) == 2 * 2001
    with Channel(mount.path / "log") as channel:
        for _ in range(3):
            channel.write(bytes(4096))
        channel.subbufs_consumed(0, 1)
        assert mount.shown("log", "consumed") == "3"
        with pytest.raises(OSError, match="Invalid argument"):
            channel.subbufs_consumed(1, 1)


# --- relay_close() ---


def test_readers_of_a_closed_channel_read_on_to_the_end(mount: Mount, maker: Maker) -> None:
    maker.ask("options buffers=single read=wait")
    maker.ask("open log - 4096 4")
    maker.ask("write one")
    descriptor = os.open(mount.path / "log", os.O_RDONLY)
    poll = select.poll()
    poll.register(descriptor)
    with Reader(mount.path / "log") as reader:
        maker.ask("close")
        assert relay_files(mount.path) == []
        assert poll.poll(0)[0][1] & (select.POLLIN | select.POLLERR) == select.POLLIN | select.POLLERR
        assert os.read(descriptor, 100) == b"one\n"
        assert os.read(descriptor, 100) == b""
        assert poll.poll(0)[0][1] & (select.POLLIN | select.POLLERR) == select.POLLERR
        assert list(reader) == []
    os.close(descriptor)


@pytest.mark.parametrize("callbacks", [USUAL, "start 0"])
def test_relay_close_does_not_remove_a_channel_that_took_its_name(mount: Mount, maker: Maker, callbacks: str) -> None:
    maker.ask(callbacks)
    maker.ask(f"open cpu - {GEOMETRY}")
    mount.command("remove cpu\n")
    mount.create("cpu")
    maker.ask("close")
    assert mount.channels().startswith("create cpu ")


def test_a_channel_closed_after_its_mount_has_gone_is_not_shown_again(mount: Mount, maker: Maker) -> None:
    maker.ask(f"open cpu - {GEOMETRY}")
    subprocess.run(["fusermount3", "-u", "-z", mount.path], check=True)
    maker.ask("close")
    assert mount.process is not None
    wait_until(lambda: mount.process is None or mount.process.poll() is not None, "the server ends")
    mount.start()
    assert mount.channels() == ""
    assert not (mount.store / "cpu").exists()


@pytest.mark.parametrize("mounted", [True, False], ids=["mount", "store"])
def test_a_child_that_closes_leaves_its_parents_channel(
    make_mount: Callable[..., Mount], scratch_store: Path, mounted: bool
) -> None:
    mount = make_mount(start=mounted)
    with making(environment_of(mount)) as maker:
        maker.ask(USUAL)
        maker.ask(f"open cpu - {GEOMETRY}")
        assert maker.ask("childclose") == []  # remove_buf_file is not called there
        maker.ask("write one")
        if not mounted:
            mount.start()
        assert contents(mount.path / "cpu") == b"one\n"
        assert len(maker.ask("close")) == N_CPUS
        assert relay_files(mount.path) == []


def test_who_inherits_a_channel_removes_it_when_its_maker_is_dead(mount: Mount, maker: Maker) -> None:
    maker.ask(USUAL)
    maker.ask(f"open cpu - {GEOMETRY}")
    maker.ask("inherit")
    maker.process.wait(DEADLINE_S)
    assert len(maker.ask("close")) == N_CPUS
    assert relay_files(mount.path) == []


def test_a_killed_makers_channel_stays(mount: Mount, maker: Maker) -> None:
    maker.ask(USUAL)
    maker.ask(f"open cpu - {GEOMETRY}")
    maker.ask("write one")
    maker.process.kill()
    maker.process.wait()
    assert b"".join(drain(mount.path / f"cpu{cpu}") for cpu in range(N_CPUS)) == b"one\n"


# --- memory ---


@pytest.mark.parametrize("files", ["files", "late files"])
@pytest.mark.parametrize("last", ["reader", "producer", "killed producer", "mapping"])
def test_memory_is_freed_with_the_last_reference(
    make_mount: Callable[..., Mount], own_tmpfs: Path, last: str, files: str
) -> None:
    mount = make_mount(store=own_tmpfs / "store")
    before = used(own_tmpfs)
    with making(environment_of(mount)) as maker, making(environment_of(mount)) as producer:
        if files == "files":
            maker.ask("open cpu - 65536 16")
        else:
            maker.ask("open - - 65536 16")
            maker.ask("late cpu -")
        memory = N_CPUS * 65536 * 16
        assert used(own_tmpfs) >= before + memory
        producer.ask(f"attach {mount.path}/cpu")
        reader = os.open(mount.path / f"cpu{some_cpu()}", os.O_RDONLY)
        with (mount.store / "cpu/mem0").open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 4096)
        maker.ask("close")
        assert not (mount.store / "cpu").exists()
        assert used(own_tmpfs) >= before + 65536 * 16
        for one in sorted(["reader", "producer", "mapping"], key=lambda one: one == last.removeprefix("killed ")):
            assert used(own_tmpfs) >= before + 65536 * 16, f"before {one}"
            if one == "reader":
                os.close(reader)
            elif one == "mapping":
                mapping.close()
            elif last == "killed producer":
                producer.process.kill()
            else:
                producer.ask("close")
        wait_until(lambda: used(own_tmpfs) == before, lambda: f"{used(own_tmpfs) - before} bytes are left")


@pytest.mark.parametrize("how", ["close", "is killed"])
def test_memory_of_a_buffer_only_channel_goes_with_it(own_tmpfs: Path, how: str) -> None:
    before = used(own_tmpfs)
    with making({"RELAYFS_STORE": str(own_tmpfs / "store")}) as maker:
        maker.ask("open - - 65536 16")
        maker.ask("write one")
        assert used(own_tmpfs) >= before + N_CPUS * 65536 * 16
        if how == "close":
            maker.ask("close")
        else:
            maker.process.kill()
            maker.process.wait()
        wait_until(lambda: used(own_tmpfs) == before, "it is freed")
    assert list(own_tmpfs.iterdir()) == []
