"""Mapping a relay file's memory, as a kernel was observed to map its relay files."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.calls import call, how_it_ends, map_memory, name_of, write
from conformance.observations import COVERED, observations, observed
from mounts import Mount, opened

pytestmark = pytest.mark.one_mount


@pytest.fixture
def path(mount: Mount) -> Path:
    return mount.create("life", "buffers=single subbuf_size=1000 n_subbufs=9 delivery=bulk")


@pytest.fixture
def memory(mount: Mount, path: Path, mapped_through: None) -> Iterator[int]:
    """A descriptor of the memory, where this machine can map it."""
    with opened(mount.path / ".channels/life/mem0", os.O_RDWR) as descriptor:
        yield descriptor


MS_SYNC = 4
MREMAP_MAYMOVE = 1
MAP_SHARED_VALIDATE = 3
# Label in the table, length, offset, how; ours, where it is not the kernel's answer.
MAPPINGS = [
    ("mmap len=12288 SHARED R", 12288, 0, {}, ""),
    ("mmap len=9000 (S*n; page-rounds to 12288)", 9000, 0, {}, ""),
    ("mmap len=8193", 8193, 0, {}, ""),
    ("mmap len=8192 partial", 8192, 0, {}, "ok"),
    ("mmap len=4096 partial", 4096, 0, {}, "ok"),
    ("mmap len=16384 too long", 16384, 0, {}, "ok"),
    ("mmap len=12288 PRIVATE R", 12288, 0, {"flags": mmap.MAP_PRIVATE}, ""),
    ("mmap len=12288 SHARED RW on O_RDWR fd", 12288, 0, {"protection": mmap.PROT_READ | mmap.PROT_WRITE}, ""),
    ("mmap len=12288 off=4096", 12288, 4096, {}, ""),
    ("mmap len=8192 off=4096", 8192, 4096, {}, "ok"),
    ("mmap off=100 unaligned", 12288, 100, {}, ""),
    ("mmap len=0", 0, 0, {}, ""),
    ("mmap MAP_SHARED|MAP_POPULATE", 12288, 0, {"flags": mmap.MAP_SHARED | mmap.MAP_POPULATE}, ""),
    ("mmap PROT_EXEC", 12288, 0, {"protection": mmap.PROT_READ | mmap.PROT_EXEC}, ""),
    ("mmap MAP_SHARED_VALIDATE", 12288, 0, {"flags": MAP_SHARED_VALIDATE}, ""),
]
COVERED.update(("A", label) for label, *_ in MAPPINGS)


@pytest.mark.parametrize(("label", "length", "offset", "how", "ours"), MAPPINGS)
def test_memory_is_mapped_as_observed(
    memory: int, label: str, length: int, offset: int, how: dict[str, int], ours: str
) -> None:
    got = "ok"
    try:
        map_memory(memory, length, offset, **how)
    except OSError as error:
        got = name_of(error)
    # Ours is longer: the control area follows the data; and any part of it can be mapped.
    assert got == (ours or next(line.result for line in observations() if line.label == label))


@observed(
    "A", "data visible in mapping right after relay_write (no switch)", "user write via O_RDWR map visible to read()"
)
@observed("B", "map still readable", "mmap after close")
def test_a_mapping_is_the_memory_itself_also_after_removal(mount: Mount, path: Path, memory: int) -> None:
    both = mmap.PROT_READ | mmap.PROT_WRITE
    address = map_memory(memory, 12288, protection=both)
    write(path, b"AAAAAA")
    assert ctypes.string_at(address, 7) == b"AAAAAA\0"
    ctypes.memmove(address, b"ZZZZ", 4)
    with opened(path) as descriptor:
        mount.command("remove life")
        assert os.read(descriptor, 100) == b"ZZZZAA"
    assert ctypes.string_at(address, 4) == ctypes.string_at(map_memory(memory, 12288), 4) == b"ZZZZ"


@observed("5", "mmap full SHARED R", "mmap full PRIVATE R", "mmap partial")
@pytest.mark.usefixtures("mapped_through")
def test_the_relay_file_itself_is_mapped_which_debugfs_keeps_it_from(path: Path) -> None:
    write(path, b"AAAAAA")
    with opened(path) as descriptor:
        addresses = [map_memory(descriptor, 12288), map_memory(descriptor, 4096)]
        addresses.append(map_memory(descriptor, 12288, flags=mmap.MAP_PRIVATE))
        assert [ctypes.string_at(address, 7) for address in addresses] == [b"AAAAAA\0"] * 3
        assert os.read(descriptor, 100) == b"AAAAAA", "looking consumes nothing"


@observed("A", "mmap len=12288 SHARED RW on O_RDONLY fd", "mprotect RW on O_RDONLY shared map", "mremap grow errno")
@observed("A", "mmap len=12288 PRIVATE RW (O_RDONLY fd)", "off=4096 map, touch page past buffer end", "msync")
def test_a_mapping_allows_what_its_descriptor_does(mount: Mount, memory: int) -> None:
    both = mmap.PROT_READ | mmap.PROT_WRITE
    length = os.fstat(memory).st_size
    with opened(mount.path / ".channels/life/mem0") as descriptor:
        with pytest.raises(PermissionError):
            map_memory(descriptor, length, protection=both)
        map_memory(descriptor, length, protection=both, flags=mmap.MAP_PRIVATE)
        address = map_memory(descriptor, length)
        with pytest.raises(PermissionError):
            call("mprotect", address, length, both)
        call("msync", address, length, MS_SYNC)
        call("mremap", address, length, length + mmap.PAGESIZE, MREMAP_MAYMOVE)
        beyond = map_memory(descriptor, length, mmap.PAGESIZE) + length - mmap.PAGESIZE
        assert how_it_ends(lambda: ctypes.string_at(beyond, 1)) == "SIGBUS"
