"""Measure how fast relayctl forward sends a recording, next to publishing messages of one size, as `nats bench` does.

    ./dev bench forward [ROUNDS]

Debian's nats-server on loopback, with JetStream and its files on tmpfs; FILES files of packets that are as long as a
message may be. `forward` sends them with what it does besides: ids, checksums, headers, and the first message of a file
is compared with what the stream has. `publish` is as many loops of js.publish() with the same bytes and one message on
its way each; `publish-many` has WINDOW on their way each. Rounds take turns in one run, with an empty stream each.
MiB a second; with -cpu, the client's CPU time in ms for a MiB.
The status is 1 if a promise is missed twice.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import TMPFS, Limit, Samples, asked, judge

from relayfs_fuse.forwarding.forwarder import Forwarder, Options
from relayfs_fuse.forwarding.names import PAYLOAD_BYTES, STREAM
from relayfs_fuse.forwarding.recording import Recording
from relayfs_fuse.forwarding.server import Server
from relayfs_fuse.reading.packet import HEAD_BYTES, MAGIC, Head

ROUNDS = 7
FILES = 4
MESSAGES = 64  # of a file
WINDOW = 16
MIB = FILES * MESSAGES * PAYLOAD_BYTES / (1 << 20)
LIMITS = [
    Limit("forwarding: of publishing with as many messages on the way", "forward", "publish", least=0.8),
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


async def take(samples: Samples, name: str, server: Server, act: Callable[[], Awaitable[None]]) -> None:
    """Take a sample with an empty stream."""
    await server.jetstream.delete_stream(STREAM)
    await server.make_stream(1 << 30, 0, 1)
    begin, began_cpu = time.monotonic(), time.process_time()
    await act()
    took, took_cpu = time.monotonic() - begin, time.process_time() - began_cpu
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
        await take(samples, "publish-many", server, lambda: publish(server, recording, WINDOW))
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
            return judge(lambda: asyncio.run(measure(rounds, url, recording)), LIMITS, "MiB/s")


if __name__ == "__main__":
    sys.exit(main())
