"""Forwarder, server, receiver and recorder are killed at random: nothing is lost, and nothing comes twice."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from babeltrace import packets_in, read
from forking import RELAYCTL, start
from forwarding import files_in, same
from mounts import DEADLINE_S, wait_until
from nats_server import NatsServer
from stress import is_long
from tracing import catches

HOST = os.uname().nodename
SEED = int(os.environ.get("RELAYFS_SEED", time.time_ns() % 1_000_000))


class Parts:
    """The four programs; what they say goes to files."""

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


@pytest.fixture
def parts(tmp_path: Path, store, out):
    """The four programs, with a server that may be killed."""
    with NatsServer(tmp_path) as server:
        server.make_stream()
        store.create("t", subbuf_size=4096, n_subbufs=16)
        out.mkdir()
        commands: dict[str, list[object]] = {
            "recorder": ["record", "t", "--store", store.path, "-o", out],
            "receiver": ["receive", "--from", server.url, "-o", tmp_path / "into"],
        }
        parts = Parts(server, commands, tmp_path)
        wait_until((out / ".relayfs").exists, parts.said)
        parts._commands["forwarder"] = ["forward", out, "--to", server.url]
        parts.start("forwarder")
        yield parts
        parts.kill_all()


@pytest.mark.stress
def test_whoever_is_killed_nothing_is_lost_and_nothing_comes_twice(parts, store, run, out, tmp_path):
    """Short: each of them twice. Long: 200 kills."""
    print(f"RELAYFS_SEED={SEED}")
    chance = random.Random(SEED)
    victims = ["server", "forwarder", "receiver", "recorder"]
    order = [chance.choice(victims) for _ in range(200)] if is_long() else 2 * chance.sample(victims, 4)
    (trace,) = store.traces.all().values()
    programs = [run(trace, "one"), run(trace, "two", cpu=1)]
    rounds, refused = 0, 0
    for victim in order:
        for program in programs:
            program.start_patiently(500)
        time.sleep(chance.uniform(0.0, 0.4))
        parts.kill_and_start(victim)
        refused += sum(program.done() for program in programs)
        rounds += 1
    for program in programs:
        program.end()
    parts.end_recorder()
    into = tmp_path / "into" / HOST / "out"
    wait_until(lambda: same(out, into), parts.said)
    wrote, arrived = read(out), read(into)
    assert arrived == wrote
    assert wrote.events == {name: list(range(500 * rounds)) for name in ("one", "two")}
    assert wrote.lost == refused
    packets = {path: len(packets_in((out / path).read_bytes())) for path in files_in(out) if "/cpu" in path}
    sent = parts.server.subjects()
    assert {path: sent[subject(path)] for path in packets} == packets
    parts.kill_all()


def subject(path: str) -> str:
    process, name = path.split("/")
    return f"relayfs.{HOST}.out.{process}.{name}"
