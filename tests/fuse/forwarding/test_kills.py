"""Programs of all six kinds are killed at random: nothing is lost, and nothing comes twice."""

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from babeltrace import PACKET, packets_in, read
from forking import RELAYCTL, start
from forwarding import files_in, same
from mounts import DEADLINE_S, Mount, wait_until
from nats_server import NatsServer
from stress import is_long
from tracing import Program, Served, catches

from relayfs_fuse import native

HOST = os.uname().nodename
SEED = int(os.environ.get("RELAYFS_SEED", time.time_ns() % 1_000_000))
KINDS = ["server", "forwarder", "receiver", "recorder", "file server", "program"]
DIED = "WARNING: the server before, process .* has died"


class Parts:
    """The forwarder, the server, the receiver and the recorder; what they say goes to files."""

    def __init__(self, server: NatsServer, commands: dict[str, list[object]], logs: Path) -> None:
        self.server = server
        self.logs = logs
        self._commands = commands
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in commands:
            self.start(name)

    def start(self, name: str) -> None:
        with (self.logs / name).open("ab") as log:
            self._processes[name] = start([RELAYCTL, *map(str, self._commands[name])], stderr=log)

    def kill_and_start(self, name: str) -> None:
        if name == "server":
            self.server.kill()
            self.server.start()
            return
        process = self._processes[name]
        assert process.poll() is None, self.said()
        process.kill()
        process.wait(DEADLINE_S)
        self.start(name)

    def said(self) -> str:
        return "".join(f"{name}: {(self.logs / name).read_text()}\n" for name in self._commands)

    def end_recorder(self) -> None:
        process = self._processes["recorder"]
        wait_until(lambda: catches(process, signal.SIGTERM), "the recorder")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0, self.said()

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(DEADLINE_S)


class Victim:
    """A program that writes until it is killed, and the counts of its buffer, which outlive it."""

    def __init__(self, trace: Served, name: str) -> None:
        self._program = Program(trace, trace, name)
        self._buffer = native.Buffer(str(self._program.directory / "cpu/mem0"))
        self.name = name

    def kill(self, after_s: float) -> None:
        with self._program as program:
            program.start_flat_out()
            time.sleep(after_s)
            program.kill()
        stats = self._buffer.stats()
        self.written, self.lost = stats.records, stats.lost_full_records
        self._buffer.close()


@dataclass
class Killing:
    """What runs.

    parts: the forwarder, the server, the receiver and the recorder
    trace: of the file server of `mount`
    """

    parts: Parts
    mount: Mount
    trace: Served
    out: Path
    into: Path


@pytest.fixture
def killing(tmp_path: Path, mount: Mount, out: Path):
    """All of them, with a server that may be killed."""
    mount.expect(DIED)
    trace = Served(mount.store, mount.path).create(mount, "t")
    with NatsServer(tmp_path) as server:
        server.make_stream()
        out.mkdir()
        commands: dict[str, list[object]] = {
            "recorder": ["record", "t", "--mount", mount.path, "-o", out],
            "receiver": ["receive", "--from", server.url, "-o", tmp_path / "into"],
        }
        parts = Parts(server, commands, tmp_path)
        try:
            wait_until((out / ".relayfs").exists, parts.said)
            parts._commands["forwarder"] = ["forward", out, "--to", server.url]
            parts.start("forwarder")
            yield Killing(parts, mount, trace, out, tmp_path / "into" / HOST / "out")
        finally:
            parts.kill_all()


@pytest.mark.stress
def test_whoever_is_killed_nothing_is_lost_and_nothing_comes_twice(killing: Killing):
    """Short: each of them twice. Long: 200 kills."""
    print(f"RELAYFS_SEED={SEED}")
    chance = random.Random(SEED)
    order = [chance.choice(KINDS) for _ in range(200)] if is_long() else 2 * chance.sample(KINDS, 6)
    programs = [Program(killing.trace, killing.trace, "one"), Program(killing.trace, killing.trace, "two", cpu=1)]
    victims, refused = [], 0
    for number, kind in enumerate(order):
        for program in programs:
            program.start_patiently(500)
        time.sleep(chance.uniform(0.0, 0.4))
        if kind == "program":
            victims.append(Victim(killing.trace, f"victim{number}"))
            victims[-1].kill(chance.uniform(0.0, 0.2))
        elif kind == "file server":
            killing.mount.kill_server()
        else:
            killing.parts.kill_and_start(kind)
        refused += sum(program.done() for program in programs)
    for program in programs:
        program.end()
        program.__exit__()
    killing.parts.end_recorder()
    wait_until(lambda: same(killing.out, killing.into), killing.parts.said)
    wrote, arrived = read(killing.out), read(killing.into)
    assert arrived == wrote
    expected = {name: list(range(500 * len(order))) for name in ("one", "two")}
    expected |= {one.name: list(range(one.written)) for one in victims if one.written}
    assert wrote.events == expected
    assert wrote.lost == refused + sum(one.lost for one in victims)
    packets = {path: n_packets(killing.out / path) for path in files_in(killing.out) if "/cpu" in path}
    sent = killing.parts.server.subjects()
    assert {path: sent[subject(path)] for path in packets} == packets


def n_packets(path: Path) -> int:
    """Count packets, without the room behind them: nobody completes a file whose program and recorder have died."""
    heads = [head for head, _ in packets_in(path.read_bytes())]
    has_room = heads[-1].content_bits == 8 * PACKET.size < heads[-1].bits
    return len(heads) - has_room


def subject(path: str) -> str:
    process, name = path.split("/")
    return f"relayfs.{HOST}.out.{process}.{name}"
