"""Measure how fast relayctl forward sends a recording, next to publishing messages of one size, as `nats bench` does.

    ./dev bench forward [ROUNDS]

Debian's nats-server on loopback, with JetStream and its files on tmpfs; FILES files of packets that are as long as a
message may be. `forward` sends them with what it does besides: ids, checksums, headers, and the first message of a file
is compared with what the stream has. `publish` is as many loops of js.publish() with the same bytes and one message on
its way each; `publish-many` has WINDOW on their way each. `forward-live` sends a recording to which another process
appends meanwhile. Rounds take turns in one run, with an empty stream each. MiB a second; with -cpu, the client's CPU
time in ms for a MiB.

`recorded` and `forwarded` are what an event takes of a traced program's CPU time, ns, from Python: its events are
recorded, or recorded and forwarded.
The status is 1 if a promise is missed twice.
"""

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import TMPFS, Limit, Samples, asked, judge, mounted, ns_each

from relayfs_fuse.forwarding.forwarder import Forwarder, Options
from relayfs_fuse.forwarding.names import PAYLOAD_BYTES, STREAM
from relayfs_fuse.forwarding.recording import Recording
from relayfs_fuse.forwarding.server import Server
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head, Packet, walk
from relayfs_fuse.record.stream import OpenFiles, StreamFile

ROUNDS = 7
FILES = 4
MESSAGES = 64  # of a file
WINDOW = 16
APPENDED, REPEATED = 4, 4  # packets of a file at once; and how often all of them are appended
BATCHES, EVENTS, PAUSE_S = 100, 2000, 0.01
MIB = FILES * MESSAGES * PAYLOAD_BYTES / (1 << 20)
LIMITS = [
    Limit("forwarding: of publishing with as many messages on the way", "forward", "publish", least=0.8),
    Limit("forwarding while it is recorded: of the same", "forward-live", "publish", least=0.8),
    Limit("an event that is forwarded: times one that is only recorded", "forwarded", "recorded", most=1.1),
    Limit("the client's CPU time: times that of publishing", "forward-cpu", "publish-cpu"),
    Limit("forwarding, compressed: of the same", "forward-zstd", "publish"),
    Limit(f"forwarding: of publishing with {WINDOW} times as many", "forward", "publish-many"),
]


