"""The files `merged` and `merged.json` of a trace: events of all its processes in the order of their times."""

import errno
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from babeltrace import babeltrace
from build import PROGRAMS, compile_c
from mounts import DEADLINE_S, NOBODY, Mount, User, wait_until
from pcapng import parse
from traced import environment_of, processes, program, relayctl, start_trace, traced
from tracing import finish, recording

from relayfs_fuse.fs.merged import READERS_MAX
from relayfs_fuse.fs.requests.merging import READY_BYTES

pytestmark = pytest.mark.one_mount

ROOM = "subbuf_size=256K n_subbufs=8"
# More than the merge gives out at once.
PIECE_BYTES = 1 << 19
STEP = re.compile(
    r'\[\d\d:\d\d:\d\d\.\d{9}\] traced-\d+/\d+ cpu\d+ judge:step: { seq = (\d+), who = \d+, text = ".*" }'
)
LOST = re.compile(r"\[\S+\] traced-\d+ cpu\d+ lost (\d+) events since \[\S+\]: (\w+)")


def cat(path: Path) -> list[str]:
    done = subprocess.run(["cat", path], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not done.stdout or done.stdout.endswith("\n")
    return done.stdout.splitlines()


def steps(lines: list[str]) -> list[int]:
    return [int(step[1]) for line in lines if (step := STEP.fullmatch(line))]


def tickets(lines: list[str]) -> list[dict]:
    return [one for line in lines if (one := json.loads(line)).get("event") == "tickets:taken"]


def check_order(found: list[dict], n: int) -> None:
    """Every ticket is there, in order; two of the same nanosecond are in either order."""
    assert sorted(one["fields"]["ticket"] for one in found) == list(range(n))
    # A thread that is kept from running between looking at the clock and writing comes late, and says so.
    found = [one for one in found if "late" not in one]
    wrong = [(a, b) for a, b in itertools.pairwise(found) if a["fields"]["ticket"] > b["fields"]["ticket"]]
    assert not [(a, b) for a, b in wrong if a["ns"] != b["ns"]]


def take_tickets(mount: Mount, n: int) -> None:
    """Have 4 processes of 4 threads each take so many."""
    command = [compile_c([PROGRAMS / "tickets.c"]), "4", "4", str(n // 16)]
    subprocess.run(command, env=environment_of(mount), check=True, timeout=DEADLINE_S)


class Reader:
    """A program that writes what it reads to a file."""

    def __init__(self, out: Path, *command: str | Path) -> None:
        self.out = out
        with out.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, start_new_session=True)

    def lines(self) -> list[str]:
        return [line.removesuffix("\n") for line in self.out.read_text().splitlines(keepends=True) if line[-1] == "\n"]

    def wait_for_steps(self, n: int) -> list[int]:
        wait_until(lambda: len(steps(self.lines())) >= n, lambda: f"{n} steps: {self.lines()[-3:]}")
        return steps(self.lines())


@contextmanager
def reading(out: Path, *command: str | Path) -> Iterator[Reader]:
    reader = Reader(out, *command)
    try:
        yield reader
    finally:
        os.killpg(reader.process.pid, signal.SIGKILL)
        _, said = reader.process.communicate()
        assert said == b""


def following(out: Path, path: Path) -> Iterator[Reader]:
    return reading(out, "tail", "-n", "+1", "-s", "0.05", "-f", path)


def n_descriptors(mount: Mount) -> int:
    return len(os.listdir(f"/proc/{mount.server}/fd"))


# --- what is read ---


def test_events_of_processes_and_threads_are_in_order(mount: Mount, tmp_path: Path) -> None:
    trace, n = start_trace(mount, "t", ROOM), 8000
    with following(tmp_path / "out", trace / "merged.json") as tail:
        take_tickets(mount, n)
        check_order(tickets(cat(trace / "merged.json")), n)
        text = [line for line in cat(trace / "merged") if " tickets:taken: " in line]
        wait_until(lambda: len(tickets(tail.lines())) == n, lambda: f"{len(tail.lines())} lines")
        check_order(tickets(tail.lines()), n)
    assert len(text) == n
    assert text == sorted(text)  # the times stand first


def test_readers_and_a_recorder_do_not_take_events_from_each_other(mount: Mount, tmp_path: Path) -> None:
    trace, n = start_trace(mount, "t", "subbuf_size=64K n_subbufs=4"), 12_000
    with (
        recording("t", "-m", mount.path, "-o", tmp_path / "recorded") as recorder,
        following(tmp_path / "one", trace / "merged") as one,
        following(tmp_path / "two", trace / "merged") as two,
        traced(mount) as writer,
    ):
        for so_far in range(2000, n + 1, 2000):
            writer.ask("emit 2000")
            assert one.wait_for_steps(so_far) == two.wait_for_steps(so_far) == list(range(so_far))
            # So that nothing is refused: what was read is left to the recorder.
            wait_until(lambda: unread(mount) <= 2000, "the recorder has read most")
        finish(recorder)
    recorded = babeltrace(tmp_path / "recorded")
    assert (recorded.numbers(), recorded.lost) == (list(range(n)), 0)


def test_what_is_read_stays_for_those_who_consume(mount: Mount, tmp_path: Path) -> None:
    trace = start_trace(mount, "t", "subbuf_size=4K n_subbufs=8")
    with traced(mount, cpus=[0]) as writer, following(tmp_path / "out", trace / "merged") as tail:
        for n in (400, 401, 402):
            writer.ask("emit 400" if n == 400 else "emit 1")
            assert tail.wait_for_steps(n) == list(range(n))
        assert unread(mount) == n


def unread(mount: Mount) -> int:
    def total(name: str) -> int:
        return sum(int(path.read_text()) for path in (mount.path / ".channels/t").glob(f"*/cpu/{name}"))

    return total("records") - total("read_records")


def test_new_lines_follow(mount: Mount, tmp_path: Path) -> None:
    trace = start_trace(mount)
    with traced(mount) as one, traced(mount) as two:
        one.ask("emit 3")
        pipe = f"tail -n +1 -s 0.05 -f {trace}/merged | grep --line-buffered 'seq = [13579]'"
        with following(tmp_path / "all", trace / "merged") as tail, reading(tmp_path / "odd", "sh", "-c", pipe) as grep:
            assert tail.wait_for_steps(3) == [0, 1, 2]
            two.ask("emit 2")
            assert tail.wait_for_steps(5) == [0, 1, 2, 0, 1]
            one.ask("emit 3")
            assert tail.wait_for_steps(8) == [0, 1, 2, 0, 1, 3, 4, 5]
            assert grep.wait_for_steps(4) == [1, 1, 3, 5]


def test_tools_read_what_is_there(mount: Mount, tmp_path: Path) -> None:
    path = start_trace(mount) / "merged"
    with traced(mount) as writer:
        writer.ask("emit 100")
    everything = cat(path)
    assert steps(everything) == list(range(100))
    for command, expected in {
        f"cp {path} copy; cat copy": everything,
        f"dd if={path} bs=1M status=none": everything,
        f"grep 'seq = 7' {path}": [line for line in everything if "seq = 7" in line],
        f"head -n 7 {path}": everything[:7],
        f"(head -n 7 >/dev/null; cat) <{path}": everything[7:],
        f"tail -n 7 {path}": everything[-7:],
        f'while read -r line; do echo "$line"; done <{path}': everything,
        f"busybox cat {path}": everything,
        f'{sys.executable} -c \'import shutil; shutil.copyfile("{path}", "copy")\'; cat copy': everything,
        f"wc -l <{path}": ["100"],
    }.items():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert done.stdout.splitlines() == expected, command


def test_lines_are_whole_unless_they_are_too_long(mount: Mount) -> None:
    path = start_trace(mount) / "merged"
    with traced(mount) as writer:
        writer.ask("emit 100")
    whole = "".join(f"{line}\n" for line in cat(path)).encode()
    for size in (1000, 10):
        with path.open("rb", buffering=0) as file:
            pieces = list(iter(partial(file.read, size), b""))
        assert b"".join(pieces) == whole
        assert all(piece.endswith(b"\n") for piece in pieces) == (size == 1000)


@pytest.mark.parametrize("mode", ["overwrite", "no-overwrite"])
def test_losses_are_told(mount: Mount, tmp_path: Path, mode: str) -> None:
    trace, n = start_trace(mount, "t", f"subbuf_size=4K n_subbufs=4 mode={mode}"), 5000
    with traced(mount, cpus=[0]) as writer, following(tmp_path / "out", trace / "merged") as tail:
        writer.ask("emit 1")
        tail.wait_for_steps(1)
        writer.ask(f"emit {n}")

        def all_are_told() -> bool:
            lost = [int(found[1]) for line in tail.lines() if (found := LOST.fullmatch(line))]
            return len(steps(tail.lines())) + sum(lost) == n + 1

        wait_until(all_are_told, lambda: f"{len(tail.lines())} lines, {tail.lines()[-3:]}")
        assert len(tail.lines()) < n
        causes = {found[2] for line in tail.lines() if (found := LOST.fullmatch(line))}
        assert causes == {"full" if mode == "no-overwrite" else "overwritten"}
        # What was refused before a reader came to the buffers is no loss of its own.
        assert steps(cat(trace / "merged")) == sorted(steps(cat(trace / "merged")))


def test_the_events_of_a_killed_process_are_there(mount: Mount, tmp_path: Path) -> None:
    trace = start_trace(mount)
    with traced(mount) as victim, traced(mount) as other, following(tmp_path / "out", trace / "merged") as tail:
        victim.ask("emit 50")
        victim.kill()
        other.ask("emit 50")
        assert tail.wait_for_steps(100) == [*range(50)] * 2
        assert steps(cat(trace / "merged")) == [*range(50)] * 2


@pytest.mark.parametrize("mode", ["overwrite", "no-overwrite"])
def test_it_ends_while_programs_go_on_writing(mount: Mount, mode: str) -> None:
    trace = start_trace(mount, "t", f"subbuf_size=64K n_subbufs=8 mode={mode}")
    with traced(mount) as one, traced(mount) as two:
        for writer in (one, two):
            writer.start("flood 1000 0")
        for _ in range(3):
            assert cat(trace / "merged")


# --- how it is read ---


def test_poll_tells_of_lines(mount: Mount) -> None:
    path = start_trace(mount) / "merged"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with traced(mount) as writer, select.epoll() as epoll:
        epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        for n in range(3):
            with pytest.raises(BlockingIOError):
                os.read(descriptor, 4096)
            assert not epoll.poll(0)
            writer.ask("emit 1")
            assert epoll.poll(DEADLINE_S) == [(descriptor, select.EPOLLIN)]
            assert steps(os.read(descriptor, 4096).decode().splitlines()) == [n]
        mount.command("trace stop t")
        writer.kill()
        mount.command("trace remove t")
        wait_until(lambda: dict(epoll.poll(0.1)).get(descriptor, 0) & select.EPOLLHUP, "it is over")
        assert os.read(descriptor, 4096) == b""
    os.close(descriptor)


def test_a_file_of_a_removed_trace_is_not_of_the_next_one(mount: Mount) -> None:
    path = start_trace(mount) / "merged"
    with path.open("rb") as old:
        mount.command("trace remove t")
        wait_until(lambda: not path.exists(), "it goes")
        start_trace(mount)
        with traced(mount) as writer:
            writer.ask("emit 1")
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            old.read()
    assert steps(cat(path)) == [0]


def test_readers_that_stand_still_or_die_hold_up_nobody(mount: Mount, tmp_path: Path) -> None:
    trace = start_trace(mount, "t", ROOM)
    with traced(mount) as writer:
        writer.ask("emit 5000")
        cat(trace / "merged")
        before = n_descriptors(mount)
        # Its pipe is full, so it reads no further.
        stuck = subprocess.Popen(["cat", trace / "merged"], stdout=subprocess.PIPE)
        stopped = os.open(trace / "merged", os.O_RDONLY)
        assert os.read(stopped, 4096)
        with following(tmp_path / "out", trace / "merged") as tail:
            for n in range(5_001, 5_011):
                writer.ask("emit 1")
                os.stat(mount.control)
                mount.command("create other/cpu subbuf_size=4K n_subbufs=2")
                mount.command("remove other/cpu")
                tail.wait_for_steps(n)
            assert stuck.poll() is None
            stuck.kill()
            stuck.communicate()
            tail.process.kill()
        rest = b"".join(iter(lambda: os.read(stopped, 1 << 20), b""))
        assert len(rest.splitlines()) > 4_500
        os.close(stopped)
        wait_until(lambda: n_descriptors(mount) <= before, lambda: f"{n_descriptors(mount)} descriptors of {before}")
        assert steps(cat(trace / "merged")) == list(range(5_010))


def test_who_reads_little_at_a_time_has_few_lines_made(mount: Mount) -> None:
    path = start_trace(mount, "t", "subbuf_size=1M n_subbufs=8") / "merged.json"
    with traced(mount) as writer:
        writer.ask("emit 60000")
    descriptor, given = os.open(path, os.O_RDONLY), 0
    while given < 2 * READY_BYTES:
        given += len(os.read(descriptor, 4096))
        # To the thread that has opened it, this is what it has read and can read.
        assert os.fstat(descriptor).st_size - given <= READY_BYTES + PIECE_BYTES
    os.close(descriptor)


def test_so_many_can_be_read_at_once(mount: Mount) -> None:
    path = start_trace(mount) / "merged"
    files = [os.open(path, os.O_RDONLY) for _ in range(READERS_MAX + 1)]
    for descriptor in files[:-1]:
        assert os.read(descriptor, 1) == b""
    with pytest.raises(OSError, match=os.strerror(errno.ENFILE)):
        os.read(files[-1], 1)
    os.close(files[0])
    wait_until(lambda: read_or_nothing(files[-1]) == b"", "there is room again")
    for descriptor in files[1:]:
        os.close(descriptor)


def read_or_nothing(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, 1)
    except OSError as error:
        assert error.errno == errno.ENFILE
        return None


# --- others ---


def test_only_who_may_read_all_of_the_trace_may_read_it(mount: Mount, unprivileged: User) -> None:
    trace = start_trace(mount)
    with traced(mount, user=NOBODY) as writer:
        writer.ask("emit 3")
        for name in ("merged", "merged.json", "merged.raw"):
            done = unprivileged.run("cat", trace / name)
            assert (done.returncode, done.stdout) == (1, "")
            assert "Permission denied" in done.stderr
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
                with pytest.raises(PermissionError):
                    os.open(trace / name, flags)
        assert steps(cat(trace / "merged")) == [0, 1, 2]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_process_that_spoils_its_buffers_harms_no_other(
    mount: Mount, unprivileged: User, tmp_path: Path, seed: int
) -> None:
    mount.expect("damaged|positions")
    trace = start_trace(mount, "t", "subbuf_size=8K n_subbufs=16")
    command = [program("trace_hostile"), "spoil", str(seed), "50"]
    with traced(mount) as honest, following(tmp_path / "out", trace / "merged") as tail:
        honest.ask("emit 100")
        with subprocess.Popen(
            command, env=environment_of(mount), user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE,
            text=True, cwd="/",
        ) as hostile:  # fmt: skip
            assert hostile.stdout.readline().startswith("spoilt")
            honest.ask("emit 100")
            spoilt = f"trace_hostile-{hostile.pid}"
            assert spoilt in processes(trace)
            found = [json.loads(line) for line in cat(trace / "merged.json")]
            blocks = (trace / "merged.raw").read_bytes()
            hostile.kill()
        honest.ask("emit 100")
        assert tail.wait_for_steps(300) == list(range(300))
        mine = [one for one in found if one.get("pid") == honest.process.pid]
        raw = parse(blocks)
        assert [one["fields"]["seq"] for one in mine] == list(range(200))
        said = [one["notice"] for one in found if "notice" in one]
        assert all(line.startswith(spoilt) for line in [*said, *raw.notices])
        assert raw.notices
        assert len([one for one in raw.packets if one.interface.description["pid"] == honest.process.pid]) == 200
        named = [line for line in tail.lines() if line.startswith("# ")]
        assert named
        assert all(line.startswith(f"# {spoilt} ") for line in named)
    assert relayctl(mount, "stat", "t").returncode == 0
