"""Send a text through a relay channel and check that the same text comes out.

    ./dev demo [FILE]

    FILE --split--> 4 producers (C) --records--> demo/lines0 .. N-1 --cat--> sort, cmp

Without FILE the text is made from the package manager's lists and the logs of this machine. All files are in
two temporary directories, for the mount and for its store, which are deleted at the end, also after an error.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relayfs_fuse import native

# Python leaves this directory out when PYTHONSAFEPATH is set.
sys.path.insert(0, str(Path(__file__).resolve().parent))
from demo_place import DemoError, Interrupted, Interrupts, Place, finish
from demo_text import default_text, longest_line

if TYPE_CHECKING:
    from collections.abc import Sequence

N_PRODUCERS = 4
# Each reader repeatedly runs cat on its share of the relay files; more readers would only wait for the file server.
N_READERS = 4
N_SUBBUFS = 64
LEAST_N_SUBBUFS = 16
LEAST_SUBBUF_SIZE = 4096
USUAL_SUBBUF_SIZE = 128 * 1024
# The pause is as short as possible without keeping a CPU busy.
READ_LOOP = 'while [ ! -e "$stop" ]; do cat "$@"; sleep 0.002; done; cat "$@"'


@dataclass(frozen=True)
class Geometry:
    """Sizes of the channel: a buffer must never be full, and a line must fit into a sub-buffer."""

    subbuf_size: int
    n_subbufs: int

    @property
    def limit(self) -> int:
        """Return the number of unread bytes at which producers wait."""
        return self.subbuf_size * self.n_subbufs // 4


def say(text: str = "") -> None:
    """Print a line now."""
    print(text, flush=True)


def step(place: Place, command: str) -> None:
    """Show a shell command and run it in the mount."""
    say(f"$ {command}")
    shell = place.start("sh", "-c", command, cwd=place.mount)
    if shell.wait():
        raise DemoError((place.mount / "error_log").read_text().strip())


def show_mounting(place: Place) -> None:
    """Mount, and use a channel by shell commands alone."""
    command = place.mount_relayfs()
    say(f"$ {shlex.join(command)}")
    say(f"$ cd {shlex.quote(str(place.mount))}")
    step(place, "echo create hello buffers=single >control")
    step(place, "echo 'good morning' >hello")
    step(place, "cat hello")
    step(place, "cat .channels/hello/read_bytes")
    step(place, "echo remove hello >control")


def choose_geometry(place: Place, longest: int) -> Geometry:
    """Choose sizes for this machine's memory.

    longest: bytes of the longest line
    """
    space = os.statvfs(place.store)
    free_bytes = space.f_bavail * space.f_frsize
    n_buffers = native.n_possible_cpus()
    each = free_bytes // 2 // n_buffers
    subbuf_size = USUAL_SUBBUF_SIZE
    while subbuf_size > LEAST_SUBBUF_SIZE and subbuf_size * N_SUBBUFS > each:
        subbuf_size //= 2
        # Four lines in a sub-buffer: then padding is at most a quarter of it.
    while subbuf_size < 4 * longest:
        subbuf_size *= 2
    n_subbufs = N_SUBBUFS
    while n_subbufs > LEAST_N_SUBBUFS and subbuf_size * n_subbufs > each:
        n_subbufs //= 2
    if subbuf_size * n_subbufs > each:
        raise DemoError(
            f"the longest line has {longest} bytes; with {n_buffers} CPUs and {free_bytes >> 20} MB free in "
            f"{place.store.parent} there is no room for buffers of such records"
        )
    return Geometry(subbuf_size, n_subbufs)


def pkg_config(*what: str) -> list[str]:
    """Return the compiler's options for the library, quoted for a shell."""
    return shlex.split(subprocess.check_output(["pkg-config", *what, "relayfs"], text=True, start_new_session=True))


def build_producer(place: Place) -> Path:
    """Compile as the first line of demo_producer.c says; the library may be installed anywhere."""
    program = place.work / "demo_producer"
    (where,) = pkg_config("--variable=libdir")
    source = Path(__file__).with_name("demo_producer.c")
    flags = [*pkg_config("--cflags", "--libs"), "-Xlinker", "-rpath", "-Xlinker", where]
    place.run("cc", "-O2", "-o", program, source, *flags)
    return program


