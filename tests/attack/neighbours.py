"""Honest users of a mount that is attacked, and what must be true of what they have written and read."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from attack.programs import Helper, as_user
from babeltrace import babeltrace, lost
from making import Maker
from mounts import DEADLINE_S, Mount, wait_until
from traced import Ledger, environment_of, program, start_trace
from tracing import finish, recording
from traffic import Stream, lines

HONEST = 60_002
# How many of the neighbour's events may be lost, all of them counted.
LOST_MAX = 1 / 200

RING_PRODUCER = """
import os, select, sys, time
from relayfs_fuse import Ring

n = 0
with Ring(sys.argv[1]) as ring:
    while not select.select([0], [], [], 0.01)[0]:
        for _ in range(20):
            ring.output(b"line %08d ................" % n)
            n += 1
print(n)
"""


@dataclass
class Neighbours:
    """Honest users of the same mount: a stream, a ring, a traced program that is recorded."""

    mount: Mount
    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        mount = self.mount
        self.stream = Stream(mount, "neighbour/cpu")
        mount.create("neighbour/cpu", f"uid={HONEST} gid={HONEST} perm=0600 subbuf_size=64K n_subbufs=64")
        mount.create(
            "neighbour/ring",
            f"type=ring buffers=single framing=line read=wait uid={HONEST} gid={HONEST} perm=0600 size=1M",
        )
        self.stream.start(user=HONEST)
        self._read(["tail", "-c", "+1", "-f", "-s", "0.05", self.stream.file], "stream")
        self._read(["cat", mount.path / "neighbour/ring"], "ring")
        self.ring = Helper("the ring's producer", [sys.executable, "-c", RING_PRODUCER, mount.path / "neighbour/ring"],
                           HONEST, environment_of(mount))  # fmt: skip
        start_trace(mount, "t", "subbuf_size=64K n_subbufs=16")
        self.out = self.directory / "out"
        self.recorder = self.stack.enter_context(recording("t", "-m", mount.path, "-o", self.out))
        self.ledger = Ledger(self.directory / "ledger")
        self.traced = Maker(environment_of(mount), None, [program("traced"), self.ledger.path])
        self.traced.start("flood 10 10000")
        wait_until(lambda: any(self.out.rglob("cpu*")), "the neighbour's program is recorded")

    def _read(self, command: Sequence[str | Path], name: str) -> None:
        with (self.directory / name).open("wb") as out:
            self.processes.append(subprocess.Popen(list(map(str, command)), stdout=out, cwd="/", **as_user(HONEST)))

    def _read_so_far(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def judge_stream(self) -> None:
        """Everything that was written has been read, once and in order."""
        n = self.stream.finish()
        assert n > 0
        wait_until(lambda: len(self._read_so_far("stream")) >= len(lines(n)), "the neighbour's reader has read all")
        assert self._read_so_far("stream") == lines(n), "the neighbour's stream is not what was written"
        tail, _ = self.processes
        assert tail.poll() is None
        tail.terminate()
        assert tail.wait(DEADLINE_S) == -signal.SIGTERM

    def judge_ring(self) -> None:
        """Everything that was written has been read, once and in order."""
        _, cat = self.processes
        n = int(self.ring.finish())
        assert n > 0
        self.mount.command("remove neighbour/ring")
        assert cat.wait(DEADLINE_S) == 0
        assert self._read_so_far("ring") == lines(n), "the neighbour's ring is not what was written"

    def judge_traced(self) -> None:
        assert self.traced.process.poll() is None, "the honest traced program has ended"

    def judge_trace(self) -> None:
        """Each event has been recorded, or is counted as lost."""
        self.traced.kill()
        written = self.ledger.written
        self.mount.command("trace stop t")
        assert self.recorder.poll() is None, f"the recorder has ended: {self.recorder.communicate()}"
        said = finish(self.recorder)
        # The whole recording can be read, whoever else is in it. The kill may have come before the ledger said so.
        pid = self.traced.process.pid
        numbers = babeltrace(self.out).by_pid()[pid]
        assert numbers == sorted(set(numbers) & set(range(written + 1))), "the neighbour's recording has other events"
        missing = sorted(set(range(written)) - set(numbers))
        # An event does not wait for the recorder, which may be kept from running while it begins a sub-buffer.
        counted = lost(self.out / f"traced-{pid}")
        assert len(missing) == counted <= written * LOST_MAX, (
            f"the neighbour's recording lacks {len(missing)} events and counts {counted}: {missing[:20]}, {said}"
        )

    def kill(self) -> None:
        self.stream.kill()
        for process in self.processes:
            process.kill()
            process.wait()
        for each in ("ring", "traced"):
            if hasattr(self, each):
                getattr(self, each).kill()
        self.stack.close()
