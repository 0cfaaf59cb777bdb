"""Programs that wait for many files: who waits for a file is told of it, and of no other."""

import mmap
import os
import random
import select
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest
from mounts import DEADLINE_S, Mount, opened, wait_until

from relayfs_fuse.native import Buffer
from relayfs_fuse.native.ring import RingMemory

pytestmark = pytest.mark.one_mount

# More than two threads of the server sleep on, and than it looks at in one turn.
N = 300
# Descriptors of a server that has no files open, and some more.
DESCRIPTORS_MAX = 100
OPTIONS = {
    "relay": "buffers=single delivery=packet subbuf_size=4096 n_subbufs=1",
    "ring": "type=ring buffers=single size=4096",
}
# Where the flags are in a mem file, from its end or its beginning (layout.h, ring_layout.h), and what readers set.
FLAGS_AT = {"relay": -4096 + 160, "ring": 4096 + 72}
ARMED = 1 << 3 | 1 << 4


def disarm(mem_file: Path, at: int) -> bool:
    """Clear the flags of sleeping readers, as a producer does that is killed then; return whether one was set."""
    with opened(mem_file, os.O_RDWR) as descriptor, mmap.mmap(descriptor, 0) as memory:
        (flags,) = struct.unpack_from("=I", memory, at % len(memory))
        struct.pack_into("=I", memory, at % len(memory), flags & ~ARMED)
        return bool(flags & ARMED)


@pytest.mark.parametrize("kind", OPTIONS)
def test_each_of_many_polled_files_is_told_of_its_records(mount: Mount, kind: str) -> None:
    names = [f"many/{number}" for number in range(N)]
    mount.command("".join(f"create {name} {OPTIONS[kind]}\n" for name in names))
    mem_files = [mount.store / name / "mem0" for name in names]
    memory_of = {"relay": Buffer, "ring": RingMemory}[kind]
    order = random.Random(1).sample(range(N), N)
    with ExitStack() as stack, select.epoll() as epoll:
        number_of = {stack.enter_context(opened(mount.path / name)): number for number, name in enumerate(names)}
        for descriptor in number_of:
            epoll.register(descriptor, select.EPOLLIN)
        assert epoll.poll(0) == []

        def told() -> list[int]:
            events = epoll.poll(DEADLINE_S)
            for descriptor, _ in events:
                assert os.read(descriptor, 4096)
            return [number_of[descriptor] for descriptor, _ in events]

        def write(number: int) -> None:
            memory = memory_of(str(mem_files[number]))
            memory.write(b"x")
            memory.close()

        for number in order[:50]:
            write(number)
            assert told() == [number]
        # Nobody is woken: the server has to look.
        wait_until(lambda: all(disarm(file, FLAGS_AT[kind]) for file in mem_files[:1]), "the server sleeps")
        for file in mem_files:
            disarm(file, FLAGS_AT[kind])
        for number in order:
            write(number)
        left = set(range(N))
        while left:
            events = told()
            assert events, f"{len(left)} were not told"
            left -= set(events)
    server = mount.server
    wait_until(lambda: len(os.listdir(f"/proc/{server}/fd")) < DESCRIPTORS_MAX, "the files are closed")