def transfer(place: Place, producer: Path, geometry: Geometry, parts: Sequence[Path]) -> tuple[float, int]:
    """Write the parts into the channel and read it meanwhile; return the time, and how often a record was refused."""
    stats = place.mount / ".channels/demo/lines"
    files = [place.mount / f"demo/lines{cpu}" for cpu in range(int((stats / "n_buffers").read_text()))]
    stop = place.work / "stop"
    started = time.monotonic()
    readers = []
    for index in range(min(N_READERS, len(files))):
        with (place.work / f"out{index}").open("wb") as out:
            share = files[index::N_READERS]
            readers.append(place.start("sh", "-c", READ_LOOP, "sh", *share, stdout=out, env={"stop": str(stop)}))
    producers = []
    for part in parts:
        command: list[str | Path] = [producer, place.mount / "demo/lines", stats / "unread_bytes", str(geometry.limit)]
        with part.open("rb") as lines:
            producers.append(place.start(*command, stdin=lines, stdout=subprocess.PIPE))
    for process in producers:
        finish(process)
    stop.touch()
    for process in readers:
        finish(process)
    refused = sum(int(process.stdout.read()) for process in producers if process.stdout)
    return time.monotonic() - started, refused


def same_lines(place: Place, parts: Sequence[Path]) -> bool:
    """Sort input and output with sort(1), and compare them with cmp(1)."""
    outputs = sorted(place.work.glob("out?"))
    say("$ LC_ALL=C sort part* >in.sorted; LC_ALL=C sort out* >out.sorted; cmp in.sorted out.sorted")
    for name, files in (("in.sorted", parts), ("out.sorted", outputs)):
        place.run("sort", "-o", place.work / name, *files, env={"LC_ALL": "C"})
    compare = place.start("cmp", "in.sorted", "out.sorted", cwd=place.work)
    return compare.wait() == 0


def split(place: Place, text: Path) -> list[Path]:
    """Split the text, between lines, into a part for each producer."""
    place.run("split", "-n", f"l/{N_PRODUCERS}", "-a", "1", "-d", text, place.work / "part")
    return sorted(place.work.glob("part?"))


def report(place: Place, seconds: float, refused: int) -> bool:
    """Print the statistics in .channels; return whether no record was lost."""

    def statistic(name: str) -> int:
        return int((place.mount / ".channels/demo/lines" / name).read_text())

    records, size = statistic("records"), statistic("bytes")
    lost = statistic("lost") - refused
    say(f"  records      {records:,} ({size:,} bytes), read {statistic('read_records'):,}")
    say(f"  rate         {records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s, in {seconds:.2f} s")
    say(f"  sub-buffers  {statistic('produced'):,} produced, {statistic('consumed'):,} consumed")
    say(f"  padding      {statistic('padding'):,} bytes, removed by the reader")
    say(f"  lost         {lost or 'none'}" + (f" ({refused} refused while full, then written)" if refused else ""))
    return lost == 0 and statistic("unread_bytes") == 0


def demo(place: Place, file: Path | None) -> bool:
    """Run all steps; return whether the lines are the same."""
    place.prepare()
    text = place.work / "text"
    source = default_text(text) if file is None else _copy(file, text)
    n_lines, longest = longest_line(text)
    producer = build_producer(place)
    geometry = choose_geometry(place, longest)

    say("With a shell:")
    show_mounting(place)
    say()
    say(f"{n_lines:,} lines, {text.stat().st_size:,} bytes, from {source}:")
    create = f"echo create demo/lines subbuf_size={geometry.subbuf_size} n_subbufs={geometry.n_subbufs} >control"
    step(place, create)
    parts = split(place, text)
    say(f"  {N_PRODUCERS} producers write each line as a record; meanwhile: cat demo/lines*")
    seconds, refused = transfer(place, producer, geometry, parts)
    complete = report(place, seconds, refused)
    same = same_lines(place, parts)
    say("  identical: every line came out once, byte for byte" if same else "  DIFFERENT")
    return same and complete


def _copy(file: Path, text: Path) -> str:
    """Copy a file, which may be a pipe; end its last line with a newline, because it becomes a record."""
    with file.open("rb") as source, text.open("w+b") as target:
        shutil.copyfileobj(source, target)
        if target.tell():
            target.seek(-1, os.SEEK_END)
            if target.read(1) != b"\n":
                target.write(b"\n")
                return f"{file} (and a newline at its end)"
    return str(file)


def main() -> int:
    """Run the demo; 0: the lines are the same."""
    parser = argparse.ArgumentParser(prog="demo", description="Send a text through a relay channel and compare.")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default: lists and logs of this machine")
    file = parser.parse_args().file
    interrupts = Interrupts()
    place = Place(interrupts)
    try:
        # When this block ends, even by a signal, further signals are ignored.
        try:
            return 0 if demo(place, file) else 1
        finally:
            interrupts.hold()
    except Interrupted as interrupt:
        print(f"demo: interrupted by {signal.Signals(interrupt.number).name}; cleaning up", file=sys.stderr)
        return 128 + interrupt.number
    except (DemoError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        place.clean()


if __name__ == "__main__":
    sys.exit(main())
