"""Crash cards: what a traced process leaves that dies without closing its trace."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from babeltrace import babeltrace
from build import compile_c, run_environment
from making import N_CPUS
from mounts import NOBODY, Mount, User, wait_until
from stress import is_long
from traced import directories, environment_of, relayctl, start_trace, wait_gone
from traffic import some_cpu

from relayfs_fuse.fs.traces.ends import UNKNOWN, End, KernelLog, end_of, open_process

SOURCE = Path(__file__).with_name("trace_death.c")
N_DEATHS = 1000 if is_long() else 30
ENDS = {
    "segv": {"cause": "signal", "signal": "SIGSEGV"},
    "abort": {"cause": "signal", "signal": "SIGABRT"},
    "kill": {"cause": "signal", "signal": "SIGKILL"},
    "_exit": {"cause": "exit", "status": "7"},
}


@dataclass
class Dying:
    """trace_death.c."""

    process: subprocess.Popen[bytes]
    n: int = 0

    def acknowledged(self, n: int) -> None:
        """Wait until so many more events are acknowledged."""
        assert self.process.stdout is not None
        while n:
            data = self.process.stdout.read(n)
            assert data
            self.n += len(data)
            n -= len(data)

    def go_on(self) -> None:
        """Let it do what it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"x")
        self.process.stdin.flush()

    def die(self) -> int:
        """Let it end; return how many events it has acknowledged in all."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        return self.rest()

    def kill(self) -> int:
        """Kill it; return the same."""
        self.process.kill()
        return self.rest()

    def rest(self) -> int:
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.n += len(self.process.stdout.read())
            self.process.stdout.close()
        self.process.wait()
        return self.n


@contextmanager
def dying(mount: Mount, how: str, n: int = 0, user: int | None = None) -> Iterator[Dying]:
    """Run trace_death.c, on one CPU, whose buffer then has all its events."""
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with subprocess.Popen(
        ["taskset", "-c", str(some_cpu()), compile_c([SOURCE]), how, str(n)],
        env={**run_environment(), **environment_of(mount)}, cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **who,
    ) as process:  # fmt: skip
        dead = Dying(process)
        try:
            dead.acknowledged(n)
            yield dead
        finally:
            with suppress(OSError):
                process.kill()


def cards(mount: Mount) -> list[Path]:
    """Return all cards, the oldest first."""
    return sorted((mount.path / ".crashed").iterdir(), key=lambda card: card.stat().st_mtime_ns)


def card_of(mount: Mount, process: subprocess.Popen[bytes]) -> Path:
    """Wait for the card of a process."""
    found: list[Path] = []

    def is_there() -> bool:
        found[:] = (mount.path / ".crashed").glob(f"*-{process.pid}-*")
        return bool(found)

    wait_until(is_there, lambda: f"there is a card of {process.pid}: {mount.error_log}")
    assert len(found) == 1
    return found[0]


def pairs(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def descriptors_of(mount: Mount) -> set[int]:
    """Return the processes that the server has opened."""
    found = set()
    for path in Path(f"/proc/{mount.server}/fdinfo").iterdir():
        with suppress(OSError):
            found |= {int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("Pid:")}
    return found


def wait_watched(mount: Mount, dead: Dying) -> None:
    wait_until(lambda: dead.process.pid in descriptors_of(mount), "the server watches the process")


def executable(maps: Path) -> list[str]:
    """Return the lines of mappings that have code."""
    found = [line for line in maps.read_text().splitlines() if "x" in line.split()[1]]
    assert found
    return found


def check_events(card: Path, acknowledged: int, *, is_killed: bool = False) -> list[int]:
    """The last event is the last that was acknowledged, or one more if the program was killed meanwhile.

    Returns the numbers of those that are there.
    """
    numbers = babeltrace(card).numbers("death:step")
    check_numbers(card, numbers, acknowledged, is_killed=is_killed)
    return numbers


def check_numbers(card: Path, numbers: list[int], acknowledged: int, *, is_killed: bool) -> None:
    """Check the same, for numbers that babeltrace2 has read."""
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert acknowledged <= numbers[-1] + 1 <= acknowledged + is_killed
    assert f"seq = {numbers[-1]} " in (card / "events").read_text().splitlines()[-1]


@pytest.fixture
def traced_mount(mount: Mount) -> Iterator[Mount]:
    """A mount with the trace t."""
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4")
    yield mount
    mount.command("trace remove t")


# --- each end ---


@pytest.mark.one_mount
@pytest.mark.parametrize("how", list(ENDS))
def test_a_card_has_the_last_events_and_says_how_the_process_ended(
    traced_mount: Mount, how: str, tmp_path: Path
) -> None:
    mount = traced_mount
    with dying(mount, how, 10) as dead:
        wait_watched(mount, dead)
        maps = tmp_path / "maps"
        maps.write_text(Path(f"/proc/{dead.process.pid}/maps").read_text())
        acknowledged = dead.kill() if how == "kill" else dead.die()
        card = card_of(mount, dead.process)
        assert ENDS[how].items() <= pairs(card / "cause").items()
        assert check_events(card, acknowledged) == list(range(10))
        assert len((card / "events").read_text().splitlines()) == 10
        about = pairs(card / "process")
        said = {"trace": "t", "program": "trace_death", "pid": str(dead.process.pid), "uid": str(os.geteuid())}
        assert said.items() <= about.items()
        assert about["seen"] <= about["died"]
        assert (card / "cmdline").read_bytes().split(b"\0")[1:3] == [how.encode(), b"10"]
        assert "Max open files" in (card / "limits").read_text()
        # The server has looked at it when it joined the trace, perhaps before it had mapped its buffers.
        assert executable(card / "maps") == executable(maps)
        assert (card / "losses").read_text() == ""
        assert sum(int(line.split()[2]) for line in (card / "statistics").read_text().splitlines()
                   if line.split()[1] == "records") == 10  # fmt: skip
        assert "relayfs/" in (card / "counters").read_text()
        assert dead.process.pid not in descriptors_of(mount)
        os.rmdir(card)
        assert not card.exists()


@pytest.mark.one_mount
@pytest.mark.parametrize("how", ["exit", "end", "again"])
def test_a_process_that_ends_in_order_leaves_nothing(traced_mount: Mount, how: str) -> None:
    mount = traced_mount
    with dying(mount, how, 10) as good, dying(mount, "kill", 1) as bad:
        wait_watched(mount, good)
        if how == "again":
            good.go_on()
        else:
            good.die()
        wait_until(lambda: good.process.pid not in descriptors_of(mount), "the server watches it no more")
        good.die()
        bad.kill()
        card = card_of(mount, bad.process)
        assert cards(mount) == [card]
        os.rmdir(card)
    # Its events are read, and then its directory goes.
    for directory in directories(mount.path / "t"):
        for cpu in range(N_CPUS):
            (directory / f"cpu{cpu}").read_bytes()
        wait_gone(directory)
    assert not any(mount.store.rglob(".crashed/*"))


CHILDREN = """
import multiprocessing, os, sys
from relayfs_fuse.trace import Event
event = Event("child", "ends", {"n": "u32"})
pipe = os.dup(0)  # children have another standard input

