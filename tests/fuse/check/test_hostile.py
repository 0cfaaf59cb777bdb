"""relayctl check of stores in which somebody does harm: it ends soon, takes little memory, and says what is there."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forking
import pytest
from checked import (
    PAGE,
    CheckedStore,
    check,
    checked_store,
    claim,
    control,
    entry,
    output,
    put,
    ring_claim,
    write,
)
from forking import RELAYCTL
from mounts import DEADLINE_S, wait_until
from stress import is_long

WORDS = (0, 1, 7, 4096, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.fixture
def store() -> Iterator[CheckedStore]:
    with checked_store() as made:
        yield made


def of_words(mem: Path, is_ring: bool) -> list[int]:
    """The offsets of words that programs share."""
    if is_ring:
        places = [(0, 256), (PAGE, 80), (2 * PAGE, 448), (ring_claim(mem, 0), 128), (control(mem), 400)]
        return [at for begin, length in places for at in range(begin, begin + length, 8)]
    return [*range(entry(0), entry(8), 8), *range(claim(0), claim(2), 8), *range(control(mem), control(mem) + 1024, 8)]


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["relay", "times", "ring", "overwriting ring"])
def test_no_value_does_harm(store: CheckedStore, kind: str) -> None:
    if kind.endswith("ring"):
        mem = store.ring("app/log", mode=int(kind != "ring"))
        output(mem, [100] * 50)
    else:
        mem = store.relay("app/log", times=int(kind == "times"), timestamp=int(kind == "times"))
        write(mem, [700] * 12)
    sound = mem.read_bytes()
    chance = random.Random(kind)
    for at in of_words(mem, kind.endswith("ring")):
        for word in WORDS if is_long() else chance.sample(WORDS, 1):
            put(mem, at, "Q", word)
            assert check("app/log", "--store", store.path).status in {0, 1}
            mem.write_bytes(sound)


@pytest.mark.stress
def test_rubbish_does_no_harm(store: CheckedStore) -> None:
    made = [store.relay("app/log"), store.relay("app/times", times=1, timestamp=1), store.ring("app/ring")]
    for seed in range(300 if is_long() else 10):
        for mem in made:
            chance, size = random.Random(seed), mem.stat().st_size
            for _ in range(chance.randrange(1, 200)):
                # Not the geometry, which would be all that is said.
                at = chance.choice([chance.randrange(size - PAGE), chance.randrange(size - PAGE + 128, size - 3000)])
                put(mem, at, "B", chance.randrange(256))
        assert check("--store", store.path).status in {0, 1}


@pytest.mark.stress
def test_files_that_are_truncated_while_they_are_looked_at(store: CheckedStore) -> None:
    made = [store.relay("app/log", buffers=0), store.ring("app/ring")]
    write(made[0], [100] * 20)
    truncate = """
import os, sys
files = [(os.open(path, os.O_RDWR), open(path, "rb").read()) for path in sys.argv[1:]]
while True:
    for file, content in files:
        os.truncate(file, 4096)
        os.pwrite(file, content, 0)
"""
    with forking.start([sys.executable, "-c", truncate, *map(str, made)]) as truncating:
        try:
            wait_until(lambda: check("--store", store.path).status == 1, "damage is found")
            end = time.monotonic() + (20 if is_long() else 1)
            while time.monotonic() < end:
                assert check("--store", store.path).status in {0, 1}  # between two truncations all may be well
            assert truncating.poll() is None
        finally:
            truncating.kill()


def measured(store: Path) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run it; return also the most memory that it has had, in bytes."""
    command = [sys.executable, "-c", MEASURE, str(RELAYCTL), "check", "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done, int(done.stderr.splitlines()[-1]) * 1024


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


def test_sizes_that_are_not_there(store: CheckedStore) -> None:
    """Check sparse files of half a terabyte and more, of which one says that it is full of sub-buffers."""
    _, without = measured(store.path)
    mem = store.relay("app/log")
    page = mem.read_bytes()[-PAGE:]
    subbuf_size, n_subbufs = 1, (1 << 32) - 1
    data, entries = subbuf_size * n_subbufs, 2 * n_subbufs * 64
    file_bytes = data + -data % PAGE + entries + -entries % PAGE + 256 * 64 + PAGE
    os.truncate(mem, file_bytes)
    with mem.open("r+b") as file:
        file.seek(file_bytes - PAGE)
        file.write(page)
    put(mem, file_bytes - PAGE + 16, "QQQ", subbuf_size, n_subbufs, file_bytes)
    ring = store.ring("app/ring")
    os.truncate(ring, 1 << 40)
    done, memory = measured(store.path)
    assert done.returncode == 1
    assert "its memory is" in done.stdout
    assert "somebody has freed pages of it" in done.stdout
    assert "app/ring/mem0" in done.stdout
    assert memory < without + (64 << 20)
    assert mem.stat().st_blocks * 512 < 1 << 20


IN_LITTLE_MEMORY = """
import resource, sys
from relayfs_fuse.cli.relayctl import relayctl
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (16 << 20), resource.RLIM_INFINITY))
relayctl(["check", "--store", sys.argv[1]])
"""


def test_what_the_command_is_short_of_is_no_damage_of_a_file(store: CheckedStore) -> None:
    store.relay("app/log", subbuf_size=16 << 20, n_subbufs=2)
    command = [sys.executable, "-c", IN_LITTLE_MEMORY, store.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot allocate memory" in done.stderr


def test_files_in_place_of_others(store: CheckedStore) -> None:
    for name, make in {
        ".lock": os.mkfifo, ".traces": os.mkfifo, ".counters": os.mkfifo, ".early": os.mkfifo, "fifo": os.mkfifo,
        ".traces-lost": os.mkfifo, ".traces-lost-7": os.mkfifo,
    }.items():  # fmt: skip
        make(store.path / name)
    (store.path / "loop").symlink_to(".")
    (store.path / ".root").unlink()
    (store.path / ".root").symlink_to("loop")
    store.relay("app/log")
    (store.path / "app/log/mem1").symlink_to("mem0")
    said = check("--store", store.path)
    assert said.status == 1
    places = {Path(one["file"]).name: one for one in said.findings}
    for name in (".lock", ".traces", ".counters", ".traces-lost", ".traces-lost-7"):
        assert places[name]["found"] in {"it is a FIFO", "they cannot be read: Not a directory"}, places
    assert places[".root"]["found"] == "it is a symbolic link"
    assert {places[name]["level"] for name in ("fifo", "loop")} == {"warning"}
    assert places["mem1"]["found"] == "it is a symbolic link"


def test_names_and_depths_that_no_server_makes(store: CheckedStore) -> None:
    (store.path / "bad\n\x1b[2Jname").mkdir()
    (store.path / ("x" * 250)).mkdir()
    (store.path / os.fsdecode(b"\xff\xfe")).mkdir()
    here = os.open(store.path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    store.relay("app/log")
    said = check("--store", store.path)
    assert {one["found"].split(":")[0] for one in said.damaged} == {"no server shows it"}
    assert len(said.damaged) >= 3
    done = subprocess.run(
        [RELAYCTL, "check", store.path], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    subprocess.run(["rm", "-rf", store.path / "d"], check=True)


@pytest.mark.stress
def test_many_things_that_are_wrong(store: CheckedStore) -> None:
    for n in range(2000 if is_long() else 200):
        (store.path / f"d{n}").mkdir(0o777)
        (store.path / f"d{n}").chmod(0o777)
        (store.path / f"f{n}").touch()
    said = check("--store", store.path)
    assert len(said.findings) == 2 * (2000 if is_long() else 200)
