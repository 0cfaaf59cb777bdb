"""relayctl check finds damage of counters."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checked import PAGE, check, get, put
from mounts import tmpfs_directory

from relayfs_fuse import native
from relayfs_fuse.counters import Counters

RECORD = 512


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with tmpfs_directory() as path:
        (path / "store").mkdir(0o700)
        native.counters_create(str(path / "store"), 64)
        with Counters(path / "store") as counters:
            for name in ("disk/reads", "disk/writes", "net/packets"):
                counters.add(name, unit="bytes").adjust(7)
        yield path / "store"


def records_at(directory: Path) -> int:
    """Behind the index, of which the table has the length."""
    return PAGE + 4 * get(directory / "names", 16, "I")


def in_record(n: int, offset: int, form: str, *values: int) -> Callable[[Path], None]:
    return lambda at: put(at / "names", records_at(at) + n * RECORD + offset, form, *values)


def header(offset: int, form: str, number: int) -> Callable[[Path], None]:
    return lambda at: put(at / "counters", offset, form, number)


def table(offset: int, form: str, number: int) -> Callable[[Path], None]:
    return lambda at: put(at / "names", offset, form, number)


# What is done in .counters, and the value, file and text of what is said.
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "magic": (header(64, "Q", 1), "relay_perf_header.magic", "counters", ""),
    "version": (header(0, "I", 9), "relay_perf_header.version", "counters", "1, that of this relayctl"),
    "header's size": (header(4, "I", 9), "relay_perf_header.size", "counters", "72"),
    "CPUs": (header(8, "I", 9000), "relay_perf_header.nr_cpus", "counters", "1 to 8192"),
    "blocks": (header(12, "I", 99), "relay_perf_header.nr_blocks", "counters", "one more than nr_cpus"),
    "slots": (header(56, "I", 9), "relay_perf_header.slots", "counters", "512"),
    "chunks": (header(60, "I", 100000), "relay_perf_header.nr_chunks", "counters", "at most"),
    "flag": (header(PAGE, "Q", 1), "an update flag of counters", "counters", "0"),
    "size": (lambda at: os.truncate(at / "counters", 3 * PAGE), "the size of counters", "counters", "the limit"),
    "names' magic": (table(0, "Q", 1), "relay_perf_table.magic", "names", ""),
    "names' version": (table(8, "I", 1), "relay_perf_table.version", "names", "2, that of this relayctl"),
    "limit": (table(12, "I", 0), "relay_perf_table.limit", "names", "1 to 1048576"),
    "another limit": (table(12, "I", 50000), "the size of names", "names", "by its limit"),
    "instances": (table(24, "I", 9), "relay_perf_table.n_instances", "names", "3, by the records"),
    "domains": (table(28, "I", 999), "relay_perf_table.n_domains", "names", "1 to 250"),
    "index": (lambda at: at.joinpath("names").write_bytes(no_index(at)), "relay_perf_record[1].name", "names", "index"),
    "state": (in_record(1, 0, "I", 9), "relay_perf_record[1].state", "names", "0 to 2"),
    "kind": (in_record(1, 4, "I", 2), "relay_perf_record[1].kind", "names", "0 to 1"),
    "name": (in_record(2, 16, "B", 7), "relay_perf_record[2].name", "names", "a name that can be added"),
    "endless name": (in_record(2, 16, "256B", *[97] * 256), "relay_perf_record[2].name", "names", "texts that end"),
    "chunk": (in_record(0, 0, "I", 1), "relay_perf_record[0].state", "names", "that of a chunk"),
    "domain": (in_record(0, 8, "I", 7), "relay_perf_record[0].domain", "names", "less than 1"),
    "used": (in_record(0, 12, "I", 512), "relay_perf_record[0].used", "names", "less than 512"),
    "taken": (in_record(0, 496, "I", 2), "relay_perf_record[0].taken", "names", "3, by the records"),
    "live": (in_record(0, 500, "I", 2), "relay_perf_record[0].live", "names", "3, by the records"),
    "FIFO": (lambda at: refit(at / "names"), "", "names", "a regular file"),
    "one missing": (lambda at: (at / "names").unlink(), "", ".counters", "both"),
    "mode": (lambda at: (at / "counters").chmod(0o666), "its mode", "counters", "at most 0644"),
    "domain's mode": (lambda at: domain(at, 0o666), "its mode", "0-0-0620", "at most 0620"),
}


def no_index(directory: Path) -> bytes:
    names = (directory / "names").read_bytes()
    end = records_at(directory)
    return names[:PAGE] + bytes(end - PAGE) + names[end:]


def refit(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def domain(directory: Path, mode: int) -> None:
    path = directory / "0-0-0620"
    shutil.copy(directory / "counters", path)
    path.chmod(mode)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_counters(copied: Path, kind: str) -> None:
    do, value, file, text = DAMAGE[kind]
    do(copied / ".counters")
    said = check("--store", copied)
    found = [one for one in said.damaged if one["value"] == value and Path(one["file"]).name == file]
    assert found, said.findings
    assert text in found[0]["allowed"]
    assert found[0]["name"] == "counters"
    assert said.status == 1


def test_sound_counters_and_what_the_dead_have_left(copied: Path) -> None:
    assert check(copied).findings == []
    (copied / ".counters/names.new").touch()
    put(copied / ".counters/counters", 16, "Q", get(copied / ".counters/counters", 16) + 1)  # gen1
    said = check(copied)
    assert said.status == 0
    assert [(Path(one["file"]).name, one["value"]) for one in said.findings] == [
        ("names.new", ""), ("counters", "relay_perf_header.gen1"),
    ]  # fmt: skip
    assert "next server completes it" in said.findings[1]["advice"]
    put(copied / ".counters/counters", 16, "Q", get(copied / ".counters/counters", 24))
    assert [Path(one["file"]).name for one in check(copied).findings] == ["names.new"]
