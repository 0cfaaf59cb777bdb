"""What a server notes for the next one goes with what it is about, and so does what the kernel keeps of it."""

import mmap
import os
from pathlib import Path

import pytest
from mounts import Mount, opened, serving, used, wait_until
from noted import noted
from traffic import lines

DIED = "WARNING: the server before, process .* has died"
N_ROUNDS = 4


def touch(mount: Mount, options: str) -> None:
    """Make a channel; map it, read a part of what is in it, and remove it while a file of it is open, and not."""
    path = mount.create("short", f"buffers=single {options}")
    memory = mount.path / ".channels/short/mem0"
    path.write_bytes(lines(2))
    path.write_bytes(lines(2, 2))
    with memory.open("r+b") as file, mmap.mmap(file.fileno(), 4096), (memory.with_name("state")).open() as state:
        for _ in range(2):
            with opened(path) as first:
                assert len(os.read(first, 3)) == 3
            state.read()
        with opened(path) as second:
            os.read(second, 3)
            mount.command("remove short\n")
            os.listdir(mount.path)


@pytest.mark.usefixtures("mapped_through")
def test_what_is_removed_leaves_no_notes(mount: Mount) -> None:
    # As one of counters of another user.
    name = ".counters/1-1-0600"

    def round_() -> None:
        for options in ("", "type=ring size=64K framing=line", "times=mono"):
            touch(mount, options)
        (mount.store / name).write_bytes(bytes(4096))
        with (mount.path / name).open("rb") as file, mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ):
            (mount.store / name).unlink()
        os.listdir(mount.path / ".counters")

    def settled() -> dict[int, int]:
        # A note goes with the next open(2) after the memory, which another thread of the server unmaps.
        (mount.path / "counters").open("rb").close()
        return noted(mount)

    round_()
    before = settled()
    for _ in range(N_ROUNDS):
        round_()
    # The first round's memory may have been unmapped after `before`, on a busy machine.
    wait_until(
        lambda: all(n <= before[kind] for kind, n in settled().items()),
        lambda: f"{noted(mount)} is no more than it was: {before}",
    )


@pytest.mark.usefixtures("mapped_through")
def test_the_kernel_keeps_nothing_of_a_removed_channel_whose_server_has_died(own_tmpfs: Path) -> None:
    with serving(own_tmpfs / "store") as make:
        mount = make()
        mount.expect(DIED)
        mount.create("log", "buffers=single subbuf_size=4K n_subbufs=4")
        before = used(own_tmpfs)
        mount.create("short", "buffers=single subbuf_size=1M n_subbufs=4")
        with (mount.path / ".channels/short/mem0").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            mount.command("remove short\n")
            mount.kill_server()
            mount.wait_for_log(DIED)
        wait_until(lambda: used(own_tmpfs) == before, "its memory is free")