def make_recording(directory: Path) -> None:
    """Make files as a recorder does; events need not be right, because nobody reads them."""
    process = directory / "bench-1"
    process.mkdir(parents=True)
    (directory / ".relayfs").write_text("trace=bench id=1 boot=00000000-0000-0000-0000-000000000000\n")
    (process / "metadata").write_text("/* CTF 1.8 */\n")
    body = (b"an event and its fields, again and again; " * PAYLOAD_BYTES)[: PAYLOAD_BYTES - HEAD_BYTES]
    for cpu in range(FILES):
        head = Head(MAGIC, 0, cpu, 8 * PAYLOAD_BYTES, 0, 0, 1, 1, 8 * PAYLOAD_BYTES, cpu, 1)
        with (process / f"cpu{cpu}").open("wb") as file:
            for number in range(MESSAGES):
                file.write(head._replace(packet_seq_num=number).pack() + body)
            file.write(head.empty().pack())


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Run a NATS server; give its address."""
    port = 42229
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "jetstream")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def forward(server: Server, directory: Path, *, compresses: bool) -> None:
    """Send the recording as relayctl does."""
    options = Options("host", "bench", compresses=compresses)
    await Forwarder(server, Recording(str(directory)), options, lambda: None, lambda: True).run()


def append(recording: Path, target: Path) -> None:
    """Be a recorder: append the packets of a recording to files of another one, which has nothing else, as it does."""
    files = OpenFiles()
    streams = {}
    print("ready", flush=True)
    sys.stdin.readline()
    for path in sorted(recording.glob("*/cpu*")):
        data, packets = path.read_bytes(), []
        with path.open("rb") as file:
            for at, head in walk(file.fileno(), len(data)):
                packets.append(Packet(head, [memoryview(data)[at + HEAD_BYTES : at + head.packet_bytes]]))
        name = target / path.relative_to(recording)
        streams[StreamFile.create(str(name), packets[0], files, goes_on=True)] = packets[:-1] * REPEATED
    for first in range(0, MESSAGES * REPEATED, APPENDED):
        for stream, packets in streams.items():
            stream.append(packets[first : first + APPENDED], lambda: True)
    for stream in streams:
        stream.close()


async def forward_live(server: Server, recording: Path) -> tuple[float, float]:
    """Send a recording while it grows.

    Return how long MIB of it have taken, and of this process's CPU time, from the first packet to the last one.
    """
    target = recording.with_name("growing")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(recording, target, ignore=lambda _, names: [name for name in names if name.startswith("cpu")])
    command: list[str | Path] = [sys.executable, __file__, "append", recording, target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdin is not None
        assert recorder.stdout is not None
        recorder.stdout.readline()
        seen: list[tuple[int, float, float]] = []

        def look() -> None:
            if forwarder.bytes >= PAYLOAD_BYTES and (not seen or seen[-1][0] != forwarder.bytes):
                seen.append((forwarder.bytes, time.monotonic(), time.process_time()))

        print(file=recorder.stdin, flush=True)
        options = Options("host", "bench")
        forwarder = Forwarder(server, Recording(str(target)), options, look, lambda: recorder.poll() is not None)
        await forwarder.run()
    share = MIB * (1 << 20) / (seen[-1][0] - seen[0][0])
    return share * (seen[-1][1] - seen[0][1]), share * (seen[-1][2] - seen[0][2])


def trace(samples: Samples, rounds: int, url: str, directory: Path) -> None:
    """Measure what events cost this program."""
    relayctl = Path(sys.executable).with_name("relayctl")
    with mounted() as mount:
        mount.command("trace create bench subbuf_size=256K n_subbufs=32")
        mount.command("trace start bench")
        os.environ["RELAYFS"] = str(mount.path)
        from relayfs_fuse import Event  # noqa: PLC0415  # it looks for the mount then

        event = Event("bench", "event", {"n": "u64"})
        for number in range(rounds):
            for name, words in (
                ("recorded", ["record", "bench", "-o", directory / f"recorded{number}"]),
                ("forwarded", ["forward", "bench", "--spool", directory / "spool", "--to", url]),
            ):
                command: list[str | Path] = [relayctl, *words, "--mount", mount.path]
                with subprocess.Popen(command, stderr=subprocess.DEVNULL) as reader:
                    time.sleep(1)
                    values = []
                    for _ in range(BATCHES):
                        values.append(ns_each(lambda: event(1), EVENTS))
                        time.sleep(PAUSE_S)
                    reader.send_signal(signal.SIGINT)
                samples.add(name, statistics.median(values))


async def publish(server: Server, directory: Path, window: int) -> None:
    """Publish the same bytes without anything else."""

    async def one(path: Path) -> None:
        slots = asyncio.Semaphore(window)

        async def message(data: bytes) -> None:
            async with slots:
                await server.jetstream.publish(f"relayfs.host.bench.publish.{path.name}", data, timeout=60)

        with path.open("rb") as file:
            await asyncio.gather(*[message(file.read(PAYLOAD_BYTES)) for _ in range(MESSAGES)])

    await asyncio.gather(*map(one, sorted(directory.glob("*/cpu*"))))


async def take(
    samples: Samples, name: str, server: Server, act: Callable[[], Awaitable[tuple[float, float] | None]]
) -> None:
    """Take a sample with an empty stream; act: may return how long it has taken, and of its CPU time."""
    await server.jetstream.delete_stream(STREAM)
    await server.make_stream(1 << 30, 0, 1)
    begin, began_cpu = time.monotonic(), time.process_time()
    measured = await act()
    took, took_cpu = measured or (time.monotonic() - begin, time.process_time() - began_cpu)
    state = (await server.check_stream()).state
    samples.add(name, MIB / took, messages=state.messages)
    samples.add(f"{name}-cpu", took_cpu * 1000 / MIB)


async def measure(rounds: int, url: str, recording: Path) -> Samples:
    """Take all samples."""
    samples = Samples()
    server = Server(url, STREAM, "bench", print)
    await server.open()
    await server.make_stream(1 << 30, 0, 1)
    for _ in range(rounds):
        await take(samples, "publish", server, lambda: publish(server, recording, 1))
        await take(samples, "forward", server, lambda: forward(server, recording, compresses=False))
        await take(samples, "forward-zstd", server, lambda: forward(server, recording, compresses=True))
        await take(samples, "forward-live", server, lambda: forward_live(server, recording))
        await take(samples, "publish-many", server, lambda: publish(server, recording, WINDOW))
    await server.jetstream.delete_stream(STREAM)
    await server.make_stream(1 << 30, 0, 1)
    await server.close()
    return samples


def main() -> int:
    """Measure and judge."""
    rounds = asked(ROUNDS)
    if not shutil.which("nats-server"):
        print("nats-server is missing, which ./dev unpacks from Debian's packages")
        return 1
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        recording = Path(directory) / "recording"
        make_recording(recording)
        with served(Path(directory)) as url:

            def samples() -> Samples:
                found = asyncio.run(measure(rounds, url, recording))
                trace(found, rounds, url, Path(directory))
                return found

            return judge(samples, LIMITS, "MiB/s, or ns")


if __name__ == "__main__":
    if sys.argv[1:2] == ["append"]:
        append(*map(Path, sys.argv[2:]))
    else:
        sys.exit(main())
