"""A mount under attack: who attacks, who works on meanwhile, and what must be true of them afterwards.

    arena = Arena(mount, seed, tmp_path)
    arena.attack("relay", mem_file, relay_file)
    arena.bystander("reader", relay_file)
    arena.fight(6.0)
    arena.judge()

Attackers are programs of other users; bystanders are root's, or honest users', and must not be killed, stand still or
lose anything. Everything random follows from the seed, which is printed.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from attack.neighbours import Neighbours
from attack.programs import PYTHON_PAUSE_S, TOOL_PAUSE_S, Helper, Reader, Tool, tell_to_end
from build import compile_c
from making import Maker
from mapping import why_unprotected
from mounts import DEADLINE_S, NOBODY, Mount
from stress import is_long
from traced import environment_of, relayctl
from traffic import append, some_cpu

HERE = Path(__file__).parent
# Who floods files of commands: not the owner of what the others attack, who could remove it.
FLOODER = 60_003
# What it tries to make among the victims.
FLOODED = ("victim/0", "victim/1")
# One round in the tests; in ./dev stress they add up to half an hour for each kind.
ROUND_S = 600.0 if is_long() else 2.0
N_ROUNDS = 3 if is_long() else 1
# In a short round a pause of the machine counts as much as one of the server. Who is slow is slow in each of so many.
TRIES = 1 if is_long() else 5
# How often there is something new to spoil.
RENEW_S = 0.4
# How much memory the server needs at most is known when the attack has shown it everything there is: after this part.
WARM_UP = 1 / 2
GROWTH_MAX = 1.1
# In a short round the server still gets what it needs once: threads, caches, what Python keeps for later.
GROWTH_ONCE_KB = 0 if is_long() else 8192
STAT_P99_US = 100_000
# Where the machine is so busy that a server is slow that nobody attacks, it may be this much slower.
STAT_RATIO = 3
CALM_S = 0.5
HIGHEST = -20


def choose_seed() -> int:
    """Return the seed of a round: RELAYFS_ATTACK_SEED repeats one."""
    seed = int(os.environ.get("RELAYFS_ATTACK_SEED") or random.SystemRandom().randrange(1, 1 << 31))
    print(f"RELAYFS_ATTACK_SEED={seed}")
    return seed


def prefer(pid: int) -> None:
    """Let a process run before all others: what is judged is what it does, and not how the kernel shares the CPUs.

    Where the kernel groups processes by session (sched(7), autogroup), nice values count among those of one session
    only. A server of nice -20 in the same session as all the others was once runnable for 4.2 s without a CPU. So the
    process, or the supervisor of a server, has a session of its own, which has that value, too.
    """
    assert os.getsid(pid) in (pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))
    for task in os.listdir(f"/proc/{pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(task), HIGHEST)
    with suppress(FileNotFoundError):  # the kernel has no such groups
        Path(f"/proc/{pid}/autogroup").write_text(str(HIGHEST))


@dataclass
class Victim:
    """A channel of another user, whom others let write, too."""

    mount: Mount
    channel: str
    options: str
    records: Sequence[bytes]
    of_ring: bool

    def make(self) -> None:
        type_ = "type=ring framing=line" if self.of_ring else ""
        self.mount.create(self.channel, f"{type_} {self.options} uid={NOBODY} gid={NOBODY} perm=0666")
        for record in self.records:
            # It may be scribbled on already.
            with suppress(OSError):
                append(self.file, record)

    @property
    def _number(self) -> str:
        return "" if "buffers=single" in self.options else str(some_cpu())

    @property
    def path(self) -> Path:
        return self.mount.path / self.channel

    @property
    def file(self) -> Path:
        return Path(f"{self.path}{self._number}")

    @property
    def memory(self) -> Path:
        return self.mount.path / ".channels" / self.channel / f"mem{self._number or 0}"


@dataclass
class Times:
    """How long stat(control) took, in microseconds."""

    n: int
    errors: int
    median: int
    p99: int
    longest: int


class Arena:
    """One round: it is built up, fought in, and judged.

    mount: what is attacked
    quiet: another mount, which nobody attacks: how long stat(control) takes there says how busy the machine is
    """

    def __init__(self, mount: Mount, quiet: Mount, seed: int, directory: Path) -> None:
        self.mount, self.quiet = mount, quiet
        self.seed = seed
        self.environment = environment_of(mount)
        if not why_unprotected(mount.store.parent):
            self.environment["PAGES_STAY"] = "1"
        self.directory = directory
        directory.chmod(0o755)
        self.attackers: list[Helper] = []
        self.bystanders: list[Helper] = []
        self.tools: list[Tool] = []
        self.readers: list[Reader] = []
        self.makers: list[Maker] = []
        self.neighbours = Neighbours(mount, directory)
        self.victims: dict[str, Victim] = {}
        mount.expect("damaged|positions|WARNING")

    # --- who is there ---

    def victim(self, name: str, options: str, records: Sequence[bytes], of_ring: bool = False) -> "Victim":
        """Make a channel that is attacked, and removed and made again meanwhile."""
        victim = Victim(self.mount, f"victim/{name}", options, records, of_ring)
        self.victims[victim.channel] = victim
        victim.make()
        self.attack("ring" if of_ring else "relay", victim.memory, victim.file)
        return victim

    def attack(self, kind: str, memory: Path, file: Path | None = None, user: int = NOBODY) -> None:
        program = compile_c([HERE / name for name in ("hostile.c", "hostile_layout.c", "lives.c")])
        command = [program, self.next_seed(), kind, memory, *([file] if file else [])]
        self._start_attacker(f"attack on {memory}", command, user)

    def attack_page(self, *traces: str, user: int = NOBODY) -> None:
        """Attack the page that traced programs map, and take part in traces without end."""
        program = compile_c([HERE / "hostile_page.c", HERE / "lives.c"])
        command = [program, self.next_seed(), self.mount.path, *traces]
        self._start_attacker(f"attack on the page of {self.mount.path}", command, user)

    def flood(self, *files: Path, user: int = FLOODER) -> None:
        self._start_attacker("flood", [compile_c([HERE / "flooder.c"]), self.next_seed(), *files], user)

    def _start_attacker(self, name: str, command: Sequence[str | Path], user: int) -> None:
        # Their CPU time is not what they attack with: neighbours shall get on, too.
        helper = Helper(name, ["nice", *command], user, self.environment)
        self.attackers.append(helper)
        helper.wait_ready("attacking")
        # Until the fight it would only hold up the start of all the others.
        helper.process.send_signal(signal.SIGSTOP)

    def next_seed(self) -> str:
        return str(self.seed + len(self.attackers))

    def bystander(self, role: str, file: Path, user: int | None = None) -> Helper:
        return self._stand_by(f"{role} of {file}", [compile_c([HERE / "bystander.c"]), role, file], user)

    def python_bystander(self, role: str, *files: Path) -> Helper:
        """Start one program that goes round all of these files with the Python package."""
        return self._stand_by(f"Python's {role}", [sys.executable, HERE / "bystander.py", role, *files], None)

    def _stand_by(self, name: str, command: Sequence[str | Path], user: int | None) -> Helper:
        helper = Helper(name, command, user, self.environment)
        helper.wait_ready("ready")
        self.bystanders.append(helper)
        return helper

    def tool(self, *command: str | Path, complaints: str = "", pause_s: float = PYTHON_PAUSE_S) -> None:
        self.tools.append(Tool(command, self.environment, complaints, pause_s))

    def reader(self, *command: str | Path) -> None:
        """Run a program that reads for ever; what it reads is the attacker's, and is thrown away."""
        self.readers.append(Reader(list(map(str, command))))

    def usual_tools(self) -> None:
        self.tool("relayctl", "list")
        self.tool("relayctl", "stat")
        self.tool("relayctl", "counters")
        # Names may go between readdir and stat.
        self.tool("ls", "-laR", self.mount.path, complaints="No such file or directory", pause_s=TOOL_PAUSE_S)

    # --- the fight ---

    def watch_calm(self) -> None:
        """See how long stat(control) takes before anybody attacks."""
        for mount in (self.mount, self.quiet):
            assert mount.process is not None
            prefer(mount.server)
        self.calm = self._calm_times()

    def _calm_times(self) -> "Times":
        watch = self._watch(self.mount)
        time.sleep(CALM_S)  # how long they measure
        return self._times(watch)

    def _watch(self, mount: Mount) -> Helper:
        command = [compile_c([HERE / "bystander.c"]), "stat", mount.control]
        watch = Helper(f"stat of {mount.control}", command, None, self.environment, own_session=True)
        self.bystanders.append(watch)
        watch.wait_ready("ready")
        prefer(watch.process.pid)
        return watch

    def _times(self, watch: Helper) -> "Times":
        self.bystanders.remove(watch)
        return Times(*map(int, watch.finish().split()))

    def fight(self, seconds: float) -> None:
        """Let all of them go on for a while, and look at the server; again, if it was slow."""
        for _ in range(TRIES):
            self._fight_once(seconds)
            if self.times.p99 < self._p99_max():
                break

    def _fight_once(self, seconds: float) -> None:
        assert self.mount.process is not None
        watch, quiet_watch = self._watch(self.mount), self._watch(self.quiet)
        for attacker in self.attackers:
            attacker.process.send_signal(signal.SIGCONT)
        end = time.monotonic() + seconds
        warm_until = end - seconds * WARM_UP
        self.memory = [self._server_kb()]
        # On a busy machine the first look at the clock may come after the warm-up.
        warm, chance = self.memory[0], random.Random(self.seed)
        renew_at = time.monotonic() + RENEW_S
        while time.monotonic() < end:
            time.sleep(0.1)  # the fight goes on meanwhile
            assert self.mount.process.poll() is None, f"the server has ended\n{self.mount.log.read_text()[-5000:]}"
            for reader in self.readers:
                reader.start_again()
            if self.victims and time.monotonic() > renew_at:
                # What is known to be damaged is looked at no longer.
                victim = self.victims[chance.choice(sorted(self.victims))]
                self.mount.command(f"remove {victim.channel}")
                victim.make()
                renew_at += RENEW_S
            self.memory.append(self._server_kb())
            if time.monotonic() < warm_until:
                warm = max(self.memory)
        self.memory_max = int(warm * GROWTH_MAX) + GROWTH_ONCE_KB
        self.times, self.quiet_times = self._times(watch), self._times(quiet_watch)

    def _server_kb(self) -> int:
        """Count the server's own memory; what it maps of channels belongs to these."""
        assert self.mount.process is not None
        status = Path(f"/proc/{self.mount.server}/status").read_text()
        return sum(int(kb) for kb in re.findall(r"Rss(?:Anon|File):\s+(\d+)", status))

    # --- what must be true ---

    def judge(self) -> None:
        faults = self.faults()
        assert not faults, "\n".join(faults)

    def faults(self) -> list[str]:
        """Return all that is wrong."""
        faults: list[str] = []

        @contextmanager
        def noted() -> Iterator[None]:
            try:
                yield
            except AssertionError as error:
                faults.append(str(error))

        tell_to_end(self.attackers)
        for attacker in self.attackers:
            with noted():
                done = f"{attacker.name}: {attacker.finish().strip()}"
                print(done)
                assert "broke 0" in done or "writes" in done, done
        # The bystanders still work, and so does all else on the machine.
        after = self._calm_times()
        print(self._say_times(after))
        print(f"memory of the server, kB: {self.memory}")
        for tool in self.tools:
            tool.tell_to_end()
        tell_to_end(self.bystanders)
        for helper in self.bystanders:
            with noted():
                print(f"{helper.name}: {helper.finish().strip()}")
        neighbours = self.neighbours
        for judge in (
            *(each.finish for each in (*self.tools, *self.readers)),
            *(neighbours.judge_stream, neighbours.judge_ring, neighbours.judge_traced, neighbours.judge_trace),
            *(self._judge_log, lambda: self._judge_times(after), self._judge_memory),
        ):
            with noted():
                judge()
        for maker in self.makers:
            maker.kill()
        return faults

    def _judge_log(self) -> None:
        assert "Traceback" not in self.mount.log.read_text(), self.mount.log.read_text()[-5000:]

    def _judge_times(self, after: "Times") -> None:
        assert self.times.n > 0
        assert self.times.errors == 0
        assert self.times.p99 < max(self._p99_max(), STAT_RATIO * after.p99), self._say_times(after)

    def _p99_max(self) -> int:
        return max(STAT_P99_US, STAT_RATIO * max(self.calm.p99, self.quiet_times.p99))

    def _say_times(self, after: "Times") -> str:
        return f"stat(control): {self.times}, before: {self.calm}, after: {after}, of quiet mount: {self.quiet_times}"

    def _judge_memory(self) -> None:
        assert self.memory[-1] <= self.memory_max, f"the server's memory has grown, kB: {self.memory}"

    def restart(self) -> None:
        """A new server mounts what is left, lists it, and can remove it."""
        assert self.mount.stop() == 0
        self.mount.start()
        left = self.mount.path / ".channels/victim"
        listed = {f"victim/{name}" for name in (os.listdir(left) if left.exists() else ())}
        # A damaged one has no line that would make it again: what it was made of cannot be known. Who may write to a
        # channel may mark it as closed: the next server takes it for one whose removal was not finished.
        gone = set(self.victims) - listed
        # Who floods control may have made others.
        assert listed <= {*self.victims, *FLOODED}
        said = self.mount.log.read_text()
        assert all(f"{channel} was closed: it is removed" in said for channel in gone), gone
        assert relayctl(self.mount, "list").returncode == 0
        # Who floods control gives channels names of any bytes.
        done = subprocess.run(["ls", "-laR", self.mount.path], capture_output=True, text=True, errors="surrogateescape",
                              timeout=DEADLINE_S, check=False)  # fmt: skip
        # What the dead have left in traces, and was read, goes meanwhile.
        assert not [line for line in done.stderr.splitlines() if "No such file" not in line], done.stderr
        for channel in listed:
            self.mount.command(f"remove {channel}")
        victims = self.mount.path / "victim"
        assert not victims.exists() or not os.listdir(victims)
        self._judge_log()

    def end(self) -> None:
        """Leave no process behind, whatever has happened."""
        for helper in [*self.attackers, *self.bystanders]:
            helper.kill()
        for maker in self.makers:
            maker.kill()
        for reader in self.readers:
            reader.process.kill()
            reader.process.wait()
        for tool in self.tools:
            with suppress(AssertionError):
                tool.finish()
        self.neighbours.kill()
