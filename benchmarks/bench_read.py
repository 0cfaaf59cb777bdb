"""Measure how fast a full relay file is read, next to a tmpfs file and to the bare memory.

    ./dev bench read [ROUNDS]

`dd` with blocks of 1 MiB and of 4 KiB from a relay file against that from a tmpfs file of the same size, and from a
FUSE server that does nothing else, bench_read_bare.c; `cat` of a relay file against `cat` of a FIFO, to which a program
writes the same from memory; the zero-copy reader against a loop that only touches the same memory: gigabytes a second.
Reads of one byte up to 1 MiB from a relay file against those from the bare server: thousand reads a second, and
microseconds of CPU time of the server for each. Medians over the rounds; the bare server is fast or slow as the kernel
has put it on the reader's CPU or not, so look at its best round, too. The status is 1 if a promised ratio is missed
twice.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import Limit, Mount, Samples, asked, compiled, judge, mounted, server_of

ROUNDS = 15
CHANNEL = "bench/full"
SUBBUF_BYTES = 256 << 10
N_SUBBUFS = 1024
BYTES = SUBBUF_BYTES * N_SUBBUFS
# How many reads of so many bytes there are in a round.
READS = {1: 3000, 512: 3000, 4096: 3000, 1 << 20: 100}
# How many blocks of 4 KiB dd reads.
READS_4K = 10000

LIMITS = [
    Limit("dd from a relay file: times dd from tmpfs", "dd-relay", "dd-tmpfs", least=0.35),
    Limit("dd from a relay file: times dd from a bare FUSE server", "dd-relay", "dd-bare", least=0.8),
    Limit("dd bs=4k from a relay file: times dd from a bare FUSE server", "dd-relay-4k", "dd-bare-4k", least=0.7),
    Limit("cat of a relay file: times cat of a FIFO", "cat-relay", "cat-fifo", least=1.2),
    Limit("zero-copy reader: times touching the same memory", "zero-copy", "touch", least=0.8),
    Limit("reads of 1 byte a second: times a bare FUSE server", "reads-1", "bare-1", least=0.7),
    Limit("reads of 512 bytes a second: times a bare FUSE server", "reads-512", "bare-512", least=0.55),
    Limit("reads of 4 KiB a second: times a bare FUSE server", "reads-4096", "bare-4096", least=0.6),
    Limit("reads of 1 MiB a second: times a bare FUSE server", "reads-1048576", "bare-1048576", least=0.7),
    Limit("CPU time of a read of 1 byte: times a bare FUSE server", "cpu-1", "bare-cpu-1", most=2),
    Limit("CPU time of a read of 4 KiB: times a bare FUSE server", "cpu-4096", "bare-cpu-4096", most=2),
]


def dd(path: Path, block: str = "1M", count: int | None = None) -> tuple[float, int]:
    """Read a file with dd; return gigabytes a second and bytes, as dd says."""
    command = ["dd", f"if={path}", "of=/dev/null", f"bs={block}", *([f"count={count}"] if count else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.search(r"^(\d+) bytes .* copied, ([0-9.e-]+) s,", done.stderr, re.MULTILINE)
    if not found:
        raise ValueError(done.stderr)
    return int(found[1]) / float(found[2]) / 1e9, int(found[1])


def cat(path: Path) -> float:
    """Return how many gigabytes a second cat reads from a file of BYTES."""
    begun = time.perf_counter()
    subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)
    return BYTES / (time.perf_counter() - begun) / 1e9


def cat_fifo(program: Path, plain: Path) -> float:
    """Return the same of a FIFO, to which a program writes a file that it has mapped."""
    fifo = plain.with_name("fifo")
    os.mkfifo(fifo)
    try:
        with subprocess.Popen([program, "pour", plain, fifo]):
            return cat(fifo)
    finally:
        fifo.unlink()


def cpu_us(server: int) -> float:
    """Return the CPU time that a process has taken, in microseconds."""
    threads = Path(f"/proc/{server}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1000


@contextmanager
def bare() -> Iterator[tuple[Path, int]]:
    """Mount the server that does nothing else; give its file and its process."""
    with (
        compiled("bench_read_bare.c", "fuse3") as program,
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen([program, directory]) as server,
    ):
        try:
            while not Path(directory, "file").exists():
                time.sleep(0.01)
            yield Path(directory, "file"), server.pid
        finally:
            subprocess.run(["fusermount3", "-u", "-z", directory], check=True)


def read_blocks(program: Path, file: Path, server: int, size: int) -> tuple[float, float]:
    """Return thousands of reads a second, and the CPU time of the server for one."""
    cpu = cpu_us(server)
    command: list[str | Path] = [program, "blocks", str(size), str(READS[size]), file]
    took_ns = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return 1e6 / took_ns, (cpu_us(server) - cpu) / READS[size]


def measure_programs(samples: Samples, program: Path, mount: Mount, plain: Path, bare_file: Path) -> None:
    """Read with dd and cat, once each."""
    channel = mount.path / CHANNEL

    def fill() -> None:
        subprocess.run([program, "fill", channel], check=True, capture_output=True)

    for name, path in (("dd-tmpfs", plain), ("dd-bare", bare_file), ("dd-relay", channel)):
        if path == channel:
            fill()
        speed, got = dd(path)
        if got != BYTES:
            raise ValueError(f"{path} gave {got} bytes, not {BYTES}")
        samples.add(name, speed, bytes=got)
    fill()
    samples.add("dd-bare-4k", dd(bare_file, "4k", READS_4K)[0])
    samples.add("dd-relay-4k", dd(channel, "4k", READS_4K)[0])
    mount.command(f"reset {CHANNEL}")
    fill()
    samples.add("cat-relay", cat(channel))
    samples.add("cat-fifo", cat_fifo(program, plain))


def measure(program: Path, mount: Mount, plain: Path, rounds: int) -> Samples:
    """Alternate, so that what disturbs the machine disturbs both alike."""
    samples = Samples()
    channel = mount.path / CHANNEL
    with bare() as (file, server):
        for _ in range(rounds):
            measure_programs(samples, program, mount, plain, file)
            for size in READS:
                speed, cpu = read_blocks(program, file, server, size)
                samples.add(f"bare-{size}", speed)
                samples.add(f"bare-cpu-{size}", cpu)
                subprocess.run([program, "fill", channel], check=True, capture_output=True)
                speed, cpu = read_blocks(program, channel, server_of(mount), size)
                samples.add(f"reads-{size}", speed)
                samples.add(f"cpu-{size}", cpu)
                mount.command(f"reset {CHANNEL}")
    command: list[str | Path] = [program, "zero-copy", str(rounds), channel, mount.store / CHANNEL / "mem0"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        name, value, got_bytes = line.split()
        samples.add(name, float(value), bytes=int(got_bytes))
    # What the last round filled.
    mount.command(f"reset {CHANNEL}")
    return samples


def main() -> int:
    """Make the files, measure, judge."""
    rounds = asked(ROUNDS)
    with compiled("bench_read.c") as program, mounted() as mount:
        free = shutil.disk_usage(mount.store.parent).free
        if free < 3 * BYTES:
            sys.exit(f"{mount.store.parent} has {free >> 20} MiB free; {3 * BYTES >> 20} are needed")
        mount.create(CHANNEL, f"subbuf_size={SUBBUF_BYTES} n_subbufs={N_SUBBUFS} buffers=single")
        plain = mount.store.parent / "plain"
        plain.write_bytes(b"r" * BYTES)
        return judge(lambda: measure(program, mount, plain, rounds), LIMITS, "GB/s, 1000/s, us")


if __name__ == "__main__":
    sys.exit(main())