def work(how):
    event(1)
    print(os.getpid(), flush=True)
    os.read(pipe, 1)
    if how == "_exit":
        os._exit(3)
    if how == "raise":
        sys.stderr.close()
        raise ValueError

def start(how):
    child = context.Process(target=work, args=(how,))
    child.start()
    child.join()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for how in sys.argv[2:]:
        start(how)
"""


def test_a_child_that_multiprocessing_ends_leaves_nothing(mount: Mount, tmp_path: Path) -> None:
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4")
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    ways = ["return", "raise", "_exit"]
    with subprocess.Popen(
        [sys.executable, script, "fork", *ways], env=environment_of(mount), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, cwd="/",
    ) as parent:  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        pids = []
        for _ in ways:
            pids.append(int(parent.stdout.readline()))
            wait_until(lambda: pids[-1] in descriptors_of(mount), "the server watches the child")
            parent.stdin.write(b"x")
            parent.stdin.flush()
        assert parent.wait() == 0
    wait_until(lambda: cards(mount), "the last one leaves a card")
    assert [pairs(card / "process")["pid"] for card in cards(mount)] == [str(pids[-1])]


def memory_group() -> Path | None:
    """Return where memory can be limited: a new control group of either version; None: not on this machine."""
    for above, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = above / f"relayfs-test-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(32 << 20))
            except OSError:
                group.rmdir()
                continue
            with suppress(OSError):
                (group / "memory.swap.max").write_text("0")
            return group
    return None


@pytest.mark.one_mount
def test_a_process_that_is_killed_because_memory_ran_out(traced_mount: Mount) -> None:
    group = memory_group()
    if group is None:
        pytest.skip("no control group can limit memory here")
    mount = traced_mount
    try:
        with dying(mount, "eat", 10) as dead:
            wait_watched(mount, dead)
            (group / "cgroup.procs").write_text(str(dead.process.pid))
            acknowledged = dead.die()
            card = card_of(mount, dead.process)
            cause = pairs(card / "cause")
            assert (cause["cause"], cause["signal"]) == ("signal", "SIGKILL")
            log = KernelLog()
            can_tell = log.has_killed(1) is not None
            log.close()
            assert cause["out_of_memory"] == ("1" if can_tell else "unknown")
            check_events(card, acknowledged)
            os.rmdir(card)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "nothing is in the group")
        group.rmdir()


def test_the_end_of_a_process_is_known_if_its_parent_waits_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "inf"]) as process:
        descriptor = open_process(process.pid)
        try:
            process.kill()
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
            assert end_of(process.pid, descriptor) == End(signal.SIGKILL, "stat")
            readlink = os.readlink

            def wait_before(path: str) -> str:
                process.wait()
                return readlink(path)

            monkeypatch.setattr(os, "readlink", wait_before)
            is_kept = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
            assert end_of(process.pid, descriptor) == (End(signal.SIGKILL, "pidfd") if is_kept else UNKNOWN)
        finally:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        (End(None), ["cause=unknown"]),
        (End(0x8B, "stat"), ["cause=signal", "signal=SIGSEGV", "core_dumped=1", "known_from=stat"]),
        (End(0x300, "pidfd"), ["cause=exit", "status=3", "known_from=pidfd"]),
        (End(40, "pidfd"), ["cause=signal", "signal=SIG40", "core_dumped=0", "known_from=pidfd"]),
        (
            End(9, "stat"),
            ["cause=signal", "signal=SIGKILL", "core_dumped=0", "out_of_memory=unknown", "known_from=stat"],
        ),
    ],
)
def test_what_is_not_known_of_an_end_is_not_said(end: End, lines: list[str]) -> None:
    assert end.lines(None) == lines


# --- many ends, many users ---


@pytest.mark.stress
def test_after_any_number_of_deaths_cards_hold_what_was_acknowledged_and_stay_within_their_bounds(
    make_mount: Callable[..., Mount],
) -> None:
    """Six processes die at a time, each in a way of its own, and babeltrace2 reads all cards at once."""
    chance = random.Random(1)
    mount = make_mount("crashed=8,crashed_size=4M")
    mount.expect("was removed with [0-9]+ unread events, because memory= is used up")  # of the first processes
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4 mode=overwrite memory=64M")
    ways = [*ENDS, "exit", "flood"]
    for _ in range(0, N_DEATHS, len(ways)):
        with ExitStack() as stack:
            all_ = {
                how: stack.enter_context(dying(mount, how, 0 if how == "flood" else chance.randrange(1, 20)))
                for how in ways
            }
            all_["flood"].acknowledged(chance.randrange(1, 300))
            acknowledged = {how: dead.kill() if how in {"kill", "flood"} else dead.die() for how, dead in all_.items()}
            del all_["exit"]
            made = {how: card_of(mount, dead.process) for how, dead in all_.items()}
        numbers = babeltrace(mount.path / ".crashed").by_pid("death:step")
        for how, card in made.items():
            check_numbers(card, numbers[all_[how].process.pid], acknowledged[how], is_killed=how == "flood")
        found = cards(mount)
        assert len(found) <= 8
        assert sum(path.stat().st_size for card in found for path in card.rglob("*") if path.is_file()) <= 4 << 20
    assert len(cards(mount)) == 8


def test_a_card_of_large_buffers_has_the_last_events_that_fit(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("crashed_size=4M")
    start_trace(mount, "t", "subbuf_size=64K n_subbufs=64")
    with dying(mount, "flood") as dead:
        dead.acknowledged(80_000)
        acknowledged = dead.kill()
        card = card_of(mount, dead.process)
        numbers = check_events(card, acknowledged, is_killed=True)
        assert numbers[0] > 0
        assert sum(path.stat().st_size for path in card.rglob("*") if path.is_file()) <= 1 << 20
        assert (card / "events").stat().st_size <= 256 << 10


@pytest.mark.usefixtures("mapped_through")
def test_cards_are_their_owners(mount: Mount, unprivileged: User) -> None:
    start_trace(mount, "t")
    with dying(mount, "abort", 5) as own, dying(mount, "abort", 6, user=NOBODY) as other:
        for dead in (own, other):
            wait_watched(mount, dead)
        own.die()
        acknowledged = other.die()
        own_card, card = card_of(mount, own.process), card_of(mount, other.process)
    stranger = User(NOBODY - 1, NOBODY - 1)
    assert (card.stat().st_uid, card.stat().st_mode & 0o777) == (NOBODY, 0o500)
    assert unprivileged.run("cat", card / "cause").stdout.startswith("cause=signal\nsignal=SIGABRT\n")
    assert "trace_death" in unprivileged.run("cat", card / "maps").stdout
    check_events(card, acknowledged)
    for who, name in ((stranger, card), (unprivileged, own_card)):
        assert who.run("cat", name / "cause").returncode != 0
        assert who.run("ls", name).returncode != 0
        assert who.run("rmdir", name).returncode != 0
    assert unprivileged.run("mkdir", mount.path / ".crashed/mine").returncode != 0
    assert unprivileged.run("rm", card / "cause").returncode != 0
    assert unprivileged.run("rmdir", card).returncode == 0
    assert cards(mount) == [own_card]


def test_where_the_mount_maps_no_files_a_card_is_viewed_all_the_same(unmapped: Mount) -> None:
    start_trace(unmapped, "t", "subbuf_size=16K n_subbufs=4")
    with dying(unmapped, "abort", 3) as dead:
        wait_watched(unmapped, dead)
        dead.die()
        card = card_of(unmapped, dead.process)
    lines = relayctl(unmapped, "view", card / "ctf").stdout.splitlines()
    assert [f"seq = {number} " in line for number, line in enumerate(lines)] == [True] * 3
    unmapped.command("trace remove t")


@pytest.mark.usefixtures("unprivileged")
def test_a_user_who_lets_many_programs_die_removes_his_own_cards_only(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("crashed=2")
    if "maps no files" in mount.log.read_text():
        pytest.skip("files are mapped through the mount on Linux 6.9 and later, with CAP_SYS_ADMIN")
    start_trace(mount, "t", "subbuf_size=16K n_subbufs=4")
    with dying(mount, "abort", 1) as dead:
        wait_watched(mount, dead)
        dead.die()
        own = card_of(mount, dead.process)
    last: list[Path] = []
    for _ in range(5):
        with dying(mount, "abort", 1, user=NOBODY) as dead:
            dead.die()
            last.append(card_of(mount, dead.process))
    wait_until(lambda: cards(mount) == [own, *last[-2:]], lambda: f"{cards(mount)}")


def test_no_cards_are_made_if_the_mount_says_so(make_mount: Callable[..., Mount]) -> None:
    mount = make_mount("crashed=0")
    start_trace(mount, "t")
    with dying(mount, "kill", 3) as dead:
        dead.kill()
        wait_until(lambda: directories(mount.path / "t"), "its directory is shown")
        (directory,) = directories(mount.path / "t")
        for cpu in range(N_CPUS):
            (directory / f"cpu{cpu}").read_bytes()
        wait_gone(directory)
    assert cards(mount) == []
    assert descriptors_of(mount) == set()


# --- the server ends meanwhile ---


def test_cards_survive_the_server_and_a_death_without_one_gets_a_card_once(mount: Mount) -> None:
    start_trace(mount, "t")
    with dying(mount, "abort", 5) as first, dying(mount, "abort", 6) as second, dying(mount, "exit", 7) as third:
        wait_watched(mount, first)
        first.die()
        card = card_of(mount, first.process)
        mount.kill()
        second.die()
        third.die()
        for _ in range(2):
            mount.start()
            other = card_of(mount, second.process)
            assert pairs(other / "cause") == {"cause": "unknown"}
            assert "pid" not in pairs(other / "process")
            check_events(other, 6)
            check_events(card, 5)
            with dying(mount, "kill", 1) as last:
                last.kill()
                after = card_of(mount, last.process)
            # What the server has found at its start was decided before.
            assert cards(mount) == [card, other, after]
            os.rmdir(after)
            assert mount.stop(signal.SIGTERM) == 0
        mount.start()


# --- relayctl crashed ---


@pytest.mark.one_mount
def test_relayctl_lists_shows_and_removes_cards(traced_mount: Mount) -> None:
    mount = traced_mount
    with dying(mount, "abort", 3) as dead:
        wait_watched(mount, dead)
        dead.die()
        name = card_of(mount, dead.process).name
    line = relayctl(mount, "crashed").stdout.split()
    assert line[:2] == [name, "SIGABRT"]
    (listed,) = map(json.loads, relayctl(mount, "crashed", "--json").stdout.splitlines())
    assert (listed["name"], listed["cause"], listed["signal"], listed["pid"]) == (
        name,
        "signal",
        "SIGABRT",
        dead.process.pid,
    )
    shown = relayctl(mount, "crashed", "show", name).stdout
    assert shown.startswith("trace=t\nprogram=trace_death\n")
    assert "signal=SIGABRT\n" in shown
    assert "seq = 2 " in shown.splitlines()[-1]
    told = json.loads(relayctl(mount, "crashed", "show", "--json", name).stdout)
    assert len(told["events"]) == 3
    missing = relayctl(mount, "crashed", "remove", "nobody-1")
    assert (missing.returncode, missing.stderr) == (
        3, "relayctl: there is no crash card nobody-1; relayctl crashed lists them\n"
    )  # fmt: skip
    assert relayctl(mount, "crashed", "rm", name).returncode == 0
    assert (relayctl(mount, "crashed").stdout, cards(mount)) == ("", [])
