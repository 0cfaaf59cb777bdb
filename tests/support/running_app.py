"""relay_apps that do what a test tells them, and write the channel app/cpu to files."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from build import PLAIN, PROGRAMS, compile_c, run_command, run_environment
from mounts import DEADLINE_S, Mount

RUNNER = PROGRAMS / "app_runner.c"
CHANNEL = "app/cpu"
NOTHING: Mapping[str, str] = {}


class App:
    """An app_runner, its answers and its output files."""

    def __init__(
        self, mount: Mount, output: Path, *options: str, sanitize: str = PLAIN, environment: Mapping[str, str] = NOTHING
    ) -> None:
        program = compile_c([RUNNER], None, sanitize)
        self.output, self.server = output, mount.server
        self.process = subprocess.Popen(
            run_command(program, mount.path / CHANNEL, output, *options, sanitize=sanitize),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={**run_environment(sanitize), **environment},
        )  # fmt: skip
        self.opened = self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def start(self) -> None:
        assert self.ask("start") == "0"

    def stop(self) -> None:
        assert self.ask("stop") == "0"

    def stats(self) -> dict[str, int]:
        names = ("bytes", "pieces", "max_backlog", "lost_records", "lost_bytes")
        return dict(zip(names, map(int, self.ask("stats").split()), strict=True))

    def of(self, cpu: int) -> bytes:
        return Path(f"{self.output}{cpu}").read_bytes()

    def everything(self) -> bytes:
        files = sorted(path for path in self.output.parent.iterdir() if re.fullmatch(r"out\d+", path.name))
        return b"".join(path.read_bytes() for path in files)

    def pieces(self, cpu: int) -> list[tuple[int, int]]:
        """The length and the padding of each."""
        text = Path(f"{self.output}{cpu}.pieces").read_text()
        return [(int(length), int(padding)) for length, padding in map(str.split, text.splitlines())]

    def check_asleep(self) -> None:
        """Whoever spins, in here or by way of the server, uses all of the time."""
        before = self._ticks()
        assert self.ask("over 600") == "0"
        assert self._ticks() - before < 0.2 * os.sysconf("SC_CLK_TCK")

    def _ticks(self) -> int:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (self.process.pid, self.server)]
        return sum(int(ticks) for stat in stats for ticks in stat.rpartition(")")[2].split()[11:13])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0


Start = Callable[..., App]
